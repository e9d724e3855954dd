package layers

import (
	"context"
	"errors"
	"fmt"

	"github.com/moby/sys/mountinfo"
	"github.com/opencontainers/go-digest"

	"github.com/firstlight-dev/firstlight/indexer/tree"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/store"
)

// reopen opens the layers that snapshots show and forgets the others. A layer
// that cannot be opened is reported and left out.
func (s *Set) reopen(ctx context.Context) error {
	recs, err := s.Store.Layers(ctx)
	if err != nil {
		return err
	}
	sns, err := s.Store.Snapshots(ctx)
	if err != nil {
		return err
	}
	if err := errors.Join(s.sweep(recs), s.sweepIndexes(recs)); err != nil {
		s.Log.Warn("leftovers stay", "error", err)
	}
	shown := map[digest.Digest][]store.Snapshot{}
	for _, sn := range sns {
		if sn.Lazy {
			shown[sn.Layer] = append(shown[sn.Layer], sn)
		}
	}
	for _, rec := range recs {
		if len(shown[rec.Digest]) == 0 {
			if err := s.erase(ctx, rec.Digest); err != nil {
				s.Log.Warn("leftover of a layer stays", "layer", rec.Digest.String(), "error", err)
			}
			continue
		}
		s.entries[rec.Digest] = s.restore(ctx, rec, shown[rec.Digest])
	}
	return nil
}

// restore opens a layer that snapshots show. One that cannot be opened still has
// these uses, for when a pull brings it back.
func (s *Set) restore(ctx context.Context, rec store.Layer, sns []store.Snapshot) *entry {
	e := &entry{users: len(sns)}
	for _, sn := range sns {
		// Also when it was another session's: its containers may run on.
		e.held = e.held || Mode(sn.Mode) == EROFS && !sn.Served
	}
	l, err := s.open(ctx, rec, nil)
	if err != nil {
		s.Log.Error("layer cannot be served", "layer", rec.Digest.String(), "error", err)
		return e
	}
	e.layer = l
	if e.held {
		l.cached.Keep()
	}
	for _, sn := range sns {
		if err := s.reserve(l, sn); err != nil {
			s.Log.Error("snapshot cannot be served", "snapshot", sn.ID, "layer", rec.Digest.String(), "error", err)
		}
	}
	return e
}

// sweep removes what the cache has of layers that have no record.
func (s *Set) sweep(recs []store.Layer) error {
	ids, err := s.Cache.Layers()
	if err != nil {
		return err
	}
	known := make(map[digest.Digest]bool, len(recs))
	for _, rec := range recs {
		known[rec.Digest] = true
	}
	var errs []error
	for _, id := range ids {
		if !known[id] {
			errs = append(errs, s.Cache.Remove(id))
		}
	}
	return errors.Join(errs...)
}

// reserve serves the FUSE tree of a snapshot again.
func (s *Set) reserve(l *layer, sn store.Snapshot) error {
	if Mode(sn.Mode) != FUSE {
		return nil
	}
	t, err := s.rebuild(l, sn)
	if err != nil {
		return err
	}
	return s.Server.AddTree(sn.Number, t, l.lazy)
}

// rebuild makes a snapshot's tree again without looking at the layers below.
func (s *Set) rebuild(l *layer, sn store.Snapshot) (*tree.Tree, error) {
	t, err := tree.Build(l.index)
	if err != nil {
		return nil, fmt.Errorf("build tree of layer %s: %w", l.Digest, err)
	}
	inherited, err := readInherited(s.TreeDir(sn.ID))
	if err != nil {
		return nil, err
	}
	return stack(t, sn.Bottom, inherited), nil
}

// Remount mounts again what is not mounted from this session's FUSE mount: after
// a reboot or the keeper's death older mounts refer to something gone. The
// server must answer the kernel by now.
func (s *Set) Remount(ctx context.Context) error {
	sns, err := s.Store.Snapshots(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, sn := range sns {
		if !sn.Lazy {
			continue
		}
		if err := s.remount(ctx, sn); err != nil {
			errs = append(errs, fmt.Errorf("mount snapshot %s again: %w", sn.ID, err))
		}
	}
	return errors.Join(errs...)
}

func (s *Set) remount(ctx context.Context, sn store.Snapshot) error {
	dir := s.TreeDir(sn.ID)
	if sn.Session == s.Session {
		if mounted, err := mountinfo.Mounted(dir); err == nil && mounted {
			return nil
		}
	}
	if err := s.hide(sn, dir); err != nil {
		return err
	}
	s.mu.Lock()
	e := s.entries[sn.Layer]
	s.mu.Unlock()
	if e == nil {
		return fmt.Errorf("layer %s is not open", sn.Layer)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.layer == nil {
		return fmt.Errorf("layer %s is not open", sn.Layer)
	}
	t, err := s.rebuild(e.layer, sn)
	if err != nil {
		return err
	}
	// The mode may be another than before, after an upgrade of the kernel.
	sn.Mode, sn.Session = string(s.Mode), s.Session
	if err := s.show(e.layer, &sn, t, dir); err != nil {
		return err
	}
	return s.Store.PutSnapshot(ctx, sn)
}
