package cache

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/firstlight-dev/firstlight/indexer/index"
)

// testLayer is a layer of n chunks of odd sizes.
type testLayer struct {
	id     digest.Digest
	data   []byte
	chunks []index.Chunk
}

func newTestLayer(n int) *testLayer {
	rnd := rand.New(rand.NewPCG(uint64(n), 7))
	l := &testLayer{}
	for range n {
		c := make([]byte, 1+rnd.IntN(20_000))
		for i := range c {
			c[i] = byte(rnd.Uint32())
		}
		l.chunks = append(l.chunks, index.Chunk{Offset: int64(len(l.data)), Size: int64(len(c)), Digest: sha256.Sum256(c)})
		l.data = append(l.data, c...)
	}
	l.id = digest.FromBytes(l.data)
	return l
}

func (l *testLayer) chunk(i int) []byte {
	c := l.chunks[i]
	return l.data[c.Offset : c.Offset+c.Size]
}

func (l *testLayer) open(t *testing.T, c *Cache) *Layer {
	t.Helper()
	got, err := c.Layer(l.id, int64(len(l.data)), l.chunks)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func openCache(t *testing.T, dir string) *Cache {
	t.Helper()
	c, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// present lists the chunks that can be read, checking what is read.
func (l *testLayer) present(t *testing.T, c *Layer) []int {
	t.Helper()
	var got []int
	for i, ch := range l.chunks {
		p := make([]byte, ch.Size)
		_, err := c.ReadAt(p, ch.Offset)
		switch {
		case errors.Is(err, ErrMissing):
			if c.Has(i) {
				t.Errorf("chunk %d is present and missing", i)
			}
		case err != nil && !errors.Is(err, io.EOF):
			t.Errorf("chunk %d: %v", i, err)
		case !bytes.Equal(p, l.chunk(i)):
			t.Errorf("chunk %d: wrong bytes", i)
		default:
			got = append(got, i)
		}
	}
	return got
}

func TestSurvivesRestart(t *testing.T) {
	dir, l := t.TempDir(), newTestLayer(50)
	c := openCache(t, dir)
	cl := l.open(t, c)
	var put []int
	for i := 0; i < 50; i += 3 {
		must(t, cl.Put(i, l.chunk(i)))
		put = append(put, i)
	}
	must(t, cl.Close())
	must(t, c.Close())
	c = openCache(t, dir)
	defer c.Close()
	cl = l.open(t, c)
	if d := cmp.Diff(put, l.present(t, cl)); d != "" {
		t.Errorf("present after restart (-want +got)\n%s", d)
	}
	if _, err := cl.ReadAt(make([]byte, 10), int64(len(l.data))-5); l.chunks[49].Size > 5 && !errors.Is(err, ErrMissing) && !errors.Is(err, io.EOF) {
		t.Errorf("read across the end: %v", err)
	}
}

// TestKilledWriter kills a process that fills a layer and looks at what the next
// one finds: everything that was put before is there, nothing is wrong.
func TestKilledWriter(t *testing.T) {
	if dir := os.Getenv("CACHE_TEST_WRITER"); dir != "" {
		l := newTestLayer(200)
		cl := l.open(t, openCache(t, dir))
		for i := range 150 {
			must(t, cl.Put(i, l.chunk(i)))
			if i == 40 {
				must(t, cl.Sync())
			}
		}
		// A torn write: half of a chunk.
		if _, err := cl.data.WriteAt(l.chunk(180)[:l.chunks[180].Size/2], l.chunks[180].Offset); err != nil {
			t.Fatal(err)
		}
		must(t, unix.Kill(os.Getpid(), unix.SIGKILL))
	}
	dir, l := t.TempDir(), newTestLayer(200)
	cmd := exec.Command(os.Args[0], "-test.run=^TestKilledWriter$")
	cmd.Env = append(os.Environ(), "CACHE_TEST_WRITER="+dir)
	if out, err := cmd.CombinedOutput(); err == nil || !bytes.Contains([]byte(err.Error()), []byte("killed")) {
		t.Fatalf("writer: %v\n%s", err, out)
	}
	c := openCache(t, dir)
	defer c.Close()
	got := l.present(t, l.open(t, c))
	var want []int
	for i := range 150 {
		want = append(want, i)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("present after SIGKILL (-want +got)\n%s", d)
	}
}

// TestDamage spoils the files of a closed layer. Whatever happens, what is read
// is right or missing.
func TestDamage(t *testing.T) {
	l := newTestLayer(40)
	last := len(l.data) - 1
	tests := map[string]struct {
		spoil func(t *testing.T, data, mapped string)
		lost  []int // nil: all may be lost
	}{
		"a flipped bit": {func(t *testing.T, data, _ string) { flip(t, data, int(l.chunks[7].Offset)) }, []int{7}},
		"the last byte": {func(t *testing.T, data, _ string) { flip(t, data, last) }, []int{39}},
		"no map":        {func(t *testing.T, _, m string) { must(t, os.Remove(m)) }, []int{}},
		"an empty map":  {func(t *testing.T, _, m string) { must(t, os.Truncate(m, 0)) }, []int{}},
		"a torn map":    {func(t *testing.T, _, m string) { must(t, os.Truncate(m, 60)) }, []int{}},
		"a map's bit":   {func(t *testing.T, _, m string) { flip(t, m, 57) }, []int{}},
		"data cut short": {func(t *testing.T, data, _ string) {
			must(t, os.Truncate(data, l.chunks[20].Offset))
		}, []int{20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39}},
		"no data": {func(t *testing.T, data, _ string) { must(t, os.Remove(data)) }, nil},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			c := openCache(t, dir)
			cl := l.open(t, c)
			for i := range l.chunks {
				must(t, cl.Put(i, l.chunk(i)))
			}
			data := cl.Path()
			must(t, c.Close())
			test.spoil(t, data, filepath.Join(filepath.Dir(data), mapName))
			c = openCache(t, dir)
			defer c.Close()
			cl = l.open(t, c)
			got := l.present(t, cl)
			var want []int
			for i := range l.chunks {
				lost := test.lost == nil
				for _, j := range test.lost {
					lost = lost || i == j
				}
				if !lost {
					want = append(want, i)
				}
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("present (-want +got)\n%s", d)
			}
			for i := range l.chunks { // and it heals
				must(t, cl.Put(i, l.chunk(i)))
			}
			must(t, cl.MarkComplete())
		})
	}
}

func flip(t *testing.T, name string, off int) {
	t.Helper()
	b, err := os.ReadFile(name)
	must(t, err)
	b[off] ^= 1
	must(t, os.WriteFile(name, b, 0o600))
}

func TestStates(t *testing.T) {
	dir, l := t.TempDir(), newTestLayer(5)
	c := openCache(t, dir)
	cl := l.open(t, c)
	if err := cl.MarkComplete(); !errors.Is(err, ErrMissing) {
		t.Errorf("complete without chunks: %v", err)
	}
	for i := range l.chunks {
		must(t, cl.Put(i, l.chunk(i)))
	}
	must(t, cl.MarkComplete())
	must(t, c.Close())

	c = openCache(t, dir)
	cl = l.open(t, c)
	if !cl.Complete() {
		t.Error("not complete after restart")
	}
	tar, err := os.ReadFile(cl.Path())
	if err != nil || !bytes.Equal(tar, l.data) {
		t.Errorf("data file of a complete layer differs from the layer (%v)", err)
	}
	must(t, cl.Quarantine())
	must(t, c.Close())

	c = openCache(t, dir)
	cl = l.open(t, c)
	if _, err := cl.ReadAt(make([]byte, 1), 0); !errors.Is(err, ErrQuarantined) {
		t.Errorf("read of a quarantined layer: %v", err)
	}
	if err := c.Remove(l.id); !errors.Is(err, ErrInUse) {
		t.Errorf("remove of an open layer: %v", err)
	}
	must(t, cl.Close())
	must(t, c.Remove(l.id))
	must(t, c.Remove(l.id))
	cl = l.open(t, c)
	defer c.Close()
	if got := cl.Present(); got != 0 || cl.State() != Partial {
		t.Errorf("removed layer has %d chunks, state %d", got, cl.State())
	}
}

func TestSharing(t *testing.T) {
	c := openCache(t, t.TempDir())
	defer c.Close()
	l := newTestLayer(3)
	one, two := l.open(t, c), l.open(t, c)
	must(t, one.Put(1, l.chunk(1)))
	if !two.Has(1) {
		t.Error("two openings of a layer do not share it")
	}
	must(t, one.Close())
	must(t, two.Put(2, l.chunk(2)))
	other := append([]index.Chunk(nil), l.chunks...)
	other[0].Digest[0] ^= 1
	if _, err := c.Layer(l.id, int64(len(l.data)), other); !errors.Is(err, ErrInUse) {
		t.Errorf("opened with another index: %v", err)
	}
	must(t, two.Close())
	cl, err := c.Layer(l.id, int64(len(l.data)), other)
	must(t, err)
	if cl.Has(0) {
		t.Error("chunk 0 counts for an index that has another digest for it")
	}
	ids, err := c.Layers()
	if d := cmp.Diff([]digest.Digest{l.id}, ids); d != "" || err != nil {
		t.Errorf("layers (%v)\n%s", err, d)
	}
}

func TestUsage(t *testing.T) {
	dir := t.TempDir()
	c := openCache(t, dir)
	defer c.Close()
	size := int64(1 << 30)
	chunk := bytes.Repeat([]byte{1}, 1<<20)
	var chunks []index.Chunk
	for off := int64(0); off < size; off += 1 << 20 {
		chunks = append(chunks, index.Chunk{Offset: off, Size: 1 << 20, Digest: sha256.Sum256(chunk)})
	}
	cl, err := c.Layer(digest.FromString("sparse"), size, chunks)
	must(t, err)
	for _, i := range []int{3, 500, 1000} {
		must(t, cl.Put(i, chunk))
	}
	must(t, cl.Sync())
	got, err := cl.Usage()
	must(t, err)
	if got < 3<<20 || got > 3<<20+64<<10 {
		t.Errorf("a layer with 3 MiB of 1 GiB occupies %d bytes", got)
	}
	all, err := c.Usage()
	must(t, err)
	if all < got || all > got+64<<10 {
		t.Errorf("the cache occupies %d bytes, its layer %d", all, got)
	}
}

func TestOneOwner(t *testing.T) {
	dir := t.TempDir()
	c := openCache(t, dir)
	if _, err := Open(dir); !errors.Is(err, ErrInUse) {
		t.Errorf("second owner: %v", err)
	}
	must(t, c.Close())
	c = openCache(t, dir)
	must(t, c.Close())
}

func TestRejects(t *testing.T) {
	c := openCache(t, t.TempDir())
	defer c.Close()
	for _, id := range []digest.Digest{"", "sha256:../../etc", "sha256:00", "x"} {
		if _, err := c.Layer(id, 1, nil); err == nil {
			t.Errorf("opened layer %q", id)
		}
		if err := c.Remove(id); err == nil {
			t.Errorf("removed layer %q", id)
		}
	}
	l := newTestLayer(2)
	cl := l.open(t, c)
	if err := cl.Put(0, []byte("short")); err == nil {
		t.Error("took a short chunk")
	}
	if _, err := cl.ReadAt(nil, -1); err == nil {
		t.Error("read at -1")
	}
}

func FuzzDecodeMap(f *testing.F) {
	l := newTestLayer(13)
	id := identity(l.id, int64(len(l.data)), l.chunks)
	set := newBitmap(13)
	set.set(3)
	f.Add(encodeMap(id, 13, Partial, set), 13)
	f.Add(encodeMap(id, 0, Complete, newBitmap(0)), 0)
	f.Add([]byte(mapMagic), 1)
	f.Fuzz(func(t *testing.T, b []byte, n int) {
		if n < 0 || n > index.MaxChunks {
			return
		}
		for _, in := range [][]byte{b, reseal(b)} {
			s, set, err := decodeMap(in, id, n)
			if err != nil {
				continue
			}
			if !bytes.Equal(encodeMap(id, n, s, set), in) {
				t.Errorf("%d chunks: accepted what encodeMap does not make: %s", n, strconv.Quote(string(in)))
			}
		}
	})
}

// reseal gives hostile bytes the checksum that hides them.
func reseal(b []byte) []byte {
	if len(b) < sha256.Size {
		return b
	}
	b = bytes.Clone(b)
	sum := sha256.Sum256(b[:len(b)-sha256.Size])
	copy(b[len(b)-sha256.Size:], sum[:])
	return b
}
