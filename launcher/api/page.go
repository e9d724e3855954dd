package api

import (
	_ "embed" // the page
	"net/http"
)

//go:embed page.html
var pageHTML []byte

// page serves the one page. It holds no data: its script asks the API.
func page(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; frame-ancestors 'none'")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write(pageHTML) // a client that left needs no answer
}
