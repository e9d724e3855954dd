package fusefs

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/firstlight-dev/firstlight/snapshotter/internal/treetest"
)

// deadID is a layer whose registry does not answer while a file named dead
// exists. Each of its reads reports.
const (
	deadID   = 20
	deadSize = 32 << 20
)

type dead struct{ dir string }

func (dead) Size() int64 { return deadSize }

func (d dead) ReadAtContext(ctx context.Context, p []byte, _ int64) (int, error) {
	for {
		if matches, _ := filepath.Glob(filepath.Join(d.dir, "dead")); len(matches) == 0 {
			clear(p)
			return len(p), nil
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// flood reads as many places of a file at a time as it is told.
func flood(path, count string) {
	n, _ := strconv.Atoi(count)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			f, err := os.Open(path)
			if err != nil {
				return
			}
			defer f.Close()
			_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_RANDOM)
			_, _ = f.ReadAt(make([]byte, 1), int64(i)*8192)
		})
	}
	wg.Wait()
}

// waits returns what tells how many requests the kernel waits for.
func (m *mount) waits(t *testing.T) func() int {
	t.Helper()
	ctl := t.TempDir()
	if err := unix.Mount("none", ctl, "fusectl", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(ctl, unix.MNT_DETACH) })
	var st unix.Stat_t
	if err := unix.Stat(m.dir, &st); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(ctl, strconv.FormatUint(uint64(unix.Minor(st.Dev)), 10), "waiting")
	return func() int {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		n, err := strconv.Atoi(strings.TrimSpace(string(b)))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
}

// startFlood starts a process with so many reads that hang, and returns when
// all of them do.
func (m *mount) startFlood(t *testing.T, waiting func() int, reads int) *exec.Cmd {
	t.Helper()
	m.flag(t, "dead", true)
	cmd := exec.Command(os.Args[0], "flood", filepath.Join(m.dir, "layer", fmt.Sprint(deadID)), fmt.Sprint(reads))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // before the mount goes, which it holds
	for end := time.Now().Add(time.Minute); waiting() < reads; {
		if time.Now().After(end) {
			t.Fatalf("%d of %d reads hang", waiting(), reads)
		}
		<-time.After(10 * time.Millisecond)
	}
	return cmd
}

// TestFlood: one who reads two thousand places of a layer that does not come
// keeps nobody else waiting, and can be killed.
func TestFlood(t *testing.T) {
	const reads = 2000
	m := start(t)
	waiting := m.waits(t)
	cmd := m.startFlood(t, waiting, reads)
	begun := time.Now()
	got, err := os.ReadFile(m.layer())
	if err != nil || !bytes.Equal(got, treetest.Zoo().Device) {
		t.Errorf("beside the flood: %d bytes, %v", len(got), err)
	}
	t.Logf("a layer of %d bytes was read in %v beside %d reads that hang", len(got), time.Since(begun), waiting())
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil || !strings.Contains(err.Error(), "killed") { // while nothing comes
		t.Errorf("killed flood: %v", err)
	}
	m.flag(t, "dead", false)
}

// TestFloodEnds: reads that waited for their turn are answered, also those whose
// threads got signals meanwhile.
func TestFloodEnds(t *testing.T) {
	m := start(t)
	waiting := m.waits(t)
	cmd := m.startFlood(t, waiting, 400)
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, th := range threads { // Go's runtime interrupts its threads by it all the time
		if tid, err := strconv.Atoi(filepath.Base(th)); err == nil {
			_ = unix.Tgkill(cmd.Process.Pid, tid, unix.SIGURG)
		}
	}
	m.flag(t, "dead", false)
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if n := waiting(); n != 0 {
		t.Errorf("%d requests are left", n)
	}
}
