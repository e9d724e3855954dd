// Package scan makes the index of a layer in one pass over its bytes.
//
// Three goroutines share the work of a compressed layer: one decodes and chooses
// the cuts, one hashes chunks and packs windows, one hashes the tar stream,
// checks member checksums and reads the tar. Pieces travel through bounded
// queues in buffers that go round, so memory does not depend on the layer.
//
// A layer is refused, with index.ErrUnsupported and the reason, when the index
// would not be exact or when containerd would refuse the layer: what is lazily
// mounted is then always what containerd would have extracted.
package scan

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"

	"github.com/opencontainers/go-digest"

	"github.com/firstlight-dev/firstlight/indexer/index"
	"github.com/firstlight-dev/firstlight/indexer/internal/inflate"
	"github.com/firstlight-dev/firstlight/indexer/internal/zblock"
	"github.com/firstlight-dev/firstlight/indexer/tree"
)

// ChunkSize is the aimed-at size of a chunk of a gzip or plain layer. A chunk is what one small read
// costs over the network, so it should be small, and each costs about 2 KiB of
// index (a window and two digests), so it should be large: at 512 KiB an index
// is about 0.7 % of its layer. DESIGN.md has the measurements.
const ChunkSize = 512 << 10

// ErrMismatch marks layer bytes that are not those of the expected digest: damaged,
// cut short, or another layer.
var ErrMismatch = errors.New("layer does not match its digest")

// Layer is what to scan.
type Layer struct {
	Reader io.Reader
	// Digest and Size are what the manifest says of the blob. They are checked
	// unless empty and negative.
	Digest digest.Digest
	Size   int64
	// DiffID is what the image configuration says, checked unless empty.
	DiffID digest.Digest
	// Progress, if set, is told of compressed bytes as they are read.
	Progress func(n int)
}

// Scan reads the layer to its end and returns its index. On success the layer
// matched everything that Layer says of it.
func Scan(ctx context.Context, l Layer) (*index.Index, error) {
	in := &source{ctx: ctx, r: l.Reader, limit: l.Size, progress: l.Progress}
	br := bufio.NewReaderSize(in, 64<<10)
	head, err := br.Peek(4)
	var x *index.Index
	switch {
	case err != nil && !errors.Is(err, io.EOF):
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b, 8}):
		x, err = scanCompressed(ctx, br, index.Gzip, splitGzip)
	case zblock.Frame(head):
		x, err = scanCompressed(ctx, br, index.Zstd, splitZstd)
	default:
		x, err = scanTar(br)
	}
	return x, l.check(x, in, err)
}

// check compares what was read with what was expected. A layer cut short is
// reported as such, whatever error that led to.
func (l Layer) check(x *index.Index, in *source, err error) error {
	switch {
	case in.err != nil:
		return fmt.Errorf("read layer at offset %d: %w", in.n, in.err)
	case in.eof && l.Size >= 0 && in.n < l.Size:
		return fmt.Errorf("%w: it ends after %d of %d bytes", ErrMismatch, in.n, l.Size)
	case in.long:
		return fmt.Errorf("%w: it has more than the %d bytes of its descriptor", ErrMismatch, l.Size)
	case err != nil:
		return err
	case l.Digest != "" && x.Layer != l.Digest:
		return fmt.Errorf("%w: it is %s, not %s", ErrMismatch, x.Layer, l.Digest)
	case l.DiffID != "" && x.DiffID != l.DiffID:
		return fmt.Errorf("%w: its diffID is %s, the image configuration says %s", ErrMismatch, x.DiffID, l.DiffID)
	}
	return nil
}

// source is the blob: it stops when the context ends or more bytes come than
// announced, and remembers how it ended.
type source struct {
	ctx      context.Context //nolint:containedctx // an io.Reader has nowhere else for it
	r        io.Reader
	limit    int64 // negative: none
	progress func(int)
	n        int64
	eof      bool
	long     bool
	err      error
}

func (s *source) Read(p []byte) (int, error) {
	if s.err = s.ctx.Err(); s.err != nil {
		return 0, s.err
	}
	n, err := s.r.Read(p)
	s.n += int64(n)
	if s.progress != nil && n > 0 {
		s.progress(n)
	}
	switch {
	case s.limit >= 0 && s.n > s.limit:
		s.long = true
		return 0, ErrMismatch
	case errors.Is(err, io.EOF):
		s.eof = true
	case err != nil:
		s.err = err
	}
	return n, err
}

// tarReader reads the tar stream into header stream and tree: the tree only to
// learn whether it can be made.
type tarReader struct {
	b       *index.Builder
	entries int
}

func (t *tarReader) read(r io.Reader) error {
	check := tree.NewBuilder()
	s := index.NewStream(r, func(_ int64, p []byte) error { return t.b.Headers(p) })
	n, err := s.Walk(check.Add)
	if err != nil {
		return err
	}
	t.entries = n
	_, err = check.Finish()
	return err
}

func sum(h hash.Hash) digest.Digest { return digest.NewDigest(digest.SHA256, h) }

// decodeError tells what a layer did wrong from an error of reading it. Such a
// layer is left to a full pull.
func decodeError(err error) error {
	for _, e := range []error{
		inflate.ErrCorrupt, inflate.ErrTruncated, inflate.ErrTrailing, inflate.ErrNoOutput,
		zblock.ErrCorrupt, zblock.ErrTruncated, zblock.ErrTrailing, zblock.ErrNoOutput, zblock.ErrRefused,
	} {
		if errors.Is(err, e) {
			return fmt.Errorf("%w: %w", index.ErrUnsupported, err)
		}
	}
	return err
}

// blobDigest hashes the blob and counts it.
type blobDigest struct {
	h hash.Hash
	n int64
}

func newBlobDigest() *blobDigest { return &blobDigest{h: sha256.New()} }

func (d *blobDigest) add(p []byte) {
	d.h.Write(p)
	d.n += int64(len(p))
}
