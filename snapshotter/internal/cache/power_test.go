package cache

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

var errPower = errors.New("power is gone")

// powerDisk is a disk in memory that loses power after a number of steps, and
// then what was not synced, or any part of it.
type powerDisk struct {
	steps int // until the power goes; negative: for ever
	files map[string]*powerFile
	names map[string][]func(map[string]*powerFile) // by directory: changes that are not durable
	saved map[string]*powerFile                    // the names that are
	full  int                                      // writes to fail for want of space
}

func newPowerDisk(steps int) *powerDisk {
	return &powerDisk{steps: steps, files: map[string]*powerFile{}, names: map[string][]func(map[string]*powerFile){}, saved: map[string]*powerFile{}}
}

// step counts a change. The one at which the power goes still happens, or not,
// as crash decides.
func (d *powerDisk) step() error {
	if d.steps == 0 {
		return errPower
	}
	d.steps--
	return nil
}

func (d *powerDisk) rename(dir string, change func(map[string]*powerFile)) {
	change(d.files)
	d.names[dir] = append(d.names[dir], change)
}

// crash is what the next start finds: all that was synced, and of the rest what
// chance kept.
func (d *powerDisk) crash(rnd *rand.Rand) *powerDisk {
	next := newPowerDisk(-1)
	for name, f := range d.saved {
		next.files[name] = f
	}
	for _, changes := range d.names {
		for _, change := range changes[:rnd.IntN(len(changes)+1)] {
			change(next.files)
		}
	}
	for name, f := range next.files {
		next.files[name] = f.crash(next, rnd)
		next.saved[name] = next.files[name]
	}
	return next
}

// kill is what the next start finds after SIGKILL: everything.
func (d *powerDisk) kill() *powerDisk {
	next := newPowerDisk(-1)
	for name, f := range d.files {
		next.files[name] = &powerFile{disk: next, data: bytes.Clone(f.data), there: bytes.Clone(f.there)}
		next.saved[name] = next.files[name]
	}
	return next
}

func (d *powerDisk) MkdirAll(string) error { return nil }

func (d *powerDisk) Open(name string) (file, error) {
	if f := d.files[name]; f != nil {
		return f, nil
	}
	if err := d.step(); err != nil {
		return nil, err
	}
	f := &powerFile{disk: d}
	d.rename(filepath.Dir(name), func(m map[string]*powerFile) { m[name] = f })
	return f, nil
}

func (d *powerDisk) ReadFile(name string, _ int64) ([]byte, error) {
	if f := d.files[name]; f != nil {
		return bytes.Clone(f.data), nil
	}
	return nil, fs.ErrNotExist
}

func (d *powerDisk) WriteFile(name string, b []byte) error {
	if d.full > 0 {
		d.full--
		return unix.ENOSPC
	}
	f := &powerFile{disk: d}
	d.rename(filepath.Dir(name), func(m map[string]*powerFile) { m[name] = f })
	if _, err := f.WriteAt(b, 0); err != nil {
		return err
	}
	return f.Sync()
}

func (d *powerDisk) Rename(from, to string) error {
	if err := d.step(); err != nil {
		return err
	}
	d.rename(filepath.Dir(to), func(m map[string]*powerFile) {
		if m[from] != nil {
			m[to] = m[from]
			delete(m, from)
		}
	})
	return nil
}

func (d *powerDisk) SyncDir(dir string) error {
	if err := d.step(); err != nil {
		return err
	}
	for _, change := range d.names[dir] {
		change(d.saved)
	}
	delete(d.names, dir)
	return nil
}

func (d *powerDisk) Allocate(string, int64) error { return nil }
func (d *powerDisk) Remove(string) error          { return nil }

func (d *powerDisk) RemoveAll(dir string) error {
	if err := d.step(); err != nil {
		return err
	}
	d.rename(filepath.Dir(dir), func(m map[string]*powerFile) {
		for name := range m {
			if strings.HasPrefix(name, dir+"/") {
				delete(m, name)
			}
		}
	})
	return nil
}

func (d *powerDisk) Space(dir string) (n int64, err error) {
	for name, f := range d.files {
		if strings.HasPrefix(name, dir+"/") {
			n += f.space()
		}
	}
	return n, nil
}

func (d *powerDisk) Free(string) (int64, error) { return 1 << 40, nil }

// powerFile is a file with what was done to it since the last sync.
type powerFile struct {
	disk    *powerDisk
	data    []byte
	there   []byte // of each block whether it has space
	durable []byte
	kept    []byte // there, when synced
	pending []change
}

// change is a write, a hole (b is nil) or, with off -1, a new size.
type change struct {
	off, n int64
	b      []byte
}

const sector = 512

// crash applies to what was durable each sector of what was not with a chance
// of a half.
func (f *powerFile) crash(d *powerDisk, rnd *rand.Rand) *powerFile {
	next := &powerFile{disk: d, data: bytes.Clone(f.durable), there: bytes.Clone(f.kept)}
	for _, c := range f.pending {
		if c.off < 0 {
			if rnd.IntN(2) == 0 {
				next.resize(c.n)
			}
			continue
		}
		for at := c.off; at < c.off+c.n; {
			end := min((at/sector+1)*sector, c.off+c.n)
			if rnd.IntN(2) == 0 {
				next.apply(at, end, c.part(at, end))
			}
			at = end
		}
	}
	next.durable, next.kept = bytes.Clone(next.data), bytes.Clone(next.there)
	return next
}

func (c change) part(at, end int64) []byte {
	if c.b == nil {
		return nil
	}
	return c.b[at-c.off : end-c.off]
}

func (f *powerFile) apply(at, end int64, b []byte) {
	if int64(len(f.data)) < end {
		f.resize(end)
	}
	if b == nil {
		clear(f.data[at:end])
		for i := (at + block - 1) / block; (i+1)*block <= end; i++ {
			f.there[i] = 0
		}
		return
	}
	copy(f.data[at:end], b)
	for i := at / block; i*block < end; i++ {
		f.there[i] = 1
	}
}

func (f *powerFile) resize(n int64) {
	f.data = append(f.data, make([]byte, max(0, n-int64(len(f.data))))...)[:n]
	blocks := (n + block - 1) / block
	f.there = append(f.there, make([]byte, max(0, blocks-int64(len(f.there))))...)[:blocks]
}

func (f *powerFile) space() (n int64) {
	for _, t := range f.there {
		n += int64(t) * block
	}
	return n
}

func (f *powerFile) change(c change) error {
	if err := f.disk.step(); err != nil {
		return err
	}
	f.pending = append(f.pending, c)
	if c.off < 0 {
		f.resize(c.n)
		return nil
	}
	f.apply(c.off, c.off+c.n, c.b)
	return nil
}

func (f *powerFile) ReadAt(p []byte, off int64) (int, error) {
	if off > int64(len(f.data)) {
		return 0, io.EOF
	}
	n := copy(p, f.data[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (f *powerFile) WriteAt(p []byte, off int64) (int, error) {
	if f.disk.full > 0 {
		f.disk.full--
		half := len(p) / 2 // as a disk that fills up in the middle does
		if err := f.change(change{off, int64(half), bytes.Clone(p[:half])}); err != nil {
			return 0, err
		}
		return half, unix.ENOSPC
	}
	if err := f.change(change{off, int64(len(p)), bytes.Clone(p)}); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (f *powerFile) Close() error             { return nil }
func (f *powerFile) Touch(time.Time) error    { return nil }
func (f *powerFile) Truncate(n int64) error   { return f.change(change{off: -1, n: n}) }
func (f *powerFile) Punch(off, n int64) error { return f.change(change{off: off, n: n}) }

func (f *powerFile) Stat() (fileInfo, error) {
	return fileInfo{size: int64(len(f.data)), space: f.space()}, nil
}

func (f *powerFile) Sync() error {
	if err := f.disk.step(); err != nil {
		return err
	}
	f.durable, f.kept, f.pending = bytes.Clone(f.data), bytes.Clone(f.there), nil
	return nil
}

func (f *powerFile) DataEnd(off int64) (int64, error) {
	i := off / block
	if i >= int64(len(f.there)) || f.there[i] == 0 {
		return off, nil
	}
	for i < int64(len(f.there)) && f.there[i] == 1 {
		i++
	}
	return min(i*block, int64(len(f.data))), nil
}
