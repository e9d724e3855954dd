package lazy

import (
	"context"
	"runtime"
	"sync"
)

// Gate keeps background work back while readers wait, and bounds how many
// chunks are decoded at once. One gate serves all layers of a node.
type Gate struct {
	decode chan struct{}

	mu      sync.Mutex
	readers int
	open    chan struct{} // closed while no reader waits
}

// NewGate returns an open gate.
func NewGate() *Gate {
	g := &Gate{decode: make(chan struct{}, runtime.GOMAXPROCS(0)), open: make(chan struct{})}
	close(g.open)
	return g
}

// enter counts a waiting reader until the returned function is called.
func (g *Gate) enter() (leave func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.readers++; g.readers == 1 {
		g.open = make(chan struct{})
	}
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.readers--; g.readers == 0 {
			close(g.open)
		}
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
