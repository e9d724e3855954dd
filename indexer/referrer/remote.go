package referrer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/firstlight-dev/firstlight/indexer/index"
)

// headerTimeout bounds the wait for a registry's answer.
const headerTimeout = 30 * time.Second

// ErrUnauthorized means that the registry wants other credentials.
var ErrUnauthorized = errdefs.ErrUnauthenticated

// Store is where an image and its indexes are: what the indexer reads and
// writes. Remove takes an artifact off; its blobs are the store's to collect.
type Store interface {
	Fetcher
	Push(ctx context.Context, a *Artifact) error
	Remove(ctx context.Context, subject digest.Digest, artifact ocispec.Descriptor) error
}

// Remote is a repository of a registry, read and written with the credentials
// of the docker configuration.
type Remote struct {
	repo    name.Repository
	options []remote.Option
}

var _ Store = (*Remote)(nil)

// NewRemote opens a repository. Registries on this machine are spoken to in
// plain HTTP, others if the repository's name says so (name.Insecure).
func NewRemote(repo name.Repository) *Remote {
	t := remote.DefaultTransport.(*http.Transport).Clone()
	t.ResponseHeaderTimeout = headerTimeout
	t.DisableCompression = true // a blob is what it is, whatever a proxy thinks
	return &Remote{repo: repo, options: []remote.Option{
		remote.WithAuthFromKeychain(authn.DefaultKeychain),
		remote.WithTransport(&deadlines{base: t, idle: idleTimeout}),
		remote.WithUserAgent("firstlight"),
	}}
}

func (r *Remote) with(ctx context.Context) []remote.Option {
	return append(slices.Clone(r.options), remote.WithContext(ctx))
}

// Manifest implements Fetcher.
func (r *Remote) Manifest(ctx context.Context, ref string) (ocispec.Descriptor, []byte, error) {
	d, err := remote.Get(r.reference(ref), r.with(ctx)...)
	if err != nil {
		return ocispec.Descriptor{}, nil, r.explain("get manifest "+ref, err)
	}
	return ocispec.Descriptor{
		MediaType: string(d.MediaType), Digest: digest.Digest(d.Digest.String()), Size: d.Size, ArtifactType: d.ArtifactType,
	}, d.Manifest, nil
}

func (r *Remote) reference(ref string) name.Reference {
	if _, err := digest.Parse(ref); err == nil {
		return r.repo.Digest(ref)
	}
	return r.repo.Tag(ref)
}

// Blob implements Fetcher. Reading fails when nothing arrives for a minute.
func (r *Remote) Blob(ctx context.Context, desc ocispec.Descriptor) (io.ReadCloser, error) {
	l, err := remote.Layer(r.repo.Digest(desc.Digest.String()), r.with(ctx)...)
	if err == nil {
		var body io.ReadCloser
		if body, err = l.Compressed(); err == nil {
			return body, nil
		}
	}
	return nil, r.explain("get blob "+desc.Digest.String(), err)
}

// Referrers implements Fetcher.
func (r *Remote) Referrers(ctx context.Context, subject digest.Digest, _ string) ([]ocispec.Descriptor, error) {
	list, err := remote.Referrers(r.repo.Digest(subject.String()), r.with(ctx)...)
	if err != nil {
		return nil, r.explain("list referrers of "+subject.String(), err)
	}
	m, err := list.IndexManifest()
	if err != nil {
		return nil, fmt.Errorf("list referrers of %s: %w", subject, err)
	}
	var ds []ocispec.Descriptor
	for _, d := range m.Manifests {
		ds = append(ds, ocispec.Descriptor{
			MediaType: string(d.MediaType), Digest: digest.Digest(d.Digest.String()), Size: d.Size, ArtifactType: d.ArtifactType,
		})
	}
	return ds, nil
}

// Push implements Store: the blobs first, the manifest, then, where the registry
// does not do it, the list of referrers.
func (r *Remote) Push(ctx context.Context, a *Artifact) error {
	for d, b := range a.Blobs {
		media := types.MediaType(index.LayerMediaType)
		if d == ocispec.DescriptorEmptyJSON.Digest {
			media = types.MediaType(ocispec.MediaTypeEmptyJSON)
		}
		if err := remote.WriteLayer(r.repo, static.NewLayer(b, media), r.with(ctx)...); err != nil {
			return r.explain("push blob "+d.String(), err)
		}
	}
	ref := r.repo.Digest(a.Descriptor.Digest.String())
	if err := remote.Put(ref, rawManifest{a.Manifest, a.Descriptor.MediaType}, r.with(ctx)...); err != nil {
		return r.explain("push artifact "+a.Descriptor.Digest.String(), err)
	}
	return nil
}

// Remove implements Store.
func (r *Remote) Remove(ctx context.Context, subject digest.Digest, artifact ocispec.Descriptor) error {
	if err := r.unlist(ctx, subject, artifact.Digest); err != nil {
		return err
	}
	err := remote.Delete(r.repo.Digest(artifact.Digest.String()), r.with(ctx)...)
	var te *transport.Error
	if errors.As(err, &te) && te.StatusCode == http.StatusNotFound {
		return nil
	}
	if err != nil {
		return r.explain("delete artifact "+artifact.Digest.String(), err)
	}
	return nil
}

// unlist takes an artifact off the fallback list, if there is one.
func (r *Remote) unlist(ctx context.Context, subject, artifact digest.Digest) error {
	tag := r.repo.Tag(FallbackTag(subject))
	d, err := remote.Get(tag, r.with(ctx)...)
	var te *transport.Error
	if errors.As(err, &te) && te.StatusCode == http.StatusNotFound {
		return nil
	}
	if err != nil {
		return r.explain("get referrers list "+tag.TagStr(), err)
	}
	var list v1.IndexManifest
	if err := json.Unmarshal(d.Manifest, &list); err != nil {
		return fmt.Errorf("read referrers list %s: %w", tag.TagStr(), err)
	}
	n := len(list.Manifests)
	list.Manifests = slices.DeleteFunc(list.Manifests, func(d v1.Descriptor) bool { return d.Digest.String() == artifact.String() })
	if len(list.Manifests) == n {
		return nil
	}
	raw, err := json.Marshal(list)
	if err != nil {
		return fmt.Errorf("encode referrers list: %w", err)
	}
	if err := remote.Put(tag, rawManifest{raw, string(d.MediaType)}, r.with(ctx)...); err != nil {
		return r.explain("update referrers list "+tag.TagStr(), err)
	}
	return nil
}

// explain says what a person can do about an error of the registry.
func (r *Remote) explain(what string, err error) error {
	host := r.repo.RegistryStr()
	var te *transport.Error
	var ne net.Error
	switch {
	case errors.Is(err, context.Canceled):
		return err
	case errors.As(err, &te) && te.StatusCode == http.StatusNotFound:
		return fmt.Errorf("%s of %s: %w", what, r.repo, errdefs.ErrNotFound)
	case errors.As(err, &te) && te.StatusCode == http.StatusUnauthorized:
		return fmt.Errorf("%s of %s: %w: %w (log in with: docker login %s)", what, r.repo, ErrUnauthorized, err, host)
	case errors.As(err, &te) && te.StatusCode == http.StatusForbidden:
		return fmt.Errorf("%s of %s: %w: %w (the account of the docker configuration may not do this)", what, r.repo, errdefs.ErrPermissionDenied, err)
	case errors.As(err, &te) && te.StatusCode == http.StatusMethodNotAllowed:
		return fmt.Errorf("%s of %s: %w: %w (the registry does not allow it)", what, r.repo, errdefs.ErrNotImplemented, err)
	case !errors.As(err, &te) && strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		return fmt.Errorf("%s: registry %s speaks plain HTTP, which has to be asked for: %w", what, host, err)
	case !errors.As(err, &te) && errors.As(err, &ne):
		return fmt.Errorf("%s: registry %s is not reachable: %w", what, host, err)
	}
	return fmt.Errorf("%s of %s: %w", what, r.repo, err)
}

// rawManifest is a manifest to push as it is.
type rawManifest struct {
	raw       []byte
	mediaType string
}

func (m rawManifest) RawManifest() ([]byte, error)        { return bytes.Clone(m.raw), nil }
func (m rawManifest) MediaType() (types.MediaType, error) { return types.MediaType(m.mediaType), nil }
