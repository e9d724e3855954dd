package erofs

import (
	"encoding/binary"
	"sort"

	"golang.org/x/sys/unix"

	"github.com/firstlight-dev/firstlight/indexer/tree"
)

// A directory is a row of blocks, each with its entries first, 12 bytes each,
// and their names after them. All entries are in the order of their names'
// bytes, "." and ".." among them.

// dirents returns a directory's entries in order.
func dirents(t *tree.Tree, row int) []tree.Child {
	n := &t.Nodes[row]
	all := make([]tree.Child, 0, len(n.Children)+2)
	all = append(all, tree.Child{Name: ".", Row: row}, tree.Child{Name: "..", Row: n.Parent})
	all = append(all, n.Children...)
	// Children are sorted; the two dots belong before most names, not all.
	sort.Slice(all, func(i, j int) bool { return all[i].Name < all[j].Name })
	return all
}

// split returns how many entries from first on fit into a block, and how many
// bytes they take there.
func split(all []tree.Child, first int) (n, used int) {
	for i := first; i < len(all); i++ {
		need := direntSize + len(all[i].Name)
		if used+need > blockSize {
			break
		}
		used += need
		n++
	}
	return n, used
}

// directorySize is the size of a directory's data: the last block counts only
// as far as it is used.
func directorySize(n *tree.Node) int64 {
	all := make([]tree.Child, 0, len(n.Children)+2)
	all = append(all, tree.Child{Name: "."}, tree.Child{Name: ".."})
	all = append(all, n.Children...)
	sort.Slice(all, func(i, j int) bool { return all[i].Name < all[j].Name })
	var size int64
	for first := 0; first < len(all); {
		k, used := split(all, first)
		first += k
		if first < len(all) {
			used = blockSize
		}
		size += int64(used)
	}
	return size
}

func (im *image) directory(row int) []byte {
	all := dirents(im.tree, row)
	le := binary.LittleEndian
	var b []byte
	for first := 0; first < len(all); {
		k, _ := split(all, first)
		name := k * direntSize
		for _, c := range all[first : first+k] {
			b = le.AppendUint64(b, uint64(im.nid(c.Row)))
			b = le.AppendUint16(b, uint16(name))
			b = append(b, fileType(im.tree.Nodes[c.Row].Mode), 0)
			name += len(c.Name)
		}
		for _, c := range all[first : first+k] {
			b = append(b, c.Name...)
		}
		if first += k; first < len(all) {
			b = append(b, make([]byte, blockSize-name)...)
		}
	}
	return b
}

func fileType(mode uint32) byte {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return 1
	case unix.S_IFDIR:
		return 2
	case unix.S_IFCHR:
		return 3
	case unix.S_IFBLK:
		return 4
	case unix.S_IFIFO:
		return 5
	case unix.S_IFSOCK:
		return 6
	case unix.S_IFLNK:
		return 7
	}
	return 0
}
