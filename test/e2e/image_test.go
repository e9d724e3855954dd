package e2e

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/firstlight-dev/firstlight/test/cluster"
)

const (
	dataLayers    = 6
	filesPerLayer = 4
	dataFileSize  = 4 << 20
)

// dataImage is a small image whose content a test can predict: busybox below
// layers of files with incompressible content.
type dataImage struct {
	image v1.Image
	sums  map[string]string // SHA-256 by path
}

// newDataImage makes an image; another seed gives other content, and so layers
// that no other test has pulled before.
func newDataImage(t *testing.T, seed uint64) *dataImage {
	t.Helper()
	d := &dataImage{sums: make(map[string]string)}
	layers := []v1.Layer{busyboxLayer(t)}
	random := rand.NewChaCha8([32]byte{0: byte(seed), 1: byte(seed >> 8)})
	for i := range dataLayers {
		var layer bytes.Buffer
		w := tar.NewWriter(&layer)
		for j := range filesPerLayer {
			content := make([]byte, dataFileSize)
			if _, err := random.Read(content); err != nil {
				t.Fatal(err)
			}
			path := fmt.Sprintf("data/%d/%d", i, j)
			sum := sha256.Sum256(content)
			d.sums["/"+path] = hex.EncodeToString(sum[:])
			addFile(t, w, &tar.Header{Name: path, Mode: 0o644}, content)
		}
		layers = append(layers, gzipLayer(t, w, &layer))
	}
	image := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	image = mutate.ConfigMediaType(image, types.OCIConfigJSON)
	image, err := mutate.AppendLayers(image, layers...)
	if err != nil {
		t.Fatal(err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", "amd64"
	config.Config.Env = []string{"PATH=/bin"}
	if d.image, err = mutate.ConfigFile(image, config); err != nil {
		t.Fatal(err)
	}
	return d
}

// push pushes the image and returns the reference by which the inside of the
// cluster knows it.
func (d *dataImage) push(t *testing.T, f *fixture, repository string) string {
	t.Helper()
	outside, err := f.Forward(cluster.RegistryAddress)
	if err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag(outside+"/"+repository+":1", name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(tag, d.image, remote.WithContext(t.Context())); err != nil {
		t.Fatal(err)
	}
	return cluster.RegistryAddress + "/" + repository + ":1"
}

// size is what a full pull would fetch.
func (d *dataImage) size(t *testing.T) int64 {
	t.Helper()
	manifest, err := d.image.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	var size int64
	for _, layer := range manifest.Layers {
		size += layer.Size
	}
	return size
}

func busyboxLayer(t *testing.T) v1.Layer {
	t.Helper()
	path, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal(err)
	}
	busybox, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	addFile(t, w, &tar.Header{Name: "bin/busybox", Mode: 0o755}, busybox)
	for _, applet := range []string{"cat", "echo", "env", "id", "sh", "sha256sum", "sleep"} {
		addFile(t, w, &tar.Header{Name: "bin/" + applet, Typeflag: tar.TypeSymlink, Linkname: "busybox", Mode: 0o777}, nil)
	}
	return gzipLayer(t, w, &layer)
}

func addFile(t *testing.T, w *tar.Writer, h *tar.Header, content []byte) {
	t.Helper()
	h.Size = int64(len(content))
	if err := w.WriteHeader(h); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(content); err != nil {
		t.Fatal(err)
	}
}

func gzipLayer(t *testing.T, w *tar.Writer, layer *bytes.Buffer) v1.Layer {
	t.Helper()
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	content := layer.Bytes()
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(content)), nil
	}, tarball.WithMediaType(types.OCILayer), tarball.WithCompressionLevel(1))
	if err != nil {
		t.Fatal(err)
	}
	return l
}
