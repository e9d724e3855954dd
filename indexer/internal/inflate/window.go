package inflate

import (
	"math/bits"
	"sort"
)

// refs marks window bytes: bit i stands for the byte WindowSize-i before the
// piece.
type refs [WindowSize / 64]uint64

// set marks the bytes from a up to b.
func (r *refs) set(a, b int) {
	for i := a >> 6; i <= (b-1)>>6; i++ {
		m := ^uint64(0)
		if i == a>>6 {
			m <<= a & 63
		}
		if i == (b-1)>>6 {
			m &= ^uint64(0) >> (63 - (b-1)&63)
		}
		r[i] |= m
	}
}

// mark sets what the matches of a log read before position start. The log is in
// order of position. This is the rule that the package comment states.
func (r *refs) mark(log []uint64, start int) {
	from := sort.Search(len(log), func(i int) bool { return int(log[i]>>32) >= start })
	for _, m := range log[from:] {
		pos := int(m >> 32)
		if pos >= start+WindowSize {
			return
		}
		a := pos - int(uint16(m>>16)) - (start - WindowSize)
		if a < WindowSize {
			r.set(a, min(a+int(uint16(m)), WindowSize))
		}
	}
}

func (r *refs) count() (n int) {
	for _, w := range r {
		n += bits.OnesCount64(w)
	}
	return n
}

// pack returns the marked bytes of a window.
func (r *refs) pack(window []byte) []byte {
	packed := make([]byte, 0, r.count())
	for i, w := range r {
		for ; w != 0; w &= w - 1 {
			packed = append(packed, window[i<<6+bits.TrailingZeros64(w)])
		}
	}
	return packed
}

// spread puts packed bytes back at the marked places. It reports false if their
// number differs.
func (r *refs) spread(packed, window []byte) bool {
	for i, w := range r {
		n := bits.OnesCount64(w)
		if n > len(packed) {
			return false
		}
		for k := 0; w != 0; w &= w - 1 {
			window[i<<6+bits.TrailingZeros64(w)] = packed[k]
			k++
		}
		packed = packed[n:]
	}
	return len(packed) == 0
}
