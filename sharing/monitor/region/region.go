// Package region reads the file in which HAMi-core's processes of one container
// share what they use of their vGPUs.
//
// The container owns the file and can write anything to it at any moment. It is
// therefore read, never mapped: a mapping of a file that is made shorter kills
// its reader. Versions 0, 1.1 and 1.2 of the format are known.
package region

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ErrFormat means that a file is no region that can be read.
var ErrFormat = errors.New("not a shared region of HAMi-core")

const (
	// magicReady is at the start of an initialised region.
	magicReady = 19920718
	maxDevices = 16
	maxProcs   = 1024
	uuidBytes  = 96
	// uuidLabel is how much of it is the UUID: "GPU-" and 36 characters.
	uuidLabel = 40
	// slotTries is how often a slot that is being written is read again.
	slotTries = 3
)

// layout is where a version of HAMi-core keeps what we read. All numbers are
// little-endian; offsets come from its C structures on 64-bit Linux.
type layout struct {
	size                      int64 // of the structure; the file is one byte longer
	count, uuids              int64
	memoryLimit, coreLimit    int64
	slots, slotSize           int64
	procs, lastKernel         int64
	used, usedSize, usedTotal int64 // in a slot: per device {context, module, data, offset, total}
	util, utilSize, utilCore  int64 // in a slot: per device {decoder, encoder, cores}
	sequence                  int64 // in a slot: odd while it is written; 0 if there is none
}

var (
	// v0 is before the version fields.
	v0 = layout{
		size: 1197896, count: 48, uuids: 56, memoryLimit: 1592, coreLimit: 1720,
		slots: 1848, slotSize: 1168, procs: 1197880, lastKernel: 0,
		used: 8, usedSize: 40, usedTotal: 32, util: 776, utilSize: 24, utilCore: 16,
	}
	// v1 covers minor versions 1 and 2, which differ only in the sequence; in
	// version 1 that place is unused and zero, so even.
	v1 = layout{
		size: 2008952, count: 56, uuids: 64, memoryLimit: 1600, coreLimit: 1728,
		slots: 1856, slotSize: 1960, procs: 2008896, lastKernel: 2008912,
		used: 8, usedSize: 64, usedTotal: 32, util: 1160, utilSize: 48, utilCore: 16,
		sequence: 1936,
	}
)

// Region is what a container's processes share about their vGPUs.
type Region struct {
	Devices    []Device
	LastKernel time.Time // zero if unknown
}

// Device is one vGPU, summed over the container's processes.
type Device struct {
	UUID        string
	LimitBytes  uint64 // 0 for none
	CoreLimit   uint64 // percent
	UsedBytes   uint64
	Context     uint64 // parts of UsedBytes
	Module      uint64
	Buffer      uint64
	Utilization uint64 // percent of cores
}

// Read reads a region's file. The container can write to the file, make
// it shorter at any moment, or put something else in its place; so it is read,
// not mapped, links are not followed, and every number is bounded.
func Read(path string) (*Region, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open region: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("open region: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%w: %s is no regular file", ErrFormat, path)
	}
	return parse(f, info.Size())
}

func parse(file io.ReaderAt, size int64) (*Region, error) {
	r := reader{file: file}
	l, err := r.layout(size)
	if err != nil {
		return nil, err
	}
	region := r.region(l)
	if r.err != nil {
		return nil, fmt.Errorf("read region: %w", r.err)
	}
	return region, nil
}

// reader reads numbers at offsets and remembers the first error.
type reader struct {
	file io.ReaderAt
	err  error
}

func (r *reader) bytes(offset, n int64) []byte {
	b := make([]byte, n)
	if r.err == nil {
		_, r.err = r.file.ReadAt(b, offset)
	}
	if r.err != nil {
		clear(b)
	}
	return b
}

func (r *reader) u32(offset int64) uint32 { return binary.LittleEndian.Uint32(r.bytes(offset, 4)) }
func (r *reader) u64(offset int64) uint64 { return binary.LittleEndian.Uint64(r.bytes(offset, 8)) }

// layout tells the version of a region by its size, as HAMi does.
func (r *reader) layout(size int64) (layout, error) {
	magic, major := r.u32(0), r.u32(4)
	switch {
	case r.err != nil:
		return layout{}, fmt.Errorf("read region: %w", r.err)
	case magic != magicReady:
		return layout{}, fmt.Errorf("%w: it is not initialised", ErrFormat)
	case size >= v0.size && size < v1.size:
		return v0, nil
	case size >= v1.size && major == 1:
		return v1, nil
	}
	return layout{}, fmt.Errorf("%w: %d bytes of version %d", ErrFormat, size, major)
}

func (r *reader) region(l layout) *Region {
	region := &Region{Devices: make([]Device, min(r.u64(l.count), maxDevices))}
	for i := range region.Devices {
		d := &region.Devices[i]
		at := int64(i)
		uuid := string(r.bytes(l.uuids+at*uuidBytes, uuidLabel))
		if end := strings.IndexByte(uuid, 0); end >= 0 {
			uuid = uuid[:end]
		}
		d.UUID = strings.ToValidUTF8(uuid, "?")
		d.LimitBytes = r.u64(l.memoryLimit + at*8)
		d.CoreLimit = r.u64(l.coreLimit + at*8)
	}
	for i := range int64(min(r.u32(l.procs), maxProcs)) {
		if slot := r.slot(l, i); slot != nil {
			region.add(l, slot)
		}
	}
	if seconds := r.lastKernel(l); seconds > 0 && seconds < math.MaxInt32 {
		region.LastKernel = time.Unix(int64(seconds), 0)
	}
	return region
}

func (r *reader) lastKernel(l layout) uint64 {
	if l.lastKernel == 0 {
		return 0
	}
	return r.u64(l.lastKernel)
}

// slot returns a process's part, or nil if it is written all the time.
func (r *reader) slot(l layout, i int64) []byte {
	for range slotTries {
		before := r.sequence(l, i)
		slot := r.bytes(l.slots+i*l.slotSize, l.slotSize)
		if before%2 == 0 && r.sequence(l, i) == before {
			return slot
		}
	}
	return nil
}

func (r *reader) sequence(l layout, i int64) uint64 {
	if l.sequence == 0 {
		return 0
	}
	return r.u64(l.slots + i*l.slotSize + l.sequence)
}

// add sums a process's part up. The figures are the container's word: sums stop
// at the largest number instead of wrapping.
func (region *Region) add(l layout, slot []byte) {
	for i := range region.Devices {
		d := &region.Devices[i]
		used := slot[l.used+int64(i)*l.usedSize:]
		d.Context = plus(d.Context, binary.LittleEndian.Uint64(used))
		d.Module = plus(d.Module, binary.LittleEndian.Uint64(used[8:]))
		d.Buffer = plus(d.Buffer, binary.LittleEndian.Uint64(used[16:]))
		d.UsedBytes = plus(d.UsedBytes, binary.LittleEndian.Uint64(used[l.usedTotal:]))
		util := slot[l.util+int64(i)*l.utilSize:]
		d.Utilization = plus(d.Utilization, binary.LittleEndian.Uint64(util[l.utilCore:]))
	}
}

func plus(a, b uint64) uint64 {
	if a > math.MaxUint64-b {
		return math.MaxUint64
	}
	return a + b
}
