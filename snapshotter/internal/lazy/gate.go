package lazy

import (
	"cmp"
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/opencontainers/go-digest"
)

// patience is how long a waiting reader holds background work back. Who waits
// longer waits for a registry that does not answer, and other layers need not
// stay incomplete for that.
const patience = 5 * time.Second

// Gate keeps background work back while readers wait, bounds how many chunks
// are decoded at once, and counts for the node. One gate serves all layers of a
// node.
type Gate struct {
	decode  chan struct{}
	observe func(time.Duration)

	bytes, requests, failures atomic.Int64

	mu      sync.Mutex
	readers int                  // that hold the background back
	open    chan struct{}        // closed while there are none
	waiting map[*waiter]struct{} // all readers that wait
}

// waiter is a reader that waits.
type waiter struct {
	layer *Layer
	since time.Time
	timer *time.Timer // ends its hold on the background
	holds bool
	told  bool // Hung has reported it
}

// GateOption changes a gate.
type GateOption func(*Gate)

// WithWaitObserver sets what is told of each wait of a reader, when it ends.
func WithWaitObserver(f func(time.Duration)) GateOption { return func(g *Gate) { g.observe = f } }

// NewGate returns an open gate.
func NewGate(opts ...GateOption) *Gate {
	g := &Gate{
		decode: make(chan struct{}, runtime.GOMAXPROCS(0)), observe: func(time.Duration) {},
		open: make(chan struct{}), waiting: map[*waiter]struct{}{},
	}
	for _, o := range opts {
		o(g)
	}
	close(g.open)
	return g
}

// enter counts a reader that waits for a layer until the returned function is
// called.
func (g *Gate) enter(l *Layer) (leave func()) {
	w := &waiter{layer: l, since: time.Now(), holds: true}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting[w] = struct{}{}
	if g.readers++; g.readers == 1 {
		g.open = make(chan struct{})
	}
	w.timer = time.AfterFunc(patience, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.release(w)
	})
	return func() {
		w.timer.Stop()
		g.mu.Lock()
		g.release(w)
		delete(g.waiting, w)
		g.mu.Unlock()
		g.observe(time.Since(w.since))
	}
}

// release ends a reader's hold on the background. The caller holds g.mu.
func (g *Gate) release(w *waiter) {
	if !w.holds {
		return
	}
	w.holds = false
	if g.readers--; g.readers == 0 {
		close(g.open)
	}
}

// wait returns when no reader waits, or wanted is closed, or with the context's
// error.
func (g *Gate) wait(ctx context.Context, wanted <-chan struct{}) error {
	for {
		g.mu.Lock()
		open := g.open
		idle := g.readers == 0
		g.mu.Unlock()
		if idle {
			return ctx.Err()
		}
		select {
		case <-open:
		case <-wanted:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Totals are the sums over all layers that a gate ever served.
type Totals struct{ BytesFetched, Requests, Failures int64 }

// Totals returns the sums.
func (g *Gate) Totals() Totals { return Totals{g.bytes.Load(), g.requests.Load(), g.failures.Load()} }

// Waiting is the number of readers that have waited for longer than d.
func (g *Gate) Waiting(d time.Duration) (n int) {
	now := time.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	for w := range g.waiting {
		if now.Sub(w.since) >= d {
			n++
		}
	}
	return n
}

// Hung is a reader that waits for long.
type Hung struct {
	Layer  digest.Digest
	Origin string // the registry that it waits for
	Wait   time.Duration
	New    bool // not reported before
}

// Hung lists the readers that have waited for longer than d, the longest first.
func (g *Gate) Hung(d time.Duration) []Hung {
	now := time.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	var hung []Hung
	for w := range g.waiting {
		wait := now.Sub(w.since)
		if wait < d {
			continue
		}
		hung = append(hung, Hung{Layer: w.layer.Digest(), Origin: w.layer.origin, Wait: wait, New: !w.told})
		w.told = true
	}
	slices.SortFunc(hung, func(a, b Hung) int { return cmp.Compare(b.Wait, a.Wait) })
	return hung
}
