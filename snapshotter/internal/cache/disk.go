package cache

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// disk is what a cache asks of a file system. Tests replace it by one that
// loses power.
type disk interface {
	MkdirAll(dir string) error
	// Open opens a data file, which it makes if there is none.
	Open(name string) (file, error)
	ReadFile(name string, limit int64) ([]byte, error)
	// WriteFile makes a file anew. When it returns, the content is durable; the
	// name is not before SyncDir.
	WriteFile(name string, b []byte) error
	// Rename replaces one file by another. A crash before SyncDir leaves either.
	Rename(from, to string) error
	SyncDir(dir string) error
	// Allocate makes a file that occupies n bytes.
	Allocate(name string, n int64) error
	Remove(name string) error
	RemoveAll(dir string) error
	// Space is what the files below a directory occupy; holes are free.
	Space(dir string) (int64, error)
	// Free is the space that is left to users of the file system.
	Free(dir string) (int64, error)
}

// file is an open data file.
type file interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	Stat() (fileInfo, error)
	Truncate(size int64) error
	// Sync makes what was written before durable.
	Sync() error
	// Punch gives the space of a range back. The range reads as zeros then.
	Punch(off, n int64) error
	// DataEnd is where the run of data that holds off ends; off in a hole.
	DataEnd(off int64) (int64, error)
	// Touch records when the file was last of use.
	Touch(t time.Time) error
}

type fileInfo struct {
	size, space int64 // space is what the file occupies
	used        time.Time
}

// isFull says that an error means a full disk, an exhausted quota or no more
// inodes.
func isFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// osDisk is the real one.
type osDisk struct{}

func (osDisk) MkdirAll(dir string) error                      { return os.MkdirAll(dir, 0o700) }
func (osDisk) Rename(from, to string) error                   { return os.Rename(from, to) }
func (osDisk) Remove(name string) error                       { return os.Remove(name) }
func (osDisk) RemoveAll(dir string) error                     { return os.RemoveAll(dir) }
func (osDisk) ReadFile(n string, limit int64) ([]byte, error) { return readLimited(n, limit) }

func (osDisk) Open(name string) (file, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

func readLimited(name string, limit int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, limit+1))
}

func (osDisk) WriteFile(name string, b []byte) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if _, err = f.Write(b); err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

func (osDisk) SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func (osDisk) Allocate(name string, n int64) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(unix.Fallocate(int(f.Fd()), 0, 0, n), f.Close())
}

func (osDisk) Free(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, fmt.Errorf("measure file system of %s: %w", dir, err)
	}
	return int64(st.Bavail) * st.Bsize, nil
}

type osFile struct{ *os.File }

func (f osFile) Stat() (fileInfo, error) {
	fi, err := f.File.Stat()
	if err != nil {
		return fileInfo{}, err
	}
	return fileInfo{fi.Size(), statBlocks(fi), fi.ModTime()}, nil
}

func statBlocks(fi fs.FileInfo) int64 {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return fi.Size()
	}
	return st.Blocks * 512
}

func (f osFile) Sync() error { return unix.Fdatasync(int(f.Fd())) }

func (f osFile) Punch(off, n int64) error {
	return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
}

func (f osFile) DataEnd(off int64) (int64, error) {
	p, err := unix.Seek(int(f.Fd()), off, unix.SEEK_HOLE)
	if errors.Is(err, unix.ENXIO) {
		return off, nil
	}
	if err != nil {
		return 0, fmt.Errorf("find data of %s: %w", f.Name(), err)
	}
	return p, nil
}

func (f osFile) Touch(t time.Time) error {
	return os.Chtimes(f.Name(), t, t)
}

func (osDisk) Space(dir string) (int64, error) {
	var n int64
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // removed meanwhile
		}
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		fi, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil {
			n += statBlocks(fi)
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("measure %s: %w", dir, err)
	}
	return n, nil
}
