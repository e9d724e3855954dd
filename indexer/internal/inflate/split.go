package inflate

import (
	"bytes"
	"errors"
	"fmt"
	"io"
)

var (
	// ErrTrailing marks bytes behind the last gzip member.
	ErrTrailing = errors.New("trailing data after the gzip stream")
	// ErrNoOutput marks a stretch of the file that takes too much room for what
	// it holds.
	ErrNoOutput = errors.New("too many compressed bytes without a place to cut")
)

// MinSpacing is the least distance of cuts: what is carried over a cut must end
// before the zone where the next is sought begins.
const MinSpacing = 160 << 10

// inputBuffer is how much of the file is read at a time.
const inputBuffer = 256 << 10

// Buffer is the memory of one piece. Whoever gets a piece gives its buffer back
// when done.
type Buffer struct {
	out        []byte
	compressed []byte
}

// MemberEnd is the end of a gzip member: where, and what its trailer says of it.
type MemberEnd struct {
	Offset int64  // in the output
	Sum    uint32 // CRC-32 of the member's output
	Size   uint32 // modulo 2^32
}

// Piece is a run of the output that can be inflated alone.
type Piece struct {
	Checkpoint
	Window []byte // packed
	Header []byte // InBlock: the bytes that hold the block header

	Offset int64
	Data   []byte // in Buffer
	// Compressed is the part of the file from the byte that holds the checkpoint
	// to the byte that holds the last bit of the piece; in Buffer.
	Compressed       []byte
	CompressedOffset int64
	Ends             []MemberEnd // of the members that end in or at the end of this piece

	Buffer *Buffer
}

// Splitter cuts a gzip file into pieces.
type Splitter struct {
	Spacing       int // aimed-at size of a piece, at least MinSpacing
	MaxCompressed int // most bytes of the file that a piece may take

	// OnRead sees every byte of the file in order, also those of an attempt that
	// fails later.
	OnRead func([]byte)
	// Get returns a free buffer; it may wait for one.
	Get func() (*Buffer, error)
	// Emit takes the next piece. Its buffer is Emit's from then on.
	Emit func(Piece) error
}

// split is the state of a run. Positions are indexes of the decoder's output
// buffer, where the current piece starts at WindowSize.
type split struct {
	*Splitter
	d          *Decoder
	buf        *Buffer
	lo, hi     int // cuts are sought between them
	cur        Checkpoint
	curHeader  []byte
	curWindow  []byte
	base       int64 // output offset of WindowSize
	cands      []candidate
	pending    []byte // the file from pendingOff on, as far as read
	pendingOff int64
	ends       []MemberEnd
}

type candidate struct {
	Checkpoint
	op     int
	header []byte
}

// size of an output buffer: a window, the longest piece, a window read ahead.
func (s *split) size() int { return s.hi + OutputSlack + WindowSize + OutputSlack }

// Run reads the file from r and emits its pieces: none for a file without
// output. It fails with ErrCorrupt, ErrTruncated, ErrTrailing, ErrNoOutput, or
// what r, Get and Emit return.
func (sp *Splitter) Run(r io.Reader) error {
	if sp.Spacing < MinSpacing {
		return fmt.Errorf("spacing %d is less than %d", sp.Spacing, MinSpacing)
	}
	s := &split{
		Splitter: sp,
		lo:       WindowSize + sp.Spacing*3/4,
		hi:       WindowSize + sp.Spacing*5/4,
	}
	s.d = newReader(r, inputBuffer, func(p []byte) {
		sp.OnRead(p)
		s.pending = append(s.pending, p...)
	})
	s.d.op, s.d.hist = WindowSize, WindowSize
	var err error
	if s.buf, err = s.buffer(); err != nil {
		return err
	}
	s.d.out = s.buf.out
	for {
		more, err := s.member()
		if err != nil {
			return err
		}
		if !more {
			break
		}
		s.note(Checkpoint{Kind: AtMember, Bit: s.d.bitPos()})
	}
	return s.finish()
}

// member reads one gzip member and reports whether another follows.
func (s *split) member() (more bool, err error) {
	start := s.d.bitPos() >> 3
	if err := s.d.memberHeader(); err != nil {
		if start > 0 && errors.Is(err, ErrCorrupt) {
			return false, fmt.Errorf("%w at offset %d", ErrTrailing, start)
		}
		return false, err
	}
	s.d.hist = s.d.op
	for last := false; !last; {
		if err := s.d.blockHeader(); err != nil {
			return false, err
		}
		if err := s.block(); err != nil {
			return false, err
		}
		last = s.d.final
	}
	sum, size, err := s.d.memberTrailer()
	if err != nil {
		return false, err
	}
	s.ends = append(s.ends, MemberEnd{s.offset(s.d.op), sum, size})
	more, err = s.d.more()
	if err == nil {
		err = s.checkPending()
	}
	return more, err
}

// block decodes the rest of a block, noting where it could be cut and cutting.
func (s *split) block() error {
	d := s.d
	for {
		// In stages: up to the zone without a log, through it, and as far
		// behind the last candidate as matches may read its window.
		limit := s.lo
		switch {
		case d.op >= s.hi && len(s.cands) > 0:
			limit = s.cands[len(s.cands)-1].op + WindowSize
		case d.op >= s.lo:
			limit = s.hi
		}
		d.logOn = d.op >= s.lo
		end, err := d.run(max(limit, d.op))
		if err != nil {
			return err
		}
		switch {
		case end && !d.final:
			s.note(Checkpoint{Kind: AtBlock, Bit: d.bitPos()})
		case !end && d.op >= s.hi && len(s.cands) == 0 && !d.stored:
			// A block longer than the zone. Stored ones are shorter than it.
			s.note(Checkpoint{Kind: InBlock, Bit: d.bitPos(), HeaderBit: d.headerBit, HeaderBits: d.headerLen})
		}
		if err := s.checkPending(); err != nil {
			return err
		}
		if n := len(s.cands); n > 0 && d.op >= s.hi && d.op >= s.cands[n-1].op+WindowSize {
			if err := s.cut(); err != nil {
				return err
			}
		}
		if end {
			return nil
		}
	}
}

// checkPending bounds the memory that a file without output could take.
func (s *split) checkPending() error {
	if n := s.d.bitPos()>>3 - s.pendingOff; n > int64(s.MaxCompressed) {
		return fmt.Errorf("%w: %d bytes from offset %d on", ErrNoOutput, n, s.pendingOff)
	}
	return nil
}

// note remembers the present position as a place to cut, if it lies in the zone
// or nothing in the zone was found. Places close to each other are not worth
// their cost, except the start of a member, which needs no window.
func (s *split) note(c Checkpoint) {
	op, n := s.d.op, len(s.cands)
	if op < s.lo || op > s.hi && n > 0 {
		return
	}
	if n > 0 {
		last := s.cands[n-1]
		if last.Kind == AtMember && c.Kind == AtMember || c.Kind != AtMember && op-last.op < (s.hi-s.lo)/64 {
			return
		}
	}
	k := candidate{Checkpoint: c, op: op}
	if c.Kind != AtMember {
		k.Hist = min(WindowSize, op-s.d.hist)
	}
	if c.Kind == InBlock {
		k.header = bytes.Clone(s.d.header)
	}
	s.cands = append(s.cands, k)
}

// cut ends the piece at the candidate with the smallest window and starts the
// next one there.
func (s *split) cut() error {
	d := s.d
	var best candidate
	var window refs
	least := WindowSize + 1
	for _, c := range s.cands {
		var r refs
		if c.Kind != AtMember {
			r.mark(d.log[:d.logN], c.op)
		}
		if n := r.count(); n < least {
			best, window, least = c, r, n
		}
	}
	packed := window.pack(d.out[best.op-WindowSize : best.op])
	next, err := s.buffer()
	if err != nil {
		return err
	}
	shift := best.op - WindowSize
	copy(next.out, d.out[shift:d.op])
	p, err := s.piece(best.Checkpoint, best.op)
	if err != nil {
		return err
	}
	s.cur, s.curWindow, s.curHeader = best.Checkpoint, packed, best.header
	s.buf, d.out = next, next.out
	d.op -= shift
	d.hist = max(d.hist-shift, 0)
	s.base += int64(shift)
	s.cands = s.cands[:0]
	d.logN, d.logOn = 0, false
	return s.Emit(p)
}

// finish emits the last piece.
func (s *split) finish() error {
	if s.d.op == WindowSize {
		return nil // a file without output
	}
	p, err := s.piece(Checkpoint{Bit: s.d.bitPos()}, s.d.op)
	if err != nil {
		return err
	}
	return s.Emit(p)
}

// piece describes the current piece, which ends at op and next, and drops the
// bytes of the file that belong to it alone.
func (s *split) piece(next Checkpoint, op int) (Piece, error) {
	from, to := s.cur.Bit>>3, (next.Bit+7)>>3
	if n := to - from; n > int64(s.MaxCompressed) {
		return Piece{}, fmt.Errorf("%w: %d bytes from offset %d on", ErrNoOutput, n, from)
	}
	s.buf.compressed = append(s.buf.compressed[:0], s.pending[from-s.pendingOff:to-s.pendingOff]...)
	end := s.offset(op)
	k := 0
	for k < len(s.ends) && s.ends[k].Offset <= end {
		k++
	}
	p := Piece{
		Checkpoint: s.cur, Window: s.curWindow, Header: s.curHeader,
		Offset: s.base, Data: s.d.out[WindowSize:op],
		Compressed: s.buf.compressed, CompressedOffset: from,
		Ends: s.ends[:k:k], Buffer: s.buf,
	}
	s.ends = append([]MemberEnd(nil), s.ends[k:]...)
	keep := next.Bit>>3 - s.pendingOff
	s.pending = s.pending[:copy(s.pending, s.pending[keep:])]
	s.pendingOff += keep
	return p, nil
}

func (s *split) offset(op int) int64 { return s.base + int64(op-WindowSize) }

// buffer returns a free buffer that is large enough.
func (s *split) buffer() (*Buffer, error) {
	b, err := s.Get()
	if err == nil && len(b.out) < s.size() {
		b.out = make([]byte, s.size())
	}
	return b, err
}
