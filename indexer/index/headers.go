package index

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// blockSize is the unit of a tar stream.
const blockSize = 512

// Entry is one tar entry: what archive/tar makes of its header blocks, and
// where they are in the tar stream.
type Entry struct {
	Header       *tar.Header
	HeaderOffset int64 // of the first of its header blocks, extension records included
	DataOffset   int64 // of its body
}

// BodySize is the number of bytes of the tar stream the body of an entry takes,
// without padding: the Size of its header says something else for entries that
// have none.
func BodySize(h *tar.Header) int64 {
	switch h.Typeflag {
	case tar.TypeLink, tar.TypeSymlink, tar.TypeChar, tar.TypeBlock, tar.TypeDir, tar.TypeFifo, tar.TypeXGlobalHeader:
		return 0
	}
	return h.Size
}

// Entries returns all entries in the order of the layer.
func (x *Index) Entries() ([]Entry, error) {
	entries := make([]Entry, 0, min(x.entries, 1<<16))
	err := x.WalkEntries(func(e Entry) error {
		entries = append(entries, e)
		return nil
	})
	return entries, err
}

// WalkEntries calls fn for each entry in the order of the layer, and fails with
// ErrInvalid if header stream and sizes do not add up to the tar stream.
func (x *Index) WalkEntries(fn func(Entry) error) error {
	return x.walk(fn, func(int64, []byte) error { return nil })
}

// WalkHeaders calls fn for each piece of the header stream, in order, with its
// offset in the tar stream. Pieces do not overlap; the gaps are bodies. The
// slice is valid during the call only.
func (x *Index) WalkHeaders(fn func(off int64, p []byte) error) error {
	return x.walk(func(Entry) error { return nil }, fn)
}

// CopyHeaders writes the header stream into w, each byte at its offset in the
// tar stream, so that a reader can serve everything but bodies from w.
func (x *Index) CopyHeaders(w io.WriterAt) error {
	return x.WalkHeaders(func(off int64, p []byte) error {
		_, err := w.WriteAt(p, off)
		return err
	})
}

func (x *Index) walk(entry func(Entry) error, piece func(int64, []byte) error) error {
	dec, err := newDecoder(bytes.NewReader(x.headers), MaxHeaders)
	if err != nil {
		return err
	}
	defer dec.Close()
	s := NewStream(dec, func(off int64, p []byte) error {
		return piece(off, p)
	})
	s.elided = true
	n, err := s.walk(x.Size, x.entries, entry)
	if err != nil {
		return err
	}
	switch {
	case n != x.entries:
		return fmt.Errorf("%w: %d entries, %d announced", ErrInvalid, n, x.entries)
	case s.pos != x.Size:
		return fmt.Errorf("%w: headers and bodies have %d bytes, the layer %d", ErrInvalid, s.pos, x.Size)
	case s.headers != x.headersSize:
		return fmt.Errorf("%w: %d bytes of tar headers, %d announced", ErrInvalid, s.headers, x.headersSize)
	}
	return nil
}

// Stream splits a tar stream into header stream and bodies by letting
// archive/tar read it, so that "header" means exactly what it means to
// containerd, which reads layers with the same package.
type Stream struct {
	r      io.Reader
	piece  func(off int64, p []byte) error
	elided bool // r has no bodies: they read as zeros

	pos     int64 // in the tar stream
	headers int64 // bytes of header stream before pos
	body    int64 // bytes of body still ahead
}

// NewStream reads the tar stream r. It calls piece for each piece of the header
// stream.
func NewStream(r io.Reader, piece func(off int64, p []byte) error) *Stream {
	return &Stream{r: r, piece: piece}
}

// Walk reads the stream to its end and calls fn for each entry. It fails with
// ErrUnsupported for what archive/tar refuses, and for sparse files.
func (s *Stream) Walk(fn func(Entry) error) (entries int, err error) {
	return s.walk(MaxSize, MaxEntries, fn)
}

func (s *Stream) walk(size int64, limit int, fn func(Entry) error) (n int, err error) {
	fail := ErrUnsupported
	if s.elided {
		fail = ErrInvalid
	}
	tr := tar.NewReader(s)
	var end int64 // of the entry before
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		var own *streamError
		switch {
		case errors.As(err, &own):
			return n, own.err
		case err != nil:
			return n, fmt.Errorf("%w: tar header at offset %d: %w", fail, s.pos, err)
		case n == limit:
			return n, fmt.Errorf("%w: more than %d entries", fail, limit)
		}
		if err := checkSparse(h); err != nil {
			return n, fmt.Errorf("%w: entry %.200q: %w", fail, h.Name, err)
		}
		e := Entry{Header: h, HeaderOffset: end, DataOffset: s.pos}
		s.body = BodySize(h)
		if s.body < 0 || s.body > size-s.pos {
			return n, fmt.Errorf("%w: entry %.200q at offset %d: %d bytes of content end behind the tar stream", fail, h.Name, s.pos, s.body)
		}
		padded := (s.body + blockSize - 1) &^ (blockSize - 1)
		end = s.pos + padded
		n++
		if err := fn(e); err != nil {
			return n, err
		}
	}
	// containerd reads what follows the end of the archive into the digest.
	if _, err := io.Copy(io.Discard, s); err != nil {
		var own *streamError
		if errors.As(err, &own) {
			return n, own.err
		}
		return n, err
	}
	return n, nil
}

// errSparse: the bodies of sparse files are not their content.
var errSparse = errors.New("sparse files are not supported")

func checkSparse(h *tar.Header) error {
	if h.Typeflag == tar.TypeGNUSparse {
		return errSparse
	}
	for k := range h.PAXRecords {
		if len(k) > 11 && k[:11] == "GNU.sparse." {
			return errSparse
		}
	}
	return nil
}

// streamError carries an error of the source or the callback through
// archive/tar unchanged.
type streamError struct{ err error }

func (e *streamError) Error() string { return e.err.Error() }
func (e *streamError) Unwrap() error { return e.err }

// Read serves archive/tar, and learns from it what is a header.
func (s *Stream) Read(p []byte) (int, error) {
	if s.body > 0 {
		return s.readBody(p[:min(int64(len(p)), s.body)])
	}
	n, err := s.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = &streamError{s.classify(err)}
	}
	if n > 0 {
		if perr := s.piece(s.pos, p[:n]); perr != nil {
			return n, &streamError{perr}
		}
		s.pos += int64(n)
		s.headers += int64(n)
	}
	return n, err
}

func (s *Stream) readBody(p []byte) (int, error) {
	n, err := len(p), error(nil)
	if s.elided {
		clear(p)
	} else if n, err = s.r.Read(p); err != nil && !errors.Is(err, io.EOF) {
		err = &streamError{err}
	}
	s.pos += int64(n)
	s.body -= int64(n)
	return n, err
}

func (s *Stream) classify(err error) error {
	if s.elided {
		return fmt.Errorf("%w: unpack tar headers: %w", ErrInvalid, err)
	}
	return err
}

// Seek lets archive/tar skip bodies without reading them. It only ever goes
// forward inside a body.
func (s *Stream) Seek(off int64, whence int) (int64, error) {
	if whence != io.SeekCurrent || off < 0 || off > s.body {
		return -1, fmt.Errorf("seek by %d in a body of %d bytes", off, s.body)
	}
	if !s.elided && off > 0 {
		if err := s.skip(off); err != nil {
			return -1, err
		}
	}
	s.pos += off
	s.body -= off
	return s.pos, nil
}

// skip passes bytes of the source by.
func (s *Stream) skip(n int64) error {
	if d, ok := s.r.(interface{ Discard(n int64) error }); ok {
		if err := d.Discard(n); err != nil {
			return &streamError{err}
		}
		return nil
	}
	m, err := io.CopyN(io.Discard, s.r, n)
	if err != nil && !errors.Is(err, io.EOF) {
		return &streamError{err}
	}
	if m < n {
		return io.ErrUnexpectedEOF
	}
	return nil
}
