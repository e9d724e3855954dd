package cache

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// manual makes a cache on a disk, without loops.
func manual(d disk, l Limits) []Option {
	return []Option{func(c *Cache) { c.disk, c.manual = d, true }, WithLimits(l)}
}

// life is what a node does to a layer: it fills, reads, evicts, completes and
// loses it. It ends when the power does.
func life(dir string, d *powerDisk, l *testLayer, rnd *rand.Rand) error {
	c, err := Open(dir, manual(d, Limits{MaxBytes: int64(len(l.data)) * 3 / 4})...)
	if err != nil {
		return err
	}
	defer c.lock.Close()
	cl, err := c.Layer(l.id, int64(len(l.data)), l.chunks)
	if err != nil {
		return err
	}
	power := func(err error) bool { return errors.Is(err, errPower) }
	for range 60 {
		i := rnd.IntN(len(l.chunks))
		switch rnd.IntN(12) {
		case 0:
			err = cl.Sync()
		case 1:
			err = c.trim()
		case 2:
			_, err = cl.Evict()
		case 3:
			d.full = 1 + rnd.IntN(2)
		case 4: // the whole of it, checked
			c.account.unlimited()
			for i := range l.chunks {
				if !cl.Has(i) {
					err = errors.Join(err, cl.Put(i, l.chunk(i)))
				}
			}
			if err == nil {
				err = cl.MarkComplete()
			}
		default:
			if !cl.Has(i) {
				err = cl.Put(i, l.chunk(i))
			}
		}
		if power(err) {
			return err
		}
		c.clock.Add(1)
	}
	return cl.Close()
}

// verify opens what a crash left: every chunk is right or missing, a layer that
// says it is complete is so byte for byte, and it can be filled again.
func (l *testLayer) verify(t *testing.T, dir string, d *powerDisk) {
	t.Helper()
	c, err := Open(dir, manual(d, Limits{})...)
	must(t, err)
	defer c.lock.Close()
	cl := l.open(t, c)
	raw := func(when string) {
		if f := d.files[cl.Path()]; !bytes.Equal(f.data, l.data) {
			t.Errorf("%s: the file of a complete layer is not the layer", when)
		}
	}
	if cl.Complete() {
		raw("at start")
	}
	l.present(t, cl)
	for i := range l.chunks {
		if !cl.Has(i) {
			must(t, cl.Put(i, l.chunk(i)))
		}
	}
	must(t, cl.MarkComplete())
	raw("filled again")
	if got := l.present(t, cl); len(got) != len(l.chunks) {
		t.Errorf("%d of %d chunks after filling", len(got), len(l.chunks))
	}
}

// TestPowerLoss cuts the power at every step of a layer's life, and looks at
// several of the states that the disk may be in then.
func TestPowerLoss(t *testing.T) {
	lives := 12
	if testing.Short() {
		lives = 2
	}
	l, dir := newTestLayer(9), t.TempDir()
	for seed := range lives {
		for step := 0; ; step++ {
			d := newPowerDisk(step)
			err := life(dir, d, l, rand.New(rand.NewPCG(uint64(seed), 1)))
			if err == nil {
				if step < 15 {
					t.Errorf("life %d has only %d steps", seed, step)
				}
				break
			}
			if !errors.Is(err, errPower) {
				t.Fatalf("life %d, step %d: %v", seed, step, err)
			}
			l.verify(t, dir, d.kill())
			for chance := range 4 {
				l.verify(t, dir, d.crash(rand.New(rand.NewPCG(uint64(seed*1000+step), uint64(chance)))))
			}
			if t.Failed() {
				t.Fatalf("life %d, step %d", seed, step)
			}
		}
	}
}

// TestEvictionOrder: what was used last stays.
func TestEvictionOrder(t *testing.T) {
	l := newTestLayer(100)
	c, err := Open(t.TempDir(), manual(osDisk{}, Limits{})...)
	must(t, err)
	defer c.Close()
	cl := l.open(t, c)
	for i := range l.chunks {
		c.clock.Add(10)
		must(t, cl.Put(i, l.chunk(i)))
	}
	c.clock.Add(10)
	_, err = cl.ReadAt(make([]byte, 1), l.chunks[2].Offset) // the third is used again
	must(t, err)
	_, err = cl.PeekAt(make([]byte, 1), l.chunks[3].Offset) // which a check is not
	must(t, err)
	_, err = c.evictOldest(int64(len(l.data)) / 2)
	must(t, err)
	got := l.present(t, cl)
	if len(got) < 30 || len(got) > 60 || got[0] != 2 || got[1] < 35 {
		t.Errorf("after evicting half, these are left: %v", got)
	}
	for age, used := range map[uint32]uint32{0: 100, 1: 99, 100: 0} {
		if a, b := ageOf(100, used), age; a < ageOf(100, 100-b) {
			t.Errorf("age %d sorts as %d", b, a)
		}
	}
}

func ageOf(now, used uint32) int { return age(now, used) }

func TestAgesAreOrdered(t *testing.T) {
	last := -1
	for d := uint32(0); d < 1<<20; d++ {
		a := age(1<<30, 1<<30-d)
		if a < last || a >= len(ages{}) {
			t.Fatalf("age %d is in step %d, after %d", d, a, last)
		}
		last = a
	}
	if a := age(1<<32-1, 0); a <= last || a >= len(ages{}) {
		t.Errorf("the greatest age is in step %d", a)
	}
	if age(5, 6) != 0 {
		t.Error("a clock that went back ages chunks")
	}
}

// TestLimit: a cache never occupies more than it may, whatever is put, and goes
// on working.
func TestLimit(t *testing.T) {
	const limit = 1 << 20
	dir := t.TempDir()
	c, err := Open(dir, WithLimits(Limits{MaxBytes: limit}))
	must(t, err)
	defer c.Close()
	var wg sync.WaitGroup
	kept := make([]int, 4)
	for g := range kept {
		l := newTestLayer(100 + g) // about 1 MiB each
		cl := l.open(t, c)
		wg.Go(func() {
			for i := range l.chunks {
				err := cl.Put(i, l.chunk(i))
				switch {
				case err == nil:
					kept[g]++
				case errors.Is(err, ErrFull): // a reader has it all the same
					must(t, c.trim())
				default:
					t.Error(err)
				}
				if i%10 == 0 {
					if n, err := c.Usage(); err != nil || n > limit {
						t.Errorf("%d bytes of %d, %v", n, limit, err)
					}
				}
			}
			l.present(t, cl)
		})
	}
	wg.Wait()
	must(t, c.trim())
	st := c.Stats()
	if st.Chunks == 0 || st.Evicted == 0 || st.Bytes > limit || st.Limit != limit {
		t.Errorf("stats: %+v", st)
	}
	for g, n := range kept {
		if n < 30 {
			t.Errorf("layer %d kept %d chunks only", g, n)
		}
	}
}

// TestEvictWhileReading: readers that run beside evictions get right bytes or
// none.
func TestEvictWhileReading(t *testing.T) {
	c := openCache(t, t.TempDir())
	defer c.Close()
	l := newTestLayer(30)
	cl := l.open(t, c)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	loop := func(f func(rnd *rand.Rand)) {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(rand.Uint64(), 1))
			for {
				select {
				case <-stop:
					return
				default:
					f(rnd)
				}
			}
		})
	}
	for range 2 {
		loop(func(rnd *rand.Rand) {
			i := rnd.IntN(len(l.chunks))
			if err := cl.Put(i, l.chunk(i)); err != nil && !errors.Is(err, ErrFull) {
				t.Error(err)
			}
		})
	}
	for range 4 {
		loop(func(rnd *rand.Rand) {
			off := rnd.IntN(len(l.data) - 1)
			p := make([]byte, 1+rnd.IntN(min(30_000, len(l.data)-off)))
			n, err := cl.ReadAt(p, int64(off))
			if err == nil && !bytes.Equal(p[:n], l.data[off:off+n]) {
				t.Errorf("%d wrong bytes at %d", n, off)
			}
		})
	}
	for n := 0; n < 200 && c.Stats().Chunks < 600; n++ {
		before := c.Stats().Chunks
		_, err := cl.Evict()
		must(t, err)
		if c.Stats().Chunks == before {
			n-- // the writers had no turn
			runtime.Gosched()
		}
	}
	close(stop)
	wg.Wait()
}

// interrupted is a disk on which something happens between the decision to read
// and the reading.
type interrupted struct {
	osDisk
	before func()
}

type interruptedFile struct {
	file
	disk *interrupted
}

func (d *interrupted) Open(name string) (file, error) {
	f, err := d.osDisk.Open(name)
	return interruptedFile{f, d}, err
}

func (f interruptedFile) ReadAt(p []byte, off int64) (int, error) {
	if do := f.disk.before; do != nil {
		f.disk.before = nil
		do()
	}
	return f.file.ReadAt(p, off)
}

// TestEvictBeforeRead: the chunk goes, and perhaps comes back, after a reader
// has seen that it is there.
func TestEvictBeforeRead(t *testing.T) {
	d, l := &interrupted{}, newTestLayer(6)
	c, err := Open(t.TempDir(), manual(d, Limits{})...)
	must(t, err)
	defer c.Close()
	cl := l.open(t, c)
	for _, back := range []bool{false, true} {
		if !cl.Has(3) {
			must(t, cl.Put(3, l.chunk(3)))
		}
		d.before = func() {
			_, err := cl.Evict()
			must(t, err)
			if back {
				must(t, cl.Put(3, l.chunk(3)))
			}
		}
		p := make([]byte, l.chunks[3].Size)
		_, err := cl.ReadAt(p, l.chunks[3].Offset)
		if !back && !errors.Is(err, ErrMissing) || back && (err != nil || !bytes.Equal(p, l.chunk(3))) {
			t.Errorf("back %v: %v", back, err)
		}
	}
}

// TestProven: a complete layer that loses a chunk is not complete, now or after
// a restart, and remembers that its index is right.
func TestProven(t *testing.T) {
	dir, l := t.TempDir(), newTestLayer(20)
	c := openCache(t, dir)
	cl := l.open(t, c)
	for i := range l.chunks {
		must(t, cl.Put(i, l.chunk(i)))
	}
	must(t, cl.MarkComplete())
	freed, err := cl.Evict()
	if err != nil || freed < int64(len(l.data))*8/10 {
		t.Errorf("freed %d of %d bytes, %v", freed, len(l.data), err)
	}
	for range 2 {
		if cl.State() != Proven || cl.Present() != 0 {
			t.Errorf("state %d with %d chunks", cl.State(), cl.Present())
		}
		must(t, c.Close())
		c = openCache(t, dir)
		cl = l.open(t, c)
	}
	for i := range l.chunks {
		must(t, cl.Put(i, l.chunk(i)))
	}
	must(t, cl.MarkComplete())
	must(t, c.Close())
}

// TestHeld: what the kernel reads by itself stays whole, and no more is held
// than the limit can do without.
func TestHeld(t *testing.T) {
	one, two := newTestLayer(40), newTestLayer(41)
	c, err := Open(t.TempDir(), manual(osDisk{}, Limits{MaxBytes: reserveSize + int64(len(one.data)+len(two.data))*3/5})...)
	must(t, err)
	defer c.Close()
	open := func(l *testLayer) *Layer {
		cl := l.open(t, c)
		if cl.Hold() {
			t.Error("an incomplete layer is held")
		}
		limit := c.account.limit.Swap(1 << 40)
		for i := range l.chunks {
			must(t, cl.Put(i, l.chunk(i)))
		}
		must(t, cl.MarkComplete())
		c.account.limit.Store(limit)
		return cl
	}
	first := open(one)
	for range 2 { // by two mounts
		if !first.Hold() {
			t.Error("the first layer is not held")
		}
	}
	second := open(two)
	if second.Hold() {
		t.Error("more is held than the limit allows")
	}
	must(t, c.trim())
	if _, err := first.Evict(); !errors.Is(err, ErrHeld) {
		t.Errorf("evict a held layer: %v", err)
	}
	if !first.Complete() || len(one.present(t, first)) != 40 {
		t.Error("a held layer lost chunks")
	}
	if second.Complete() || c.Stats().Bytes > c.Stats().Limit {
		t.Errorf("nothing was evicted: %+v", c.Stats())
	}
	must(t, first.Close())
	if c.Stats().Held != 0 {
		t.Error("a closed layer is held")
	}
}

// fileSystem mounts a small one for a test.
func fileSystem(t *testing.T, kind string, size int64) string {
	t.Helper()
	if unix.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	dir := t.TempDir()
	mounted := filepath.Join(dir, "mnt")
	must(t, unix.Mkdir(mounted, 0o700))
	switch kind {
	case "tmpfs":
		must(t, unix.Mount("tmpfs", mounted, "tmpfs", 0, fmt.Sprintf("size=%d,nr_inodes=100", size)))
	case "no inodes":
		must(t, unix.Mount("tmpfs", mounted, "tmpfs", 0, fmt.Sprintf("size=%d,nr_inodes=9", size)))
	case "ext4":
		image := filepath.Join(dir, "image")
		run(t, "truncate", "-s", fmt.Sprint(size), image)
		run(t, "mkfs.ext4", "-q", "-m", "0", image)
		run(t, "mount", "-o", "loop", image, mounted)
	}
	t.Cleanup(func() { must(t, unix.Unmount(mounted, 0)) })
	return filepath.Join(mounted, "cache")
}

// TestFullDisk fills a file system that is smaller than the layer. Everything
// that is read is right, what does not fit is refused, and eviction makes room
// though not even a map could be written.
func TestFullDisk(t *testing.T) {
	for _, kind := range []string{"tmpfs", "ext4", "no inodes"} {
		t.Run(kind, func(t *testing.T) {
			dir := fileSystem(t, kind, 16<<20)
			if kind == "no inodes" {
				dir = fileSystem(t, kind, 64<<20)
			}
			// Limits that do not see it coming.
			c, err := Open(dir, manual(osDisk{}, Limits{MaxBytes: 1 << 40})...)
			must(t, err)
			l := newTestLayer(2000) // about 20 MB
			cl := l.open(t, c)
			refused := 0
			for i := range l.chunks {
				err := cl.Put(i, l.chunk(i))
				if errors.Is(err, ErrFull) {
					refused++
				} else {
					must(t, err)
				}
			}
			fill(t, filepath.Dir(dir)) // others take the rest
			if kind != "no inodes" && refused == 0 {
				t.Error("everything fits: the test is too small")
			}
			_ = cl.Sync() // may fail; nothing is wrong
			l.present(t, cl)
			c.account.full.Store(true)
			must(t, c.trim())
			if st := c.Stats(); st.Evicted == 0 {
				t.Errorf("no room was made: %+v", st)
			}
			must(t, cl.Put(1999, l.chunk(1999)))
			got := len(l.present(t, cl))
			// Without an inode the last map is not written: what it would have said is
			// found out by hashing.
			if err := c.Close(); err != nil && !isFull(err) {
				t.Error(err)
			}
			c, err = Open(dir, manual(osDisk{}, Limits{})...)
			must(t, err)
			if again := len(l.present(t, l.open(t, c))); again != got {
				t.Errorf("%d chunks after a restart, %d before", again, got)
			}
			_ = c.Close()
		})
	}
}

// TestNoMap: while the map cannot be written at all nothing is evicted, and what
// was there is still served.
func TestNoMap(t *testing.T) {
	d, l := newPowerDisk(-1), newTestLayer(10)
	c, err := Open(t.TempDir(), manual(d, Limits{})...)
	must(t, err)
	defer c.lock.Close()
	cl := l.open(t, c)
	for i := range l.chunks {
		must(t, cl.Put(i, l.chunk(i)))
	}
	must(t, cl.MarkComplete())
	d.full = 100
	if _, err := cl.Evict(); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("evict without a map: %v", err)
	}
	if got := l.present(t, cl); len(got) != len(l.chunks) {
		t.Errorf("%d chunks are left", len(got))
	}
}

// TestEvictClosed: a trim that comes late for a layer changes nothing of it.
func TestEvictClosed(t *testing.T) {
	c, l := openCache(t, t.TempDir()), newTestLayer(5)
	defer c.Close()
	old := l.open(t, c)
	must(t, old.Put(2, l.chunk(2)))
	must(t, old.Close())
	again := l.open(t, c)
	if _, err := old.Evict(); err == nil {
		t.Error("a closed layer was evicted")
	}
	must(t, again.Put(3, l.chunk(3)))
	must(t, again.Close())
	if got := l.present(t, l.open(t, c)); len(got) != 2 {
		t.Errorf("these chunks are left: %v", got)
	}
}

// TestUseSurvivesRestart: the order of layers is that of their last uses.
func TestUseSurvivesRestart(t *testing.T) {
	dir, l := t.TempDir(), newTestLayer(3)
	c, err := Open(dir, manual(osDisk{}, Limits{})...)
	must(t, err)
	cl := l.open(t, c)
	must(t, cl.Put(1, l.chunk(1)))
	used := seconds(time.Now().Add(-time.Hour))
	for i := range cl.used {
		cl.used[i] = used
	}
	must(t, cl.Close())
	must(t, c.Close())
	c, err = Open(dir, manual(osDisk{}, Limits{})...)
	must(t, err)
	defer c.Close()
	if got := l.open(t, c).used[1]; got != used {
		t.Errorf("used at %d, was %d", got, used)
	}
}
