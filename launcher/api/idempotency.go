package api

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"time"

	"github.com/firstlight-dev/firstlight/launcher/store"
)

const (
	keyHeader      = "Idempotency-Key"
	replayedHeader = "Idempotency-Replayed"
	// maxKey bounds a key; clients send a UUID or ULID.
	maxKey = 255
	// maxBody bounds a request's body: a spec is at most 64 KiB.
	maxBody = 1 << 20
)

// idempotent makes POST requests with a key repeatable: the first answer is
// stored and given again. Answers that a retry may change are not stored.
func (s *Server) idempotent(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		key := r.Header.Get(keyHeader)
		if r.Method != http.MethodPost || key == "" {
			next.ServeHTTP(w, r)
			return
		}
		if len(key) > maxKey {
			writeProblem(w, problem(http.StatusBadRequest, CodeInvalidRequest, "the idempotency key is too long"))
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			writeProblem(w, problem(http.StatusRequestEntityTooLarge, CodeInvalidRequest, "the body cannot be read or is too long"))
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		s.once(w, r, next, key, hex.EncodeToString(hash(body)))
	})
}

func hash(b []byte) []byte {
	sum := sha256.Sum256(b)
	return sum[:]
}

func (s *Server) once(w http.ResponseWriter, r *http.Request, next http.Handler, key, bodyHash string) {
	scope := principalOf(r.Context()) + " " + r.Method + " " + r.URL.Path
	old, claimed, err := s.store.BeginAnswer(r.Context(), scope, key, bodyHash, time.Now())
	switch {
	case err != nil:
		writeProblem(w, problemOf(err))
		return
	case !claimed:
		replay(w, old, bodyHash)
		return
	}
	// The answer must be stored even if the client has left meanwhile.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), 10*time.Second)
	defer cancel()
	rec := &recorder{ResponseWriter: w, status: http.StatusOK}
	finished := false
	defer func() {
		if !finished {
			s.settle(s.store.ReleaseAnswer(ctx, scope, key))
		}
	}()
	next.ServeHTTP(rec, r)
	if rec.status >= http.StatusInternalServerError {
		return
	}
	header, err := json.Marshal(map[string]string{
		"Content-Type": w.Header().Get("Content-Type"), "Location": w.Header().Get("Location"),
	})
	if err != nil {
		return
	}
	finished = true
	s.settle(s.store.EndAnswer(ctx, scope, key, store.Answer{Status: rec.status, Header: string(header), Body: rec.body.Bytes()}))
}

// settle logs what the client cannot be told any more.
func (s *Server) settle(err error) {
	if err != nil {
		s.log.Error("idempotent answer not settled", "error", err)
	}
}

func replay(w http.ResponseWriter, old store.Answer, bodyHash string) {
	switch {
	case old.BodyHash != bodyHash:
		writeProblem(w, problem(http.StatusUnprocessableEntity, CodeIdempotencyKeyReused, "the key was used for another request"))
		return
	case old.Status == 0:
		w.Header().Set("Retry-After", "1")
		p := problem(http.StatusConflict, CodeIdempotencyInProgress, "the first request with this key is still being served")
		p.Retryable = true
		writeProblem(w, p)
		return
	}
	var header map[string]string
	if err := json.Unmarshal([]byte(old.Header), &header); err != nil {
		writeProblem(w, problemOf(err))
		return
	}
	for name, value := range header {
		if value != "" {
			w.Header().Set(name, value)
		}
	}
	w.Header().Set(replayedHeader, "true")
	w.WriteHeader(old.Status)
	_, _ = w.Write(old.Body) // a client that left needs no answer
}

// recorder keeps a copy of the answer.
type recorder struct {
	http.ResponseWriter
	status int
	body   bytes.Buffer
}

// WriteHeader implements http.ResponseWriter.
func (r *recorder) WriteHeader(status int) {
	r.status = status
	r.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (r *recorder) Write(p []byte) (int, error) {
	r.body.Write(p)
	return r.ResponseWriter.Write(p)
}

// Unwrap lets http.ResponseController find the connection.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }
