package image_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/firstlight-dev/firstlight/snapshotter/internal/image"
)

// store is a content store in memory.
type store map[digest.Digest][]byte

func (s store) add(b []byte) digest.Digest {
	d := digest.FromBytes(b)
	s[d] = b
	return d
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

func encode(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func layer(name string) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayerGzip, Digest: digest.FromString(name), Size: 10}
}

func TestLoad(t *testing.T) {
	diffIDs := []digest.Digest{digest.FromString("tar a"), digest.FromString("tar b"), digest.FromString("tar a")}
	chain := identity.ChainIDs(append([]digest.Digest(nil), diffIDs...))
	for _, tc := range []struct {
		name   string
		change func(*ocispec.Manifest, *ocispec.RootFS)
		bad    bool
	}{
		{name: "one layer twice", change: func(*ocispec.Manifest, *ocispec.RootFS) {}},
		{name: "no layers", change: func(m *ocispec.Manifest, r *ocispec.RootFS) { m.Layers, r.DiffIDs = nil, nil }, bad: true},
		{name: "too few diffIDs", change: func(_ *ocispec.Manifest, r *ocispec.RootFS) { r.DiffIDs = r.DiffIDs[1:] }, bad: true},
		{name: "diffID is none", change: func(_ *ocispec.Manifest, r *ocispec.RootFS) { r.DiffIDs[1] = "sha256:abc" }, bad: true},
		{name: "digest is none", change: func(m *ocispec.Manifest, _ *ocispec.RootFS) { m.Layers[0].Digest = "../../etc" }, bad: true},
		{name: "negative size", change: func(m *ocispec.Manifest, _ *ocispec.RootFS) { m.Layers[0].Size = -1 }, bad: true},
		{name: "manifest among layers", change: func(m *ocispec.Manifest, _ *ocispec.RootFS) {
			m.Layers[0].MediaType = ocispec.MediaTypeImageManifest
		}, bad: true},
		{name: "annotation for the snapshotter", change: func(m *ocispec.Manifest, _ *ocispec.RootFS) {
			m.Layers[0].Annotations = map[string]string{"containerd.io/snapshot/cri.image-ref": "evil.example/x"}
		}, bad: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := store{}
			rootfs := ocispec.RootFS{Type: "layers", DiffIDs: append([]digest.Digest(nil), diffIDs...)}
			m := ocispec.Manifest{Layers: []ocispec.Descriptor{layer("a"), layer("b"), layer("a")}}
			tc.change(&m, &rootfs)
			m.Config.Digest = s.add(encode(t, ocispec.Image{RootFS: rootfs}))
			d := s.add(encode(t, m))
			im, err := image.Load(t.Context(), s, d)
			if tc.bad {
				if !errors.Is(err, image.ErrInvalid) {
					t.Fatalf("got %v, want ErrInvalid", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			want := &image.Image{Manifest: d, Layers: []image.Layer{
				{Descriptor: layer("a"), DiffID: diffIDs[0], ChainID: chain[0]},
				{Descriptor: layer("b"), DiffID: diffIDs[1], ChainID: chain[1]},
				{Descriptor: layer("a"), DiffID: diffIDs[2], ChainID: chain[2]},
			}}
			if diff := cmp.Diff(want, im); diff != "" {
				t.Errorf("image (-want +got):\n%s", diff)
			}
			if i := im.Find(chain[2], layer("a").Digest); i != 2 {
				t.Errorf("the layer on top is number %d", i)
			}
			if i := im.Find(chain[2], layer("b").Digest); i != -1 {
				t.Errorf("a layer in the wrong place is number %d", i)
			}
		})
	}
}

func TestContentMustMatchItsDigest(t *testing.T) {
	s := store{}
	d := digest.FromString("something else")
	s[d] = encode(t, ocispec.Manifest{})
	if _, err := image.Load(t.Context(), s, d); !errors.Is(err, image.ErrInvalid) {
		t.Fatalf("got %v, want ErrInvalid", err)
	}
	if _, err := image.Load(t.Context(), s, digest.FromString("absent")); !errdefs.IsNotFound(err) {
		t.Fatalf("got %v, want ErrNotFound", err)
	}
}

func FuzzLoad(f *testing.F) {
	f.Add([]byte(`{"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","size":0}]}`),
		[]byte(`{"rootfs":{"diff_ids":["sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"]}}`))
	f.Add([]byte(`{}`), []byte(`{}`))
	f.Fuzz(func(t *testing.T, manifest, config []byte) {
		s := store{}
		var m map[string]any
		if json.Unmarshal(manifest, &m) != nil || m == nil {
			t.Skip("no object")
		}
		m["config"] = map[string]any{"digest": s.add(config)}
		im, err := image.Load(t.Context(), s, s.add(encode(t, m)))
		if err != nil {
			return
		}
		for i, l := range im.Layers {
			if l.Digest.Validate() != nil || l.DiffID.Validate() != nil || l.ChainID.Validate() != nil || l.Size < 0 {
				t.Errorf("layer %d is %+v", i, l)
			}
		}
	})
}
