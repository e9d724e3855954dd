package inflate

// WindowSize is how far back a DEFLATE match may reach.
const WindowSize = 32 << 10

// Kind says where in the gzip file a checkpoint lies.
type Kind uint8

// The kinds of checkpoint. The values are part of the index format.
const (
	AtMember Kind = iota // Bit is the first bit of a gzip member header; nothing before it is needed
	AtBlock              // Bit is the first bit of a DEFLATE block header
	InBlock              // Bit is a symbol inside the block whose header starts at HeaderBit
)

// Checkpoint is a place where decompression can resume.
type Checkpoint struct {
	Kind       Kind
	Bit        int64 // resume position in the gzip file, in bits
	Hist       int   // bytes of output before it that belong to the same member, at most WindowSize
	HeaderBit  int64 // InBlock: where the block's header starts
	HeaderBits int   // InBlock: its length
}

// MaxBlockHeader bounds the bytes a block header spans, at any bit phase: 17
// bits of counts, 19 code length lengths of 3 bits and at most 316 code lengths of
// 7 bits and 7 bits of repeat count each.
const MaxBlockHeader = 576

// HeaderBytes is the number of whole bytes the block header of an InBlock
// checkpoint touches.
func (c Checkpoint) HeaderBytes() int {
	return (int(c.HeaderBit&7) + c.HeaderBits + 7) / 8
}
