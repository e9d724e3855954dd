package cache

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/firstlight-dev/firstlight/indexer/index"
)

const (
	dataName = "data"
	mapName  = "map"
)

// Layer is the cached part of one layer. It is safe for concurrent use.
type Layer struct {
	cache    *Cache
	id       digest.Digest
	dir      string
	size     int64
	chunks   []index.Chunk
	identity [32]byte
	data     file
	refs     int // guarded by cache.mu

	generation atomic.Uint64 // of evictions: the number of those begun

	flush sync.Mutex // held while data is synced and the map replaced, and during an eviction

	mu      sync.Mutex
	state   State
	saved   State
	present bitmap
	trusted bitmap   // subset of present
	durable bitmap   // what the map file says
	busy    bitmap   // being written or evicted: neither begins on these
	used    []uint32 // when each chunk was last read or put, by the cache's clock
	held    bool     // the kernel reads the data file by itself
	dirty   int64    // bytes put since the last flush began
}

func openLayer(c *Cache, id digest.Digest, size int64, chunks []index.Chunk, sum [32]byte) (*Layer, error) {
	dir := c.layerDir(id)
	if err := c.disk.MkdirAll(dir); err != nil {
		return nil, err
	}
	f, err := c.disk.Open(filepath.Join(dir, dataName))
	if err != nil {
		return nil, err
	}
	n := len(chunks)
	l := &Layer{
		cache: c, id: id, dir: dir, size: size, chunks: chunks, identity: sum, data: f, refs: 1,
		present: newBitmap(n), trusted: newBitmap(n), durable: newBitmap(n), busy: newBitmap(n), used: make([]uint32, n),
	}
	if err := l.load(); err != nil {
		_ = f.Close()
		return nil, err
	}
	return l, nil
}

// load reads the map and brings the data file to the layer's size.
func (l *Layer) load() error {
	b, err := l.cache.disk.ReadFile(filepath.Join(l.dir, mapName), maxMap)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	fi, err := l.data.Stat()
	if err != nil {
		return err
	}
	used := seconds(fi.used)
	for i := range l.used {
		l.used[i] = used
	}
	if len(b) > 0 && fi.size == l.size {
		if s, set, err := decodeMap(b, l.identity, len(l.chunks)); err == nil {
			l.state, l.saved = s, s
			l.present, l.durable = set, set.clone()
		}
	}
	if fi.size != l.size {
		if err := l.data.Truncate(l.size); err != nil {
			return err
		}
	}
	if l.state == Partial || l.state == Proven {
		return l.recoverChunks()
	}
	return nil
}

// recoverChunks takes back chunks that were written but not yet in the map when
// the process was killed. Only runs of the file that hold data are looked at,
// so after an orderly end this reads nothing.
func (l *Layer) recoverChunks() error {
	budget := int64(recoverBytes)
	var hole int64 // data up to here
	for i := range l.chunks {
		c := &l.chunks[i]
		if l.present.has(i) || c.Size == 0 {
			continue
		}
		if hole < c.Offset+c.Size {
			var err error
			if hole, err = l.data.DataEnd(c.Offset); err != nil {
				return err
			}
		}
		if hole < c.Offset+c.Size {
			continue
		}
		if budget -= c.Size; budget < 0 {
			return nil
		}
		ok, err := l.matches(i)
		if err != nil {
			return err
		}
		if ok {
			l.present.set(i)
			l.trusted.set(i)
			l.dirty += c.Size
		}
	}
	return nil
}

func (l *Layer) matches(i int) (bool, error) {
	c := &l.chunks[i]
	h := sha256.New()
	if _, err := io.Copy(h, io.NewSectionReader(l.data, c.Offset, c.Size)); err != nil {
		return false, err
	}
	return [32]byte(h.Sum(nil)) == c.Digest, nil
}

// Path names the data file: once the layer is complete, the layer's tar.
func (l *Layer) Path() string { return filepath.Join(l.dir, dataName) }

// Size is the size of the layer's tar stream.
func (l *Layer) Size() int64 { return l.size }

// Has says whether chunk i is present.
func (l *Layer) Has(i int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.present.has(i)
}

// Present is the number of chunks that are present.
func (l *Layer) Present() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.present.count()
}

// State is what is known about the layer as a whole.
func (l *Layer) State() State {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state
}

// Complete says whether the layer was checked as a whole. Its data file can
// then be used by itself.
func (l *Layer) Complete() bool { return l.State() == Complete }

// Usage is the disk space of the layer.
func (l *Layer) Usage() (int64, error) { return l.cache.disk.Space(l.dir) }

// ReadAt reads bytes whose chunks are all present. It returns ErrMissing if one
// is not, and after dropping one that does not match its digest.
func (l *Layer) ReadAt(p []byte, off int64) (int, error) {
	return l.read(p, off, l.cache.clock.Load())
}

// PeekAt works as ReadAt does, but does not count as a use of the chunks.
func (l *Layer) PeekAt(p []byte, off int64) (int, error) { return l.read(p, off, 0) }

func (l *Layer) read(p []byte, off int64, now uint32) (int, error) {
	if off < 0 || off > l.size {
		return 0, fmt.Errorf("read cached layer at %d: %w", off, fs.ErrInvalid)
	}
	short := int64(len(p)) > l.size-off
	if short {
		p = p[:l.size-off]
	}
	for {
		// An eviction that begins after this line is noticed below; one that had
		// begun before has cleared its bits.
		generation := l.generation.Load()
		if err := l.trust(off, int64(len(p)), now); err != nil {
			return 0, err
		}
		n, err := l.data.ReadAt(p, off)
		if l.generation.Load() != generation {
			continue
		}
		if err == nil && short {
			err = io.EOF
		}
		return n, err
	}
}

// trust makes sure that every chunk in a range is present and compared.
func (l *Layer) trust(off, n int64, now uint32) error {
	if n == 0 {
		return nil
	}
	for i := chunkAt(l.chunks, off); i < len(l.chunks) && l.chunks[i].Offset < off+n; i++ {
		l.mu.Lock()
		state, present, trusted := l.state, l.present.has(i), l.trusted.has(i)
		if now > l.used[i] {
			l.used[i] = now
		}
		l.mu.Unlock()
		if state == Quarantined {
			return fmt.Errorf("read layer %s: %w", l.id, ErrQuarantined)
		}
		if !present {
			return ErrMissing
		}
		if trusted {
			continue
		}
		if err := l.compare(i); err != nil {
			return err
		}
	}
	return nil
}

// compare makes a chunk trusted, or drops it and returns ErrMissing.
func (l *Layer) compare(i int) error {
	ok, err := l.matches(i)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, syscall.EIO) {
		return fmt.Errorf("read cached layer %s: %w", l.id, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case !l.present.has(i): // evicted meanwhile
		return ErrMissing
	case ok:
		l.trusted.set(i)
		return nil
	}
	l.present.unset(i)
	l.incomplete()
	return ErrMissing
}

// incomplete notes that a chunk went. The whole was checked, so what the index
// says of chunks stays proven. The caller holds l.mu.
func (l *Layer) incomplete() {
	if l.state == Complete {
		l.state = Proven
	}
}

func chunkAt(chunks []index.Chunk, off int64) int {
	lo, hi := 0, len(chunks)
	for lo < hi {
		if m := (lo + hi) / 2; chunks[m].Offset <= off {
			lo = m + 1
		} else {
			hi = m
		}
	}
	return max(lo-1, 0)
}

// Put stores chunk i. The caller has verified data against the chunk's digest.
// ErrFull says that there is no room, also while the chunk is being evicted.
func (l *Layer) Put(i int, data []byte) error {
	c := &l.chunks[i]
	if int64(len(data)) != c.Size {
		return fmt.Errorf("put chunk %d of %s: %d bytes, want %d", i, l.id, len(data), c.Size)
	}
	room := cost(c.Size)
	ok, trim := l.cache.account.admit(room)
	if trim {
		l.cache.wantTrim()
	}
	if !ok || !l.reserve(i) {
		if ok {
			l.cache.account.written(room)
		}
		return fmt.Errorf("put chunk %d of %s: %w", i, l.id, ErrFull)
	}
	_, err := l.data.WriteAt(data, c.Offset)
	l.cache.account.written(room)
	if err != nil {
		l.unwrite(i)
		if isFull(err) {
			l.cache.account.full.Store(true)
			l.cache.wantTrim()
			return fmt.Errorf("put chunk %d of %s: %w: %w", i, l.id, ErrFull, err)
		}
		return fmt.Errorf("put chunk %d of %s: %w", i, l.id, err)
	}
	if l.stored(i) {
		select {
		case l.cache.kick <- struct{}{}:
		default:
		}
	}
	return nil
}

// reserve keeps evictions away from a chunk that will be written.
func (l *Layer) reserve(i int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.busy.has(i) {
		return false
	}
	l.busy.set(i)
	return true
}

// stored makes a written chunk present and says whether a flush is due.
func (l *Layer) stored(i int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.busy.unset(i)
	l.present.set(i)
	l.trusted.set(i)
	l.used[i] = l.cache.clock.Load()
	l.dirty += l.chunks[i].Size
	return l.dirty >= flushBytes
}

// unwrite gives back what a write that failed has taken.
func (l *Layer) unwrite(i int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.present.has(i) && !l.durable.has(i) {
		// What cannot be punched stays until the layer goes; no bit says it is good.
		_ = l.punch(newBitmap(len(l.chunks)).with(i))
	}
	l.busy.unset(i)
}

// Sync makes what is present durable.
func (l *Layer) Sync() error {
	l.flush.Lock()
	defer l.flush.Unlock()
	return l.save(false)
}

// save writes the map if it is out of date, or in any case. The caller holds
// l.flush.
func (l *Layer) save(always bool) error {
	// The bits are taken before the sync: whatever is put meanwhile waits for
	// the next one.
	l.mu.Lock()
	set, state := l.present.clone(), l.state
	clean := set.equal(l.durable) && state == l.saved
	l.dirty = 0
	l.mu.Unlock()
	if clean && !always {
		return nil
	}
	if err := l.data.Sync(); err != nil {
		l.dropUnsynced()
		return fmt.Errorf("sync %s: %w", l.Path(), err)
	}
	name := filepath.Join(l.dir, mapName)
	if err := l.cache.disk.WriteFile(name+".tmp", encodeMap(l.identity, len(l.chunks), state, set)); err != nil {
		return err
	}
	if err := l.cache.disk.Rename(name+".tmp", name); err != nil {
		return err
	}
	l.mu.Lock()
	l.durable, l.saved = set, state
	l.mu.Unlock()
	return nil
}

// dropUnsynced forgets what the file system may have lost: after a failed sync
// its pages count as clean, so asking again would prove nothing.
func (l *Layer) dropUnsynced() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.present {
		l.present[i] &= l.durable[i]
	}
	l.trusted = newBitmap(len(l.chunks))
	if l.state == Complete {
		l.state = l.saved
	}
}

// MarkComplete records, durably, that the layer was checked as a whole.
func (l *Layer) MarkComplete() error {
	l.mu.Lock()
	if n := l.present.count(); n != len(l.chunks) {
		l.mu.Unlock()
		return fmt.Errorf("complete layer %s: %d of %d chunks: %w", l.id, n, len(l.chunks), ErrMissing)
	}
	if l.state == Partial || l.state == Proven {
		l.state = Complete
	}
	l.mu.Unlock()
	return l.Sync()
}

// Quarantine records, durably, that the layer's content is wrong. Every later
// read fails with ErrQuarantined until the layer is removed.
func (l *Layer) Quarantine() error {
	l.mu.Lock()
	l.state = Quarantined
	l.mu.Unlock()
	return l.Sync()
}

// Close gives this use of the layer back; the last one flushes it.
func (l *Layer) Close() error { return l.cache.release(l) }

func (l *Layer) shut() error {
	err := l.Sync()
	// When the layer was last of use orders it among the others after a restart.
	if used := l.lastUse(); used > 0 {
		err = errors.Join(err, l.data.Touch(time.Unix(int64(used), 0)))
	}
	// An eviction that has begun is done before whoever opens the layer next reads
	// the map; one that begins later finds the file closed and changes nothing.
	l.flush.Lock()
	defer l.flush.Unlock()
	return errors.Join(err, l.data.Close())
}

func (l *Layer) lastUse() (last uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, u := range l.used {
		last = max(last, u)
	}
	return last
}
