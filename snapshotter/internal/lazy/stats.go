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
	// BytesReplayed is the part of BytesFetched that a profile asked for.
	BytesReplayed int64
	// ChunksPresent of Chunks are in the cache.
	ChunksPresent, Chunks int
}

type counters struct {
	bytes, requests, failures, replayed atomic.Int64
	wait                                account.Union
}

// tally counts received bytes for the layer, the node and the container that
// they are for.
type tally struct {
	layer, node *atomic.Int64
	replayed    *atomic.Int64 // nil for what no profile asked for
	account     *account.Account
}

// Add implements adder.
func (t tally) Add(n int64) int64 {
	t.account.Fetched(n)
	if t.replayed != nil {
		t.replayed.Add(n)
	}
	t.node.Add(n)
	return t.layer.Add(n)
}

// tally counts what arrives for a run of an urgency.
func (l *Layer) tally(u urgency, reader *account.Account) tally {
	t := tally{layer: &l.stats.bytes, node: &l.gate.bytes, account: reader}
	if u == replay {
		t.replayed = &l.stats.replayed
	}
	return t
}

// Stats returns the counters, taken together.
func (l *Layer) Stats() Stats {
	c := &l.stats
	waited, reads := c.wait.Total()
	return Stats{
		BytesFetched: c.bytes.Load(), Requests: c.requests.Load(), Failures: c.failures.Load(),
		OnDemandWait: waited, OnDemandReads: reads, BytesReplayed: c.replayed.Load(),
		ChunksPresent: l.cache.Present(), Chunks: len(l.ix.Chunks),
	}
}
