package main

import (
	"io"
	"log/slog"
	"path/filepath"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/firstlight-dev/firstlight/snapshotter/nodeapi"
	"github.com/firstlight-dev/firstlight/test/images"
	"github.com/firstlight-dev/firstlight/test/sandbox"
)

// TestDebianImage compares the trees of an image of Debian packages, made the
// way images are made, in both modes.
func TestDebianImage(t *testing.T) {
	root, err := sandbox.RepositoryRoot()
	if err != nil {
		t.Fatal(err)
	}
	maker := &images.Maker{Dir: filepath.Join(root, ".cache", "images"), Log: slog.New(slog.DiscardHandler)}
	img, err := maker.Scipy(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, mode := range []string{"erofs", "fuse"} {
		t.Run(mode, func(t *testing.T) {
			m := newMachine(t)
			m.startSnapshotter("--mode", mode, "--fill-after", "-1s")
			m.startContainerd()
			image := m.pushMade("scipy:1", img)
			m.index(image, nil)
			m.pull("firstlight", image.ref)
			for i, s := range m.states(image.ref) {
				if s != nodeapi.StateLazy {
					t.Errorf("layer %d is %s", i, s)
				}
			}
			out, err := m.container("scipy", image, "python3", "-c", "import numpy, scipy.linalg; print(scipy.linalg.det(numpy.eye(3)))")
			if err != nil || out != "1.0\n" {
				t.Errorf("scipy says %q, %v", out, err)
			}
			m.sameTree(image, map[string]bool{"/": true})
		})
	}
}

// pushMade pushes an image that is made already.
func (m *machine) pushMade(repo string, img v1.Image) *testImage {
	m.Helper()
	image := &testImage{ref: registryAddr + "/" + repo}
	layers, err := img.Layers()
	if err != nil {
		m.Fatal(err)
	}
	for _, l := range layers {
		d, err := l.Digest()
		if err != nil {
			m.Fatal(err)
		}
		r, err := l.Compressed()
		if err != nil {
			m.Fatal(err)
		}
		blob, err := io.ReadAll(r)
		if err != nil {
			m.Fatal(err)
		}
		if err := r.Close(); err != nil {
			m.Fatal(err)
		}
		image.layers = append(image.layers, testLayer{blob: blob, digest: d})
	}
	if image.manifest, err = img.Digest(); err != nil {
		m.Fatal(err)
	}
	m.upload(image.ref, img)
	return image
}
