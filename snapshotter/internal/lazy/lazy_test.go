package lazy

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"

	"github.com/firstlight-dev/firstlight/indexer/index"
	"github.com/firstlight-dev/firstlight/indexer/scan"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/account"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/cache"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/quota"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/registry"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/registry/registrytest"
)

// archive is a tar stream of files with pseudo-random content.
func archive(t *testing.T, size int, mode int64) []byte {
	t.Helper()
	rnd := rand.New(rand.NewPCG(uint64(size), 3))
	var out bytes.Buffer
	tw := tar.NewWriter(&out)
	for i := 0; out.Len() < size; i++ {
		b := make([]byte, 1+rnd.IntN(300_000))
		for j := range b {
			b[j] = byte(rnd.IntN(30)) // so that it compresses, somewhat
		}
		if err := tw.WriteHeader(&tar.Header{Name: fmt.Sprintf("f%d", i), Typeflag: tar.TypeReg, Mode: mode, Size: int64(len(b))}); err != nil {
			t.Fatal(err)
		}
		if _, err := tw.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// blob makes a layer and its tar stream.
func blob(t *testing.T, size int, how index.Compression) (layer, stream []byte) {
	t.Helper()
	plain := archive(t, size, 0o644)
	if how == index.None {
		return plain, plain
	}
	var out bytes.Buffer
	var zw io.WriteCloser = gzip.NewWriter(&out)
	if how == index.Zstd {
		var err error
		if zw, err = zstd.NewWriter(&out); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := zw.Write(plain); err != nil {
		t.Fatal(err)
	}
	if err := zw.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes(), plain
}

type fixture struct {
	srv    *registrytest.Server
	ix     *index.Index
	stream []byte
	cache  *cache.Cache
	layer  *Layer
}

// newFixture is a layer on a registry, none of it here.
func newFixture(t *testing.T, size int, how index.Compression, opts ...Option) *fixture {
	t.Helper()
	return newLimited(t, size, how, 0, opts...)
}

// newLimited is the same with a cache that may hold so many bytes.
func newLimited(t *testing.T, size int, how index.Compression, limit int64, opts ...Option) *fixture {
	t.Helper()
	b, stream := blob(t, size, how)
	f := &fixture{srv: registrytest.New(t), stream: stream}
	desc := f.srv.AddBlob(b)
	var err error
	if f.ix, err = scan.Scan(t.Context(), scan.Layer{Reader: bytes.NewReader(b), Size: -1}); err != nil {
		t.Fatal(err)
	}
	if f.cache, err = cache.Open(t.TempDir(), cache.WithLimits(cache.Limits{MaxBytes: limit})); err != nil {
		t.Fatal(err)
	}
	c := registry.New(registry.Config{HeaderTimeout: 300 * time.Millisecond, StallTimeout: 300 * time.Millisecond})
	r, err := c.Repository(f.srv.Host() + "/x")
	if err != nil {
		t.Fatal(err)
	}
	cl, err := f.cache.Layer(f.ix.Layer, f.ix.Size, f.ix.Chunks)
	if err != nil {
		t.Fatal(err)
	}
	f.layer = Open(f.ix, cl, r.Source(desc), opts...)
	t.Cleanup(func() {
		if err := errors.Join(f.layer.Close(), cl.Close(), f.cache.Close()); err != nil {
			t.Error(err)
		}
	})
	return f
}

func (f *fixture) read(ctx context.Context, off, n int64) error {
	p := make([]byte, n)
	got, err := f.layer.ReadAtContext(ctx, p, off)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	want := f.stream[off:min(off+n, int64(len(f.stream)))]
	if !bytes.Equal(p[:got], want) {
		return fmt.Errorf("%d bytes at %d: wrong content (%d read)", n, off, got)
	}
	return nil
}

func TestRandomReads(t *testing.T) {
	for _, how := range []index.Compression{index.Gzip, index.Zstd, index.None} {
		t.Run(string(how), func(t *testing.T) {
			f := newFixture(t, 12<<20, how)
			var wg sync.WaitGroup
			for g := range 8 {
				wg.Go(func() {
					rnd := rand.New(rand.NewPCG(uint64(g), 1))
					for range 40 {
						off := rnd.Int64N(f.ix.Size)
						if err := f.read(t.Context(), off, 1+rnd.Int64N(1<<20)); err != nil {
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()
			st := f.layer.Stats()
			if st.BytesFetched > f.ix.CompressedSize+st.Requests || st.OnDemandReads == 0 || st.Failures != 0 {
				t.Errorf("a chunk was fetched twice, or nothing counted: %+v of %d bytes", st, f.ix.CompressedSize)
			}
		})
	}
}

func TestEdges(t *testing.T) {
	f := newFixture(t, 1<<20, index.Gzip)
	size := f.ix.Size
	if n, err := f.layer.ReadAtContext(t.Context(), make([]byte, 10), size); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %d, %v", n, err)
	}
	if n, err := f.layer.ReadAtContext(t.Context(), make([]byte, 10), size-3); n != 3 || !errors.Is(err, io.EOF) {
		t.Errorf("across the end: %d, %v", n, err)
	}
	if n, err := f.layer.ReadAtContext(t.Context(), nil, 5); n != 0 || err != nil {
		t.Errorf("of nothing: %d, %v", n, err)
	}
	if _, err := f.layer.ReadAtContext(t.Context(), make([]byte, 1), -1); err == nil {
		t.Error("before the start: no error")
	}
}

// TestSingleFlight: many readers of one cold chunk make one request.
func TestSingleFlight(t *testing.T) {
	f := newFixture(t, 2<<20, index.Gzip)
	release := make(chan struct{})
	f.srv.SetFault(func(http.ResponseWriter, *http.Request) bool { <-release; return false })
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if err := f.read(t.Context(), 1000, 5000); err != nil {
				t.Error(err)
			}
		})
	}
	for f.layer.Stats().OnDemandReads < 20 {
		<-time.After(time.Millisecond)
	}
	close(release)
	wg.Wait()
	if n := len(f.srv.Requests()); n != 1 {
		t.Errorf("%d requests", n)
	}
}

// TestCoalescing: one long read makes few requests, and a sequential reader is
// run ahead of.
func TestCoalescing(t *testing.T) {
	f := newFixture(t, 24<<20, index.Gzip)
	if err := f.read(t.Context(), 0, 6<<20); err != nil {
		t.Fatal(err)
	}
	if n := f.layer.Stats().Requests; n > 2 {
		t.Errorf("%d requests for one read of 6 MiB", n)
	}
	for off := int64(6 << 20); off < f.ix.Size; off += 128 << 10 {
		if err := f.read(t.Context(), off, 128<<10); err != nil {
			t.Fatal(err)
		}
	}
	f.layer.runs.Wait() // read-ahead may be under way
	if st := f.layer.Stats(); st.Requests > int64(st.Chunks)/3 || st.ChunksPresent != st.Chunks {
		t.Errorf("a sequential reader made %d requests for %d chunks (%d present)", st.Requests, st.Chunks, st.ChunksPresent)
	}
}

func TestFill(t *testing.T) {
	for _, how := range []index.Compression{index.Gzip, index.Zstd, index.None} {
		f := newFixture(t, 10<<20, how)
		if err := f.read(t.Context(), 3<<20, 100); err != nil {
			t.Fatal(err)
		}
		if err := f.layer.Fill(t.Context()); err != nil {
			t.Fatal(err)
		}
		st := f.layer.Stats()
		if !f.layer.cache.Complete() || st.ChunksPresent != st.Chunks {
			t.Errorf("filled layer is not complete: %+v", st)
		}
		if st.Requests > 10 {
			t.Errorf("%d requests to fill %d bytes", st.Requests, f.ix.CompressedSize)
		}
		f.srv.Close()
		if err := f.read(t.Context(), 0, f.ix.Size); err != nil {
			t.Errorf("complete layer without registry: %v", err)
		}
	}
}

// TestFaults: while the registry misbehaves a read fails within its deadline,
// or waits the trouble out; nothing wrong is ever served; and it heals.
func TestFaults(t *testing.T) {
	faults := map[string]registrytest.Fault{
		"no ranges":  func(_ http.ResponseWriter, r *http.Request) bool { r.Header.Del("Range"); return false },
		"no login":   registrytest.Status(401),
		"not found":  registrytest.Status(404),
		"throttled":  registrytest.Status(429),
		"broken":     registrytest.Status(503),
		"black hole": registrytest.BlackHole,
		"wrong bytes": func(w http.ResponseWriter, r *http.Request) bool {
			var from, to int64
			_, _ = fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &from, &to)
			w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/*", from, to))
			w.WriteHeader(http.StatusPartialContent)
			_, _ = w.Write(make([]byte, to-from+1))
			return true
		},
		"truncated": func(w http.ResponseWriter, r *http.Request) bool {
			var from, to int64
			_, _ = fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &from, &to)
			w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/*", from, to))
			w.Header().Set("Content-Length", fmt.Sprint(to-from+1))
			w.WriteHeader(http.StatusPartialContent)
			_, _ = w.Write(make([]byte, (to-from)/2))
			panic(http.ErrAbortHandler)
		},
	}
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, 3<<20, index.Gzip, WithReadTimeout(700*time.Millisecond))
			f.srv.SetFault(fault)
			if err := f.read(t.Context(), 1<<20, 1000); err == nil {
				t.Fatal("read worked")
			}
			if name == "no ranges" {
				if err := f.read(t.Context(), 1<<20, 1000); !errors.Is(err, registry.ErrNoRanges) {
					t.Errorf("error is %v", err)
				}
			}
			if n := f.layer.cache.Present(); n != 0 {
				t.Errorf("%d chunks kept", n)
			}
			f.srv.SetFault(nil)
			if err := f.read(t.Context(), 1<<20, 1000); err != nil {
				t.Errorf("after the fault: %v", err)
			}
		})
	}
}

// TestWaitsTroubleOut: a registry that comes back within the deadline costs
// time, not an error.
func TestWaitsTroubleOut(t *testing.T) {
	f := newFixture(t, 1<<20, index.Gzip)
	var n atomic.Int32
	f.srv.SetFault(func(w http.ResponseWriter, r *http.Request) bool {
		return n.Add(1) < 8 && registrytest.Status(503)(w, r)
	})
	if err := f.read(t.Context(), 0, 100); err != nil {
		t.Error(err)
	}
}

// TestReaderGivesUp: who is killed does not wait for the registry.
func TestReaderGivesUp(t *testing.T) {
	f := newFixture(t, 1<<20, index.Gzip, WithReadTimeout(time.Minute))
	arrived := make(chan struct{}, 100)
	f.srv.SetFault(func(w http.ResponseWriter, r *http.Request) bool {
		arrived <- struct{}{}
		return registrytest.BlackHole(w, r)
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-arrived; cancel() }()
	if err := f.read(ctx, 0, 100); !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v", err)
	}
}

// TestLyingIndex: an index whose chunks all match, of content that is not what
// the image names, is found out when the layer is whole.
func TestLyingIndex(t *testing.T) {
	f := newFixture(t, 1<<20, index.Gzip)
	f.ix.DiffID = digest.FromString("what the image says")
	if err := f.layer.Fill(t.Context()); !errors.Is(err, ErrMismatch) {
		t.Fatalf("fill: %v", err)
	}
	if err := f.read(t.Context(), 0, 10); !errors.Is(err, cache.ErrQuarantined) {
		t.Errorf("read of a quarantined layer: %v", err)
	}
	if err := f.layer.Fill(t.Context()); err == nil {
		t.Error("filled a quarantined layer")
	}
}

// TestLyingHeaders: the same for names and modes, which come from the index.
func TestLyingHeaders(t *testing.T) {
	f := newFixture(t, 1<<20, index.None)
	forged, err := scan.Scan(t.Context(), scan.Layer{Reader: bytes.NewReader(archive(t, 1<<20, 0o4755)), Size: -1})
	if err != nil {
		t.Fatal(err)
	}
	forged.Layer, forged.DiffID, forged.Chunks = f.ix.Layer, f.ix.DiffID, f.ix.Chunks
	f.layer.ix = forged
	if err := f.layer.Fill(t.Context()); !errors.Is(err, ErrMismatch) {
		t.Errorf("fill: %v", err)
	}
	if s := f.layer.cache.State(); s != cache.Quarantined {
		t.Errorf("state is %d", s)
	}
}

// TestFillWithoutRoom: the background does not push out what readers use.
func TestFillWithoutRoom(t *testing.T) {
	f := newLimited(t, 8<<20, index.None, 4<<20)
	if err := f.read(t.Context(), 1<<20, 1<<20); err != nil {
		t.Fatal(err)
	}
	if err := f.layer.Fill(t.Context()); !errors.Is(err, cache.ErrFull) {
		t.Errorf("fill: %v", err)
	}
	if st := f.cache.Stats(); st.Chunks != 0 || st.Refused != 0 {
		t.Errorf("the background made room: %+v", st)
	}
}

// TestReadsBeyondTheLimit: a layer larger than its cache is read as any other,
// for longer.
func TestReadsBeyondTheLimit(t *testing.T) {
	f := newLimited(t, 12<<20, index.Gzip, 4<<20)
	var wg sync.WaitGroup
	for g := range 6 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(g), 9))
			for range 60 {
				if err := f.read(t.Context(), rnd.Int64N(f.ix.Size), 1+rnd.Int64N(300_000)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if st := f.cache.Stats(); st.Bytes > 4<<20 || st.Chunks+st.Refused == 0 {
		t.Errorf("cache: %+v", st)
	}
}

func TestFillHeals(t *testing.T) {
	f := newFixture(t, 4<<20, index.Gzip)
	var n atomic.Int32
	f.srv.SetFault(func(w http.ResponseWriter, r *http.Request) bool {
		return n.Add(1) < 8 && registrytest.Status(500)(w, r)
	})
	if err := f.layer.Fill(t.Context()); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	g := newFixture(t, 1<<20, index.Gzip)
	if err := g.layer.Fill(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("fill with a context that ended: %v", err)
	}
}

// TestDemandBeforeBackground: a reader is served while a fill is under way, also
// if the fill has its chunk, and the fill does not go on before it.
func TestDemandBeforeBackground(t *testing.T) {
	f := newFixture(t, 16<<20, index.None)
	filled := make(chan error, 1)
	go func() { filled <- f.layer.Fill(t.Context()) }()
	rnd := rand.New(rand.NewPCG(5, 5))
	for range 50 {
		if err := f.read(t.Context(), rnd.Int64N(f.ix.Size), 4096); err != nil {
			t.Error(err)
		}
	}
	if err := <-filled; err != nil {
		t.Error(err)
	}
}

func TestGate(t *testing.T) {
	g := NewGate()
	leave, leave2 := g.enter(nil), g.enter(nil)
	passed := make(chan error, 1)
	go func() { passed <- g.wait(t.Context(), nil, background) }()
	leave()
	select {
	case <-passed:
		t.Error("background passed a waiting reader")
	default:
	}
	wanted := make(chan struct{})
	close(wanted)
	if err := g.wait(t.Context(), wanted, background); err != nil {
		t.Errorf("a run that is wanted is held back: %v", err)
	}
	leave2()
	if err := <-passed; err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	defer g.enter(nil)()
	if err := g.wait(ctx, nil, background); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestReplayYields: a replay stands still while bytes that a reader waits for
// arrive, not during the round trip before; the background stands still for a
// replay.
func TestReplayYields(t *testing.T) {
	g := NewGate()
	blocked := func(u urgency) bool { b, _ := g.blocked(u); return b }
	leave := g.enter(nil)
	if blocked(replay) || !blocked(background) {
		t.Error("a reader waits for an answer: replay may go on, the background not")
	}
	received := g.receive()
	if !blocked(replay) {
		t.Error("a reader's bytes arrive: replay may not go on")
	}
	passed := make(chan error, 1)
	go func() { passed <- g.wait(t.Context(), nil, replay) }()
	leave()
	if err := <-passed; err != nil {
		t.Error(err)
	}
	received()
	done := g.Replay()
	if blocked(replay) || !blocked(background) {
		t.Error("during a replay, only the background stands still")
	}
	done()
	if blocked(background) {
		t.Error("the background stands still for nothing")
	}
}

// TestPrefetch: what was prefetched is read without a wait, and is counted.
func TestPrefetch(t *testing.T) {
	f := newFixture(t, 12<<20, index.Gzip)
	last := len(f.ix.Chunks)/2 - 1
	if err := f.layer.Prefetch(t.Context(), 0, last); err != nil {
		t.Fatal(err)
	}
	c := f.ix.Chunks[last]
	if err := f.read(t.Context(), 0, c.Offset+c.Size); err != nil {
		t.Fatal(err)
	}
	if s := f.layer.Stats(); s.OnDemandReads != 0 || s.BytesReplayed != s.BytesFetched || s.BytesReplayed < c.CompressedOffset {
		t.Errorf("stats are %+v", s)
	}
	// Going through it in order did not make anything be fetched ahead.
	for off := int64(0); off < c.Offset; off += 64 << 10 {
		if err := f.read(t.Context(), off, 64<<10); err != nil {
			t.Fatal(err)
		}
	}
	if s := f.layer.Stats(); s.Requests != 1 || s.ChunksPresent != last+1 {
		t.Errorf("after reading in order, stats are %+v", s)
	}
	if err := f.layer.Prefetch(t.Context(), 0, len(f.ix.Chunks)); err == nil {
		t.Error("chunks beyond the end are fetched")
	}
}

// TestWatch: a watcher is told of reads while it watches, of whatever is there.
func TestWatch(t *testing.T) {
	f := newFixture(t, 1<<20, index.None)
	var one, two []int64
	stopOne := f.layer.Watch(&Watcher{Touched: func(off, n int64) { one = append(one, off, n) }})
	stopTwo := f.layer.Watch(&Watcher{Touched: func(off, n int64) { two = append(two, off, n) }})
	read := func(off, n int64) {
		if err := f.read(t.Context(), off, n); err != nil {
			t.Fatal(err)
		}
	}
	read(0, 10)
	read(0, 10)
	stopOne()
	read(5, 20)
	stopTwo()
	read(6, 1)
	if d := cmp.Diff([][]int64{{0, 10, 0, 10}, {0, 10, 0, 10, 5, 20}}, [][]int64{one, two}); d != "" {
		t.Errorf("touched (-want +got):\n%s", d)
	}
	if f.layer.watched.Load() != nil {
		t.Error("a layer that nobody watches still has a list")
	}
}

// TestCloseEndsWaiting: a layer can be closed though its registry is a black
// hole and its readers have patience.
func TestCloseEndsWaiting(t *testing.T) {
	f := newFixture(t, 1<<20, index.Gzip, WithReadTimeout(time.Hour))
	arrived := make(chan struct{}, 100)
	f.srv.SetFault(func(w http.ResponseWriter, r *http.Request) bool {
		arrived <- struct{}{}
		return registrytest.BlackHole(w, r)
	})
	failed := make(chan error, 1)
	go func() { failed <- f.read(t.Context(), 0, 100) }()
	<-arrived
	if err := f.layer.Close(); err != nil {
		t.Error(err)
	}
	if err := <-failed; !errors.Is(err, ErrClosed) {
		t.Errorf("read of a layer that was closed: %v", err)
	}
	f.layer.closing = make(chan struct{}) // for the fixture, which closes it too
}

// TestHung: who waits for a registry that does not answer is known, told of
// once, and does not hold the background back for ever.
func TestHung(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var waits []time.Duration
		g := NewGate(WithWaitObserver(func(d time.Duration) { waits = append(waits, d) }))
		l := &Layer{ix: &index.Index{Layer: "sha256:x"}, origin: "registry.example"}
		leave := g.enter(l)
		<-time.After(time.Second)
		leave2 := g.enter(l)
		defer leave2()
		<-time.After(patience - time.Second)
		begun := time.Now()
		if err := g.wait(t.Context(), nil, background); err != nil || time.Since(begun) != time.Second {
			t.Errorf("the background waited %v, %v", time.Since(begun), err)
		}
		want := []Hung{{Layer: "sha256:x", Origin: "registry.example", Wait: patience + time.Second, New: true}}
		if d := cmp.Diff(want, g.Hung(patience+time.Second)); d != "" {
			t.Errorf("hung (-want +got):\n%s", d)
		}
		if n := g.Waiting(patience + time.Second); n != 1 {
			t.Errorf("%d wait", n)
		}
		if h := g.Hung(time.Second); len(h) != 2 || h[0].New || !h[1].New {
			t.Errorf("hung: %+v", h)
		}
		leave()
		if h := g.Hung(0); len(h) != 1 || len(waits) != 1 || waits[0] != patience+time.Second {
			t.Errorf("after one left: %+v, %v", h, waits)
		}
	})
}

// TestDeadRegistry: readers of an image whose registry does not answer take
// their image's share of the node's requests and no more, so readers of another
// image go on as if they were alone.
func TestDeadRegistry(t *testing.T) {
	gate := NewGate(WithRequests(quota.Limits{Total: 6, Each: 4, Sure: 1}))
	var deads []*fixture
	arrived := make(chan struct{}, 100)
	for range 3 { // layers of one image, 8 requests each
		f := newFixture(t, 8<<20, index.None, WithGate(gate), WithImage("dead"), WithReadTimeout(time.Hour))
		f.srv.SetFault(func(w http.ResponseWriter, r *http.Request) bool {
			arrived <- struct{}{}
			return registrytest.BlackHole(w, r)
		})
		deads = append(deads, f)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for _, f := range deads {
		for i := range int64(60) {
			wg.Go(func() {
				if err := f.read(ctx, i*(f.ix.Size/60), 100); err == nil {
					t.Error("a dead registry was read")
				}
			})
		}
	}
	for range 4 {
		<-arrived
	}
	live := newFixture(t, 8<<20, index.None, WithGate(gate), WithImage("live"), WithReadTimeout(5*time.Second))
	if err := live.read(t.Context(), 0, live.ix.Size); err != nil {
		t.Errorf("a live registry beside a dead one: %v", err)
	}
	if used, waiting := gate.slots.Used(); used > 4 || waiting == 0 {
		t.Errorf("the dead image has %d slots, %d requests wait", used, waiting)
	}
	cancel()
	wg.Wait()
}

// TestAccounts: what a read costs is counted for who made it.
func TestAccounts(t *testing.T) {
	f := newFixture(t, 4<<20, index.None)
	book := account.NewBook()
	ctx := account.With(t.Context(), book.Of(uint32(os.Getpid())))
	if err := f.read(ctx, 0, 1<<20); err != nil {
		t.Fatal(err)
	}
	if err := f.read(t.Context(), 3<<20, 100); err != nil {
		t.Fatal(err)
	}
	got, st, totals := book.Figures()[0], f.layer.Stats(), f.layer.gate.Totals()
	if got.Requests != 1 || got.OnDemandReads != 1 || got.OnDemandWait <= 0 || got.OnDemandWait > st.OnDemandWait || got.Fetched < 1<<20 || got.Fetched >= st.BytesFetched {
		t.Errorf("one of two reads is counted as %+v of %+v", got, st)
	}
	if totals.BytesFetched != st.BytesFetched || totals.Requests != st.Requests {
		t.Errorf("totals are %+v, of the only layer %+v", totals, st)
	}
}

func FuzzSplitter(f *testing.F) {
	f.Add([]byte("some bytes of a blob"), int64(3), int64(4), int64(6))
	f.Add([]byte("x"), int64(0), int64(1), int64(-1))
	f.Fuzz(func(t *testing.T, b []byte, first, off, n int64) {
		if first < 0 || first > 1<<10 || n < 0 || n > 1<<10 {
			return
		}
		var count atomic.Int64
		s := &splitter{r: bytes.NewReader(b), count: &count}
		one, err := s.next(0, first)
		if err != nil {
			return
		}
		two, err := s.next(off, n)
		if err != nil {
			return
		}
		if off > int64(len(one)) || off < 0 || !bytes.Equal(two, b[off:off+n]) {
			t.Errorf("chunk at %d of %d bytes is %q", off, n, two)
		}
	})
}
