package fusefs

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// BenchmarkRead reads a layer whose bytes are here but not in the page cache:
// what each first touch of a page costs beside the layer's reader.
func BenchmarkRead(b *testing.B) {
	m := start(b)
	f, err := os.Open(m.layer())
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	p := make([]byte, 4096)
	for _, how := range []struct {
		name   string
		advice int
		stride int64
	}{{"sequential", unix.FADV_SEQUENTIAL, 4096}, {"scattered", unix.FADV_RANDOM, 64 << 10}} {
		b.Run(how.name, func(b *testing.B) {
			off := int64(0)
			for b.Loop() {
				if off == 0 {
					if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
						b.Fatal(err)
					}
					if err := unix.Fadvise(int(f.Fd()), 0, 0, how.advice); err != nil {
						b.Fatal(err)
					}
				}
				if _, err := f.ReadAt(p, off); err != nil {
					b.Fatal(err)
				}
				if off += how.stride; off > 3<<20 {
					off = 0
				}
			}
		})
	}
}
