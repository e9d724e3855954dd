package snapshotter

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/storage"
	"github.com/containerd/continuity/fs"
	"github.com/containerd/errdefs"
)

// Snapshotter implements containerd's snapshots API over overlayfs.
type Snapshotter struct {
	root     string
	db       *storage.MetaStore
	supplier Supplier
	log      *slog.Logger
	overlay  []string // options of every overlay mount

	mu sync.Mutex
	// removing has the directories that Cleanup is at, with what ends then.
	removing map[string]chan struct{} // guarded by mu
}

var (
	_ snapshots.Snapshotter = (*Snapshotter)(nil)
	_ snapshots.Cleaner     = (*Snapshotter)(nil)
)

// Option changes what New makes.
type Option func(*Snapshotter)

// WithSupplier lets s supply the layers of remote images. Without it every
// snapshot is ordinary.
func WithSupplier(s Supplier) Option { return func(sn *Snapshotter) { sn.supplier = s } }

// WithLogger sets where the snapshotter reports. The default is nowhere.
func WithLogger(l *slog.Logger) Option { return func(sn *Snapshotter) { sn.log = l } }

// New opens the snapshotter whose state is under root, a directory that only
// this process may change.
func New(root string, opts ...Option) (*Snapshotter, error) {
	sn := &Snapshotter{root: root, log: slog.New(slog.DiscardHandler), removing: map[string]chan struct{}{}}
	for _, o := range opts {
		o(sn)
	}
	if err := os.MkdirAll(filepath.Join(root, "snapshots"), 0o700); err != nil {
		return nil, fmt.Errorf("create snapshots directory: %w", err)
	}
	switch ok, err := fs.SupportsDType(root); {
	case err != nil:
		return nil, fmt.Errorf("look at the file system of %s: %w", root, err)
	case !ok:
		return nil, fmt.Errorf("the file system of %s keeps no file types in directories (d_type), which overlayfs needs: reformat xfs with ftype=1", root)
	}
	// Lower layers are shared by many overlays, which the inode index forbids.
	if _, err := os.Stat("/sys/module/overlay/parameters/index"); err == nil {
		sn.overlay = append(sn.overlay, "index=off")
	}
	db, err := storage.NewMetaStore(filepath.Join(root, "metadata.db"))
	if err != nil {
		return nil, fmt.Errorf("open snapshot database: %w", err)
	}
	sn.db = db
	return sn, nil
}

// Stat returns what is recorded about the snapshot key.
func (sn *Snapshotter) Stat(ctx context.Context, key string) (info snapshots.Info, err error) {
	err = sn.db.WithTransaction(ctx, false, func(ctx context.Context) error {
		_, info, _, err = storage.GetInfo(ctx, key)
		return err
	})
	return info, err
}

// Update changes the labels of a snapshot.
func (sn *Snapshotter) Update(ctx context.Context, info snapshots.Info, fieldpaths ...string) (updated snapshots.Info, err error) {
	err = sn.db.WithTransaction(ctx, true, func(ctx context.Context) error {
		updated, err = storage.UpdateInfo(ctx, info, fieldpaths...)
		return err
	})
	return updated, err
}

// Usage returns the disk space of a snapshot. For a supplied one it is what the
// layer takes once complete: containerd reads a committed snapshot's usage once
// and keeps it, so a figure that grows would stay invisible.
func (sn *Snapshotter) Usage(ctx context.Context, key string) (snapshots.Usage, error) {
	var (
		usage snapshots.Usage
		info  snapshots.Info
		id    string
	)
	err := sn.db.WithTransaction(ctx, false, func(ctx context.Context) (err error) {
		id, info, usage, err = storage.GetInfo(ctx, key)
		return err
	})
	if err != nil {
		return snapshots.Usage{}, err
	}
	if info.Kind != snapshots.KindActive {
		return usage, nil
	}
	du, err := fs.DiskUsage(ctx, sn.treeDir(id))
	if err != nil {
		return snapshots.Usage{}, fmt.Errorf("measure snapshot %s: %w", key, err)
	}
	return snapshots.Usage(du), nil
}

// Walk calls fn for the snapshots that any of the filters matches.
func (sn *Snapshotter) Walk(ctx context.Context, fn snapshots.WalkFunc, filters ...string) error {
	return sn.db.WithTransaction(ctx, false, func(ctx context.Context) error {
		return storage.WalkInfo(ctx, fn, filters...)
	})
}

// Mounts returns the mounts of an active snapshot or a view.
func (sn *Snapshotter) Mounts(ctx context.Context, key string) ([]mount.Mount, error) {
	var s storage.Snapshot
	err := sn.db.WithTransaction(ctx, false, func(ctx context.Context) (err error) {
		s, err = storage.GetSnapshot(ctx, key)
		return err
	})
	if err != nil {
		return nil, err
	}
	return sn.mounts(s), nil
}

// mounts says how to mount s. A single layer is bound: overlayfs wants two.
func (sn *Snapshotter) mounts(s storage.Snapshot) []mount.Mount {
	bind := func(id, access string) []mount.Mount {
		return []mount.Mount{{Type: "bind", Source: sn.treeDir(id), Options: []string{access, "rbind"}}}
	}
	var options []string
	switch {
	case s.Kind == snapshots.KindActive && len(s.ParentIDs) == 0:
		return bind(s.ID, "rw")
	case s.Kind == snapshots.KindActive:
		options = append(options, "workdir="+sn.workDir(s.ID), "upperdir="+sn.treeDir(s.ID))
	case len(s.ParentIDs) == 0:
		return bind(s.ID, "ro")
	case len(s.ParentIDs) == 1:
		return bind(s.ParentIDs[0], "ro")
	}
	lower := "lowerdir="
	for i, dir := range sn.treeDirs(s.ParentIDs) {
		if i > 0 {
			lower += ":"
		}
		lower += dir
	}
	options = append(options, lower)
	return []mount.Mount{{Type: "overlay", Source: "overlay", Options: append(options, sn.overlay...)}}
}

// Check reads the whole database and returns how many of its snapshots were
// supplied. The error says so if it is damaged, which else only the first call that meets the
// damage would find.
func (sn *Snapshotter) Check(ctx context.Context) (supplied int, err error) {
	// The database is a memory map: damage shows as a panic, a file cut short as a fault.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("snapshot database is damaged: %v", p)
		}
	}()
	err = sn.Walk(ctx, func(_ context.Context, info snapshots.Info) error {
		if strings.HasPrefix(info.Name, suppliedPrefix) {
			supplied++
		}
		return nil
	})
	if errdefs.IsNotFound(err) {
		err = nil // there was no snapshot yet
	}
	return supplied, err
}

// Close closes the database. It may be called again.
func (sn *Snapshotter) Close() error { return sn.db.Close() }

func (sn *Snapshotter) dir(id string) string     { return filepath.Join(sn.root, "snapshots", id) }
func (sn *Snapshotter) treeDir(id string) string { return filepath.Join(sn.dir(id), "fs") }
func (sn *Snapshotter) workDir(id string) string { return filepath.Join(sn.dir(id), "work") }

func (sn *Snapshotter) treeDirs(ids []string) []string {
	dirs := make([]string, len(ids))
	for i, id := range ids {
		dirs[i] = sn.treeDir(id)
	}
	return dirs
}
