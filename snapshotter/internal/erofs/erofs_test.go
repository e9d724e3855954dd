package erofs

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"flag"
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

var update = flag.Bool("update", false, "rewrite golden files")

func requireRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
}

// builder makes trees and the device that holds their files.
type builder struct {
	tree   tree.Tree
	device []byte
}

func newBuilder() *builder {
	b := &builder{device: make([]byte, 512)}
	b.tree.Nodes = []tree.Node{{Mode: unix.S_IFDIR | 0o755, Nlink: 2, Mtime: 1_600_000_000_123_456_789}}
	return b
}

func (b *builder) add(dir int, name string, n tree.Node) int {
	n.Name, n.Parent = name, dir
	if n.Nlink == 0 {
		n.Nlink = 1
	}
	row := len(b.tree.Nodes)
	b.tree.Nodes = append(b.tree.Nodes, n)
	b.link(dir, name, row)
	return row
}

func (b *builder) link(dir int, name string, row int) {
	d := &b.tree.Nodes[dir]
	d.Children = append(d.Children, tree.Child{Name: name, Row: row})
	sort.Slice(d.Children, func(i, j int) bool { return d.Children[i].Name < d.Children[j].Name })
}

func (b *builder) dir(dir int, name string) int {
	b.tree.Nodes[dir].Nlink++
	return b.add(dir, name, tree.Node{Mode: unix.S_IFDIR | 0o750, Nlink: 2})
}

func (b *builder) file(dir int, name string, content []byte) int {
	row := b.add(dir, name, tree.Node{Mode: unix.S_IFREG | 0o644, Size: int64(len(content)), DataOffset: int64(len(b.device))})
	b.device = append(b.device, content...)
	b.device = append(b.device, make([]byte, align(int64(len(b.device)), 512)-int64(len(b.device))+512)...)
	return row
}

func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8)
	}
	return b
}

// mountTree mounts what b made and returns where.
func mountTree(t *testing.T, b *builder, opts ...MountOption) string {
	t.Helper()
	dir := t.TempDir()
	var meta bytes.Buffer
	if err := Build(&meta, &b.tree, int64(len(b.device))); err != nil {
		t.Fatal(err)
	}
	m, d, mnt := filepath.Join(dir, "meta"), filepath.Join(dir, "device"), filepath.Join(dir, "mnt")
	for _, err := range []error{os.WriteFile(m, meta.Bytes(), 0o600), os.WriteFile(d, b.device, 0o600), os.Mkdir(mnt, 0o700), Mount(m, d, mnt, opts...)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if err := unix.Unmount(mnt, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return mnt
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

// check compares a mount with the tree it was made from, and returns the paths.
func check(t *testing.T, b *builder, mnt string) {
	t.Helper()
	inodes := map[int]uint64{}
	var walk func(row int, p string)
	walk = func(row int, p string) {
		n := &b.tree.Nodes[row]
		if d := cmp.Diff(want(n, b.device), describe(t, p)); d != "" {
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

// zoo has one of everything.
func zoo() *builder {
	b := newBuilder()
	etc := b.dir(0, "etc")
	b.file(etc, "empty", nil)
	b.file(etc, "one", []byte("x"))
	b.file(etc, "block", pattern(512))
	b.file(etc, "big", pattern(300_000))
	linked := b.file(etc, "linked", pattern(5000))
	b.tree.Nodes[linked].Nlink = 3
	b.link(0, "also", linked)
	b.link(etc, "again", linked)
	b.add(0, "short", tree.Node{Mode: unix.S_IFLNK | 0o777, Target: "etc/one", Size: 7})
	b.add(0, "long", tree.Node{Mode: unix.S_IFLNK | 0o777, Target: strings.Repeat("d/", 2000), Size: 4000})
	b.add(0, "null", tree.Node{Mode: unix.S_IFCHR | 0o666, Rdev: 1<<8 | 3})
	b.add(0, "disk", tree.Node{Mode: unix.S_IFBLK | 0o660, Rdev: uint32(0x100<<20 | 259<<8 | 7)})
	b.add(0, "gone", tree.Node{Mode: unix.S_IFCHR, Whiteout: true})
	b.add(0, "pipe", tree.Node{Mode: unix.S_IFIFO | 0o600})
	b.add(0, "!before the dots", tree.Node{Mode: unix.S_IFREG | 0o4755, UID: 1<<31 + 5, GID: 70000, Mtime: -1})
	b.add(0, "naïve ☂", tree.Node{Mode: unix.S_IFREG | 0o644, Mtime: 1<<62 + 1})
	op := b.dir(0, "opaque")
	b.tree.Nodes[op].Opaque = true
	b.tree.Nodes[op].Xattrs = []tree.Xattr{{Name: tree.OpaqueXattr, Value: []byte("y")}}
	x := b.file(0, "xattrs", []byte("content"))
	b.tree.Nodes[x].Xattrs = []tree.Xattr{
		{Name: "security.capability", Value: append([]byte{1, 0, 0, 2, 0, 4}, make([]byte, 14)...)},
		{Name: "user.big", Value: pattern(3000)},
		{Name: "user.empty", Value: []byte{}},
		{Name: "user.x", Value: []byte("1")},
	}
	many := b.dir(0, "many")
	for i := range 3000 {
		b.file(many, fmt.Sprintf("%0*d", 1+i%200, i), []byte{byte(i)})
	}
	deep := 0
	for range 40 {
		deep = b.dir(deep, "deep")
	}
	for i := range 60 { // inodes of all alignments
		s := b.add(many, fmt.Sprintf("link%d", i), tree.Node{Mode: unix.S_IFLNK | 0o777, Target: strings.Repeat("t", 13*i+1), Size: int64(13*i + 1)})
		if i%3 == 0 {
			b.tree.Nodes[s].Xattrs = []tree.Xattr{{Name: "trusted.t", Value: pattern(i)}}
		}
	}
	return b
}

func TestMountedTreeIsTheTree(t *testing.T) {
	requireRoot(t)
	b := zoo()
	check(t, b, mountTree(t, b))
}

func TestEmptyTree(t *testing.T) {
	requireRoot(t)
	b := newBuilder()
	b.device = nil
	check(t, b, mountTree(t, b))
}

func TestBuildIsDeterministic(t *testing.T) {
	b := zoo()
	var one, two bytes.Buffer
	for _, w := range []*bytes.Buffer{&one, &two} {
		if err := Build(w, &b.tree, int64(len(b.device))); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(one.Bytes(), two.Bytes()) {
		t.Error("two images of one tree differ")
	}
	sum := fmt.Sprintf("%x\n", sha256.Sum256(one.Bytes()))
	golden := filepath.Join("testdata", "zoo.sha256")
	if *update {
		if err := os.WriteFile(golden, []byte(sum), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if sum != string(want) {
		t.Errorf("image has changed: %s, golden %s", sum, want)
	}
}

func TestUnsupported(t *testing.T) {
	tests := map[string]func(b *builder){
		"no root":        func(b *builder) { b.tree.Nodes = nil },
		"odd offset":     func(b *builder) { b.tree.Nodes[b.file(0, "f", []byte("x"))].DataOffset = 3 },
		"beyond device":  func(b *builder) { b.tree.Nodes[b.file(0, "f", []byte("x"))].Size = 1 << 20 },
		"negative":       func(b *builder) { b.tree.Nodes[b.file(0, "f", []byte("x"))].DataOffset = -512 },
		"strange prefix": func(b *builder) { b.tree.Nodes[0].Xattrs = []tree.Xattr{{Name: "what.ever"}} },
		"bare prefix":    func(b *builder) { b.tree.Nodes[0].Xattrs = []tree.Xattr{{Name: "user."}} },
		"big xattr":      func(b *builder) { b.tree.Nodes[0].Xattrs = []tree.Xattr{{Name: "user.x", Value: make([]byte, 1<<16)}} },
		"many xattrs": func(b *builder) {
			for i := range 5 {
				b.tree.Nodes[0].Xattrs = append(b.tree.Nodes[0].Xattrs, tree.Xattr{Name: fmt.Sprintf("user.%d", i), Value: make([]byte, 60000)})
			}
		},
	}
	for name, spoil := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBuilder()
			spoil(b)
			err := Build(&bytes.Buffer{}, &b.tree, int64(len(b.device)))
			if !errors.Is(err, ErrUnsupported) {
				t.Errorf("Build returned %v", err)
			}
		})
	}
}

func TestHugeFile(t *testing.T) {
	// 3 TiB would need a device beyond the format; the chunk arithmetic below it.
	for _, n := range []int64{1, 512, 513, 1 << 20, 1<<40 - 1, 1 << 40, 1<<40 + 1} {
		bits := chunkBits(n)
		chunks := (n-1)>>bits + 1
		if bits < blockBits || bits > maxChunkBits || chunks > 2 || (bits < maxChunkBits && chunks != 1) {
			t.Errorf("file of %d bytes: chunks of 2^%d, %d of them", n, bits, chunks)
		}
	}
	b := newBuilder()
	if err := Build(&bytes.Buffer{}, &b.tree, 1<<42); !errors.Is(err, ErrUnsupported) {
		t.Errorf("device of 4 TiB: %v", err)
	}
}

func TestProbe(t *testing.T) {
	requireRoot(t)
	dir := t.TempDir()
	if err := Probe(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestMountSaysWhyNot(t *testing.T) {
	requireRoot(t)
	dir := t.TempDir()
	meta := filepath.Join(dir, "meta")
	if err := os.WriteFile(meta, pattern(8192), 0o600); err != nil {
		t.Fatal(err)
	}
	err := Mount(meta, meta, dir)
	if err == nil {
		t.Fatal("mounted rubbish")
	}
	if !strings.Contains(err.Error(), "kernel log") || !errors.Is(err, unix.EINVAL) {
		t.Errorf("error does not tell where to look: %v", err)
	}
}
