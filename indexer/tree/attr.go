package tree

import (
	"archive/tar"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/firstlight-dev/firstlight/indexer/index"
)

const (
	paxXattr        = "SCHILY.xattr."
	capabilityXattr = "security.capability"
)

// maxNodeXattrs bounds names and values of one node: what an EROFS inode can
// carry, with room for its headers.
const maxNodeXattrs = 128 << 10

// setAttributes gives a node what a header says of it. For a hard link that is
// the file it names.
func (b *Builder) setAttributes(row int, h *tar.Header) error {
	b.chown(row, h)
	n := &b.nodes[row]
	if !n.isDir() {
		n.Xattrs = slices.DeleteFunc(n.Xattrs, func(x Xattr) bool {
			return x.Name == capabilityXattr // the kernel drops it when the owner is set
		})
	}
	for key, value := range h.PAXRecords {
		name, ok := strings.CutPrefix(key, paxXattr)
		if !ok {
			continue
		}
		apply, err := checkXattr(n.Mode, name, value)
		if err != nil {
			return fmt.Errorf("xattr %.300q: %w", name, err)
		}
		if apply {
			if err := b.setXattr(row, name, value); err != nil {
				return err
			}
		}
	}
	if !n.isSymlink() {
		n.Mode = n.Mode&unix.S_IFMT | uint32(h.Mode)&0o7777
	}
	n.Mtime = mtime(h.ModTime)
	return nil
}

// chown sets the owner as lchown(2) does: 32 bits, all of them set means no change.
func (b *Builder) chown(row int, h *tar.Header) {
	n := &b.nodes[row]
	if id := uint32(h.Uid); id != math.MaxUint32 {
		n.UID = id
	}
	if id := uint32(h.Gid); id != math.MaxUint32 {
		n.GID = id
	}
}

// mtime is the time containerd sets: what does not fit 64 bits of nanoseconds
// since 1970 becomes 1970.
func mtime(t time.Time) int64 {
	if t.Before(time.Unix(0, 0)) || t.After(time.Unix(0, math.MaxInt64)) {
		return 0
	}
	return t.UnixNano()
}

// checkXattr says what setting an attribute on a file of that mode does: it
// is set, or passed over with a warning, or fails the extraction.
func checkXattr(mode uint32, name, value string) (apply bool, err error) {
	namespace, rest, _ := strings.Cut(name, ".")
	format := mode & unix.S_IFMT
	switch {
	case strings.HasPrefix(name, "trusted."):
		return false, nil
	case name == "" || len(name) > index.MaxXattrName || strings.IndexByte(name, 0) >= 0:
		return false, fmt.Errorf("a name of %d bytes", len(name))
	case len(value) > index.MaxXattrValue:
		return false, fmt.Errorf("a value of %d bytes", len(value))
	case namespace == "user" && strings.Contains(name, "."):
		if format != unix.S_IFREG && format != unix.S_IFDIR {
			return false, nil
		}
	case namespace == "security" && strings.Contains(name, "."):
		if name == capabilityXattr && !validCapability(value) {
			return false, errors.New("not a valid capability set")
		}
	case name == "system.posix_acl_access" || name == "system.posix_acl_default":
		// They change the mode, and not all file systems have them.
		return false, errors.New("access control lists are not supported")
	default:
		return false, nil
	}
	if rest == "" {
		return false, errors.New("a namespace without a name")
	}
	return true, nil
}

// validCapability checks what the kernel checks of a capability set: revision 2
// of 20 bytes, or 3 of 24 with a root user.
func validCapability(v string) bool {
	if len(v) < 4 {
		return false
	}
	switch revision := binary.LittleEndian.Uint32([]byte(v)) >> 24; {
	case revision == 2 && len(v) == 20:
		return true
	case revision == 3 && len(v) == 24:
		return binary.LittleEndian.Uint32([]byte(v)[20:]) != math.MaxUint32
	}
	return false
}

// setXattr sets an attribute, which replaces one of the same name.
func (b *Builder) setXattr(row int, name, value string) error {
	n := &b.nodes[row]
	if b.steps += len(n.Xattrs); b.steps > maxSteps {
		return errSteps
	}
	n.Xattrs = slices.DeleteFunc(n.Xattrs, func(x Xattr) bool { return x.Name == name })
	n.Xattrs = append(n.Xattrs, Xattr{strings.Clone(name), []byte(value)})
	size := 0
	for _, x := range n.Xattrs {
		size += len(x.Name) + len(x.Value)
	}
	if size > maxNodeXattrs {
		return fmt.Errorf("its xattrs have more than %d bytes", maxNodeXattrs)
	}
	return b.charge(len(name) + len(value))
}

// Finish sets the times of directories and returns the tree.
func (b *Builder) Finish() (*Tree, error) {
	for _, d := range b.dirs {
		where, err := b.resolve(d.name)
		row := Root
		if err == nil {
			row, err = b.lookup(where)
		}
		if err != nil {
			return nil, fmt.Errorf("%w: entry %.200q: set its time: %w", index.ErrUnsupported, d.name, err)
		}
		b.nodes[row].Mtime = d.mtime
	}
	return b.compact(), nil
}

// compact numbers the nodes that still have a name in the order they were made,
// which puts every directory before what it contains.
func (b *Builder) compact() *Tree {
	rows := make([]int, len(b.nodes)) // old to new, plus one; 0 is unreachable
	b.reach(rows)
	t := &Tree{Nodes: make([]Node, 0, len(b.nodes))}
	for old := range rows {
		if rows[old] != 0 {
			t.Nodes = append(t.Nodes, b.nodes[old].Node)
			rows[old] = len(t.Nodes)
		}
	}
	for old := range rows {
		if rows[old] == 0 {
			continue
		}
		n := &t.Nodes[rows[old]-1]
		for name, child := range b.nodes[old].children {
			n.Children = append(n.Children, Child{name, rows[child] - 1})
		}
		slices.SortFunc(n.Children, func(a, b Child) int { return strings.Compare(a.Name, b.Name) })
		slices.SortFunc(n.Xattrs, func(a, b Xattr) int { return cmp.Compare(a.Name, b.Name) })
	}
	t.count()
	return t
}

// reach marks the nodes that a name leads to.
func (b *Builder) reach(rows []int) {
	rows[Root] = 1
	for todo := []int{Root}; len(todo) > 0; {
		row := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, c := range b.nodes[row].children {
			if rows[c] == 0 {
				rows[c] = 1
				todo = append(todo, c)
			}
		}
	}
}

// count fills in link counts and the first name of each node.
func (t *Tree) count() {
	t.Nodes[Root].Nlink = 1
	for row := range t.Nodes {
		for _, c := range t.Nodes[row].Children {
			n := &t.Nodes[c.Row]
			if n.Name == "" {
				n.Parent, n.Name = row, c.Name
			}
			n.Nlink++
			if n.Mode&unix.S_IFMT == unix.S_IFDIR {
				t.Nodes[row].Nlink++
			}
		}
		if t.Nodes[row].Mode&unix.S_IFMT == unix.S_IFDIR {
			t.Nodes[row].Nlink++ // its own "."
		}
	}
}
