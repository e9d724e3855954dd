// Package layers holds the lazy layers of this node: for each the index, the
// cached part, the way to the rest, the FUSE file that serves it, and the mounts
// that show it.
//
// # Vocabulary
//
// A layer is open while somebody uses it: a [Handle], or a snapshot that shows
// it. A mount shows a layer at the directory of one snapshot; it is either an
// EROFS file system whose metadata file was built here and whose data is the
// layer's FUSE file, or a binding of the layer's FUSE tree. Each snapshot has
// its own: the same layer on other layers can have other implied directories.
//
// # Invariants
//
// Everything needed to serve a layer is on disk before the first mount of it:
// its record with its number, and its index. So a new worker serves the same
// layers under the same numbers with the network down. An open layer is
// registered with FUSE before the kernel can ask for it. The last use of a layer
// takes everything with it, cached bytes included.
//
// # Failure behaviour
//
// A layer that cannot be opened again (its index is damaged on disk) is reported
// and left out: its reads fail with EIO, those of others do not, and the next
// pull of an image with it brings it back. Its snapshots stay uses of it.
//
// Lock order: entry.mu, Set.mu.
package layers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/firstlight-dev/firstlight/indexer/index"
	"github.com/firstlight-dev/firstlight/indexer/tree"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/cache"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/fusefs"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/lazy"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/store"
)

// Mode is how layers are mounted.
type Mode string

// The modes.
const (
	EROFS Mode = "erofs"
	FUSE  Mode = "fuse"
)

// Config is what a Set works with. All fields are required but Gate and Log.
type Config struct {
	Store   *store.Store
	Cache   *cache.Cache
	Server  *fusefs.Server
	FUSEDir string // where Server is mounted
	Session string // names this life of the FUSE mount
	Mode    Mode
	Indexes string                 // directory of the indexes
	TreeDir func(id string) string // of a snapshot
	// Source reads the blob of a layer of the image ref. It does not use the
	// network before the first read.
	Source func(ref string, desc ocispec.Descriptor) (lazy.Source, error)
	// Gate is shared by all layers. The default is one of the Set's own.
	Gate *lazy.Gate
	// FillAfter is how long a layer is left to its readers before the rest is
	// fetched in the background; negative means for ever.
	FillAfter time.Duration
	Log       *slog.Logger
}

// Set is the lazy layers of this node. It is safe for concurrent use.
type Set struct {
	Config
	filling chan struct{} // held by the layer that is being filled
	stop    context.CancelFunc
	// background makes a context for work that ends with the Set.
	background func() (context.Context, context.CancelFunc)
	watching   chan struct{} // closed when hung readers are no longer watched for

	mu      sync.Mutex
	entries map[digest.Digest]*entry
}

// entry is a layer somebody uses or is about to open or close.
type entry struct {
	users int // guarded by Set.mu

	mu    sync.Mutex
	layer *layer // nil while not open
	// held says that the kernel reads the cached file of the layer by itself, also
	// while it is not open.
	held bool
}

// layer is an open layer.
type layer struct {
	store.Layer
	index  *index.Index
	cached *cache.Layer
	lazy   *lazy.Layer
	stop   context.CancelFunc // of the background fetch
	filled chan struct{}      // closed when it has ended
}

// Open makes a Set of the layers that were in use when the last one ended and
// registers them with the server, which must not answer the kernel before. The
// context bounds the life of the Set's background work.
func Open(ctx context.Context, cfg Config) (*Set, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Gate == nil {
		cfg.Gate = lazy.NewGate()
	}
	s := &Set{Config: cfg, filling: make(chan struct{}, 1), entries: map[digest.Digest]*entry{}, watching: make(chan struct{})}
	life, stop := context.WithCancel(ctx)
	s.stop = stop
	s.background = func() (context.Context, context.CancelFunc) { return context.WithCancel(life) }
	if err := s.reopen(ctx); err != nil {
		s.stop()
		return nil, fmt.Errorf("open layers: %w", err)
	}
	go s.watch(life)
	return s, nil
}

const (
	// HungAfter is how long a reader waits before that is told: as long as a
	// program takes to be called slow.
	HungAfter    = 10 * time.Second
	watchHungFor = 5 * time.Second // how often it is looked
)

// watch tells of readers that wait for long, of each once.
func (s *Set) watch(ctx context.Context) {
	defer close(s.watching)
	t := time.NewTicker(watchHungFor)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		for _, h := range s.Gate.Hung(HungAfter) {
			if h.New {
				s.Log.Warn("a read waits for its registry", "layer", h.Layer.String(), "host", h.Origin, "waiting", h.Wait.Round(time.Second).String())
			}
		}
	}
}

// Close ends the background work and closes every layer. Mounts stay: their
// reads wait for the next worker.
func (s *Set) Close() error {
	s.stop()
	<-s.watching
	s.mu.Lock()
	entries := make([]*entry, 0, len(s.entries))
	for _, e := range s.entries {
		entries = append(entries, e)
	}
	s.mu.Unlock()
	var errs []error
	for _, e := range entries {
		e.mu.Lock()
		if e.layer != nil {
			errs = append(errs, e.layer.close())
			e.layer = nil
		}
		e.mu.Unlock()
	}
	return errors.Join(errs...)
}

func (l *layer) close() error {
	l.stop()
	<-l.filled
	return errors.Join(l.lazy.Close(), l.cached.Close())
}

// Handle is one use of an open layer.
type Handle struct {
	set   *Set
	entry *entry
	layer *layer
	tree  *tree.Tree // as the layer alone makes it
	once  sync.Once
}

// Release ends the use. It may be called again.
func (h *Handle) Release(ctx context.Context) error {
	var err error
	h.once.Do(func() { err = h.set.leave(ctx, h.layer.Digest, h.entry) })
	return err
}

// Join returns a use of a layer if it is open. Its handle cannot be mounted.
func (s *Set) Join(d digest.Digest) (h *Handle, ok bool) {
	s.mu.Lock()
	e := s.entries[d]
	s.mu.Unlock()
	if e == nil {
		return nil, false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.layer == nil {
		return nil, false
	}
	s.enter(d)
	return &Handle{set: s, entry: e, layer: e.layer}, true
}

// Lazy is the layer, to be read by whoever holds the handle.
func (h *Handle) Lazy() *lazy.Layer { return h.layer.lazy }

// Watch tells w of the reads of a layer until stop is called, and returns the
// size of its tar stream. ok is false when the layer is not open.
func (s *Set) Watch(d digest.Digest, w *lazy.Watcher) (size int64, stop func(), ok bool) {
	s.mu.Lock()
	e := s.entries[d]
	s.mu.Unlock()
	if e == nil {
		return 0, nil, false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.layer == nil {
		return 0, nil, false
	}
	return e.layer.lazy.Size(), e.layer.lazy.Watch(w), true
}

// Replay counts the replay of a profile: until it is done, no layer is filled
// in the background.
func (s *Set) Replay() (done func()) { return s.Gate.Replay() }

// Acquire opens the layer, or joins those who have it open. load brings the
// index when it is not on this node yet.
func (s *Set) Acquire(ctx context.Context, rec store.Layer, load func(context.Context) (*index.Index, error)) (*Handle, error) {
	e := s.enter(rec.Digest)
	e.mu.Lock()
	l := e.layer
	var err error
	if l == nil {
		if l, err = s.open(ctx, rec, load); err == nil {
			e.layer = l
			if e.held {
				l.cached.Keep()
			}
		}
	}
	e.mu.Unlock()
	if err != nil {
		return nil, errors.Join(err, s.leave(ctx, rec.Digest, e))
	}
	// Built here and not by Mount: layers are acquired side by side but mounted
	// one by one, and an index whose headers are damaged shows now.
	t, err := tree.Build(l.index)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("build tree of layer %s: %w", rec.Digest, err), s.leave(ctx, rec.Digest, e))
	}
	return &Handle{set: s, entry: e, layer: l, tree: t}, nil
}

func (s *Set) enter(d digest.Digest) *entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[d]
	if e == nil {
		e = &entry{}
		s.entries[d] = e
	}
	e.users++
	return e
}

// leave ends a use and, with the last one, the layer. Whoever enters meanwhile
// waits for entry.mu and opens it again.
func (s *Set) leave(ctx context.Context, d digest.Digest, e *entry) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	s.mu.Lock()
	e.users--
	last := e.users == 0
	s.mu.Unlock()
	if !last {
		return nil
	}
	var err error
	if e.layer != nil {
		err = s.discard(ctx, e.layer)
		e.layer = nil
	}
	s.mu.Lock()
	if e.users == 0 {
		delete(s.entries, d)
	}
	s.mu.Unlock()
	return err
}

// discard closes a layer nobody uses and deletes all that is kept of it. The
// record goes last: while it is there, a later start tries again.
func (s *Set) discard(ctx context.Context, l *layer) error {
	s.Server.Remove(l.Number)
	return errors.Join(l.close(), s.erase(ctx, l.Digest))
}

func (s *Set) erase(ctx context.Context, d digest.Digest) error {
	if err := s.Cache.Remove(d); err != nil {
		return fmt.Errorf("remove cached layer %s: %w", d, err)
	}
	if err := s.removeIndex(d); err != nil {
		return err
	}
	return s.Store.DeleteLayer(ctx, d)
}

func (s *Set) open(ctx context.Context, rec store.Layer, load func(context.Context) (*index.Index, error)) (*layer, error) {
	ix, err := s.loadIndex(ctx, rec, load)
	if err != nil {
		return nil, err
	}
	// Which image the layer is fetched from may change; its number does not.
	if rec, err = s.Store.PutLayer(ctx, rec); err != nil {
		return nil, err
	}
	src, err := s.Source(rec.Ref, ocispec.Descriptor{MediaType: rec.MediaType, Digest: rec.Digest, Size: rec.Size})
	if err != nil {
		return nil, fmt.Errorf("find registry of layer %s: %w", rec.Digest, err)
	}
	cached, err := s.Cache.Layer(rec.Digest, ix.Size, ix.Chunks)
	if err != nil {
		return nil, fmt.Errorf("open cache of layer %s: %w", rec.Digest, err)
	}
	origin, _, _ := strings.Cut(rec.Ref, "/")
	l := &layer{Layer: rec, index: ix, cached: cached, filled: make(chan struct{})}
	l.lazy = lazy.Open(ix, cached, src, lazy.WithGate(s.Gate), lazy.WithLogger(s.Log), lazy.WithOrigin(origin), lazy.WithImage(rec.Ref))
	if err := s.Server.AddLayer(rec.Number, l.lazy); err != nil {
		return nil, errors.Join(fmt.Errorf("serve layer %s: %w", rec.Digest, err), l.lazy.Close(), cached.Close())
	}
	background, stop := s.background()
	l.stop = stop
	go func() {
		defer close(l.filled)
		s.fill(background, l)
	}()
	return l, nil
}

const (
	// fillRetry and fillRetryMax bound the pause before a layer whose registry
	// failed is filled again: other layers have their turn meanwhile.
	fillRetry    = 30 * time.Second
	fillRetryMax = 10 * time.Minute
)

// fill completes the layer in the background, one layer of the node at a time.
func (s *Set) fill(ctx context.Context, l *layer) {
	if s.FillAfter < 0 {
		return
	}
	wait, retry := s.FillAfter, fillRetry
	for !l.cached.Complete() {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		if !s.fillOnce(ctx, l) {
			return
		}
		wait, retry = retry, min(2*retry, fillRetryMax)
	}
}

// fillOnce tries to complete the layer when its turn comes, and says whether to
// try again later.
func (s *Set) fillOnce(ctx context.Context, l *layer) (again bool) {
	select {
	case <-ctx.Done():
		return false
	case s.filling <- struct{}{}:
		defer func() { <-s.filling }()
	}
	err := l.lazy.Fill(ctx)
	switch {
	case err == nil:
		s.Log.Info("layer complete and verified", "layer", l.Digest.String())
	case ctx.Err() != nil:
	case errors.Is(err, lazy.ErrMismatch):
		s.Log.Error("layer quarantined: what its index says is not the layer of the image", "layer", l.Digest.String(), "error", err)
	case errors.Is(err, cache.ErrQuarantined):
		s.Log.Error("layer is quarantined", "layer", l.Digest.String())
	case errors.Is(err, cache.ErrFull):
		s.Log.Info("layer stays incomplete, the cache has no room for the rest", "layer", l.Digest.String(), "error", err)
		return true
	default:
		s.Log.Warn("layer stays incomplete", "layer", l.Digest.String(), "error", err)
		return true
	}
	return false
}

// Stats says how a layer is. ok is false when it is not open.
func (s *Set) Stats(d digest.Digest) (st lazy.Stats, state cache.State, ok bool) {
	err := s.with(d, func(l *layer) error {
		st, state = l.lazy.Stats(), l.cached.State()
		return nil
	})
	return st, state, err == nil
}

// ErrNotOpen marks a layer that nobody uses.
var ErrNotOpen = errors.New("layer is not open")

// with calls f with an open layer, which stays open meanwhile.
func (s *Set) with(d digest.Digest, f func(*layer) error) error {
	s.mu.Lock()
	e := s.entries[d]
	s.mu.Unlock()
	if e == nil {
		return fmt.Errorf("layer %s: %w", d, ErrNotOpen)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.layer == nil {
		return fmt.Errorf("layer %s: %w", d, ErrNotOpen)
	}
	return f(e.layer)
}

// Evict takes a layer's cached bytes away and returns how many that freed.
// cache.ErrHeld says that the kernel reads them by itself.
func (s *Set) Evict(d digest.Digest) (freed int64, err error) {
	err = s.with(d, func(l *layer) error {
		freed, err = l.cached.Evict()
		return err
	})
	return freed, err
}

// Complete fetches what is missing of a layer now, whatever FillAfter says.
func (s *Set) Complete(ctx context.Context, d digest.Digest) error {
	var l *layer
	e := s.enter(d) // a use, so that the layer stays
	e.mu.Lock()
	l = e.layer
	e.mu.Unlock()
	err := fmt.Errorf("layer %s: %w", d, ErrNotOpen)
	if l != nil {
		err = l.lazy.Fill(ctx)
	}
	return errors.Join(err, s.leave(context.WithoutCancel(ctx), d, e))
}
