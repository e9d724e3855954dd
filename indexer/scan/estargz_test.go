package scan_test

import (
	"bytes"
	"compress/gzip"
	"io"
	"math/rand"
	"testing"

	"github.com/containerd/stargz-snapshotter/estargz"
	"github.com/containerd/stargz-snapshotter/estargz/zstdchunked"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"

	"github.com/firstlight-dev/firstlight/indexer/index"
	"github.com/firstlight-dev/firstlight/indexer/scan"
)

// zstdChunked is what containerd's converter gives the library.
type zstdChunked struct {
	*zstdchunked.Decompressor
	*zstdchunked.Compressor
}

// Layers that bring chunks of their own are read like any other of their
// compression, and cost no windows: every piece of theirs starts afresh.
func TestScanChunkedLayers(t *testing.T) {
	large := layerTar(t, rand.New(rand.NewSource(5)), 600)
	for name, c := range map[string]struct {
		opts []estargz.Option
		kind index.Compression
	}{
		"eStargz": {[]estargz.Option{estargz.WithChunkSize(100_000)}, index.Gzip},
		"zstd:chunked": {[]estargz.Option{
			estargz.WithChunkSize(100_000),
			estargz.WithCompression(zstdChunked{&zstdchunked.Decompressor{}, &zstdchunked.Compressor{CompressionLevel: zstd.SpeedDefault}}),
		}, index.Zstd},
	} {
		t.Run(name, func(t *testing.T) {
			b, err := estargz.Build(io.NewSectionReader(bytes.NewReader(large), 0, int64(len(large))), c.opts...)
			if err != nil {
				t.Fatal(err)
			}
			blob, err := io.ReadAll(b)
			if err != nil {
				t.Fatal(err)
			}
			if err := b.Close(); err != nil {
				t.Fatal(err)
			}
			x, err := scan.Scan(t.Context(), scan.Layer{Reader: bytes.NewReader(blob), Size: int64(len(blob)), DiffID: b.DiffID(), Digest: digest.FromBytes(blob)})
			if err != nil {
				t.Fatal(err)
			}
			if x.Compression != c.kind {
				t.Errorf("compression %s, not %s", x.Compression, c.kind)
			}
			checkIndex(t, x, blob, unpacked(t, c.kind, blob))
			if err := scan.Verify(t.Context(), scan.Layer{Reader: bytes.NewReader(blob), Size: int64(len(blob))}, x); err != nil {
				t.Error(err)
			}
			enc, err := x.Encode()
			if err != nil {
				t.Fatal(err)
			}
			if most := 64*len(x.Chunks) + 200*x.NumEntries() + 1000; len(enc) > most {
				t.Errorf("the index of %d chunks has %d bytes, more than %d", len(x.Chunks), len(enc), most)
			}
		})
	}
}

// unpacked is the tar stream of a blob by the usual decompressors.
func unpacked(t *testing.T, c index.Compression, blob []byte) []byte {
	t.Helper()
	var r io.Reader
	var err error
	if c == index.Gzip {
		r, err = gzip.NewReader(bytes.NewReader(blob))
	} else {
		var d *zstd.Decoder
		d, err = zstd.NewReader(bytes.NewReader(blob))
		if err == nil {
			t.Cleanup(d.Close)
		}
		r = d
	}
	if err != nil {
		t.Fatal(err)
	}
	p, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return p
}
