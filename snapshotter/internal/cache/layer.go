package cache

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

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
	data     *os.File
	refs     int // guarded by cache.mu

	flush sync.Mutex // held while data is synced and the map replaced

	mu      sync.Mutex
	state   State
	saved   State
	present bitmap
	trusted bitmap // subset of present
	durable bitmap // what the map file says
	dirty   int64  // bytes put since the last flush began
}

func openLayer(c *Cache, id digest.Digest, size int64, chunks []index.Chunk, sum [32]byte) (*Layer, error) {
	dir := c.layerDir(id)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, dataName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	l := &Layer{
		cache: c, id: id, dir: dir, size: size, chunks: chunks, identity: sum, data: f, refs: 1,
		present: newBitmap(len(chunks)), trusted: newBitmap(len(chunks)), durable: newBitmap(len(chunks)),
	}
	if err := l.load(); err != nil {
		_ = f.Close()
		return nil, err
	}
	return l, nil
}

// load reads the map and brings the data file to the layer's size.
func (l *Layer) load() error {
	b, err := readLimited(filepath.Join(l.dir, mapName), maxMap)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	fi, err := l.data.Stat()
	if err != nil {
		return err
	}
	if len(b) > 0 && fi.Size() == l.size {
		if s, set, err := decodeMap(b, l.identity, len(l.chunks)); err == nil {
			l.state, l.saved = s, s
			l.present, l.durable = set, set.clone()
		}
	}
	if fi.Size() != l.size {
		if err := l.data.Truncate(l.size); err != nil {
			return err
		}
	}
	if l.state == Partial {
		return l.recoverChunks()
	}
	return nil
}

func readLimited(name string, limit int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, limit+1))
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
			if hole, err = dataEnd(l.data, c.Offset); err != nil {
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

// dataEnd returns where the run of data that holds off ends; off if it is in a
// hole.
func dataEnd(f *os.File, off int64) (int64, error) {
	p, err := unix.Seek(int(f.Fd()), off, unix.SEEK_HOLE)
	if errors.Is(err, unix.ENXIO) {
		return off, nil
	}
	if err != nil {
		return 0, fmt.Errorf("find data of %s: %w", f.Name(), err)
	}
	return p, nil
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
func (l *Layer) Path() string { return l.data.Name() }

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
func (l *Layer) Usage() (int64, error) {
	var n int64
	for _, name := range []string{dataName, mapName} {
		fi, err := os.Stat(filepath.Join(l.dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("measure cached layer: %w", err)
		}
		n += statBlocks(fi)
	}
	return n, nil
}

func statBlocks(fi fs.FileInfo) int64 {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return fi.Size()
	}
	return st.Blocks * 512
}

// ReadAt reads bytes whose chunks are all present. It returns ErrMissing if one
// is not, and after dropping one that does not match its digest.
func (l *Layer) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 || off > l.size {
		return 0, fmt.Errorf("read cached layer at %d: %w", off, fs.ErrInvalid)
	}
	short := int64(len(p)) > l.size-off
	if short {
		p = p[:l.size-off]
	}
	if err := l.trust(off, int64(len(p))); err != nil {
		return 0, err
	}
	n, err := l.data.ReadAt(p, off)
	if err == nil && short {
		err = io.EOF
	}
	return n, err
}

// trust makes sure that every chunk in a range is present and compared.
func (l *Layer) trust(off, n int64) error {
	if n == 0 {
		return nil
	}
	for i := chunkAt(l.chunks, off); i < len(l.chunks) && l.chunks[i].Offset < off+n; i++ {
		l.mu.Lock()
		state, present, trusted := l.state, l.present.has(i), l.trusted.has(i)
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
		ok, err := l.matches(i)
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, syscall.EIO) {
			return fmt.Errorf("read cached layer %s: %w", l.id, err)
		}
		l.mu.Lock()
		if ok {
			l.trusted.set(i)
		} else {
			l.present.unset(i)
			l.state = Partial
		}
		l.mu.Unlock()
		if !ok {
			return ErrMissing
		}
	}
	return nil
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
func (l *Layer) Put(i int, data []byte) error {
	c := &l.chunks[i]
	if int64(len(data)) != c.Size {
		return fmt.Errorf("put chunk %d of %s: %d bytes, want %d", i, l.id, len(data), c.Size)
	}
	if _, err := l.data.WriteAt(data, c.Offset); err != nil {
		return fmt.Errorf("put chunk %d of %s: %w", i, l.id, err)
	}
	l.mu.Lock()
	l.present.set(i)
	l.trusted.set(i)
	l.dirty += c.Size
	full := l.dirty >= flushBytes
	l.mu.Unlock()
	if full {
		select {
		case l.cache.kick <- struct{}{}:
		default:
		}
	}
	return nil
}

// Sync makes what is present durable.
func (l *Layer) Sync() error {
	l.flush.Lock()
	defer l.flush.Unlock()
	// The bits are taken before the sync: whatever is put meanwhile waits for
	// the next one.
	l.mu.Lock()
	set, state := l.present.clone(), l.state
	clean := set.equal(l.durable) && state == l.saved
	l.dirty = 0
	l.mu.Unlock()
	if clean {
		return nil
	}
	if err := unix.Fdatasync(int(l.data.Fd())); err != nil {
		l.dropUnsynced()
		return fmt.Errorf("sync %s: %w", l.data.Name(), err)
	}
	if err := replaceFile(filepath.Join(l.dir, mapName), encodeMap(l.identity, len(l.chunks), state, set)); err != nil {
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
	l.present = l.durable.clone()
	l.trusted = newBitmap(len(l.chunks))
	if l.state == Complete {
		l.state = l.saved
	}
}

func replaceFile(name string, b []byte) error {
	tmp := name + ".tmp"
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if _, err = f.Write(b); err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", tmp, err)
	}
	return os.Rename(tmp, name)
}

// MarkComplete records, durably, that the layer was checked as a whole.
func (l *Layer) MarkComplete() error {
	l.mu.Lock()
	if n := l.present.count(); n != len(l.chunks) {
		l.mu.Unlock()
		return fmt.Errorf("complete layer %s: %d of %d chunks: %w", l.id, n, len(l.chunks), ErrMissing)
	}
	if l.state == Partial {
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

func (l *Layer) shut() error { return errors.Join(l.Sync(), l.data.Close()) }
