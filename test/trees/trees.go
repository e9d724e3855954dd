// Package trees reads and compares file trees, in everything that a program
// inside a container could notice.
package trees

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/containerd/continuity/sysx"
	"golang.org/x/sys/unix"
)

// Tree is a file tree by path, "/" being its root.
type Tree map[string]Entry

// Entry is one name in a tree.
type Entry struct {
	Mode     uint32 // as in stat(2), type included
	UID, GID uint32
	Mtime    int64  // nanoseconds; 0 where the caller asked to leave it out
	Nlink    uint64 // 0 for directories, whose count file systems define freely
	Link     string // the first path of the same inode, for all but directories
	Rdev     uint64
	Size     int64 // 0 for directories
	Target   string
	Xattrs   map[string]string
	SHA256   string // of a regular file
}

// Options say what to leave out.
type Options struct {
	// IgnoreMtime names directories whose time nobody can predict: the root, and
	// those that a layer implies. A whiteout's never counts.
	IgnoreMtime map[string]bool
	// IgnoreXattr leaves out an attribute.
	IgnoreXattr func(name string) bool
}

// Read reads the tree at root.
func Read(root string, o Options) (Tree, error) {
	r := reader{Options: o, root: root, tree: Tree{}, first: map[inode]string{}}
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return r.add(path)
	})
	return r.tree, err
}

type inode struct{ dev, ino uint64 }

type reader struct {
	Options
	root  string
	tree  Tree
	first map[inode]string
}

func (r *reader) add(path string) error {
	rel, err := filepath.Rel(r.root, path)
	if err != nil {
		return err
	}
	name := filepath.Join("/", rel)
	st, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		// overlayfs lists a whiteout in a directory that only one layer has, but
		// does not find it.
		r.tree[name] = Entry{}
		return nil
	}
	if err != nil {
		return err
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("%s: no system attributes", path)
	}
	e := Entry{Mode: sys.Mode, UID: sys.Uid, GID: sys.Gid, Mtime: sys.Mtim.Nano()}
	whiteout := sys.Mode&unix.S_IFMT == unix.S_IFCHR && sys.Rdev == 0
	if r.IgnoreMtime[name] || whiteout {
		e.Mtime = 0
	}
	if !st.IsDir() {
		e.Nlink, e.Size, e.Rdev = sys.Nlink, sys.Size, sys.Rdev
		id := inode{sys.Dev, sys.Ino}
		if r.first[id] == "" {
			r.first[id] = name
		}
		e.Link = r.first[id]
	}
	switch sys.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		e.Target, err = os.Readlink(path)
	case unix.S_IFREG:
		e.SHA256, err = sum(path)
	}
	if err != nil {
		return err
	}
	if e.Xattrs, err = r.xattrs(path); err != nil {
		return err
	}
	r.tree[name] = e
	return nil
}

func sum(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("read %s: %w", path, err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

func (r *reader) xattrs(path string) (map[string]string, error) {
	names, err := sysx.LListxattr(path)
	if errors.Is(err, unix.ENOTSUP) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list attributes of %s: %w", path, err)
	}
	var xattrs map[string]string
	for _, name := range names {
		if r.IgnoreXattr != nil && r.IgnoreXattr(name) {
			continue
		}
		value, err := sysx.LGetxattr(path, name)
		if err != nil {
			return nil, fmt.Errorf("read attribute %s of %s: %w", name, path, err)
		}
		if xattrs == nil {
			xattrs = map[string]string{}
		}
		xattrs[name] = string(value)
	}
	return xattrs, nil
}
