package scan

import (
	"context"
	"io"

	"github.com/firstlight-dev/firstlight/indexer/index"
	"github.com/firstlight-dev/firstlight/indexer/internal/zblock"
)

// Chunks of zstd layers are larger than those of gzip, because what a chunk
// reads of the megabytes before it is more. DESIGN.md has the measurements.
const (
	// ZstdChunkSize is aimed at while primes are small, and maxZstdChunk, with
	// room for a block below the limit of the format, while they are not.
	ZstdChunkSize = 2 << 20
	maxZstdChunk  = index.MaxChunkSize - 128<<10
	// primeShare: primes over a sixteenth of the blob are large. Packed they have
	// two fifths of their size.
	primeShare = 16
	// maxWindow bounds the memory a layer may ask for. It is what "zstd --long"
	// sets and the most a decoder has to support; BuildKit, podman and the levels of
	// zstd up to 19 take 8 MiB.
	maxWindow = 128 << 20
)

func splitZstd(ctx context.Context, r io.Reader, onRead func([]byte), emit func(*piece) error) error {
	free := newRing[zblock.Buffer]()
	sp := &zblock.Splitter{
		Spacing: ZstdChunkSize, MaxSpacing: maxZstdChunk, PrimeShare: primeShare,
		MaxCompressed: index.MaxChunkCompressed, MaxWindow: maxWindow,
		OnRead: onRead,
		Get:    func() (*zblock.Buffer, error) { return free.get(ctx) },
		Emit: func(p zblock.Piece) error {
			return emit(&piece{
				data: p.Data, compressed: p.Compressed,
				offset: p.Offset, compressedOffset: p.CompressedOffset,
				add:  func(b *index.Builder, c index.Chunk) error { return b.AddZstd(c, p.Prime) },
				free: func() { free <- p.Buffer },
			})
		},
	}
	return sp.Run(r)
}
