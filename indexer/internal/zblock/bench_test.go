package zblock

import (
	"bytes"
	"io"
	"math/rand"
	"os"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// corpus is the zstd file that FIRSTLIGHT_LAYER names, or a sample.
func corpus(b *testing.B) []byte {
	b.Helper()
	if name := os.Getenv("FIRSTLIGHT_LAYER"); name != "" {
		file, err := os.ReadFile(name)
		if err != nil {
			b.Fatal(err)
		}
		return file
	}
	return library(b, sample(rand.New(rand.NewSource(6)), 16<<20))
}

func BenchmarkResume(b *testing.B) {
	parts, err := splitFile(b, corpus(b), 3968<<10)
	if err != nil {
		b.Fatal(err)
	}
	d := NewDecoder()
	for b.Loop() {
		n := 0
		for _, p := range parts {
			if _, err := d.Resume(p.Prime, p.compressed, len(p.data)); err != nil {
				b.Fatal(err)
			}
			n += len(p.data)
		}
		b.SetBytes(int64(n))
	}
}

// BenchmarkLibrary is decoding alone, for comparison.
func BenchmarkLibrary(b *testing.B) {
	file := corpus(b)
	for b.Loop() {
		d, err := zstd.NewReader(bytes.NewReader(file), zstd.WithDecoderConcurrency(1))
		if err != nil {
			b.Fatal(err)
		}
		n, err := io.Copy(io.Discard, d)
		if err != nil {
			b.Fatal(err)
		}
		d.Close()
		b.SetBytes(n)
	}
}
