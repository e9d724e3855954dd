package cache

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/firstlight-dev/firstlight/indexer/index"
)

// BenchmarkReadAt reads what is cached: the path of every page that a program
// touches for the first time.
func BenchmarkReadAt(b *testing.B) {
	const chunk, chunks = 1 << 20, 64
	c, err := Open(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	body := bytes.Repeat([]byte{7}, chunk)
	table := make([]index.Chunk, chunks)
	for i := range table {
		table[i] = index.Chunk{Offset: int64(i) * chunk, Size: chunk, Digest: sha256.Sum256(body)}
	}
	l, err := c.Layer(digest.FromString("bench"), chunks*chunk, table)
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	for i := range table {
		if err := l.Put(i, body); err != nil {
			b.Fatal(err)
		}
	}
	for _, size := range []int{4 << 10, 128 << 10} {
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			b.SetBytes(int64(size))
			p := make([]byte, size)
			for i := 0; b.Loop(); i++ {
				if _, err := l.ReadAt(p, int64(i*size)%(chunks*chunk-chunk)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("parallel", func(b *testing.B) {
		b.SetBytes(4 << 10)
		b.RunParallel(func(pb *testing.PB) {
			p := make([]byte, 4<<10)
			for i := 0; pb.Next(); i++ {
				if _, err := l.ReadAt(p, int64(i<<12)%(chunks*chunk-chunk)); err != nil {
					b.Error(err)
					return
				}
			}
		})
	})
}
