package zblock

import (
	"bytes"
	"errors"
	"io"
	"math/rand"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// byLibrary decodes a file as containerd does.
func byLibrary(tb testing.TB, file []byte) ([]byte, error) {
	tb.Helper()
	d, err := zstd.NewReader(bytes.NewReader(file), zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(8<<20))
	if err != nil {
		tb.Fatal(err)
	}
	defer d.Close()
	return io.ReadAll(io.LimitReader(d, 64<<20))
}

// What the splitter takes, the library takes and decodes to the same, and every
// piece decodes alone. What it does not take, it refuses with an error of a known
// kind.
func FuzzSplit(f *testing.F) {
	r := rand.New(rand.NewSource(3))
	for _, size := range []int{0, 100, 30_000, 300_000} {
		p := sample(r, size)
		for _, l := range []zstd.EncoderLevel{zstd.SpeedFastest, zstd.SpeedDefault, zstd.SpeedBestCompression} {
			f.Add(library(f, p, zstd.WithEncoderLevel(l), zstd.WithZeroFrames(true)))
		}
		f.Add(library(f, p, zstd.WithEncoderCRC(false), zstd.WithWindowSize(1<<12), zstd.WithZeroFrames(true)))
	}
	f.Add(append(library(f, sample(r, 500)), skippable(30)...))
	f.Fuzz(func(t *testing.T, file []byte) {
		parts, err := splitFile(t, file, 4<<10)
		if err != nil {
			for _, known := range []error{ErrCorrupt, ErrTruncated, ErrTrailing, ErrRefused, ErrNoOutput} {
				if errors.Is(err, known) {
					return
				}
			}
			t.Fatalf("an error of no kind: %v", err)
		}
		want, err := byLibrary(t, file)
		if errors.Is(err, zstd.ErrWindowSizeExceeded) {
			return // it has a lower limit here
		}
		if err != nil {
			t.Fatalf("the library refuses it: %v", err)
		}
		check(t, parts, want)
	})
}

// A prime of whoever writes an index costs no more than an error.
func FuzzResume(f *testing.F) {
	r := rand.New(rand.NewSource(4))
	parts, err := splitFile(f, library(f, sample(r, 400_000)), 128<<10)
	if err != nil {
		f.Fatal(err)
	}
	for _, p := range parts {
		f.Add(p.Prime, p.compressed, len(p.data))
	}
	d := NewDecoder()
	f.Fuzz(func(t *testing.T, prime, compressed []byte, size int) {
		if size < 0 || size > 1<<20 {
			return
		}
		out, err := d.Resume(prime, compressed, size)
		if err == nil && len(out) != size {
			t.Errorf("%d bytes, not %d", len(out), size)
		}
	})
}
