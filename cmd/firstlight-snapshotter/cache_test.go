package main

import (
	"context"
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/firstlight-dev/firstlight/snapshotter/nodeapi"
	"github.com/firstlight-dev/firstlight/test/trees"
)

// layersOf are the layers of an image, as the node API has them.
func (m *machine) layersOf(ref string) []nodeapi.Layer {
	m.Helper()
	images, err := m.node().Images(m.Context())
	if err != nil {
		m.Fatal(err)
	}
	for _, im := range images {
		if im.Ref == ref {
			return im.Layers
		}
	}
	m.Fatalf("no image %s", ref)
	return nil
}

// wantStates fails the test unless every layer of the image is in the state.
func (m *machine) wantStates(ref, state string, verified bool) {
	m.Helper()
	for i, l := range m.layersOf(ref) {
		if l.State != state || l.Verified != verified {
			m.Errorf("layer %d is %s, verified %v; want %s, %v", i, l.State, l.Verified, state, verified)
		}
	}
}

// TestEvictAndWarm completes an image by order, takes its bytes away while it is
// mounted, reads it, and completes it again. Once the kernel reads the files by
// itself, they stay.
func TestEvictAndWarm(t *testing.T) {
	for _, mode := range []string{"erofs", "fuse"} {
		t.Run(mode, func(t *testing.T) {
			m := newMachine(t)
			args := []string{"--mode", mode, "--fill-after", "-1s"}
			m.startSnapshotter(args...)
			m.startContainerd()
			layers, implied := trees.Layers(12 << 20)
			image := m.push("image:1", [][]byte{busybox(t), layers[0], layers[1]}, gzipped, plain)
			m.index(image, nil)
			m.pull("firstlight", image.ref)
			m.wantStates(image.ref, nodeapi.StateLazy, false)
			m.warm(image)
			m.wantStates(image.ref, nodeapi.StateComplete, true)

			used := m.cacheBytes()
			evicted, err := m.node().Evict(t.Context(), nodeapi.EvictRequest{Image: image.ref})
			if err != nil || evicted.FreedBytes < 10<<20 || len(evicted.Layers) != 3 {
				t.Fatalf("evicted %+v, %v", evicted, err)
			}
			if now := m.cacheBytes(); used-now < 10<<20 {
				t.Errorf("the cache occupies %d bytes, %d before", now, used)
			}
			m.wantStates(image.ref, nodeapi.StateLazy, true)
			m.run("sh", "-c", "echo 3 > /proc/sys/vm/drop_caches")
			m.sameTree(image, implied)
			sum := bigSum(t, m, image)
			if out, err := m.container("evicted", image, "/bin/sha256sum", "/usr/lib/big.so"); err != nil || !strings.HasPrefix(out, sum) {
				t.Errorf("read after an eviction: %q, %v; want %s", out, err, sum)
			}

			m.warm(image)
			if err := m.snapshotter.Stop(t.Context(), unix.SIGTERM); err != nil {
				t.Fatal(err)
			}
			m.startSnapshotter(args...)
			m.awaitReconnect()
			evicted, err = m.node().Evict(t.Context(), nodeapi.EvictRequest{All: true})
			if err != nil {
				t.Fatal(err)
			}
			kept := 0
			for _, l := range evicted.Layers {
				if l.Kept != "" {
					kept++
				}
			}
			if want := map[string]int{"erofs": 3, "fuse": 0}[mode]; kept != want {
				t.Errorf("%d layers were kept, want %d: %+v", kept, want, evicted)
			}
			m.sameTree(image, implied)
		})
	}
}

func (m *machine) warm(image *testImage) {
	m.Helper()
	var last nodeapi.Progress
	if err := m.node().Warm(m.Context(), nodeapi.WarmRequest{Image: image.ref}, func(p nodeapi.Progress) { last = p }); err != nil {
		m.Fatal(err)
	}
	if !last.Done || last.ChunksPresent != last.Chunks || last.LayersDone != len(image.layers) {
		m.Errorf("completed with %+v", last)
	}
}

func (m *machine) cacheBytes() int64 {
	m.Helper()
	s, err := m.node().Status(m.Context())
	if err != nil {
		m.Fatal(err)
	}
	return s.Cache.Bytes
}

// TestContainers: what a container waited for is told of it, and not of another.
func TestContainers(t *testing.T) {
	for _, mode := range []string{"erofs", "fuse"} {
		t.Run(mode, func(t *testing.T) {
			m := newMachine(t)
			m.startSnapshotter("--mode", mode, "--fill-after", "-1s")
			m.startContainerd()
			layers, _ := trees.Layers(12 << 20)
			image := m.push("image:1", [][]byte{busybox(t), layers[0]}, gzipped)
			m.index(image, nil)
			m.pull("firstlight", image.ref)
			if out, err := m.container("reader", image, "/bin/sha256sum", "/usr/lib/big.so"); err != nil {
				t.Fatal(out, err)
			}
			if out, err := m.container("idle", image, "/bin/sha256sum", "/etc/hostname"); err != nil {
				t.Fatal(out, err)
			}
			containers, err := m.node().Containers(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			read := map[string]nodeapi.Container{}
			for _, c := range containers {
				read[c.ID] = c
			}
			r := read["reader"]
			if r.BytesRead < 12<<20 || r.BytesFetched == 0 || r.Requests == 0 || r.OnDemandWaitMS == 0 || r.OnDemandReads == 0 {
				t.Errorf("the reader is %+v of %+v", r, containers)
			}
			if i := read["idle"]; i.BytesRead > 4<<20 {
				t.Errorf("the idle one is %+v", i)
			}
		})
	}
}

// TestWarmOfNobody: errors say what to do.
func TestWarmOfNobody(t *testing.T) {
	m := newMachine(t)
	m.startSnapshotter("--fill-after", "-1s")
	err := m.node().Warm(t.Context(), nodeapi.WarmRequest{Image: "nobody:1"}, func(nodeapi.Progress) { t.Error("progress of nobody") })
	if !errors.Is(err, nodeapi.ErrNotFound) {
		t.Errorf("warm: %v", err)
	}
	if _, err := m.node().Evict(t.Context(), nodeapi.EvictRequest{}); err == nil {
		t.Error("nothing was evicted without an error")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := m.node().Containers(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("containers: %v", err)
	}
}
