package referrer_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/firstlight-dev/firstlight/indexer/profile"
	"github.com/firstlight-dev/firstlight/indexer/referrer"
)

func oneLayer(subject digest.Digest, command ...string) *profile.Profile {
	return &profile.Profile{
		Manifest: subject, Command: command, Reason: profile.Usable,
		Layers: []profile.Layer{{Digest: digest.FromString("layer"), Size: 3 * profile.Unit}},
		Parts:  []profile.Part{{Layer: 0, First: 1, Count: 2}},
	}
}

// Profiles live beside indexes: neither takes the other for its own, and the
// removal of one leaves the other.
func TestProfilesInStores(t *testing.T) {
	withAPI, _ := repository(t, nil, registry.WithReferrersSupport(true))
	without, _ := repository(t, nil)
	for name, store := range map[string]referrer.Store{"referrers API": withAPI, "fallback tag": without, "layout": layout(t)} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			img := subject("image")
			layer := emptyTar(0)
			ix, err := referrer.NewArtifact(img, map[digest.Digest][]byte{digest.FromBytes(layer): encoded(t, layer)})
			if err != nil {
				t.Fatal(err)
			}
			want := oneLayer(img.Digest, "python3", "-m", "app")
			a, err := referrer.NewProfileArtifact(img, want)
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(store.Push(ctx, ix), store.Push(ctx, a)); err != nil {
				t.Fatal(err)
			}
			set, err := referrer.Find(ctx, store, img.Digest)
			if err != nil || len(set.Artifacts) != 1 || set.Len() != 1 {
				t.Fatalf("indexes: %+v, %v", set, err)
			}
			found, err := referrer.Profiles(ctx, store, img.Digest, set.Others)
			if err != nil || len(found) != 1 || found[0].Command != profile.Key(want.Command) {
				t.Fatalf("profiles: %+v, %v", found, err)
			}
			got, err := found[0].Load(ctx, store, img.Digest)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("profile (-want +got):\n%s", d)
			}
			if _, err := found[0].Load(ctx, store, digest.FromString("other")); !errors.Is(err, profile.ErrInvalid) {
				t.Errorf("a profile of another image: %v", err)
			}
			if err := store.Remove(ctx, img.Digest, found[0].Artifact); err != nil {
				t.Fatal(err)
			}
			if found, err := referrer.ListProfiles(ctx, store, img.Digest); err != nil || len(found) != 0 {
				t.Errorf("after removal: %+v, %v", found, err)
			}
			if _, err := referrer.Find(ctx, store, img.Digest); err != nil {
				t.Errorf("the index went too: %v", err)
			}
		})
	}
}

// TestSearchIsOneRequest: the list that finds the index finds the profile.
func TestSearchIsOneRequest(t *testing.T) {
	var lists []string
	store, _ := repository(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/referrers/") {
				lists = append(lists, r.URL.String())
			}
			next.ServeHTTP(w, r)
		})
	}, registry.WithReferrersSupport(true))
	img := subject("image")
	ix, err := referrer.NewArtifact(img, map[digest.Digest][]byte{digest.FromBytes(emptyTar(0)): encoded(t, emptyTar(0))})
	if err != nil {
		t.Fatal(err)
	}
	a, err := referrer.NewProfileArtifact(img, oneLayer(img.Digest))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(store.Push(t.Context(), ix), store.Push(t.Context(), a)); err != nil {
		t.Fatal(err)
	}
	lists = nil
	set, err := referrer.Find(t.Context(), store, img.Digest)
	if err != nil {
		t.Fatal(err)
	}
	found, err := referrer.Profiles(t.Context(), store, img.Digest, set.Others)
	if err != nil || len(found) != 1 || len(lists) != 1 {
		t.Errorf("found %+v with %q, %v", found, lists, err)
	}
}

// hostile serves one artifact whose parts may lie.
type hostile struct {
	manifest, blob []byte
}

func (h hostile) Manifest(context.Context, string) (ocispec.Descriptor, []byte, error) {
	return ocispec.Descriptor{}, h.manifest, nil
}

func (h hostile) Blob(context.Context, ocispec.Descriptor) (io.ReadCloser, error) {
	return io.NopCloser(strings.NewReader(string(h.blob))), nil
}

func (h hostile) Referrers(context.Context, digest.Digest, string) ([]ocispec.Descriptor, error) {
	d := ocispec.Descriptor{ArtifactType: profile.ArtifactType, Digest: digest.FromBytes(h.manifest)}
	return []ocispec.Descriptor{d, d, d, d, d, d, d, d, d, d, d, d, d, d, d, d, d, d, d, d}, nil
}

func TestHostileProfile(t *testing.T) {
	img := subject("image")
	a, err := referrer.NewProfileArtifact(img, oneLayer(img.Digest))
	if err != nil {
		t.Fatal(err)
	}
	found, err := referrer.ListProfiles(t.Context(), hostile{manifest: a.Manifest, blob: []byte("something else")}, img.Digest)
	if err != nil || len(found) == 0 || len(found) > 8 {
		t.Fatalf("found %d, %v", len(found), err)
	}
	if _, err := found[0].Load(t.Context(), hostile{blob: []byte("something else")}, img.Digest); !errors.Is(err, referrer.ErrContent) {
		t.Errorf("other content: %v", err)
	}
	huge := strings.ReplaceAll(string(a.Manifest), `"size":`, `"size":99999999`)
	found, err = referrer.ListProfiles(t.Context(), hostile{manifest: []byte(huge)}, img.Digest)
	if err != nil || len(found) == 0 {
		t.Fatal(err)
	}
	if _, err := found[0].Load(t.Context(), hostile{}, img.Digest); !errors.Is(err, profile.ErrInvalid) {
		t.Errorf("huge: %v", err)
	}
}
