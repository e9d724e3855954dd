package inflate

import (
	"errors"
	"fmt"
)

// ErrCheckpoint marks a checkpoint that does not fit the stream.
var ErrCheckpoint = errors.New("checkpoint does not fit the stream")

// Resume inflates the piece of size bytes that starts at a checkpoint. input
// holds the bytes of the file from the one that holds c.Bit on, up to the next
// checkpoint or more; window the packed window bytes; header the bytes
// that hold the block header, for InBlock. The result is valid until the next
// call. Any error is possible on wrong input, and wrong output: the caller
// compares digests.
func (d *Decoder) Resume(c Checkpoint, window, header, input []byte, size int) ([]byte, error) {
	if c.Hist < 0 || c.Hist > WindowSize || c.Bit < 0 || size < 0 {
		return nil, ErrCheckpoint
	}
	if n := WindowSize + size + OutputSlack; len(d.out) < n {
		d.out = make([]byte, n)
	}
	d.alone, d.op, d.hist = true, WindowSize, WindowSize-c.Hist
	d.inBlock, d.final, d.stored, d.left = false, false, false, 0
	d.logN, d.logOn = 0, true
	if c.Kind == InBlock {
		d.setInput(header, c.HeaderBit)
		if err := d.blockHeader(); err != nil {
			return nil, fmt.Errorf("%w: block header: %w", ErrCheckpoint, err)
		}
		if d.stored || d.headerLen != c.HeaderBits {
			return nil, fmt.Errorf("%w: block header", ErrCheckpoint)
		}
	}
	d.setInput(input, c.Bit)
	return d.resume(c.Kind == AtMember, window, size)
}

// setInput makes b the whole input. Its first byte holds the bit.
func (d *Decoder) setInput(b []byte, bit int64) {
	if cap(d.in) < len(b)+inputPad {
		d.in = make([]byte, len(b)+inputPad)
	}
	d.in = d.in[:len(b)+inputPad]
	clear(d.in[copy(d.in, b):])
	d.src, d.eof, d.iend = nil, true, len(b)
	d.base, d.ip, d.bits, d.nbits = bit>>3, 0, 0, 0
	d.refill()
	d.drop(uint(bit & 7))
}

// resume decodes in two phases: the first WindowSize bytes with the match log
// on, which tells where the window bytes belong; then, these repaired, the rest.
func (d *Decoder) resume(member bool, window []byte, size int) ([]byte, error) {
	end := WindowSize + size
	limit, repaired := min(2*WindowSize, end), false
	for {
		if member {
			if err := d.memberHeader(); err != nil {
				return nil, err
			}
			d.hist, member = d.op, false
		}
		if !d.inBlock {
			if err := d.blockHeader(); err != nil {
				return nil, err
			}
		}
		done, err := d.run(limit)
		if err != nil {
			return nil, err
		}
		if d.op >= limit && !repaired {
			if err := d.repair(window); err != nil {
				return nil, err
			}
			limit, repaired, d.logOn = end, true, false
		}
		if d.op >= end {
			return d.out[WindowSize:end], nil
		}
		if done && d.final {
			if _, _, err := d.memberTrailer(); err != nil {
				return nil, err
			}
			if ok, _ := d.more(); !ok {
				return nil, ErrTruncated
			}
			member = true
		}
	}
}

// repair puts the packed bytes where the matches logged so far read the window,
// and does these matches again.
func (d *Decoder) repair(packed []byte) error {
	var r refs
	log := d.log[:d.logN]
	r.mark(log, WindowSize)
	if !r.spread(packed, d.out[:WindowSize]) {
		return fmt.Errorf("%w: %d window bytes, %d used", ErrCheckpoint, len(packed), r.count())
	}
	for _, m := range log {
		op, dist, n := int(m>>32), int(uint16(m>>16)), int(uint16(m))
		if n <= dist {
			copy(d.out[op:op+n], d.out[op-dist:])
			continue
		}
		for i := op; i < op+n; i++ {
			d.out[i] = d.out[i-dist]
		}
	}
	return nil
}
