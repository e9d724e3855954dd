// Package cache keeps the parts of layers that were fetched, on disk.
//
// # Vocabulary
//
// A layer has one data file, sparse and laid out like the layer's uncompressed
// tar stream, and one map file, which says what of it is there. The unit is the
// chunk of the layer's index. A chunk is present when its bytes are in the data
// file, durable when the map file says so, and trusted when this process wrote
// it or compared it with its digest.
//
// # Invariants
//
// A bit reaches the map file only after fdatasync(2) of the data it stands for.
// The map file is replaced whole (write, fsync, rename) and carries its own
// checksum. No byte of a chunk that is not trusted leaves Layer.ReadAt: it is
// compared with its digest first, so what rotted, or was cut short by a crash,
// is dropped and fetched again. One process owns a cache directory.
//
// What is evicted loses its bit in the map durably, name of the map file
// included, before its bytes are punched out of the data file; whoever was
// reading it meanwhile reads again. Layers that the kernel reads by itself are
// held: nothing is taken out of them.
//
// # Limits
//
// Limits bound the cache by a number of bytes and by what is to stay free of
// the file system. Whenever it comes near, the chunks that were not read for
// longest go, of whatever layer. A layer that was complete is Proven from then
// on: chunks that come back are compared with digests that were themselves
// checked against the image.
//
// # Failure behaviour
//
// After SIGKILL the data file is intact but the map may lag: chunks that are
// whole in the file and match their digest are taken back when the layer is
// opened, up to a budget; the rest is dropped. After a power loss the map holds
// what was synced. A damaged map, or one made for another index of the layer,
// counts as empty. When a sync fails, what it covered is dropped and never
// synced again.
//
// A full disk, or one without inodes, costs no read: Put returns ErrFull, the
// bytes are good all the same, and room is made. Making room needs a new map;
// a reserve is kept to be given up for it.
//
// Lock order: Cache.trimming, Cache.mu, Layer.flush, Layer.mu.
package cache

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/firstlight-dev/firstlight/indexer/index"
)

var (
	// ErrMissing is returned by Layer.ReadAt when a chunk is not present, or
	// was found damaged and dropped.
	ErrMissing = errors.New("chunk is not in the cache")
	// ErrQuarantined is returned for a layer whose content was proven wrong.
	ErrQuarantined = errors.New("layer is quarantined")
	// ErrInUse is returned when another process owns the directory, or a layer
	// to remove is open.
	ErrInUse = errors.New("cache is in use")
)

const (
	// flushBytes and flushInterval bound what a crash of the machine can cost.
	flushBytes    = 32 << 20
	flushInterval = 2 * time.Second
	// recoverBytes bounds the hashing at opening a layer: four flushes' worth,
	// about a quarter of a second.
	recoverBytes = 4 * flushBytes
)

// Cache is a directory of layers. It is safe for concurrent use.
type Cache struct {
	dir    string
	log    *slog.Logger
	lock   *os.File
	disk   disk
	limits Limits
	manual bool // without loops, for tests that count steps

	kick    chan struct{} // flush
	squeeze chan struct{} // trim
	stop    context.CancelFunc
	loops   sync.WaitGroup
	clock   atomic.Uint32 // seconds, moved on by the trim loop

	account  account
	trimming sync.Mutex // held while the cache is measured or trimmed

	mu     sync.Mutex
	layers map[digest.Digest]*Layer // open ones
	held   int64                    // bytes of the layers that are held
}

// Option changes how a cache works.
type Option func(*Cache)

// WithLogger sets where failures of the background flush are reported.
func WithLogger(l *slog.Logger) Option { return func(c *Cache) { c.log = l } }

// WithLimits bounds the cache.
func WithLimits(l Limits) Option { return func(c *Cache) { c.limits = l } }

// Open takes possession of a cache directory, making it if need be. Close
// flushes it and gives it up.
func Open(dir string, opts ...Option) (*Cache, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make cache: %w", err)
	}
	lock, err := lockDir(dir)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	c := &Cache{
		dir: dir, lock: lock, log: slog.New(slog.DiscardHandler), disk: osDisk{},
		kick: make(chan struct{}, 1), squeeze: make(chan struct{}, 1), stop: stop,
		layers: map[digest.Digest]*Layer{},
	}
	for _, o := range opts {
		o(c)
	}
	c.clock.Store(seconds(time.Now()))
	c.account.unlimited()
	if c.limits != (Limits{}) {
		c.keepReserve()
	}
	if _, err := c.measure(); err != nil {
		stop()
		return nil, errors.Join(err, lock.Close())
	}
	if !c.manual {
		c.loops.Go(func() { c.flushLoop(ctx) })
		c.loops.Go(func() { c.trimLoop(ctx) })
	}
	return c, nil
}

func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock cache: %w", err)
	}
	// An open-file-description lock: it goes when the process goes, however
	// that happens, and is not lost when some other descriptor is closed.
	lk := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lk); err != nil {
		_ = f.Close()
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
			return nil, fmt.Errorf("lock cache %s: %w by another process", dir, ErrInUse)
		}
		return nil, fmt.Errorf("lock cache %s: %w", dir, err)
	}
	return f, nil
}

func (c *Cache) flushLoop(ctx context.Context) {
	t := time.NewTicker(flushInterval)
	defer t.Stop()
	said := map[digest.Digest]string{} // failures, told once
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		case <-c.kick:
		}
		failed := map[digest.Digest]string{}
		for _, l := range c.open() {
			err := l.Sync()
			if err == nil {
				continue
			}
			failed[l.id] = err.Error()
			if said[l.id] != failed[l.id] {
				c.log.Error("flush layer", "layer", l.id.String(), "error", err)
			}
		}
		said = failed
	}
}

func (c *Cache) open() []*Layer {
	c.mu.Lock()
	defer c.mu.Unlock()
	ls := make([]*Layer, 0, len(c.layers))
	for _, l := range c.layers {
		ls = append(ls, l)
	}
	return ls
}

// Close flushes every layer. Layers still open must not be used afterwards.
func (c *Cache) Close() error {
	c.stop()
	c.loops.Wait()
	var errs []error
	for _, l := range c.open() {
		errs = append(errs, l.shut())
	}
	c.mu.Lock()
	clear(c.layers)
	c.mu.Unlock()
	return errors.Join(append(errs, c.lock.Close())...)
}

func (c *Cache) layerDir(id digest.Digest) string {
	return filepath.Join(c.dir, id.Algorithm().String(), id.Encoded())
}

// Layer opens the cached part of a layer. Callers that open the same layer
// share one Layer and each must close it; they must agree about its chunks.
func (c *Cache) Layer(id digest.Digest, size int64, chunks []index.Chunk) (*Layer, error) {
	if err := id.Validate(); err != nil {
		return nil, fmt.Errorf("open cached layer: %w", err)
	}
	sum := identity(id, size, chunks)
	c.mu.Lock()
	defer c.mu.Unlock()
	if l := c.layers[id]; l != nil {
		if l.identity != sum {
			return nil, fmt.Errorf("open cached layer %s: %w with another index", id, ErrInUse)
		}
		l.refs++
		return l, nil
	}
	l, err := openLayer(c, id, size, chunks, sum)
	if err != nil {
		return nil, fmt.Errorf("open cached layer %s: %w", id, err)
	}
	c.layers[id] = l
	return l, nil
}

// release gives one use of a layer back and closes it after the last.
func (c *Cache) release(l *Layer) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.layers[l.id] != l { // the cache was closed before
		return nil
	}
	if l.refs--; l.refs > 0 {
		return nil
	}
	delete(c.layers, l.id)
	if l.held {
		c.held -= l.size
	}
	return l.shut()
}

// Remove deletes a layer that is not open. Removing an absent one is no error.
func (c *Cache) Remove(id digest.Digest) error {
	if err := id.Validate(); err != nil {
		return fmt.Errorf("remove cached layer: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.layers[id] != nil {
		return fmt.Errorf("remove cached layer %s: %w", id, ErrInUse)
	}
	dir := c.layerDir(id)
	err := c.disk.RemoveAll(dir)
	if err == nil {
		// Or the map of the old might turn up beside data of a new one.
		err = c.disk.SyncDir(filepath.Dir(dir))
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove cached layer %s: %w", id, err)
	}
	return nil
}

// Layers lists the layers that have anything on disk.
func (c *Cache) Layers() ([]digest.Digest, error) {
	names, err := filepath.Glob(filepath.Join(c.dir, "*", "*", dataName))
	if err != nil {
		return nil, fmt.Errorf("list cache: %w", err)
	}
	ids := make([]digest.Digest, 0, len(names))
	for _, n := range names {
		d := filepath.Dir(n)
		id := digest.NewDigestFromEncoded(digest.Algorithm(filepath.Base(filepath.Dir(d))), filepath.Base(d))
		if id.Validate() == nil {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// Usage is the disk space that the cache occupies, as the file system counts it:
// holes are free.
func (c *Cache) Usage() (int64, error) { return c.disk.Space(c.dir) }
