// Package tree resolves the entries of one layer to the file tree containerd's
// differ makes of them when it extracts the layer into an overlay directory.
//
// # Vocabulary
//
// A row is a Node's place in Tree.Nodes. Rows depend on the layer alone, so
// they can serve as inode numbers, the same in every process and on every
// node. Row 0 is the root. A node is an inode: a hard-linked file is one
// node, and several directory entries (Children) name it.
//
// # The rules
//
// They are those of containerd 2.4.2, read in its source and checked against
// it by this package's tests: names are cleaned and entries that resolve to the
// root ignored; parents are resolved through symbolic links of the same layer;
// a later entry replaces an earlier one except a directory a directory;
// missing parents appear with mode 0755; ".wh.X" makes X a character device
// 0/0 and ".wh..wh..opq" its directory opaque; of the PAX records only
// SCHILY.xattr.* counts, and of these not trusted.*. What containerd refuses,
// Build refuses, with index.ErrUnsupported.
//
// # What depends on other layers
//
// An implied directory (Node.Implied; the root is one too) takes owner, mode and
// xattrs of the lower layers' directory at that path, if there is one. Its time,
// and that of a whiteout, is the time of extraction for containerd; here 1970. In the lowest layer
// of an image, which containerd does not extract as an overlay directory,
// whiteouts and opaque marks make nothing (Node.Whiteout, Node.Opaque). Both
// are left to whoever stacks the layers.
package tree

import (
	"github.com/firstlight-dev/firstlight/indexer/index"
)

// Root is the row of the root directory.
const Root = 0

// OpaqueXattr marks a directory that hides the lower layers' one.
const OpaqueXattr = "trusted.overlay.opaque"

// Tree is the file tree of one layer. It is immutable.
type Tree struct {
	Nodes []Node
}

// Node is an inode.
type Node struct {
	Mode       uint32 // file type and permissions as in stat(2): S_IFDIR|0755
	UID, GID   uint32
	Mtime      int64  // nanoseconds since 1970
	Rdev       uint32 // devices: the kernel's encoding, as in stat(2)
	Nlink      uint32
	Size       int64  // regular files: bytes; symbolic links: length of the target
	DataOffset int64  // regular files: where the content is in the tar stream
	Target     string // symbolic links
	Xattrs     []Xattr
	Children   []Child // directories, sorted by name

	Parent   int    // row of the first directory that names it
	Name     string // its first name there
	Implied  bool   // a directory the layer does not name: see the package comment
	Whiteout bool   // made by a ".wh." entry
	Opaque   bool   // a directory with OpaqueXattr, which Xattrs has too
	// MadeAsParent says that the directory was implied before the layer named it,
	// if it ever did. The xattrs of the lower layers' directory then stay, below
	// its own.
	MadeAsParent bool
}

// Child is a directory entry.
type Child struct {
	Name string
	Row  int
}

// Xattr is an extended attribute. A node's are sorted by name.
type Xattr struct {
	Name  string
	Value []byte
}

// Build resolves the entries of a layer.
func Build(x *index.Index) (*Tree, error) {
	b := NewBuilder()
	if err := x.WalkEntries(b.Add); err != nil {
		return nil, err
	}
	return b.Finish()
}
