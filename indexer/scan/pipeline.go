package scan

import (
	"context"
	"crypto/sha256"
	"fmt"
	"hash/crc32"
	"io"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/firstlight-dev/firstlight/indexer/index"
	"github.com/firstlight-dev/firstlight/indexer/internal/inflate"
)

// buffers is how many pieces of a layer are in memory: one being inflated, its
// successor, one in each queue and one in each consumer's hands.
const buffers = 6

// piece is shared by two consumers; the last gives the buffer back.
type piece struct {
	inflate.Piece
	users atomic.Int32
}

// gzipScan is the state of one pass.
type gzipScan struct {
	b      *index.Builder
	free   chan *inflate.Buffer
	hashQ  chan *piece
	tarQ   chan *piece
	stream streamReader
	tar    tarReader
	blob   *blobDigest
}

func scanGzip(ctx context.Context, r io.Reader) (*index.Index, error) {
	b, err := index.NewBuilder(index.Gzip)
	if err != nil {
		return nil, err
	}
	s := &gzipScan{
		b:     b,
		free:  make(chan *inflate.Buffer, buffers),
		hashQ: make(chan *piece, 1),
		tarQ:  make(chan *piece, 1),
		tar:   tarReader{b: b},
		blob:  newBlobDigest(),
	}
	for range buffers {
		s.free <- new(inflate.Buffer)
	}
	g, ctx := errgroup.WithContext(ctx)
	s.stream = streamReader{ctx: ctx, next: s.tarQ, release: s.release, hash: sha256.New()}
	g.Go(func() error { return s.inflate(ctx, r) })
	g.Go(func() error { return s.hashChunks(ctx) })
	g.Go(func() error { return s.tar.read(&s.stream) })
	if err := g.Wait(); err != nil {
		_ = b.Close() // the first error counts
		return nil, err
	}
	return b.Finish(index.Identity{
		Layer: sum(s.blob.h), CompressedSize: s.blob.n,
		DiffID: sum(s.stream.hash), Size: s.stream.size,
		Entries: s.tar.entries,
	})
}

// inflate feeds both queues and closes them at the end of a whole file.
func (s *gzipScan) inflate(ctx context.Context, r io.Reader) error {
	sp := &inflate.Splitter{
		Spacing: ChunkSize, MaxCompressed: index.MaxChunkCompressed,
		OnRead: s.blob.add,
		Get: func() (*inflate.Buffer, error) {
			select {
			case b := <-s.free:
				return b, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		},
		Emit: func(p inflate.Piece) error {
			q := &piece{Piece: p}
			q.users.Store(2)
			for _, to := range []chan *piece{s.hashQ, s.tarQ} {
				select {
				case to <- q:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			return nil
		},
	}
	if err := sp.Run(r); err != nil {
		return gzipError(err)
	}
	close(s.hashQ)
	close(s.tarQ)
	return nil
}

func (s *gzipScan) release(p *piece) {
	if p.users.Add(-1) == 0 {
		s.free <- p.Buffer
	}
}

// hashChunks makes the chunk table.
func (s *gzipScan) hashChunks(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case p, ok := <-s.hashQ:
			if !ok {
				return nil
			}
			c := index.Chunk{
				Offset: p.Offset, Size: int64(len(p.Data)),
				CompressedOffset: p.CompressedOffset, CompressedSize: int64(len(p.Compressed)),
				CompressedDigest: sha256.Sum256(p.Compressed), Digest: sha256.Sum256(p.Data),
			}
			err := s.b.AddChunk(c, p.Checkpoint, p.Window, p.Header)
			s.release(p)
			if err != nil {
				return err
			}
		}
	}
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
