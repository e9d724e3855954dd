package lazy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/firstlight-dev/firstlight/snapshotter/internal/account"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/cache"
)

// urgency orders what chunks are fetched for.
type urgency int

const (
	demand urgency = iota
	replay
	ahead
	background
)

// pending is a chunk that is being fetched. err and data may be read once done
// is closed.
type pending struct {
	run  *run
	done chan struct{}
	err  error
	data []byte
}

// run is one request under way for the chunks [first, last].
type run struct {
	first, last int
	urgency     urgency
	wanted      chan struct{} // closed when a reader waits for it
	once        sync.Once
	chunks      []*pending
}

func (r *run) want() { r.once.Do(func() { close(r.wanted) }) }

func (r *run) isWanted() bool {
	select {
	case <-r.wanted:
		return true
	default:
		return false
	}
}

// want makes sure that every missing chunk of [first, last] is being fetched
// and returns what to wait for, nil for a chunk that is present.
func (l *Layer) want(ctx context.Context, first, last int, u urgency) []*pending {
	waits := make([]*pending, last-first+1)
	var runs []*run
	l.mu.Lock()
	defer l.mu.Unlock()
	closed := l.closed()
	for i := first; i <= last; {
		if closed != nil {
			waits[i-first] = closed
			i++
			continue
		}
		if w := l.pending[i]; w != nil {
			waits[i-first] = w
			if u == demand {
				w.run.want()
			}
			i++
			continue
		}
		if l.cache.Has(i) {
			i++
			continue
		}
		r := l.plan(i, last, u)
		copy(waits[i-first:], r.chunks)
		runs = append(runs, r)
		i = r.last + 1
	}
	for _, r := range runs {
		l.runs.Add(1)
		// A run outlives the reader that started it: others may wait by now,
		// and the bytes on the wire are paid for.
		if u == background || u == replay {
			go l.fetch(ctx, r)
			continue
		}
		go l.fetch(context.WithoutCancel(ctx), r)
	}
	return waits
}

// closed stands for every chunk of a layer that was closed, nil before.
func (l *Layer) closed() *pending {
	select {
	case <-l.closing:
		w := &pending{done: make(chan struct{}), err: ErrClosed}
		close(w.done)
		return w
	default:
		return nil
	}
}

// plan registers a run of missing chunks from first on, at most to last, or for a
// reader somewhat beyond: files that are read one after the other often lie so.
// The caller holds l.mu.
func (l *Layer) plan(first, last int, u urgency) *run {
	r := &run{first: first, last: first, urgency: u, wanted: make(chan struct{})}
	if u == demand {
		r.want()
	}
	limit := int64(demandRun)
	switch u {
	case demand:
		last = l.stretch(last)
	case background:
		limit = fillRun
	case replay:
		limit = replayRun
	case ahead:
	}
	start := l.ix.Chunks[first].CompressedOffset
	for i := first; i <= last; i++ {
		c := &l.ix.Chunks[i]
		over := c.CompressedOffset+c.CompressedSize-start > limit
		if i > first && (over || l.pending[i] != nil || l.cache.Has(i)) {
			break
		}
		w := &pending{run: r, done: make(chan struct{})}
		l.pending[i] = w
		r.chunks = append(r.chunks, w)
		r.last = i
	}
	return r
}

// stretch returns the last chunk that is worth fetching with chunk last. While a
// profile is replayed, which knows better, that is chunk last.
func (l *Layer) stretch(last int) int {
	if l.gate.replaying() {
		return last
	}
	c := &l.ix.Chunks[last]
	end := c.CompressedOffset + c.CompressedSize + l.gate.pace.reach()
	for last+1 < len(l.ix.Chunks) {
		if c = &l.ix.Chunks[last+1]; c.CompressedOffset+c.CompressedSize > end {
			break
		}
		last++
	}
	return last
}

// settle hands a chunk, or the reason why there is none, to whoever waits.
func (l *Layer) settle(i int, w *pending, data []byte, err error) {
	w.data, w.err = data, err
	l.mu.Lock()
	delete(l.pending, i)
	l.mu.Unlock()
	close(w.done)
}

// fetch performs a run and settles each of its chunks exactly once.
func (l *Layer) fetch(ctx context.Context, r *run) {
	defer l.runs.Done()
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	go func() {
		select {
		case <-l.closing:
			cancel()
		case <-ctx.Done():
		}
	}()
	var decoding sync.WaitGroup
	next, err := l.stream(ctx, r, &decoding)
	decoding.Wait()
	if err != nil {
		l.failed()
		for i := next; i <= r.last; i++ {
			l.settle(i, r.chunks[i-r.first], nil, err)
		}
	}
}

func (l *Layer) failed() {
	l.stats.failures.Add(1)
	l.gate.failures.Add(1)
}

// stream reads a run's range and hands chunk by chunk to be decoded. It returns
// the first chunk that it did not hand on, and why.
func (l *Layer) stream(ctx context.Context, r *run, decoding *sync.WaitGroup) (next int, err error) {
	next = r.first
	leave, err := l.admit(ctx, r)
	if err != nil {
		return next, err
	}
	defer leave()
	start := l.ix.Chunks[r.first].CompressedOffset
	last := &l.ix.Chunks[r.last]
	reader := account.From(ctx) // nil in the background
	reader.Request()
	l.stats.requests.Add(1)
	l.gate.requests.Add(1)
	asked := time.Now()
	body, err := l.src.ReadRange(ctx, start, last.CompressedOffset+last.CompressedSize-start)
	if err != nil {
		return next, err
	}
	defer body.Close()
	head := time.Now()
	l.gate.pace.answered(head.Sub(asked))
	var received func()
	defer func() {
		if received != nil {
			received()
		}
	}()
	in := &splitter{r: body, pos: start, count: l.tally(r.urgency, reader)}
	for ; next <= r.last; next++ {
		if r.urgency != demand && r.urgency != ahead {
			if err := l.gate.wait(ctx, r.wanted, r.urgency); err != nil {
				return next, err
			}
		}
		if received == nil && r.isWanted() {
			received = l.gate.receive()
		}
		c := &l.ix.Chunks[next]
		b, err := in.next(c.CompressedOffset, c.CompressedSize)
		if err != nil {
			return next, fmt.Errorf("receive chunk %d: %w", next, err)
		}
		if err := l.decode(ctx, next, r.chunks[next-r.first], b, decoding); err != nil {
			return next, err
		}
	}
	if r.urgency == demand || r.urgency == ahead { // which do not stand still at times
		l.gate.pace.received(in.pos-start, time.Since(head))
	}
	return next, nil
}

// admit waits until a run may begin and returns what ends it. A run has a slot
// of its layer first and then one of its image, so that who waits for the image
// holds nothing that others need.
func (l *Layer) admit(ctx context.Context, r *run) (leave func(), err error) {
	if r.urgency == replay { // whoever replays bounds the requests, across layers
		return func() {}, nil
	}
	slots, err := l.layerSlot(ctx, r)
	if err != nil {
		return nil, err
	}
	if err := l.gate.slots.Acquire(ctx, l.image); err != nil {
		slots()
		return nil, err
	}
	return func() {
		l.gate.slots.Release(l.image)
		slots()
	}, nil
}

// layerSlot waits for the layer's own bound, and in the background for readers.
func (l *Layer) layerSlot(ctx context.Context, r *run) (leave func(), err error) {
	if r.urgency == background {
		return func() {}, l.gate.wait(ctx, r.wanted, background)
	}
	slots := l.demand
	if r.urgency == ahead {
		select {
		case l.ahead <- struct{}{}:
			return func() { <-l.ahead }, nil
		case <-r.wanted:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	select {
	case slots <- struct{}{}:
		return func() { <-slots }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// decode verifies, stores and settles a chunk in a goroutine of its own, so
// that the next one is received meanwhile.
func (l *Layer) decode(ctx context.Context, i int, w *pending, compressed []byte, wg *sync.WaitGroup) error {
	select {
	case l.gate.decode <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	wg.Go(func() {
		defer func() { <-l.gate.decode }()
		data, err := l.ix.DecodeChunk(nil, i, compressed)
		if err != nil {
			l.failed()
			l.settle(i, w, nil, fmt.Errorf("verify chunk %d: %w", i, err))
			return
		}
		// A full cache says so itself, once; here it would be said for every chunk.
		if err := l.cache.Put(i, data); err != nil && !errors.Is(err, cache.ErrFull) {
			l.log.Warn("keep chunk, serving it from memory", "layer", l.ix.Layer.String(), "error", err)
		}
		l.settle(i, w, data, nil)
	})
	return nil
}

// adder is the part of a counter that a splitter needs.
type adder interface{ Add(delta int64) int64 }

// splitter cuts a stream into the ranges of chunks, which follow each other
// and may overlap by a byte.
type splitter struct {
	r     io.Reader
	pos   int64
	last  []byte
	count adder
}

func (s *splitter) next(off, n int64) ([]byte, error) {
	overlap := s.pos - off
	if overlap < 0 || overlap > int64(len(s.last)) || overlap > n {
		return nil, fmt.Errorf("chunk at %d does not follow %d", off, s.pos)
	}
	b := make([]byte, n)
	copy(b, s.last[int64(len(s.last))-overlap:])
	m, err := io.ReadFull(s.r, b[overlap:])
	s.count.Add(int64(m))
	if err != nil {
		return nil, err
	}
	s.pos, s.last = off+n, b
	return b, nil
}
