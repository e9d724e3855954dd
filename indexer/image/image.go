// Package image says what a reference names: the image manifests behind it and
// their layers.
package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/firstlight-dev/firstlight/indexer/referrer"
)

// Limits on what a manifest may make us read. Docker itself stops at 127 layers.
const (
	maxConfig    = 8 << 20
	maxLayers    = 1024
	maxManifests = 256
	maxDepth     = 3 // of image indexes in image indexes
)

// Docker's names for what OCI calls image index, image manifest and image
// configuration.
const (
	dockerList     = "application/vnd.docker.distribution.manifest.list.v2+json"
	dockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
	dockerConfig   = "application/vnd.docker.container.image.v1+json"
)

// Image is one image manifest.
type Image struct {
	Descriptor ocispec.Descriptor
	Platform   string // as in the image index, else as in the configuration
	Layers     []Layer
}

// Layer is one layer of an image.
type Layer struct {
	Descriptor ocispec.Descriptor
	DiffID     digest.Digest
}

// Resolve returns the images that a reference names: the one, or those of an
// image index whose platform matches, all if platform is empty. Manifests in an
// image index that are no images, such as attestations, are left out.
func Resolve(ctx context.Context, f referrer.Fetcher, ref, platform string) ([]Image, error) {
	r := &resolver{f: f}
	if platform != "" {
		p, err := platforms.Parse(platform)
		if err != nil {
			return nil, fmt.Errorf("platform %q: %w", platform, err)
		}
		r.match = platforms.OnlyStrict(p)
	}
	d, raw, err := f.Manifest(ctx, ref)
	if err != nil {
		return nil, err
	}
	if err := r.add(ctx, d, raw, 0); err != nil {
		return nil, err
	}
	if len(r.images) == 0 {
		return nil, fmt.Errorf("no image for platform %q in %s: %w", platform, d.Digest, errdefs.ErrNotFound)
	}
	return r.images, nil
}

type resolver struct {
	f      referrer.Fetcher
	match  platforms.Matcher // nil: all
	images []Image
}

func (r *resolver) add(ctx context.Context, d ocispec.Descriptor, raw []byte, depth int) error {
	if digest.FromBytes(raw) != d.Digest {
		return fmt.Errorf("%w: manifest %s", referrer.ErrContent, d.Digest)
	}
	switch d.MediaType {
	case ocispec.MediaTypeImageIndex, dockerList:
		return r.addIndex(ctx, d, raw, depth)
	case ocispec.MediaTypeImageManifest, dockerManifest:
		return r.addImage(ctx, d, raw)
	}
	return fmt.Errorf("manifest %s has media type %q, which is no image: %w", d.Digest, d.MediaType, errdefs.ErrInvalidArgument)
}

func (r *resolver) addIndex(ctx context.Context, d ocispec.Descriptor, raw []byte, depth int) error {
	var list ocispec.Index
	if err := json.Unmarshal(raw, &list); err != nil {
		return fmt.Errorf("read image index %s: %w", d.Digest, err)
	}
	if depth == maxDepth || len(list.Manifests)+len(r.images) > maxManifests {
		return fmt.Errorf("image index %s is nested too deeply or has too many manifests", d.Digest)
	}
	for _, m := range list.Manifests {
		if m.Annotations["vnd.docker.reference.type"] != "" || !mayBeImage(m.ArtifactType) {
			continue
		}
		if r.match != nil && m.Platform != nil && !r.match.Match(*m.Platform) {
			continue
		}
		// The registry's answer may carry other fields than the list's.
		_, raw, err := r.f.Manifest(ctx, m.Digest.String())
		if err != nil {
			return err
		}
		if err := r.add(ctx, m, raw, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// mayBeImage reports whether a manifest with that artifact type can be an image:
// some tools give images that of their configuration.
func mayBeImage(artifactType string) bool {
	switch artifactType {
	case "", ocispec.MediaTypeImageConfig, dockerConfig:
		return true
	}
	return false
}

func (r *resolver) addImage(ctx context.Context, d ocispec.Descriptor, raw []byte) error {
	var m ocispec.Manifest
	if err := json.Unmarshal(raw, &m); err != nil {
		return fmt.Errorf("read manifest %s: %w", d.Digest, err)
	}
	if len(m.Layers) > maxLayers {
		return fmt.Errorf("manifest %s has %d layers, at most %d are allowed", d.Digest, len(m.Layers), maxLayers)
	}
	c, err := r.config(ctx, m.Config)
	if err != nil {
		return fmt.Errorf("read image configuration %s: %w", m.Config.Digest, err)
	}
	if len(c.RootFS.DiffIDs) != len(m.Layers) {
		return fmt.Errorf("image %s has %d layers but %d diffIDs", d.Digest, len(m.Layers), len(c.RootFS.DiffIDs))
	}
	if d.Platform == nil {
		d.Platform = &c.Platform
		if r.match != nil && !r.match.Match(c.Platform) {
			return nil
		}
	}
	img := Image{Descriptor: d, Platform: platforms.Format(*d.Platform)}
	for i, l := range m.Layers {
		if err := errors.Join(l.Digest.Validate(), c.RootFS.DiffIDs[i].Validate()); err != nil {
			return fmt.Errorf("layer %d of %s: %w", i, d.Digest, err)
		}
		img.Layers = append(img.Layers, Layer{Descriptor: l, DiffID: c.RootFS.DiffIDs[i]})
	}
	r.images = append(r.images, img)
	return nil
}

func (r *resolver) config(ctx context.Context, d ocispec.Descriptor) (*ocispec.Image, error) {
	if err := d.Digest.Validate(); err != nil {
		return nil, err
	}
	if d.Size > maxConfig {
		return nil, fmt.Errorf("%d bytes, at most %d are allowed", d.Size, maxConfig)
	}
	rc, err := r.f.Blob(ctx, d)
	if err != nil {
		return nil, err
	}
	defer rc.Close()
	b, err := io.ReadAll(io.LimitReader(rc, maxConfig))
	if err != nil {
		return nil, err
	}
	if d.Digest.Algorithm().FromBytes(b) != d.Digest {
		return nil, referrer.ErrContent
	}
	var c ocispec.Image
	if err := json.Unmarshal(b, &c); err != nil {
		return nil, err
	}
	return &c, nil
}

// Refusal says why a layer cannot be indexed, whatever its blob is; it is empty
// if only the blob can tell. What compresses the blob is never asked here: media
// types are wrong too often.
func (l Layer) Refusal() string {
	switch m := l.Descriptor.MediaType; {
	case strings.Contains(m, "nondistributable"), strings.Contains(m, "foreign"):
		return "it is a foreign layer, whose blob is not in the repository"
	case strings.HasSuffix(m, "+encrypted"), strings.HasSuffix(m, "+enc"):
		return "it is encrypted, and only who has the key can read it"
	}
	return ""
}
