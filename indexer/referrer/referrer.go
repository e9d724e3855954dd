// Package referrer keeps layer indexes and access profiles in a registry, or an OCI layout folder,
// beside the image they belong to.
//
// An artifact manifest of type index.ArtifactType refers to an image manifest by
// its subject field and holds one blob for each layer that has an index. The
// image, its digest and its tags are not touched. An image index of several
// platforms has an artifact for each image manifest in it.
//
// A registry with the Referrers API lists artifacts by itself. For one without,
// the OCI distribution specification names a tag made of the subject's digest
// that holds the list; whoever pushes or removes an artifact keeps it.
//
// Nothing here is believed before it is checked: manifests and blobs are read up
// to a limit, compared with their digests, and an index must name the layer
// that the artifact says it belongs to.
package referrer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/firstlight-dev/firstlight/indexer/index"
	"github.com/firstlight-dev/firstlight/indexer/profile"
)

// Limits on what a registry may make us read.
const (
	maxManifest  = 4 << 20 // as registries do; an artifact of 128 layers has 40 KiB
	maxArtifacts = 16      // artifacts of our type for one image; one is usual
)

// ErrNotFound means that an image has no index.
var ErrNotFound = errdefs.ErrNotFound

// ErrContent marks bytes that do not match the descriptor they were fetched by.
var ErrContent = errors.New("content does not match its descriptor")

// Fetcher reads a repository. Callers check what they get against descriptors:
// an implementation need not.
type Fetcher interface {
	// Manifest returns a manifest by tag or digest. The error is
	// errdefs.ErrNotFound if there is none.
	Manifest(ctx context.Context, ref string) (ocispec.Descriptor, []byte, error)
	// Blob opens a blob.
	Blob(ctx context.Context, desc ocispec.Descriptor) (io.ReadCloser, error)
	// Referrers lists the manifests that have a subject, by the Referrers API or
	// else by the fallback tag. None is not an error. artifactType may be ignored.
	Referrers(ctx context.Context, subject digest.Digest, artifactType string) ([]ocispec.Descriptor, error)
}

// FallbackTag is the tag that lists the referrers of a manifest in a registry
// without the Referrers API.
func FallbackTag(subject digest.Digest) string {
	return strings.Replace(subject.String(), ":", "-", 1)
}

// Set is the indexes of one image.
type Set struct {
	// Artifacts are the manifests the indexes come from, in order of digest.
	Artifacts []ocispec.Descriptor
	// Others are the referrers that can be something else of ours, for Profiles.
	// They come with the same answer of the registry.
	Others []ocispec.Descriptor
	layers map[digest.Digest]ocispec.Descriptor
}

// Find looks for the indexes of an image manifest. The error is ErrNotFound if
// there are none.
func Find(ctx context.Context, f Fetcher, subject digest.Digest) (*Set, error) {
	// Of every type, so that one round trip finds access profiles as well.
	all, err := f.Referrers(ctx, subject, "")
	if err != nil && !errors.Is(err, errdefs.ErrNotFound) {
		return nil, fmt.Errorf("list referrers of %s: %w", subject, err)
	}
	list := candidates(all, index.ArtifactType)
	s := &Set{Others: candidates(all, profile.ArtifactType), layers: make(map[digest.Digest]ocispec.Descriptor)}
	for _, d := range list {
		if err := s.add(ctx, f, d, subject); err != nil {
			return nil, fmt.Errorf("read index artifact %s: %w", d.Digest, err)
		}
	}
	if len(s.layers) == 0 && len(s.Artifacts) == 0 {
		return nil, fmt.Errorf("no index of %s: %w", subject, ErrNotFound)
	}
	return s, nil
}

// candidates are the referrers that can be of a type, in an order that does not
// depend on the list's. Some registries list a manifest by its configuration's
// media type, or by none; what it is shows when it is read.
func candidates(list []ocispec.Descriptor, artifactType string) []ocispec.Descriptor {
	list = slices.DeleteFunc(slices.Clone(list), func(d ocispec.Descriptor) bool {
		return d.ArtifactType != artifactType && d.ArtifactType != ocispec.MediaTypeEmptyJSON && d.ArtifactType != ""
	})
	slices.SortFunc(list, func(a, b ocispec.Descriptor) int {
		switch {
		case (a.ArtifactType == artifactType) == (b.ArtifactType == artifactType):
			return strings.Compare(string(a.Digest), string(b.Digest))
		case a.ArtifactType == artifactType:
			return -1
		}
		return 1
	})
	return list[:min(len(list), maxArtifacts)]
}

// manifest reads an artifact manifest that a list of referrers named.
func manifest(ctx context.Context, f Fetcher, d ocispec.Descriptor) (*ocispec.Manifest, error) {
	if err := d.Digest.Validate(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrContent, err)
	}
	_, raw, err := f.Manifest(ctx, d.Digest.String())
	if err != nil {
		return nil, err
	}
	if len(raw) > maxManifest || d.Digest.Algorithm().FromBytes(raw) != d.Digest {
		return nil, fmt.Errorf("%w: manifest %s", ErrContent, d.Digest)
	}
	var m ocispec.Manifest
	if err := json.Unmarshal(raw, &m); err != nil {
		return nil, fmt.Errorf("%w: manifest %s: %w", ErrContent, d.Digest, err)
	}
	return &m, nil
}

// add reads an artifact manifest into the set.
func (s *Set) add(ctx context.Context, f Fetcher, d ocispec.Descriptor, subject digest.Digest) error {
	m, err := manifest(ctx, f, d)
	if errors.Is(err, errdefs.ErrNotFound) {
		return nil // removed since the list was made
	}
	if err != nil {
		return err
	}
	if m.ArtifactType != index.ArtifactType || m.Subject == nil || m.Subject.Digest != subject {
		return nil // not an index of this image, whatever the list says
	}
	s.Artifacts = append(s.Artifacts, d)
	for _, l := range m.Layers {
		layer := digest.Digest(l.Annotations[index.AnnotationLayer])
		if l.MediaType != index.LayerMediaType || layer.Validate() != nil || l.Digest.Validate() != nil {
			continue
		}
		if _, ok := s.layers[layer]; !ok {
			s.layers[layer] = l
		}
	}
	return nil
}

// Len is the number of layers that have an index.
func (s *Set) Len() int { return len(s.layers) }

// Layer returns the descriptor of a layer's index.
func (s *Set) Layer(layer digest.Digest) (ocispec.Descriptor, bool) {
	d, ok := s.layers[layer]
	return d, ok
}

// Load fetches and decodes a layer's index. The error is ErrNotFound if the
// layer has none.
func (s *Set) Load(ctx context.Context, f Fetcher, layer digest.Digest) (*index.Index, error) {
	d, ok := s.layers[layer]
	if !ok {
		return nil, fmt.Errorf("no index of layer %s: %w", layer, ErrNotFound)
	}
	x, err := load(ctx, f, d)
	if err != nil {
		return nil, fmt.Errorf("load index of layer %s: %w", layer, err)
	}
	if x.Layer != layer {
		return nil, fmt.Errorf("load index of layer %s: %w: it is of layer %s", layer, index.ErrInvalid, x.Layer)
	}
	return x, nil
}

func load(ctx context.Context, f Fetcher, d ocispec.Descriptor) (*index.Index, error) {
	if d.Size <= 0 || d.Size > index.MaxEncoded {
		return nil, fmt.Errorf("%w: it has %d bytes, at most %d are allowed", index.ErrInvalid, d.Size, index.MaxEncoded)
	}
	r, err := f.Blob(ctx, d)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	// Not allocated by the announced size: the registry has to send it first.
	raw, err := io.ReadAll(io.LimitReader(r, d.Size+1))
	if err != nil {
		return nil, err
	}
	if int64(len(raw)) != d.Size || d.Digest.Algorithm().FromBytes(raw) != d.Digest {
		return nil, fmt.Errorf("%w: blob %s", ErrContent, d.Digest)
	}
	return index.Decode(raw)
}
