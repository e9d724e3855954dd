package zblock

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sort"
)

// ErrPrime marks a prime that no splitter makes.
var ErrPrime = fmt.Errorf("invalid prime")

// checksumBit of a prime's first byte says that the frame ends with a checksum;
// the lower ones say which tables follow.
const checksumBit = 1 << (kinds + 1)

// run is a stretch of the window that a piece reads.
type run struct {
	back int32 // distance of its first byte from the start of the piece
	n    int32
	at   int32 // where its bytes are
}

// state is what a decoder knows at a cut, other than the window.
type state struct {
	modes    [kinds]uint8
	desc     [kinds][]byte
	tree     []byte
	reps     [3]uint32
	checksum bool
}

func (d *decoder) state(checksum bool) *state {
	s := &state{tree: slices.Clone(d.tree), reps: d.reps, checksum: checksum}
	for k := range kinds {
		s.modes[k], s.desc[k] = d.tables[k].mode, slices.Clone(d.tables[k].desc)
	}
	return s
}

// pack makes the prime of a piece: of the tables only those that it inherits.
// The window is a buffer in which the piece starts at start; reads is destroyed.
func (s *state) pack(inherited uint8, reads []uint64, window []byte, start int) []byte {
	flags := inherited
	if s.checksum {
		flags |= checksumBit
	}
	p := []byte{flags}
	for k := range kinds {
		if inherited&(1<<k) != 0 {
			p = append(append(p, s.modes[k]), s.desc[k]...)
		}
	}
	if inherited&treeBit != 0 {
		p = append(p, s.tree...)
	}
	for _, r := range s.reps {
		p = binary.AppendUvarint(p, uint64(r))
	}
	runs := merge(reads)
	p = binary.AppendUvarint(p, uint64(len(runs)))
	var last int32
	for i, r := range runs {
		gap := last - r.back
		if i == 0 {
			gap = r.back
		}
		p = binary.AppendUvarint(p, uint64(gap))
		p = binary.AppendUvarint(p, uint64(r.n))
		last = r.back - r.n
	}
	for _, r := range runs {
		from := start - int(r.back)
		p = append(p, window[from:from+int(r.n)]...)
	}
	return p
}

// read notes that a match reads n bytes that start back before the piece.
func read(back, n int) uint64 { return uint64(back)<<32 | uint64(n) }

// merge turns reads into the runs they cover, the farthest first.
func merge(reads []uint64) []run {
	slices.Sort(reads)
	var runs []run
	for _, v := range slices.Backward(reads) {
		back, n := int32(v>>32), int32(uint32(v))
		if k := len(runs) - 1; k >= 0 && back >= runs[k].back-runs[k].n {
			runs[k].n = max(runs[k].n, runs[k].back-back+n)
			continue
		}
		runs = append(runs, run{back: back, n: n})
	}
	return runs
}

// unpack sets a decoder up from a prime.
func (d *decoder) unpack(p []byte) (runs []run, bytes []byte, checksum bool, err error) {
	if len(p) == 0 || p[0] >= checksumBit<<1 {
		return nil, nil, false, fmt.Errorf("%w: flags", ErrPrime)
	}
	flags := p[0]
	p = p[1:]
	d.startFrame()
	for k := range kinds {
		if flags&(1<<k) == 0 {
			continue
		}
		if len(p) == 0 || p[0] >= modeRepeat {
			return nil, nil, false, fmt.Errorf("%w: mode of a table", ErrPrime)
		}
		n, err := d.tables[k].read(k, d.codes[k], p[0], p[1:])
		if err != nil {
			return nil, nil, false, fmt.Errorf("%w: %w", ErrPrime, err)
		}
		p = p[1+n:]
	}
	if flags&treeBit != 0 {
		if p, err = d.readTree(p); err != nil {
			return nil, nil, false, fmt.Errorf("%w: %w", ErrPrime, err)
		}
	}
	v := varints{p: p}
	for i := range d.reps {
		d.reps[i] = uint32(v.next(1 << maxOffset))
	}
	runs, err = v.runs()
	return runs, v.p, flags&checksumBit != 0, err
}

// varints reads numbers; a bad one makes all that follow bad.
type varints struct {
	p   []byte
	bad bool
}

func (v *varints) next(limit int) int {
	x, n := binary.Uvarint(v.p)
	if v.bad || n <= 0 || x > uint64(limit) {
		v.bad, v.p = true, nil
		return 0
	}
	v.p = v.p[n:]
	return int(x)
}

func (v *varints) next32(limit int32) int32 { return int32(v.next(int(limit))) }

// runs reads the places of the runs; exactly their bytes must follow.
func (v *varints) runs() ([]run, error) {
	n := v.next(len(v.p) / 3) // two numbers and a byte each
	runs := make([]run, 0, n)
	left, at := int32(1<<maxOffset), int32(0)
	for i := range n {
		r := run{at: at}
		if gap := v.next32(left); i == 0 {
			r.back = gap
		} else {
			r.back = left - gap
		}
		r.n = v.next32(r.back)
		if v.bad || r.n == 0 {
			return nil, fmt.Errorf("%w: places of window bytes", ErrPrime)
		}
		runs = append(runs, r)
		left, at = r.back-r.n, at+r.n
	}
	if v.bad || int(at) != len(v.p) {
		return nil, fmt.Errorf("%w: %d window bytes, not %d", ErrPrime, len(v.p), at)
	}
	return runs, nil
}

// find copies what starts back before the piece. Matches of an honest file
// never read over the end of a run.
func find(runs []run, bytes, dst []byte, back int) error {
	i := sort.Search(len(runs), func(i int) bool { return int(runs[i].back-runs[i].n) < back })
	if i == len(runs) {
		return fmt.Errorf("%w: %w", ErrCorrupt, errOffset)
	}
	r := runs[i]
	if int(r.back) < back || back-len(dst) < int(r.back-r.n) {
		return fmt.Errorf("%w: %w", ErrCorrupt, errOffset)
	}
	copy(dst, bytes[int(r.at)+int(r.back)-back:])
	return nil
}
