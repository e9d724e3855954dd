package keeper

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/firstlight-dev/firstlight/indexer/tree"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/erofs"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/fusefs"
)

// The test binary is keeper and worker too, in processes of their own: a
// process with files open below the mount may not be the one that starts
// workers, for the kernel asks the worker before it closes them.
func TestMain(m *testing.M) {
	var err error
	switch {
	case len(os.Args) > 2 && os.Args[1] == "keeper":
		err = runKeeper(os.Args[2], os.Args[3:])
	case len(os.Args) > 1 && os.Args[1] == "worker":
		err = worker(os.Args[2:])
	default:
		os.Exit(m.Run())
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", os.Args[1], err)
		os.Exit(1)
	}
}

func config(dir string, args ...string) Config {
	return Config{
		Mountpoint: filepath.Join(dir, "mnt"), Command: append([]string{os.Args[0], "worker"}, args...),
		Sockets: []Socket{{Name: "hello", Path: filepath.Join(dir, "sock")}}, Stderr: os.Stderr,
	}
}

func runKeeper(dir string, args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	return Run(ctx, config(dir, args...), slog.New(slog.DiscardHandler))
}

// layer is a layer of a pattern that any process can compute, slow enough that
// a worker always dies with reads under way.
type layer struct {
	size  int64
	delay time.Duration
}

func (l *layer) Size() int64 { return l.size }

func (l *layer) ReadAtContext(ctx context.Context, p []byte, off int64) (int, error) {
	select {
	case <-time.After(l.delay):
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	n := int(min(int64(len(p)), l.size-off))
	fill(p[:n], off)
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func fill(p []byte, off int64) {
	for i := range p {
		o := off + int64(i)
		p[i] = byte(o) ^ byte(o>>8)*31 ^ byte(o>>16)*7
	}
}

const (
	files    = 64
	fileSize = 128 << 10
	fileStep = fileSize + 512
)

// patternTree has files of fileSize bytes all over a layer.
func patternTree() (*tree.Tree, int64) {
	t := &tree.Tree{Nodes: []tree.Node{{Mode: unix.S_IFDIR | 0o755, Nlink: 2}}}
	for i := range files {
		t.Nodes = append(t.Nodes, tree.Node{Mode: unix.S_IFREG | 0o644, Nlink: 1, Size: fileSize, DataOffset: int64(i)*fileStep + 512})
		t.Nodes[0].Children = append(t.Nodes[0].Children, tree.Child{Name: fmt.Sprintf("f%03d", i), Row: i + 1})
	}
	return t, files*fileStep + 512
}

func worker(args []string) error {
	if len(args) > 0 && args[0] == "broken" {
		return errors.New("broken on purpose")
	}
	s, err := Attach()
	if err != nil {
		return err
	}
	ctx, cancel := s.WithKeeper(context.Background())
	defer cancel()
	ctx, stop := signal.NotifyContext(ctx, unix.SIGTERM)
	defer stop()
	fsys := fusefs.New(slog.New(slog.NewTextHandler(os.Stderr, nil)))
	t, size := patternTree()
	l := &layer{size: size, delay: 2 * time.Millisecond}
	if err := errors.Join(fsys.AddLayer(7, l), fsys.AddTree(7, t, l)); err != nil {
		return err
	}
	go answer(s)
	if err := s.Ready(); err != nil {
		return err
	}
	if err := s.Serve(ctx, fsys); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

// answer tells whoever connects which process this is.
func answer(s *Session) {
	for {
		c, err := s.Listener("hello").Accept()
		if err != nil {
			return
		}
		_ = json.NewEncoder(c).Encode(map[string]int{"pid": os.Getpid(), "restarts": s.Restarts})
		_ = c.Close()
	}
}

type fixture struct {
	mnt, sock string
	cmd       *exec.Cmd
	stderr    bytes.Buffer
	ended     chan error
}

func start(t *testing.T, args ...string) *fixture {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	dir := t.TempDir()
	f := &fixture{mnt: filepath.Join(dir, "mnt"), sock: filepath.Join(dir, "sock"), ended: make(chan error, 1)}
	f.cmd = exec.Command(os.Args[0], append([]string{"keeper", dir}, args...)...)
	f.cmd.Stderr = &f.stderr
	if err := f.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { f.ended <- f.cmd.Wait() }()
	return f
}

// hello asks the worker who it is, waiting for one if need be.
func (f *fixture) hello(t *testing.T) (pid, restarts int) {
	t.Helper()
	for {
		c, err := net.Dial("unix", f.sock)
		if err == nil {
			var got map[string]int
			err = json.NewDecoder(c).Decode(&got)
			_ = c.Close()
			if err == nil {
				return got["pid"], got["restarts"]
			}
		}
		select {
		case err := <-f.ended:
			t.Fatalf("keeper ended: %v\n%s", err, f.stderr.String())
		case <-time.After(10 * time.Millisecond): // no socket yet, or the worker died answering
		}
	}
}

// finish ends keeper and worker in good order.
func (f *fixture) finish(t *testing.T) {
	t.Helper()
	if err := f.cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := <-f.ended; err != nil {
		t.Errorf("keeper: %v\n%s", err, f.stderr.String())
	}
	if b, err := os.ReadFile("/proc/self/mountinfo"); err != nil || bytes.Contains(b, []byte(f.mnt+" ")) {
		t.Errorf("still mounted (%v)", err)
	}
	if _, err := os.Stat(f.sock); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("socket is left: %v", err)
	}
}

// mountErofs mounts the layer's tree by EROFS over the FUSE file.
func mountErofs(t *testing.T, f *fixture) string {
	t.Helper()
	dir := t.TempDir()
	meta, mnt := filepath.Join(dir, "meta"), filepath.Join(dir, "mnt")
	tr, size := patternTree()
	var b bytes.Buffer
	err := errors.Join(erofs.Build(&b, tr, size), os.WriteFile(meta, b.Bytes(), 0o600), os.Mkdir(mnt, 0o700))
	if err != nil {
		t.Fatal(err)
	}
	if err := erofs.Mount(meta, filepath.Join(f.mnt, "layer", "7"), mnt); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := erofs.Unmount(mnt); err != nil {
			t.Error(err)
		}
	})
	return mnt
}

// readAll reads a file of the tree past what the kernel keeps of it, and
// compares every byte.
func readOnce(name string, i int) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return err
	}
	got, err := io.ReadAll(f)
	if err != nil {
		return err
	}
	want := make([]byte, fileSize)
	fill(want, int64(i)*fileStep+512)
	if !bytes.Equal(got, want) {
		return fmt.Errorf("%s: %d bytes, not those of the layer", name, len(got))
	}
	return nil
}

// TestWorkerKilledWhileReading is the promise of this package: readers of both
// kinds of mount check every byte while worker after worker is killed, and see
// no error.
func TestWorkerKilledWhileReading(t *testing.T) {
	const kills, readers = 15, 4
	f := start(t)
	f.hello(t)
	dirs := []string{mountErofs(t, f), filepath.Join(f.mnt, "tree", "7")}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var reads atomic.Int64
	for r := range 2 * readers {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(r), 1))
			for ctx.Err() == nil {
				i := rnd.IntN(files)
				if err := readOnce(filepath.Join(dirs[r%2], fmt.Sprintf("f%03d", i)), i); err != nil {
					t.Errorf("reader %d: %v", r, err)
					return
				}
				reads.Add(1)
				dropFuseCache(f, i)
			}
		})
	}
	for k := range kills {
		before := reads.Load()
		for reads.Load() < before+20 { // reads go on between kills
			if t.Failed() {
				break
			}
			<-time.After(time.Millisecond)
		}
		pid, restarts := f.hello(t)
		if restarts != k {
			t.Errorf("worker says %d restarts after %d kills", restarts, k)
		}
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	f.hello(t)
	cancel()
	wg.Wait()
	t.Logf("%d whole-file reads compared over %d kills", reads.Load(), kills)
	for _, d := range dirs[:1] {
		if err := erofs.Unmount(d); err != nil {
			t.Error(err)
		}
	}
	f.finish(t)
}

// dropFuseCache makes the next reader of file i ask the worker again: EROFS
// reads through the page cache of the layer's file.
func dropFuseCache(f *fixture, i int) {
	l, err := os.Open(filepath.Join(f.mnt, "layer", "7"))
	if err != nil {
		return
	}
	defer l.Close()
	_ = unix.Fadvise(int(l.Fd()), int64(i)*fileStep, fileStep, unix.FADV_DONTNEED)
}

func TestBrokenWorkerEndsKeeper(t *testing.T) {
	f := start(t, "broken")
	if err := <-f.ended; err == nil || !strings.Contains(f.stderr.String(), ErrWorker.Error()+": exit status 1") {
		t.Errorf("keeper ended with %v:\n%s", err, f.stderr.String())
	}
}

func TestSecondKeeperIsRefused(t *testing.T) {
	f := start(t)
	f.hello(t)
	cfg := config(t.TempDir())
	cfg.Sockets[0].Path = f.sock
	if err := Run(t.Context(), cfg, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "another process serves it") {
		t.Errorf("second keeper: %v", err)
	}
	f.hello(t)
	f.finish(t)
}

func TestLeftMountIsCleared(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	dir := t.TempDir()
	dev, err := fusefs.Mount(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := dev.Close(); err != nil { // as when a keeper is killed
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, unix.ENOTCONN) {
		t.Fatalf("stat of a dead mount: %v", err)
	}
	if err := clearMounts(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Error(err)
	}
}

func TestAttachWithoutKeeper(t *testing.T) {
	cmd := []string{os.Args[0], "worker", "x"}
	p, err := os.StartProcess(cmd[0], cmd, &os.ProcAttr{Files: []*os.File{nil, nil, nil}})
	if err != nil {
		t.Fatal(err)
	}
	st, err := p.Wait()
	if err != nil || st.ExitCode() != 1 {
		t.Errorf("worker without keeper: %v, %v", st, err)
	}
}
