package replay

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/firstlight-dev/firstlight/indexer/index"
	"github.com/firstlight-dev/firstlight/indexer/profile"
)

// fake is a layer of equal chunks that notes what is fetched.
type fake struct {
	ix      *index.Index
	present map[int]bool
	fail    error

	mu      sync.Mutex
	fetched []int // times, by chunk
	calls   int
	running int
	most    int
	gate    chan struct{} // when not nil, a fetch waits for it
}

const (
	chunkSize  = 512 << 10
	packedSize = 200 << 10
)

func newFake(chunks int) *fake {
	f := &fake{ix: &index.Index{Size: int64(chunks) * chunkSize, CompressedSize: int64(chunks) * packedSize}, present: map[int]bool{}, fetched: make([]int, chunks)}
	for i := range int64(chunks) {
		f.ix.Chunks = append(f.ix.Chunks, index.Chunk{Offset: i * chunkSize, Size: chunkSize, CompressedOffset: i * packedSize, CompressedSize: packedSize})
	}
	return f
}

func (f *fake) Index() *index.Index    { return f.ix }
func (f *fake) Present(chunk int) bool { return f.present[chunk] }

func (f *fake) Prefetch(ctx context.Context, first, last int) error {
	f.mu.Lock()
	f.calls++
	f.running++
	f.most = max(f.most, f.running)
	for i := first; i <= last; i++ {
		f.fetched[i]++
	}
	f.mu.Unlock()
	if f.gate != nil {
		select {
		case <-f.gate:
		case <-ctx.Done():
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.running--
	return f.fail
}

func layerDigest(i int) digest.Digest { return digest.FromString(fmt.Sprint("layer", i)) }

// TestPlan checks random profiles: every chunk that a part touches is asked for
// exactly once, none that is present, and requests stay within their bounds.
func TestPlan(t *testing.T) {
	rnd := rand.New(rand.NewPCG(7, 7))
	for range 100 {
		layers, p := map[digest.Digest]Layer{}, &profile.Profile{}
		var fakes []*fake
		want := map[*fake]map[int]bool{}
		for i := range 1 + rnd.IntN(4) {
			f := newFake(1 + rnd.IntN(200))
			for range rnd.IntN(20) {
				f.present[rnd.IntN(len(f.ix.Chunks))] = true
			}
			want[f] = map[int]bool{}
			fakes = append(fakes, f)
			layers[layerDigest(i)] = f
			p.Layers = append(p.Layers, profile.Layer{Digest: layerDigest(i), Size: f.ix.Size})
		}
		for range rnd.IntN(500) {
			i := rnd.IntN(len(fakes))
			units := fakes[i].ix.Size / profile.Unit
			part := profile.Part{Layer: i, First: rnd.Int64N(units)}
			part.Count = 1 + rnd.Int64N(min(units-part.First, 300))
			p.Parts = append(p.Parts, part)
			for c := part.Offset() / chunkSize; c <= (part.End(fakes[i].ix.Size)-1)/chunkSize; c++ {
				if !fakes[i].present[int(c)] {
					want[fakes[i]][int(c)] = true
				}
			}
		}
		res := Run(t.Context(), p, layers)
		if res.Err != nil || res.LeftOut != 0 {
			t.Fatalf("%+v", res)
		}
		for _, f := range fakes {
			for i, n := range f.fetched {
				if n > 1 || n == 0 && want[f][i] || n == 1 && f.present[i] {
					t.Fatalf("chunk %d (wanted %v, present %v) was fetched %d times", i, want[f][i], f.present[i], n)
				}
			}
		}
		runs, _ := plan(p, layers)
		for _, r := range runs {
			if r.bytes > maxRun || r.bytes != int64(r.last-r.first+1)*packedSize {
				t.Fatalf("a request of %d bytes for %d chunks", r.bytes, r.last-r.first+1)
			}
		}
	}
}

// TestOrder: the first bytes of a start come first, and scattered reads of one
// place become one request.
func TestOrder(t *testing.T) {
	a, b := newFake(400), newFake(400)
	layers := map[digest.Digest]Layer{layerDigest(0): a, layerDigest(1): b}
	p := &profile.Profile{Layers: []profile.Layer{{Digest: layerDigest(0), Size: a.ix.Size}, {Digest: layerDigest(1), Size: b.ix.Size}}}
	touch := func(layer, chunk int) {
		p.Parts = append(p.Parts, profile.Part{Layer: layer, First: int64(chunk) * chunkSize / profile.Unit, Count: 1})
	}
	touch(1, 300)
	for _, c := range []int{10, 14, 12, 11} { // 13 lies in a gap that costs less than a request
		touch(0, c)
	}
	touch(1, 0)
	runs, _ := plan(p, layers)
	want := []run{{b, 300, 300, packedSize}, {a, 10, 14, 5 * packedSize}, {b, 0, 0, packedSize}}
	if fmt.Sprint(runs) != fmt.Sprint(want) {
		t.Errorf("requests are %v, want %v", runs, want)
	}
}

func TestConcurrency(t *testing.T) {
	f := newFake(2000)
	f.gate = make(chan struct{})
	p := &profile.Profile{Layers: []profile.Layer{{Digest: layerDigest(0), Size: f.ix.Size}}, Parts: []profile.Part{{First: 0, Count: f.ix.Size / profile.Unit}}}
	done := make(chan Result)
	go func() { done <- Run(t.Context(), p, map[digest.Digest]Layer{layerDigest(0): f}) }()
	for range (2000*packedSize + maxRun - 1) / maxRun {
		f.gate <- struct{}{}
	}
	close(f.gate)
	<-done
	if f.most > requests {
		t.Errorf("%d requests at a time", f.most)
	}
}

// TestHostile has what a profile that decodes may still try.
func TestHostile(t *testing.T) {
	f := newFake(10)
	layers := map[digest.Digest]Layer{layerDigest(0): f}
	all := []profile.Part{{Layer: 0, First: 0, Count: f.ix.Size / profile.Unit}}
	for name, l := range map[string]profile.Layer{
		"another image's layer": {Digest: layerDigest(5), Size: f.ix.Size},
		"a layer of other size": {Digest: layerDigest(0), Size: f.ix.Size * 2},
	} {
		res := Run(t.Context(), &profile.Profile{Layers: []profile.Layer{l}, Parts: all}, layers)
		if f.calls != 0 || res.Requests != 0 || res.LeftOut != 1 {
			t.Errorf("%s: %+v, %d calls", name, res, f.calls)
		}
	}
	huge := newFake(50_000) // 10 GB
	res := Run(t.Context(), &profile.Profile{Layers: []profile.Layer{{Digest: layerDigest(0), Size: huge.ix.Size}},
		Parts: []profile.Part{{First: 0, Count: huge.ix.Size / profile.Unit}}}, map[digest.Digest]Layer{layerDigest(0): huge})
	if res.Bytes > maxBytes || res.Bytes < maxBytes/2 {
		t.Errorf("a huge profile: %+v", res)
	}
}

func TestFailuresEndAReplay(t *testing.T) {
	f := newFake(2000)
	f.fail = errors.New("registry is down")
	p := &profile.Profile{Layers: []profile.Layer{{Digest: layerDigest(0), Size: f.ix.Size}}, Parts: []profile.Part{{First: 0, Count: f.ix.Size / profile.Unit}}}
	res := Run(t.Context(), p, map[digest.Digest]Layer{layerDigest(0): f})
	if !errors.Is(res.Err, f.fail) || f.calls > maxFailures+requests {
		t.Errorf("%d requests to a registry that is down, %v", f.calls, res.Err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	f = newFake(2000)
	if res := Run(ctx, p, map[digest.Digest]Layer{layerDigest(0): f}); f.calls != 0 || res.Requests != 0 {
		t.Errorf("after its end a replay made %d requests", f.calls)
	}
}
