package zblock

import (
	"encoding/binary"
	"math/bits"
)

// bitsPad is how many readable bytes must follow the data of a bitReader.
const bitsPad = 8

// bitReader reads bits from the end of its data to the start, as zstd writes
// sequences.
type bitReader struct {
	in  []byte // with bitsPad more bytes behind the data
	pos int    // bits left; negative after reading too many
}

// start begins at the highest set bit of the last byte, which marks the end.
func (b *bitReader) start(data []byte) bool {
	n := len(data)
	if n == 0 || data[n-1] == 0 {
		return false
	}
	b.in = data[: n+bitsPad : n+bitsPad]
	b.pos = n*8 - 8 + bits.Len8(data[n-1]) - 1
	return true
}

// take reads n bits, at most 56. After too many it returns 0.
func (b *bitReader) take(n uint8) uint64 {
	b.pos -= int(n)
	if b.pos < 0 {
		return 0
	}
	w := binary.LittleEndian.Uint64(b.in[b.pos>>3:])
	return w >> (b.pos & 7) & (1<<n - 1)
}

// forwardBits reads bits from the start, as zstd writes table descriptions.
// Behind the end it reads zeros, and overrun tells.
type forwardBits struct {
	in  []byte
	pos int
}

func (f *forwardBits) peek(n int) uint32 {
	var w uint64
	for i := range 4 {
		if k := f.pos>>3 + i; k < len(f.in) {
			w |= uint64(f.in[k]) << (8 * i)
		}
	}
	return uint32(w>>(f.pos&7)) & (1<<n - 1)
}

func (f *forwardBits) take(n int) uint32 {
	v := f.peek(n)
	f.pos += n
	return v
}

// bytes is how many bytes were touched.
func (f *forwardBits) bytes() int { return (f.pos + 7) / 8 }
