// Package index is the layer index: what a node needs to know about one image
// layer so that it can read any part of it without the rest.
//
// # Vocabulary
//
// A layer is a blob: a tar stream, compressed (gzip, zstd) or not. Offsets and sizes
// without the word compressed count bytes of the uncompressed tar stream. A
// chunk is a run of that stream which one range of the blob produces without
// its neighbours; the chunks tile both. A checkpoint is the state that lets
// inflating start at a chunk. The header stream is the tar stream with the
// bodies of regular files left out: header blocks, PAX and GNU extension
// records, padding and what follows the last entry, byte for byte.
//
// # Invariants
//
// The tar stream is exactly header stream and bodies interleaved: whoever has
// the bodies can rebuild it, and so check the layer's diffID. An index depends
// only on the layer's bytes and the version of this code, never on names,
// time or the machine. An Index is immutable and safe for concurrent use.
//
// # Failure behaviour
//
// Decode accepts hostile bytes: it returns ErrInvalid, never panics, and never
// allocates more than the constants of this package allow. Walking the header
// stream (Entries, WalkEntries, WalkHeaders) and DecodeChunk validate what they
// read in the same way. That an index tells the truth about a layer is not
// known until the whole layer's digest and diffID were checked; a chunk's
// digests only tie its bytes to the index. See DESIGN.md, "Threat model".
package index

import (
	"errors"
	"sort"
	"sync"

	"github.com/opencontainers/go-digest"

	"github.com/firstlight-dev/firstlight/indexer/internal/inflate"
)

// Media types of the artifact that carries indexes in a registry, and the
// annotation that names the layer a blob of it belongs to.
const (
	ArtifactType    = "application/vnd.firstlight.index.v1"
	LayerMediaType  = "application/vnd.firstlight.layer-index.v1"
	AnnotationLayer = "dev.firstlight.layer.digest"
)

var (
	// ErrUnsupported marks a layer that cannot be represented exactly: its tree
	// would differ from the one containerd makes, or a limit is passed. The
	// layer still works, pulled in full. The wrapping error says why.
	ErrUnsupported = errors.New("layer cannot be indexed")
	// ErrInvalid marks an index that is damaged or lies about itself.
	ErrInvalid = errors.New("invalid layer index")
	// ErrMismatch marks layer bytes that are not those the index was made from.
	ErrMismatch = errors.New("layer does not match its index")
)

// Compression is how the blob of a layer is compressed.
type Compression string

// The compressions an index can describe.
const (
	None Compression = "none"
	Gzip Compression = "gzip"
	Zstd Compression = "zstd"
)

// Index describes one layer.
type Index struct {
	Layer          digest.Digest // of the blob
	DiffID         digest.Digest // of the tar stream
	Compression    Compression
	CompressedSize int64 // bytes of the blob
	Size           int64 // bytes of the tar stream
	// Chunks tile the blob and the tar stream in order, but for zstd frames
	// without output at the blob's end. Empty when Size is 0.
	Chunks []Chunk

	points      []point  // Gzip
	windows     [][]byte // Gzip: zstd, windowGroup checkpoints each
	primes      []prime  // Zstd
	headers     []byte   // zstd
	headersSize int64    // of the header stream, unpacked
	entries     int      // in the header stream

	decoders sync.Pool // of *chunkDecoder
}

// Chunk is a part of the layer that can be fetched and decoded by itself.
type Chunk struct {
	Offset, Size int64
	// CompressedOffset and CompressedSize name the range of the blob to fetch.
	// Neighbours share one byte where a cut does not fall on a byte boundary.
	CompressedOffset, CompressedSize int64
	CompressedDigest                 [32]byte // SHA-256 of that range
	Digest                           [32]byte // SHA-256 of the chunk
}

// point is a checkpoint and what belongs to it.
type point struct {
	inflate.Checkpoint
	window int    // packed window bytes
	header []byte // InBlock: the bytes that hold the block header
}

// prime is what decoding a chunk of a zstd layer needs from before it.
type prime struct {
	size   int    // unpacked; 0 if the chunk starts with a frame
	packed []byte // zstd
}

// ChunkAt returns the number of the chunk that holds the byte at off, which
// must be in [0, Size).
func (x *Index) ChunkAt(off int64) int {
	return sort.Search(len(x.Chunks), func(i int) bool { return x.Chunks[i].Offset > off }) - 1
}

// NumEntries is the number of tar entries, bounded by MaxEntries.
func (x *Index) NumEntries() int { return x.entries }

// HeadersSize is the size of the header stream; Size less it is bodies.
func (x *Index) HeadersSize() int64 { return x.headersSize }
