package imageservice

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// memory keeps what it is given.
type memory struct {
	b   []byte
	err error
}

func (m *memory) Load() ([]byte, error) { return m.b, m.err }
func (m *memory) Store(b []byte) error  { m.b = b; return m.err }

func newRing(t *testing.T) (*Ring, *memory) {
	t.Helper()
	m := &memory{}
	return NewRing(m, slog.New(slog.DiscardHandler)), m
}

func TestCredentials(t *testing.T) {
	basic := &runtime.AuthConfig{Username: "u", Password: "p"}
	encoded := base64.StdEncoding.EncodeToString([]byte("u:p:q"))
	for name, c := range map[string]struct {
		image            string
		auth             *runtime.AuthConfig
		repository, host string
		want             string // user:secret, "" for none
	}{
		"tag":               {"r.example:5000/a/b:1", basic, "r.example:5000/a/b", "r.example:5000", "u:p"},
		"digest":            {"r.example/a@sha256:" + strings.Repeat("0", 64), basic, "r.example/a", "r.example", "u:p"},
		"short name":        {"busybox", basic, "docker.io/library/busybox", "registry-1.docker.io", "u:p"},
		"encoded":           {"r.example/a", &runtime.AuthConfig{Auth: encoded}, "r.example/a", "r.example", "u:p:q"},
		"identity token":    {"r.example/a", &runtime.AuthConfig{IdentityToken: "t"}, "r.example/a", "r.example", ":t"},
		"server":            {"r.example/a", &runtime.AuthConfig{Username: "u", Password: "p", ServerAddress: "https://auth.example/v1/"}, "r.example/a", "auth.example", "u:p"},
		"hub's server":      {"busybox", &runtime.AuthConfig{Username: "u", Password: "p", ServerAddress: "https://index.docker.io/v1/"}, "docker.io/library/busybox", "registry-1.docker.io", "u:p"},
		"another server":    {"r.example/a", &runtime.AuthConfig{Username: "u", Password: "p", ServerAddress: "auth.example"}, "r.example/a", "r.example", ""},
		"a mirror":          {"r.example/a", basic, "r.example/a", "mirror.example", ""},
		"another image":     {"r.example/a", basic, "r.example/b", "r.example", ""},
		"a longer name":     {"r.example/a", basic, "r.example/a/b", "r.example", ""},
		"none":              {"r.example/a", nil, "r.example/a", "r.example", ""},
		"empty":             {"r.example/a", &runtime.AuthConfig{Username: "u"}, "r.example/a", "r.example", ""},
		"not base64":        {"r.example/a", &runtime.AuthConfig{Auth: "%"}, "r.example/a", "r.example", ""},
		"a hostile server":  {"r.example/a", &runtime.AuthConfig{Username: "u", Password: "p", ServerAddress: "http://[::1"}, "r.example/a", "r.example", ""},
		"huge":              {"r.example/a", &runtime.AuthConfig{Username: "u", Password: strings.Repeat("p", maxSecret)}, "r.example/a", "r.example", ""},
		"an image's digest": {"sha256:" + strings.Repeat("0", 64), basic, "sha256", "sha256", ""},
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := newRing(t)
			r.Learn(c.image, c.auth)
			got := ""
			if user, secret, ok := r.Credentials(c.repository, c.host); ok {
				got = user + ":" + secret
			}
			if got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
			if c.want != "" && !r.Has(c.repository) {
				t.Error("it does not know the repository")
			}
		})
	}
}

// TestNextWorker hands a ring over, whole or damaged.
func TestNextWorker(t *testing.T) {
	r, m := newRing(t)
	r.Learn("r.example/a", &runtime.AuthConfig{Username: "u", Password: "canary"})
	var log bytes.Buffer
	next := func() *Ring { return NewRing(m, slog.New(slog.NewTextHandler(&log, nil))) }
	if _, secret, ok := next().Credentials("r.example/a", "r.example"); !ok || secret != "canary" {
		t.Error("the next worker has no secret")
	}
	for _, damaged := range []memory{{b: m.b[:len(m.b)-1]}, {b: []byte(`{"canary":1}`)}, {err: errors.New("gone")}} {
		*m = damaged
		r := next()
		if r.Has("r.example/a") || !strings.Contains(log.String(), "the next pull") || strings.Contains(log.String(), "canary") {
			t.Errorf("with a damaged memory the log says %s", log.String())
		}
		r.Learn("r.example/b", &runtime.AuthConfig{Username: "u", Password: "canary"})
		if !r.Has("r.example/b") {
			t.Error("it does not go on")
		}
		log.Reset()
	}
}

func TestBounds(t *testing.T) {
	r, _ := newRing(t)
	at := time.Now()
	r.now = func() time.Time { at = at.Add(time.Second); return at }
	for i := range maxRepositories + 10 {
		r.Learn(fmt.Sprintf("r.example/a%d", i), &runtime.AuthConfig{Username: "u", Password: "p"})
	}
	if len(r.all) != maxRepositories || r.Has("r.example/a9") || !r.Has("r.example/a10") {
		t.Errorf("it keeps %d", len(r.all))
	}
	at = at.Add(keep)
	if r.Has("r.example/a10") {
		t.Error("a secret is kept for ever")
	}
	r.Learn("r.example/last", &runtime.AuthConfig{Username: "u", Password: "p"})
	if r.Has("r.example/a11") || len(r.all) > maxRepositories {
		t.Errorf("old ones stay: %d", len(r.all))
	}
}
