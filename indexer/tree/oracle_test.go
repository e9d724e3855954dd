package tree_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/pkg/archive"
	"github.com/containerd/continuity/sysx"
	"github.com/containerd/log"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/firstlight-dev/firstlight/indexer/index"
	"github.com/firstlight-dev/firstlight/indexer/scan"
	"github.com/firstlight-dev/firstlight/indexer/tree"
)

// file is what both sides know of one name.
type file struct {
	Mode, UID, GID uint32
	Mtime          int64 // 0 where containerd leaves the time of extraction
	Rdev           uint64
	Nlink          uint64
	Size           int64
	Target         string
	Content        string
	Xattrs         map[string]string
	Same           string // the first name of the same inode
}

// oracle extracts a tar as containerd extracts an overlay layer. The tree says
// which times containerd does not set.
func oracle(ctx context.Context, root string, tarball []byte) error {
	_, err := archive.Apply(ctx, root, bytes.NewReader(tarball), archive.WithConvertWhiteout(archive.OverlayConvertWhiteout))
	return err
}

func readDir(t *testing.T, root string) map[string]file {
	t.Helper()
	files := map[string]file{}
	first := map[uint64]string{}
	err := filepath.WalkDir(root, func(p string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			return err
		}
		name := "/" + strings.TrimPrefix(strings.TrimPrefix(p, root), "/")
		f := file{
			Mode: st.Mode, UID: st.Uid, GID: st.Gid, Mtime: st.Mtim.Nano(), Rdev: st.Rdev,
			Nlink: st.Nlink, Size: st.Size, Xattrs: map[string]string{},
		}
		if _, ok := first[st.Ino]; !ok {
			first[st.Ino] = name
		}
		f.Same = first[st.Ino]
		keys, err := sysx.LListxattr(p)
		if err != nil {
			return err
		}
		for _, k := range keys {
			v, err := sysx.LGetxattr(p, k)
			if err != nil {
				return err
			}
			f.Xattrs[k] = string(v)
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
			f.Size, f.Nlink = 0, 0 // the file system's own
		case unix.S_IFREG:
			b, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			f.Content = fmt.Sprintf("%x", sha256.Sum256(b))
		case unix.S_IFLNK:
			if f.Target, err = os.Readlink(p); err != nil {
				return err
			}
		}
		files[name] = f
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// readTree lists the tree in the same order and form, content from the tar stream.
func readTree(t *tree.Tree, tarball []byte) map[string]file {
	files := map[string]file{}
	first := map[int]string{}
	var walk func(name string, row int)
	walk = func(name string, row int) {
		n := &t.Nodes[row]
		if _, ok := first[row]; !ok {
			first[row] = name
		}
		f := file{
			Mode: n.Mode, UID: n.UID, GID: n.GID, Mtime: n.Mtime, Rdev: uint64(n.Rdev),
			Nlink: uint64(n.Nlink), Size: n.Size, Target: n.Target, Xattrs: map[string]string{}, Same: first[row],
		}
		for _, x := range n.Xattrs {
			f.Xattrs[x.Name] = string(x.Value)
		}
		switch n.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			f.Content = fmt.Sprintf("%x", sha256.Sum256(tarball[n.DataOffset:n.DataOffset+n.Size]))
		case unix.S_IFDIR:
			f.Nlink = 0
		}
		files[name] = f
		for _, c := range n.Children {
			walk(filepath.Join(name, c.Name), c.Row)
		}
	}
	walk("/", tree.Root)
	return files
}

// checkTree holds the invariants of a tree that a directory cannot show.
func checkTree(t *testing.T, tr *tree.Tree) {
	t.Helper()
	links := make([]uint32, len(tr.Nodes))
	links[tree.Root] = 1
	for row, n := range tr.Nodes {
		if row != tree.Root && (n.Parent >= len(tr.Nodes) || n.Name == "") {
			t.Errorf("row %d has no name", row)
		}
		for i, c := range n.Children {
			if i > 0 && n.Children[i-1].Name >= c.Name {
				t.Errorf("row %d: children are not sorted", row)
			}
			if c.Row <= row && tr.Nodes[c.Row].Mode&unix.S_IFMT == unix.S_IFDIR {
				t.Errorf("row %d comes after its child %d", row, c.Row)
			}
			links[c.Row]++
			if tr.Nodes[c.Row].Mode&unix.S_IFMT == unix.S_IFDIR {
				links[row]++
			}
		}
		if n.Mode&unix.S_IFMT == unix.S_IFDIR {
			links[row]++
		}
	}
	for row, n := range tr.Nodes {
		if links[row] != n.Nlink {
			t.Errorf("row %d (%s) has %d links, not %d", row, n.Name, n.Nlink, links[row])
		}
	}
}

// refusals are the reasons to refuse what containerd takes. All others must be
// containerd's own.
var refusals = []string{
	"depends on the machine", "parents without entries", "access control lists", "sparse files",
	"it names a whiteout", "trailing data", "zstd compression",
	"its path has more than", // where exactly containerd fails depends on its folder's name
}

// compare indexes a tar, builds its tree and holds it against containerd's. It
// returns the tree's error.
func compare(t *testing.T, tarball []byte) error {
	t.Helper()
	root := t.TempDir()
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	want := oracle(t.Context(), root, tarball)
	x, err := scan.Scan(t.Context(), scan.Layer{Reader: bytes.NewReader(tarball), Size: int64(len(tarball))})
	if err != nil {
		if !errors.Is(err, index.ErrUnsupported) {
			t.Fatalf("scan: %v", err)
		}
		if want != nil {
			return err
		}
		for _, r := range refusals {
			if strings.Contains(err.Error(), r) {
				return err
			}
		}
		t.Fatalf("refused what containerd takes: %v", err)
	}
	if want != nil {
		t.Fatalf("taken, but containerd says: %v", want)
	}
	tr, err := tree.Build(x)
	if err != nil {
		t.Fatalf("scan and Build disagree: %v", err)
	}
	checkTree(t, tr)
	got, exp := readTree(tr, tarball), readDir(t, root)
	for name, f := range exp {
		if g, ok := got[name]; ok && g.Mtime == 0 {
			f.Mtime = unsetTime(tr, name, f.Mtime)
			exp[name] = f
		}
	}
	if diff := cmp.Diff(exp, got); diff != "" {
		t.Fatalf("tree differs from containerd's (-containerd +ours):\n%s", diff)
	}
	return nil
}

// unsetTime hides the time of extraction of implied directories and whiteouts.
func unsetTime(tr *tree.Tree, name string, mtime int64) int64 {
	row := tree.Root
	for c := range strings.SplitSeq(strings.Trim(name, "/"), "/") {
		for _, e := range tr.Nodes[row].Children {
			if e.Name == c {
				row = e.Row
			}
		}
	}
	if n := tr.Nodes[row]; n.Implied || n.Whiteout {
		return 0
	}
	return mtime
}

// pack writes a tar of headers; a regular file's content is its Uname, which is free for that.
func pack(t *testing.T, hs []tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range hs {
		body := h.Uname
		h.Uname = ""
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(body))
		}
		h.Format = tar.FormatPAX
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := w.Write([]byte(body)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// The differ warns of every xattr it passes over.
func TestMain(m *testing.M) {
	if err := log.SetLevel("error"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}
