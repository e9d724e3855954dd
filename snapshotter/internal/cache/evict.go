package cache

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"path/filepath"
	"sync/atomic"
	"time"
)

var (
	// ErrFull is returned by Layer.Put when there is no room: the chunk is good,
	// but not kept.
	ErrFull = errors.New("no room in the cache")
	// ErrHeld is returned for a layer whose file the kernel reads by itself:
	// what is taken out of it would read as zeros.
	ErrHeld = errors.New("the kernel reads the layer's file directly")
)

const (
	// trimInterval is how often the file system is looked at: others fill it too.
	trimInterval = 2 * time.Second
	// reserveSize is kept to be given up when the disk is full: taking chunks
	// away needs a new map first, so an inode and the room of the largest map
	// that is likely (two million chunks).
	reserveSize = 256 << 10
	reserveName = "reserve"
	// block is what file systems hand out. Only whole blocks are given back.
	block = 4096
	// smallest is what the cache may occupy while others fill the disk: with
	// nothing at all, each page that is read would fetch its chunk again.
	smallest = 64 << 20
)

// Limits bound what a cache occupies. Zero values bound nothing.
type Limits struct {
	MaxBytes int64 // never more than this
	MinFree  int64 // leave so much of the file system to others
	// LowWater is the share of the room that a trim leaves, 0.9 if zero. It
	// starts half way between that and all of it.
	LowWater float64
}

const defaultLowWater = 0.9

// Stats says how full a cache is.
type Stats struct {
	Bytes   int64 // occupied
	Limit   int64 // allowed now; math.MaxInt64 without limits
	Held    int64 // of layers that the kernel reads directly, which stay
	Chunks  int64 // evicted since the start
	Evicted int64 // bytes of them
	Refused int64 // chunks that were not kept for want of room
}

// account estimates, between two measurements, what the cache occupies. It
// never estimates too low: what is being written while a measurement is made
// counts until the next.
type account struct {
	measured atomic.Int64 // at the last measurement
	begun    atomic.Int64 // written since, or being written
	done     atomic.Int64 // written since, completely
	limit    atomic.Int64
	high     atomic.Int64 // a trim begins
	low      atomic.Int64 // and ends
	full     atomic.Bool  // the file system said so

	chunks, evicted, refused atomic.Int64
}

func (a *account) unlimited() {
	for _, v := range []*atomic.Int64{&a.limit, &a.high, &a.low} {
		v.Store(math.MaxInt64)
	}
}

func (a *account) estimate() int64 { return a.measured.Load() + a.begun.Load() }

// cost is what a chunk of n bytes may come to occupy: it begins and ends inside
// blocks.
func cost(n int64) int64 { return (n+block-1)/block*block + block }

// admit counts n bytes to be written, unless there is no room. written must
// follow.
func (a *account) admit(n int64) (ok, trim bool) {
	if a.full.Load() {
		a.refused.Add(1)
		return false, true
	}
	if u := a.measured.Load() + a.begun.Add(n); u > a.limit.Load() {
		a.begun.Add(-n)
		a.refused.Add(1)
		return false, true
	} else if u > a.high.Load() {
		return true, true
	}
	return true, false
}

func (a *account) written(n int64) { a.done.Add(n) }

// measure replaces the estimate.
func (a *account) measure(f func() (int64, error)) (int64, error) {
	before := a.done.Load()
	n, err := f()
	if err != nil {
		return 0, err
	}
	a.measured.Store(n)
	a.done.Add(-before)
	a.begun.Add(-before)
	return n, nil
}

// bound works out the limits for what the cache occupies and the file system
// has left.
func (a *account) bound(l Limits, usage, free int64) {
	limit := int64(math.MaxInt64)
	if l.MinFree > 0 {
		limit = max(usage+free-l.MinFree, smallest)
	}
	if l.MaxBytes > 0 {
		limit = min(limit, l.MaxBytes)
	}
	if limit == math.MaxInt64 {
		a.unlimited()
		return
	}
	share := l.LowWater
	if share == 0 {
		share = defaultLowWater
	}
	low := int64(float64(limit) * share)
	a.limit.Store(limit)
	a.low.Store(low)
	a.high.Store(low + (limit-low)/2)
}

// Stats returns how full the cache is.
func (c *Cache) Stats() Stats {
	c.mu.Lock()
	held := c.held
	c.mu.Unlock()
	a := &c.account
	return Stats{
		Bytes: a.estimate(), Limit: a.limit.Load(), Held: held,
		Chunks: a.chunks.Load(), Evicted: a.evicted.Load(), Refused: a.refused.Load(),
	}
}

// room says whether n bytes more would leave the cache below the low-water
// mark.
func (c *Cache) room(n int64) bool {
	return !c.account.full.Load() && c.account.estimate() <= c.account.low.Load()-n
}

// wantTrim makes the trim loop look now.
func (c *Cache) wantTrim() {
	select {
	case c.squeeze <- struct{}{}:
	default:
	}
}

func (c *Cache) trimLoop(ctx context.Context) {
	t := time.NewTicker(trimInterval)
	defer t.Stop()
	last := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		case <-c.squeeze:
		}
		c.clock.Store(seconds(time.Now()))
		said := ""
		if err := c.trim(); err != nil {
			said = err.Error()
		}
		if said != "" && said != last { // once, not every two seconds
			c.log.Error("trim cache", "error", said)
		}
		last = said
	}
}

func seconds(t time.Time) uint32 { return uint32(max(0, min(t.Unix(), math.MaxUint32))) }

// trim measures the cache and takes the oldest chunks away if it is too large.
func (c *Cache) trim() error {
	c.trimming.Lock()
	defer c.trimming.Unlock()
	usage, err := c.measure()
	if err != nil {
		return err
	}
	full := c.account.full.Load()
	need := usage - c.account.low.Load()
	if full {
		need = max(need, min(flushBytes, usage/2))
	}
	if need <= 0 || usage <= c.account.high.Load() && !full {
		c.account.full.Store(false)
		return nil
	}
	freed, err := c.evictOldest(need)
	if freed > 0 {
		c.log.Debug("cache trimmed", "bytes", freed, "wanted", need)
	}
	c.account.full.Store(false) // what is written next finds out
	_, merr := c.measure()
	return errors.Join(err, merr)
}

// measure brings estimate and limits up to date. The caller holds c.trimming.
func (c *Cache) measure() (int64, error) {
	usage, err := c.account.measure(c.Usage)
	if err != nil {
		return 0, err
	}
	free := int64(0)
	if c.limits.MinFree > 0 {
		if free, err = c.disk.Free(c.dir); err != nil {
			return 0, err
		}
	}
	c.account.bound(c.limits, usage, free)
	return usage, nil
}

// ages sorts chunks by how long ago they were used, finer for the recent ones:
// eight steps for each doubling.
type ages [33 * 8]int64

func age(now, used uint32) int {
	if used >= now {
		return 0
	}
	d := now - used
	n := bits.Len32(d)
	if n <= 3 {
		return int(d)
	}
	return n*8 + int(d>>(n-4))&7
}

// evictOldest takes chunks worth at least n bytes away, those first that were
// not used for longest, and returns what that freed.
func (c *Cache) evictOldest(n int64) (freed int64, err error) {
	layers, now := c.open(), c.clock.Load()
	var sizes ages
	for _, l := range layers {
		l.weigh(now, &sizes)
	}
	// All of what is older than the cut, and as much as needed at it.
	cut, rest := len(sizes)-1, n
	for cut > 0 && sizes[cut] < rest {
		rest -= sizes[cut]
		cut--
	}
	var errs []error
	for _, l := range layers {
		f, err := l.evict(func(i int) bool {
			a := age(now, l.used[i])
			if l.state == Quarantined || a > cut {
				return true
			}
			if a < cut || rest <= 0 {
				return false
			}
			rest -= l.chunks[i].Size
			return true
		})
		freed += f
		if err != nil && !errors.Is(err, ErrHeld) {
			errs = append(errs, err)
		}
	}
	return freed, errors.Join(errs...)
}

// weigh adds the sizes of the chunks that could be taken away.
func (l *Layer) weigh(now uint32, sizes *ages) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held {
		return
	}
	for i := range l.chunks {
		if !l.present.has(i) || l.busy.has(i) {
			continue
		}
		a := age(now, l.used[i])
		if l.state == Quarantined { // nobody will read it
			a = len(sizes) - 1
		}
		sizes[a] += l.chunks[i].Size
	}
}

// Evict takes all chunks of the layer away and returns the bytes that were
// freed. Reads fetch them again. ErrHeld says that it cannot be.
func (l *Layer) Evict() (int64, error) {
	c := l.cache
	c.trimming.Lock()
	defer c.trimming.Unlock()
	freed, err := l.evict(func(int) bool { return true })
	if err == nil {
		_, err = c.measure()
	}
	return freed, err
}

// evict takes away the chunks that pick chooses, with l.mu held. First their
// bits go, durably, name of the map included; only then their bytes. So a crash
// between any two steps leaves a chunk that is there but not in the map, which
// its digest proves right, and never one that is in the map but not there.
func (l *Layer) evict(pick func(i int) bool) (freed int64, err error) {
	l.flush.Lock()
	defer l.flush.Unlock()
	victims, n, err := l.condemn(pick)
	if n == 0 {
		return 0, err
	}
	before, err := l.data.Stat()
	if err == nil {
		err = l.saveSpending()
	}
	if err != nil {
		l.reprieve(victims)
		return 0, fmt.Errorf("evict chunks of %s: %w", l.id, err)
	}
	if err := l.punch(victims); err != nil {
		// Where it cannot be done at all the chunks are still good. Their digests
		// tell.
		l.reprieve(victims)
		return 0, fmt.Errorf("evict chunks of %s: %w", l.id, err)
	}
	l.settle(victims)
	after, err := l.data.Stat()
	if err != nil {
		return 0, fmt.Errorf("evict chunks of %s: %w", l.id, err)
	}
	freed = max(0, before.space-after.space)
	l.cache.account.chunks.Add(int64(n))
	l.cache.account.evicted.Add(freed)
	return freed, nil
}

// condemn clears the bits of the chunks that pick chooses. From here on nobody
// begins to read them, and who has begun notices that the generation changed
// and reads again.
func (l *Layer) condemn(pick func(i int) bool) (victims bitmap, n int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held {
		return nil, 0, ErrHeld
	}
	victims = newBitmap(len(l.chunks))
	for i := range l.chunks {
		if l.chunks[i].Size == 0 || !l.present.has(i) || l.busy.has(i) || !pick(i) {
			continue
		}
		victims.set(i)
		n++
		l.present.unset(i)
		l.trusted.unset(i)
		l.busy.set(i)
	}
	if n > 0 {
		l.generation.Add(1)
		l.incomplete()
	}
	return victims, n, nil
}

// reprieve takes chunks back whose bytes may be untouched. They are compared
// with their digests before they are read.
func (l *Layer) reprieve(victims bitmap) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.chunks {
		if victims.has(i) {
			l.present.set(i)
			l.busy.unset(i)
		}
	}
}

func (l *Layer) settle(victims bitmap) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.chunks {
		if victims.has(i) {
			l.busy.unset(i)
		}
	}
}

// saveSpending saves the map so that its name is durable too. On a full disk
// the reserve is given up for it.
func (l *Layer) saveSpending() error {
	c := l.cache
	err := l.saveDurably()
	if !isFull(err) {
		return err
	}
	// Not there when an earlier trim used it up: then the answer is the same.
	_ = c.disk.Remove(filepath.Join(c.dir, reserveName))
	defer c.keepReserve()
	return l.saveDurably()
}

func (l *Layer) saveDurably() error {
	if err := l.save(true); err != nil {
		return err
	}
	return l.cache.disk.SyncDir(l.dir)
}

// keepReserve makes the reserve, if there is room for it.
func (c *Cache) keepReserve() {
	name := filepath.Join(c.dir, reserveName)
	if err := c.disk.Allocate(name, reserveSize); err != nil {
		_ = c.disk.Remove(name)
		c.log.Debug("no reserve for a full disk", "error", err)
	}
}

// punch gives back the whole blocks of the chunks, in as few calls as it takes.
func (l *Layer) punch(victims bitmap) error {
	for i := 0; i < len(l.chunks); i++ {
		if !victims.has(i) {
			continue
		}
		from := l.chunks[i].Offset
		for i+1 < len(l.chunks) && victims.has(i+1) {
			i++
		}
		to := l.chunks[i].Offset + l.chunks[i].Size
		if to < l.size {
			to = to / block * block
		}
		from = (from + block - 1) / block * block
		if to <= from {
			continue
		}
		if err := l.data.Punch(from, to-from); err != nil {
			return fmt.Errorf("punch hole: %w", err)
		}
	}
	return nil
}

// Room says whether n bytes more can be kept without others having to go soon.
func (l *Layer) Room(n int64) bool { return l.cache.room(n) }

// Hold keeps a complete layer as it is, for a kernel that reads its file by
// itself, until the layer is closed. It returns false if the layer is not
// complete, or if what is held would leave less to evict than the limits need.
func (l *Layer) Hold() bool {
	c := l.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held {
		return l.state == Complete
	}
	if l.state != Complete || c.held > c.account.low.Load()-l.size {
		return false
	}
	l.held = true
	c.held += l.size
	return true
}

// Keep holds the layer whatever its state and the limits: the kernel reads its
// file already.
func (l *Layer) Keep() {
	c := l.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.held {
		l.held = true
		c.held += l.size
	}
}
