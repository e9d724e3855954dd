package region

import (
	"encoding/binary"
	"io"
	"testing"
)

// sparse is a region in which only a few places are written: whole ones are
// two megabytes, too slow to fuzz.
type sparse struct {
	size  int64
	parts map[int64][]byte
}

// ReadAt implements io.ReaderAt.
func (s sparse) ReadAt(p []byte, off int64) (int, error) {
	clear(p)
	for at, part := range s.parts {
		for i, b := range part {
			if k := at + int64(i) - off; k >= 0 && k < int64(len(p)) {
				p[k] = b
			}
		}
	}
	if off < 0 || off+int64(len(p)) > s.size {
		return 0, io.ErrUnexpectedEOF
	}
	return len(p), nil
}

func FuzzParse(f *testing.F) {
	f.Add(v1.size+1, uint32(1), uint64(1), uint32(2), []byte("GPU-x"), []byte{1})
	f.Add(v0.size+1, uint32(0), uint64(1<<63), uint32(1<<31), []byte{0xff}, []byte{0})
	f.Add(int64(8), uint32(1), uint64(1), uint32(1), []byte{}, []byte{})
	f.Fuzz(func(t *testing.T, size int64, major uint32, devices uint64, procs uint32, text, slot []byte) {
		const maxPart = 512 // keeps one try fast
		text, slot = text[:min(len(text), maxPart)], slot[:min(len(slot), maxPart)]
		head := binary.LittleEndian.AppendUint32(nil, magicReady)
		head = binary.LittleEndian.AppendUint32(head, major)
		s := sparse{size: size, parts: map[int64][]byte{0: head}}
		for _, l := range []layout{v0, v1} {
			if size < l.size {
				continue
			}
			s.parts[l.count] = binary.LittleEndian.AppendUint64(nil, devices)
			s.parts[l.procs] = binary.LittleEndian.AppendUint32(nil, procs%64)
			s.parts[l.uuids], s.parts[l.slots] = text, slot
		}
		r, err := parse(s, size)
		if err == nil && len(r.Devices) > maxDevices {
			t.Errorf("%d devices", len(r.Devices))
		}
	})
}
