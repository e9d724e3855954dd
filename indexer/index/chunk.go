package index

import (
	"crypto/sha256"
	"fmt"
)

// DecodeChunk turns the compressed bytes of chunk i into the chunk. It uses the
// space of dst if that is large enough and overwrites it. Nothing is inflated
// before the compressed bytes match their digest, and nothing returned before
// the chunk matches its own; else the error is ErrMismatch.
func (x *Index) DecodeChunk(dst []byte, i int, compressed []byte) ([]byte, error) {
	if i < 0 || i >= len(x.Chunks) {
		return nil, fmt.Errorf("chunk %d of %d does not exist", i, len(x.Chunks))
	}
	c := &x.Chunks[i]
	if int64(len(compressed)) != c.CompressedSize {
		return nil, fmt.Errorf("%w: chunk %d has %d bytes, not %d", ErrMismatch, i, len(compressed), c.CompressedSize)
	}
	if sha256.Sum256(compressed) != c.CompressedDigest {
		return nil, fmt.Errorf("%w: chunk %d: the bytes at %d..%d of the blob are not those indexed",
			ErrMismatch, i, c.CompressedOffset, c.CompressedOffset+c.CompressedSize)
	}
	if x.Compression == None {
		return append(dst[:0], compressed...), nil
	}
	return x.inflateChunk(dst, i, compressed)
}

func (x *Index) inflateChunk(dst []byte, i int, compressed []byte) ([]byte, error) {
	return nil, fmt.Errorf("chunk %d: inflating is not there yet", i)
}
