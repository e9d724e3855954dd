// Package inherit finds what a directory without an entry of its own takes from the
// layers below: containerd gives a directory that a layer implies (a/b without an
// entry for a) the owner, mode and extended attributes it has in the nearest layer
// below.
package inherit

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"

	continuity "github.com/containerd/continuity/fs"
	"github.com/containerd/continuity/sysx"
	"golang.org/x/sys/unix"
)

// Attributes are what a directory without an entry takes from the layer below.
type Attributes struct {
	Mode   uint32            `json:"mode"` // the lower 12 bits of stat(2)'s
	UID    uint32            `json:"uid"`
	GID    uint32            `json:"gid"`
	Xattrs map[string][]byte `json:"xattrs,omitempty"`
}

// From returns what the directory rel takes from the nearest of the lower
// trees that has it, or nil where none has or something else is in its place.
func From(lowers []string, rel string) (*Attributes, error) {
	for _, lower := range lowers {
		path, err := continuity.RootPath(lower, rel)
		if err != nil {
			return nil, fmt.Errorf("resolve %s below %s: %w", rel, lower, err)
		}
		st, err := os.Lstat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return nil, fmt.Errorf("look at directory below: %w", err)
		case !st.IsDir():
			return nil, nil
		}
		return attributes(path, st)
	}
	return nil, nil
}

func attributes(path string, st fs.FileInfo) (*Attributes, error) {
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return nil, fmt.Errorf("look at %s: no system attributes", path)
	}
	a := &Attributes{
		Mode:   sys.Mode & 0o7777,
		UID:    sys.Uid,
		GID:    sys.Gid,
		Xattrs: map[string][]byte{},
	}
	names, err := sysx.LListxattr(path)
	if err != nil && !errors.Is(err, unix.ENOTSUP) {
		return nil, fmt.Errorf("list attributes of %s: %w", path, err)
	}
	for _, name := range names {
		// Those belong to overlayfs: an opaque directory below is no reason for
		// one above.
		if strings.HasPrefix(name, "trusted.") {
			continue
		}
		value, err := sysx.LGetxattr(path, name)
		if errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.ENODATA) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read attribute %s of %s: %w", name, path, err)
		}
		a.Xattrs[name] = value
	}
	return a, nil
}

// Apply gives a to the directory at path and keeps its times.
func (a *Attributes) Apply(path string) error {
	st, err := os.Lstat(path)
	if err != nil {
		return fmt.Errorf("look at directory: %w", err)
	}
	if err := os.Lchown(path, int(a.UID), int(a.GID)); err != nil {
		return fmt.Errorf("set owner: %w", err)
	}
	if err := unix.Chmod(path, a.Mode); err != nil {
		return fmt.Errorf("set mode: %w", err)
	}
	if err := a.ApplyXattrs(path); err != nil {
		return err
	}
	return os.Chtimes(path, st.ModTime(), st.ModTime())
}

// ApplyXattrs adds the attributes the directory does not have.
func (a *Attributes) ApplyXattrs(path string) error {
	for name, value := range a.Xattrs {
		err := unix.Lsetxattr(path, name, value, unix.XATTR_CREATE)
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("set attribute %s of %s: %w", name, path, err)
		}
	}
	return nil
}
