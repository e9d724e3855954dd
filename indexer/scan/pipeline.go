package scan

import (
	"context"
	"crypto/sha256"
	"io"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/firstlight-dev/firstlight/indexer/index"
	"github.com/firstlight-dev/firstlight/indexer/internal/inflate"
)

// buffers is how many pieces of a layer are in memory: one being decoded, its
// successor, one in each queue and one in each consumer's hands.
const buffers = 6

// piece is a chunk on its way. It is shared by two consumers; the last gives the
// buffer back.
type piece struct {
	data, compressed         []byte
	offset, compressedOffset int64
	ends                     []inflate.MemberEnd // gzip
	add                      func(*index.Builder, index.Chunk) error
	free                     func()
	users                    atomic.Int32
}

// release is called by each consumer when done.
func (p *piece) release() {
	if p.users.Add(-1) == 0 {
		p.free()
	}
}

// splitter reads a layer, feeds its bytes to onRead and its pieces to emit.
type splitter func(ctx context.Context, r io.Reader, onRead func([]byte), emit func(*piece) error) error

// pipeline is the state of one pass over a compressed layer.
type pipeline struct {
	b      *index.Builder
	hashQ  chan *piece
	tarQ   chan *piece
	stream streamReader
	tar    tarReader
	blob   *blobDigest
}

// scanCompressed indexes a layer that split cuts.
func scanCompressed(ctx context.Context, r io.Reader, c index.Compression, split splitter) (*index.Index, error) {
	b, err := index.NewBuilder(c)
	if err != nil {
		return nil, err
	}
	s := &pipeline{
		b:     b,
		hashQ: make(chan *piece, 1),
		tarQ:  make(chan *piece, 1),
		tar:   tarReader{b: b},
		blob:  newBlobDigest(),
	}
	g, ctx := errgroup.WithContext(ctx)
	s.stream = streamReader{ctx: ctx, next: s.tarQ, hash: sha256.New()}
	g.Go(func() error { return s.split(ctx, r, split) })
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

// split feeds both queues and closes them at the end of a whole file.
func (s *pipeline) split(ctx context.Context, r io.Reader, split splitter) error {
	err := split(ctx, r, s.blob.add, func(p *piece) error {
		p.users.Store(2)
		for _, to := range []chan *piece{s.hashQ, s.tarQ} {
			select {
			case to <- p:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	if err != nil {
		return decodeError(err)
	}
	close(s.hashQ)
	close(s.tarQ)
	return nil
}

// hashChunks makes the chunk table.
func (s *pipeline) hashChunks(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case p, ok := <-s.hashQ:
			if !ok {
				return nil
			}
			c := index.Chunk{
				Offset: p.offset, Size: int64(len(p.data)),
				CompressedOffset: p.compressedOffset, CompressedSize: int64(len(p.compressed)),
				CompressedDigest: sha256.Sum256(p.compressed), Digest: sha256.Sum256(p.data),
			}
			err := p.add(s.b, c)
			p.release()
			if err != nil {
				return err
			}
		}
	}
}

// ring hands out a fixed number of buffers, and so bounds memory.
type ring[T any] chan *T

func newRing[T any]() ring[T] {
	r := make(ring[T], buffers)
	for range buffers {
		r <- new(T)
	}
	return r
}

// get waits for a buffer.
func (r ring[T]) get(ctx context.Context) (*T, error) {
	select {
	case b := <-r:
		return b, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
