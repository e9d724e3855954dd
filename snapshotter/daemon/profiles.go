package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/opencontainers/go-digest"

	"github.com/firstlight-dev/firstlight/indexer/profile"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/profiles"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/store"
	"github.com/firstlight-dev/firstlight/snapshotter/nodeapi"
)

var _ nodeapi.ProfileSource = (*api)(nil)

// Profiles lists recordings that are on, then what is kept.
func (a *api) Profiles(ctx context.Context) ([]nodeapi.Profile, error) {
	images, err := a.store.Images(ctx)
	if err != nil {
		return nil, err
	}
	refs := make(map[digest.Digest]string, len(images))
	for _, im := range images {
		refs[im.Manifest] = im.Ref
	}
	var all []nodeapi.Profile
	for _, r := range a.profiles.Recordings() {
		all = append(all, nodeapi.Profile{Ref: r.Ref, Manifest: r.Manifest.String(), Command: r.Command, State: nodeapi.ProfileRecording, Layers: len(r.Layers)})
	}
	kept, err := a.profiles.List()
	if err != nil {
		return nil, err
	}
	for _, p := range kept {
		all = append(all, describe(refs[p.Manifest], p))
	}
	return all, nil
}

func describe(ref string, p *profile.Profile) nodeapi.Profile {
	return nodeapi.Profile{Ref: ref, Manifest: p.Manifest.String(), Command: p.Command, State: nodeapi.ProfileRecorded,
		Reason: p.Reason.String(), Layers: len(p.Layers), Parts: len(p.Parts), Bytes: p.Bytes()}
}

// ProfileBytes implements nodeapi.ProfileSource.
func (a *api) ProfileBytes(_ context.Context, manifest string) ([]byte, error) {
	d, err := digest.Parse(manifest)
	if err != nil {
		return nil, fmt.Errorf("manifest %q: %w: %w", manifest, nodeapi.ErrNotFound, err)
	}
	all, err := a.profiles.Find(d, nil)
	if err != nil {
		return nil, notFound(err)
	}
	return all[0].Encode()
}

// RemoveProfiles implements nodeapi.ProfileSource.
func (a *api) RemoveProfiles(_ context.Context, manifest string) error {
	d, err := digest.Parse(manifest)
	if err != nil {
		return fmt.Errorf("manifest %q: %w: %w", manifest, nodeapi.ErrNotFound, err)
	}
	n, err := a.profiles.Remove(d)
	if err == nil && n == 0 {
		err = fmt.Errorf("no profile of %s: %w", manifest, nodeapi.ErrNotFound)
	}
	return err
}

// Record implements nodeapi.ProfileSource.
func (a *api) Record(ctx context.Context, req nodeapi.ProfileRequest) (nodeapi.Profile, error) {
	images, err := a.store.Images(ctx)
	if err != nil {
		return nodeapi.Profile{}, err
	}
	i := slices.IndexFunc(images, func(im store.Image) bool { return im.Ref == req.Image || im.Manifest.String() == req.Image })
	if i < 0 {
		a.profiles.Want(req.Image)
		return nodeapi.Profile{Ref: req.Image, State: nodeapi.ProfileWanted}, nil
	}
	im := profiles.Image{Ref: images[i].Ref, Manifest: images[i].Manifest, Command: req.Command}
	for _, l := range images[i].Layers {
		im.Layers = append(im.Layers, l.Digest)
	}
	if _, err := a.profiles.Begin(im); err != nil {
		return nodeapi.Profile{}, notFound(err)
	}
	return nodeapi.Profile{Ref: im.Ref, Manifest: im.Manifest.String(), State: nodeapi.ProfileRecording, Layers: len(im.Layers)}, nil
}

// StopRecording implements nodeapi.ProfileSource.
func (a *api) StopRecording(_ context.Context, req nodeapi.ProfileRequest) (nodeapi.Profile, error) {
	reason := profile.Stopped
	if req.Usable {
		reason = profile.Usable
	}
	p, err := a.profiles.End(req.Image, reason, req.Command)
	if err != nil {
		return nodeapi.Profile{}, notFound(err)
	}
	return describe(req.Image, p), nil
}

// notFound gives an error the node API's meaning.
func notFound(err error) error {
	if errors.Is(err, profiles.ErrNotFound) {
		return fmt.Errorf("%w: %w", err, nodeapi.ErrNotFound)
	}
	return err
}
