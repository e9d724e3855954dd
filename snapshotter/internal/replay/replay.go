// Package replay fetches what an access profile says that a start will read,
// before it is read.
//
// # Order
//
// A profile's parts become chunks of the layers here, by their indexes. Long
// ranges cost fewer requests, but a start wants its first bytes first: so the
// order of first touch is cut into windows, small at the beginning, and within
// a window neighbouring chunks become one range, and ranges go in the order in
// which each is first touched.
//
// # Trust
//
// A profile may be anybody's. It can make a node fetch parts of the image's own
// layers, each at most once, below what readers wait for and up to a limit;
// parts of other layers, or of a layer of another size, are left out. What
// arrives is verified like every chunk. Nothing waits for a replay, and its
// failure is a log line.
package replay

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"

	"github.com/firstlight-dev/firstlight/indexer/index"
	"github.com/firstlight-dev/firstlight/indexer/profile"
)

const (
	// firstWindow is the blob bytes of the first window, which doubles up to
	// lastWindow: a start's first reads are waited for one by one, later ones
	// are far enough ahead to be sorted.
	firstWindow = 4 << 20
	lastWindow  = 64 << 20
	// maxRun bounds the blob bytes of one request. A reader may have to wait for
	// the whole of it.
	maxRun = 4 << 20
	// maxGap is what is fetched in vain rather than asked around: less than
	// passes over a link in the time that a request takes.
	maxGap = 256 << 10
	// requests is how many are under way for one image, over all layers.
	requests = 8
	// maxBytes bounds a replay. What reads more is no start-up, and whatever a
	// profile says, the background completes layers anyway.
	maxBytes = 4 << 30
	// maxFailures ends a replay: the registry has trouble, and readers try
	// again for themselves.
	maxFailures = 3
)

// Layer is a lazy layer.
type Layer interface {
	Index() *index.Index
	// Present reports whether a chunk is here already.
	Present(chunk int) bool
	// Prefetch returns when the chunks [first, last] have come, or failed.
	Prefetch(ctx context.Context, first, last int) error
}

// Result says what became of a replay.
type Result struct {
	Requests int   // made
	Bytes    int64 // of blobs asked for
	LeftOut  int   // layers of the profile that are not lazy here, or not the image's
	Err      error // the first failure
}

// Run replays the profile on the layers of its image and returns when that is
// done.
func Run(ctx context.Context, p *profile.Profile, layers map[digest.Digest]Layer) Result {
	runs, leftOut := plan(p, layers)
	res := Result{LeftOut: leftOut}
	var failures atomic.Int32
	var once sync.Once
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(requests)
	for _, r := range runs {
		if gctx.Err() != nil || failures.Load() >= maxFailures {
			break
		}
		res.Requests++
		res.Bytes += r.bytes
		g.Go(func() error {
			if err := r.layer.Prefetch(gctx, r.first, r.last); err != nil {
				failures.Add(1)
				once.Do(func() { res.Err = err })
			}
			return nil
		})
	}
	// The functions return no errors: one failure does not end the others.
	_ = g.Wait()
	return res
}

// run is a row of chunks of one layer.
type run struct {
	layer       Layer
	first, last int
	bytes       int64 // of the blob
}

// planner maps parts to chunks.
type planner struct {
	layers []Layer // of the profile; nil for those left out
	seen   [][]uint64
	total  int64

	window []chunk // in order of first touch
	size   int64   // blob bytes of the window
	limit  int64   // at which it is closed
	runs   []run
}

type chunk struct{ layer, number, order int }

// plan makes the requests of a replay, in order.
func plan(p *profile.Profile, layers map[digest.Digest]Layer) (runs []run, leftOut int) {
	x := &planner{limit: firstWindow}
	for _, l := range p.Layers {
		known := layers[l.Digest]
		if known == nil || known.Index().Size != l.Size {
			x.layers, x.seen = append(x.layers, nil), append(x.seen, nil)
			leftOut++
			continue
		}
		x.layers = append(x.layers, known)
		x.seen = append(x.seen, make([]uint64, (len(known.Index().Chunks)+63)/64))
	}
	for _, part := range p.Parts {
		if !x.add(part) {
			break
		}
	}
	x.flush()
	return x.runs, leftOut
}

func (x *planner) marked(layer, number int) bool {
	return x.seen[layer][number/64]&(1<<(number%64)) != 0
}

// mark notes a chunk and reports whether it is new.
func (x *planner) mark(layer, number int) bool {
	if x.marked(layer, number) {
		return false
	}
	x.seen[layer][number/64] |= 1 << (number % 64)
	return true
}

// add takes a part's chunks into the window. It reports whether there is room
// for more.
func (x *planner) add(part profile.Part) bool {
	l := x.layers[part.Layer]
	if l == nil {
		return true
	}
	ix := l.Index()
	last := ix.ChunkAt(part.End(ix.Size) - 1)
	for i := ix.ChunkAt(part.Offset()); i <= last; i++ {
		if !x.mark(part.Layer, i) || l.Present(i) {
			continue
		}
		n := ix.Chunks[i].CompressedSize
		if x.total += n; x.total > maxBytes {
			return false
		}
		x.window = append(x.window, chunk{part.Layer, i, len(x.window)})
		if x.size += n; x.size >= x.limit {
			x.flush()
		}
	}
	return true
}

// flush makes runs of the window.
func (x *planner) flush() {
	slices.SortFunc(x.window, func(a, b chunk) int {
		return cmp.Or(cmp.Compare(a.layer, b.layer), cmp.Compare(a.number, b.number))
	})
	type ordered struct {
		run
		order int
	}
	var all []ordered
	at := -1 // the layer of the last run
	for _, c := range x.window {
		l := x.layers[c.layer]
		if n := len(all); n > 0 && at == c.layer {
			if r := &all[n-1]; x.join(&r.run, c) {
				r.order = min(r.order, c.order)
				continue
			}
		}
		at = c.layer
		all = append(all, ordered{run{l, c.number, c.number, l.Index().Chunks[c.number].CompressedSize}, c.order})
	}
	slices.SortFunc(all, func(a, b ordered) int { return cmp.Compare(a.order, b.order) })
	for _, r := range all {
		x.runs = append(x.runs, r.run)
	}
	x.window, x.size = x.window[:0], 0
	x.limit = min(2*x.limit, lastWindow)
}

// join extends a run to a chunk further on, if that makes one good request.
func (x *planner) join(r *run, c chunk) bool {
	chunks := r.layer.Index().Chunks
	end := chunks[r.last].CompressedOffset + chunks[r.last].CompressedSize
	to := chunks[c.number].CompressedOffset + chunks[c.number].CompressedSize
	if chunks[c.number].CompressedOffset-end > maxGap || to-chunks[r.first].CompressedOffset > maxRun {
		return false
	}
	for i := r.last + 1; i < c.number; i++ {
		if r.layer.Present(i) || x.marked(c.layer, i) {
			return false // it would cut the request in two
		}
	}
	for i := r.last + 1; i < c.number; i++ {
		x.mark(c.layer, i)
	}
	r.last, r.bytes = c.number, to-chunks[r.first].CompressedOffset
	return true
}
