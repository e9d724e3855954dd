package zblock

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/cespare/xxhash/v2"
)

// ErrNoOutput marks a stretch of the file that takes too much room for what it
// holds.
var ErrNoOutput = errors.New("too many compressed bytes without a place to cut")

// Buffer is the memory of one piece. Whoever gets a piece gives its buffer back
// when done.
type Buffer struct{ data, compressed []byte }

// Piece is a run of the output that can be decoded alone.
type Piece struct {
	Prime            []byte // empty at the start of a frame
	Offset           int64
	Data             []byte // in Buffer
	Compressed       []byte // in Buffer
	CompressedOffset int64
	Buffer           *Buffer
}

// Splitter cuts a zstd file into pieces.
type Splitter struct {
	// Spacing is the aimed-at size of a piece; a cut at a frame may come at half
	// of it. It is MaxSpacing while primes take more than 1/PrimeShare of the
	// file so far, as they do where matches reach far.
	Spacing, MaxSpacing int
	PrimeShare          int64
	MaxCompressed       int   // most bytes of the file that a piece may take
	MaxWindow           int64 // most memory a frame may ask for

	// OnRead sees every byte of the file in order, also those of an attempt that
	// fails later.
	OnRead func([]byte)
	// Get returns a free buffer; it may wait for one.
	Get func() (*Buffer, error)
	// Emit takes the next piece. Its buffer is Emit's from then on.
	Emit func(Piece) error
}

// maxFree bounds how much room a splitter has beyond what it must keep.
const maxFree = 32 << 20

// split is the state of a run.
type split struct {
	*Splitter
	r io.Reader
	d decoder

	base  int64 // output offset of d.out[0]
	start int   // of the piece, in d.out
	reach int   // how far before it the prime may read
	state *state
	reads []uint64 // of the piece, before its start

	pending    []byte // the file from pendingOff, where the piece starts
	pendingOff int64
	content    int  // end in pending of what brought output
	dropped    bool // pending lacks the end of a skippable frame

	primed     int64 // size of all primes
	frameStart int64 // in the output
	limit      int   // of a block
	sum        *xxhash.Digest
}

// Run reads the file from r and emits its pieces: none for a file without
// output. It fails with ErrCorrupt, ErrTruncated, ErrTrailing, ErrRefused,
// ErrNoOutput, or what r, Get and Emit return.
func (sp *Splitter) Run(r io.Reader) error {
	s := &split{Splitter: sp, r: r, d: newDecoder(), sum: xxhash.New()}
	s.d.before = s.before
	for {
		if s.size() > 0 && len(s.pending)+maxFrameHeader > s.MaxCompressed {
			if err := s.cut(len(s.pending)); err != nil {
				return err
			}
		}
		n := len(s.pending)
		if err := s.fetch(5); err != nil {
			if errors.Is(err, ErrTruncated) && len(s.pending) == n && s.pendingOff+int64(n) > 0 {
				break
			}
			return err
		}
		if err := s.frame(s.pending[n:]); err != nil {
			return err
		}
	}
	if s.size() == 0 {
		return nil
	}
	return s.cut(s.content)
}

// spacing is how large the present piece should become.
func (s *split) spacing() int {
	if s.primed*s.PrimeShare > s.pendingOff {
		return s.MaxSpacing
	}
	return s.Spacing
}

func (s *split) size() int { return s.d.pos - s.start }

// fetch appends n bytes of the file to pending.
func (s *split) fetch(n int) error {
	k := len(s.pending)
	if k+n > s.MaxCompressed {
		return fmt.Errorf("%w: more than %d bytes from offset %d on", ErrNoOutput, s.MaxCompressed, s.pendingOff)
	}
	if cap(s.pending) < k+n+bitsPad {
		p := make([]byte, k, 2*(k+n)+bitsPad+maxBlock)
		copy(p, s.pending)
		s.pending = p
	}
	m, err := io.ReadFull(s.r, s.pending[k:k+n])
	s.pending = s.pending[:k+m]
	s.OnRead(s.pending[k:])
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return ErrTruncated
	}
	return err
}

// frame reads the frame whose first bytes are the last ones of pending.
func (s *split) frame(head []byte) error {
	at := len(s.pending) - len(head)
	switch {
	case Skippable(head):
		return s.skip(at)
	case s.dropped:
		return fmt.Errorf("%w: a skippable frame at offset %d", ErrNoOutput, s.pendingOff)
	case !Frame(head) && s.pendingOff+int64(at) > 0:
		return fmt.Errorf("%w at offset %d", ErrTrailing, s.pendingOff+int64(at))
	case !Frame(head):
		return fmt.Errorf("%w: no frame", ErrCorrupt)
	}
	if err := s.fetch(headerSize(head) - len(head)); err != nil {
		return err
	}
	f, err := parseFrame(s.pending[at:])
	if err != nil {
		return err
	}
	if f.window > s.MaxWindow {
		return fmt.Errorf("%w: a window of %d bytes, at most %d are supported", ErrRefused, f.window, s.MaxWindow)
	}
	if s.size() >= s.Spacing/2 || s.size() > 0 && at > s.MaxCompressed/2 {
		if err := s.cut(at); err != nil {
			return err
		}
	}
	s.d.startFrame()
	s.d.window, s.d.low = int(f.window), s.d.pos
	s.frameStart = s.base + int64(s.d.pos)
	s.limit = int(min(f.window, maxBlock))
	s.sum.Reset()
	if err := s.blocks(f); err != nil {
		return err
	}
	if s.size() > 0 {
		s.content = len(s.pending)
	}
	if n := s.base + int64(s.d.pos) - s.frameStart; f.size >= 0 && f.size != n {
		return fmt.Errorf("%w: a frame of %d bytes has %d", ErrCorrupt, f.size, n)
	}
	return nil
}

// skip reads the skippable frame whose first five bytes are at the end of
// pending. One that is too large for a piece is not kept, and must be the last
// but for others of its kind: zstd:chunked has its table of contents there.
func (s *split) skip(at int) error {
	if err := s.fetch(3); err != nil {
		return err
	}
	size := skipSize(s.pending[at:])
	if s.size() > 0 && len(s.pending)+size > s.MaxCompressed {
		if err := s.cut(at); err != nil {
			return err
		}
	}
	if !s.dropped && len(s.pending)+size <= s.MaxCompressed {
		return s.fetch(size)
	}
	s.dropped = true
	for size > 0 {
		s.pending = s.pending[:0]
		n := min(size, maxBlock)
		if err := s.fetch(n); err != nil {
			return err
		}
		s.pendingOff += int64(n)
		size -= n
	}
	s.pending = s.pending[:0]
	return nil
}

// blocks reads the blocks of a frame, cutting between them, and its checksum.
func (s *split) blocks(f frame) error {
	for last := false; !last; {
		at := len(s.pending)
		if err := s.fetch(blockHeader); err != nil {
			return err
		}
		b, err := parseBlock(s.pending[at:], s.limit)
		if err != nil {
			return err
		}
		full := at+b.size+maxFrameHeader > s.MaxCompressed
		if s.size() >= s.spacing() || s.size() > 0 && full {
			if err := s.cut(at); err != nil {
				return err
			}
			s.state, s.reach = s.d.state(f.checksum), s.d.window
			at = 0
		}
		if err := s.fetch(b.size); err != nil {
			return err
		}
		s.room()
		from := s.d.pos
		if err := s.d.block(b, s.pending[at+blockHeader:], s.limit); err != nil {
			return err
		}
		if f.checksum {
			_, _ = s.sum.Write(s.d.out[from:s.d.pos]) // never fails
		}
		last = b.last
	}
	if !f.checksum {
		return nil
	}
	at := len(s.pending)
	if err := s.fetch(checksum); err != nil {
		return err
	}
	if uint64(binary.LittleEndian.Uint32(s.pending[at:])) != s.sum.Sum64()&math.MaxUint32 {
		return fmt.Errorf("%w: checksum of the frame that ends at offset %d", ErrCorrupt, s.pendingOff+int64(at))
	}
	return nil
}

// before serves matches that read what comes before the piece.
func (s *split) before(dst []byte, back int) error {
	src := s.d.low - back
	if src < 0 || s.base+int64(src) < s.frameStart {
		return fmt.Errorf("%w: %w", ErrCorrupt, errOffset)
	}
	s.reads = append(s.reads, read(back, len(dst)))
	copy(dst, s.d.out[src:])
	return nil
}

// room makes space for a block. What the window of the piece's start holds stays,
// for the prime is made at the piece's end.
func (s *split) room() {
	d := &s.d
	if d.pos+maxBlock+slack <= len(d.out) {
		return
	}
	keep := max(min(s.start-s.reach, d.pos-d.window), 0)
	held := d.pos - keep
	out := d.out
	// As much as is kept is free, so that a byte moves once or so; less of it
	// where that is much. Growing by doubling keeps small layers cheap whatever
	// window they ask for.
	most := max(d.window, s.reach) + 2*s.MaxSpacing + 4*maxBlock
	most += min(most, maxFree)
	if free := len(out) - held; free < min(held, maxFree) && len(out) < most || free < maxBlock+slack {
		out = make([]byte, min(most, 2*held+s.MaxSpacing+4*maxBlock))
	}
	copy(out, d.out[keep:d.pos])
	d.out = out
	d.pos -= keep
	d.low -= keep
	s.start -= keep
	s.base += int64(keep)
}

// cut ends the piece at the present output and byte at of pending.
func (s *split) cut(at int) error {
	b, err := s.Get()
	if err != nil {
		return err
	}
	p := Piece{Offset: s.base + int64(s.start), CompressedOffset: s.pendingOff, Buffer: b}
	b.data = append(b.data[:0], s.d.out[s.start:s.d.pos]...)
	b.compressed = append(b.compressed[:0], s.pending[:at]...)
	p.Data, p.Compressed = b.data, b.compressed
	if s.state != nil {
		p.Prime = s.state.pack(s.d.inherited, s.reads, s.d.out, s.start)
		s.primed += int64(len(p.Prime))
	}
	s.pending = s.pending[:copy(s.pending, s.pending[at:])]
	s.pendingOff += int64(at)
	s.content, s.reach = 0, 0
	s.start, s.d.low = s.d.pos, s.d.pos
	s.state, s.reads, s.d.inherited, s.d.fresh = nil, s.reads[:0], 0, 0
	return s.Emit(p)
}
