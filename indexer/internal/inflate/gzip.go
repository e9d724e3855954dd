package inflate

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// Flags of a gzip member header (RFC 1952, section 2.3.1).
const (
	flagHeaderCRC = 1 << 1
	flagExtra     = 1 << 2
	flagName      = 1 << 3
	flagComment   = 1 << 4
	flagReserved  = 0xe0
)

// maxHeaderString bounds name and comment. Go's reader, and so containerd's,
// takes no longer ones.
const maxHeaderString = 512

// memberHeader reads the header of a gzip member.
func (d *Decoder) memberHeader() error {
	var sum uint32
	next := func(n int) ([]byte, error) {
		b, err := d.bytes(n)
		sum = crc32.Update(sum, crc32.IEEETable, b)
		return b, err
	}
	b, err := next(10)
	if err != nil {
		return err
	}
	if b[0] != 0x1f || b[1] != 0x8b || b[2] != 8 || b[3]&flagReserved != 0 {
		return fmt.Errorf("%w: not a gzip header", ErrCorrupt)
	}
	flags := b[3]
	if flags&flagExtra != 0 {
		if b, err = next(2); err != nil {
			return err
		}
		for n := int(binary.LittleEndian.Uint16(b)); n > 0; {
			k := min(n, inputReserve)
			if _, err = next(k); err != nil {
				return err
			}
			n -= k
		}
	}
	for _, f := range []byte{flagName, flagComment} {
		if flags&f == 0 {
			continue
		}
		if err := skipString(next); err != nil {
			return err
		}
	}
	if flags&flagHeaderCRC != 0 {
		want := uint16(sum)
		if b, err = next(2); err != nil {
			return err
		}
		if binary.LittleEndian.Uint16(b) != want {
			return fmt.Errorf("%w: gzip header checksum differs", ErrCorrupt)
		}
	}
	return nil
}

func skipString(next func(int) ([]byte, error)) error {
	for range maxHeaderString {
		b, err := next(1)
		if err != nil {
			return err
		}
		if b[0] == 0 {
			return nil
		}
	}
	return fmt.Errorf("%w: a string of the gzip header has more than %d bytes", ErrCorrupt, maxHeaderString)
}

// memberTrailer reads checksum and size, modulo 2^32, of a member.
func (d *Decoder) memberTrailer() (sum, size uint32, err error) {
	b, err := d.bytes(8)
	if err != nil {
		return 0, 0, err
	}
	return binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:]), nil
}
