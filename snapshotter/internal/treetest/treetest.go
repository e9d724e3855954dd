// Package treetest makes trees for tests of what serves them, and compares a
// mounted tree with what it was made from, by what a program can see.
package treetest

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/firstlight-dev/firstlight/indexer/tree"
)

// Builder makes trees and the device that holds their files.
type Builder struct {
	Tree   tree.Tree
	Device []byte
}

// New starts with a root directory.
func New() *Builder {
	b := &Builder{Device: make([]byte, 512)}
	b.Tree.Nodes = []tree.Node{{Mode: unix.S_IFDIR | 0o755, Nlink: 2, Mtime: 1_600_000_000_123_456_789}}
	return b
}

// Add puts an inode into a directory and returns its row.
func (b *Builder) Add(dir int, name string, n tree.Node) int {
	n.Name, n.Parent = name, dir
	if n.Nlink == 0 {
		n.Nlink = 1
	}
	row := len(b.Tree.Nodes)
	b.Tree.Nodes = append(b.Tree.Nodes, n)
	b.Link(dir, name, row)
	return row
}

// Link gives an inode another name.
func (b *Builder) Link(dir int, name string, row int) {
	d := &b.Tree.Nodes[dir]
	d.Children = append(d.Children, tree.Child{Name: name, Row: row})
	sort.Slice(d.Children, func(i, j int) bool { return d.Children[i].Name < d.Children[j].Name })
}

// Dir puts a directory.
func (b *Builder) Dir(dir int, name string) int {
	b.Tree.Nodes[dir].Nlink++
	return b.Add(dir, name, tree.Node{Mode: unix.S_IFDIR | 0o750, Nlink: 2})
}

// File puts a regular file, its content on the device.
func (b *Builder) File(dir int, name string, content []byte) int {
	row := b.Add(dir, name, tree.Node{Mode: unix.S_IFREG | 0o644, Size: int64(len(content)), DataOffset: int64(len(b.Device))})
	b.Device = append(b.Device, content...)
	b.Device = append(b.Device, make([]byte, 512+(512-len(b.Device)%512)%512)...)
	return row
}

// Pattern is n bytes that do not repeat soon.
func Pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8)
	}
	return b
}

// describe says everything about a path that a program can see.
func describe(t *testing.T, p string) string {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(p, &st); err != nil {
		t.Fatalf("lstat %s: %v", p, err)
	}
	size := st.Size
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		size = 0
	}
	s := fmt.Sprintf("mode=%o uid=%d gid=%d nlink=%d size=%d rdev=%d mtime=%d.%09d", st.Mode, st.Uid, st.Gid, st.Nlink, size, st.Rdev, st.Mtim.Sec, st.Mtim.Nsec)
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		target, err := os.Readlink(p)
		if err != nil {
			t.Fatal(err)
		}
		s += " -> " + target
	case unix.S_IFREG:
		b, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		s += fmt.Sprintf(" %x", sha256.Sum256(b))
	}
	buf := make([]byte, 1<<16)
	n, err := unix.Llistxattr(p, buf)
	if err != nil {
		t.Fatalf("listxattr %s: %v", p, err)
	}
	names := strings.Split(strings.TrimSuffix(string(buf[:n]), "\x00"), "\x00")
	sort.Strings(names)
	for _, name := range names {
		if name == "" {
			continue
		}
		v := make([]byte, 1<<16)
		n, err := unix.Lgetxattr(p, name, v)
		if err != nil {
			t.Fatalf("getxattr %s %s: %v", p, name, err)
		}
		s += fmt.Sprintf(" %s=%x", name, v[:n])
	}
	return s
}

func want(n *tree.Node, device []byte) string {
	sec, nsec := n.Mtime/1e9, n.Mtime%1e9
	if nsec < 0 {
		sec, nsec = sec-1, nsec+1e9
	}
	size := n.Size
	s := fmt.Sprintf("mode=%o uid=%d gid=%d nlink=%d size=%d rdev=%d mtime=%d.%09d", n.Mode, n.UID, n.GID, n.Nlink, size, n.Rdev, sec, nsec)
	switch n.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		s += " -> " + n.Target
	case unix.S_IFREG:
		s += fmt.Sprintf(" %x", sha256.Sum256(device[n.DataOffset:n.DataOffset+n.Size]))
	}
	for _, x := range n.Xattrs {
		s += fmt.Sprintf(" %s=%x", x.Name, x.Value)
	}
	return s
}

// Check compares a mount with the tree it was made from, and returns the paths.
func Check(t *testing.T, b *Builder, mnt string) {
	t.Helper()
	inodes := map[int]uint64{}
	var walk func(row int, p string)
	walk = func(row int, p string) {
		n := &b.Tree.Nodes[row]
		if d := cmp.Diff(want(n, b.Device), describe(t, p)); d != "" {
			t.Errorf("%s: (-want +got)\n%s", strings.TrimPrefix(p, mnt), d)
		}
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			t.Fatal(err)
		}
		if ino, ok := inodes[row]; ok && ino != st.Ino {
			t.Errorf("%s: inode %d, under another name %d", p, st.Ino, ino)
		}
		inodes[row] = st.Ino
		if n.Mode&unix.S_IFMT != unix.S_IFDIR {
			return
		}
		entries, err := os.ReadDir(p)
		if err != nil {
			t.Fatal(err)
		}
		var got, names []string
		for _, e := range entries {
			got = append(got, e.Name())
		}
		for _, c := range n.Children {
			names = append(names, c.Name)
			walk(c.Row, filepath.Join(p, c.Name))
		}
		if d := cmp.Diff(names, got); d != "" {
			t.Errorf("%s: names (-want +got)\n%s", p, d)
		}
	}
	walk(tree.Root, mnt)
}

// Zoo has one of everything.
func Zoo() *Builder {
	b := New()
	etc := b.Dir(0, "etc")
	b.File(etc, "empty", nil)
	b.File(etc, "one", []byte("x"))
	b.File(etc, "block", Pattern(512))
	b.File(etc, "big", Pattern(300_000))
	linked := b.File(etc, "linked", Pattern(5000))
	b.Tree.Nodes[linked].Nlink = 3
	b.Link(0, "also", linked)
	b.Link(etc, "again", linked)
	b.Add(0, "short", tree.Node{Mode: unix.S_IFLNK | 0o777, Target: "etc/one", Size: 7})
	b.Add(0, "long", tree.Node{Mode: unix.S_IFLNK | 0o777, Target: strings.Repeat("d/", 2000), Size: 4000})
	b.Add(0, "null", tree.Node{Mode: unix.S_IFCHR | 0o666, Rdev: 1<<8 | 3})
	b.Add(0, "disk", tree.Node{Mode: unix.S_IFBLK | 0o660, Rdev: uint32(0x100<<20 | 259<<8 | 7)})
	b.Add(0, "gone", tree.Node{Mode: unix.S_IFCHR, Whiteout: true})
	b.Add(0, "pipe", tree.Node{Mode: unix.S_IFIFO | 0o600})
	b.Add(0, "!before the dots", tree.Node{Mode: unix.S_IFREG | 0o4755, UID: 1<<31 + 5, GID: 70000, Mtime: -1})
	b.Add(0, "naïve ☂", tree.Node{Mode: unix.S_IFREG | 0o644, Mtime: 1<<62 + 1})
	op := b.Dir(0, "opaque")
	b.Tree.Nodes[op].Opaque = true
	b.Tree.Nodes[op].Xattrs = []tree.Xattr{{Name: tree.OpaqueXattr, Value: []byte("y")}}
	x := b.File(0, "xattrs", []byte("content"))
	b.Tree.Nodes[x].Xattrs = []tree.Xattr{
		{Name: "security.capability", Value: append([]byte{1, 0, 0, 2, 0, 4}, make([]byte, 14)...)},
		{Name: "user.big", Value: Pattern(3000)},
		{Name: "user.empty", Value: []byte{}},
		{Name: "user.x", Value: []byte("1")},
	}
	many := b.Dir(0, "many")
	for i := range 3000 {
		b.File(many, fmt.Sprintf("%0*d", 1+i%200, i), []byte{byte(i)})
	}
	deep := 0
	for range 40 {
		deep = b.Dir(deep, "deep")
	}
	for i := range 60 { // inodes of all alignments
		s := b.Add(many, fmt.Sprintf("link%d", i), tree.Node{Mode: unix.S_IFLNK | 0o777, Target: strings.Repeat("t", 13*i+1), Size: int64(13*i + 1)})
		if i%3 == 0 {
			b.Tree.Nodes[s].Xattrs = []tree.Xattr{{Name: "trusted.t", Value: Pattern(i)}}
		}
	}
	return b
}
