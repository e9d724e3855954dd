package snapshotter

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/storage"
	"github.com/containerd/continuity/fs"
	"github.com/containerd/errdefs"
)

// Prepare makes an active snapshot. For a layer that the supplier has it makes
// a committed one instead and returns ErrAlreadyExists.
func (sn *Snapshotter) Prepare(ctx context.Context, key, parent string, opts ...snapshots.Opt) ([]mount.Mount, error) {
	supplied, err := sn.prepareSupplied(ctx, key, parent, opts)
	switch {
	case supplied:
		return nil, fmt.Errorf("layer of %q is there: %w", key, errdefs.ErrAlreadyExists)
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.Is(err, ErrOrdinary):
		sn.log.DebugContext(ctx, "containerd pulls the layer", "key", key, "reason", err)
	case err != nil:
		sn.log.WarnContext(ctx, "layer not supplied, containerd pulls it", "key", key, "error", err)
	}
	s, err := sn.create(ctx, snapshots.KindActive, key, parent, opts)
	if err != nil {
		return nil, err
	}
	return sn.mounts(s), nil
}

// View makes a read-only snapshot of a committed one.
func (sn *Snapshotter) View(ctx context.Context, key, parent string, opts ...snapshots.Opt) ([]mount.Mount, error) {
	s, err := sn.create(ctx, snapshots.KindView, key, parent, opts)
	if err != nil {
		return nil, err
	}
	return sn.mounts(s), nil
}

// create records a snapshot and makes its directory. The directory gets its
// final name before the record is durable, so that no record lacks one.
func (sn *Snapshotter) create(ctx context.Context, kind snapshots.Kind, key, parent string, opts []snapshots.Opt) (s storage.Snapshot, err error) {
	err = sn.db.WithTransaction(ctx, true, func(ctx context.Context) error {
		s, err = storage.CreateSnapshot(ctx, kind, key, parent, opts...)
		if err != nil {
			return err
		}
		// A directory of this number can only be what an aborted transaction left,
		// or a killed process. Cleanup may be at it.
		if err := sn.waitRemoved(ctx, s.ID); err != nil {
			return err
		}
		if err := os.RemoveAll(sn.dir(s.ID)); err != nil {
			return fmt.Errorf("remove leftover of snapshot %s: %w", s.ID, err)
		}
		// Removed here or, if the transaction fails at its end, by Cleanup: after it
		// the number may be another snapshot's.
		if err := sn.makeDirs(s); err != nil {
			return errors.Join(err, os.RemoveAll(sn.dir(s.ID)))
		}
		return nil
	})
	return s, err
}

func (sn *Snapshotter) makeDirs(s storage.Snapshot) error {
	if err := os.Mkdir(sn.dir(s.ID), 0o700); err != nil {
		return fmt.Errorf("create directory of snapshot %s: %w", s.ID, err)
	}
	tree := sn.treeDir(s.ID)
	if err := os.Mkdir(tree, 0o755); err != nil {
		return fmt.Errorf("create tree of snapshot %s: %w", s.ID, err)
	}
	if s.Kind != snapshots.KindActive {
		return nil
	}
	// The root directory of an overlay is the upper one's: mode and owner must
	// not depend on our umask, and the owner is the parent's.
	if err := os.Chmod(tree, 0o755); err != nil {
		return fmt.Errorf("set mode of snapshot %s: %w", s.ID, err)
	}
	if len(s.ParentIDs) > 0 {
		st, err := os.Stat(sn.treeDir(s.ParentIDs[0]))
		if err != nil {
			return fmt.Errorf("look at parent of snapshot %s: %w", s.ID, err)
		}
		if sys, ok := st.Sys().(*syscall.Stat_t); ok {
			if err := os.Lchown(tree, int(sys.Uid), int(sys.Gid)); err != nil {
				return fmt.Errorf("set owner of snapshot %s: %w", s.ID, err)
			}
		}
	}
	if err := os.Mkdir(sn.workDir(s.ID), 0o711); err != nil {
		return fmt.Errorf("create work directory of snapshot %s: %w", s.ID, err)
	}
	return nil
}

// Commit turns the active snapshot key into the committed one called name.
func (sn *Snapshotter) Commit(ctx context.Context, name, key string, opts ...snapshots.Opt) error {
	var id string
	err := sn.db.WithTransaction(ctx, false, func(ctx context.Context) (err error) {
		id, _, _, err = storage.GetInfo(ctx, key)
		return err
	})
	if err != nil {
		return err
	}
	// Measured outside the transaction: a large tree takes seconds.
	usage, err := fs.DiskUsage(ctx, sn.treeDir(id))
	if err != nil {
		return fmt.Errorf("measure snapshot %s: %w", key, err)
	}
	return sn.db.WithTransaction(ctx, true, func(ctx context.Context) error {
		_, err := storage.CommitActive(ctx, key, name, snapshots.Usage(usage), opts...)
		return err
	})
}

// Remove forgets a snapshot. Its directory stays until Cleanup, so that
// containerd, which holds a lock meanwhile, need not wait for the deletion.
func (sn *Snapshotter) Remove(ctx context.Context, key string) error {
	return sn.db.WithTransaction(ctx, true, func(ctx context.Context) error {
		_, _, err := storage.Remove(ctx, key)
		return err
	})
}

// Cleanup deletes what removed and abandoned snapshots left on disk. One
// directory that cannot be deleted does not keep the others.
func (sn *Snapshotter) Cleanup(ctx context.Context) error {
	ids, err := sn.garbage(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, id := range ids {
		errs = append(errs, sn.removeDir(ctx, id))
		sn.removed(id)
	}
	return errors.Join(errs...)
}

func (sn *Snapshotter) removeDir(ctx context.Context, id string) error {
	if sn.supplier != nil {
		if err := sn.supplier.Withdraw(ctx, id, sn.treeDir(id)); err != nil {
			return fmt.Errorf("withdraw layer of snapshot %s: %w", id, err)
		}
	}
	if err := os.RemoveAll(sn.dir(id)); err != nil {
		return fmt.Errorf("remove snapshot %s: %w", id, err)
	}
	return nil
}

// garbage lists the directories without a record and marks them as being
// removed. The write transaction keeps create from making one meanwhile.
func (sn *Snapshotter) garbage(ctx context.Context) (ids []string, err error) {
	err = sn.db.WithTransaction(ctx, true, func(ctx context.Context) error {
		known, err := storage.IDMap(ctx)
		if err != nil && !errdefs.IsNotFound(err) { // not found: there was no snapshot yet
			return err
		}
		entries, err := os.ReadDir(filepath.Join(sn.root, "snapshots"))
		if err != nil {
			return fmt.Errorf("list snapshots: %w", err)
		}
		for _, e := range entries {
			if _, ok := known[e.Name()]; !ok && sn.remove(e.Name()) {
				ids = append(ids, e.Name())
			}
		}
		return nil
	})
	if err != nil {
		for _, id := range ids {
			sn.removed(id)
		}
		return nil, err
	}
	return ids, nil
}

// remove marks a directory as being removed, unless it is already.
func (sn *Snapshotter) remove(id string) bool {
	sn.mu.Lock()
	defer sn.mu.Unlock()
	if sn.removing[id] != nil {
		return false
	}
	sn.removing[id] = make(chan struct{})
	return true
}

// removed takes the mark away.
func (sn *Snapshotter) removed(id string) {
	sn.mu.Lock()
	defer sn.mu.Unlock()
	close(sn.removing[id])
	delete(sn.removing, id)
}

// waitRemoved waits while a directory is being removed.
func (sn *Snapshotter) waitRemoved(ctx context.Context, id string) error {
	sn.mu.Lock()
	done := sn.removing[id]
	sn.mu.Unlock()
	if done == nil {
		return nil
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-done:
		return nil
	}
}
