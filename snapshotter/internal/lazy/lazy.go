// Package lazy reads a layer that is not there yet.
//
// # Vocabulary
//
// A Layer is an index, the cached part of the layer, and a source of ranges of
// its blob. A run is a row of neighbouring missing chunks fetched by one
// request. A run is on demand when a reader waits for it, replayed when a profile
// of an earlier start says that it will be read, ahead when sequential readers
// are expected to come to it, in the background when it only completes the layer. A Gate is shared by all layers of a node: it keeps background
// work out of the way while any reader waits.
//
// # Invariants
//
// A byte is served only after its chunk was verified against the index: the
// compressed bytes before they are decoded, the output after. A chunk is being
// fetched at most once at a time, whoever asks. A run that a reader waits for
// is never held back by the gate, also when it began in the background.
//
// # Failure behaviour
//
// A read that meets a failing registry tries again, with growing pauses, until
// its own deadline, and then fails with the last cause; the next read starts
// afresh, so nothing has to be reset when the registry is back. Causes that
// waiting does not cure (no such blob, no right to it, no ranges) end a read at
// once. A full disk or cache does not fail reads: the bytes are handed on from
// memory. The background leaves a cache alone that has no room for the rest of
// the layer.
package lazy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/firstlight-dev/firstlight/indexer/index"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/account"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/cache"
)

// Source reads ranges of one blob. It bounds every request by a deadline of its
// own, sees to credentials and redirects, and is safe for concurrent use.
type Source interface {
	// ReadRange returns exactly n bytes from off, or an error.
	ReadRange(ctx context.Context, off, n int64) (io.ReadCloser, error)
}

// Permanent is implemented by errors of a Source that trying again does not
// cure.
type Permanent interface{ Permanent() bool }

// ErrMismatch is returned by Open and Fill when the layer is not the one that
// the image names.
var ErrMismatch = errors.New("layer content does not match the image")

// ErrClosed is returned by reads of a layer that was closed.
var ErrClosed = errors.New("layer is closed")

const (
	// defaultReadTimeout is how long a reader waits for a dead registry: long
	// enough for a restart behind a load balancer, short of the two minutes
	// after which kubelet gives up on a container.
	defaultReadTimeout = 60 * time.Second
	// retryMin and retryMax bound the pause between tries.
	retryMin = 50 * time.Millisecond
	retryMax = 2 * time.Second

	// maxMismatches is how many times a reader fetches bytes that do not match
	// the index before it fails.
	maxMismatches = 3

	// demandRun bounds the blob bytes of one request that a reader waits for,
	// fillRun those of one in the background, which a reader may have to sit
	// out in part.
	demandRun = 8 << 20
	fillRun   = 4 << 20
	// replayRun is that of one replayed: a reader who needs its end waits for all
	// of it, and several under way fill a link that has a round trip to pay.
	replayRun = 4 << 20
	// maxAhead bounds how far ahead of a sequential reader is fetched.
	maxAhead = 16 << 20
	// demandRequests bounds the requests of one layer at a time for readers.
	demandRequests = 8
	// aheadRequests is how many read-ahead has besides.
	aheadRequests = 3
	// fillRequests is how many the background has.
	fillRequests = 2
)

// Layer serves the uncompressed bytes of one layer. It is safe for concurrent
// use.
type Layer struct {
	ix      *index.Index
	cache   *cache.Layer
	src     Source
	gate    *Gate
	origin  string // for reports
	image   string // whose share of requests it has
	timeout time.Duration
	log     *slog.Logger
	demand  chan struct{} // slots for requests that readers wait for
	ahead   chan struct{} // slots for read-ahead
	stats   counters
	closing chan struct{}

	watched atomic.Pointer[[]*Watcher]

	mu      sync.Mutex
	pending map[int]*pending // chunks being fetched
	streams streams
	// replayed has a bit for each chunk that a profile asked for.
	replayed []uint64
	runs     sync.WaitGroup
}

// Option changes how a layer is read.
type Option func(*Layer)

// WithReadTimeout bounds every read.
func WithReadTimeout(d time.Duration) Option { return func(l *Layer) { l.timeout = d } }

// WithGate shares a gate between layers. Without it a layer has its own.
func WithGate(g *Gate) Option { return func(l *Layer) { l.gate = g } }

// WithOrigin names the registry behind the source, for reports.
func WithOrigin(name string) Option { return func(l *Layer) { l.origin = name } }

// WithImage names the image whose share of the gate's requests the layer has.
func WithImage(name string) Option { return func(l *Layer) { l.image = name } }

// WithLogger sets where trouble that is survived is reported.
func WithLogger(log *slog.Logger) Option { return func(l *Layer) { l.log = log } }

// Open joins an index, a cached layer and a source. The caller keeps owning
// the cached layer and closes it after the Layer.
func Open(ix *index.Index, c *cache.Layer, src Source, opts ...Option) *Layer {
	l := &Layer{
		ix: ix, cache: c, src: src, timeout: defaultReadTimeout,
		log:     slog.New(slog.DiscardHandler),
		demand:  make(chan struct{}, demandRequests),
		ahead:   make(chan struct{}, aheadRequests),
		pending: map[int]*pending{},
		closing: make(chan struct{}),
	}
	for _, o := range opts {
		o(l)
	}
	if l.gate == nil {
		l.gate = NewGate()
	}
	return l
}

// Close ends the requests that are under way. Reads that still wait fail with
// ErrClosed. It may be called once.
func (l *Layer) Close() error {
	l.mu.Lock()
	close(l.closing)
	l.mu.Unlock()
	l.runs.Wait()
	return nil
}

// Digest names the layer.
func (l *Layer) Digest() digest.Digest { return l.ix.Layer }

// Size is the size of the layer's tar stream.
func (l *Layer) Size() int64 { return l.ix.Size }

// ReadAtContext fills p from off, fetching what is missing. At the end of the
// layer it returns io.EOF with what there is. Every error but io.EOF leaves
// the layer usable.
func (l *Layer) ReadAtContext(ctx context.Context, p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, fmt.Errorf("read layer %s: negative offset", l.ix.Layer)
	}
	if off >= l.ix.Size {
		return 0, io.EOF
	}
	var eof error
	if int64(len(p)) > l.ix.Size-off {
		p, eof = p[:l.ix.Size-off], io.EOF
	}
	if len(p) == 0 {
		return 0, nil
	}
	l.touch(off, int64(len(p)))
	l.lookAhead(ctx, off, int64(len(p)))
	if _, err := l.cache.ReadAt(p, off); err == nil {
		return len(p), eof
	} else if !errors.Is(err, cache.ErrMissing) {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	defer l.gate.enter(l)()
	defer l.stats.wait.Begin()()
	defer account.From(ctx).Wait()()
	if err := l.readMissing(ctx, p, off); err != nil {
		return 0, fmt.Errorf("read layer %s at %d: %w", l.ix.Layer, off, err)
	}
	return len(p), eof
}

// readMissing reads a range chunk by chunk, waiting for those not present.
func (l *Layer) readMissing(ctx context.Context, p []byte, off int64) error {
	pause := retryMin
	mismatches := 0
	for {
		err := l.tryMissing(ctx, p, off)
		if err == nil || isPermanent(err) {
			return err
		}
		if errors.Is(err, index.ErrMismatch) {
			// Damaged on the way once, perhaps; always, and it is the layer or the
			// index that is wrong.
			if mismatches++; mismatches == maxMismatches {
				return err
			}
		}
		if ctx.Err() != nil {
			return giveUp(ctx, err)
		}
		l.log.Warn("read layer, trying again", "layer", l.ix.Layer.String(), "error", err)
		select {
		case <-ctx.Done():
			return giveUp(ctx, err)
		case <-l.closing:
			return ErrClosed
		case <-time.After(pause):
		}
		pause = min(2*pause, retryMax)
	}
}

// giveUp says both that time is up and what kept failing.
func giveUp(ctx context.Context, cause error) error {
	if errors.Is(cause, ctx.Err()) {
		return cause
	}
	return fmt.Errorf("%w: %w", ctx.Err(), cause)
}

func isPermanent(err error) bool {
	var p Permanent
	return errors.As(err, &p) && p.Permanent() || errors.Is(err, cache.ErrQuarantined) || errors.Is(err, index.ErrInvalid) || errors.Is(err, ErrClosed)
}

// tryMissing starts what has to be fetched and copies every chunk's part as it
// arrives.
func (l *Layer) tryMissing(ctx context.Context, p []byte, off int64) error {
	end := off + int64(len(p))
	first, last := l.ix.ChunkAt(off), l.ix.ChunkAt(end-1)
	waits := l.want(ctx, first, last, demand)
	for i := first; i <= last; i++ {
		c := &l.ix.Chunks[i]
		from, to := max(off, c.Offset), min(end, c.Offset+c.Size)
		dst := p[from-off : to-off]
		w := waits[i-first]
		if w == nil {
			if _, err := l.cache.ReadAt(dst, from); err != nil {
				return err
			}
			continue
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.done:
		}
		if w.err != nil {
			return w.err
		}
		copy(dst, w.data[from-c.Offset:])
	}
	return nil
}
