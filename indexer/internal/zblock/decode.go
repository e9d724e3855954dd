package zblock

import (
	"errors"
	"fmt"

	"github.com/klauspost/compress/huff0"
)

// slack is how many bytes behind an output a decoder may scribble on.
const slack = 32

// decoder decodes the blocks of one frame after the other. It is the part that
// scan and resumption share.
type decoder struct {
	codes  [kinds][]symbol
	tables [kinds]table
	huff   *huff0.Scratch
	tree   []byte // description of huff, empty if there is none
	reps   [3]uint32

	// out[:pos] is output; slack and a block fit behind pos.
	out []byte
	pos int
	// Matches read out[low:]; what they read before it comes from before.
	low    int
	before func(dst []byte, back int) error
	window int // how far they may reach

	// inherited has a bit for each table that was used before the piece
	// brought its own: those of kinds, then the Huffman tree.
	inherited, fresh uint8

	literals []byte
}

const treeBit = 1 << kinds

func newDecoder() decoder {
	d := decoder{huff: &huff0.Scratch{}, literals: make([]byte, maxBlock+slack)}
	for k := range kinds {
		d.codes[k] = symbols(k)
	}
	return d
}

// startFrame forgets what the frame before left.
func (d *decoder) startFrame() {
	for k := range d.tables {
		d.tables[k].set = false
	}
	d.tree = d.tree[:0]
	d.reps = [3]uint32{1, 4, 8}
	d.fresh = 1<<kinds - 1 | treeBit
}

// block decodes a block whose bytes are in, with bitsPad bytes behind them, to
// at most limit bytes.
func (d *decoder) block(b block, in []byte, limit int) error {
	switch b.kind {
	case blockRaw:
		d.pos += copy(d.out[d.pos:], in)
		return nil
	case blockRLE:
		fill := d.out[d.pos : d.pos+b.out]
		for i := range fill {
			fill[i] = in[0]
		}
		d.pos += b.out
		return nil
	}
	lit, rest, err := d.readLiterals(in, limit)
	if err != nil {
		return err
	}
	n, rest, err := sequenceCount(rest)
	if err != nil {
		return err
	}
	if n == 0 {
		if len(rest) != 0 {
			return fmt.Errorf("%w: bytes behind the literals of a block", ErrCorrupt)
		}
		d.pos += copy(d.out[d.pos:], lit)
		return nil
	}
	if rest, err = d.readTables(rest); err != nil {
		return err
	}
	return d.sequences(n, lit, rest, limit)
}

// use notes that a table is used, and whether the piece brought it.
func (d *decoder) use(bit uint8, own bool) {
	if own {
		d.fresh |= bit
	}
	d.inherited |= bit &^ d.fresh
}

// readLiterals decodes the literals section; the result has slack behind it.
func (d *decoder) readLiterals(in []byte, limit int) (lit, rest []byte, err error) {
	if len(in) < 2 {
		return nil, nil, fmt.Errorf("%w: block without literals section", ErrCorrupt)
	}
	h, err := parseLiterals(in)
	if err != nil {
		return nil, nil, err
	}
	if h.regenerated > limit || h.header+h.size > len(in) {
		return nil, nil, fmt.Errorf("%w: size of literals", ErrCorrupt)
	}
	src, rest := in[h.header:h.header+h.size], in[h.header+h.size:]
	lit = d.literals[:h.regenerated]
	switch h.kind {
	case literalsRaw:
		copy(lit, src)
		return lit, rest, nil
	case literalsRLE:
		for i := range lit {
			lit[i] = src[0]
		}
		return lit, rest, nil
	case literalsCompressed:
		if src, err = d.readTree(src); err != nil {
			return nil, nil, err
		}
	default:
		if len(d.tree) == 0 {
			return nil, nil, fmt.Errorf("%w: literals use a tree that was not there", ErrCorrupt)
		}
	}
	d.use(treeBit, h.kind == literalsCompressed)
	var got []byte
	if h.streams == 4 {
		got, err = d.huff.Decoder().Decompress4X(d.literals[:0:h.regenerated], src)
	} else {
		got, err = d.huff.Decoder().Decompress1X(d.literals[:0:h.regenerated], src)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%w: literals: %w", ErrCorrupt, err)
	}
	if len(got) != h.regenerated {
		return nil, nil, fmt.Errorf("%w: %d literals, not %d", ErrCorrupt, len(got), h.regenerated)
	}
	return lit, rest, nil
}

// readTree reads a Huffman tree and returns what follows it.
func (d *decoder) readTree(in []byte) ([]byte, error) {
	_, rest, err := huff0.ReadTable(in, d.huff)
	if err != nil {
		d.tree = d.tree[:0]
		return nil, fmt.Errorf("%w: Huffman tree: %w", ErrCorrupt, err)
	}
	d.tree = append(d.tree[:0], in[:len(in)-len(rest)]...)
	return rest, nil
}

// The kinds of literals section.
const (
	literalsRaw        = 0
	literalsRLE        = 1
	literalsCompressed = 2
)

// literals is the header of a literals section.
type literals struct {
	kind        uint8
	streams     int
	header      int // bytes of the header
	size        int // bytes behind it
	regenerated int
}

func parseLiterals(in []byte) (literals, error) {
	h := literals{kind: in[0] & 3, streams: 1}
	format := in[0] >> 2 & 3
	var v uint64
	for i := range min(5, len(in)) {
		v |= uint64(in[i]) << (8 * i)
	}
	if h.kind == literalsRaw || h.kind == literalsRLE {
		switch format {
		case 1:
			h.header, h.regenerated = 2, int(v>>4&0xFFF)
		case 3:
			h.header, h.regenerated = 3, int(v>>4&0xFFFFF)
		default:
			h.header, h.regenerated = 1, int(v>>3&0x1F)
		}
		h.size = h.regenerated
		if h.kind == literalsRLE {
			h.size = 1
		}
	} else {
		width := []int{10, 10, 14, 18}[format]
		h.header = (4 + 2*width + 7) / 8
		h.regenerated = int(v >> 4 & (1<<width - 1))
		h.size = int(v >> (4 + width) & (1<<width - 1))
		if format != 0 {
			h.streams = 4
		}
	}
	if h.header > len(in) {
		return h, fmt.Errorf("%w: header of literals", ErrCorrupt)
	}
	return h, nil
}

func sequenceCount(in []byte) (int, []byte, error) {
	switch {
	case len(in) >= 1 && in[0] < 128:
		return int(in[0]), in[1:], nil
	case len(in) >= 2 && in[0] < 255:
		return int(in[0]-128)<<8 + int(in[1]), in[2:], nil
	case len(in) >= 3:
		return int(in[1]) + int(in[2])<<8 + 0x7F00, in[3:], nil
	}
	return 0, nil, fmt.Errorf("%w: number of sequences", ErrCorrupt)
}

// readTables sets the tables up for the sequences of a block.
func (d *decoder) readTables(in []byte) ([]byte, error) {
	if len(in) == 0 || in[0]&3 != 0 {
		return nil, fmt.Errorf("%w: modes of tables", ErrCorrupt)
	}
	modes := in[0]
	in = in[1:]
	for k := range kinds {
		mode := modes >> (6 - 2*k) & 3
		n, err := d.tables[k].read(k, d.codes[k], mode, in)
		if err != nil {
			return nil, err
		}
		d.use(1<<k, mode != modeRepeat)
		in = in[n:]
	}
	return in, nil
}

var errOffset = errors.New("a match reads what is not there")

// sequences decodes n sequences and copies literals and matches.
func (d *decoder) sequences(n int, lit, in []byte, limit int) error {
	var r sequenceReader
	if !r.start(in, &d.tables) {
		return fmt.Errorf("%w: no end mark behind sequences", ErrCorrupt)
	}
	out, pos, low := d.out, d.pos, d.low
	end := pos + limit
	for i := n - 1; ; i-- {
		value, ll, ml := r.values()
		off := d.distance(value, ll)
		if ll > len(lit) || pos+ll+ml > end {
			return fmt.Errorf("%w: block of more than %d bytes", ErrCorrupt, limit)
		}
		if ll <= 16 {
			copy16(out[pos:], lit) // both have slack
		} else {
			copy(out[pos:], lit[:ll])
		}
		lit = lit[ll:]
		pos += ll
		switch src := pos - off; {
		case off < ml || src < low || off > d.window:
			d.pos = pos
			if err := d.match(off, ml); err != nil {
				return err
			}
		case ml <= 16 && off >= 16:
			copy16(out[pos:], out[src:])
		default:
			copy(out[pos:pos+ml], out[src:])
		}
		pos += ml
		if i == 0 || r.bits.pos < 0 {
			break
		}
		r.advance()
	}
	if r.bits.pos != 0 {
		return fmt.Errorf("%w: sequences do not end with their bits", ErrCorrupt)
	}
	if pos+len(lit) > end {
		return fmt.Errorf("%w: block of more than %d bytes", ErrCorrupt, limit)
	}
	d.pos = pos + copy(out[pos:], lit)
	return nil
}

// copy16 copies 16 bytes from a slice with as much capacity.
func copy16(dst, src []byte) {
	*(*[16]byte)(dst[:16]) = *(*[16]byte)(src[:16:16])
}

// distance turns the value of an offset into a distance and keeps the three
// last ones. 0 is returned for one that is not valid.
func (d *decoder) distance(value uint32, ll int) int {
	if value > 3 {
		d.reps = [3]uint32{value - 3, d.reps[0], d.reps[1]}
		return int(value - 3)
	}
	if ll == 0 {
		value++
	}
	switch value {
	case 1:
	case 2:
		d.reps[0], d.reps[1] = d.reps[1], d.reps[0]
	case 3:
		d.reps = [3]uint32{d.reps[2], d.reps[0], d.reps[1]}
	default:
		d.reps = [3]uint32{d.reps[0] - 1, d.reps[0], d.reps[1]}
	}
	return int(d.reps[0])
}

// match appends ml bytes from off before: any match that is not plain.
func (d *decoder) match(off, ml int) error {
	if off == 0 || off > d.window {
		return fmt.Errorf("%w: distance of a match", ErrCorrupt)
	}
	src := d.pos - off
	if src < d.low {
		n := min(ml, d.low-src)
		if err := d.before(d.out[d.pos:d.pos+n], d.low-src); err != nil {
			return err
		}
		d.pos += n
		ml -= n
		src += n
	}
	// It may read what it writes: each turn doubles what is there to read.
	for to := d.pos + ml; d.pos < to; {
		d.pos += copy(d.out[d.pos:to], d.out[src:d.pos])
	}
	return nil
}
