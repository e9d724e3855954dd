package api

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
)

// minToken is the shortest token accepted: 128 bits as hexadecimal digits.
const minToken = 32

// maxTokenFile bounds the token file: thousands of tokens.
const maxTokenFile = 1 << 20

// Tokens decides who may use the API. Only digests of tokens are kept.
type Tokens struct {
	digests [][sha256.Size]byte
	open    bool
}

// NoTokens lets this machine in without a token.
func NoTokens() *Tokens { return &Tokens{open: true} }

// NewTokens accepts the given tokens.
func NewTokens(tokens ...string) (*Tokens, error) {
	t := &Tokens{}
	for i, token := range tokens {
		if len(token) < minToken {
			return nil, fmt.Errorf("token %d is shorter than %d characters", i+1, minToken)
		}
		t.digests = append(t.digests, sha256.Sum256([]byte(token)))
	}
	if len(t.digests) == 0 {
		return nil, errors.New("there is no token")
	}
	return t, nil
}

// ReadTokens reads a file with one token a line; lines that start with # and
// empty ones do not count. Only its owner may be able to read the file.
func ReadTokens(path string) (*Tokens, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("read tokens: %w", err)
	}
	switch {
	case info.Mode().Perm()&0o077 != 0:
		return nil, fmt.Errorf("read tokens: %s is readable by others (chmod 600)", path)
	case info.Size() > maxTokenFile:
		return nil, fmt.Errorf("read tokens: %s is larger than %d bytes", path, maxTokenFile)
	}
	body, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read tokens: %w", err)
	}
	var tokens []string
	for line := range strings.Lines(string(body)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			tokens = append(tokens, line)
		}
	}
	t, err := NewTokens(tokens...)
	if err != nil {
		return nil, fmt.Errorf("read tokens: %s: %w", path, err)
	}
	return t, nil
}

// CheckListen refuses to serve others than this machine without tokens.
func (t *Tokens) CheckListen(address string) error {
	if !t.open {
		return nil
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("listen address %q: %w", address, err)
	}
	if !loopback(host) {
		return fmt.Errorf("listen address %q is not on this machine's loopback: that needs a token file", address)
	}
	return nil
}

func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && ip.IsLoopback()
}

// principal is who makes a request; it separates idempotency keys.
type principal struct{}

func principalOf(ctx context.Context) string {
	name, ok := ctx.Value(principal{}).(string)
	if !ok {
		return "local"
	}
	return name
}

// guard lets requests through that may pass.
func (t *Tokens) guard(next http.Handler) http.Handler {
	origin := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := origin.Check(r); err != nil {
			writeProblem(w, problem(http.StatusForbidden, CodeForbidden, "a page of another site may not do this"))
			return
		}
		who, p := t.admit(r)
		if p != nil {
			if p.Status == http.StatusUnauthorized {
				w.Header().Set("WWW-Authenticate", `Bearer realm="firstlight"`)
			}
			writeProblem(w, p)
			return
		}
		w.Header().Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), principal{}, who)))
	})
}

func (t *Tokens) admit(r *http.Request) (string, *Problem) {
	if t.open {
		// A name that points to this machine only since a moment ago is a
		// browser being tricked.
		host := r.Host
		if h, _, err := net.SplitHostPort(host); err == nil {
			host = h
		}
		if !loopback(host) {
			return "", problem(http.StatusForbidden, CodeForbidden, "without tokens only this machine is served, under a loopback name")
		}
		return "local", nil
	}
	if public(r) {
		return "", nil
	}
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if ok {
		digest := sha256.Sum256([]byte(token))
		for i := range t.digests {
			if subtle.ConstantTimeCompare(digest[:], t.digests[i][:]) == 1 {
				return fmt.Sprintf("token-%x", digest[:8]), nil
			}
		}
	}
	return "", problem(http.StatusUnauthorized, CodeUnauthenticated, "a valid bearer token is required")
}

// public paths hold no data.
func public(r *http.Request) bool {
	switch r.URL.Path {
	case "/", "/page.css", "/page.js", "/healthz", "/openapi.json", "/openapi.yaml":
		return r.Method == http.MethodGet
	}
	return false
}
