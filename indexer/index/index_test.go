package index_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"math/rand"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/firstlight-dev/firstlight/indexer/index"
	"github.com/firstlight-dev/firstlight/indexer/scan"
	"github.com/firstlight-dev/firstlight/indexer/tree"
)

// layer makes a small gzip layer of a few chunks.
func layer(tb testing.TB, seed int64, members int) []byte {
	tb.Helper()
	var z bytes.Buffer
	b := layerTar(tb, seed, 20)
	for i := range members {
		n := len(b) / (members - i)
		g := gzip.NewWriter(&z)
		if err := errors.Join(write(g, b[:n]), g.Close()); err != nil {
			tb.Fatal(err)
		}
		b = b[n:]
	}
	return z.Bytes()
}

// zstdLayer makes a zstd layer of two chunks, the second inside a frame.
func zstdLayer(tb testing.TB) []byte {
	tb.Helper()
	var z bytes.Buffer
	w, err := zstd.NewWriter(&z)
	if err != nil {
		tb.Fatal(err)
	}
	if err := errors.Join(write(w, layerTar(tb, 1, 35)), w.Close()); err != nil {
		tb.Fatal(err)
	}
	return z.Bytes()
}

func layerTar(tb testing.TB, seed int64, files int) []byte {
	tb.Helper()
	r := rand.New(rand.NewSource(seed))
	var t bytes.Buffer
	w := tar.NewWriter(&t)
	for i := range files {
		body := make([]byte, 80_000)
		for k := range body {
			body[k] = "abcdefgh    \n"[r.Intn(13)]
		}
		if i%5 == 0 {
			r.Read(body)
		}
		h := &tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprintf("f%d", i), Size: int64(len(body)), ModTime: time.Unix(1e9, 0)}
		if err := errors.Join(w.WriteHeader(h), write(w, body)); err != nil {
			tb.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return t.Bytes()
}

func write(w interface{ Write([]byte) (int, error) }, p []byte) error {
	_, err := w.Write(p)
	return err
}

func encoded(tb testing.TB, blob []byte) []byte {
	tb.Helper()
	x, err := scan.Scan(tb.Context(), scan.Layer{Reader: bytes.NewReader(blob), Size: -1})
	if err != nil {
		tb.Fatal(err)
	}
	b, err := x.Encode()
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// use does all that a node does with an index.
func use(x *index.Index, blob []byte) error {
	for i, c := range x.Chunks {
		if c.CompressedOffset+c.CompressedSize > int64(len(blob)) {
			return index.ErrMismatch
		}
		if _, err := x.DecodeChunk(nil, i, blob[c.CompressedOffset:c.CompressedOffset+c.CompressedSize]); err != nil {
			return err
		}
	}
	_, err := tree.Build(x)
	return err
}

// Every damage to an index is refused, or does no harm, with an error that can be told from others.
func TestDecodeDamaged(t *testing.T) {
	t.Run("gzip", func(t *testing.T) { testDamaged(t, layer(t, 1, 3), 1000) })
	t.Run("zstd", func(t *testing.T) { testDamaged(t, zstdLayer(t), 200) })
}

func testDamaged(t *testing.T, blob []byte, rounds int) {
	t.Helper()
	good := encoded(t, blob)
	if x, err := index.Decode(good); err != nil || use(x, blob) != nil {
		t.Fatal(err)
	}
	known := func(err error) bool {
		return errors.Is(err, index.ErrInvalid) || errors.Is(err, index.ErrMismatch) || errors.Is(err, index.ErrUnsupported)
	}
	for n := 0; n < len(good); n += 1 + n/200 {
		if _, err := index.Decode(good[:n]); !errors.Is(err, index.ErrInvalid) {
			t.Fatalf("cut to %d of %d bytes: %v", n, len(good), err)
		}
	}
	if _, err := index.Decode(append(bytes.Clone(good), 0)); !errors.Is(err, index.ErrInvalid) {
		t.Errorf("a byte more: %v", err)
	}
	r := rand.New(rand.NewSource(1))
	for range rounds {
		b := bytes.Clone(good)
		for range 1 + r.Intn(3) {
			// most of it is compressed: aim at the fields before
			at := r.Intn(len(b))
			if r.Intn(2) == 0 {
				at = r.Intn(120)
			}
			b[at] ^= byte(1 + r.Intn(255))
		}
		x, err := index.Decode(b)
		if err == nil {
			err = use(x, blob)
		}
		if err != nil && !known(err) {
			t.Fatalf("an error of no kind: %v", err)
		}
	}
}

func TestDecodeChunk(t *testing.T) {
	t.Run("gzip", func(t *testing.T) { testDecodeChunk(t, layer(t, 2, 1)) })
	t.Run("zstd", func(t *testing.T) { testDecodeChunk(t, zstdLayer(t)) })
}

func testDecodeChunk(t *testing.T, blob []byte) {
	t.Helper()
	x, err := index.Decode(encoded(t, blob))
	if err != nil {
		t.Fatal(err)
	}
	if len(x.Chunks) < 2 {
		t.Fatalf("only %d chunks", len(x.Chunks))
	}
	c := x.Chunks[1]
	in := blob[c.CompressedOffset : c.CompressedOffset+c.CompressedSize]
	room := make([]byte, 0, index.MaxChunkSize)
	out, err := x.DecodeChunk(room, 1, in)
	if err != nil || int64(len(out)) != c.Size || &out[0] != &room[:1][0] {
		t.Errorf("%d bytes, in the room given %v, error %v", len(out), &out[0] == &room[:1][0], err)
	}
	damaged := bytes.Clone(in)
	damaged[len(damaged)/2] ^= 1
	for name, in := range map[string][]byte{"damaged": damaged, "short": in[:len(in)-1], "none": nil} {
		if out, err := x.DecodeChunk(nil, 1, in); !errors.Is(err, index.ErrMismatch) || out != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, i := range []int{-1, len(x.Chunks)} {
		if _, err := x.DecodeChunk(nil, i, in); err == nil {
			t.Errorf("chunk %d exists", i)
		}
	}
}

// A reader that does not know a layer's compression refuses its index.
func TestDecodeUnknownCompression(t *testing.T) {
	b := encoded(t, zstdLayer(t))
	b[8] = 3
	if _, err := index.Decode(b); !errors.Is(err, index.ErrInvalid) {
		t.Error(err)
	}
}

// What Decode takes, Encode gives back, and using it never faults.
func FuzzDecode(f *testing.F) {
	blob := layer(f, 3, 2)
	zblob := zstdLayer(f)
	f.Add(encoded(f, blob))
	f.Add(encoded(f, zblob))
	f.Add(encoded(f, make([]byte, 1024)))
	f.Add(encoded(f, nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		x, err := index.Decode(b)
		if err != nil {
			return
		}
		// any result will do
		_ = use(x, blob)
		_ = use(x, zblob)
		again, err := x.Encode()
		if err != nil {
			t.Fatal(err)
		}
		y, err := index.Decode(again)
		if err != nil || y.Size != x.Size || len(y.Chunks) != len(x.Chunks) {
			t.Fatalf("encoded again: %v", err)
		}
	})
}

// A tar stream is split the same way when it is scanned and when its headers are read back.
func FuzzHeaders(f *testing.F) {
	for _, format := range []tar.Format{tar.FormatUSTAR, tar.FormatPAX, tar.FormatGNU} {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, h := range []tar.Header{
			{Typeflag: tar.TypeDir, Name: "d/", Mode: 0o755},
			{Typeflag: tar.TypeReg, Name: "d/f", Size: 3},
			{Typeflag: tar.TypeSymlink, Name: "d/s", Linkname: "f"},
			{Typeflag: tar.TypeLink, Name: "d/h", Linkname: "d/f"},
		} {
			h.Format = format
			if err := w.WriteHeader(&h); err != nil {
				f.Fatal(err)
			}
			if h.Size > 0 {
				if err := write(w, []byte("abc")); err != nil {
					f.Fatal(err)
				}
			}
		}
		if err := w.Close(); err != nil {
			f.Fatal(err)
		}
		f.Add(b.Bytes())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		x, err := scan.Scan(t.Context(), scan.Layer{Reader: bytes.NewReader(b), Size: int64(len(b))})
		if err != nil {
			if !errors.Is(err, index.ErrUnsupported) {
				t.Fatal(err)
			}
			return
		}
		if x.Compression != index.None {
			return
		}
		rebuilt := make([]byte, len(b))
		if err := x.WalkHeaders(func(off int64, p []byte) error { copy(rebuilt[off:], p); return nil }); err != nil {
			t.Fatal(err)
		}
		entries, err := x.Entries()
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			n := index.BodySize(e.Header)
			copy(rebuilt[e.DataOffset:e.DataOffset+n], b[e.DataOffset:])
		}
		if !bytes.Equal(rebuilt, b) {
			t.Fatal("headers and bodies do not make the stream")
		}
		if _, err := tree.Build(x); err != nil {
			t.Fatal(err)
		}
	})
}
