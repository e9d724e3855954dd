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
	"github.com/klauspost/compress/zstd"
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

// zst compresses in frames of the given size, each with a skippable frame behind.
func zst(t *testing.T, p []byte, frame int, opts ...zstd.EOption) []byte {
	t.Helper()
	var b bytes.Buffer
	for first := true; first || len(p) > 0; first = false {
		w, err := zstd.NewWriter(&b, append(opts, zstd.WithZeroFrames(true))...)
		if err != nil {
			t.Fatal(err)
		}
		n := min(frame, len(p))
		if _, err := io.Copy(w, bytes.NewReader(p[:n])); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		b.WriteString("\x50\x2a\x4d\x18\x03\x00\x00\x00...")
		p = p[n:]
	}
	return b.Bytes()
}

func doScan(ctx context.Context, blob []byte) (*index.Index, error) {
	return scan.Scan(ctx, scan.Layer{Reader: bytes.NewReader(blob), Size: int64(len(blob)), Digest: digest.FromBytes(blob)})
}

func TestScan(t *testing.T) {
	r := rand.New(rand.NewSource(1))
	large, small, huge := layerTar(t, r, 150), layerTar(t, r, 3), layerTar(t, r, 500)
	contents := append([]byte{0x51, 0x2a, 0x4d, 0x18, 0, 0, 0x60, 0}, make([]byte, 6<<20)...)
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
		"zstd":                {zst(t, huge, len(huge)), huge, index.Zstd},
		"zstd, best":          {zst(t, huge, len(huge), zstd.WithEncoderLevel(zstd.SpeedBestCompression)), huge, index.Zstd},
		"zstd, many frames":   {zst(t, huge, 100_000), huge, index.Zstd},
		"zstd, small":         {zst(t, small, len(small)), small, index.Zstd},
		"zstd of nothing":     {zst(t, nil, 1), nil, index.Zstd},
		"zstd, skippable":     {append([]byte{0x5a, 0x2a, 0x4d, 0x18, 1, 0, 0, 0, 0}, zst(t, small, len(small))...), small, index.Zstd},
		"zstd, large trailer": {append(zst(t, huge, len(huge)), contents...), huge, index.Zstd},
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

// tarOf writes one entry.
func tarOf(t *testing.T, h tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := errors.Join(w.WriteHeader(&h), w.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// Bad input gives an error that says what is wrong, of the kind its reader acts on.
func TestScanBadInput(t *testing.T) {
	large := layerTar(t, rand.New(rand.NewSource(2)), 40)
	z := gz(t, large, len(large))
	flipped := bytes.Clone(z)
	flipped[len(z)-6] ^= 1 // in the checksum
	zs := zst(t, large, len(large))
	zflipped := bytes.Clone(zs)
	zflipped[len(zs)-12] ^= 1 // in the checksum
	other := digest.FromString("other")
	for name, c := range map[string]struct {
		in   scan.Layer
		blob []byte
		want error
		says string
	}{
		"truncated gzip":     {scan.Layer{Size: int64(len(z))}, z[:len(z)/2], scan.ErrMismatch, fmt.Sprintf("it ends after %d of %d bytes", len(z)/2, len(z))},
		"truncated tar":      {scan.Layer{Size: int64(len(large))}, large[:len(large)/2], scan.ErrMismatch, "it ends after"},
		"cut short, no size": {scan.Layer{Size: -1}, z[:len(z)/2], index.ErrUnsupported, "ends too early"},
		"tar body cut short": {scan.Layer{Size: -1}, large[:len(large)/2], index.ErrUnsupported, "unexpected EOF"},
		"longer than said":   {scan.Layer{Size: 100}, z, scan.ErrMismatch, "more than the 100 bytes"},
		"other digest":       {scan.Layer{Size: -1, Digest: other}, z, scan.ErrMismatch, "not " + other.String()},
		"other diffID":       {scan.Layer{Size: -1, DiffID: other}, z, scan.ErrMismatch, "diffID"},
		"trailing garbage":   {scan.Layer{Size: -1}, append(bytes.Clone(z), "more than twenty bytes of it"...), index.ErrUnsupported, fmt.Sprintf("trailing data after the gzip stream at offset %d", len(z))},
		"bad checksum":       {scan.Layer{Size: -1}, flipped, index.ErrUnsupported, "checksum"},
		"not a tar":          {scan.Layer{Size: -1}, bytes.Repeat([]byte("text "), 1000), index.ErrUnsupported, "tar header at offset 512"},
		"gzip of no tar":     {scan.Layer{Size: -1}, gz(t, bytes.Repeat([]byte("text "), 1000), 5000), index.ErrUnsupported, "tar header"},
		"truncated zstd":     {scan.Layer{Size: -1}, zs[:len(zs)/2], index.ErrUnsupported, "zstd stream ends early"},
		"zstd, checksum":     {scan.Layer{Size: -1}, zflipped, index.ErrUnsupported, "checksum of the frame"},
		"zstd and garbage":   {scan.Layer{Size: -1}, append(bytes.Clone(zs), "garbage"...), index.ErrUnsupported, "trailing data"},
		"zstd, dictionary":   {scan.Layer{Size: -1}, []byte{0x28, 0xb5, 0x2f, 0xfd, 0x21, 7, 0, 1, 0, 0}, index.ErrUnsupported, "dictionary"},
		"zstd, window":       {scan.Layer{Size: -1}, []byte{0x28, 0xb5, 0x2f, 0xfd, 0, 18 << 3, 1, 0, 0}, index.ErrUnsupported, "a window of 268435456 bytes"},
		"zstd of no tar":     {scan.Layer{Size: -1}, zst(t, bytes.Repeat([]byte("text "), 1000), 5000), index.ErrUnsupported, "tar header"},
		"unknown type":       {scan.Layer{Size: -1}, tarOf(t, tar.Header{Typeflag: 'Z', Name: "f"}), index.ErrUnsupported, "unknown entry type 'Z'"},
		"early hard link":    {scan.Layer{Size: -1}, tarOf(t, tar.Header{Typeflag: tar.TypeLink, Name: "f", Linkname: "g"}), index.ErrUnsupported, `entry "f": hard link to "g": this layer has no such file before it`},
	} {
		t.Run(name, func(t *testing.T) {
			c.in.Reader = bytes.NewReader(c.blob)
			_, err := scan.Scan(t.Context(), c.in)
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v; want %v with %q", err, c.want, c.says)
			}
		})
	}
}

// brokenReader fails in the middle, as a connection does.
type brokenReader struct {
	io.Reader
	err error
}

func (r brokenReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if errors.Is(err, io.EOF) {
		err = r.err
	}
	return n, err
}

func TestScanStops(t *testing.T) {
	large := layerTar(t, rand.New(rand.NewSource(3)), 40)
	broken := errors.New("connection reset")
	for name, blob := range map[string][]byte{"gzip": gz(t, large, len(large)), "zstd": zst(t, large, len(large)), "tar": large} {
		_, err := scan.Scan(t.Context(), scan.Layer{Reader: brokenReader{bytes.NewReader(blob[:len(blob)/2]), broken}, Size: int64(len(blob))})
		if !errors.Is(err, broken) {
			t.Errorf("%s: %v", name, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		_, err = scan.Scan(ctx, scan.Layer{Reader: bytes.NewReader(blob), Size: -1, Progress: func(int) { cancel() }})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
		n := 0
		if _, err := scan.Scan(t.Context(), scan.Layer{Reader: bytes.NewReader(blob), Size: -1, Progress: func(k int) { n += k }}); err != nil || n != len(blob) {
			t.Errorf("%s: progress of %d bytes of %d: %v", name, n, len(blob), err)
		}
	}
}

func TestVerify(t *testing.T) {
	r := rand.New(rand.NewSource(4))
	large, small := layerTar(t, r, 60), layerTar(t, r, 4)
	z := gz(t, large, 300_000)
	huge := layerTar(t, r, 400)
	blobs := map[string][]byte{"zstd": zst(t, huge, len(huge)), "gzip": z, "tar": large, "small": gz(t, small, len(small)), "empty": gz(t, nil, 1), "none": nil}
	for name, blob := range blobs {
		x, err := doScan(t.Context(), blob)
		if err != nil {
			t.Fatal(err)
		}
		verify := func(b []byte, size int64) error {
			return scan.Verify(t.Context(), scan.Layer{Reader: bytes.NewReader(b), Size: size, Digest: x.Layer, DiffID: x.DiffID}, x)
		}
		if err := verify(blob, int64(len(blob))); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for other, b := range blobs {
			if other == name {
				continue
			}
			if err := verify(b, int64(len(b))); !errors.Is(err, index.ErrMismatch) && !errors.Is(err, scan.ErrMismatch) {
				t.Errorf("index of %s against %s: %v", name, other, err)
			}
		}
		if len(blob) < 1000 {
			continue
		}
		for range 20 {
			bad := bytes.Clone(blob)
			bad[r.Intn(len(bad))] ^= byte(1 + r.Intn(255))
			if err := verify(bad, int64(len(bad))); !errors.Is(err, index.ErrMismatch) {
				t.Errorf("%s: damaged: %v", name, err)
			}
		}
		if err := verify(blob[:len(blob)-10], int64(len(blob))); !errors.Is(err, scan.ErrMismatch) {
			t.Errorf("%s: cut short: %v", name, err)
		}
	}
}
