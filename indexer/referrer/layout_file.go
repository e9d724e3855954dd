package referrer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// lockTimeout bounds the wait for another process that edits a folder: longer
	// than writing the largest artifact takes.
	lockTimeout = time.Minute
	lockRetry   = 20 * time.Millisecond
)

// errLocked is the reason why a wait for a lock ended.
var errLocked = fmt.Errorf("another process has had it locked for %s", lockTimeout)

// lockDir makes the caller the only one, of those that use it, to edit a folder.
func lockDir(ctx context.Context, dir string) (unlock func(), err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, lockTimeout, errLocked)
	defer cancel()
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return func() { _ = f.Close() }, nil // which unlocks it
		case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOLCK):
			return func() { _ = f.Close() }, nil // a file system without locks
		case !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR):
			_ = f.Close()
			return nil, err
		}
		select {
		case <-ctx.Done():
			_ = f.Close()
			return nil, context.Cause(ctx)
		case <-time.After(lockRetry):
		}
	}
}

// openFile opens a regular file. A folder is somebody else's work: opening a FIFO
// in it would wait for a writer, with a signal no way out.
func openFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file", path)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// readFile reads a file of at most limit bytes.
func readFile(path string, limit int64) ([]byte, error) {
	f, err := openFile(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("%s has more than %d bytes", path, limit)
	}
	return b, err
}

// writeFile puts a whole file in place, or nothing.
func writeFile(path string, b []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".firstlight-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(b)
	err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close())
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
