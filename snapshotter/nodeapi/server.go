package nodeapi

import (
	"context"
	"encoding/json"
	"net/http"
)

// Source answers the questions of the API.
type Source interface {
	Status(ctx context.Context) Status
	Images(ctx context.Context) ([]Image, error)
}

// NewHandler serves the API from src; metrics, when not nil, serves /metrics.
func NewHandler(src Source, metrics http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, r *http.Request) {
		writeJSON(w, http.StatusOK, src.Status(r.Context()))
	})
	mux.HandleFunc("GET /v1/images", func(w http.ResponseWriter, r *http.Request) {
		images, err := src.Images(r.Context())
		if err != nil {
			writeJSON(w, http.StatusInternalServerError, problem{Title: "images cannot be listed", Detail: err.Error()})
			return
		}
		if images == nil {
			images = []Image{}
		}
		writeJSON(w, http.StatusOK, images)
	})
	if metrics != nil {
		mux.Handle("GET /metrics", metrics)
	}
	return mux
}

// problem is the body of an error answer (RFC 9457).
type problem struct {
	Title  string `json:"title"`
	Detail string `json:"detail,omitempty"`
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	if status >= http.StatusBadRequest {
		w.Header().Set("Content-Type", "application/problem+json")
	}
	w.WriteHeader(status)
	// The peer is gone when this fails; nobody is left to tell.
	_ = json.NewEncoder(w).Encode(v)
}
