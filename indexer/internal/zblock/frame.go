package zblock

import (
	"encoding/binary"
	"errors"
	"fmt"
)

var (
	// ErrCorrupt marks what is not zstd.
	ErrCorrupt = errors.New("corrupt zstd stream")
	// ErrTruncated marks a file that ends early.
	ErrTruncated = errors.New("zstd stream ends early")
	// ErrTrailing marks bytes behind the last frame that are no frame.
	ErrTrailing = errors.New("trailing data after the zstd stream")
	// ErrRefused marks zstd that would take too much memory, or a dictionary.
	ErrRefused = errors.New("zstd stream asks for too much")
)

const (
	frameMagic = 0xFD2FB528
	skipMagic  = 0x184D2A50 // the lowest four bits are free
	skipMask   = 0xFFFFFFF0

	// maxBlock bounds a block, before and after decoding.
	maxBlock    = 128 << 10
	blockHeader = 3
	checksum    = 4
	// maxFrameHeader is magic, descriptor, window, dictionary and size.
	maxFrameHeader = 18
)

// Skippable reports whether a skippable frame starts with these bytes, and
// Frame whether any zstd frame does.
func Skippable(p []byte) bool {
	return len(p) >= 4 && binary.LittleEndian.Uint32(p)&skipMask == skipMagic
}

// Frame reports whether a zstd frame starts with these bytes.
func Frame(p []byte) bool {
	return len(p) >= 4 && binary.LittleEndian.Uint32(p) == frameMagic || Skippable(p)
}

// frame is what the header of a frame says.
type frame struct {
	window   int64
	size     int64 // of its content, -1 if not told
	checksum bool
}

// headerSize is the size of a frame header whose first five bytes are p.
func headerSize(p []byte) int {
	d := p[4]
	n := 5 + []int{0, 1, 2, 4}[d&3] + []int{0, 2, 4, 8}[d>>6]
	switch {
	case d&0x20 == 0: // a window descriptor
		n++
	case d>>6 == 0: // a size of one byte
		n++
	}
	return n
}

// parseFrame reads a whole frame header.
func parseFrame(p []byte) (frame, error) {
	d := p[4]
	f := frame{size: -1, checksum: d&4 != 0}
	if d&8 != 0 {
		return f, fmt.Errorf("%w: reserved bit of a frame header", ErrCorrupt)
	}
	p = p[5:]
	single := d&0x20 != 0
	if !single {
		exp, mantissa := p[0]>>3, int64(p[0]&7)
		f.window = 1 << (10 + exp)
		f.window += f.window / 8 * mantissa
		p = p[1:]
	}
	id := []int{0, 1, 2, 4}[d&3]
	for _, b := range p[:id] {
		if b != 0 {
			return f, fmt.Errorf("%w: a dictionary that it does not contain", ErrRefused)
		}
	}
	p = p[id:]
	switch d >> 6 {
	case 0:
		if single {
			f.size = int64(p[0])
		}
	case 1:
		f.size = int64(binary.LittleEndian.Uint16(p)) + 256
	case 2:
		f.size = int64(binary.LittleEndian.Uint32(p))
	case 3:
		f.size = int64(binary.LittleEndian.Uint64(p))
		if f.size < 0 {
			return f, fmt.Errorf("%w: size of a frame", ErrCorrupt)
		}
	}
	if single {
		f.window = max(f.size, 1<<10)
	}
	return f, nil
}

// block is what the header of a block says.
type block struct {
	last bool
	kind uint8
	size int // of the block's bytes behind the header
	out  int // of its output, if it is not compressed
}

// The kinds of block.
const (
	blockRaw        = 0
	blockRLE        = 1
	blockCompressed = 2
)

func parseBlock(p []byte, limit int) (block, error) {
	h := uint32(p[0]) | uint32(p[1])<<8 | uint32(p[2])<<16
	b := block{last: h&1 != 0, kind: uint8(h >> 1 & 3), size: int(h >> 3), out: int(h >> 3)}
	if b.size > limit {
		return b, fmt.Errorf("%w: block of %d bytes", ErrCorrupt, b.size)
	}
	switch b.kind {
	case blockRLE:
		b.size = 1
	case blockRaw, blockCompressed:
	default:
		return b, fmt.Errorf("%w: block of a reserved type", ErrCorrupt)
	}
	return b, nil
}

// skipSize is how many bytes follow the first 8 of a skippable frame.
func skipSize(p []byte) int { return int(binary.LittleEndian.Uint32(p[4:])) }
