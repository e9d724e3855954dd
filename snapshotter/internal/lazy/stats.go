package lazy

import (
	"sync/atomic"
	"time"

	"github.com/firstlight-dev/firstlight/snapshotter/internal/account"
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
	bytes, requests, failures atomic.Int64
	wait                      account.Union
}

// tally counts received bytes for the layer, the node and the container that
// they are for.
type tally struct {
	layer, node *atomic.Int64
	account     *account.Account
}

// Add implements adder.
func (t tally) Add(n int64) int64 {
	t.account.Fetched(n)
	t.node.Add(n)
	return t.layer.Add(n)
}

// Stats returns the counters, taken together.
func (l *Layer) Stats() Stats {
	c := &l.stats
	waited, reads := c.wait.Total()
	return Stats{
		BytesFetched: c.bytes.Load(), Requests: c.requests.Load(), Failures: c.failures.Load(),
		OnDemandWait: waited, OnDemandReads: reads,
		ChunksPresent: l.cache.Present(), Chunks: len(l.ix.Chunks),
	}
}
