// Package images makes the container images that the tests and the quickstart
// use, from Debian packages and with no registry but the caller's own.
//
// An image is described by a recipe: a list of steps, each of which changes a
// root file system; a layer is the difference between two steps, written the
// way containerd's differ writes it (whiteouts, hard links, extended
// attributes). Because dpkg and its maintainer scripts really run, the layers
// have what real layers have: file capabilities, hard-linked files, byte-code
// caches, files that a later layer deletes.
//
// Made images are kept as OCI image layouts under Maker.Dir, in a folder named
// by the recipe's hash, so that a second run takes no time and gives the same
// digests. Modification times are bounded by a fixed date; what remains
// irreproducible is what Debian's mirror serves that day.
//
// Making a Debian image needs root and debootstrap. All of it runs in private
// mount and process namespaces: an interrupted run leaves files, never mounts.
package images

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sys/unix"
)

// epoch bounds the modification times of files that the making itself creates.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// Maker makes images and keeps them under Dir.
type Maker struct {
	Dir string
	Log *slog.Logger
}

// step is one layer: a change to the root file system and what `docker history`
// would say about it.
type step struct {
	By       string   // shown as created_by
	Packages []string // Debian packages to install
	Script   string   // run by sh in the root afterwards
}

// recipe is everything that decides an image's content.
type recipe struct {
	Name   string
	Base   string // "debian:<codename>", or "" for an empty root
	Steps  []step
	Config v1.Config
}

// make returns the recipe's image from the cache, or runs the recipe. Two
// processes that want the same image wait for each other.
func (m *Maker) make(ctx context.Context, r recipe, write func(context.Context, string) ([]v1.Layer, error)) (v1.Image, error) {
	if err := os.MkdirAll(m.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("make image folder: %w", err)
	}
	unlock, err := lock(filepath.Join(m.Dir, r.Name+".lock"))
	if err != nil {
		return nil, err
	}
	defer unlock()

	path := filepath.Join(m.Dir, r.Name+"-"+r.hash())
	switch img, err := open(path); {
	case err == nil:
		return img, nil
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	work, err := os.MkdirTemp(m.Dir, r.Name+"-making-")
	if err != nil {
		return nil, fmt.Errorf("make work folder: %w", err)
	}
	defer os.RemoveAll(work)

	m.Log.Info("making image", "image", r.Name, "kept", path)
	layers, err := write(ctx, work)
	if err != nil {
		return nil, err
	}
	if err := save(r, layers, filepath.Join(work, "layout")); err != nil {
		return nil, err
	}
	if err := os.Rename(filepath.Join(work, "layout"), path); err != nil {
		return nil, fmt.Errorf("keep image %s: %w", r.Name, err)
	}
	return open(path)
}

func (r recipe) hash() string {
	b, err := json.Marshal(r)
	if err != nil {
		panic(err) // strings and lists of strings only
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:6])
}

func save(r recipe, layers []v1.Layer, path string) error {
	img := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	img = mutate.ConfigMediaType(img, types.OCIConfigJSON)
	for i, layer := range layers {
		var err error
		img, err = mutate.Append(img, mutate.Addendum{
			Layer:   layer,
			History: v1.History{Created: v1.Time{Time: epoch}, CreatedBy: r.Steps[i].By},
		})
		if err != nil {
			return fmt.Errorf("append layer %d of %s: %w", i, r.Name, err)
		}
	}
	config, err := img.ConfigFile()
	if err != nil {
		return fmt.Errorf("read config of %s: %w", r.Name, err)
	}
	config.OS, config.Architecture, config.Created, config.Config = "linux", "amd64", v1.Time{Time: epoch}, r.Config
	if img, err = mutate.ConfigFile(img, config); err != nil {
		return fmt.Errorf("set config of %s: %w", r.Name, err)
	}
	store, err := layout.Write(path, empty.Index)
	if err != nil {
		return fmt.Errorf("make image layout: %w", err)
	}
	if err := store.AppendImage(img); err != nil {
		return fmt.Errorf("write image %s: %w", r.Name, err)
	}
	return nil
}

// open reads the one image of an OCI image layout.
func open(path string) (v1.Image, error) {
	store, err := layout.FromPath(path)
	if err != nil {
		return nil, fmt.Errorf("open image layout: %w", err)
	}
	index, err := store.ImageIndex()
	if err != nil {
		return nil, fmt.Errorf("open image layout %s: %w", path, err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return nil, fmt.Errorf("open image layout %s: %w", path, err)
	}
	if len(manifest.Manifests) != 1 {
		return nil, fmt.Errorf("open image layout %s: %d images where 1 is expected", path, len(manifest.Manifests))
	}
	img, err := index.Image(manifest.Manifests[0].Digest)
	if err != nil {
		return nil, fmt.Errorf("open image in %s: %w", path, err)
	}
	return img, nil
}

// Push writes img to the registry that ref names; plain HTTP for local ones.
func Push(ctx context.Context, img v1.Image, ref string, options ...remote.Option) error {
	tag, err := name.ParseReference(ref, name.Insecure)
	if err != nil {
		return fmt.Errorf("parse reference: %w", err)
	}
	if err := remote.Write(tag, img, append(options, remote.WithContext(ctx))...); err != nil {
		return fmt.Errorf("push %s: %w", ref, err)
	}
	return nil
}

// Sizes returns the bytes of img's layers as stored and unpacked to tar.
func Sizes(img v1.Image) (compressed, uncompressed int64, err error) {
	layers, err := img.Layers()
	if err != nil {
		return 0, 0, fmt.Errorf("list layers: %w", err)
	}
	for _, layer := range layers {
		size, err := layer.Size()
		if err != nil {
			return 0, 0, fmt.Errorf("size layer: %w", err)
		}
		tar, err := layer.Uncompressed()
		if err != nil {
			return 0, 0, fmt.Errorf("open layer: %w", err)
		}
		n, err := countBytes(tar)
		if err != nil {
			return 0, 0, fmt.Errorf("inflate layer: %w", err)
		}
		compressed += size
		uncompressed += n
	}
	return compressed, uncompressed, nil
}

func layerFromFile(path string) (v1.Layer, error) {
	layer, err := tarball.LayerFromFile(path, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, fmt.Errorf("read layer %s: %w", path, err)
	}
	return layer, nil
}

// lock takes an exclusive lock on a file and returns what releases it.
func lock(path string) (func(), error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { _ = f.Close() }, nil
}
