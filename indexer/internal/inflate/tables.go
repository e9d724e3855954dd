package inflate

import "math/bits"

// Widths of the primary tables, and room for the secondary ones: at most 286 and
// 30 codes of up to 15 bits need less; subtables checks.
const (
	litBits  = 11
	distBits = 9
	litSub   = 2048
	distSub  = 512
	litSize  = 1<<litBits + litSub
	distSize = 1<<distBits + distSub
)

// A literal/length entry says all the loop needs for one lookup:
//
//	bits 0..5    bits of input to consume
//	bits 8..10   number of literals to emit, 0 to 4
//	bits 16..31  length of a match (3..258), 0 for none, or an escape
//	bits 32..63  the literals, first one lowest; or the argument of the escape
//
// Up to four literals, or literals and a complete length, share one entry when
// their codes fit the index together.
const (
	escape    = 0x8000
	escEnd    = 0x9000 // end of block
	escSub    = 0xA000 // low nibble: width of a secondary table; argument: its start
	escLength = 0xB000 // low nibble: extra bits; argument: base length
	escBad    = 0xC000
	escMask   = 0xF000
)

// A distance entry:
//
//	bits 0..5    bits of input to consume, extra bits included
//	bits 8..13   code bits alone
//	bits 16..31  the extra bits, as a mask
//	bits 32..47  base
//	bit 63       escape: bit 62 invalid, else a secondary table (start in 32..47, width in 16..19)
const (
	distEscape = 1 << 63
	distBad    = 1<<63 | 1<<62
)

// codeTables are the constants of RFC 1951, section 3.2.5.
type codeTables struct {
	lengthBase  [29]uint16
	lengthExtra [29]uint8
	distBase    [30]uint16
	distExtra   [30]uint8
}

var rfc1951 = makeCodeTables()

// makeCodeTables computes them: base values follow from the extra bits.
func makeCodeTables() (t codeTables) {
	base := uint16(3)
	for i := range t.lengthBase {
		if i >= 8 && i < 28 {
			t.lengthExtra[i] = uint8(i/4 - 1)
		}
		t.lengthBase[i] = base
		base += 1 << t.lengthExtra[i]
	}
	t.lengthBase[28] = 258 // the last code is a length of its own
	base = 1
	for i := range t.distBase {
		if i >= 4 {
			t.distExtra[i] = uint8(i/2 - 1)
		}
		t.distBase[i] = base
		base += 1 << t.distExtra[i]
	}
	return t
}

// canonSym is a used symbol of a canonical Huffman code.
type canonSym struct {
	sym uint16
	len uint8
	rev uint16 // its code, first bit lowest
}

// canon assigns the canonical codes to the used symbols and returns them in the
// order of (length, symbol). ok is false for an over-subscribed code, full for
// an incomplete one.
func canon(lens []uint8, buf []canonSym) (syms []canonSym, full, ok bool) {
	var count, next, start [16]int
	for _, l := range lens {
		count[l&15]++
	}
	count[0] = 0
	space, code, pos := 0, 0, 0
	for l := 1; l <= 15; l++ {
		start[l] = pos
		pos += count[l]
		code = (code + count[l-1]) << 1
		next[l] = code
		space += count[l] << (15 - l)
	}
	if space > 1<<15 {
		return nil, false, false
	}
	syms = buf[:pos]
	for s, l := range lens {
		if l == 0 {
			continue
		}
		l &= 15
		syms[start[l]] = canonSym{uint16(s), l, bits.Reverse16(uint16(next[l])) >> (16 - l)}
		start[l]++
		next[l]++
	}
	return syms, space == 1<<15, true
}

func litEntry(sym uint16, l uint8) uint64 {
	switch {
	case sym < 256:
		return uint64(l) | 1<<8 | uint64(sym)<<32
	case sym == 256:
		return uint64(l) | escEnd<<16
	case sym > 285:
		return uint64(l) | escBad<<16
	}
	i := sym - 257
	base, extra := uint64(rfc1951.lengthBase[i]), uint64(rfc1951.lengthExtra[i])
	if extra == 0 {
		return uint64(l) | base<<16
	}
	return uint64(l) | (escLength|extra)<<16 | base<<32
}

// buildLit fills the literal/length table. A code without end-of-block, or
// incomplete with more than one symbol, is refused as other decoders do.
func (d *Decoder) buildLit(lens []uint8) bool {
	syms, full, ok := canon(lens, d.canon[:])
	if !ok || lens[256] == 0 || !full && len(syms) != 1 {
		return false
	}
	t := &d.lit
	if !full {
		for i := range t[:1<<litBits] {
			t[i] = 1 | escBad<<16
		}
	}
	k := 0
	for ; k < len(syms) && syms[k].len <= litBits; k++ {
		d.placeLit(syms[k])
	}
	if k < len(syms) && !subtables(syms[k:], t[:], litBits, litEntry, func(start, w int) uint64 {
		return litBits | (escSub|uint64(w))<<16 | uint64(start)<<32
	}) {
		return false
	}
	d.joinLits()
	return true
}

// placeLit enters a code that fits the primary table, its extra bits resolved
// where these fit too.
func (d *Decoder) placeLit(c canonSym) {
	t := &d.lit
	if c.sym > 264 && c.sym < 285 {
		x := rfc1951.lengthExtra[c.sym-257]
		if n := c.len + x; n <= litBits {
			base := uint64(rfc1951.lengthBase[c.sym-257])
			for v := uint64(0); v < 1<<x; v++ {
				e := uint64(n) | (base+v)<<16
				for i := uint64(c.rev) | v<<c.len; i < 1<<litBits; i += 1 << n {
					t[i] = e
				}
			}
			return
		}
	}
	e := litEntry(c.sym, c.len)
	for i := uint64(c.rev); i < 1<<litBits; i += 1 << c.len {
		t[i] = e
	}
}

// joinLits merges literals, and a resolved length behind them, that fit one
// index together. Going down keeps every entry that is looked at still single.
func (d *Decoder) joinLits() {
	t := &d.lit
	for i := 1<<litBits - 1; i >= 0; i-- {
		e := t[i]
		if e>>8&0xffffff != 1 { // one literal, no length
			continue
		}
		n := e & 63
		j := uint(i) >> n
		for {
			f := t[j&(1<<litBits-1)]
			fl := f & 63
			if n+fl > litBits || f>>16&escape != 0 {
				break
			}
			n += fl
			if f>>16&0xffff != 0 {
				e |= f & 0xffff0000
				break
			}
			count := e >> 8 & 7
			e += 1<<8 | (f>>32)<<(32+8*count)
			if count == 3 {
				break
			}
			j >>= fl
		}
		t[i] = e&^63 | n
	}
}

// subtables places the codes longer than the primary width. It reports false if
// they need more room than there is.
func subtables(syms []canonSym, t []uint64, width uint8, entry func(uint16, uint8) uint64, link func(start, w int) uint64) bool {
	next := 1 << width
	for a := 0; a < len(syms); {
		// codes of one prefix are adjacent in canonical order
		prefix := syms[a].rev & (1<<width - 1)
		b, longest := a, uint8(0)
		for b < len(syms) && syms[b].rev&(1<<width-1) == prefix {
			longest = max(longest, syms[b].len)
			b++
		}
		w := longest - width
		if next+1<<w > len(t) {
			return false
		}
		sub := t[next : next+1<<w]
		for ; a < b; a++ {
			l := syms[a].len - width
			e := entry(syms[a].sym, l)
			for i := uint(syms[a].rev) >> width; i < 1<<w; i += 1 << l {
				sub[i] = e
			}
		}
		t[prefix] = link(next, int(w))
		next += 1 << w
	}
	return true
}

func distEntry(sym uint16, l uint8) uint64 {
	if sym > 29 {
		return distBad | uint64(l)
	}
	x := rfc1951.distExtra[sym]
	return uint64(l+x) | uint64(l)<<8 | (1<<x-1)<<16 | uint64(rfc1951.distBase[sym])<<32
}

// buildDist fills the distance table. Incomplete is allowed only as no code at
// all or a single one of one bit.
func (d *Decoder) buildDist(lens []uint8) bool {
	syms, full, ok := canon(lens, d.canon[:])
	if !ok {
		return false
	}
	t := &d.dist
	if !full {
		if len(syms) > 1 || len(syms) == 1 && syms[0].len != 1 {
			return false
		}
		for i := range t[:1<<distBits] {
			t[i] = distBad
		}
	}
	k := 0
	for ; k < len(syms) && syms[k].len <= distBits; k++ {
		e := distEntry(syms[k].sym, syms[k].len)
		for i := uint64(syms[k].rev); i < 1<<distBits; i += 1 << syms[k].len {
			t[i] = e
		}
	}
	if k == len(syms) {
		return true
	}
	return subtables(syms[k:], t[:], distBits, distEntry, func(start, w int) uint64 {
		return distEscape | uint64(start)<<32 | uint64(w)<<16
	})
}
