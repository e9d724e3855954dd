package monitor_test

import (
	"encoding/binary"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

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
