package index

import "github.com/firstlight-dev/firstlight/indexer/internal/inflate"

// Limits of the format. Build refuses a layer beyond them with ErrUnsupported
// and Decode an index with ErrInvalid, so nothing an index says steers a
// larger allocation.
const (
	// MaxEncoded bounds an encoded index: 1 % of a 25 GiB layer. Whoever
	// fetches an index stops reading here.
	MaxEncoded = 256 << 20
	// MaxSize bounds a layer's tar stream and its blob. Offsets stay far from
	// overflow also when counted in bits.
	MaxSize = 1 << 44
	// MaxChunks bounds the chunk table (8 TiB of plain tar at the default
	// chunk size, 112 bytes each in memory).
	MaxChunks = 1 << 24
	// MaxChunkSize bounds the output of one chunk, the unit a reader holds in
	// memory.
	MaxChunkSize = 4 << 20
	// MaxChunkCompressed bounds the blob bytes of one chunk. Neither DEFLATE nor
	// zstd grows ordinary data by more than a few bytes in 64 KiB, so only empty
	// blocks, empty members, skippable frames or long gzip header fields come near it. It bounds the
	// time a hostile chunk takes to inflate: an estimated four seconds.
	MaxChunkCompressed = 4 << 20
	// MaxHeaders bounds the header stream, unpacked: a million entries with a
	// PAX record each. It is only ever streamed.
	MaxHeaders = 2 << 30
	// MaxEntries bounds the entries of a layer and so the rows of its tree.
	MaxEntries = 2 << 20
	// MaxPath bounds a name after cleaning, and MaxName one component of it.
	// Linux refuses a path of 4096 bytes and more, and an extracted layer lies
	// below a folder whose name counts too.
	MaxPath = 3840
	MaxName = 255
	// MaxTarget bounds a symbolic link's target, as Linux does.
	MaxTarget = 4095
	// MaxXattrName and MaxXattrValue are those of Linux (XATTR_NAME_MAX,
	// XATTR_SIZE_MAX).
	MaxXattrName  = 255
	MaxXattrValue = 64 << 10
)

// maxPrime bounds the prime of a zstd chunk, unpacked. What a chunk reads is at
// most what it has, and a run takes at most seven bytes beside its content; honest
// primes stay below a quarter of it. With the places of the runs a reader holds
// six times as much.
const maxPrime = 6 << 20

// windowGroup is how many checkpoint windows are compressed together: what one
// chunk read has to unpack is then at most 512 KiB, usually 40.
const windowGroup = 16

// maxGroup is the size of a window group, unpacked.
const maxGroup = windowGroup * inflate.WindowSize
