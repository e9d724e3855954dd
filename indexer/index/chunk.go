package index

import (
	"crypto/sha256"
	"fmt"

	"github.com/klauspost/compress/zstd"

	"github.com/firstlight-dev/firstlight/indexer/internal/inflate"
	"github.com/firstlight-dev/firstlight/indexer/internal/zblock"
)

// DecodeChunk turns the compressed bytes of chunk i into the chunk. It uses the
// space of dst if that is large enough and overwrites it. Nothing is inflated
// before the compressed bytes match their digest, and nothing returned before
// the chunk matches its own; else the error is ErrMismatch.
func (x *Index) DecodeChunk(dst []byte, i int, compressed []byte) ([]byte, error) {
	if i < 0 || i >= len(x.Chunks) {
		return nil, fmt.Errorf("chunk %d of %d does not exist", i, len(x.Chunks))
	}
	c := &x.Chunks[i]
	if int64(len(compressed)) != c.CompressedSize {
		return nil, fmt.Errorf("%w: chunk %d has %d bytes, not %d", ErrMismatch, i, len(compressed), c.CompressedSize)
	}
	if sha256.Sum256(compressed) != c.CompressedDigest {
		return nil, fmt.Errorf("%w: chunk %d: the bytes at %d to %d of the blob are not those indexed",
			ErrMismatch, i, c.CompressedOffset, c.CompressedOffset+c.CompressedSize)
	}
	if x.Compression == None {
		return append(dst[:0], compressed...), nil
	}
	d, err := x.decoder()
	if err != nil {
		return nil, err
	}
	defer x.decoders.Put(d)
	var out []byte
	if x.Compression == Zstd {
		out, err = d.resume(x, i, compressed)
	} else {
		out, err = d.inflateChunk(x, i, compressed)
	}
	if err != nil {
		return nil, err
	}
	if sha256.Sum256(out) != c.Digest {
		return nil, fmt.Errorf("%w: chunk %d decodes to other bytes than indexed", ErrMismatch, i)
	}
	return append(dst[:0], out...), nil
}

// chunkDecoder is the working memory of DecodeChunk, about 2 MiB at the default
// chunk size of gzip, 10 at that of zstd, pooled in the index.
type chunkDecoder struct {
	inflate *inflate.Decoder // Gzip
	zblock  *zblock.Decoder  // Zstd
	zstd    *zstd.Decoder    // of windows and primes
	group   []byte           // windows or a prime
	loaded  int              // number of the window group in group, plus one
}

func (x *Index) decoder() (*chunkDecoder, error) {
	if d, ok := x.decoders.Get().(*chunkDecoder); ok {
		return d, nil
	}
	if x.Compression == Zstd {
		z, err := newDecoder(nil, maxPrime)
		return &chunkDecoder{zblock: zblock.NewDecoder(), zstd: z}, err
	}
	z, err := newDecoder(nil, maxGroup)
	return &chunkDecoder{inflate: inflate.NewDecoder(), zstd: z}, err
}

// inflateChunk decodes chunk i of a gzip layer.
func (d *chunkDecoder) inflateChunk(x *Index, i int, compressed []byte) ([]byte, error) {
	p := &x.points[i]
	window, err := d.window(x, i)
	if err != nil {
		return nil, err
	}
	out, err := d.inflate.Resume(p.Checkpoint, window, p.header, compressed, int(x.Chunks[i].Size))
	if err != nil {
		return nil, fmt.Errorf("%w: inflate chunk %d: %w", ErrInvalid, i, err)
	}
	return out, nil
}

// window unpacks the window of chunk i.
func (d *chunkDecoder) window(x *Index, i int) ([]byte, error) {
	g := i / windowGroup
	if d.loaded != g+1 {
		d.loaded = 0
		group, err := d.zstd.DecodeAll(x.windows[g], d.group[:0])
		if err != nil {
			return nil, fmt.Errorf("%w: unpack window group %d: %w", ErrInvalid, g, err)
		}
		d.group, d.loaded = group, g+1
	}
	from := 0
	for _, p := range x.points[g*windowGroup : i] {
		from += p.window
	}
	to := from + x.points[i].window
	if to > len(d.group) {
		return nil, fmt.Errorf("%w: window group %d has %d bytes", ErrInvalid, g, len(d.group))
	}
	return d.group[from:to], nil
}
