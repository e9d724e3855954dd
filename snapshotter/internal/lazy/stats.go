package lazy

import (
	"sync"
	"sync/atomic"
	"time"
)

// Stats says what reading a layer has cost so far.
type Stats struct {
	// BytesFetched counts blob bytes received, Requests the range requests made
	// for them, Failures those that did not end well.
	BytesFetched, Requests, Failures int64
	// OnDemandWait is the time during which at least one reader waited: a union
	// of intervals, never more than the time that passed.
	OnDemandWait time.Duration
	// OnDemandReads counts the reads that had to wait.
	OnDemandReads int64
	// ChunksPresent of Chunks are in the cache.
	ChunksPresent, Chunks int
}

type counters struct {
	bytes, requests, failures, reads atomic.Int64

	mu      sync.Mutex
	waiting int
	since   time.Time
	waited  time.Duration
}

// wait counts a reader, here and at the gate, until the returned function is
// called.
func (c *counters) wait(g *Gate) func() {
	leave := g.enter()
	c.reads.Add(1)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waiting++; c.waiting == 1 {
		c.since = time.Now()
	}
	return func() {
		leave()
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.waiting--; c.waiting == 0 {
			c.waited += time.Since(c.since)
		}
	}
}

// Stats returns the counters, taken together.
func (l *Layer) Stats() Stats {
	c := &l.stats
	c.mu.Lock()
	waited := c.waited
	if c.waiting > 0 {
		waited += time.Since(c.since)
	}
	c.mu.Unlock()
	return Stats{
		BytesFetched: c.bytes.Load(), Requests: c.requests.Load(), Failures: c.failures.Load(),
		OnDemandWait: waited, OnDemandReads: c.reads.Load(),
		ChunksPresent: l.cache.Present(), Chunks: len(l.ix.Chunks),
	}
}
