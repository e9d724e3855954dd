package index

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"math"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
)

// magic starts every index; its last byte is the format version.
const magic = "flindex\x01"

const (
	codeNone = 0
	codeGzip = 1
	codeZstd = 2
)

// Encode writes the index. Equal indexes give equal bytes.
func (x *Index) Encode() ([]byte, error) {
	layer, err := rawDigest(x.Layer)
	if err != nil {
		return nil, fmt.Errorf("encode layer digest: %w", err)
	}
	diffID, err := rawDigest(x.DiffID)
	if err != nil {
		return nil, fmt.Errorf("encode diffID: %w", err)
	}
	b := append(make([]byte, 0, 512+len(x.headers)+64*len(x.Chunks)), magic...)
	switch x.Compression {
	case Gzip:
		b = append(b, codeGzip)
	case Zstd:
		b = append(b, codeZstd)
	default:
		b = append(b, codeNone)
	}
	b = append(append(b, layer...), diffID...)
	for _, v := range []int64{x.CompressedSize, x.Size, int64(len(x.Chunks)), x.headersSize, int64(x.entries)} {
		b = binary.AppendUvarint(b, uint64(v))
	}
	table := x.appendTable(nil)
	if len(table) > maxTable(len(x.Chunks)) {
		return nil, fmt.Errorf("%w: its chunk table has %d bytes", ErrUnsupported, len(table))
	}
	enc, err := newEncoder(nil, packLevel)
	if err != nil {
		return nil, err
	}
	defer enc.Close()
	b = binary.AppendUvarint(b, uint64(len(table)))
	b = appendBytes(b, enc.EncodeAll(table, nil))
	for _, c := range x.Chunks {
		if x.Compression != None {
			b = append(b, c.CompressedDigest[:]...)
		}
		b = append(b, c.Digest[:]...)
	}
	for _, w := range x.windows {
		b = appendBytes(b, w)
	}
	for _, p := range x.primes {
		if p.size > 0 {
			b = appendBytes(b, p.packed)
		}
	}
	b = appendBytes(b, x.headers)
	if len(b) > MaxEncoded {
		return nil, fmt.Errorf("%w: its index has %d bytes, at most %d are allowed", ErrUnsupported, len(b), MaxEncoded)
	}
	return b, nil
}

// Decode reads an encoded index and checks every field of it, except the
// content of windows and header stream, which their readers check.
func Decode(b []byte) (*Index, error) {
	if len(b) > MaxEncoded {
		return nil, fmt.Errorf("%w: %d bytes, at most %d are allowed", ErrInvalid, len(b), MaxEncoded)
	}
	r := &reader{b: b}
	x, err := r.index()
	if err == nil {
		err = r.err
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return x, nil
}

// reader takes fields from b and keeps the first error.
type reader struct {
	b   []byte
	err error
}

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf(format, args...)
	}
	r.b = nil
}

// take returns the next n bytes, a view of the input.
func (r *reader) take(what string, n int) []byte {
	if r.err != nil || n < 0 || n > len(r.b) {
		r.fail("%s is cut short", what)
		return nil
	}
	p := r.b[:n:n]
	r.b = r.b[n:]
	return p
}

// uint reads a minimal varint of at most limit.
func (r *reader) uint(what string, limit int64) int64 {
	v, n := binary.Uvarint(r.b)
	switch {
	case r.err != nil:
		return 0
	case n <= 0:
		r.fail("%s is cut short", what)
		return 0
	case n > 1 && r.b[n-1] == 0:
		r.fail("%s is not in its shortest form", what)
		return 0
	case v > math.MaxInt64 || int64(v) > limit:
		r.fail("%s is %d, at most %d is allowed", what, v, limit)
		return 0
	}
	r.b = r.b[n:]
	return int64(v)
}

// bytes reads a length and that many bytes.
func (r *reader) bytes(what string) []byte {
	return r.take(what, int(r.uint(what+" length", int64(len(r.b)))))
}

func (r *reader) index() (*Index, error) {
	x := &Index{}
	if !bytes.Equal(r.take("magic", len(magic)), []byte(magic)) {
		return nil, fmt.Errorf("not a layer index of version %d", magic[len(magic)-1])
	}
	code := r.take("compression", 1)
	layer, diffID := r.take("layer digest", 32), r.take("diffID", 32)
	if r.err != nil {
		return nil, r.err
	}
	switch code[0] {
	case codeNone:
		x.Compression = None
	case codeGzip:
		x.Compression = Gzip
	case codeZstd:
		x.Compression = Zstd
	default:
		return nil, fmt.Errorf("unknown compression %d", code[0])
	}
	x.Layer = digest.NewDigestFromEncoded(digest.SHA256, hex.EncodeToString(layer))
	x.DiffID = digest.NewDigestFromEncoded(digest.SHA256, hex.EncodeToString(diffID))
	x.CompressedSize = r.uint("compressed size", MaxSize)
	x.Size = r.uint("size", MaxSize)
	// A chunk has two digests outside the table, so the input bounds their number.
	n := int(r.uint("number of chunks", min(MaxChunks, int64(len(r.b)/sha256.Size))))
	x.headersSize = r.uint("header stream size", min(MaxHeaders, x.Size))
	x.entries = int(r.uint("number of entries", min(MaxEntries, x.headersSize/blockSize)))
	r.table(x, n)
	r.digests(x)
	r.windows(x)
	x.headers = r.bytes("header stream")
	if r.err == nil && len(r.b) > 0 {
		r.fail("%d bytes follow the header stream", len(r.b))
	}
	if x.Compression == None && (x.CompressedSize != x.Size || x.Layer != x.DiffID) {
		r.fail("an uncompressed layer has two sizes or digests")
	}
	return x, r.err
}

func (r *reader) digests(x *Index) {
	for i := range x.Chunks {
		c := &x.Chunks[i]
		if x.Compression != None {
			copy(c.CompressedDigest[:], r.take("chunk digests", sha256.Size))
		}
		copy(c.Digest[:], r.take("chunk digests", sha256.Size))
		if x.Compression == None {
			c.CompressedDigest = c.Digest
		}
		if r.err != nil {
			return
		}
	}
}

func (r *reader) windows(x *Index) {
	for i := range x.primes {
		if p := &x.primes[i]; p.size > 0 {
			p.packed = r.bytes("prime")
		}
	}
	if x.Compression != Gzip || r.err != nil {
		return
	}
	groups := (len(x.Chunks) + windowGroup - 1) / windowGroup
	x.windows = make([][]byte, groups)
	for i := range x.windows {
		x.windows[i] = r.bytes("window group")
	}
}

// rawDigest returns the bytes of a SHA-256 digest.
func rawDigest(d digest.Digest) ([]byte, error) {
	if err := d.Validate(); err != nil {
		return nil, fmt.Errorf("digest %q: %w", d, err)
	}
	if d.Algorithm() != digest.SHA256 {
		return nil, fmt.Errorf("%w: digest algorithm %s, only sha256 is", ErrUnsupported, d.Algorithm())
	}
	return hex.DecodeString(d.Encoded())
}

func appendBytes(b, p []byte) []byte {
	return append(binary.AppendUvarint(b, uint64(len(p))), p...)
}

// newDecoder returns a zstd decoder for up to size bytes.
func newDecoder(r io.Reader, size int) (*zstd.Decoder, error) {
	dec, err := zstd.NewReader(r,
		zstd.WithDecoderConcurrency(1),
		zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxWindow(packWindow),
		zstd.WithDecoderMaxMemory(uint64(max(size, packWindow))))
	if err != nil {
		return nil, fmt.Errorf("start zstd: %w", err)
	}
	return dec, nil
}

// unpack inflates a zstd section of known size.
func unpack(packed []byte, size int) ([]byte, error) {
	dec, err := newDecoder(nil, size)
	if err != nil {
		return nil, err
	}
	defer dec.Close()
	raw, err := dec.DecodeAll(packed, nil)
	if err != nil {
		return nil, err
	}
	if len(raw) != size {
		return nil, fmt.Errorf("%d bytes, %d announced", len(raw), size)
	}
	return raw, nil
}
