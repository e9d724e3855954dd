package inflate

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand"
	"testing"

	kgzip "github.com/klauspost/compress/gzip"
)

// sample makes n bytes or a little more, of every texture an inflater treats in its own way.
func sample(r *rand.Rand, n int) []byte {
	b := make([]byte, 0, n+600)
	for len(b) < n {
		switch r.Intn(5) {
		case 0: // noise
			for range r.Intn(300) {
				b = append(b, byte(r.Intn(256)))
			}
		case 1: // a small alphabet
			k := 1 + r.Intn(20)
			for range r.Intn(300) {
				b = append(b, byte('a'+r.Intn(k)))
			}
		case 2: // a run
			c := byte(r.Intn(256))
			for range r.Intn(600) {
				b = append(b, c)
			}
		default: // a copy from any distance, overlapping too
			if len(b) == 0 {
				continue
			}
			far := []int{1, 2, 3, 5, 8, 9, 15, 16, 17, 40, 1000, 32768}[r.Intn(12)]
			d := 1 + r.Intn(min(len(b), far))
			for range r.Intn(300) {
				b = append(b, b[len(b)-d])
			}
		}
	}
	return b
}

func pieces(z []byte, spacing int) (ps []Piece, all []byte, err error) {
	var read []byte
	s := &Splitter{
		Spacing: spacing, MaxCompressed: 4 << 20,
		OnRead: func(p []byte) { read = append(read, p...) },
		Get:    func() (*Buffer, error) { return &Buffer{}, nil },
		Emit: func(p Piece) error {
			if p.Offset != int64(len(all)) {
				return fmt.Errorf("piece at %d, not %d", p.Offset, len(all))
			}
			ps = append(ps, p)
			all = append(all, p.Data...)
			return nil
		},
	}
	err = s.Run(bytes.NewReader(z))
	if err == nil && !bytes.Equal(read, z) {
		err = errors.New("OnRead saw other bytes")
	}
	return ps, all, err
}

// compressed packs p by one of several writers, in one member or many.
func compressed(t *testing.T, r *rand.Rand, p []byte, i int) []byte {
	t.Helper()
	var z bytes.Buffer
	level := []int{-2, 0, 1, 6, 9}[i%5]
	for rest := p; ; {
		n := len(rest)
		if i%2 == 1 {
			n = min(n, 1+r.Intn(400000))
		}
		var w io.WriteCloser
		var err error
		if i%3 == 0 {
			w, err = kgzip.NewWriterLevel(&z, level)
		} else {
			w, err = gzip.NewWriterLevel(&z, level)
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(rest[:n]); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if rest = rest[n:]; len(rest) == 0 {
			return z.Bytes()
		}
	}
}

// Every piece inflates alone to the same bytes, whatever the decoder did before, the pieces tile the
// file, and each member's end is reported in its piece.
func TestSplitResume(t *testing.T) {
	r := rand.New(rand.NewSource(3))
	d := NewDecoder()
	for i := range 60 {
		p := sample(r, 1000+r.Intn(2500000))
		z := compressed(t, r, p, i)
		ps, all, err := pieces(z, []int{160 << 10, 256 << 10, 512 << 10}[i%3])
		if err != nil || !bytes.Equal(all, p) {
			t.Fatalf("file %d: %v, %d of %d bytes", i, err, len(all), len(p))
		}
		var sum uint32
		var start int64
		for k, c := range ps {
			got, err := d.Resume(c.Checkpoint, c.Window, c.Header, c.Compressed, len(c.Data))
			if err != nil || !bytes.Equal(got, c.Data) {
				t.Fatalf("file %d piece %d (%+v): %v", i, k, c.Checkpoint, err)
			}
			if k > 0 && c.CompressedOffset > ps[k-1].CompressedOffset+int64(len(ps[k-1].Compressed)) {
				t.Fatalf("file %d piece %d: a gap in the file", i, k)
			}
			for _, e := range c.Ends {
				sum = crc32.ChecksumIEEE(p[start:e.Offset])
				if sum != e.Sum || uint32(e.Offset-start) != e.Size {
					t.Fatalf("file %d: end of member at %d", i, e.Offset)
				}
				start = e.Offset
			}
		}
		if start != int64(len(p)) {
			t.Fatalf("file %d: the last member ends at %d of %d", i, start, len(p))
		}
	}
}

// Hostile checkpoints, windows and bytes give an error or wrong bytes, never a fault.
func TestResumeHostile(t *testing.T) {
	r := rand.New(rand.NewSource(4))
	d := NewDecoder()
	for i := range 20 {
		p := sample(r, 700000)
		ps, _, err := pieces(compressed(t, r, p, i), 160<<10)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range ps {
			for range 20 {
				cp, w, h, z := c.Checkpoint, c.Window, c.Header, c.Compressed
				switch r.Intn(6) {
				case 0:
					cp.Bit += int64(r.Intn(64))
				case 1:
					w = w[:r.Intn(len(w)+1)]
				case 2:
					cp.Hist, cp.Kind = r.Intn(WindowSize+1), AtBlock
				case 3:
					cp.Kind, cp.HeaderBit, cp.HeaderBits = InBlock, int64(r.Intn(8)), r.Intn(4000)
					h = z[:min(len(z), r.Intn(600))]
				case 4:
					z = z[:r.Intn(len(z)+1)]
				default:
					z = bytes.Clone(z)
					for range 3 {
						z[r.Intn(min(200, len(z)))] ^= byte(1 << r.Intn(8))
					}
				}
				_, _ = d.Resume(cp, w, h, z, max(0, len(c.Data)+r.Intn(2000)-1000)) // any result will do
			}
		}
	}
}

func TestSplitBadInput(t *testing.T) {
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	w.Name, w.Comment, w.Extra = "name", "comment", []byte("extra")
	if _, err := w.Write(sample(rand.New(rand.NewSource(5)), 300000)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	good := z.Bytes()
	if _, _, err := pieces(good, MinSpacing); err != nil {
		t.Fatal(err)
	}
	for n := range 200 {
		cut := n
		if n >= 100 {
			cut = len(good) - 1 - (n-100)*len(good)/101
		}
		if _, _, err := pieces(good[:cut], MinSpacing); !errors.Is(err, ErrTruncated) && !errors.Is(err, ErrCorrupt) {
			t.Errorf("cut to %d bytes: %v", cut, err)
		}
	}
	emptyMembers := bytes.Repeat(append([]byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255, 3}, make([]byte, 9)...), 1000)
	for name, c := range map[string]struct {
		in   []byte
		want error
	}{
		"trailing text":     {append(bytes.Clone(good), "trailing data here"...), ErrTrailing},
		"trailing zeros":    {append(bytes.Clone(good), make([]byte, 512)...), ErrTrailing},
		"not gzip":          {[]byte("this is no gzip file at all"), ErrCorrupt},
		"empty members":     {emptyMembers, nil},
		"too many of these": {bytes.Repeat(emptyMembers, 300), ErrNoOutput},
		"long name":         {append([]byte{0x1f, 0x8b, 8, 8, 0, 0, 0, 0, 0, 255}, bytes.Repeat([]byte("a"), 600)...), ErrCorrupt},
		"header checksum":   {append([]byte{0x1f, 0x8b, 8, 2, 0, 0, 0, 0, 0, 255, 1, 2}, good[10:]...), ErrCorrupt},
	} {
		t.Run(name, func(t *testing.T) {
			if _, _, err := pieces(c.in, MinSpacing); !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
}

// member wraps a DEFLATE stream so that Split reads it. Its trailer is not checked there.
func member(raw []byte) []byte {
	b := append([]byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255}, raw...)
	return append(b, make([]byte, 8)...)
}

// compare holds the decoder against compress/flate on one stream.
func compare(t *testing.T, raw []byte) {
	t.Helper()
	want, werr := io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(raw)), 1<<20))
	_, got, err := pieces(member(raw), MinSpacing)
	if werr == nil && len(want) < 1<<20 {
		// What follows the stream reads as a trailer and more members.
		if err == nil && !bytes.Equal(got, want) {
			t.Fatalf("%d bytes differ from flate's %d", len(got), len(want))
		}
		if errors.Is(err, ErrCorrupt) {
			t.Fatalf("refused what flate takes: %v", err)
		}
		return
	}
	// The made-up trailer may complete a stream that was cut short.
	if err == nil && werr != nil && !errors.Is(werr, io.ErrUnexpectedEOF) {
		t.Fatalf("took what flate refuses: %v", werr)
	}
}

func TestDamage(t *testing.T) {
	r := rand.New(rand.NewSource(2))
	for i := range 3000 {
		var z bytes.Buffer
		w, err := flate.NewWriter(&z, []int{-2, 1, 6, 9}[i%4])
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(sample(r, 200+r.Intn(20000))); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		b := z.Bytes()
		m := r.Intn(min(len(b), 120))
		if i%3 == 0 {
			m = r.Intn(len(b))
		}
		b[m] ^= 1 << r.Intn(8)
		compare(t, b)
	}
}

func FuzzInflate(f *testing.F) {
	r := rand.New(rand.NewSource(7))
	for level := -2; level <= 9; level++ {
		var z bytes.Buffer
		w, err := flate.NewWriter(&z, level)
		if err != nil {
			f.Fatal(err)
		}
		if _, err := w.Write(sample(r, 4000)); err != nil {
			f.Fatal(err)
		}
		if err := w.Close(); err != nil {
			f.Fatal(err)
		}
		f.Add(z.Bytes())
	}
	f.Fuzz(compare)
}
