package scan

import (
	"context"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/firstlight-dev/firstlight/indexer/index"
	"github.com/firstlight-dev/firstlight/indexer/internal/inflate"
)

func splitGzip(ctx context.Context, r io.Reader, onRead func([]byte), emit func(*piece) error) error {
	free := newRing[inflate.Buffer]()
	sp := &inflate.Splitter{
		Spacing: ChunkSize, MaxCompressed: index.MaxChunkCompressed,
		OnRead: onRead,
		Get:    func() (*inflate.Buffer, error) { return free.get(ctx) },
		Emit: func(p inflate.Piece) error {
			return emit(&piece{
				data: p.Data, compressed: p.Compressed,
				offset: p.Offset, compressedOffset: p.CompressedOffset,
				ends: p.Ends,
				add: func(b *index.Builder, c index.Chunk) error {
					return b.AddGzip(c, p.Checkpoint, p.Window, p.Header)
				},
				free: func() { free <- p.Buffer },
			})
		},
	}
	return sp.Run(r)
}

// memberCheck compares the checksums that gzip members carry.
type memberCheck struct {
	sum   uint32
	start int64 // of the member
	pos   int64
}

func (m *memberCheck) add(data []byte, ends []inflate.MemberEnd) error {
	for _, e := range ends {
		k := e.Offset - m.pos
		m.sum = crc32.Update(m.sum, crc32.IEEETable, data[:k])
		if m.sum != e.Sum || uint32(e.Offset-m.start) != e.Size {
			return fmt.Errorf("%w: %w: checksum of the gzip member that ends at %d", index.ErrUnsupported, inflate.ErrCorrupt, e.Offset)
		}
		m.sum, m.start, m.pos, data = 0, e.Offset, e.Offset, data[k:]
	}
	m.sum = crc32.Update(m.sum, crc32.IEEETable, data)
	m.pos += int64(len(data))
	return nil
}
