package erofs

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/firstlight-dev/firstlight/indexer/tree"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/treetest"
)

var update = flag.Bool("update", false, "rewrite golden files")

func requireRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
}

// mountTree mounts what b made and returns where.
func mountTree(t *testing.T, b *treetest.Builder, opts ...MountOption) string {
	t.Helper()
	dir := t.TempDir()
	var meta bytes.Buffer
	if err := Build(&meta, &b.Tree, int64(len(b.Device))); err != nil {
		t.Fatal(err)
	}
	m, d, mnt := filepath.Join(dir, "meta"), filepath.Join(dir, "device"), filepath.Join(dir, "mnt")
	for _, err := range []error{os.WriteFile(m, meta.Bytes(), 0o600), os.WriteFile(d, b.Device, 0o600), os.Mkdir(mnt, 0o700), Mount(m, d, mnt, opts...)} {
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

func TestMountedTreeIsTheTree(t *testing.T) {
	requireRoot(t)
	b := treetest.Zoo()
	treetest.Check(t, b, mountTree(t, b))
}

func TestEmptyTree(t *testing.T) {
	requireRoot(t)
	b := treetest.New()
	b.Device = nil
	treetest.Check(t, b, mountTree(t, b))
}

func TestBuildIsDeterministic(t *testing.T) {
	b := treetest.Zoo()
	var one, two bytes.Buffer
	for _, w := range []*bytes.Buffer{&one, &two} {
		if err := Build(w, &b.Tree, int64(len(b.Device))); err != nil {
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
	tests := map[string]func(b *treetest.Builder){
		"no root":        func(b *treetest.Builder) { b.Tree.Nodes = nil },
		"odd offset":     func(b *treetest.Builder) { b.Tree.Nodes[b.File(0, "f", []byte("x"))].DataOffset = 3 },
		"beyond device":  func(b *treetest.Builder) { b.Tree.Nodes[b.File(0, "f", []byte("x"))].Size = 1 << 20 },
		"negative":       func(b *treetest.Builder) { b.Tree.Nodes[b.File(0, "f", []byte("x"))].DataOffset = -512 },
		"strange prefix": func(b *treetest.Builder) { b.Tree.Nodes[0].Xattrs = []tree.Xattr{{Name: "what.ever"}} },
		"bare prefix":    func(b *treetest.Builder) { b.Tree.Nodes[0].Xattrs = []tree.Xattr{{Name: "user."}} },
		"big xattr": func(b *treetest.Builder) {
			b.Tree.Nodes[0].Xattrs = []tree.Xattr{{Name: "user.x", Value: make([]byte, 1<<16)}}
		},
		"many xattrs": func(b *treetest.Builder) {
			for i := range 5 {
				b.Tree.Nodes[0].Xattrs = append(b.Tree.Nodes[0].Xattrs, tree.Xattr{Name: fmt.Sprintf("user.%d", i), Value: make([]byte, 60000)})
			}
		},
	}
	for name, spoil := range tests {
		t.Run(name, func(t *testing.T) {
			b := treetest.New()
			spoil(b)
			err := Build(&bytes.Buffer{}, &b.Tree, int64(len(b.Device)))
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
	b := treetest.New()
	if err := Build(&bytes.Buffer{}, &b.Tree, 1<<42); !errors.Is(err, ErrUnsupported) {
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
	if err := os.WriteFile(meta, treetest.Pattern(8192), 0o600); err != nil {
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
