package daemon

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// lockFile in a root is locked by the process that the root belongs to.
const lockFile = "lock"

// errRootInUse marks a root that belongs to another process.
var errRootInUse = errors.New("another snapshotter uses this root: stop it, or give this one a root of its own")

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
