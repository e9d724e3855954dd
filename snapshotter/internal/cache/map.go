package cache

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"

	"github.com/opencontainers/go-digest"

	"github.com/firstlight-dev/firstlight/indexer/index"
)

// The map file, little endian:
//
//	 0  8  magic
//	 8 32  identity of layer and chunk table
//	40  8  number of chunks
//	48  1  state
//	49  7  zero
//	56  n  one bit per chunk, lowest first, the last byte padded with zeros
//	 …  32 SHA-256 of all before
const (
	mapMagic  = "FLMAP\x00\x00\x01"
	mapHeader = 56
	// maxMap bounds what is read of a map file: a bit for every chunk that an
	// index may have.
	maxMap = mapHeader + index.MaxChunks/8 + sha256.Size
)

// State is what is known about a whole layer.
type State uint8

// Partial is the state of a layer that is being filled; Complete that of one
// whose every byte is present and was checked as a whole; Quarantined that of
// one that was found to be wrong; Proven that of one that was complete, so that
// its index is known to tell the truth, but has lost chunks since.
const (
	Partial State = iota
	Complete
	Quarantined
	Proven
)

var errMap = errors.New("damaged map")

// identity names a layer together with how it is cut: a bit means nothing
// without the chunk table it was made for.
func identity(id digest.Digest, size int64, chunks []index.Chunk) [32]byte {
	h := sha256.New()
	h.Write([]byte(id))
	var b [24]byte
	binary.LittleEndian.PutUint64(b[:], uint64(size))
	h.Write(b[:8])
	for i := range chunks {
		c := &chunks[i]
		binary.LittleEndian.PutUint64(b[:], uint64(c.Offset))
		binary.LittleEndian.PutUint64(b[8:], uint64(c.Size))
		h.Write(b[:16])
		h.Write(c.Digest[:])
	}
	return [32]byte(h.Sum(nil))
}

func encodeMap(id [32]byte, n int, s State, set bitmap) []byte {
	b := make([]byte, mapHeader, mapHeader+len(set)+sha256.Size)
	copy(b, mapMagic)
	copy(b[8:], id[:])
	binary.LittleEndian.PutUint64(b[40:], uint64(n))
	b[48] = byte(s)
	b = append(b, set...)
	sum := sha256.Sum256(b)
	return append(b, sum[:]...)
}

// decodeMap accepts only what encodeMap makes for the same identity and number
// of chunks.
func decodeMap(b []byte, id [32]byte, n int) (State, bitmap, error) {
	want := mapHeader + (n+7)/8 + sha256.Size
	if len(b) != want {
		return 0, nil, fmt.Errorf("%w: %d bytes, want %d", errMap, len(b), want)
	}
	body := b[:len(b)-sha256.Size]
	if sum := sha256.Sum256(body); !bytes.Equal(sum[:], b[len(body):]) {
		return 0, nil, fmt.Errorf("%w: checksum", errMap)
	}
	switch {
	case string(b[:8]) != mapMagic:
		return 0, nil, fmt.Errorf("%w: unknown format", errMap)
	case [32]byte(b[8:40]) != id, binary.LittleEndian.Uint64(b[40:]) != uint64(n):
		return 0, nil, fmt.Errorf("%w: made for another index", errMap)
	case b[48] > byte(Proven), !bytes.Equal(b[49:56], make([]byte, 7)):
		return 0, nil, fmt.Errorf("%w: unknown state", errMap)
	}
	set := bitmap(bytes.Clone(body[mapHeader:]))
	if n%8 != 0 && set[n/8]>>(n%8) != 0 {
		return 0, nil, fmt.Errorf("%w: bits beyond the last chunk", errMap)
	}
	if State(b[48]) == Complete && set.count() != n {
		return 0, nil, fmt.Errorf("%w: complete with chunks missing", errMap)
	}
	return State(b[48]), set, nil
}

type bitmap []byte

func newBitmap(n int) bitmap         { return make(bitmap, (n+7)/8) }
func (b bitmap) has(i int) bool      { return b[i/8]&(1<<(i%8)) != 0 }
func (b bitmap) set(i int)           { b[i/8] |= 1 << (i % 8) }
func (b bitmap) unset(i int)         { b[i/8] &^= 1 << (i % 8) }
func (b bitmap) with(i int) bitmap   { b.set(i); return b }
func (b bitmap) clone() bitmap       { return bytes.Clone(b) }
func (b bitmap) equal(o bitmap) bool { return bytes.Equal(b, o) }

func (b bitmap) count() (n int) {
	for _, x := range b {
		n += bits.OnesCount8(x)
	}
	return n
}
