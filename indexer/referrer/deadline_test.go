package referrer

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// A registry that goes silent is given up, whatever it was about to do.
func TestSilentRegistry(t *testing.T) {
	idle := 300 * time.Millisecond
	end := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/body":
			_, _ = w.Write([]byte(`{"a":`))
			_ = http.NewResponseController(w).Flush()
			<-end
		case "/answer", "/upload":
			<-end
		case "/slow": // but never silent
			for range 6 {
				_, _ = w.Write([]byte("x"))
				_ = http.NewResponseController(w).Flush()
				time.Sleep(idle / 3) //nolint:forbidigo // it is about time
			}
		}
	}))
	defer s.Close()
	defer close(end)
	client := &http.Client{Transport: &deadlines{base: http.DefaultTransport.(*http.Transport).Clone(), idle: idle}}
	for path, silent := range map[string]bool{"/body": true, "/answer": true, "/upload": true, "/slow": false} {
		t.Run(path, func(t *testing.T) {
			var in io.Reader
			if path == "/upload" {
				in = bytes.NewReader(make([]byte, 64<<20)) // more than any buffer on the way
			}
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+path, in)
			if err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			resp, err := client.Do(req)
			if err == nil {
				_, err = io.Copy(io.Discard, resp.Body)
				err = errors.Join(err, resp.Body.Close())
			}
			if silent != errors.Is(err, errIdle) || silent != (err != nil) {
				t.Errorf("after %s: %v", time.Since(start), err)
			}
		})
	}
}
