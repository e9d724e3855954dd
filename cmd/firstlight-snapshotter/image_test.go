package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	specs "github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/firstlight-dev/firstlight/indexer/index"
	"github.com/firstlight-dev/firstlight/indexer/scan"
)

// compression is how a test layer is compressed.
type compression int

const (
	gzipped compression = iota
	plain
	zstandard
	unindexed // zstd, left out of the index
)

// testImage is an image in the registry.
type testImage struct {
	ref      string
	manifest v1.Hash
	layers   []testLayer
}

type testLayer struct {
	tar, blob []byte
	digest    v1.Hash
	how       compression
	indexed   bool
}

// push makes an image of the tar streams and pushes it, compressed in turn.
func (m *machine) push(repo string, tars [][]byte, how ...compression) *testImage {
	m.Helper()
	image := &testImage{ref: registryAddr + "/" + repo}
	img, err := mutate.ConfigFile(mutate.MediaType(empty.Image, types.OCIManifestSchema1), &v1.ConfigFile{
		Architecture: "amd64", OS: "linux", RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{Cmd: []string{"/bin/sh"}},
	})
	if err != nil {
		m.Fatal(err)
	}
	for i, tar := range tars {
		blob, media := compress(m.T, tar, how[i%len(how)])
		layer := diffLayer{Layer: static.NewLayer(blob, media), diffID: digest.FromBytes(tar)}
		if img, err = mutate.AppendLayers(img, layer); err != nil {
			m.Fatal(err)
		}
		d, err := layer.Digest()
		if err != nil {
			m.Fatal(err)
		}
		image.layers = append(image.layers, testLayer{tar: tar, blob: blob, digest: d, how: how[i%len(how)]})
	}
	if image.manifest, err = img.Digest(); err != nil {
		m.Fatal(err)
	}
	m.upload(image.ref, img)
	return image
}

// diffLayer gives a blob the diffID of what it unpacks to.
type diffLayer struct {
	v1.Layer
	diffID digest.Digest
}

func (l diffLayer) DiffID() (v1.Hash, error) { return v1.NewHash(l.diffID.String()) }

func compress(t *testing.T, tar []byte, how compression) ([]byte, types.MediaType) {
	t.Helper()
	if how == plain {
		return tar, types.OCIUncompressedLayer
	}
	var out bytes.Buffer
	var w io.WriteCloser = gzip.NewWriter(&out)
	media := types.OCILayer
	if how == zstandard || how == unindexed {
		media = types.OCILayerZStd
		var err error
		if w, err = zstd.NewWriter(&out); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.Write(tar); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes(), media
}

func (m *machine) upload(ref string, img v1.Image) {
	m.Helper()
	r, err := name.ParseReference(ref, name.Insecure)
	if err != nil {
		m.Fatal(err)
	}
	if err := remote.Write(r, img, remote.WithTransport(m.transport(registryAddr)), remote.WithContext(m.Context())); err != nil {
		m.Fatal(err)
	}
}

// index makes and pushes the index artifact of the image's layers that should
// have one. change may alter the encoded index of a layer.
func (m *machine) index(image *testImage, change func(layer int, encoded []byte) []byte) {
	m.Helper()
	var blobs [][]byte
	manifest := ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		ArtifactType: index.ArtifactType, Config: ocispec.DescriptorEmptyJSON,
		Subject: &ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.Digest(image.manifest.String()), Size: m.manifestSize(image)},
	}
	blobs = append(blobs, ocispec.DescriptorEmptyJSON.Data)
	for i := range image.layers {
		l := &image.layers[i]
		if l.how == unindexed {
			continue
		}
		ix, err := scan.Scan(m.Context(), scan.Layer{Reader: bytes.NewReader(l.blob), Size: -1})
		if err != nil {
			m.Fatalf("index layer %d: %v", i, err)
		}
		b, err := ix.Encode()
		if err != nil {
			m.Fatal(err)
		}
		if change != nil {
			b = change(i, b)
		}
		l.indexed = true
		blobs = append(blobs, b)
		manifest.Layers = append(manifest.Layers, ocispec.Descriptor{
			MediaType: index.LayerMediaType, Digest: digest.FromBytes(b), Size: int64(len(b)),
			Annotations: map[string]string{index.AnnotationLayer: l.digest.String()},
		})
	}
	raw, err := json.Marshal(manifest)
	if err != nil {
		m.Fatal(err)
	}
	m.uploadArtifact(image.ref, raw, blobs)
}

func (m *machine) manifestSize(image *testImage) int64 {
	m.Helper()
	r, err := name.ParseReference(image.ref, name.Insecure)
	if err != nil {
		m.Fatal(err)
	}
	d, err := remote.Head(r, remote.WithTransport(m.transport(registryAddr)), remote.WithContext(m.Context()))
	if err != nil {
		m.Fatal(err)
	}
	return d.Size
}

// uploadArtifact pushes a manifest and its blobs as they are.
func (m *machine) uploadArtifact(ref string, manifest []byte, blobs [][]byte) {
	m.Helper()
	r, err := name.ParseReference(ref, name.Insecure)
	if err != nil {
		m.Fatal(err)
	}
	opts := []remote.Option{remote.WithTransport(m.transport(registryAddr)), remote.WithContext(m.Context())}
	for _, b := range blobs {
		if err := remote.WriteLayer(r.Context(), static.NewLayer(b, types.MediaType(index.LayerMediaType)), opts...); err != nil {
			m.Fatal(err)
		}
	}
	dst := r.Context().Digest(digest.FromBytes(manifest).String())
	if err := remote.Put(dst, rawManifest(manifest), opts...); err != nil {
		m.Fatal(err)
	}
	// The registry of the tests has no referrers API: the fallback tag.
	m.tagReferrer(r.Context(), manifest, opts)
}

type rawManifest []byte

func (r rawManifest) RawManifest() ([]byte, error)      { return r, nil }
func (rawManifest) MediaType() (types.MediaType, error) { return types.OCIManifestSchema1, nil }

type rawIndex []byte

func (r rawIndex) RawManifest() ([]byte, error)      { return r, nil }
func (rawIndex) MediaType() (types.MediaType, error) { return types.OCIImageIndex, nil }

func (m *machine) tagReferrer(repo name.Repository, manifest []byte, opts []remote.Option) {
	m.Helper()
	var parsed ocispec.Manifest
	if err := json.Unmarshal(manifest, &parsed); err != nil {
		m.Fatal(err)
	}
	tag := repo.Tag("sha256-" + parsed.Subject.Digest.Encoded())
	all := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex}
	if d, err := remote.Get(tag, opts...); err == nil {
		if err := json.Unmarshal(d.Manifest, &all); err != nil {
			m.Fatal(err)
		}
	}
	all.Manifests = slices.DeleteFunc(all.Manifests, func(d ocispec.Descriptor) bool { return d.Digest == digest.FromBytes(manifest) })
	all.Manifests = append(all.Manifests, ocispec.Descriptor{
		MediaType: ocispec.MediaTypeImageManifest, ArtifactType: parsed.ArtifactType,
		Digest: digest.FromBytes(manifest), Size: int64(len(manifest)),
	})
	list, err := json.Marshal(all)
	if err != nil {
		m.Fatal(err)
	}
	if err := remote.Put(tag, rawIndex(list), opts...); err != nil {
		m.Fatal(err)
	}
}

// busybox is a layer with the machine's static busybox, for a container to run.
func busybox(t *testing.T) []byte {
	t.Helper()
	b, err := os.ReadFile("/usr/bin/busybox")
	if err != nil {
		t.Fatalf("%v (Debian package busybox-static)", err)
	}
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	add := func(h tar.Header, content []byte) {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(content); err != nil {
			t.Fatal(err)
		}
	}
	add(tar.Header{Typeflag: tar.TypeReg, Name: "bin/busybox", Mode: 0o755, Size: int64(len(b))}, b)
	for _, applet := range []string{"sh", "sha256sum", "cat", "sleep", "dd"} {
		add(tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/" + applet, Linkname: "busybox"}, nil)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// counts is what the registry was asked for blobs.
type counts struct {
	mu           sync.Mutex
	full, ranged map[string]int // by digest
}

// count counts requests without changing answers.
func (m *machine) count() *counts {
	c := &counts{full: map[string]int{}, ranged: map[string]int{}}
	m.fail(func(_ http.ResponseWriter, r *http.Request) bool {
		if d, ok := blobOf(r); ok {
			c.mu.Lock()
			defer c.mu.Unlock()
			if r.Header.Get("Range") != "" {
				c.ranged[d]++
			} else {
				c.full[d]++
			}
		}
		return false
	})
	return c
}

func (c *counts) of(l testLayer) (full, ranged int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.full[l.digest.String()], c.ranged[l.digest.String()]
}

// blobOf is the digest of the blob that a request asks for.
func blobOf(r *http.Request) (string, bool) {
	dir, d := path.Split(r.URL.Path)
	return d, r.Method == http.MethodGet && path.Base(dir) == "blobs"
}
