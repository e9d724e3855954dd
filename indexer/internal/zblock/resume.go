package zblock

import "fmt"

// Decoder decodes pieces. It keeps its memory from one piece to the next.
type Decoder struct {
	d   decoder
	buf []byte // the piece's compressed bytes, padded
}

// NewDecoder returns a decoder.
func NewDecoder() *Decoder { return &Decoder{d: newDecoder()} }

// Resume decodes a piece of size bytes; the result is valid until the next call.
// The prime is empty if the piece starts with a frame. compressed ends anywhere
// between two blocks or frames.
func (r *Decoder) Resume(prime, compressed []byte, size int) ([]byte, error) {
	d := &r.d
	if need := size + maxBlock + slack; len(d.out) < need {
		d.out = make([]byte, need)
	}
	r.buf = append(append(r.buf[:0], compressed...), make([]byte, bitsPad)...)
	in := r.buf[:len(compressed)]
	d.pos, d.low, d.window = 0, 0, 1<<maxOffset
	nothing := func([]byte, int) error { return fmt.Errorf("%w: %w", ErrCorrupt, errOffset) }
	d.before = nothing
	p := piece{decoder: d, in: in, size: size}
	if len(prime) > 0 {
		runs, bytes, checksum, err := d.unpack(prime)
		if err != nil {
			return nil, err
		}
		d.before = func(dst []byte, back int) error { return find(runs, bytes, dst, back) }
		if err := p.blocks(frame{window: maxBlock, checksum: checksum}); err != nil {
			return nil, err
		}
		d.before = nothing
	}
	for len(p.in) > 0 {
		if err := p.frame(); err != nil {
			return nil, err
		}
	}
	if d.pos != size {
		return nil, fmt.Errorf("%w: %d bytes, not %d", ErrCorrupt, d.pos, size)
	}
	return d.out[:size], nil
}

// piece is the input of a Resume.
type piece struct {
	*decoder
	in   []byte
	size int
}

// take returns the next n bytes.
func (p *piece) take(n int) ([]byte, error) {
	if n > len(p.in) {
		return nil, ErrTruncated
	}
	b := p.in[:n]
	p.in = p.in[n:]
	return b, nil
}

func (p *piece) frame() error {
	if len(p.in) < 8 {
		return ErrTruncated
	}
	if Skippable(p.in) {
		_, err := p.take(8 + skipSize(p.in))
		return err
	}
	if !Frame(p.in) {
		return ErrTrailing
	}
	b, err := p.take(headerSize(p.in))
	if err != nil {
		return err
	}
	f, err := parseFrame(b)
	if err != nil {
		return err
	}
	p.startFrame()
	p.low = p.pos
	return p.blocks(f)
}

// blocks decodes up to the end of the frame or of the piece.
func (p *piece) blocks(f frame) error {
	limit := int(min(f.window, maxBlock))
	for last := false; !last; {
		if len(p.in) == 0 {
			return nil
		}
		h, err := p.take(blockHeader)
		if err != nil {
			return err
		}
		b, err := parseBlock(h, limit)
		if err != nil {
			return err
		}
		in, err := p.take(b.size)
		if err != nil {
			return err
		}
		if err := p.block(b, in, limit); err != nil {
			return err
		}
		if p.pos > p.size {
			return fmt.Errorf("%w: more than %d bytes", ErrCorrupt, p.size)
		}
		last = b.last
	}
	if !f.checksum {
		return nil
	}
	_, err := p.take(checksum)
	return err
}
