package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/dustin/go-humanize/english"
	bbolterrors "go.etcd.io/bbolt/errors"
	"golang.org/x/sys/unix"

	"github.com/firstlight-dev/firstlight/snapshotter"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/store"
)

// lockFile in a root is locked by the process that the root belongs to.
const lockFile = "lock"

// errRootInUse marks a root that belongs to another process.
var errRootInUse = errors.New("another snapshotter uses this root: stop it, or give this one a root of its own")

// openStore opens the layers' database and looks at the snapshots' too. It comes before anything
// is done about what they say: layers that no record knows are erased, and
// snapshots without their layers are empty directories.
func (w *worker) openStore(ctx context.Context) error {
	path := filepath.Join(w.cfg.Root, "layers.db")
	var err error
	if w.store, err = store.Open(path); err != nil {
		return w.damaged(path, err)
	}
	shown, err := w.store.Snapshots(ctx)
	if err != nil {
		return w.damaged(path, err)
	}
	sn, err := snapshotter.New(w.cfg.Root)
	if err != nil {
		return err
	}
	supplied, err := sn.Check(ctx)
	if err != nil {
		// Not closed: what a damaged database waits for may never end, this process will.
		return w.damaged(filepath.Join(w.cfg.Root, "metadata.db"), err)
	}
	if supplied > 0 && len(shown) == 0 {
		err = w.damaged(path, fmt.Errorf("it knows nothing of the layers of %s", english.Plural(supplied, "snapshot", "")))
	}
	return errors.Join(err, sn.Close())
}

// damaged says what to do about a database.
func (w *worker) damaged(path string, err error) error {
	if errors.Is(err, bbolterrors.ErrTimeout) || errors.Is(err, store.ErrVersion) {
		return err // in use, or of another version, but whole
	}
	return fmt.Errorf("%s: %w (restore it from a backup, or move %s away, restart, and remove and pull again the images of this snapshotter)", path, err, w.cfg.Root)
}

// lockRoot makes root this process's until it ends or calls release. It comes before
// anything else: a keeper begins by clearing away what the last one left mounted,
// which must not be what a running one has.
func lockRoot(root string) (release func() error, err error) {
	f, err := os.OpenFile(filepath.Join(root, lockFile), os.O_RDWR|os.O_CREATE|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock root: %w", err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = errRootInUse
	}
	if err != nil {
		_ = f.Close() // the first error counts
		return nil, fmt.Errorf("lock root %s: %w", root, err)
	}
	return f.Close, nil
}
