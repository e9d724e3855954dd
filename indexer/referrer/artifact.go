package referrer

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/firstlight-dev/firstlight/indexer/index"
)

// Artifact is what is pushed for one image manifest.
type Artifact struct {
	Descriptor ocispec.Descriptor
	Manifest   []byte
	Blobs      map[digest.Digest][]byte // config and indexes
}

// NewArtifact makes the artifact of an image manifest from the encoded indexes
// of its layers. The same indexes make the same artifact.
func NewArtifact(subject ocispec.Descriptor, indexes map[digest.Digest][]byte) (*Artifact, error) {
	empty := ocispec.DescriptorEmptyJSON
	a := &Artifact{Blobs: map[digest.Digest][]byte{empty.Digest: empty.Data}}
	m := ocispec.Manifest{
		Versioned:    specs.Versioned{SchemaVersion: 2},
		MediaType:    ocispec.MediaTypeImageManifest,
		ArtifactType: index.ArtifactType,
		Config:       ocispec.Descriptor{MediaType: empty.MediaType, Digest: empty.Digest, Size: empty.Size},
		Subject:      &ocispec.Descriptor{MediaType: subject.MediaType, Digest: subject.Digest, Size: subject.Size},
	}
	for layer, b := range indexes {
		d := digest.FromBytes(b)
		a.Blobs[d] = b
		m.Layers = append(m.Layers, ocispec.Descriptor{
			MediaType: index.LayerMediaType, Digest: d, Size: int64(len(b)),
			Annotations: map[string]string{index.AnnotationLayer: layer.String()},
		})
	}
	slices.SortFunc(m.Layers, func(x, y ocispec.Descriptor) int {
		return strings.Compare(x.Annotations[index.AnnotationLayer], y.Annotations[index.AnnotationLayer])
	})
	if len(m.Layers) == 0 {
		// A manifest has at least one layer: this image has no layer worth one.
		m.Layers = []ocispec.Descriptor{m.Config}
	}
	var err error
	if a.Manifest, err = json.Marshal(m); err != nil {
		return nil, fmt.Errorf("encode artifact manifest: %w", err)
	}
	a.Descriptor = ocispec.Descriptor{
		MediaType: m.MediaType, ArtifactType: m.ArtifactType,
		Digest: digest.FromBytes(a.Manifest), Size: int64(len(a.Manifest)),
	}
	return a, nil
}
