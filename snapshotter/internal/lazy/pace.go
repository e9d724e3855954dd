package lazy

import (
	"slices"
	"sync"
	"time"
)

const (
	// paceSamples is over how many answers the shortest wait is taken, paceFew how
	// many are too few: the first ones made connections and fetched tokens.
	paceSamples = 16
	paceFew     = 4
	// paceBody is the smallest body that says something about a link's rate: less
	// is in the buffers on the way.
	paceBody = 256 << 10
	// maxReach bounds what is fetched beyond what a reader asked for.
	maxReach = 2 << 20
)

// pace is what is known of the way to the registries: how long an answer takes
// and how fast bytes come then. Their product is what the link could have
// carried during one wait, so fetching that much more with a request costs no
// more than the next request would, if any of it is wanted.
type pace struct {
	mu    sync.Mutex
	waits []time.Duration // the last ones
	next  int
	rate  float64 // bytes a second, smoothed; 0 is not known
}

// answered notes the time from a request to the head of its answer. The shortest
// counts: a longer one may have stood in line behind other bytes.
func (p *pace) answered(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.waits) < paceSamples {
		p.waits = append(p.waits, d)
		return
	}
	p.waits[p.next] = d
	p.next = (p.next + 1) % paceSamples
}

// received notes how long the bytes of one answer took.
func (p *pace) received(n int64, d time.Duration) {
	if n < paceBody || d <= 0 {
		return
	}
	rate := float64(n) / d.Seconds()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.rate == 0 {
		p.rate = rate
	}
	p.rate += (rate - p.rate) / 8
}

// reach is how many bytes beyond those asked for are worth fetching with them.
func (p *pace) reach() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.waits) < paceFew {
		return 0
	}
	return min(maxReach, int64(p.rate*slices.Min(p.waits).Seconds()))
}
