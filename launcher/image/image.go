// Package image finds out what an image reference stands for: the digest it
// points to now, and the command, user and environment the image was built
// with. The launcher pins environments to the digest and puts its agent in
// front of the command, so a tag that moves meanwhile changes nothing.
package image

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/firstlight-dev/firstlight/launcher/cluster"
)

// Registry resolves references by asking their registries.
type Registry struct {
	// PlainHTTP lists registries (host:port) that are spoken to without TLS.
	PlainHTTP []string
	// Keychain gives credentials; nil means those of docker's configuration.
	Keychain authn.Keychain
	// Transport carries the requests; nil means the default one.
	Transport http.RoundTripper
}

// Resolve returns what the reference stands for on this machine's platform.
// The error of a registry that cannot be reached is retryable, that of an
// image that does not exist is not.
func (r *Registry) Resolve(ctx context.Context, reference string) (cluster.Image, error) {
	ref, err := r.parse(reference)
	if err != nil {
		return cluster.Image{}, cluster.Fail(cluster.CodeImage, "resolve image: %w", err)
	}
	options := []remote.Option{
		remote.WithContext(ctx),
		remote.WithPlatform(v1.Platform{OS: "linux", Architecture: runtime.GOARCH}),
		remote.WithAuthFromKeychain(r.keychain()),
	}
	if r.Transport != nil {
		options = append(options, remote.WithTransport(r.Transport))
	}
	desc, err := remote.Get(ref, options...)
	if err != nil {
		return cluster.Image{}, classify(reference, err)
	}
	img, err := desc.Image()
	if err != nil {
		return cluster.Image{}, classify(reference, err)
	}
	cfg, err := img.ConfigFile()
	if err != nil {
		return cluster.Image{}, classify(reference, err)
	}
	return cluster.Image{
		Reference: reference, Pinned: ref.Context().Name() + "@" + desc.Digest.String(),
		Entrypoint: cfg.Config.Entrypoint, Cmd: cfg.Config.Cmd, Env: cfg.Config.Env,
		User: cfg.Config.User, WorkingDir: cfg.Config.WorkingDir,
	}, nil
}

func (r *Registry) keychain() authn.Keychain {
	if r.Keychain != nil {
		return r.Keychain
	}
	return authn.DefaultKeychain
}

func (r *Registry) parse(reference string) (name.Reference, error) {
	ref, err := name.ParseReference(reference)
	if err != nil {
		return nil, err
	}
	for _, host := range r.PlainHTTP {
		if ref.Context().RegistryStr() == host {
			return name.ParseReference(reference, name.Insecure)
		}
	}
	return ref, nil
}

// classify tells errors that a retry may cure from those it cannot. The
// registry's own words are kept; they never hold credentials.
func classify(reference string, err error) *cluster.Error {
	out := &cluster.Error{Code: cluster.CodeImage, Retryable: true, Err: fmt.Errorf("resolve image %s: %w", reference, err)}
	var answer *transport.Error
	if errors.As(err, &answer) {
		switch answer.StatusCode {
		case http.StatusNotFound, http.StatusUnauthorized, http.StatusForbidden, http.StatusBadRequest:
			out.Retryable = false
		}
	}
	return out
}
