package scan

import (
	"bufio"
	"context"
	"crypto/sha256"
	"fmt"
	"hash"
	"io"

	"github.com/firstlight-dev/firstlight/indexer/index"
)

// streamReader is the tar stream as an io.Reader over pieces. Every piece is
// hashed whole when it arrives, whether its bytes are then read or skipped.
type streamReader struct {
	ctx     context.Context //nolint:containedctx // an io.Reader has nowhere else for it
	next    <-chan *piece
	hash    hash.Hash
	members memberCheck
	size    int64

	cur  *piece
	data []byte // what is left of cur
}

// fill makes data non-empty or returns io.EOF.
func (s *streamReader) fill() error {
	for len(s.data) == 0 {
		if s.cur != nil {
			s.cur.release()
			s.cur = nil
		}
		var ok bool
		select {
		case s.cur, ok = <-s.next:
		case <-s.ctx.Done():
			return s.ctx.Err()
		}
		if !ok {
			return io.EOF
		}
		s.data = s.cur.data
		s.size += int64(len(s.data))
		s.hash.Write(s.data)
		if err := s.members.add(s.data, s.cur.ends); err != nil {
			return err
		}
	}
	return nil
}

func (s *streamReader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if err := s.fill(); err != nil {
		return 0, err
	}
	n := copy(p, s.data)
	s.data = s.data[n:]
	return n, nil
}

// Discard skips n bytes.
func (s *streamReader) Discard(n int64) error {
	for n > 0 {
		if err := s.fill(); err != nil {
			return unexpected(err)
		}
		k := min(n, int64(len(s.data)))
		s.data = s.data[k:]
		n -= k
	}
	return nil
}

// unexpected turns the end of the stream into an error.
func unexpected(err error) error {
	if err == io.EOF { //nolint:errorlint // fill returns it bare
		return io.ErrUnexpectedEOF
	}
	return err
}

// scanTar scans a layer that is not compressed: it is its own tar stream, and
// cut anywhere.
func scanTar(r *bufio.Reader) (*index.Index, error) {
	b, err := index.NewBuilder(index.None)
	if err != nil {
		return nil, err
	}
	c := &chunker{r: r, b: b, blob: newBlobDigest(), chunk: make([]byte, 0, ChunkSize)}
	t := tarReader{b: b}
	if err = t.read(c); err == nil {
		err = c.flush()
	}
	if err != nil {
		_ = b.Close() // the first error counts
		return nil, err
	}
	d := sum(c.blob.h)
	return b.Finish(index.Identity{Layer: d, DiffID: d, CompressedSize: c.blob.n, Size: c.blob.n, Entries: t.entries})
}

// chunker passes a tar stream on and cuts it into chunks.
type chunker struct {
	r     io.Reader
	b     *index.Builder
	blob  *blobDigest
	chunk []byte
}

func (c *chunker) Read(p []byte) (int, error) {
	if len(c.chunk) == cap(c.chunk) {
		if err := c.flush(); err != nil {
			return 0, err
		}
	}
	n, err := c.r.Read(p[:min(len(p), cap(c.chunk)-len(c.chunk))])
	c.chunk = append(c.chunk, p[:n]...)
	return n, err
}

func (c *chunker) flush() error {
	if len(c.chunk) == 0 {
		return nil
	}
	d := sha256.Sum256(c.chunk)
	n := int64(len(c.chunk))
	err := c.b.AddChunk(index.Chunk{
		Offset: c.blob.n, Size: n, CompressedOffset: c.blob.n, CompressedSize: n,
		CompressedDigest: d, Digest: d,
	})
	c.blob.add(c.chunk)
	c.chunk = c.chunk[:0]
	if err != nil {
		return fmt.Errorf("add chunk: %w", err)
	}
	return nil
}
