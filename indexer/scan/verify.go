package scan

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"

	"github.com/firstlight-dev/firstlight/indexer/index"
	"github.com/firstlight-dev/firstlight/indexer/tree"
)

// Verify reads a layer to its end and proves an index against it: the digest of
// the blob, every chunk decoded alone, the diffID, and that header stream and
// bodies are the tar stream, byte for byte. It shares no code with the scan but
// the tar reader and the inflate loop. Memory is one chunk.
func Verify(ctx context.Context, l Layer, x *index.Index) error {
	if l.Size >= 0 && x.CompressedSize != l.Size {
		return fmt.Errorf("%w: the index is of a layer of %d bytes, the layer has %d", index.ErrMismatch, x.CompressedSize, l.Size)
	}
	in := &source{ctx: ctx, r: l.Reader, limit: x.CompressedSize, progress: l.Progress}
	v := &verifier{x: x, r: in, blob: newBlobDigest(), stream: sha256.New()}
	got := newHeaderHash()
	n, err := index.NewStream(v, got.add).Walk(func(index.Entry) error { return nil })
	if err == nil {
		err = v.finish()
	}
	l.Size = x.CompressedSize
	if err := l.check(&index.Index{Layer: sum(v.blob.h), DiffID: sum(v.stream)}, in, err); err != nil {
		return err
	}
	switch blob, stream := sum(v.blob.h), sum(v.stream); {
	case blob != x.Layer:
		return fmt.Errorf("%w: the layer is %s, the index of %s", index.ErrMismatch, blob, x.Layer)
	case stream != x.DiffID:
		return fmt.Errorf("%w: its diffID is %s, the index says %s", index.ErrMismatch, stream, x.DiffID)
	case n != x.NumEntries():
		return fmt.Errorf("%w: the layer has %d entries, the index %d", index.ErrMismatch, n, x.NumEntries())
	}
	want := newHeaderHash()
	if err := x.WalkHeaders(want.add); err != nil {
		return err
	}
	if !want.equal(got) {
		return fmt.Errorf("%w: the tar headers differ", index.ErrMismatch)
	}
	if _, err := tree.Build(x); err != nil {
		return fmt.Errorf("build tree: %w", err)
	}
	return nil
}

// verifier is the tar stream, made of chunks that are decoded one by one.
type verifier struct {
	x      *index.Index
	r      io.Reader
	blob   *blobDigest
	stream hash.Hash

	next  int   // chunk
	pos   int64 // in the blob
	in    []byte
	chunk []byte
	data  []byte // what is left of chunk
}

func (v *verifier) fill() error {
	for len(v.data) == 0 {
		if v.next == len(v.x.Chunks) {
			return io.EOF
		}
		c := v.x.Chunks[v.next]
		// The first byte may be the last one of the chunk before.
		keep := int(v.pos - c.CompressedOffset)
		if keep < 0 || keep > 1 || keep > len(v.in) {
			return fmt.Errorf("%w: chunk %d does not follow the one before", index.ErrInvalid, v.next)
		}
		tail := v.in[len(v.in)-keep:]
		v.in = append(v.in[:0], tail...)
		v.in = append(v.in, make([]byte, int(c.CompressedSize)-keep)...)
		if err := v.read(v.in[keep:]); err != nil {
			return err
		}
		var err error
		if v.chunk, err = v.x.DecodeChunk(v.chunk, v.next, v.in); err != nil {
			return err
		}
		v.stream.Write(v.chunk)
		v.data = v.chunk
		v.next++
	}
	return nil
}

func (v *verifier) read(p []byte) error {
	n, err := io.ReadFull(v.r, p)
	v.blob.add(p[:n])
	v.pos += int64(n)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: the layer ends at %d of %d bytes", index.ErrMismatch, v.pos, v.x.CompressedSize)
	}
	return err
}

// finish reads what lies behind the last chunk: all of a layer without output.
func (v *verifier) finish() error {
	buf := make([]byte, 32<<10)
	for {
		n, err := v.r.Read(buf)
		v.blob.add(buf[:n])
		v.pos += int64(n)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (v *verifier) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if err := v.fill(); err != nil {
		return 0, err
	}
	n := copy(p, v.data)
	v.data = v.data[n:]
	return n, nil
}

// Discard skips n bytes.
func (v *verifier) Discard(n int64) error {
	for n > 0 {
		if err := v.fill(); err != nil {
			return unexpected(err)
		}
		k := min(n, int64(len(v.data)))
		v.data = v.data[k:]
		n -= k
	}
	return nil
}

// headerHash hashes a header stream and where it lies, whatever pieces it comes in.
type headerHash struct {
	h    hash.Hash
	next int64
}

func newHeaderHash() *headerHash { return &headerHash{h: sha256.New()} }

func (h *headerHash) add(off int64, p []byte) error {
	if off != h.next {
		h.h.Write(binary.BigEndian.AppendUint64(nil, uint64(off)))
	}
	h.h.Write(p)
	h.next = off + int64(len(p))
	return nil
}

func (h *headerHash) equal(o *headerHash) bool {
	return h.next == o.next && bytes.Equal(h.h.Sum(nil), o.h.Sum(nil))
}
