package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/firstlight-dev/firstlight/snapshotter/nodeapi"
)

// nodeSource is a snapshotter with one image.
type nodeSource struct{}

func (nodeSource) Status(context.Context) nodeapi.Status {
	return nodeapi.Status{Version: "v1", Mode: "erofs", FUSE: true, StartedAt: noon, WorkerRestarts: 2,
		Cache:      nodeapi.Cache{Bytes: 2_000_000_000, Limit: 8_000_000_000, HeldBytes: 1_000_000, EvictedChunks: 3, EvictedBytes: 3_000_000},
		Conditions: []nodeapi.Condition{{Name: "fuse", Status: nodeapi.ConditionOK}, {Name: "containerd", Status: nodeapi.ConditionDegraded, Message: "no answer"}}}
}

func (nodeSource) Images(context.Context) ([]nodeapi.Image, error) {
	return []nodeapi.Image{{Ref: "registry.example/a:1", PrepareMS: 120, Layers: []nodeapi.Layer{
		{Digest: "sha256:aa", State: nodeapi.StateComplete, CompressedSize: 1_000_000, BytesFetched: 1_000_000, Requests: 2, Chunks: 1, ChunksPresent: 1},
		{Digest: "sha256:bb", State: nodeapi.StateLazy, CompressedSize: 3_000_000, BytesFetched: 500_000, Requests: 3, OnDemandWaitMS: 250, Chunks: 4, ChunksPresent: 1},
	}}}, nil
}

func (nodeSource) Containers(context.Context) ([]nodeapi.Container, error) {
	return []nodeapi.Container{
		{ID: "train", Cgroup: "/default/train", Reads: 12, BytesRead: 3_000_000, OnDemandReads: 2, OnDemandWaitMS: 250, Requests: 3, BytesFetched: 500_000, LastRead: noon},
		{ID: "hostile\x1b[2J", Cgroup: "/default/hostile", Reads: 1, BytesRead: 4096, LastRead: noon.Add(time.Minute)},
	}, nil
}

func (nodeSource) Evict(_ context.Context, req nodeapi.EvictRequest) (nodeapi.Evicted, error) {
	if !req.All && req.Image != "registry.example/a:1" && req.Layer != "sha256:bb" && req.Image != "sha256:manifest" {
		return nodeapi.Evicted{}, fmt.Errorf("%s%s: %w", req.Image, req.Layer, nodeapi.ErrNotFound)
	}
	return nodeapi.Evicted{FreedBytes: 1_000_000, Layers: []nodeapi.EvictedLayer{{Digest: "sha256:aa", Kept: "it is complete"}, {Digest: "sha256:bb", FreedBytes: 1_000_000}}}, nil
}

func (nodeSource) Warm(_ context.Context, req nodeapi.WarmRequest, report func(nodeapi.Progress)) error {
	if req.Image == "nobody:1" {
		return fmt.Errorf("%s: %w", req.Image, nodeapi.ErrNotFound)
	}
	report(nodeapi.Progress{Image: req.Image, Layers: 2, LayersDone: 1, Chunks: 5, ChunksPresent: 2})
	if req.Image != "registry.example/a:1" {
		return errors.New("cache has no room")
	}
	report(nodeapi.Progress{Image: req.Image, Layers: 2, LayersDone: 2, Chunks: 5, ChunksPresent: 5, BytesFetched: 2_500_000})
	return nil
}

// noon is when things happened.
var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func serveNode(t *testing.T) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "node.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: nodeapi.NewHandler(nodeSource{}, nil), ReadHeaderTimeout: time.Second}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(l) }()
	t.Cleanup(func() { _ = srv.Close(); <-done })
	return socket
}

func runNode(t *testing.T, args ...string) (string, error) {
	t.Helper()
	cmd := newRootCommand()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetArgs(append([]string{"node"}, args...))
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

// golden compares with a file under testdata, or writes it with -update.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("%s (-want +got):\n%s", name, d)
	}
}

var update = flag.Bool("update", false, "write the golden files anew")

func TestNode(t *testing.T) {
	socket := serveNode(t)
	varying := regexp.MustCompile(`(?m)running for +[0-9hms]+|in [0-9.]+ s|"time":"[^"]*"|^[0-9:]{8}`)
	for name, args := range map[string][]string{
		"node-images.txt": {"images"}, "node-images.json": {"images", "-o", "json"},
		"node-status.txt": {"status"}, "node-status.json": {"status", "-o", "json"},
		"node-containers.txt": {"containers"}, "node-containers.json": {"containers", "-o", "json"},
		"node-evict.txt": {"evict", "registry.example/a:1"}, "node-evict.json": {"evict", "--all", "-o", "json"},
		"node-warm.txt": {"warm", "registry.example/a:1"}, "node-warm.json": {"warm", "registry.example/a:1", "-o", "json"},
		"node-top.txt": {"top", "--count", "2", "--interval", "100ms", "--rows", "1"}, "node-top.json": {"top", "--count", "1", "-o", "json"},
	} {
		out, err := runNode(t, append(args, "--node-address", socket)...)
		if err != nil {
			t.Errorf("%v: %v", args, err)
		}
		golden(t, name, varying.ReplaceAllStringFunc(out, func(s string) string {
			if strings.HasPrefix(s, `"time"`) {
				return `"time":"…"`
			}
			return "…"
		}))
	}
	for _, digest := range []string{"sha256:bb", "sha256:manifest"} {
		if out, err := runNode(t, "evict", digest, "--node-address", socket); err != nil || !strings.Contains(out, "1.0 MB freed") {
			t.Errorf("evict %s: %q, %v", digest, out, err)
		}
	}
}

// TestTopRates: rates are those of the time between two looks, and a worker that
// started meanwhile counts from zero.
func TestTopRates(t *testing.T) {
	look := func(at time.Duration, started time.Time, read, waited int64) *sample {
		return &sample{at: noon.Add(at), status: nodeapi.Status{StartedAt: started, Version: "v1", Mode: "erofs"}, containers: []nodeapi.Container{
			{ID: "calm", Cgroup: "/calm", BytesRead: 50},
			{ID: "busy", Cgroup: "/busy", BytesRead: read, BytesFetched: 2 * read, Requests: read / 1_000_000, OnDemandWaitMS: waited},
		}, images: []nodeapi.Image{{Ref: "a:1", Layers: []nodeapi.Layer{{Digest: "x", State: nodeapi.StateLazy, Chunks: 3, ChunksPresent: 1, BytesFetched: 2 * read}}}}}
	}
	first := look(0, noon, 1_000_000, 1000)
	top := topOf(first, look(2*time.Second, noon, 5_000_000, 2000))
	var b bytes.Buffer
	if err := printTop(&b, top, first.status, 5); err != nil {
		t.Fatal(err)
	}
	golden(t, "top-rates.txt", b.String())
	if c := topOf(nil, first).Containers[0]; c.ReadPerSecond != 0 || c.Waiting != 0 {
		t.Errorf("rates at the first look: %+v", c)
	}
	if c := topOf(first, look(time.Second, noon.Add(time.Second), 300, 500)).Containers[0]; c.ReadPerSecond != 300 || c.Waiting != 0.5 {
		t.Errorf("rates after a restart: %+v", c)
	}
}

func TestNodeErrors(t *testing.T) {
	if _, err := runNode(t, "images", "-o", "yaml"); exitCode(err) != exitUsage {
		t.Errorf("unknown output: %v", err)
	}
	socket := serveNode(t)
	for _, tc := range []struct {
		args string
		code int
	}{
		{"evict", exitUsage}, {"evict a b", exitUsage}, {"evict a --all", exitUsage}, {"evict nobody:1", exitNotFound}, {"evict sha256:00", exitNotFound},
		{"warm", exitUsage}, {"warm nobody:1", exitNotFound}, {"warm other:1", exitError},
		{"top --interval 1ms", exitUsage}, {"top --rows 0", exitUsage}, {"containers x", exitUsage},
	} {
		if _, err := runNode(t, append(strings.Fields(tc.args), "--node-address", socket)...); exitCode(err) != tc.code {
			t.Errorf("%s: %v", tc.args, err)
		}
	}
	none := filepath.Join(t.TempDir(), "none.sock")
	if _, err := runNode(t, "status", "--node-address", none); err == nil || !strings.Contains(err.Error(), none) {
		t.Errorf("no snapshotter: %v", err)
	}
}
