package index

import (
	"bytes"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"

	"github.com/firstlight-dev/firstlight/indexer/internal/inflate"
)

// Builder collects the parts of an index while a layer streams by. AddChunk and
// Headers may be used by one goroutine each.
type Builder struct {
	x      Index
	enc    *zstd.Encoder // windows or primes
	group  []byte
	packed bytes.Buffer
	hdr    *zstd.Encoder
}

// NewBuilder starts an index.
func NewBuilder(c Compression) (*Builder, error) {
	b := &Builder{x: Index{Compression: c}}
	var err error
	level := packLevel
	if c == Zstd {
		// Primes are most of an index, and small enough to take time for.
		level = zstd.SpeedBestCompression
	}
	if b.enc, err = newEncoder(nil, level); err != nil {
		return nil, err
	}
	if b.hdr, err = newEncoder(&b.packed, packLevel); err != nil {
		return nil, err
	}
	return b, nil
}

// newEncoder returns a zstd encoder whose output depends on nothing but its
// input: one goroutine, a fixed level and no checksum (digests cover it).
func newEncoder(w io.Writer, level zstd.EncoderLevel) (*zstd.Encoder, error) {
	enc, err := zstd.NewWriter(w,
		zstd.WithEncoderLevel(level),
		zstd.WithEncoderConcurrency(1),
		zstd.WithEncoderCRC(false),
		zstd.WithLowerEncoderMem(true),
		zstd.WithWindowSize(packWindow))
	if err != nil {
		return nil, fmt.Errorf("start zstd: %w", err)
	}
	return enc, nil
}

// packWindow is the zstd window of the sections, and so the memory a reader
// of the header stream needs.
const packWindow = 1 << 20

const packLevel = zstd.SpeedBetterCompression

// AddChunk appends a chunk of a layer that is not compressed.
func (b *Builder) AddChunk(c Chunk) error {
	if len(b.x.Chunks) == MaxChunks || c.CompressedSize > MaxChunkCompressed || c.Size > MaxChunkSize {
		return fmt.Errorf("%w: chunk %d at offset %d takes %d bytes of the blob for %d bytes",
			ErrUnsupported, len(b.x.Chunks), c.Offset, c.CompressedSize, c.Size)
	}
	b.x.Chunks = append(b.x.Chunks, c)
	return nil
}

// AddGzip appends a chunk with the checkpoint it starts from, the referenced
// bytes of its window and, for an InBlock checkpoint, the bytes of the block's
// header.
func (b *Builder) AddGzip(c Chunk, cp inflate.Checkpoint, window, header []byte) error {
	if err := b.AddChunk(c); err != nil {
		return err
	}
	b.x.points = append(b.x.points, point{Checkpoint: cp, window: len(window), header: header})
	b.group = append(b.group, window...)
	if len(b.x.points)%windowGroup == 0 {
		b.flush()
	}
	return nil
}

// AddZstd appends a chunk with its prime, empty if the chunk starts with a
// frame.
func (b *Builder) AddZstd(c Chunk, p []byte) error {
	if len(p) > maxPrime {
		return fmt.Errorf("%w: chunk %d reads %d bytes before its start", ErrUnsupported, len(b.x.Chunks), len(p))
	}
	if err := b.AddChunk(c); err != nil {
		return err
	}
	q := prime{size: len(p)}
	if len(p) > 0 {
		q.packed = b.enc.EncodeAll(p, nil)
	}
	b.x.primes = append(b.x.primes, q)
	return nil
}

func (b *Builder) flush() {
	b.x.windows = append(b.x.windows, b.enc.EncodeAll(b.group, nil))
	b.group = b.group[:0]
}

// Headers takes the header stream.
func (b *Builder) Headers(p []byte) error {
	b.x.headersSize += int64(len(p))
	if b.x.headersSize > MaxHeaders {
		return fmt.Errorf("%w: more than %d bytes of tar headers", ErrUnsupported, MaxHeaders)
	}
	if _, err := b.hdr.Write(p); err != nil {
		return fmt.Errorf("pack tar headers: %w", err)
	}
	return nil
}

// Identity is what is known of a layer only at its end.
type Identity struct {
	Layer, DiffID        digest.Digest
	CompressedSize, Size int64
	Entries              int
}

// Finish completes the index.
func (b *Builder) Finish(id Identity) (*Index, error) {
	if b.x.Compression == Gzip && len(b.x.points)%windowGroup != 0 {
		b.flush()
	}
	if err := b.Close(); err != nil {
		return nil, fmt.Errorf("pack tar headers: %w", err)
	}
	b.x.headers = b.packed.Bytes()
	b.x.Layer, b.x.DiffID = id.Layer, id.DiffID
	b.x.CompressedSize, b.x.Size = id.CompressedSize, id.Size
	b.x.entries = id.Entries
	return &b.x, nil
}

// Close frees a builder that is given up; Finish does so too.
func (b *Builder) Close() error {
	return b.hdr.Close()
}
