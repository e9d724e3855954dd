package referrer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/firstlight-dev/firstlight/indexer/profile"
)

// maxProfiles bounds the profiles of one image that are looked at: one for each
// command it is commonly started with.
const maxProfiles = 8

// NewProfileArtifact makes the artifact of an access profile of an image
// manifest. The same profile makes the same artifact.
func NewProfileArtifact(subject ocispec.Descriptor, p *profile.Profile) (*Artifact, error) {
	if p.Manifest != subject.Digest {
		return nil, fmt.Errorf("make profile artifact: the profile is of %s, not of %s", p.Manifest, subject.Digest)
	}
	b, err := p.Encode()
	if err != nil {
		return nil, err
	}
	empty := ocispec.DescriptorEmptyJSON
	blob := ocispec.Descriptor{MediaType: profile.MediaType, Digest: digest.FromBytes(b), Size: int64(len(b))}
	m := ocispec.Manifest{
		Versioned:    specs.Versioned{SchemaVersion: 2},
		MediaType:    ocispec.MediaTypeImageManifest,
		ArtifactType: profile.ArtifactType,
		Config:       ocispec.Descriptor{MediaType: empty.MediaType, Digest: empty.Digest, Size: empty.Size},
		Layers:       []ocispec.Descriptor{blob},
		Subject:      &ocispec.Descriptor{MediaType: subject.MediaType, Digest: subject.Digest, Size: subject.Size},
		Annotations:  map[string]string{profile.AnnotationCommand: profile.Key(p.Command)},
	}
	a := &Artifact{Blobs: map[digest.Digest][]byte{empty.Digest: empty.Data, blob.Digest: b}}
	if a.Manifest, err = json.Marshal(m); err != nil {
		return nil, fmt.Errorf("encode artifact manifest: %w", err)
	}
	a.Descriptor = ocispec.Descriptor{
		MediaType: m.MediaType, ArtifactType: m.ArtifactType,
		Digest: digest.FromBytes(a.Manifest), Size: int64(len(a.Manifest)),
	}
	return a, nil
}

// Profile is an access profile in the registry.
type Profile struct {
	Artifact ocispec.Descriptor // the artifact manifest
	Command  string             // profile.Key of the command
	blob     ocispec.Descriptor
}

// Profiles reads the artifact manifests of an image's access profiles, which
// Find or Referrers has listed. Those that are none are left out.
func Profiles(ctx context.Context, f Fetcher, subject digest.Digest, list []ocispec.Descriptor) ([]Profile, error) {
	var found []Profile
	for _, d := range candidates(list, profile.ArtifactType) {
		if len(found) == maxProfiles {
			break
		}
		m, err := manifest(ctx, f, d)
		if errors.Is(err, errdefs.ErrNotFound) {
			continue // removed since the list was made
		}
		if err != nil {
			return nil, fmt.Errorf("read profile artifact %s: %w", d.Digest, err)
		}
		if m.ArtifactType != profile.ArtifactType || m.Subject == nil || m.Subject.Digest != subject ||
			len(m.Layers) != 1 || m.Layers[0].MediaType != profile.MediaType || m.Layers[0].Digest.Validate() != nil {
			continue
		}
		found = append(found, Profile{Artifact: d, Command: m.Annotations[profile.AnnotationCommand], blob: m.Layers[0]})
	}
	return found, nil
}

// ListProfiles looks for the access profiles of an image manifest. None is not
// an error.
func ListProfiles(ctx context.Context, f Fetcher, subject digest.Digest) ([]Profile, error) {
	list, err := f.Referrers(ctx, subject, profile.ArtifactType)
	if err != nil && !errors.Is(err, errdefs.ErrNotFound) {
		return nil, fmt.Errorf("list referrers of %s: %w", subject, err)
	}
	return Profiles(ctx, f, subject, list)
}

// Load fetches and decodes the profile, which must be one of the subject.
func (p Profile) Load(ctx context.Context, f Fetcher, subject digest.Digest) (*profile.Profile, error) {
	if p.blob.Size <= 0 || p.blob.Size > profile.MaxEncoded {
		return nil, fmt.Errorf("load profile: %w: it has %d bytes, at most %d are allowed", profile.ErrInvalid, p.blob.Size, profile.MaxEncoded)
	}
	r, err := f.Blob(ctx, p.blob)
	if err != nil {
		return nil, fmt.Errorf("load profile: %w", err)
	}
	defer r.Close()
	raw, err := io.ReadAll(io.LimitReader(r, p.blob.Size+1))
	if err != nil {
		return nil, fmt.Errorf("load profile: %w", err)
	}
	if int64(len(raw)) != p.blob.Size || p.blob.Digest.Algorithm().FromBytes(raw) != p.blob.Digest {
		return nil, fmt.Errorf("load profile: %w: blob %s", ErrContent, p.blob.Digest)
	}
	decoded, err := profile.Decode(raw)
	if err != nil {
		return nil, err
	}
	if decoded.Manifest != subject {
		return nil, fmt.Errorf("load profile: %w: it is of image %s", profile.ErrInvalid, decoded.Manifest)
	}
	return decoded, nil
}
