package profiles

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/firstlight-dev/firstlight/indexer/profile"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/lazy"
)

// node is layers that tests read from.
type node struct {
	size int64

	mu       sync.Mutex
	watchers map[digest.Digest]*lazy.Watcher
}

func (n *node) watch(d digest.Digest, w *lazy.Watcher) (int64, func(), bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.watchers[d] = w
	return n.size, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.watchers[d] == w {
			delete(n.watchers, d)
		}
	}, !strings.HasPrefix(d.Encoded(), "00")
}

func (n *node) read(d digest.Digest, off, size int64) {
	n.mu.Lock()
	w := n.watchers[d]
	n.mu.Unlock()
	if w != nil {
		w.Touched(off, size)
	}
}

func open(t *testing.T, dir string, quiet time.Duration, log *bytes.Buffer) (*Book, *node) {
	t.Helper()
	n := &node{size: 100*profile.Unit - 7, watchers: map[digest.Digest]*lazy.Watcher{}}
	b, err := Open(t.Context(), Config{Dir: dir, Record: true, Quiet: quiet, Watch: n.watch, Log: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b, n
}

var (
	layerA = digest.FromString("a")
	layerB = digest.FromString("b")
)

func anImage() Image {
	return Image{Ref: "r/i:1", Manifest: digest.FromString("m"), Command: []string{"sh"}, Layers: []digest.Digest{layerA, layerB, layerA}}
}

func TestRecording(t *testing.T) {
	b, n := open(t, t.TempDir(), time.Hour, &bytes.Buffer{})
	im := anImage()
	if _, err := b.Begin(im); err != nil {
		t.Fatal(err)
	}
	if s := b.State(im.Manifest); s != StateRecording {
		t.Errorf("state is %q", s)
	}
	n.read(layerB, 5000, 10)                // unit 1
	n.read(layerB, 8192, 1)                 // unit 2, which joins
	n.read(layerB, 0, 3*profile.Unit)       // 0; 1 and 2 are known
	n.read(layerB, 4096, 4096)              // known
	n.read(layerB, 99*profile.Unit, 100000) // beyond the end
	n.read(layerB, 1<<40, 1)
	got, err := b.End(im.Ref, profile.Usable, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := &profile.Profile{Manifest: im.Manifest, Command: []string{"sh"}, Reason: profile.Usable,
		Layers: []profile.Layer{{Digest: layerB, Size: n.size}},
		Parts:  []profile.Part{{First: 1, Count: 2}, {First: 0, Count: 1}, {First: 99, Count: 1}}}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("profile (-want +got):\n%s", d)
	}
	if len(n.watchers) != 0 {
		t.Error("an ended recording still sees reads")
	}
	if _, err := b.End(im.Ref, profile.Usable, nil); !errors.Is(err, ErrNotFound) {
		t.Errorf("ended twice: %v", err)
	}
	kept, err := b.Find(im.Manifest, []string{"sh"})
	if err != nil || len(kept) != 1 {
		t.Fatalf("kept %v, %v", kept, err)
	}
	if d := cmp.Diff(want, kept[0]); d != "" {
		t.Errorf("kept profile (-want +got):\n%s", d)
	}
}

// TestRecorderAgainstASet reads at random, from several threads, and compares
// with a set of units.
func TestRecorderAgainstASet(t *testing.T) {
	layers := []profile.Layer{{Digest: layerA, Size: 3001 * profile.Unit}, {Digest: layerB, Size: 777*profile.Unit + 1}}
	r := newRecorder(layers)
	var mu sync.Mutex
	want := map[[2]int64]bool{}
	var wg sync.WaitGroup
	for seed := range uint64(4) {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, 0))
			for range 300 {
				l := rnd.IntN(2)
				off := rnd.Int64N(layers[l].Size)
				n := 1 + rnd.Int64N(20*profile.Unit)
				r.touch(l, off, n)
				mu.Lock()
				for u := off / profile.Unit; u <= (min(off+n, layers[l].Size)-1)/profile.Unit; u++ {
					want[[2]int64{int64(l), u}] = true
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	got := map[[2]int64]bool{}
	p := r.profile(digest.FromString("m"), nil, profile.Quiet)
	if _, err := p.Encode(); err != nil {
		t.Fatal(err)
	}
	for _, x := range p.Parts {
		l := int64(0)
		if p.Layers[x.Layer].Digest == layerB {
			l = 1
		}
		for u := x.First; u < x.First+x.Count; u++ {
			got[[2]int64{l, u}] = true
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("units (-want +got):\n%s", d)
	}
}

func TestRecorderIsBounded(t *testing.T) {
	r := newRecorder([]profile.Layer{{Digest: layerA, Size: 4 * profile.MaxParts * profile.Unit}})
	for i := range int64(profile.MaxParts + 10) {
		r.touch(0, 2*i*profile.Unit, 1)
	}
	if _, _, full := r.state(); !full || len(r.parts) != profile.MaxParts {
		t.Errorf("%d parts, full is %v", len(r.parts), full)
	}
	if _, err := r.profile(digest.FromString("m"), nil, profile.Full).Encode(); err != nil {
		t.Error(err)
	}
}

// TestBeginAnew: what was read before does not count.
func TestBeginAnew(t *testing.T) {
	b, n := open(t, t.TempDir(), time.Hour, &bytes.Buffer{})
	im := anImage()
	first, err := b.Begin(im)
	if err != nil {
		t.Fatal(err)
	}
	n.read(layerA, 0, 1)
	if _, err := b.Begin(im); err != nil {
		t.Fatal(err)
	}
	<-first.done
	n.read(layerB, profile.Unit, 1)
	p, err := b.End(im.Manifest.String(), profile.Stopped, []string{"other"})
	if err != nil || len(p.Layers) != 1 || p.Layers[0].Digest != layerB || p.Command[0] != "other" {
		t.Errorf("profile is %+v, %v", p, err)
	}
}

// TestQuietEnds: a recording that nobody ends does so itself.
func TestQuietEnds(t *testing.T) {
	b, n := open(t, t.TempDir(), 10*time.Millisecond, &bytes.Buffer{})
	if _, err := b.Begin(anImage()); err != nil {
		t.Fatal(err)
	}
	n.read(layerA, 0, 1)
	b.work.Wait()
	kept, err := b.List()
	if err != nil || len(kept) != 1 || kept[0].Reason != profile.Quiet {
		t.Errorf("kept %+v, %v", kept, err)
	}
}

// TestLostRecordings: a worker says what its predecessor took with it, once.
func TestLostRecordings(t *testing.T) {
	dir := t.TempDir()
	var log bytes.Buffer
	b, n := open(t, dir, time.Hour, &bytes.Buffer{})
	im := anImage()
	if _, err := b.Begin(im); err != nil {
		t.Fatal(err)
	}
	n.read(layerA, 0, 1)
	open(t, dir, time.Hour, &log) // as if b's process were gone
	if !strings.Contains(log.String(), "lost") || !strings.Contains(log.String(), im.Manifest.Encoded()) {
		t.Errorf("the next worker says %q", log.String())
	}
	log.Reset()
	again, _ := open(t, dir, time.Hour, &log)
	if kept, err := again.List(); err != nil || len(kept) != 0 || log.Len() != 0 {
		t.Errorf("kept %v, %v; said %q", kept, err, log.String())
	}
}

func TestShelf(t *testing.T) {
	dir := t.TempDir()
	var log bytes.Buffer
	b, _ := open(t, dir, time.Hour, &log)
	m := digest.FromString("m")
	put := func(command ...string) {
		t.Helper()
		if err := b.Put(&profile.Profile{Manifest: m, Command: command, Reason: profile.Quiet,
			Layers: []profile.Layer{{Digest: layerA, Size: 1}}, Parts: []profile.Part{{Count: 1}}}); err != nil {
			t.Fatal(err)
		}
	}
	put("sh")
	put("sh")
	put("python3")
	for _, command := range []string{"sh", "python3"} {
		all, err := b.Find(m, []string{command})
		if err != nil || len(all) != 2 || all[0].Command[0] != command {
			t.Errorf("for %s: %v, %v", command, all, err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, prefix(m)+"-damaged"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if all, err := b.Find(m, nil); err != nil || len(all) != 2 || !strings.Contains(log.String(), "of no use") {
		t.Errorf("with a damaged one: %v, %v; said %q", all, err, log.String())
	}
	if n, err := b.Remove(m); err != nil || n != 3 {
		t.Errorf("removed %d, %v", n, err)
	}
	if _, err := b.Find(m, nil); !errors.Is(err, ErrNotFound) {
		t.Errorf("found after removal: %v", err)
	}
	for i := range maxKept + 5 {
		put(fmt.Sprint(i))
	}
	if all, err := b.List(); err != nil || len(all) != maxKept {
		t.Errorf("%d are kept, %v", len(all), err)
	}
}

func TestWanted(t *testing.T) {
	b, _ := open(t, t.TempDir(), time.Hour, &bytes.Buffer{})
	im := anImage()
	b.Want(im.Ref)
	if !b.Wanted(im.Ref, im.Manifest) || b.Wanted(im.Ref, im.Manifest) {
		t.Error("an image that was asked for is to be recorded once")
	}
}
