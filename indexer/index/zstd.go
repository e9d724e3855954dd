package index

import (
	"encoding/binary"
	"fmt"
)

// appendZstd writes the rows of a zstd layer's chunk table.
func (x *Index) appendZstd(b []byte) []byte {
	for i, c := range x.Chunks {
		b = binary.AppendUvarint(b, uint64(c.Size))
		b = binary.AppendUvarint(b, uint64(c.CompressedSize))
		b = binary.AppendUvarint(b, uint64(x.primes[i].size))
	}
	return b
}

// zstd reads the rest of row i of a zstd layer.
func (t *tableReader) zstd(x *Index, i int) {
	c := &x.Chunks[i]
	if i > 0 {
		c.CompressedOffset = x.Chunks[i-1].CompressedOffset + x.Chunks[i-1].CompressedSize
	}
	c.CompressedSize = t.uint("compressed chunk size", min(MaxChunkCompressed, x.CompressedSize-c.CompressedOffset))
	x.primes[i].size = int(t.uint("prime size", maxPrime))
	switch {
	case t.err != nil:
	case c.CompressedSize == 0:
		t.fail("chunk %d takes no bytes of the blob", i)
	case i == 0 && x.primes[i].size > 0:
		t.fail("the first chunk needs what lies before it")
	}
}

// resume decodes chunk i of a zstd layer.
func (d *chunkDecoder) resume(x *Index, i int, compressed []byte) ([]byte, error) {
	p := &x.primes[i]
	var raw []byte
	if p.size > 0 {
		var err error
		if raw, err = d.zstd.DecodeAll(p.packed, d.group[:0]); err != nil {
			return nil, fmt.Errorf("%w: unpack prime of chunk %d: %w", ErrInvalid, i, err)
		}
		if d.group = raw; len(raw) != p.size {
			return nil, fmt.Errorf("%w: the prime of chunk %d has %d bytes, not %d", ErrInvalid, i, len(raw), p.size)
		}
	}
	out, err := d.zblock.Resume(raw, compressed, int(x.Chunks[i].Size))
	if err != nil {
		return nil, fmt.Errorf("%w: decode chunk %d: %w", ErrInvalid, i, err)
	}
	return out, nil
}
