package region_test

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/firstlight-dev/firstlight/sharing/monitor/region"
)

const uuid = "GPU-12345678-1234-1234-1234-123456780000"

var now = time.Unix(1_800_000_000, 0)

// regionV1 is a region as HAMi-core 1.2 leaves it: one card, two processes.
func regionV1() []byte {
	b := make([]byte, 2008953)
	put32 := func(at int, v uint32) { binary.LittleEndian.PutUint32(b[at:], v) }
	put64 := func(at int, v uint64) { binary.LittleEndian.PutUint64(b[at:], v) }
	put32(0, 19920718)
	put32(4, 1)
	put32(8, 2)
	put64(56, 1)
	copy(b[64:], uuid)
	put64(1600, 15000<<20)
	put64(1728, 30)
	put32(2008896, 2)
	put64(2008912, uint64(now.Unix())-7)
	for slot := range 2 {
		at := 1856 + slot*1960
		for i, v := range []uint64{1, 2, 3, 0, 100} {
			put64(at+8+i*8, v<<20)
		}
		put64(at+1160+16, 12)
		put64(at+1936, 4) // not being written
	}
	return b
}

// regionV0 is one of the oldest form.
func regionV0() []byte {
	b := make([]byte, 1197897)
	binary.LittleEndian.PutUint32(b[0:], 19920718)
	binary.LittleEndian.PutUint64(b[48:], 1)
	copy(b[56:], uuid)
	binary.LittleEndian.PutUint64(b[1592:], 15000<<20)
	binary.LittleEndian.PutUint64(b[1720:], 30)
	binary.LittleEndian.PutUint32(b[1197880:], 1)
	binary.LittleEndian.PutUint64(b[1848+8+32:], 100<<20)
	binary.LittleEndian.PutUint64(b[1848+776+16:], 12)
	return b
}

func write(t *testing.T, b []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x.cache")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestRead(t *testing.T) {
	got, err := region.Read(write(t, regionV1()))
	if err != nil {
		t.Fatal(err)
	}
	want := &region.Region{LastKernel: now.Add(-7 * time.Second), Devices: []region.Device{{
		UUID: uuid, LimitBytes: 15000 << 20, CoreLimit: 30, UsedBytes: 200 << 20,
		Context: 2 << 20, Module: 4 << 20, Buffer: 6 << 20, Utilization: 24,
	}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("v1 (-want +got):\n%s", diff)
	}
	got, err = region.Read(write(t, regionV0()))
	if err != nil {
		t.Fatal(err)
	}
	want = &region.Region{Devices: []region.Device{{
		UUID: uuid, LimitBytes: 15000 << 20, CoreLimit: 30, UsedBytes: 100 << 20, Utilization: 12,
	}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("v0 (-want +got):\n%s", diff)
	}
}

func TestReadOfBadContainers(t *testing.T) {
	change := func(f func([]byte)) []byte {
		b := regionV1()
		f(b)
		return b
	}
	for name, tc := range map[string]struct {
		content []byte
		devices int // -1: refused
	}{
		"empty":            {nil, -1},
		"short":            {regionV1()[:1<<20], -1},
		"no magic":         {change(func(b []byte) { b[0] = 0 }), -1},
		"other version":    {change(func(b []byte) { b[4] = 9 }), -1},
		"too many devices": {change(func(b []byte) { binary.LittleEndian.PutUint64(b[56:], 1<<60) }), 16},
		"too many procs":   {change(func(b []byte) { binary.LittleEndian.PutUint32(b[2008896:], 1<<31) }), 1},
		"always written":   {change(func(b []byte) { b[1856+1936] = 5 }), 1},
		"sums overflow": {change(func(b []byte) {
			for slot := range 2 {
				binary.LittleEndian.PutUint64(b[1856+slot*1960+8+32:], 1<<63+1)
			}
		}), 1},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := region.Read(write(t, tc.content))
			if tc.devices < 0 {
				if err == nil {
					t.Errorf("Read = %+v, want an error", r)
				}
				return
			}
			if err != nil || len(r.Devices) != tc.devices {
				t.Fatalf("Read = %+v, %v; want %d devices", r, err, tc.devices)
			}
		})
	}
}

func TestReadFollowsNothing(t *testing.T) {
	dir := t.TempDir()
	link, fifo := filepath.Join(dir, "link.cache"), filepath.Join(dir, "fifo.cache")
	if err := os.Symlink(write(t, regionV1()), link); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{link, fifo, dir, filepath.Join(dir, "missing")} {
		if _, err := region.Read(path); err == nil {
			t.Errorf("%s was read", path)
		}
	}
	if _, err := region.Read(dir); !errors.Is(err, region.ErrFormat) {
		t.Errorf("a folder: %v", err)
	}
}
