package monitor_test

import (
	"encoding/binary"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sys/unix"

	"github.com/firstlight-dev/firstlight/sharing/monitor"
	"github.com/firstlight-dev/firstlight/sharing/wire"
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

func TestReadRegion(t *testing.T) {
	got, err := monitor.ReadRegion(write(t, regionV1()))
	if err != nil {
		t.Fatal(err)
	}
	want := &monitor.Region{LastKernel: now.Add(-7 * time.Second), Devices: []monitor.RegionDevice{{
		UUID: uuid, LimitBytes: 15000 << 20, CoreLimit: 30, UsedBytes: 200 << 20,
		Context: 2 << 20, Module: 4 << 20, Buffer: 6 << 20, Utilization: 24,
	}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("v1 (-want +got):\n%s", diff)
	}
	got, err = monitor.ReadRegion(write(t, regionV0()))
	if err != nil {
		t.Fatal(err)
	}
	want = &monitor.Region{Devices: []monitor.RegionDevice{{
		UUID: uuid, LimitBytes: 15000 << 20, CoreLimit: 30, UsedBytes: 100 << 20, Utilization: 12,
	}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("v0 (-want +got):\n%s", diff)
	}
}

func TestReadRegionOfBadContainers(t *testing.T) {
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
			r, err := monitor.ReadRegion(write(t, tc.content))
			if tc.devices < 0 {
				if err == nil {
					t.Errorf("ReadRegion = %+v, want an error", r)
				}
				return
			}
			if err != nil || len(r.Devices) != tc.devices {
				t.Fatalf("ReadRegion = %+v, %v; want %d devices", r, err, tc.devices)
			}
		})
	}
}

func TestReadRegionFollowsNothing(t *testing.T) {
	dir := t.TempDir()
	link, fifo := filepath.Join(dir, "link.cache"), filepath.Join(dir, "fifo.cache")
	if err := os.Symlink(write(t, regionV1()), link); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{link, fifo, dir, filepath.Join(dir, "missing")} {
		if _, err := monitor.ReadRegion(path); err == nil {
			t.Errorf("%s was read", path)
		}
	}
	if _, err := monitor.ReadRegion(dir); !errors.Is(err, monitor.ErrRegion) {
		t.Errorf("a folder: %v", err)
	}
}

func FuzzReadRegion(f *testing.F) {
	f.Add(uint64(1), uint32(2), uint32(1), []byte("GPU-x"))
	f.Add(uint64(1<<63), uint32(1<<31), uint32(2), []byte{0xff})
	f.Fuzz(func(t *testing.T, devices uint64, procs, major uint32, text []byte) {
		b := regionV1()
		binary.LittleEndian.PutUint32(b[4:], major)
		binary.LittleEndian.PutUint64(b[56:], devices)
		binary.LittleEndian.PutUint32(b[2008896:], procs)
		copy(b[64:64+96], text)
		r, err := monitor.ReadRegion(write(t, b))
		if err == nil && len(r.Devices) > 16 {
			t.Errorf("%d devices", len(r.Devices))
		}
	})
}

// names knows one pod.
type names struct{ synced bool }

func (names) Name(uid string) (string, string, bool) { return "team", "dev", uid == "known" }
func (n names) Synced() bool                         { return n.synced }

func containers(t *testing.T, pods monitor.PodNames) *monitor.Containers {
	t.Helper()
	dir := t.TempDir()
	for _, folder := range []string{"known_main", "gone_main", "stray"} {
		if err := os.Mkdir(filepath.Join(dir, folder), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, folder, "a.cache"), regionV1(), 0o600); err != nil {
			t.Fatal(err)
		}
		old := now.Add(-time.Hour)
		if err := os.Chtimes(filepath.Join(dir, folder), old, old); err != nil {
			t.Fatal(err)
		}
	}
	return &monitor.Containers{Dir: dir, Pods: pods, Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return now }}
}

func TestMetrics(t *testing.T) {
	cards := func() []wire.Device {
		return []wire.Device{{UUID: uuid, Type: "NVIDIA A100", Healthy: true}}
	}
	c := monitor.NewCollector("node1", cards, nil, containers(t, names{}))
	labels := `{container="main",device_uuid="` + uuid + `",namespace="team",pod="dev",vdevice_index="0",zone="vGPU"}`
	want := `
# HELP hami_vgpu_memory_used_bytes Memory that a container uses of a vGPU.
# TYPE hami_vgpu_memory_used_bytes gauge
hami_vgpu_memory_used_bytes` + labels + ` 2.097152e+08
# HELP hami_container_last_kernel_elapsed_seconds Time since a container launched a kernel.
# TYPE hami_container_last_kernel_elapsed_seconds gauge
hami_container_last_kernel_elapsed_seconds` + labels + ` 7
# HELP firstlight_card_healthy 1 if a card works.
# TYPE firstlight_card_healthy gauge
firstlight_card_healthy{device_index="0",device_type="NVIDIA A100",device_uuid="` + uuid + `",node="node1",zone="vGPU"} 1
`
	if err := testutil.CollectAndCompare(c, strings.NewReader(want), "hami_vgpu_memory_used_bytes",
		"hami_container_last_kernel_elapsed_seconds", "firstlight_card_healthy"); err != nil {
		t.Error(err)
	}
}

func TestSweep(t *testing.T) {
	exists := func(c *monitor.Containers, folder string) bool {
		_, err := os.Stat(filepath.Join(c.Dir, folder))
		return err == nil
	}
	c := containers(t, names{synced: false})
	if err := c.Sweep(); err != nil || !exists(c, "gone_main") {
		t.Errorf("swept before the pods were known: %v", err)
	}
	c = containers(t, names{synced: true})
	if err := c.Sweep(); err != nil {
		t.Fatal(err)
	}
	if exists(c, "gone_main") || !exists(c, "known_main") || !exists(c, "stray") {
		t.Error("swept the wrong folders")
	}
	c = &monitor.Containers{Dir: filepath.Join(c.Dir, "missing"), Pods: names{synced: true}}
	if err := c.Sweep(); err != nil {
		t.Errorf("without a folder: %v", err)
	}
}
