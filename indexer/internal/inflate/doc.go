// Package inflate decodes DEFLATE (RFC 1951) inside gzip (RFC 1952) in a way
// the standard decoders cannot: it knows the bit position of everything, says
// which bytes of the 32 KiB window a piece of the stream really reads, and
// resumes in the middle of a stream from a Checkpoint.
//
// Split cuts a gzip file into pieces that can be inflated alone. Decoder.Resume
// inflates one of them.
//
// # Windows
//
// What a piece needs from before its start is not the 32 KiB window but the
// bytes of it that its matches read, usually 2 KiB. Only these are kept, in
// ascending order and without their positions: Resume decodes the first 32 KiB
// of the piece with anything in the window, thereby learns which window bytes
// the matches read, puts the kept bytes there, and does the matches again. The
// rule both sides share, a part of the index format: the matches that count are
// those that start less than WindowSize after the piece's start, and of each
// the bytes before that start.
//
// # Safety
//
// The loop stores and loads through unsafe pointers without bounds checks. It
// is safe because: input has inputPad zero bytes behind its end and the loop
// reads no further; output has OutputSlack bytes behind the limit, more than an
// iteration can write; a match never starts before the oldest valid byte, which
// lies in the output; table indexes are masked by the table's size. Run checks
// these conditions itself; no field of a Checkpoint can break them.
package inflate
