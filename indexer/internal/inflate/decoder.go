package inflate

import (
	"encoding/binary"
	"errors"
	"io"
)

var (
	// ErrCorrupt marks bytes that are not gzip, or damaged.
	ErrCorrupt = errors.New("corrupt gzip data")
	// ErrTruncated marks gzip data that ends too early.
	ErrTruncated = errors.New("gzip data ends too early")
)

const (
	// OutputSlack is how many bytes behind its limit the loop may write: at most
	// 12 literals and a match of 258 bytes, rounded up to its stride.
	OutputSlack = 512
	// inputPad is how many bytes behind the input's end the loop may read.
	inputPad = 64
	// inputReserve is what one step may consume without asking for more input: a
	// block header, a fixed part of a gzip header, a loop iteration.
	inputReserve = 1024
	// loopReserve is the most that one iteration of the loop consumes or peeks at.
	loopReserve = 48
)

// Decoder inflates. Input is read from a reader or set as a whole; output goes
// into out, at op. It is not safe for concurrent use.
type Decoder struct {
	lit  [litSize]uint64
	dist [distSize]uint64

	src    io.Reader
	onRead func([]byte) // sees every byte from src, in order
	in     []byte       // inputPad bytes longer than what it may hold
	ip     int          // next byte to load into the bit buffer
	iend   int          // end of the input held
	base   int64        // stream offset of in[0]
	eof    bool         // no input behind iend
	bits   uint64       // the bit buffer, next bit lowest
	nbits  uint         // bits in it

	out  []byte
	op   int
	hist int // oldest byte of out that a match may read

	log   []uint64 // matches: position<<32 | distance<<16 | length
	logN  int
	logOn bool

	inBlock   bool
	stored    bool // the block is a stored one
	left      int  // bytes left of it
	fixed     bool // the tables are those of the fixed codes
	final     bool // the block is the last of its member
	headerBit int64
	header    []byte // the bytes that hold the block's header
	headerLen int    // its length in bits
	alone     bool   // inflating a piece alone: what lies behind the limit does not count

	canon [320]canonSym
	lens  [320]uint8
}

// NewDecoder returns a decoder for Resume.
func NewDecoder() *Decoder { return &Decoder{} }

// newReader returns a decoder of a stream, with room for size bytes of input.
func newReader(r io.Reader, size int, onRead func([]byte)) *Decoder {
	return &Decoder{src: r, in: make([]byte, size+inputPad), onRead: onRead}
}

// bitPos is the position of the next unread bit in the stream.
func (d *Decoder) bitPos() int64 { return (d.base+int64(d.ip))<<3 - int64(d.nbits) }

// need makes n bytes available, or all there are.
func (d *Decoder) need(n int) error {
	for d.iend-d.ip < n && !d.eof {
		// Keep the bytes that the bit buffer holds: align steps back to them, and
		// a block header starts in the first.
		if from := d.ip - int(d.nbits+7)>>3; from > 0 {
			copy(d.in, d.in[from:d.iend])
			d.base += int64(from)
			d.iend -= from
			d.ip -= from
		}
		m, err := io.ReadFull(d.src, d.in[d.iend:len(d.in)-inputPad])
		if m > 0 {
			d.onRead(d.in[d.iend : d.iend+m])
		}
		d.iend += m
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			d.eof = true
			clear(d.in[d.iend : d.iend+inputPad])
		case err != nil:
			return err
		}
	}
	return nil
}

// overrun reports whether bits behind the end of input were consumed.
func (d *Decoder) overrun() bool { return d.ip-int(d.nbits>>3) > d.iend }

func (d *Decoder) refill() {
	d.bits |= binary.LittleEndian.Uint64(d.in[d.ip:]) << (d.nbits & 63)
	d.ip += int(63-d.nbits) >> 3
	d.nbits |= 56
}

func (d *Decoder) drop(n uint) { d.bits >>= n & 63; d.nbits -= n }

func (d *Decoder) take(n uint) uint {
	v := uint(d.bits) & (1<<n - 1)
	d.drop(n)
	return v
}

// align drops the rest of the current byte and empties the bit buffer.
func (d *Decoder) align() {
	d.drop(d.nbits & 7)
	d.ip -= int(d.nbits >> 3)
	d.bits, d.nbits = 0, 0
}

// bytes takes n bytes, n <= inputReserve, after aligning.
func (d *Decoder) bytes(n int) ([]byte, error) {
	d.align()
	if err := d.need(n); err != nil {
		return nil, err
	}
	if d.iend-d.ip < n {
		return nil, ErrTruncated
	}
	b := d.in[d.ip : d.ip+n]
	d.ip += n
	return b, nil
}

// more reports whether there is input left, after aligning.
func (d *Decoder) more() (bool, error) {
	d.align()
	err := d.need(1)
	return d.iend > d.ip, err
}

// blockHeader reads the header of the next block.
func (d *Decoder) blockHeader() error {
	if err := d.need(inputReserve); err != nil {
		return err
	}
	d.headerBit = d.bitPos()
	from := int(d.headerBit>>3 - d.base)
	d.refill()
	d.final = d.take(1) == 1
	kind := d.take(2)
	d.stored = kind == 0
	var err error
	switch kind {
	case 0:
		err = d.storedHeader()
	case 1:
		d.fixedHeader()
	case 2:
		err = d.dynamicHeader()
	default:
		err = ErrCorrupt
	}
	if err != nil {
		return err
	}
	d.inBlock = true
	d.headerLen = int(d.bitPos() - d.headerBit)
	to := min(from+(int(d.headerBit&7)+d.headerLen+7)/8, d.iend)
	d.header = append(d.header[:0], d.in[min(from, to):to]...)
	return nil
}

func (d *Decoder) storedHeader() error {
	d.align()
	if d.iend-d.ip < 4 {
		return ErrTruncated
	}
	n := binary.LittleEndian.Uint32(d.in[d.ip:])
	d.ip += 4
	if n>>16 != ^n&0xffff {
		return ErrCorrupt
	}
	d.left = int(n & 0xffff)
	return nil
}

// fixedHeader sets up the fixed codes, unless they are: a file of many tiny
// blocks would cost more tables than data.
func (d *Decoder) fixedHeader() {
	if d.fixed {
		return
	}
	d.fixed = true
	for i := range d.lens[:288] {
		switch {
		case i < 144:
			d.lens[i] = 8
		case i < 256:
			d.lens[i] = 9
		case i < 280:
			d.lens[i] = 7
		default:
			d.lens[i] = 8
		}
	}
	d.buildLit(d.lens[:288])
	for i := range 32 {
		d.lens[i] = 5
	}
	d.buildDist(d.lens[:32])
}

func (d *Decoder) dynamicHeader() error {
	d.fixed = false
	nl := d.take(5) + 257
	nd := d.take(5) + 1
	nc := d.take(4) + 4
	if nl > 286 || nd > 30 {
		return ErrCorrupt
	}
	order := [19]uint8{16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15}
	var cl [19]uint8
	for i := range nc {
		if i&7 == 0 {
			d.refill()
		}
		cl[order[i]] = uint8(d.take(3))
	}
	syms, full, ok := canon(cl[:], d.canon[:])
	if !ok || !full && len(syms) != 1 {
		return ErrCorrupt
	}
	var table [128]uint8 // length<<5 | symbol; 0 is invalid, as no length is 0
	for _, c := range syms {
		for i := uint(c.rev); i < 128; i += 1 << c.len {
			table[i] = c.len<<5 | uint8(c.sym)
		}
	}
	if err := d.codeLengths(&table, nl+nd); err != nil {
		return err
	}
	if !d.buildLit(d.lens[:nl]) || !d.buildDist(d.lens[nl:nl+nd]) {
		return ErrCorrupt
	}
	return nil
}

// codeLengths reads n code lengths into lens.
func (d *Decoder) codeLengths(table *[128]uint8, n uint) error {
	for i := uint(0); i < n; {
		d.refill()
		e := table[d.bits&127]
		if e == 0 {
			return ErrCorrupt
		}
		d.drop(uint(e >> 5))
		s := e & 31
		if s < 16 {
			d.lens[i] = s
			i++
			continue
		}
		var repeat uint
		var v uint8
		switch s {
		case 16:
			if i == 0 {
				return ErrCorrupt
			}
			v = d.lens[i-1]
			repeat = 3 + d.take(2)
		case 17:
			repeat = 3 + d.take(3)
		default:
			repeat = 11 + d.take(7)
		}
		if i+repeat > n {
			return ErrCorrupt
		}
		for ; repeat > 0; repeat-- {
			d.lens[i] = v
			i++
		}
	}
	if d.overrun() {
		return ErrTruncated
	}
	return nil
}

// run decodes inside the current block until it ends (true) or op reaches limit
// or a little more (false).
func (d *Decoder) run(limit int) (end bool, err error) {
	if limit+OutputSlack > len(d.out) || d.hist < 0 || d.hist > d.op {
		return false, errors.New("inflate: output buffer does not fit") // a bug of this package
	}
	if d.stored {
		return d.runStored(limit)
	}
	if d.logOn {
		// a match makes 3 bytes or more
		if n := d.logN + max(limit-d.op, 0)/3 + 2; n > len(d.log) {
			d.log = append(d.log, make([]uint64, n-len(d.log))...)
		}
	} else if d.logN == len(d.log) {
		d.log = append(d.log, 0) // the loop writes a scratch entry
	}
	for {
		if err := d.need(inputReserve); err != nil {
			return false, err
		}
		inLimit := d.iend - loopReserve
		if d.eof {
			inLimit = d.iend + 8
		}
		st := d.loop(inLimit, limit)
		switch {
		case d.alone && d.op >= limit:
			// What the iteration decoded behind the limit is padding or the next
			// piece, and its errors do not count.
			d.inBlock = st != stEnd
			return st == stEnd, nil
		case d.eof && d.overrun():
			return false, ErrTruncated
		case st == stEnd:
			d.inBlock = false
			return true, nil
		case st == stOutput:
			return false, nil
		case st == stBad:
			return false, ErrCorrupt
		case d.eof && d.ip >= inLimit:
			return false, ErrTruncated
		}
	}
}

func (d *Decoder) runStored(limit int) (end bool, err error) {
	for d.left > 0 && d.op < limit {
		if err := d.need(1); err != nil {
			return false, err
		}
		n := copy(d.out[d.op:limit], d.in[d.ip:max(d.ip, min(d.iend, d.ip+d.left))])
		if n == 0 {
			return false, ErrTruncated
		}
		d.ip += n
		d.op += n
		d.left -= n
	}
	if d.left == 0 {
		d.inBlock = false
	}
	return d.left == 0, nil
}
