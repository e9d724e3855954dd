package zblock

import (
	"fmt"
	"math/bits"
)

// kind is what a table of sequences codes.
type kind int

const (
	litLen kind = iota
	offset
	matchLen
	kinds // how many
)

const (
	maxLog    = 9 // of any table
	maxOffset = 30
)

// maxLog bounds the tables of a kind.
func (k kind) maxLog() int {
	if k == offset {
		return 8
	}
	return maxLog
}

// symbol is what a code stands for: a base value and extra bits to add.
type symbol struct {
	base  uint32
	extra uint8
}

// entry is a state of a table.
type entry struct {
	base  uint32
	next  uint16 // base of the next state
	bits  uint8  // to add to it
	extra uint8
}

// The modes of a table, as in a block's sequence header.
const (
	modePredefined = 0
	modeRLE        = 1
	modeFSE        = 2
	modeRepeat     = 3
)

// table decodes one kind of value.
type table struct {
	entries [1 << maxLog]entry
	log     uint8
	// The table can be made again from mode and description.
	set  bool
	mode uint8
	desc []byte
}

// symbols lists what the codes of a kind stand for.
func symbols(k kind) []symbol {
	switch k {
	case litLen:
		return spread(16, []uint8{1, 1, 1, 1, 2, 2, 3, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}, 0)
	case matchLen:
		return spread(32, []uint8{1, 1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}, 3)
	default:
		s := make([]symbol, maxOffset+1)
		for i := range s {
			s[i] = symbol{1 << i, uint8(i)}
		}
		return s
	}
}

// spread makes symbols for direct values, and then for ranges of growing size.
func spread(direct int, extra []uint8, from uint32) []symbol {
	s := make([]symbol, 0, direct+len(extra))
	for range direct {
		s = append(s, symbol{from, 0})
		from++
	}
	for _, e := range extra {
		s = append(s, symbol{from, e})
		from += 1 << e
	}
	return s
}

// predefined is the distribution of a kind that the format fixes, and the log
// of its table.
func predefined(k kind) (norm []int16, log uint8) {
	switch k {
	case litLen:
		return []int16{4, 3, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 3, 2, 1, 1, 1, 1, 1, -1, -1, -1, -1}, 6
	case matchLen:
		return []int16{
			1, 4, 3, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
			1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1,
		}, 6
	default:
		return []int16{1, 1, 1, 1, 1, 1, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1}, 5
	}
}

// read sets a table up from its mode and the bytes that follow, and returns how
// many of them describe it. modeRepeat leaves it as it is.
func (t *table) read(k kind, codes []symbol, mode uint8, in []byte) (int, error) {
	n := 0
	switch mode {
	case modePredefined:
		norm, log := predefined(k)
		t.fill(codes, norm, log)
	case modeRLE:
		if len(in) == 0 || int(in[0]) >= len(codes) {
			return 0, fmt.Errorf("%w: code of a one-symbol table", ErrCorrupt)
		}
		s := codes[in[0]]
		t.log, t.entries[0], n = 0, entry{base: s.base, extra: s.extra}, 1
	case modeFSE:
		norm, log, used, err := distribution(in, k.maxLog(), len(codes))
		if err != nil {
			return 0, err
		}
		t.fill(codes, norm, log)
		n = used
	default:
		if !t.set {
			return 0, fmt.Errorf("%w: a table is used again that was not there", ErrCorrupt)
		}
		return 0, nil
	}
	t.set, t.mode, t.desc = true, mode, append(t.desc[:0], in[:n]...)
	return n, nil
}

// distribution reads the probabilities of codes, and how many bytes they took.
func distribution(in []byte, limit, codes int) (norm []int16, log uint8, used int, err error) {
	f := forwardBits{in: in}
	l := int(f.take(4)) + 5
	if l > limit {
		return nil, 0, 0, fmt.Errorf("%w: table of %d bits", ErrCorrupt, l)
	}
	norm = make([]int16, 0, codes)
	for left := 1 << l; left > 0; {
		// A value is below left+2; the small ones save a bit.
		width := bits.Len(uint(left + 1))
		small := 1<<width - 1 - (left + 1)
		v := int(f.peek(width))
		if low := v & (1<<(width-1) - 1); low < small {
			v, width = low, width-1
		} else if v >= 1<<(width-1) {
			v -= small
		}
		f.pos += width
		p := v - 1
		norm = append(norm, int16(p))
		if p < 0 {
			left--
		}
		left -= max(p, 0)
		for again := p == 0; again; {
			zeros := f.take(2)
			for range zeros {
				norm = append(norm, 0)
			}
			again = zeros == 3 && len(norm) <= codes
		}
		if left < 0 || len(norm) > codes || f.bytes() > len(in) {
			return nil, 0, 0, fmt.Errorf("%w: distribution of a table", ErrCorrupt)
		}
	}
	return norm, uint8(l), f.bytes(), nil
}

// fill makes the table of a distribution, whose sum is the size of the table.
func (t *table) fill(codes []symbol, norm []int16, log uint8) {
	size := 1 << log
	var code [1 << maxLog]uint8
	var next [64]uint16
	high := size - 1
	for i, p := range norm {
		next[i] = uint16(max(p, 1))
		if p < 0 {
			code[high] = uint8(i)
			high--
		}
	}
	step, pos := size>>1+size>>3+3, 0
	for i, p := range norm {
		for range p {
			code[pos] = uint8(i)
			for pos = (pos + step) & (size - 1); pos > high; {
				pos = (pos + step) & (size - 1)
			}
		}
	}
	for i := range size {
		c := code[i]
		n := next[c]
		next[c]++
		b := log - uint8(bits.Len16(n)-1)
		s := codes[c]
		t.entries[i] = entry{base: s.base, extra: s.extra, bits: b, next: n<<b - uint16(size)}
	}
	t.log = log
}
