package referrer_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/firstlight-dev/firstlight/indexer/index"
	"github.com/firstlight-dev/firstlight/indexer/referrer"
	"github.com/firstlight-dev/firstlight/indexer/scan"
)

// emptyTar is the smallest layer, and n blocks longer.
func emptyTar(n int) []byte { return make([]byte, 1024+512*n) }

func encoded(t *testing.T, blob []byte) []byte {
	t.Helper()
	x, err := scan.Scan(t.Context(), scan.Layer{Reader: bytes.NewReader(blob), Size: -1})
	if err != nil {
		t.Fatal(err)
	}
	b, err := x.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// repository starts a registry and opens a repository of it.
func repository(t *testing.T, wrap func(http.Handler) http.Handler, opts ...registry.Option) (*referrer.Remote, name.Repository) {
	t.Helper()
	h := registry.New(append(opts, registry.Logger(slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)))...)
	if wrap != nil {
		h = wrap(h)
	}
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	repo, err := name.NewRepository(strings.TrimPrefix(s.URL, "http://") + "/team/image")
	if err != nil {
		t.Fatal(err)
	}
	return referrer.NewRemote(repo), repo
}

func layout(t *testing.T) *referrer.Layout {
	t.Helper()
	dir := t.TempDir()
	for file, text := range map[string]string{
		ocispec.ImageLayoutFile: `{"imageLayoutVersion":"1.0.0"}`,
		ocispec.ImageIndexFile:  `{"schemaVersion":2,"manifests":[],"annotations":{"keep":"this"},"unknown":1}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	l, err := referrer.OpenLayout(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		b, err := os.ReadFile(filepath.Join(dir, ocispec.ImageIndexFile))
		if err != nil || !strings.Contains(string(b), `"keep": "this"`) || !strings.Contains(string(b), `"unknown": 1`) {
			t.Errorf("index.json lost what is not ours: %s, %v", b, err)
		}
	})
	return l
}

// subject is an image manifest that need not exist.
func subject(s string) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromString(s), Size: int64(len(s))}
}

// Every store keeps artifacts in the same way.
func TestStores(t *testing.T) {
	withAPI, _ := repository(t, nil, registry.WithReferrersSupport(true))
	without, _ := repository(t, nil)
	for name, store := range map[string]referrer.Store{"referrers API": withAPI, "fallback tag": without, "layout": layout(t)} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			img, other := subject("image"), subject("other")
			if _, err := referrer.Find(ctx, store, img.Digest); !errors.Is(err, referrer.ErrNotFound) {
				t.Fatalf("found before anything was pushed: %v", err)
			}
			one, two := emptyTar(0), emptyTar(1)
			layers := map[digest.Digest][]byte{digest.FromBytes(one): encoded(t, one), digest.FromBytes(two): encoded(t, two)}
			a, err := referrer.NewArtifact(img, layers)
			if err != nil {
				t.Fatal(err)
			}
			b, err := referrer.NewArtifact(other, map[digest.Digest][]byte{digest.FromBytes(one): encoded(t, one)})
			if err != nil {
				t.Fatal(err)
			}
			for range 2 { // pushing again changes nothing
				if err := errors.Join(store.Push(ctx, a), store.Push(ctx, b)); err != nil {
					t.Fatal(err)
				}
			}
			set, err := referrer.Find(ctx, store, img.Digest)
			if err != nil || set.Len() != 2 || len(set.Artifacts) != 1 || set.Artifacts[0].Digest != a.Descriptor.Digest {
				t.Fatalf("found %+v: %v", set, err)
			}
			for d, raw := range layers {
				x, err := set.Load(ctx, store, d)
				if err != nil {
					t.Fatal(err)
				}
				if again, err := x.Encode(); err != nil || !bytes.Equal(again, raw) {
					t.Errorf("index of %s came back different: %v", d, err)
				}
			}
			if _, err := set.Load(ctx, store, digest.FromString("no layer")); !errors.Is(err, referrer.ErrNotFound) {
				t.Errorf("index of an unknown layer: %v", err)
			}
			if err := store.Remove(ctx, img.Digest, set.Artifacts[0]); err != nil {
				t.Fatal(err)
			}
			if _, err := referrer.Find(ctx, store, img.Digest); !errors.Is(err, referrer.ErrNotFound) {
				t.Errorf("found after removal: %v", err)
			}
			set, err = referrer.Find(ctx, store, other.Digest)
			if err != nil {
				t.Fatalf("the other image's went too: %v", err)
			}
			if _, err := set.Load(ctx, store, digest.FromBytes(one)); err != nil {
				t.Errorf("the other image's index went too: %v", err)
			}
		})
	}
}

func TestArtifactIsDeterministic(t *testing.T) {
	layers := map[digest.Digest][]byte{}
	for i := range 20 {
		layers[digest.FromString(fmt.Sprint(i))] = []byte(fmt.Sprint("index ", i))
	}
	a, err := referrer.NewArtifact(subject("image"), layers)
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		b, err := referrer.NewArtifact(subject("image"), layers)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(string(a.Manifest), string(b.Manifest)); d != "" {
			t.Fatal(d)
		}
	}
	var m ocispec.Manifest
	if err := json.Unmarshal(a.Manifest, &m); err != nil {
		t.Fatal(err)
	}
	if m.Config.Digest != ocispec.DescriptorEmptyJSON.Digest || m.Subject.Digest != subject("image").Digest || m.ArtifactType != index.ArtifactType {
		t.Errorf("manifest %s", a.Manifest)
	}
}

// fake is a Fetcher that says what it is told to.
type fake struct {
	referrers []ocispec.Descriptor
	manifests map[string][]byte
	blobs     map[digest.Digest][]byte
}

func (f fake) Manifest(_ context.Context, ref string) (ocispec.Descriptor, []byte, error) {
	b, ok := f.manifests[ref]
	if !ok {
		return ocispec.Descriptor{}, nil, errdefs.ErrNotFound
	}
	return ocispec.Descriptor{Digest: digest.FromBytes(b), Size: int64(len(b))}, b, nil
}

func (f fake) Blob(_ context.Context, d ocispec.Descriptor) (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(f.blobs[d.Digest])), nil
}

func (f fake) Referrers(context.Context, digest.Digest, string) ([]ocispec.Descriptor, error) {
	return f.referrers, nil
}

// A registry that lies is found out.
func TestHostileRegistry(t *testing.T) {
	img := subject("image")
	layer, wrong := digest.FromBytes(emptyTar(0)), digest.FromBytes(emptyTar(1))
	raw := encoded(t, emptyTar(0))
	a, err := referrer.NewArtifact(img, map[digest.Digest][]byte{layer: raw, wrong: raw})
	if err != nil {
		t.Fatal(err)
	}
	good := func() fake {
		return fake{
			referrers: []ocispec.Descriptor{a.Descriptor},
			manifests: map[string][]byte{a.Descriptor.Digest.String(): a.Manifest},
			blobs:     map[digest.Digest][]byte{digest.FromBytes(raw): raw},
		}
	}
	set, err := referrer.Find(t.Context(), good(), img.Digest)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := set.Load(t.Context(), good(), layer); err != nil {
		t.Error(err)
	}
	if _, err := set.Load(t.Context(), good(), wrong); !errors.Is(err, index.ErrInvalid) {
		t.Errorf("an index of another layer: %v", err)
	}
	for name, blob := range map[string][]byte{"other bytes": bytes.ToUpper(raw), "more": append(bytes.Clone(raw), 0), "less": raw[1:], "none": nil} {
		f := good()
		f.blobs[digest.FromBytes(raw)] = blob
		if _, err := set.Load(t.Context(), f, layer); !errors.Is(err, referrer.ErrContent) {
			t.Errorf("blob with %s: %v", name, err)
		}
	}
	f := good()
	f.manifests[a.Descriptor.Digest.String()] = append(bytes.Clone(a.Manifest), ' ')
	if _, err := referrer.Find(t.Context(), f, img.Digest); !errors.Is(err, referrer.ErrContent) {
		t.Errorf("other manifest: %v", err)
	}
	if _, err := referrer.Find(t.Context(), good(), digest.FromString("unrelated")); !errors.Is(err, referrer.ErrNotFound) {
		t.Errorf("an artifact of another image: %v", err)
	}
	f = good()
	f.manifests = nil
	if _, err := referrer.Find(t.Context(), f, img.Digest); !errors.Is(err, referrer.ErrNotFound) {
		t.Errorf("an artifact that is gone: %v", err)
	}
}

// Errors of a registry say what to do.
func TestRegistryErrors(t *testing.T) {
	answer := func(code int, header ...string) func(http.Handler) http.Handler {
		return func(http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if len(header) == 2 {
					w.Header().Set(header[0], header[1])
				}
				w.WriteHeader(code)
			})
		}
	}
	for name, c := range map[string]struct {
		wrap func(http.Handler) http.Handler
		want error
		says string
	}{
		"401": {answer(http.StatusUnauthorized, "WWW-Authenticate", `Basic realm="r"`), errdefs.ErrUnauthenticated, "docker login"},
		"403": {answer(http.StatusForbidden), errdefs.ErrPermissionDenied, "may not do this"},
		"404": {nil, errdefs.ErrNotFound, "get manifest latest"},
	} {
		t.Run(name, func(t *testing.T) {
			repo, _ := repository(t, c.wrap)
			_, _, err := repo.Manifest(t.Context(), "latest")
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v; want %v with %q", err, c.want, c.says)
			}
		})
	}
	s := httptest.NewServer(http.NotFoundHandler())
	s.Close() // nobody listens there now
	repo, err := name.NewRepository(strings.TrimPrefix(s.URL, "http://") + "/image")
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = referrer.NewRemote(repo).Manifest(t.Context(), "latest")
	if err == nil || !strings.Contains(err.Error(), "is not reachable") {
		t.Errorf("unreachable registry: %v", err)
	}
}

// A registry need not serve ranges: blobs are read whole, and one that breaks off is an error.
func TestBlobBreaksOff(t *testing.T) {
	broken := false
	repo, ref := repository(t, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if broken && r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
				w.Header().Set("Content-Length", "1000000")
				_, _ = w.Write([]byte("a little")) // and then the connection closes
				return
			}
			h.ServeHTTP(w, r)
		})
	})
	blob := static.NewLayer(bytes.Repeat([]byte("x"), 1_000_000), types.OCILayer)
	if err := remote.WriteLayer(ref, blob); err != nil {
		t.Fatal(err)
	}
	d := ocispec.Descriptor{Digest: digest.FromBytes(bytes.Repeat([]byte("x"), 1_000_000)), Size: 1_000_000}
	for _, broken = range []bool{false, true} {
		rc, err := repo.Blob(t.Context(), d)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(rc)
		if (err != nil) != broken || !broken && len(b) != 1_000_000 {
			t.Errorf("broken %v: %d bytes, %v", broken, len(b), err)
		}
		if err := rc.Close(); err != nil {
			t.Error(err)
		}
	}
}
