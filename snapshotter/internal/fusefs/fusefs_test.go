package fusefs

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/firstlight-dev/firstlight/snapshotter/internal/treetest"
)

// The server runs in a process of its own, for a program that waits for a file
// system it serves itself can wait for ever.
func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == "serve" {
		if err := serve(os.Args[2], os.Args[3]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if len(os.Args) == 4 && os.Args[1] == "flood" {
		flood(os.Args[2], os.Args[3])
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// reader reads from memory. It fails as long as a file named fail exists, and
// waits as long as one named block does.
type reader struct {
	b   []byte
	dir string
}

func (r *reader) Size() int64 { return int64(len(r.b)) }

func (r *reader) ReadAtContext(ctx context.Context, p []byte, off int64) (int, error) {
	exists := func(name string) bool { _, err := os.Stat(filepath.Join(r.dir, name)); return err == nil }
	for exists("block") {
		_ = os.WriteFile(filepath.Join(r.dir, "blocked"), nil, 0o600)
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
	if exists("fail") {
		return 0, errors.New("failing on purpose")
	}
	if exists("panic") {
		panic("on purpose")
	}
	return bytes.NewReader(r.b).ReadAt(p, off)
}

const id = 12

func serve(initHex, dir string) error {
	init, err := hex.DecodeString(initHex)
	if err != nil {
		return err
	}
	if err := unix.SetNonblock(3, true); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	s := New(slog.New(slog.NewTextHandler(os.Stderr, nil)))
	b := treetest.Zoo()
	r := &reader{b: b.Device, dir: dir}
	if err := errors.Join(s.AddLayer(id, r), s.AddTree(id, &b.Tree, r), s.AddLayer(deadID, dead{dir})); err != nil {
		return err
	}
	remove := make(chan os.Signal, 1)
	signal.Notify(remove, syscall.SIGUSR1)
	go func() {
		<-remove
		s.Remove(id)
		_ = os.WriteFile(filepath.Join(dir, "removed"), nil, 0o600)
	}()
	if err := s.Serve(ctx, os.NewFile(3, "/dev/fuse"), init, false); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

type mount struct {
	dir, flags string
	cmd        *exec.Cmd
}

func start(t testing.TB) *mount {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	m := &mount{dir: t.TempDir(), flags: t.TempDir()}
	dev, err := Mount(m.dir)
	if err != nil {
		t.Fatal(err)
	}
	init, err := Handshake(dev, slog.New(slog.DiscardHandler), 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	m.cmd = exec.Command(os.Args[0], "serve", hex.EncodeToString(init), m.flags)
	m.cmd.ExtraFiles = []*os.File{dev}
	m.cmd.Stderr = os.Stderr
	if err := m.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := dev.Close(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(m.dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
		if err := m.cmd.Wait(); err != nil { // ends by itself once unmounted
			t.Errorf("server: %v", err)
		}
	})
	return m
}

func (m *mount) flag(t *testing.T, name string, on bool) {
	t.Helper()
	p := filepath.Join(m.flags, name)
	var err error
	if on {
		err = os.WriteFile(p, nil, 0o600)
	} else {
		err = os.Remove(p)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// await waits for the server to leave a sign.
func (m *mount) await(t *testing.T, name string) {
	t.Helper()
	for {
		if _, err := os.Stat(filepath.Join(m.flags, name)); err == nil {
			return
		}
		if t.Context().Err() != nil {
			t.Fatalf("no %s", name)
		}
		<-time.After(time.Millisecond)
	}
}

func (m *mount) tree() string  { return filepath.Join(m.dir, "tree", fmt.Sprint(id)) }
func (m *mount) layer() string { return filepath.Join(m.dir, "layer", fmt.Sprint(id)) }

func TestTreeIsTheTree(t *testing.T) {
	m := start(t)
	treetest.Check(t, treetest.Zoo(), m.tree())
}

func TestLayerIsTheStream(t *testing.T) {
	m := start(t)
	got, err := os.ReadFile(m.layer())
	if err != nil || !bytes.Equal(got, treetest.Zoo().Device) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

func TestStandardFS(t *testing.T) {
	m := start(t)
	// A part without large files: they are read byte by byte, over and over.
	if err := fstest.TestFS(os.DirFS(filepath.Join(m.tree(), "deep")), "deep", "deep/deep"); err != nil {
		t.Error(err)
	}
}

func TestReadOnly(t *testing.T) {
	m := start(t)
	f := filepath.Join(m.tree(), "etc", "one")
	tests := map[string]func() error{
		"create": func() error { return os.WriteFile(filepath.Join(m.tree(), "new"), nil, 0o644) },
		"write":  func() error { return os.WriteFile(f, nil, 0o644) },
		"mkdir":  func() error { return os.Mkdir(filepath.Join(m.tree(), "new"), 0o755) },
		"remove": func() error { return os.Remove(f) },
		"rename": func() error { return os.Rename(f, f+"2") },
		"link":   func() error { return os.Link(f, f+"2") },
		"chmod":  func() error { return os.Chmod(f, 0o777) },
		"chown":  func() error { return os.Chown(f, 1, 1) },
		"xattr":  func() error { return unix.Setxattr(f, "user.a", nil, 0) },
		"layer":  func() error { return os.Remove(m.layer()) },
	}
	for name, try := range tests {
		if err := try(); !errors.Is(err, unix.EROFS) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestPermissions(t *testing.T) {
	m := start(t)
	if err := os.Chmod(filepath.Dir(m.dir), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("cat", m.layer())
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "ermission denied") {
		t.Errorf("nobody reads a layer: %v: %.100s", err, out)
	}
}

func TestAbsent(t *testing.T) {
	m := start(t)
	for _, name := range []string{"nothing", "layer/13", "layer/012", "layer/x", "layer/99999999999999999999", "tree/13", "tree/12/nothing"} {
		for range 2 { // the second time from what the kernel remembers
			if _, err := os.Lstat(filepath.Join(m.dir, name)); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

func TestErrorsHeal(t *testing.T) {
	m := start(t)
	for _, fault := range []string{"fail", "panic"} {
		m.flag(t, fault, true)
		if _, err := os.ReadFile(filepath.Join(m.tree(), "etc", "big")); !errors.Is(err, unix.EIO) {
			t.Errorf("%s: read of a failing layer: %v", fault, err)
		}
		m.flag(t, fault, false)
	}
	if _, err := os.ReadFile(filepath.Join(m.tree(), "etc", "big")); err != nil {
		t.Errorf("read after that: %v", err)
	}
}

// TestKept: what was read once is the kernel's, also for later openings.
func TestKept(t *testing.T) {
	m := start(t)
	use := func() error {
		_, err := os.ReadFile(filepath.Join(m.tree(), "etc", "big"))
		_, err2 := os.ReadDir(filepath.Join(m.tree(), "many"))
		return errors.Join(err, err2)
	}
	if err := use(); err != nil {
		t.Fatal(err)
	}
	m.flag(t, "fail", true)
	if err := use(); err != nil {
		t.Error(err)
	}
}

// TestSignals: a signal does not disturb a read, unless it kills.
func TestSignals(t *testing.T) {
	m := start(t)
	m.flag(t, "block", true)
	cat := func() *exec.Cmd {
		cmd := exec.Command("sh", "-c", `trap : USR1; exec 3<"$1"; read line <&3; cat "$1" | wc -c`, "sh", filepath.Join(m.tree(), "etc", "big"))
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		m.await(t, "blocked")
		m.flag(t, "blocked", false)
		m.await(t, "blocked")
		return cmd
	}
	killed := cat()
	if err := killed.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := killed.Wait(); err == nil || !strings.Contains(err.Error(), "killed") { // while still blocked
		t.Errorf("killed reader: %v", err)
	}
	disturbed := cat()
	for range 3 {
		if err := disturbed.Process.Signal(syscall.SIGUSR1); err != nil {
			t.Fatal(err)
		}
	}
	m.await(t, "blocked")
	m.flag(t, "block", false)
	if err := disturbed.Wait(); err != nil {
		t.Errorf("reader that got signals: %v", err)
	}
}

func TestRemove(t *testing.T) {
	m := start(t)
	f, err := os.Open(m.layer())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := os.ReadDir(m.tree()); err != nil {
		t.Fatal(err)
	}
	if err := m.cmd.Process.Signal(syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	m.await(t, "removed")
	for _, p := range []string{m.layer(), m.tree()} {
		if _, err := os.Lstat(p); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", p, err)
		}
	}
	if _, err := f.ReadAt(make([]byte, 10), 0); !errors.Is(err, unix.EIO) {
		t.Errorf("read of a removed layer that is open: %v", err)
	}
}

func TestIDs(t *testing.T) {
	s := New(slog.New(slog.DiscardHandler))
	b := treetest.New()
	r := &reader{}
	if err := errors.Join(s.AddLayer(MaxID, r), s.AddTree(MaxID, &b.Tree, r)); err != nil {
		t.Error(err)
	}
	for _, err := range []error{s.AddLayer(MaxID, r), s.AddLayer(MaxID+1, r), s.AddTree(MaxID, &b.Tree, r), s.AddTree(MaxID+1, &b.Tree, r)} {
		if !errors.Is(err, errID) {
			t.Errorf("error is %v", err)
		}
	}
	seen := map[uint64]bool{rootNode: true, layersNode: true, treesNode: true}
	for _, id := range []uint64{0, 1, MaxID} {
		nodes := []uint64{layerNode(id)}
		for _, row := range []int{0, 1, 2, 1 << 21} {
			nodes = append(nodes, treeNode(id, row))
			if k, i, r := splitNode(treeNode(id, row)); k != kindTree || i != id || r != row {
				t.Errorf("node of tree %d row %d is taken for %d, %d, %d", id, row, k, i, r)
			}
		}
		for _, n := range nodes {
			if seen[n] {
				t.Errorf("node id %#x stands for two inodes", n)
			}
			seen[n] = true
		}
	}
}

func FuzzRequest(f *testing.F) {
	init := make([]byte, 104)
	copy(init, []byte{104, 0, 0, 0, opInit, 0, 0, 0, 2})
	init[inHeaderSize], init[inHeaderSize+4] = 7, 41
	s := New(slog.New(slog.DiscardHandler))
	b := treetest.Zoo()
	r := &reader{b: b.Device, dir: f.TempDir()}
	if err := errors.Join(s.AddLayer(id, r), s.AddTree(id, &b.Tree, r)); err != nil {
		f.Fatal(err)
	}
	ps, _, err := replay(s, init)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(init)
	for _, op := range []byte{1, 3, opRead, opReadDir, opReadDirPlus, opGetXattr, opListXattr, 5, 17} {
		req := make([]byte, 96)
		copy(req, []byte{96, 0, 0, 0, op, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0})
		n := treeNode(id, 0)
		for i := range 8 {
			req[16+i] = byte(n >> (8 * i))
		}
		req[readSizeOffset+1] = 16
		f.Add(req)
	}
	f.Fuzz(func(_ *testing.T, req []byte) {
		if len(req) < inHeaderSize || len(req) > requestBuffer || opcode(req) == opInit {
			return
		}
		out := make([]byte, replyHeader+payload(req))
		_, _ = ps.HandleRequest([][]byte{req}, [][]byte{out})
	})
}

func TestKillPending(t *testing.T) {
	tests := map[string]bool{
		"SigPnd:\t0000000000000000\nShdPnd:\t0000000000000000\nSigBlk:\tffffffffffffffff\n": false,
		"SigPnd:\t0000000000000100\nShdPnd:\t0000000000000000\n":                            true,
		"SigPnd:\t0000000000000000\nShdPnd:\t0000000000000100\n":                            true,
		"SigPnd:\t0000000000000200\n":                                                       false,
		"rubbish":                                                                           false,
	}
	for status, want := range tests {
		if got := killPending([]byte(status)); got != want {
			t.Errorf("%q: %v", status, got)
		}
	}
}
