package registry

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/firstlight-dev/firstlight/indexer/referrer"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/registry/registrytest"
)

var _ referrer.Fetcher = (*Repository)(nil)

const secret = "canary-Pa55word"

func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*13 + i>>7)
	}
	return b
}

// client has deadlines short enough for tests of black holes.
func client(t *testing.T, cfg Config) *Client {
	t.Helper()
	if cfg.HeaderTimeout == 0 {
		cfg.HeaderTimeout = 5 * time.Second
	}
	if cfg.StallTimeout == 0 {
		cfg.StallTimeout = 5 * time.Second
	}
	return New(cfg)
}

func repo(t *testing.T, c *Client, host string) *Repository {
	t.Helper()
	r, err := c.Repository(host + "/some/name:tag")
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func readRange(ctx context.Context, s *Source, off, n int64) ([]byte, error) {
	rc, err := s.ReadRange(ctx, off, n)
	if err != nil {
		return nil, err
	}
	defer rc.Close()
	return io.ReadAll(rc)
}

func TestReadRange(t *testing.T) {
	srv := registrytest.New(t)
	blob := pattern(100_000)
	src := repo(t, client(t, Config{}), srv.Host()).Source(srv.AddBlob(blob))
	for _, r := range [][2]int64{{0, 1}, {0, 100_000}, {99_999, 1}, {500, 70_000}} {
		got, err := readRange(t.Context(), src, r[0], r[1])
		if err != nil || !bytes.Equal(got, blob[r[0]:r[0]+r[1]]) {
			t.Errorf("range %v: %d bytes, %v", r, len(got), err)
		}
	}
	for _, r := range [][2]int64{{-1, 5}, {0, 0}, {99_999, 2}, {1 << 62, 1 << 62}, {100_000, 1}} {
		if _, err := readRange(t.Context(), src, r[0], r[1]); !errors.Is(err, ErrRange) {
			t.Errorf("range %v: %v", r, err)
		}
	}
	conns := map[string]bool{}
	for _, r := range srv.Requests() {
		conns[r.RemoteAddr] = true
	}
	if len(conns) != 1 {
		t.Errorf("%d connections for requests one after the other", len(conns))
	}
}

// drip sends a byte now and then for as long as anybody reads: never silent, never done.
func drip(w http.ResponseWriter, r *http.Request) bool {
	for range 2000 {
		_, _ = w.Write([]byte("x"))
		_ = http.NewResponseController(w).Flush()
		select {
		case <-r.Context().Done():
			return true
		case <-time.After(20 * time.Millisecond):
		}
	}
	return true
}

// TestBadAnswers: each way a registry can fail has a kind, and an error that
// names host and layer and says what to do.
func TestBadAnswers(t *testing.T) {
	const off, n = 1000, 5000
	blob := pattern(50_000)
	partial := func(contentRange string, body []byte) registrytest.Fault {
		return func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Content-Range", contentRange)
			w.WriteHeader(http.StatusPartialContent)
			_, _ = w.Write(body)
			return true
		}
	}
	right := fmt.Sprintf("bytes %d-%d/%d", off, off+n-1, len(blob))
	tests := map[string]struct {
		fault     registrytest.Fault
		kind      error
		permanent bool
	}{
		"no ranges":       {func(w http.ResponseWriter, r *http.Request) bool { r.Header.Del("Range"); return false }, ErrNoRanges, true},
		"needs login":     {registrytest.Status(401), ErrUnauthorized, true},
		"forbidden":       {registrytest.Status(403), ErrForbidden, true},
		"gone":            {registrytest.Status(404), ErrNotFound, true},
		"range refused":   {registrytest.Status(416), ErrRange, true},
		"throttled":       {registrytest.Status(429), ErrThrottled, false},
		"broken":          {registrytest.Status(500), ErrUnavailable, false},
		"overloaded":      {registrytest.Status(503), ErrUnavailable, false},
		"teapot":          {registrytest.Status(418), ErrResponse, false},
		"black hole":      {registrytest.BlackHole, ErrTimeout, false},
		"other range":     {partial("bytes 0-4999/50000", blob[:n]), ErrResponse, false},
		"other size":      {partial(fmt.Sprintf("bytes %d-%d/49999", off, off+n-1), blob[off:off+n]), ErrRange, true},
		"no range at all": {partial("", blob[off:off+n]), ErrResponse, false},
		"multipart":       {partial("multipart/byteranges", blob[off:off+n]), ErrResponse, false},
		"truncated": {func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Content-Range", right)
			w.Header().Set("Content-Length", fmt.Sprint(n))
			w.WriteHeader(http.StatusPartialContent)
			_, _ = w.Write(blob[off : off+100])
			panic(http.ErrAbortHandler)
		}, ErrUnavailable, false},
		"short without length": {partial(right, blob[off:off+100]), ErrResponse, false},
		"compressed": {func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Content-Encoding", "gzip")
			return partial(right, blob[off:off+n])(w, nil)
		}, ErrResponse, false},
		"stalls": {func(w http.ResponseWriter, r *http.Request) bool {
			w.Header().Set("Content-Range", right)
			w.Header().Set("Content-Length", fmt.Sprint(n))
			w.WriteHeader(http.StatusPartialContent)
			_, _ = w.Write(blob[off : off+100])
			_ = http.NewResponseController(w).Flush()
			return registrytest.BlackHole(w, r)
		}, ErrTimeout, false},
		"drips": {func(w http.ResponseWriter, r *http.Request) bool {
			w.Header().Set("Content-Range", right)
			w.Header().Set("Content-Length", fmt.Sprint(n))
			w.WriteHeader(http.StatusPartialContent)
			return drip(w, r)
		}, ErrTimeout, false},
		"drips an error page": {func(w http.ResponseWriter, r *http.Request) bool {
			w.WriteHeader(http.StatusForbidden)
			return drip(w, r)
		}, ErrForbidden, true},
		"redirect loop": {func(w http.ResponseWriter, r *http.Request) bool {
			http.Redirect(w, r, r.URL.String(), http.StatusTemporaryRedirect)
			return true
		}, ErrResponse, false},
		"redirect to nowhere": {func(w http.ResponseWriter, _ *http.Request) bool {
			w.WriteHeader(http.StatusFound)
			return true
		}, ErrResponse, false},
		"redirect to a file": {func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Location", "file:///etc/passwd")
			w.WriteHeader(http.StatusFound)
			return true
		}, ErrResponse, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := registrytest.New(t)
			desc := srv.AddBlob(blob)
			src := repo(t, client(t, Config{HeaderTimeout: 300 * time.Millisecond, StallTimeout: 300 * time.Millisecond}), srv.Host()).Source(desc)
			srv.SetFault(test.fault)
			_, err := readRange(t.Context(), src, off, n)
			if !errors.Is(err, test.kind) {
				t.Fatalf("error is %v, want kind %v", err, test.kind)
			}
			var e *Error
			if !errors.As(err, &e) || e.Permanent() != test.permanent {
				t.Errorf("error %v is permanent: %v", err, e.Permanent())
			}
			for _, want := range []string{srv.Host(), desc.Digest.String(), "some/name"} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error does not name %s: %v", want, err)
				}
			}
			srv.SetFault(nil) // it heals by itself
			if got, err := readRange(t.Context(), src, off, n); err != nil || !bytes.Equal(got, blob[off:off+n]) {
				t.Errorf("after the fault: %v", err)
			}
		})
	}
}

func TestRefused(t *testing.T) {
	srv := registrytest.New(t)
	host := srv.Host()
	src := repo(t, client(t, Config{}), host).Source(srv.AddBlob(pattern(10)))
	srv.Close()
	_, err := readRange(t.Context(), src, 0, 10)
	if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "refused") || !strings.Contains(err.Error(), host) {
		t.Errorf("registry that is down: %v", err)
	}
}

func TestTriesAgain(t *testing.T) {
	srv := registrytest.New(t)
	blob := pattern(100)
	src := repo(t, client(t, Config{}), srv.Host()).Source(srv.AddBlob(blob))
	var n atomic.Int32
	srv.SetFault(func(w http.ResponseWriter, r *http.Request) bool {
		switch n.Add(1) {
		case 1:
			return registrytest.Status(503)(w, r)
		case 2:
			w.Header().Set("Retry-After", "1")
			return registrytest.Status(429)(w, r)
		}
		return false
	})
	if got, err := readRange(t.Context(), src, 10, 20); err != nil || !bytes.Equal(got, blob[10:30]) {
		t.Errorf("503, 429, then fine: %v", err)
	}
}

// login is a registry that needs a token and a client that has the password.
func login(t *testing.T) (*registrytest.Server, *Client) {
	t.Helper()
	srv := registrytest.New(t)
	srv.RequireLogin("me", secret)
	name := filepath.Join(t.TempDir(), "config.json")
	auth := base64.StdEncoding.EncodeToString([]byte("me:" + secret))
	b := fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, srv.Host(), auth)
	if err := os.WriteFile(name, []byte(b), 0o600); err != nil {
		t.Fatal(err)
	}
	return srv, client(t, Config{DockerConfig: name})
}

func TestTokens(t *testing.T) {
	srv, c := login(t)
	blob := pattern(1000)
	src := repo(t, c, srv.Host()).Source(srv.AddBlob(blob))
	read := func() {
		t.Helper()
		if got, err := readRange(t.Context(), src, 1, 998); err != nil || !bytes.Equal(got, blob[1:999]) {
			t.Fatal(err)
		}
	}
	read()
	read()
	if n := srv.Tokens(); n != 1 {
		t.Errorf("%d tokens for two requests", n)
	}
	srv.RevokeTokens()
	read()
	if n := srv.Tokens(); n != 2 {
		t.Errorf("%d tokens after revocation", n)
	}
	// The token server breaks, then works again: no restart is needed.
	srv.RevokeTokens()
	srv.SetFault(func(w http.ResponseWriter, r *http.Request) bool {
		return r.URL.Path == "/token" && registrytest.Status(500)(w, r)
	})
	_, err := readRange(t.Context(), src, 1, 998)
	if err == nil {
		t.Error("read without a token")
	} else if strings.Contains(err.Error(), secret) {
		t.Errorf("secret in error: %v", err)
	}
	srv.SetFault(nil)
	read()
}

// A token server is as little trusted as a registry: its answer is not taken into memory whatever its size.
func TestHugeToken(t *testing.T) {
	srv, c := login(t)
	src := repo(t, c, srv.Host()).Source(srv.AddBlob(pattern(1000)))
	const huge = 64 << 20
	var sent atomic.Int64
	srv.SetFault(func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/token" {
			return false
		}
		_, _ = w.Write([]byte(`{"token":"`))
		for part := bytes.Repeat([]byte("a"), 1<<20); sent.Load() < huge; {
			n, err := w.Write(part)
			sent.Add(int64(n))
			if err != nil {
				return true
			}
		}
		_, _ = w.Write([]byte(`"}`))
		return true
	})
	if _, err := readRange(t.Context(), src, 1, 998); err == nil {
		t.Error("a token of 64 MiB is one")
	}
	srv.SetFault(nil)
	if n := sent.Load(); n >= huge {
		t.Errorf("%d bytes were read", n)
	}
	if _, err := readRange(t.Context(), src, 1, 998); err != nil {
		t.Errorf("after it: %v", err)
	}
}

func TestWrongPassword(t *testing.T) {
	srv, _ := login(t)
	name := filepath.Join(t.TempDir(), "config.json")
	write := func(password string) {
		auth := base64.StdEncoding.EncodeToString([]byte("me:" + password))
		if err := os.WriteFile(name, fmt.Appendf(nil, `{"auths":{%q:{"auth":%q}}}`, srv.Host(), auth), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("wrong-" + secret)
	src := repo(t, client(t, Config{DockerConfig: name}), srv.Host()).Source(srv.AddBlob(pattern(10)))
	_, err := readRange(t.Context(), src, 0, 10)
	if !errors.Is(err, ErrUnauthorized) || !strings.Contains(err.Error(), "docker config") || strings.Contains(err.Error(), secret) {
		t.Errorf("wrong password: %v", err)
	}
	write(secret)
	if _, err := readRange(t.Context(), src, 0, 10); err != nil {
		t.Errorf("after the password was put right: %v", err)
	}
}

func TestRedirects(t *testing.T) {
	srv, c := login(t)
	blob := pattern(5000)
	desc := srv.AddBlob(blob)
	var hits atomic.Int32
	var broken atomic.Bool
	store := registrytest.New(t)
	store.AddBlob(blob)
	store.SetFault(func(w http.ResponseWriter, r *http.Request) bool {
		hits.Add(1)
		if r.Header.Get("Authorization") != "" {
			t.Error("credentials went to the redirect's target")
		}
		return broken.Load() && registrytest.Status(403)(w, r)
	})
	var asked atomic.Int32
	srv.SetFault(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/blobs/") || r.Header.Get("Authorization") == "" {
			return false
		}
		asked.Add(1)
		http.Redirect(w, r, store.URL+r.URL.Path+"?signature="+secret, http.StatusTemporaryRedirect)
		return true
	})
	src := repo(t, c, srv.Host()).Source(desc)
	for range 3 {
		if got, err := readRange(t.Context(), src, 7, 100); err != nil || !bytes.Equal(got, blob[7:107]) {
			t.Fatal(err)
		}
	}
	if asked.Load() != 1 || hits.Load() != 3 {
		t.Errorf("registry asked %d times, its store %d", asked.Load(), hits.Load())
	}
	broken.Store(true) // the signature ran out
	_, err := readRange(t.Context(), src, 7, 100)
	if !errors.Is(err, ErrForbidden) || strings.Contains(err.Error(), secret) {
		t.Errorf("dead redirect: %v", err)
	}
	broken.Store(false)
	if _, err := readRange(t.Context(), src, 7, 100); err != nil {
		t.Error(err)
	}
	if asked.Load() != 3 {
		t.Errorf("registry asked %d times", asked.Load())
	}
}

func TestMirrors(t *testing.T) {
	origin, mirror := registrytest.New(t), registrytest.New(t)
	blob := pattern(3000)
	desc := origin.AddBlob(blob)
	mirror.AddBlob(blob)
	dir := t.TempDir()
	host := filepath.Join(dir, "registry.example")
	if err := os.MkdirAll(host, 0o755); err != nil {
		t.Fatal(err)
	}
	hosts := fmt.Sprintf("server = %q\n[host.%q]\n  capabilities = [\"pull\"]\n", origin.URL, mirror.URL)
	if err := os.WriteFile(filepath.Join(host, "hosts.toml"), []byte(hosts), 0o644); err != nil {
		t.Fatal(err)
	}
	src := repo(t, client(t, Config{HostsDir: dir}), "registry.example").Source(desc)
	read := func() {
		t.Helper()
		if got, err := readRange(t.Context(), src, 5, 1000); err != nil || !bytes.Equal(got, blob[5:1005]) {
			t.Fatal(err)
		}
	}
	read()
	if n := len(origin.Requests()); n != 0 {
		t.Errorf("origin asked %d times though there is a mirror", n)
	}
	if ns := mirror.Requests()[0].URL.Query().Get("ns"); ns != "registry.example" {
		t.Errorf("mirror asked with ns=%q", ns)
	}
	mirror.SetFault(registrytest.Status(404))
	read()
	mirror.SetFault(func(_ http.ResponseWriter, r *http.Request) bool { r.Header.Del("Range"); return false })
	read()
	mirror.Close()
	read()
	origin.SetFault(registrytest.Status(403))
	if _, err := readRange(t.Context(), src, 5, 1000); !errors.Is(err, ErrForbidden) {
		t.Errorf("both fail: %v", err)
	}
}

func TestManifestsAndBlobs(t *testing.T) {
	srv := registrytest.New(t)
	r := repo(t, client(t, Config{}), srv.Host())
	body := []byte(`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json"}`)
	desc := srv.AddManifest("v1", "application/vnd.oci.image.manifest.v1+json", body)
	for _, ref := range []string{"v1", desc.Digest.String()} {
		got, b, err := r.Manifest(t.Context(), ref)
		if err != nil || !bytes.Equal(b, body) {
			t.Fatalf("%s: %v", ref, err)
		}
		if d := cmp.Diff(desc, got); d != "" {
			t.Errorf("%s: (-want +got)\n%s", ref, d)
		}
	}
	if _, _, err := r.Manifest(t.Context(), "nope"); !errors.Is(err, ErrNotFound) {
		t.Errorf("absent manifest: %v", err)
	}
	srv.SetFault(func(w http.ResponseWriter, _ *http.Request) bool { _, _ = w.Write([]byte("{}")); return true })
	if _, _, err := r.Manifest(t.Context(), desc.Digest.String()); !errors.Is(err, ErrResponse) {
		t.Errorf("other manifest: %v", err)
	}
	srv.SetFault(func(w http.ResponseWriter, _ *http.Request) bool {
		_, _ = w.Write(make([]byte, maxManifest+1))
		return true
	})
	if _, _, err := r.Manifest(t.Context(), "v1"); !errors.Is(err, ErrResponse) {
		t.Errorf("huge manifest: %v", err)
	}
	srv.SetFault(nil)

	blob := srv.AddBlob(pattern(70_000))
	read := func(d ocispec.Descriptor) error {
		rc, err := r.Blob(t.Context(), d)
		if err != nil {
			return err
		}
		defer rc.Close()
		_, err = io.Copy(io.Discard, rc)
		return err
	}
	if err := read(blob); err != nil {
		t.Error(err)
	}
	long := blob
	long.Size++
	if err := read(long); !errors.Is(err, ErrResponse) {
		t.Errorf("blob of another size: %v", err)
	}
	srv.SetFault(func(w http.ResponseWriter, _ *http.Request) bool { _, _ = w.Write(make([]byte, 70_000)); return true })
	if err := read(blob); !errors.Is(err, ErrResponse) {
		t.Errorf("blob of other bytes: %v", err)
	}
}

func TestReferrers(t *testing.T) {
	srv := registrytest.New(t)
	r := repo(t, client(t, Config{}), srv.Host())
	subject := digest.FromString("subject")
	ours := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromString("a"), Size: 5, ArtifactType: "application/ours"}
	other := ours
	other.Digest, other.ArtifactType = digest.FromString("b"), "application/other"
	srv.AddReferrer(subject, other)
	srv.AddReferrer(subject, ours)
	want := []ocispec.Descriptor{ours}
	got, err := r.Referrers(t.Context(), subject, "application/ours")
	if d := cmp.Diff(want, got); err != nil || d != "" {
		t.Errorf("by API: %v\n%s", err, d)
	}
	none, err := r.Referrers(t.Context(), digest.FromString("nobody"), "")
	if err != nil || len(none) != 0 {
		t.Errorf("no referrers: %v, %v", none, err)
	}

	// Without the API the tag stands in for it.
	list, err := json.Marshal(ocispec.Index{MediaType: ocispec.MediaTypeImageIndex, Manifests: []ocispec.Descriptor{other, ours}})
	if err != nil {
		t.Fatal(err)
	}
	srv.AddManifest(referrer.FallbackTag(subject), ocispec.MediaTypeImageIndex, list)
	for _, status := range []int{404, 400, 405} {
		srv.SetFault(func(w http.ResponseWriter, r *http.Request) bool {
			return strings.Contains(r.URL.Path, "/referrers/") && registrytest.Status(status)(w, r)
		})
		got, err := r.Referrers(t.Context(), subject, "application/ours")
		if d := cmp.Diff(want, got); err != nil || d != "" {
			t.Errorf("by tag after %d: %v\n%s", status, err, d)
		}
		none, err := r.Referrers(t.Context(), digest.FromString("nobody"), "")
		if err != nil || len(none) != 0 {
			t.Errorf("no referrers by tag: %v, %v", none, err)
		}
	}
	// A registry that is down is not one without referrers.
	srv.SetFault(registrytest.Status(500))
	if _, err := r.Referrers(t.Context(), subject, ""); !errors.Is(err, ErrUnavailable) {
		t.Errorf("registry down: %v", err)
	}
}

func TestRepositoryNames(t *testing.T) {
	c := client(t, Config{})
	for _, ref := range []string{"", "nohost", "https://x/y", "host/../x", "host/a b:c", "host/a?b"} {
		if r, err := c.Repository(ref); err == nil {
			t.Errorf("%q gave %s", ref, r)
		}
	}
	r, err := c.Repository("docker.io/library/busybox:1.36@" + digest.FromString("x").String())
	if err != nil || r.String() != "docker.io/library/busybox" {
		t.Errorf("%v, %v", r, err)
	}
}

func FuzzContentRange(f *testing.F) {
	for _, s := range []string{"bytes 0-9/10", "bytes 5-5/*", "bytes 9-0/10", "bytes */10", "bytes 0-18446744073709551615/1", "items 0-1/2", "bytes +1-2/3", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		start, end, size, err := parseContentRange(s)
		if err != nil {
			return
		}
		if start < 0 || end < start || size != -1 && end >= size {
			t.Errorf("%q gave %d-%d/%d", s, start, end, size)
		}
	})
}

func FuzzRetryAfter(f *testing.F) {
	for _, s := range []string{"5", " 17 ", "-1", "99999999999", "Wed, 21 Oct 2037 07:28:00 GMT", "x"} {
		f.Add(s)
	}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, s string) {
		if d := parseRetryAfter(s, now); d < 0 {
			t.Errorf("%q gave %v", s, d)
		}
	})
}

func FuzzNextPage(f *testing.F) {
	f.Add(`</v2/x/referrers/sha256:00?n=5&last=a>; rel="next"`)
	f.Add(`<>; rel="next"`)
	f.Add(`<:%zz>; rel="next"`)
	f.Fuzz(func(t *testing.T, s string) {
		if q := nextPage(s); q != nil && !strings.Contains(s, `rel="next"`) {
			t.Errorf("%q has no next page", s)
		}
	})
}

// TestObserve: every request is told of once, redirects and their failures too.
func TestObserve(t *testing.T) {
	srv := registrytest.New(t)
	desc := srv.AddBlob([]byte("some bytes of a layer"))
	var seen []string
	c := New(Config{Observe: func(host string, err error) {
		if host != srv.Host() {
			t.Errorf("host is %s", host)
		}
		seen = append(seen, Result(err))
	}})
	repo, err := c.Repository(srv.Host() + "/x")
	if err != nil {
		t.Fatal(err)
	}
	src := repo.Source(desc)
	for _, status := range []int{0, 404, 403, 401, 503, 429, 416, 400} {
		srv.SetFault(nil)
		if status != 0 {
			srv.SetFault(registrytest.Status(status))
		}
		if r, err := src.ReadRange(t.Context(), 3, 5); err == nil {
			r.Close()
		}
	}
	want := []string{"ok", "not_found", "forbidden", "unauthorized", "unavailable", "unavailable", "unavailable", "throttled", "throttled", "throttled", "range", "bad_answer"}
	if d := cmp.Diff(want, seen); d != "" {
		t.Errorf("requests (-want +got):\n%s", d)
	}
	if got := Result(errors.New("something else")); got != "other" {
		t.Errorf("an unknown error is %q", got)
	}
}
