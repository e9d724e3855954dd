package zblock

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"os/exec"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// sample is text that compresses like program files: words, repeats from near
// and far, and stretches that do not compress.
func sample(r *rand.Rand, size int) []byte {
	words := make([]string, 400)
	for i := range words {
		words[i] = fmt.Sprintf("%x", r.Int63n(1<<(4+r.Intn(40))))
	}
	var b bytes.Buffer
	for b.Len() < size {
		switch k := r.Intn(100); {
		case k == 0 && b.Len() > 1000:
			at := r.Intn(b.Len() - 500)
			b.Write(bytes.Clone(b.Bytes()[at : at+r.Intn(500)]))
		case k == 1:
			b.Write(bytes.Repeat([]byte{byte(r.Intn(256))}, r.Intn(3000)))
		case k == 2 && r.Intn(20) == 0:
			p := make([]byte, r.Intn(200_000))
			r.Read(p)
			b.Write(p)
		case k == 3 && r.Intn(20) == 0:
			b.Write(make([]byte, r.Intn(400_000)))
		default:
			b.WriteString(words[min(r.Intn(400), r.Intn(400))])
			b.WriteByte(" \n,;"[r.Intn(4)])
		}
	}
	return b.Bytes()[:size]
}

// library compresses as BuildKit and containerd do.
func library(tb testing.TB, p []byte, opts ...zstd.EOption) []byte {
	tb.Helper()
	var b bytes.Buffer
	w, err := zstd.NewWriter(&b, opts...)
	if err != nil {
		tb.Fatal(err)
	}
	if _, err := io.Copy(w, bytes.NewReader(p)); err != nil {
		tb.Fatal(err)
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return b.Bytes()
}

// program compresses with the zstd command.
func program(tb testing.TB, p []byte, args ...string) []byte {
	tb.Helper()
	path, err := exec.LookPath("zstd")
	if err != nil {
		tb.Skip("the zstd command is not installed")
	}
	cmd := exec.CommandContext(tb.Context(), path, append([]string{"-q", "-c", "-T1"}, args...)...)
	cmd.Stdin = bytes.NewReader(p)
	out, err := cmd.Output()
	if err != nil {
		tb.Fatal(err)
	}
	return out
}

// skippable is a skippable frame.
func skippable(n int) []byte {
	return append([]byte{0x57, 0x2a, 0x4d, 0x18, byte(n), byte(n >> 8), byte(n >> 16), 0}, make([]byte, n)...)
}

type part struct {
	Piece
	data, compressed []byte
}

// split cuts a file and checks that its pieces tile it.
func splitFile(tb testing.TB, file []byte, spacing int) ([]part, error) {
	tb.Helper()
	var parts []part
	var seen int
	s := Splitter{
		Spacing: spacing, MaxSpacing: 2 * spacing, PrimeShare: 12, MaxCompressed: 4 << 20, MaxWindow: 128 << 20,
		OnRead: func(p []byte) { seen += len(p) },
		Get:    func() (*Buffer, error) { return new(Buffer), nil },
		Emit: func(p Piece) error {
			parts = append(parts, part{p, p.Data, p.Compressed})
			return nil
		},
	}
	if err := s.Run(bytes.NewReader(file)); err != nil {
		return nil, err
	}
	if seen != len(file) {
		tb.Errorf("saw %d of %d bytes", seen, len(file))
	}
	var out, in int64
	for i, p := range parts {
		if p.Offset != out || p.CompressedOffset != in || len(p.data) == 0 {
			tb.Fatalf("piece %d is at %d of the output and %d of the file, not %d and %d", i, p.Offset, p.CompressedOffset, out, in)
		}
		if !bytes.Equal(p.compressed, file[in:in+int64(len(p.compressed))]) {
			tb.Fatalf("piece %d has other bytes than the file", i)
		}
		out, in = out+int64(len(p.data)), in+int64(len(p.compressed))
	}
	return parts, nil
}

// check decodes every piece alone, in any order.
func check(tb testing.TB, parts []part, want []byte) {
	tb.Helper()
	d := NewDecoder()
	var n int
	for _, i := range rand.New(rand.NewSource(1)).Perm(len(parts)) {
		p := parts[i]
		n += len(p.data)
		at := want[p.Offset : p.Offset+int64(len(p.data))]
		if !bytes.Equal(p.data, at) {
			tb.Fatalf("piece %d was split wrong", i)
		}
		got, err := d.Resume(p.Prime, p.compressed, len(p.data))
		if err != nil {
			tb.Fatalf("piece %d of %d: %v", i, len(parts), err)
		}
		if !bytes.Equal(got, at) {
			tb.Fatalf("piece %d of %d resumes wrong", i, len(parts))
		}
	}
	if n != len(want) {
		tb.Errorf("%d bytes, not %d", n, len(want))
	}
}

func TestSplit(t *testing.T) {
	r := rand.New(rand.NewSource(1))
	large, small := sample(r, 6<<20), sample(r, 50_000)
	frames := func(n int) (b []byte) {
		for p := range bytesOf(large, n) {
			b = append(append(b, library(t, p)...), skippable(len(b)%300)...)
		}
		return b
	}
	for name, c := range map[string]struct {
		file, want []byte
		inFrame    bool
	}{
		"library, fastest":      {library(t, large, zstd.WithEncoderLevel(zstd.SpeedFastest)), large, true},
		"library, default":      {library(t, large), large, true},
		"library, better":       {library(t, large, zstd.WithEncoderLevel(zstd.SpeedBetterCompression)), large, true},
		"library, best":         {library(t, large, zstd.WithEncoderLevel(zstd.SpeedBestCompression)), large, true},
		"library, no checksum":  {library(t, large, zstd.WithEncoderCRC(false)), large, true},
		"library, small window": {library(t, large, zstd.WithWindowSize(1<<10)), large, true},
		"program, 1":            {program(t, large, "-1"), large, true},
		"program, 3":            {program(t, large, "-3"), large, true},
		"program, 11":           {program(t, large, "-11"), large, true},
		"program, 19":           {program(t, large, "-19"), large, true},
		"program, long":         {program(t, large, "-3", "--long=27"), large, true},
		"program, fast":         {program(t, large, "--fast=5"), large, true},
		"program, no checksum":  {program(t, large, "-3", "--no-check"), large, true},
		"frames of 1 MB":        {frames(1_000_000), large, true},
		"frames of 20 kB":       {frames(20_000), large, false},
		"small":                 {library(t, small), small, false},
		"skippable first":       {append(skippable(100), library(t, small)...), small, false},
		"large skippable last":  {append(library(t, small), skippable(6<<20)...), small, false},
		"many empty frames":     {append(bytes.Repeat(library(t, nil, zstd.WithZeroFrames(true)), 500), library(t, small)...), small, false},
		"nothing":               {library(t, nil, zstd.WithZeroFrames(true)), nil, false},
		"only skippable":        {skippable(9), nil, false},
	} {
		for _, spacing := range []int{128 << 10, 700_000, 4 << 20} {
			t.Run(fmt.Sprint(name, "/", spacing), func(t *testing.T) {
				parts, err := splitFile(t, c.file, spacing)
				if err != nil {
					t.Fatal(err)
				}
				primes := 0
				for _, p := range parts {
					primes += min(len(p.Prime), 1)
				}
				if spacing < 1<<20 && (primes > 0) != c.inFrame {
					t.Errorf("%d of %d pieces start inside a frame", primes, len(parts))
				}
				check(t, parts, c.want)
			})
		}
	}
}

// bytesOf yields p in pieces of n bytes.
func bytesOf(p []byte, n int) func(func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for len(p) > 0 {
			k := min(n, len(p))
			if !yield(p[:k]) {
				return
			}
			p = p[k:]
		}
	}
}

func TestSplitRefuses(t *testing.T) {
	r := rand.New(rand.NewSource(2))
	p := sample(r, 300_000)
	good := library(t, p)
	wrong := bytes.Clone(good)
	wrong[len(wrong)-1] ^= 1
	dict := []byte{0x28, 0xb5, 0x2f, 0xfd, 0x21, 7, 0, 1, 0, 0}
	window := []byte{0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xff, 1, 0, 0}
	for name, c := range map[string]struct {
		file []byte
		want error
		says string
	}{
		"checksum":        {wrong, ErrCorrupt, "checksum of the frame"},
		"trailing":        {append(bytes.Clone(good), "trailing"...), ErrTrailing, "offset"},
		"cut short":       {good[:len(good)-9], ErrTruncated, ""},
		"dictionary":      {dict, ErrRefused, "dictionary"},
		"window":          {window, ErrRefused, "window of"},
		"reserved":        {[]byte{0x28, 0xb5, 0x2f, 0xfd, 0x08, 0, 1, 0, 0}, ErrCorrupt, "reserved"},
		"skippable first": {append(skippable(6<<20), good...), ErrNoOutput, "skippable"},
		"nothing":         {nil, ErrTruncated, ""},
		"other":           {[]byte("not zstd at all"), ErrCorrupt, ""},
	} {
		if _, err := splitFile(t, c.file, 128<<10); !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v; want %v with %q", name, err, c.want, c.says)
		}
	}
}
