package supply

import (
	"context"
	"errors"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/firstlight-dev/firstlight/indexer/profile"
	"github.com/firstlight-dev/firstlight/indexer/referrer"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/layers"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/profiles"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/replay"
)

const (
	// profileTimeout bounds the search for a profile in the registry: later it
	// would come after what it is for.
	profileTimeout = 15 * time.Second
	// replayTimeout bounds a replay, during which the background stands still.
	replayTimeout = 5 * time.Minute
)

// profile replays what an earlier start of the plan's image read, or records
// what this one reads. It returns at once; nothing waits for it or fails by it.
func (s *Service) profile(ctx context.Context, p *plan, repo Repository, set *referrer.Set) {
	if s.Profiles == nil {
		return
	}
	// A replay outlives its plan if all layers were placed, and ends with it
	// otherwise.
	own, cancel := context.WithCancel(s.background(p.key.namespace))
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-p.done:
		default:
			cancel()
		}
	})
	s.work.Go(func() {
		defer cancel()
		defer stop()
		s.steer(own, p, repo, set.Others)
	})
}

// steer records or replays, once it is known which.
func (s *Service) steer(ctx context.Context, p *plan, repo Repository, list []ocispec.Descriptor) {
	handles := p.share()
	defer func() {
		for _, h := range handles {
			if err := h.Release(context.WithoutCancel(ctx)); err != nil {
				s.Log.Warn("release layer after replay", "error", err)
			}
		}
	}()
	select {
	case <-ctx.Done():
		return
	case <-p.decided:
	}
	if p.err != nil {
		return // containerd pulls the image
	}
	asked := s.Profiles.Wanted(p.key.ref, p.key.manifest)
	pr := s.ownProfile(p)
	var recording *profiles.Recording
	if asked || s.Profiles.Record && pr == nil {
		// Before the registry is asked: what is read meanwhile belongs to it.
		recording = s.record(p, handles)
	}
	if asked || !s.Profiles.Replay && !s.Profiles.Record {
		return
	}
	if pr == nil {
		if pr = s.findProfile(ctx, p, repo, list); pr == nil {
			return
		}
		if recording != nil {
			recording.Discard("the registry has a profile")
		}
	}
	if s.Profiles.Replay {
		s.replay(ctx, p, pr, handles)
	}
}

// record begins to record the start of the plan's image.
func (s *Service) record(p *plan, handles map[digest.Digest]*layers.Handle) *profiles.Recording {
	im := profiles.Image{Ref: p.key.ref, Manifest: p.key.manifest, Command: p.image.Command}
	for d := range handles {
		im.Layers = append(im.Layers, d)
	}
	r, err := s.Profiles.Begin(im)
	if err != nil {
		s.Log.Warn("start is not recorded", "image", p.key.ref, "error", err)
	}
	return r
}

// share takes a use of each lazy layer, also of those that were here before.
// Layers that are pulled in full are not waited for.
func (p *plan) share() map[digest.Digest]*layers.Handle {
	handles := map[digest.Digest]*layers.Handle{}
	for i := range p.image.Layers {
		if l := p.layers[i]; l != nil {
			<-l.opened
		}
		d := p.image.Layers[i].Digest
		if handles[d] != nil {
			continue
		}
		if h, ok := p.service.Layers.Join(d); ok {
			handles[d] = h
		}
	}
	return handles
}

// ownProfile returns this node's profile of the plan's image, best that of the
// image's own command.
func (s *Service) ownProfile(p *plan) *profile.Profile {
	own, err := s.Profiles.Find(p.key.manifest, p.image.Command)
	switch {
	case err == nil:
		return own[0]
	case !errors.Is(err, profiles.ErrNotFound):
		s.Log.Warn("profiles of this node are of no use", "image", p.key.ref, "error", err)
	}
	return nil
}

// findProfile returns a profile from the registry, best that of the image's own
// command.
func (s *Service) findProfile(ctx context.Context, p *plan, repo Repository, list []ocispec.Descriptor) *profile.Profile {
	ctx, cancel := context.WithTimeout(ctx, profileTimeout)
	defer cancel()
	remote, err := referrer.Profiles(ctx, repo, p.key.manifest, list)
	if err != nil {
		s.Log.Warn("look for a profile", "image", p.key.ref, "error", err)
		return nil
	}
	key := profile.Key(p.image.Command)
	var other *profile.Profile
	for _, r := range remote {
		if other != nil && r.Command != key {
			continue
		}
		pr, err := r.Load(ctx, repo, p.key.manifest)
		if err != nil {
			s.Log.Warn("profile in the registry is of no use", "image", p.key.ref, "artifact", r.Artifact.Digest.String(), "error", err)
			continue
		}
		if profile.Key(pr.Command) == key {
			return pr
		}
		other = pr
	}
	return other
}

func (s *Service) replay(ctx context.Context, p *plan, pr *profile.Profile, handles map[digest.Digest]*layers.Handle) {
	ctx, cancel := context.WithTimeout(ctx, replayTimeout)
	defer cancel()
	targets := make(map[digest.Digest]replay.Layer, len(handles))
	for d, h := range handles {
		targets[d] = h.Lazy()
	}
	began := time.Now()
	s.Profiles.SetState(p.key.manifest, profiles.StateReplaying)
	done := s.Layers.Replay()
	res := replay.Run(ctx, pr, targets)
	done()
	s.Profiles.SetState(p.key.manifest, profiles.StateReplayed)
	attrs := []any{"image", p.key.ref, "requests", res.Requests, "bytes", res.Bytes, "left_out", res.LeftOut, "took", time.Since(began).String()}
	if res.Err != nil {
		s.Log.Warn("profile replayed in part", append(attrs, "error", res.Err)...)
		return
	}
	s.Log.Info("profile replayed", attrs...)
}
