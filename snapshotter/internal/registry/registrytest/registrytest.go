// Package registrytest is a registry for tests that misbehaves on demand.
package registrytest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Fault answers a request in place of the registry, or returns false to let it
// answer.
type Fault func(w http.ResponseWriter, r *http.Request) bool

// Server is a registry with one name space. Its zero behaviour is good.
type Server struct {
	*httptest.Server

	mu        sync.Mutex
	blobs     map[digest.Digest][]byte
	manifests map[string]manifest // by tag and by digest
	referrers map[digest.Digest][]ocispec.Descriptor
	fault     Fault
	requests  []*http.Request
	auth      *auth
}

type manifest struct {
	mediaType string
	body      []byte
}

type auth struct {
	user, password string
	serial         atomic.Int64
	tokens         atomic.Int64 // tokens handed out
	mu             sync.Mutex
	valid          map[string]bool
}

// New starts a registry that the test's end stops.
func New(t testing.TB) *Server {
	s := &Server{
		blobs: map[digest.Digest][]byte{}, manifests: map[string]manifest{},
		referrers: map[digest.Digest][]ocispec.Descriptor{},
	}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

// Host is the registry's name in image references.
func (s *Server) Host() string { return strings.TrimPrefix(s.URL, "http://") }

// AddBlob puts a blob.
func (s *Server) AddBlob(b []byte) ocispec.Descriptor {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := digest.FromBytes(b)
	s.blobs[d] = b
	return ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayerGzip, Digest: d, Size: int64(len(b))}
}

// AddManifest puts a manifest, under a tag unless that is empty.
func (s *Server) AddManifest(tag, mediaType string, b []byte) ocispec.Descriptor {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := digest.FromBytes(b)
	s.manifests[d.String()] = manifest{mediaType, b}
	if tag != "" {
		s.manifests[tag] = manifest{mediaType, b}
	}
	return ocispec.Descriptor{MediaType: mediaType, Digest: d, Size: int64(len(b))}
}

// AddReferrer lists a manifest as referring to a subject.
func (s *Server) AddReferrer(subject digest.Digest, d ocispec.Descriptor) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.referrers[subject] = append(s.referrers[subject], d)
}

// SetFault makes the registry misbehave; nil ends that.
func (s *Server) SetFault(f Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = f
}

// RequireLogin makes every request need a bearer token, which the user gets.
func (s *Server) RequireLogin(user, password string) {
	s.auth = &auth{user: user, password: password, valid: map[string]bool{}}
}

// RevokeTokens makes all tokens handed out invalid.
func (s *Server) RevokeTokens() {
	s.auth.mu.Lock()
	defer s.auth.mu.Unlock()
	clear(s.auth.valid)
}

// Tokens is how many tokens were handed out.
func (s *Server) Tokens() int64 { return s.auth.tokens.Load() }

// Requests returns what was asked so far.
func (s *Server) Requests() []*http.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*http.Request(nil), s.requests...)
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.requests = append(s.requests, r.Clone(r.Context()))
	fault := s.fault
	s.mu.Unlock()
	if fault != nil && fault(w, r) {
		return
	}
	if r.URL.Path == "/token" {
		s.auth.hand(w, r)
		return
	}
	if s.auth != nil && !s.auth.ok(r) {
		w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="%s/token",service="test"`, s.URL))
		http.Error(w, "log in", http.StatusUnauthorized)
		return
	}
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	if len(parts) < 4 || parts[0] != "v2" {
		http.NotFound(w, r)
		return
	}
	kind, id := parts[len(parts)-2], parts[len(parts)-1]
	s.mu.Lock()
	defer s.mu.Unlock()
	switch kind {
	case "blobs":
		if b, ok := s.blobs[digest.Digest(id)]; ok {
			w.Header().Set("Content-Type", "application/octet-stream")
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(b))
			return
		}
	case "manifests":
		if m, ok := s.manifests[id]; ok {
			w.Header().Set("Content-Type", m.mediaType)
			_, _ = w.Write(m.body)
			return
		}
	case "referrers":
		list := ocispec.Index{MediaType: ocispec.MediaTypeImageIndex, Manifests: s.referrers[digest.Digest(id)]}
		w.Header().Set("Content-Type", ocispec.MediaTypeImageIndex)
		_ = json.NewEncoder(w).Encode(list)
		return
	}
	http.NotFound(w, r)
}

func (a *auth) ok(r *http.Request) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.valid[strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")]
}

// hand gives a token to who knows the password, by GET or POST.
func (a *auth) hand(w http.ResponseWriter, r *http.Request) {
	user, password, _ := r.BasicAuth()
	if r.Method == http.MethodPost {
		user, password = r.PostFormValue("username"), r.PostFormValue("password")
	}
	if user != a.user || password != a.password {
		http.Error(w, "wrong password", http.StatusUnauthorized)
		return
	}
	token := fmt.Sprintf("token-%d", a.serial.Add(1))
	a.tokens.Add(1)
	a.mu.Lock()
	a.valid[token] = true
	a.mu.Unlock()
	_ = json.NewEncoder(w).Encode(map[string]any{"token": token, "access_token": token})
}

// Status is a fault: every answer has this status.
func Status(code int) Fault {
	return func(w http.ResponseWriter, _ *http.Request) bool {
		http.Error(w, http.StatusText(code), code)
		return true
	}
}

// BlackHole is a fault: no answer until the client gives up.
func BlackHole(_ http.ResponseWriter, r *http.Request) bool {
	<-r.Context().Done()
	return true
}
