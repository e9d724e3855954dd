package profile

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/opencontainers/go-digest"
)

const (
	magic = "flprof\x00\x01" // the last byte is the version
	// maxDigest bounds the text of a digest: sha512 has 135 characters.
	maxDigest = 160
)

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrInvalid, fmt.Errorf(format, args...))
}

// Encode writes a profile. Equal profiles give equal bytes.
func (p *Profile) Encode() ([]byte, error) {
	if err := p.check(); err != nil {
		return nil, fmt.Errorf("encode profile: %w", err)
	}
	b := []byte(magic)
	b = appendText(b, string(p.Manifest))
	b = append(b, byte(p.Reason))
	b = binary.AppendUvarint(b, uint64(len(p.Command)))
	for _, a := range p.Command {
		b = appendText(b, a)
	}
	b = binary.AppendUvarint(b, uint64(len(p.Layers)))
	for _, l := range p.Layers {
		b = appendText(b, string(l.Digest))
		b = binary.AppendUvarint(b, uint64(l.Size))
	}
	b = binary.AppendUvarint(b, uint64(len(p.Parts)))
	next := make([]int64, len(p.Layers))
	for _, x := range p.Parts {
		b = binary.AppendUvarint(b, uint64(x.Layer))
		b = binary.AppendVarint(b, x.First-next[x.Layer])
		b = binary.AppendUvarint(b, uint64(x.Count))
		next[x.Layer] = x.First + x.Count
	}
	sum := sha256.Sum256(b)
	if b = append(b, sum[:]...); len(b) > MaxEncoded {
		return nil, fmt.Errorf("encode profile: %d bytes are more than %d", len(b), MaxEncoded)
	}
	return b, nil
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// Decode reads what Encode wrote, and nothing else: for any bytes it accepts,
// Encode gives them back.
func Decode(b []byte) (*Profile, error) {
	p, err := decode(b)
	if err != nil {
		return nil, fmt.Errorf("decode profile: %w", err)
	}
	return p, nil
}

func decode(b []byte) (*Profile, error) {
	if len(b) > MaxEncoded || len(b) < len(magic)+sha256.Size {
		return nil, invalid("%d bytes", len(b))
	}
	if !bytes.HasPrefix(b, []byte(magic)) {
		return nil, invalid("it begins with %x", b[:len(magic)])
	}
	body, sum := b[:len(b)-sha256.Size], b[len(b)-sha256.Size:]
	if got := sha256.Sum256(body); !bytes.Equal(got[:], sum) {
		return nil, invalid("checksum does not match")
	}
	d := decoder{b: body[len(magic):]}
	p := &Profile{Manifest: digest.Digest(d.text(maxDigest)), Reason: Reason(d.byte())}
	for range d.count(maxArguments) {
		p.Command = append(p.Command, d.text(maxText))
	}
	for range d.count(MaxLayers) {
		p.Layers = append(p.Layers, Layer{Digest: digest.Digest(d.text(maxDigest)), Size: d.number()})
	}
	next := make([]int64, len(p.Layers))
	for range d.count(MaxParts) {
		x := Part{Layer: int(d.number())}
		if d.err == nil && x.Layer >= len(p.Layers) {
			d.fail("part of layer %d", x.Layer)
		}
		delta := d.signed()
		x.Count = d.number()
		if d.err != nil {
			break
		}
		x.First = next[x.Layer] + delta
		next[x.Layer] = x.First + x.Count
		p.Parts = append(p.Parts, x)
	}
	if d.err == nil && len(d.b) > 0 {
		d.fail("%d bytes follow", len(d.b))
	}
	if d.err != nil {
		return nil, d.err
	}
	return p, p.check()
}

// decoder takes values off the front of b until the first error. Lists grow
// with the bytes they are read from, never by an announced count alone.
type decoder struct {
	b   []byte
	err error
}

func (d *decoder) fail(format string, args ...any) {
	if d.err == nil {
		d.err = invalid(format, args...)
	}
}

func (d *decoder) byte() byte {
	if len(d.b) == 0 {
		d.fail("it ends early")
	}
	if d.err != nil {
		return 0
	}
	c := d.b[0]
	d.b = d.b[1:]
	return c
}

// varint takes a number in its shortest form.
func (d *decoder) varint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 || n > 1 && d.b[n-1] == 0 {
		d.fail("a number is cut off, too large or too long")
	}
	if d.err != nil {
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) number() int64 {
	v := d.varint()
	if v > maxSize {
		d.fail("number %d", v)
		return 0
	}
	return int64(v)
}

// signed takes a zigzag number. Sums of two such stay within an int64.
func (d *decoder) signed() int64 {
	u := d.varint()
	v := int64(u >> 1)
	if u&1 != 0 {
		v = ^v
	}
	if v > maxSize || v < -maxSize {
		d.fail("number %d", v)
		return 0
	}
	return v
}

// count takes the length of a list; it is 0 after an error, also of a list
// that cannot be as long because too few bytes follow.
func (d *decoder) count(limit int64) int {
	n := d.number()
	if n > limit || n > int64(len(d.b)) {
		d.fail("%d entries", n)
	}
	if d.err != nil {
		return 0
	}
	return int(n)
}

func (d *decoder) text(limit int64) string {
	n := d.number()
	if n > limit || n > int64(len(d.b)) {
		d.fail("text of %d bytes", n)
	}
	if d.err != nil {
		return ""
	}
	s := string(d.b[:n])
	d.b = d.b[n:]
	return s
}
