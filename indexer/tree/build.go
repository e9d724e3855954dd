package tree

import (
	"archive/tar"
	"errors"
	"fmt"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/firstlight-dev/firstlight/indexer/index"
)

const (
	whiteoutPrefix = ".wh."
	whiteoutOpaque = ".wh..wh..opq"
)

// maxStrings bounds the names, targets and xattrs of a tree together: some 256
// bytes for each of a million entries. The header stream they come from may be
// larger.
const maxStrings = 256 << 20

// maxSteps bounds the look-ups of path components, which long paths and chains
// of symbolic links can multiply. Ten million serve a million entries.
const maxSteps = 1 << 27

// maxImplied bounds the directories without an entry. One path of some kilobytes
// can name two thousand of them, each of which costs as much memory as an entry; layers made
// without directory entries have fewer of them than files.
const maxImplied = 1 << 18

// Builder applies the entries of one layer in order.
type Builder struct {
	nodes   []inode
	dirs    []dirTime // in order; they get their times at the end
	strings int
	steps   int
	implied int
}

// dirTime is the time a directory's entry gives it.
type dirTime struct {
	name  string
	mtime int64
}

// inode is a Node while the tree grows.
type inode struct {
	Node
	children map[string]int
}

// NewBuilder starts a tree: a root directory.
func NewBuilder() *Builder {
	b := &Builder{}
	b.nodes = append(b.nodes, inode{Node: Node{Mode: unix.S_IFDIR | 0o755, Implied: true}})
	return b
}

func (n *inode) isDir() bool     { return n.Mode&unix.S_IFMT == unix.S_IFDIR }
func (n *inode) isSymlink() bool { return n.Mode&unix.S_IFMT == unix.S_IFLNK }

// Add applies one entry. The error is ErrUnsupported if containerd would fail.
func (b *Builder) Add(e index.Entry) error {
	err := b.add(e)
	if err != nil {
		return fmt.Errorf("%w: entry %.200q: %w", index.ErrUnsupported, e.Header.Name, err)
	}
	return nil
}

func (b *Builder) add(e index.Entry) error {
	h := *e.Header
	if strings.IndexByte(h.Name, 0) >= 0 {
		return errors.New("its name has a NUL byte")
	}
	h.Name = path.Clean(h.Name)
	dir, base := path.Split(h.Name)
	where, err := b.resolve(dir)
	if err != nil {
		return fmt.Errorf("resolve its directory: %w", err)
	}
	if base == "" || base == "." || base == ".." {
		return nil // the root: not touched, whatever the entry says of it
	}
	if len(where)+len(base) > index.MaxPath {
		return fmt.Errorf("its path has more than %d bytes", index.MaxPath)
	}
	parent, err := b.makeParents(where)
	if err != nil {
		return err
	}
	if strings.HasPrefix(base, whiteoutPrefix) {
		return b.whiteout(parent, base, &h)
	}
	if len(base) > index.MaxName {
		return fmt.Errorf("its name has %d bytes, at most %d are allowed", len(base), index.MaxName)
	}
	return b.create(parent, base, &h, e.DataOffset)
}

// makeParents returns the row of a directory given by its resolved path and
// makes it and its parents where they are missing.
func (b *Builder) makeParents(where string) (int, error) {
	row := Root
	for name := range components(where) {
		b.steps++
		next, ok := b.nodes[row].children[name]
		switch {
		case !ok && len(name) > index.MaxName:
			return 0, fmt.Errorf("directory name %.300q has more than %d bytes", name, index.MaxName)
		case !ok:
			if b.implied++; b.implied > maxImplied {
				return 0, fmt.Errorf("the layer has more than %d directories without an entry", maxImplied)
			}
			var err error
			if next, err = b.link(row, name, Node{Mode: unix.S_IFDIR | 0o755, Implied: true, MadeAsParent: true}); err != nil {
				return 0, err
			}
		case !b.nodes[next].isDir():
			return 0, fmt.Errorf("its parent %.300q is not a directory", name)
		}
		row = next
	}
	return row, nil
}

// link makes a node under a name that is free. Like the kernel it takes the
// group of a set-group-ID directory.
func (b *Builder) link(parent int, name string, n Node) (int, error) {
	if p := &b.nodes[parent]; p.Mode&unix.S_ISGID != 0 {
		n.GID = p.GID
	}
	row := len(b.nodes)
	b.nodes = append(b.nodes, inode{Node: n})
	return row, b.name(parent, name, row)
}

// name adds a directory entry. The name is a copy: what archive/tar returns is cut
// from the header's records, and would keep all of them, up to a MiB an entry.
func (b *Builder) name(parent int, name string, row int) error {
	name = strings.Clone(name)
	p := &b.nodes[parent]
	if p.children == nil {
		p.children = make(map[string]int)
	}
	p.children[name] = row
	return b.charge(len(name))
}

func (b *Builder) charge(n int) error {
	if b.strings += n; b.strings > maxStrings {
		return fmt.Errorf("the layer's names and attributes have more than %d bytes", maxStrings)
	}
	return nil
}

// whiteout applies a ".wh." entry, whatever its type.
func (b *Builder) whiteout(parent int, base string, h *tar.Header) error {
	if base == whiteoutOpaque {
		// In an image's lowest layer containerd applies this mark by removing what
		// the layer did not name. It is rare enough not to guess where the layer lies.
		if b.hasImplied(parent) {
			return errors.New("it makes a directory opaque in which the layer has parents without entries")
		}
		b.nodes[parent].Opaque = true
		return b.setXattr(parent, OpaqueXattr, "y")
	}
	name := base[len(whiteoutPrefix):]
	switch {
	case name == "" || name == "." || name == "..":
		return errors.New("invalid whiteout name")
	case len(name) > index.MaxName:
		return fmt.Errorf("the name it deletes has more than %d bytes", index.MaxName)
	}
	if _, ok := b.nodes[parent].children[name]; ok {
		return errors.New("whiteout of a file that the same layer has")
	}
	row, err := b.link(parent, name, Node{Mode: unix.S_IFCHR, Whiteout: true})
	if err == nil {
		b.chown(row, h)
	}
	return err
}

// hasImplied reports whether there are implied directories below a directory.
func (b *Builder) hasImplied(row int) bool {
	for _, c := range b.nodes[row].children {
		b.steps++
		if n := &b.nodes[c]; n.isDir() && (n.Implied || b.hasImplied(c)) {
			return true
		}
	}
	return false
}

// create applies an ordinary entry.
func (b *Builder) create(parent int, name string, h *tar.Header, data int64) error {
	row, exists := b.nodes[parent].children[name]
	if exists && (h.Typeflag != tar.TypeDir || !b.nodes[row].isDir()) {
		delete(b.nodes[parent].children, name)
		exists = false
	}
	var n Node
	switch h.Typeflag {
	case tar.TypeXGlobalHeader:
		return nil
	case tar.TypeDir:
		if err := b.charge(len(h.Name)); err != nil {
			return err
		}
		b.dirs = append(b.dirs, dirTime{strings.Clone(h.Name), mtime(h.ModTime)})
		n.Mode = unix.S_IFDIR
	case tar.TypeReg, '\x00':
		n = Node{Mode: unix.S_IFREG, Size: h.Size, DataOffset: data}
	case tar.TypeSymlink:
		if h.Linkname == "" || len(h.Linkname) > index.MaxTarget || strings.IndexByte(h.Linkname, 0) >= 0 {
			return fmt.Errorf("symbolic link to an invalid target of %d bytes", len(h.Linkname))
		}
		n = Node{Mode: unix.S_IFLNK | 0o777, Target: strings.Clone(h.Linkname), Size: int64(len(h.Linkname))}
	case tar.TypeBlock, tar.TypeChar, tar.TypeFifo:
		var err error
		if n, err = device(h); err != nil {
			return err
		}
	case tar.TypeLink:
		target, err := b.hardLinkTarget(h.Linkname)
		if err != nil {
			return fmt.Errorf("hard link to %.200q: %w", h.Linkname, err)
		}
		if err := b.name(parent, name, target); err != nil {
			return err
		}
		return b.setAttributes(target, h)
	default:
		return fmt.Errorf("unknown entry type %q", h.Typeflag)
	}
	if !exists {
		var err error
		if row, err = b.link(parent, name, n); err != nil {
			return err
		}
		if err := b.charge(len(n.Target)); err != nil {
			return err
		}
	}
	b.nodes[row].Implied = false
	return b.setAttributes(row, h)
}

// device makes the node of a device or FIFO. The device number is cut to the
// bits that mknod(2) takes.
func device(h *tar.Header) (Node, error) {
	const most = 1<<32 - 1
	if h.Devmajor < 0 || h.Devmajor > most || h.Devminor < 0 || h.Devminor > most {
		return Node{}, fmt.Errorf("device number %d:%d is out of range", h.Devmajor, h.Devminor)
	}
	rdev := uint32(unix.Mkdev(uint32(h.Devmajor), uint32(h.Devminor)))
	switch h.Typeflag {
	case tar.TypeBlock:
		return Node{Mode: unix.S_IFBLK, Rdev: rdev}, nil
	case tar.TypeChar:
		return Node{Mode: unix.S_IFCHR, Rdev: rdev}, nil
	default:
		return Node{Mode: unix.S_IFIFO}, nil
	}
}

// hardLinkTarget finds what a hard link names: symbolic links are followed in
// its directory, not in its last component.
func (b *Builder) hardLinkTarget(name string) (int, error) {
	dir, base := path.Split(name)
	where, err := b.resolve(dir)
	if err != nil {
		return 0, err
	}
	row, err := b.lookup(path.Join(where, base))
	switch {
	case errors.Is(err, errMissing):
		return 0, errors.New("this layer has no such file before it")
	case err != nil:
		return 0, err
	case b.nodes[row].isDir():
		return 0, errors.New("it names a directory")
	case b.nodes[row].Whiteout:
		return 0, errors.New("it names a whiteout")
	}
	return row, nil
}
