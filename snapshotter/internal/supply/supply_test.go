package supply_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/firstlight-dev/firstlight/snapshotter"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/supply"
)

// store is a content store in memory.
type store map[digest.Digest][]byte

func (s store) add(t *testing.T, v any) digest.Digest {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	s[digest.FromBytes(b)] = b
	return digest.FromBytes(b)
}

func (s store) Info(_ context.Context, d digest.Digest) (content.Info, error) {
	b, ok := s[d]
	if !ok {
		return content.Info{}, fmt.Errorf("content %s: %w", d, errdefs.ErrNotFound)
	}
	return content.Info{Digest: d, Size: int64(len(b))}, nil
}

func (s store) ReaderAt(_ context.Context, desc ocispec.Descriptor) (content.ReaderAt, error) {
	b, ok := s[desc.Digest]
	if !ok {
		return nil, fmt.Errorf("content %s: %w", desc.Digest, errdefs.ErrNotFound)
	}
	return reader{bytes.NewReader(b)}, nil
}

type reader struct{ *bytes.Reader }

func (reader) Close() error { return nil }

// registry is one without anything, or out of order.
type registry struct {
	asked []string // references
	err   error
}

func (r *registry) Repository(ref string) (supply.Repository, error) {
	r.asked = append(r.asked, ref)
	return r, nil
}

func (r *registry) Manifest(context.Context, string) (ocispec.Descriptor, []byte, error) {
	return ocispec.Descriptor{}, nil, errdefs.ErrNotFound
}

func (r *registry) Blob(context.Context, ocispec.Descriptor) (io.ReadCloser, error) {
	return nil, errdefs.ErrNotFound
}

func (r *registry) Referrers(context.Context, digest.Digest, string) ([]ocispec.Descriptor, error) {
	return nil, r.err
}

// pull is one image in a content store, and the question for its layer.
func pull(t *testing.T) (store, snapshotter.Request) {
	t.Helper()
	s := store{}
	layer := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayerGzip, Digest: digest.FromString("layer"), Size: 5}
	diffID := digest.FromString("tar")
	config := s.add(t, ocispec.Image{RootFS: ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{diffID}}})
	manifest := s.add(t, ocispec.Manifest{Config: ocispec.Descriptor{Digest: config}, Layers: []ocispec.Descriptor{layer}})
	return s, snapshotter.Request{Namespace: "test", Ref: "registry.example/image:1", Manifest: manifest, Layer: layer.Digest, ChainID: diffID}
}

// service must be made where it shall end: its goroutines belong to the bubble.
func service(t *testing.T, dir string, s store, r *registry) *supply.Service {
	t.Helper()
	svc, err := supply.New(t.Context(), supply.Config{Content: s, Repository: r.Repository, Dir: dir, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return svc
}

// What is not supplied now may be a little later: nothing counts for ever.
func TestAnswersExpire(t *testing.T) {
	for _, tc := range []struct {
		name     string
		err      error
		ordinary bool
	}{
		{name: "no index", ordinary: true},
		{name: "registry out of order", err: errdefs.ErrUnavailable},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "unpack")
			synctest.Test(t, func(t *testing.T) {
				s, req := pull(t)
				r := &registry{err: tc.err}
				svc := service(t, dir, s, r)
				for i, wait := range []time.Duration{0, time.Second, time.Minute} {
					time.Sleep(wait) //nolint:forbidigo // the bubble's time, which passes at once
					_, err := svc.Supply(t.Context(), req)
					if err == nil || errors.Is(err, snapshotter.ErrOrdinary) != tc.ordinary {
						t.Errorf("question %d: %v", i, err)
					}
				}
				// The second question comes within the first one's pull.
				if n := len(r.asked); n != 2 {
					t.Errorf("the registry was asked %d times", n)
				}
				if err := svc.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A label that an image's author wrote must not make us talk to anybody.
func TestNoQuestionLeavesForWhatIsNotBeingPulled(t *testing.T) {
	for name, change := range map[string]func(store, *snapshotter.Request){
		"manifest is not in containerd": func(_ store, r *snapshotter.Request) { r.Manifest = digest.FromString("elsewhere") },
		"layer is not in the manifest":  func(_ store, r *snapshotter.Request) { r.Layer = digest.FromString("elsewhere") },
		"layer is in another place":     func(_ store, r *snapshotter.Request) { r.ChainID = digest.FromString("elsewhere") },
		"containerd has every blob":     func(s store, r *snapshotter.Request) { s[r.Layer] = []byte("layer") },
	} {
		t.Run(name, func(t *testing.T) {
			s, req := pull(t)
			change(s, &req)
			r := &registry{}
			svc := service(t, filepath.Join(t.TempDir(), "unpack"), s, r)
			if _, err := svc.Supply(t.Context(), req); !errors.Is(err, snapshotter.ErrOrdinary) {
				t.Errorf("got %v, want ErrOrdinary", err)
			}
			if len(r.asked) != 0 {
				t.Errorf("the registry of %v was asked", r.asked)
			}
			if err := svc.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}
