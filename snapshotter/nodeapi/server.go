package nodeapi

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
)

// ErrNotFound is wrapped by errors about an image or layer that the snapshotter
// does not have.
var ErrNotFound = errors.New("not found")

// maxRequest bounds the body of a request: a name or two, or a command.
const maxRequest = 64 << 10

// Source answers the questions of the API.
type Source interface {
	Status(ctx context.Context) Status
	Images(ctx context.Context) ([]Image, error)
	Containers(ctx context.Context) ([]Container, error)
	// Evict takes cached bytes away. It must wrap ErrNotFound for names that it
	// does not know.
	Evict(ctx context.Context, req EvictRequest) (Evicted, error)
	// Warm completes an image and reports how far it is, from one goroutine at a
	// time, until it returns. It must wrap ErrNotFound as Evict does, before the
	// first report.
	Warm(ctx context.Context, req WarmRequest, report func(Progress)) error
}

// ProfileSource is implemented by sources that have access profiles. Its errors
// must wrap ErrNotFound where there is no such profile or recording.
type ProfileSource interface {
	Profiles(ctx context.Context) ([]Profile, error)
	// ProfileBytes returns an encoded profile of a manifest.
	ProfileBytes(ctx context.Context, manifest string) ([]byte, error)
	RemoveProfiles(ctx context.Context, manifest string) error
	// Record begins a recording, or makes the image's next start begin one.
	Record(ctx context.Context, req ProfileRequest) (Profile, error)
	// StopRecording ends one and returns what it made.
	StopRecording(ctx context.Context, req ProfileRequest) (Profile, error)
}

// NewHandler serves the API from src; metrics, when not nil, serves /metrics.
func NewHandler(src Source, metrics http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, r *http.Request) {
		writeJSON(w, http.StatusOK, src.Status(r.Context()))
	})
	mux.HandleFunc("GET /v1/images", func(w http.ResponseWriter, r *http.Request) {
		images, err := src.Images(r.Context())
		writeList(w, images, err, "images cannot be listed")
	})
	mux.HandleFunc("GET /v1/containers", func(w http.ResponseWriter, r *http.Request) {
		containers, err := src.Containers(r.Context())
		writeList(w, containers, err, "containers cannot be listed")
	})
	mux.HandleFunc("POST /v1/evict", func(w http.ResponseWriter, r *http.Request) {
		var req EvictRequest
		if !readJSON(w, r, &req) {
			return
		}
		evicted, err := src.Evict(r.Context(), req)
		if err != nil {
			writeProblem(w, err, "nothing was evicted")
			return
		}
		writeJSON(w, http.StatusOK, evicted)
	})
	mux.HandleFunc("POST /v1/warm", func(w http.ResponseWriter, r *http.Request) {
		var req WarmRequest
		if readJSON(w, r, &req) {
			warm(w, r, src, req)
		}
	})
	if p, ok := src.(ProfileSource); ok {
		handleProfiles(mux, p)
	}
	if metrics != nil {
		mux.Handle("GET /metrics", metrics)
	}
	return mux
}

func handleProfiles(mux *http.ServeMux, src ProfileSource) {
	mux.HandleFunc("GET /v1/profiles", func(w http.ResponseWriter, r *http.Request) {
		all, err := src.Profiles(r.Context())
		writeList(w, all, err, "profiles cannot be listed")
	})
	mux.HandleFunc("GET /v1/profiles/{manifest}", func(w http.ResponseWriter, r *http.Request) {
		b, err := src.ProfileBytes(r.Context(), r.PathValue("manifest"))
		if err != nil {
			writeProblem(w, err, "profile cannot be read")
			return
		}
		w.Header().Set("Content-Type", "application/octet-stream")
		_, _ = w.Write(b) // the peer is gone when this fails
	})
	mux.HandleFunc("DELETE /v1/profiles/{manifest}", func(w http.ResponseWriter, r *http.Request) {
		if err := src.RemoveProfiles(r.Context(), r.PathValue("manifest")); err != nil {
			writeProblem(w, err, "profile is not removed")
			return
		}
		writeJSON(w, http.StatusOK, struct{}{})
	})
	for path, do := range map[string]func(context.Context, ProfileRequest) (Profile, error){"record": src.Record, "stop": src.StopRecording} {
		mux.HandleFunc("POST /v1/profiles/"+path, func(w http.ResponseWriter, r *http.Request) {
			var req ProfileRequest
			if !readJSON(w, r, &req) {
				return
			}
			p, err := do(r.Context(), req)
			if err != nil {
				writeProblem(w, err, path+" had no effect")
				return
			}
			writeJSON(w, http.StatusOK, p)
		})
	}
}

// warm answers a line for each report, the last with Done or Error.
func warm(w http.ResponseWriter, r *http.Request, src Source, req WarmRequest) {
	var last Progress
	begun := false
	enc := json.NewEncoder(w)
	write := func(p Progress) {
		if !begun {
			w.Header().Set("Content-Type", "application/x-ndjson")
			begun = true
		}
		last = p
		// A client that is gone ends the request's context.
		_ = enc.Encode(p)
		_ = http.NewResponseController(w).Flush()
	}
	err := src.Warm(r.Context(), req, write)
	if err != nil && !begun {
		writeProblem(w, err, "image cannot be completed")
		return
	}
	last.Done = true
	if err != nil {
		last.Error = err.Error()
	}
	write(last)
}

func readJSON(w http.ResponseWriter, r *http.Request, v any) bool {
	dec := json.NewDecoder(io.LimitReader(r.Body, maxRequest))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		writeJSON(w, http.StatusBadRequest, problem{Title: "request cannot be read", Detail: err.Error()})
		return false
	}
	return true
}

// problem is the body of an error answer (RFC 9457).
type problem struct {
	Title  string `json:"title"`
	Detail string `json:"detail,omitempty"`
}

func writeProblem(w http.ResponseWriter, err error, title string) {
	status := http.StatusInternalServerError
	if errors.Is(err, ErrNotFound) {
		status = http.StatusNotFound
	}
	writeJSON(w, status, problem{Title: title, Detail: err.Error()})
}

func writeList[T any](w http.ResponseWriter, list []T, err error, title string) {
	if err != nil {
		writeProblem(w, err, title)
		return
	}
	if list == nil {
		list = []T{}
	}
	writeJSON(w, http.StatusOK, list)
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
