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

	"github.com/firstlight-dev/firstlight/snapshotter/internal/quota"
)

// patience is how long a waiting reader holds background work back. Who waits
// longer waits for a registry that does not answer, and other layers need not
// stay incomplete for that.
const patience = 5 * time.Second

// Gate keeps less urgent work back while readers wait, bounds how many requests
// are under way and how many chunks are decoded at once, and counts for the
// node. One gate serves all layers of a node.
//
// Work in the background stands still while any reader waits, or a profile is
// replayed. Replay stands still only while bytes that a reader waits for arrive:
// during the round trip before that the link is idle, and where round trips are
// long, readers wait nearly always.
type Gate struct {
	decode  chan struct{}
	slots   *quota.Pool // of requests to registries
	observe func(time.Duration)

	bytes, requests, failures atomic.Int64

	pace pace

	mu        sync.Mutex
	readers   int                  // that hold others back
	receiving int                  // requests for readers whose bodies arrive
	replays   int                  // under way
	changed   chan struct{}        // closed when one of these becomes 0
	waiting   map[*waiter]struct{} // all readers that wait
}

// waiter is a reader that waits.
type waiter struct {
	layer *Layer
	since time.Time
	timer *time.Timer // ends its hold on the background
	holds bool
	told  bool // Hung has reported it
}

// defaultRequests bounds the requests under way to registries: for one image
// as many as four layers make at a time, which saturates what registries give
// one client; for the node several images' worth.
func defaultRequests() quota.Limits { return quota.Limits{Total: 256, Each: 32, Sure: 4} }

// GateOption changes a gate.
type GateOption func(*Gate)

// WithRequests bounds the requests to registries that are under way, for all
// layers and for those of one image.
func WithRequests(l quota.Limits) GateOption { return func(g *Gate) { g.slots = quota.New(l) } }

// WithWaitObserver sets what is told of each wait of a reader, when it ends.
func WithWaitObserver(f func(time.Duration)) GateOption { return func(g *Gate) { g.observe = f } }

// NewGate returns an open gate.
func NewGate(opts ...GateOption) *Gate {
	g := &Gate{
		decode: make(chan struct{}, runtime.GOMAXPROCS(0)), slots: quota.New(defaultRequests()), observe: func(time.Duration) {},
		changed: make(chan struct{}), waiting: map[*waiter]struct{}{},
	}
	for _, o := range opts {
		o(g)
	}
	return g
}

// enter counts a reader that waits for a layer until the returned function is
// called.
func (g *Gate) enter(l *Layer) (leave func()) {
	w := &waiter{layer: l, since: time.Now(), holds: true}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting[w] = struct{}{}
	g.readers++
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
	g.less(&g.readers)
}

// less counts down, and wakes those that wait at 0. The caller holds g.mu.
func (g *Gate) less(n *int) {
	if *n--; *n == 0 {
		close(g.changed)
		g.changed = make(chan struct{})
	}
}

// receive counts a body that a reader waits for until the returned function is
// called.
func (g *Gate) receive() (done func()) { return g.count(&g.receiving) }

// Replay counts a replay of a profile until the returned function is called.
func (g *Gate) Replay() (done func()) { return g.count(&g.replays) }

func (g *Gate) count(n *int) (done func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	*n++
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.less(n)
	}
}

// blocked reports whether work of an urgency has to stand still, and a channel
// to wait on if so.
func (g *Gate) blocked(u urgency) (bool, <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if u == replay {
		return g.readers > 0 && g.receiving > 0, g.changed
	}
	return g.readers > 0 || g.replays > 0, g.changed
}

// replaying reports whether a profile is being replayed.
func (g *Gate) replaying() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.replays > 0
}

// wait returns when work of the urgency may go on, or wanted is closed, or with
// the context's error.
func (g *Gate) wait(ctx context.Context, wanted <-chan struct{}, u urgency) error {
	for {
		blocked, changed := g.blocked(u)
		if !blocked {
			return ctx.Err()
		}
		select {
		case <-changed:
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
