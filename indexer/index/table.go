package index

import (
	"encoding/binary"

	"github.com/firstlight-dev/firstlight/indexer/internal/inflate"
)

// minRow is the size of the smallest row of the chunk table.
const minRow = 1

// maxTable bounds the chunk table, unpacked: a row is at most six varints of
// 10 bytes, a kind, and a block header, but few rows have the latter.
func maxTable(chunks int) int { return min(chunks*(61+inflate.MaxBlockHeader), MaxEncoded) }

// appendTable writes one row for each chunk.
func (x *Index) appendTable(b []byte) []byte {
	if x.Compression == Zstd {
		return x.appendZstd(b)
	}
	var prev point
	for i, c := range x.Chunks {
		b = binary.AppendUvarint(b, uint64(c.Size))
		if x.Compression == None {
			continue
		}
		p := x.points[i]
		b = append(b, byte(p.Kind))
		b = binary.AppendUvarint(b, uint64(p.Bit-prev.Bit))
		if p.Kind != inflate.AtMember {
			b = binary.AppendUvarint(b, uint64(p.Hist))
			b = binary.AppendUvarint(b, uint64(p.window))
		}
		if p.Kind == inflate.InBlock {
			b = binary.AppendUvarint(b, uint64(p.Bit-p.HeaderBit))
			if !sameBlock(prev, p) {
				b = binary.AppendUvarint(b, uint64(p.HeaderBits))
				b = append(b, p.header...)
			}
		}
		prev = p
	}
	return b
}

// sameBlock reports whether two checkpoints in a row lie in one block, whose
// header is then written once.
func sameBlock(a, b point) bool {
	return a.Kind == inflate.InBlock && a.HeaderBit == b.HeaderBit
}

// table unpacks and reads the chunk table.
func (r *reader) table(x *Index, n int) {
	size := int(r.uint("chunk table size", int64(maxTable(n))))
	packed := r.bytes("chunk table")
	if r.err != nil {
		return
	}
	if size < n*minRow {
		r.fail("%d chunks do not fit a table of %d bytes", n, size)
		return
	}
	raw, err := unpack(packed, size)
	if err != nil {
		r.fail("unpack chunk table: %w", err)
		return
	}
	t := &tableReader{reader{b: raw}}
	x.Chunks = make([]Chunk, n)
	switch x.Compression {
	case Gzip:
		x.points = make([]point, n)
	case Zstd:
		x.primes = make([]prime, n)
	}
	t.rows(x)
	if t.err == nil && len(t.b) > 0 {
		t.fail("%d bytes follow the last row", len(t.b))
	}
	if t.err != nil {
		r.fail("chunk table: %w", t.err)
	}
}

// tableReader reads the unpacked table.
type tableReader struct{ reader }

// rows reads the rows and lays out the chunks.
func (t *tableReader) rows(x *Index) {
	var off int64
	for i := range x.Chunks {
		c := &x.Chunks[i]
		c.Offset = off
		c.Size = t.uint("chunk size", min(MaxChunkSize, x.Size-off))
		if t.err == nil && c.Size == 0 {
			t.fail("chunk %d is empty", i)
		}
		off += c.Size
		switch x.Compression {
		case Gzip:
			t.point(x, i)
		case Zstd:
			t.zstd(x, i)
		default:
			c.CompressedOffset, c.CompressedSize = c.Offset, c.Size
		}
		if t.err != nil {
			return
		}
	}
	if t.err == nil && off != x.Size {
		t.fail("the chunks have %d bytes, the layer %d", off, x.Size)
	}
	if t.err == nil && x.Compression == Gzip {
		t.ranges(x)
	}
}

// point reads the checkpoint of chunk i.
func (t *tableReader) point(x *Index, i int) {
	var prev point
	if i > 0 {
		prev = x.points[i-1]
	}
	p := &x.points[i]
	if kind := t.take("checkpoint kind", 1); kind != nil {
		p.Kind = inflate.Kind(kind[0])
	}
	p.Bit = prev.Bit + t.uint("checkpoint position", x.CompressedSize*8-prev.Bit)
	switch {
	case t.err != nil:
	case p.Kind > inflate.InBlock:
		t.fail("checkpoint %d has the unknown kind %d", i, p.Kind)
	case i == 0 && (p.Kind != inflate.AtMember || p.Bit != 0):
		t.fail("the first checkpoint is not the start of the blob")
	case i > 0 && p.Bit <= prev.Bit:
		t.fail("checkpoint %d does not lie behind the one before", i)
	case p.Kind == inflate.AtMember && p.Bit&7 != 0:
		t.fail("checkpoint %d starts a gzip member inside a byte", i)
	}
	if p.Kind == inflate.AtMember {
		return
	}
	p.Hist = int(t.uint("window reach", min(inflate.WindowSize, x.Chunks[i].Offset)))
	p.window = int(t.uint("window size", int64(p.Hist)))
	if p.Kind != inflate.InBlock {
		return
	}
	p.HeaderBit = p.Bit - t.uint("distance to the block header", p.Bit)
	if sameBlock(prev, *p) {
		p.HeaderBits, p.header = prev.HeaderBits, prev.header
	} else {
		p.HeaderBits = int(t.uint("block header size", (inflate.MaxBlockHeader-1)*8))
		p.header = t.take("block header", p.HeaderBytes())
	}
	if t.err == nil && p.HeaderBit+int64(p.HeaderBits) > p.Bit {
		t.fail("checkpoint %d lies inside its block's header", i)
	}
}

// ranges derives the blob ranges of the chunks from their checkpoints.
func (t *tableReader) ranges(x *Index) {
	for i := range x.Chunks {
		c := &x.Chunks[i]
		end := x.CompressedSize
		if i+1 < len(x.Chunks) {
			end = (x.points[i+1].Bit + 7) / 8
		}
		c.CompressedOffset = x.points[i].Bit / 8
		c.CompressedSize = end - c.CompressedOffset
		if c.CompressedSize <= 0 || c.CompressedSize > MaxChunkCompressed {
			t.fail("chunk %d takes %d bytes of the blob", i, c.CompressedSize)
			return
		}
	}
}
