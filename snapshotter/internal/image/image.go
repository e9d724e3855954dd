// Package image reads what a pull is about: the manifest and the config of one
// image, from containerd's content store, where the pull has put both before the
// first layer is asked for.
//
// Both are named by digest and checked against it, so an image cannot claim
// another's layers. The chain IDs are computed here: a layer that containerd
// asks for is identified by its place in the image, not by its digest alone,
// because one layer may occur twice.
package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

const (
	// maxDocument bounds a manifest and a config. Registries refuse manifests
	// above 4 MiB; configs carry the history as well.
	maxDocument = 8 << 20
	// maxLayers bounds the layers of an image; overlayfs stacks 500.
	maxLayers = 500
	// snapshotPrefix is where annotations become labels of snapshots.
	snapshotPrefix = "containerd.io/snapshot"
)

// ErrInvalid marks an image that contradicts itself.
var ErrInvalid = errors.New("invalid image")

// Image is one image for one platform.
type Image struct {
	Manifest digest.Digest
	Command  []string // entrypoint and arguments that its configuration names
	Layers   []Layer  // lowest first
}

// Layer is one layer in its place.
type Layer struct {
	ocispec.Descriptor
	DiffID  digest.Digest
	ChainID digest.Digest
}

// Store is the part of containerd's content store that is needed.
type Store interface {
	content.Provider
	content.InfoProvider
}

// Load reads the image whose manifest has the digest.
func Load(ctx context.Context, store Store, manifest digest.Digest) (*Image, error) {
	var m ocispec.Manifest
	if err := load(ctx, store, manifest, &m); err != nil {
		return nil, fmt.Errorf("read manifest %s: %w", manifest, err)
	}
	var config struct {
		RootFS ocispec.RootFS `json:"rootfs"`
		Config struct {
			Entrypoint, Cmd []string
		} `json:"config"`
	}
	if err := load(ctx, store, m.Config.Digest, &config); err != nil {
		return nil, fmt.Errorf("read config %s: %w", m.Config.Digest, err)
	}
	layers, err := join(m.Layers, config.RootFS.DiffIDs)
	if err != nil {
		return nil, fmt.Errorf("manifest %s: %w", manifest, err)
	}
	command := slices.Concat(config.Config.Entrypoint, config.Config.Cmd)
	return &Image{Manifest: manifest, Command: command, Layers: layers}, nil
}

func load(ctx context.Context, store Store, d digest.Digest, v any) error {
	if err := d.Validate(); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	info, err := store.Info(ctx, d)
	if err != nil {
		return err
	}
	if info.Size > maxDocument {
		return fmt.Errorf("%w: %d bytes are more than %d", ErrInvalid, info.Size, maxDocument)
	}
	// containerd checked the content when it stored it; a backend of our own
	// tests may not have.
	b, err := content.ReadBlob(ctx, store, ocispec.Descriptor{Digest: d, Size: info.Size})
	if err != nil {
		return err
	}
	if got := d.Algorithm().FromBytes(b); got != d {
		return fmt.Errorf("%w: content is %s", ErrInvalid, got)
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return nil
}

func join(layers []ocispec.Descriptor, diffIDs []digest.Digest) ([]Layer, error) {
	switch n := len(layers); {
	case n == 0:
		return nil, fmt.Errorf("%w: no layers", ErrInvalid)
	case n > maxLayers:
		return nil, fmt.Errorf("%w: %d layers are more than %d", ErrInvalid, n, maxLayers)
	case n != len(diffIDs):
		return nil, fmt.Errorf("%w: %d layers but %d diffIDs", ErrInvalid, n, len(diffIDs))
	}
	for _, d := range diffIDs {
		if err := d.Validate(); err != nil {
			return nil, fmt.Errorf("%w: diffID: %w", ErrInvalid, err)
		}
	}
	chain := identity.ChainIDs(append([]digest.Digest(nil), diffIDs...))
	joined := make([]Layer, len(layers))
	for i, d := range layers {
		if err := check(d); err != nil {
			return nil, fmt.Errorf("%w: layer %d: %w", ErrInvalid, i, err)
		}
		joined[i] = Layer{Descriptor: d, DiffID: diffIDs[i], ChainID: chain[i]}
	}
	return joined, nil
}

// check refuses what no honest image has. Annotations below the snapshot prefix
// would reach the snapshotter as labels and name another image or registry.
func check(d ocispec.Descriptor) error {
	if err := d.Digest.Validate(); err != nil {
		return err
	}
	if d.Size < 0 {
		return fmt.Errorf("size is %d", d.Size)
	}
	if !images.IsLayerType(d.MediaType) {
		return fmt.Errorf("media type %q is no layer", d.MediaType)
	}
	for k := range d.Annotations {
		if strings.HasPrefix(k, snapshotPrefix) {
			return fmt.Errorf("annotation %q addresses the snapshotter", k)
		}
	}
	return nil
}

// Find returns the number of the layer with the chain ID and digest, or -1.
func (im *Image) Find(chain, layer digest.Digest) int {
	for i, l := range im.Layers {
		if l.ChainID == chain && l.Digest == layer {
			return i
		}
	}
	return -1
}
