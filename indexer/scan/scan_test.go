package scan_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/firstlight-dev/firstlight/indexer/index"
	"github.com/firstlight-dev/firstlight/indexer/scan"
)

// layerTar makes a tar of n files of all sizes, with every kind of long header.
func layerTar(t *testing.T, r *rand.Rand, n int) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i := range n {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprintf("d%d/f%d", i%7, i), Mode: 0o644, ModTime: time.Unix(1e9, 0)}
		switch i % 4 {
		case 1:
			h.Name += strings.Repeat("long", 60)
			h.Format = tar.FormatGNU
		case 2:
			h.PAXRecords = map[string]string{"SCHILY.xattr.user.n": fmt.Sprint(i)}
		}
		body := make([]byte, r.Intn(1<<(r.Intn(19)+1)))
		for k := range body {
			body[k] = byte(r.Intn(1 + r.Intn(255)))
		}
		h.Size = int64(len(body))
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	b.Write(make([]byte, 10240)) // as GNU tar does
	return b.Bytes()
}

// gz compresses in members of the given size.
func gz(t *testing.T, p []byte, member int) []byte {
	t.Helper()
	var b bytes.Buffer
	for first := true; first || len(p) > 0; first = false {
		w := gzip.NewWriter(&b)
		n := min(member, len(p))
		if _, err := w.Write(p[:n]); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		p = p[n:]
	}
	return b.Bytes()
}

func doScan(ctx context.Context, blob []byte) (*index.Index, error) {
	return scan.Scan(ctx, scan.Layer{Reader: bytes.NewReader(blob), Size: int64(len(blob)), Digest: digest.FromBytes(blob)})
}

func TestScan(t *testing.T) {
	r := rand.New(rand.NewSource(1))
	large, small := layerTar(t, r, 150), layerTar(t, r, 3)
	for name, c := range map[string]struct {
		blob, tar []byte
		kind      index.Compression
	}{
		"gzip":                {gz(t, large, len(large)), large, index.Gzip},
		"gzip, many members":  {gz(t, large, 100_000), large, index.Gzip},
		"gzip, tiny members":  {gz(t, small, 700), small, index.Gzip},
		"gzip, small":         {gz(t, small, len(small)), small, index.Gzip},
		"gzip, empty archive": {gz(t, make([]byte, 1024), 1024), make([]byte, 1024), index.Gzip},
		"gzip of nothing":     {gz(t, nil, 1), nil, index.Gzip},
		"tar":                 {large, large, index.None},
		"tar, empty archive":  {make([]byte, 1024), make([]byte, 1024), index.None},
		"nothing":             {nil, nil, index.None},
		"tar without an end":  {small[:len(small)-11264], small[:len(small)-11264], index.None},
	} {
		t.Run(name, func(t *testing.T) {
			x, err := doScan(t.Context(), c.blob)
			if err != nil {
				t.Fatal(err)
			}
			if x.Compression != c.kind || x.Size != int64(len(c.tar)) || x.DiffID != digest.FromBytes(c.tar) {
				t.Errorf("compression %s size %d diffID %s", x.Compression, x.Size, x.DiffID)
			}
			checkIndex(t, x, c.blob, c.tar)
			enc, err := x.Encode()
			if err != nil {
				t.Fatal(err)
			}
			back, err := index.Decode(enc)
			if err != nil {
				t.Fatal(err)
			}
			checkIndex(t, back, c.blob, c.tar)
			again, err := back.Encode()
			if err != nil || !bytes.Equal(enc, again) {
				t.Errorf("encoded again: equal %v, error %v", bytes.Equal(enc, again), err)
			}
			second, err := doScan(t.Context(), c.blob)
			if err != nil {
				t.Fatal(err)
			}
			if b, err := second.Encode(); err != nil || !bytes.Equal(enc, b) {
				t.Errorf("a second scan gives another index: error %v", err)
			}
		})
	}
}

// checkIndex decodes every chunk alone and rebuilds the tar stream from headers and bodies.
func checkIndex(t *testing.T, x *index.Index, blob, tarball []byte) {
	t.Helper()
	var off int64
	for i, c := range x.Chunks {
		if c.Offset != off || x.ChunkAt(c.Offset) != i || x.ChunkAt(c.Offset+c.Size-1) != i {
			t.Fatalf("chunk %d lies at %d, not %d", i, c.Offset, off)
		}
		got, err := x.DecodeChunk(nil, i, blob[c.CompressedOffset:c.CompressedOffset+c.CompressedSize])
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, tarball[c.Offset:c.Offset+c.Size]) {
			t.Fatalf("chunk %d differs", i)
		}
		off += c.Size
	}
	if off != x.Size {
		t.Fatalf("chunks end at %d of %d", off, x.Size)
	}
	rebuilt := make([]byte, len(tarball))
	var headers int64
	if err := x.WalkHeaders(func(at int64, p []byte) error {
		headers += int64(copy(rebuilt[at:], p))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if headers != x.HeadersSize() {
		t.Errorf("%d bytes of headers, not %d", headers, x.HeadersSize())
	}
	entries, err := x.Entries()
	if err != nil {
		t.Fatal(err)
	}
	tr := tar.NewReader(bytes.NewReader(tarball))
	for _, e := range entries {
		h, err := tr.Next()
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(h, e.Header); d != "" {
			t.Fatalf("header differs (-tar +index): %s", d)
		}
		body, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		if n := copy(rebuilt[e.DataOffset:], body); n != len(body) || n > 0 && !bytes.Equal(rebuilt[e.DataOffset:][:n], body) {
			t.Fatalf("%s: body", h.Name)
		}
	}
	if _, err := tr.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("the index has %d entries, the tar more: %v", len(entries), err)
	}
	if !bytes.Equal(rebuilt, tarball) {
		t.Error("headers and bodies do not make the tar stream")
	}
}
