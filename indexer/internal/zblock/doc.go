// Package zblock decodes zstd (RFC 8878) in a way the library's decoder does
// not: it stops and resumes at any block, and says which bytes before a piece
// of the stream that piece really reads.
//
// Splitter cuts a zstd file into pieces that can be decoded alone, and
// Decoder.Resume decodes one of them. Huffman-coded literals are left to
// klauspost/compress; the sequences, whose offsets are what matters here, are
// decoded by this package.
//
// # Primes
//
// A piece that starts inside a frame needs what the decoder knew there: the
// bytes of the window that the piece's matches read, the three repeated
// offsets, and those of the four entropy tables that the piece uses before it
// brings its own. A Prime holds exactly these. The window may be megabytes; a
// prime has only the bytes that are read, as runs, and a look-up in the runs
// takes the place of the window, so that neither side needs memory for it.
//
// # Safety
//
// Nothing here is unsafe: an index that lies, or a file that is damaged, can
// cost an error but not memory beyond the sizes that callers state.
package zblock
