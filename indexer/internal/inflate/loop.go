package inflate

import (
	"encoding/binary"
	"unsafe"
)

// status is why the loop stopped.
type status int

const (
	stInput  status = iota // ip reached the input limit
	stEnd                  // end of block
	stOutput               // op reached the output limit
	stBad                  // invalid code or distance
)

func load64(p unsafe.Pointer, o int) uint64 {
	return binary.LittleEndian.Uint64((*[8]byte)(unsafe.Add(p, o))[:])
}

func store64(p unsafe.Pointer, o int, v uint64) {
	binary.LittleEndian.PutUint64((*[8]byte)(unsafe.Add(p, o))[:], v)
}

func store32(p unsafe.Pointer, o int, v uint32) {
	binary.LittleEndian.PutUint32((*[4]byte)(unsafe.Add(p, o))[:], v)
}

func copy16(p unsafe.Pointer, d, s int) {
	*(*[16]byte)(unsafe.Add(p, d)) = *(*[16]byte)(unsafe.Add(p, s))
}

// loop decodes symbols. It is one long function on purpose: its state lives in
// registers, and a third of the indexer's time is spent here. An iteration
// consumes up to three literal lookups and a match; limits are checked once in
// each. Every match is written to the log; when the log is off, over and over
// into the same slot, which is cheaper than a branch. The package comment says
// why the unchecked accesses are in bounds.
//
//nolint:funlen,gocyclo,gocognit // see above
func (d *Decoder) loop(inLimit, outLimit int) (st status) {
	in := unsafe.Pointer(unsafe.SliceData(d.in))
	out := unsafe.Pointer(unsafe.SliceData(d.out))
	log := unsafe.Pointer(unsafe.SliceData(d.log))
	logN, logStep := d.logN, 0
	if d.logOn {
		logStep = 1
	}
	ip, op := d.ip, d.op
	bb, bc := d.bits, d.nbits
	hist := d.hist
	for {
		if ip >= inLimit {
			st = stInput
			break
		}
		if op >= outLimit {
			st = stOutput
			break
		}
		bb |= load64(in, ip) << (bc & 63)
		ip += int(63-bc) >> 3
		bc |= 56

		e := d.lit[bb&(1<<litBits-1)]
		bb >>= e & 63
		bc -= uint(e) & 63
		store32(out, op, uint32(e>>32))
		op += int(e>>8) & 7
		length := int(uint16(e >> 16))
		if length == 0 {
			e = d.lit[bb&(1<<litBits-1)]
			bb >>= e & 63
			bc -= uint(e) & 63
			store32(out, op, uint32(e>>32))
			op += int(e>>8) & 7
			length = int(uint16(e >> 16))
			if length == 0 {
				e = d.lit[bb&(1<<litBits-1)]
				bb >>= e & 63
				bc -= uint(e) & 63
				store32(out, op, uint32(e>>32))
				op += int(e>>8) & 7
				length = int(uint16(e >> 16))
				if length == 0 {
					continue
				}
				bb |= load64(in, ip) << (bc & 63)
				ip += int(63-bc) >> 3
				bc |= 56
			}
		}
		if length >= escape {
			if length&escMask == escSub {
				e = d.lit[(uint(e>>32)+uint(bb)&(1<<(uint(length)&15)-1))%litSize]
				bb >>= e & 63
				bc -= uint(e) & 63
				length = int(uint16(e >> 16))
				if length == 0 {
					*(*byte)(unsafe.Add(out, op)) = byte(e >> 32)
					op++
					continue
				}
			}
			if length >= escape {
				if length&escMask == escEnd {
					st = stEnd
					break
				}
				if length&escMask != escLength {
					st = stBad
					break
				}
				x := uint(length) & 15
				length = int(e>>32) + int(bb&(1<<x-1))
				bb >>= x
				bc -= x
			}
			bb |= load64(in, ip) << (bc & 63)
			ip += int(63-bc) >> 3
			bc |= 56
		}
		f := d.dist[bb&(1<<distBits-1)]
		if int64(f) < 0 {
			if f&(1<<62) != 0 {
				st = stBad
				break
			}
			bb >>= distBits
			bc -= distBits
			f = d.dist[(uint(f>>32)&0xffff+uint(bb)&(1<<(uint(f>>16)&15)-1))%distSize]
			if int64(f) < 0 {
				st = stBad
				break
			}
		}
		dist := int(f>>32) + int((bb>>(f>>8&63))&(f>>16&0xffff))
		bb >>= f & 63
		bc -= uint(f) & 63
		src := op - dist
		if src < hist {
			st = stBad
			break
		}
		store64(log, logN<<3, uint64(op)<<32|uint64(uint32(dist<<16))|uint64(length))
		logN += logStep
		end := op + length
		switch {
		case dist >= 16:
			copy16(out, op, src)
			if length > 16 {
				copy16(out, op+16, src+16)
				for op += 32; op < end; op += 16 {
					src += 16
					copy16(out, op, src+16)
				}
			}
		case dist >= 8:
			for {
				store64(out, op, load64(out, src))
				op += 8
				src += 8
				if op >= end {
					break
				}
			}
		case dist == 1:
			v := uint64(*(*byte)(unsafe.Add(out, src))) * 0x0101010101010101
			for {
				store64(out, op, v)
				store64(out, op+8, v)
				op += 16
				if op >= end {
					break
				}
			}
		default: // 2..7: widen the period to 8 or more, then copy by words
			for i := range 8 {
				*(*byte)(unsafe.Add(out, op+i)) = *(*byte)(unsafe.Add(out, src+i))
			}
			if length > 8 {
				step := 8 - 8%dist
				for op += step; op < end; op += step {
					store64(out, op, load64(out, op-step))
				}
			}
		}
		op = end
	}
	d.ip, d.op = ip, op
	d.bits, d.nbits = bb, bc
	d.logN = logN
	return st
}
