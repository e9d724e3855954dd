package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/firstlight-dev/firstlight/snapshotter/nodeapi"
)

// nodeSource is a snapshotter with one image.
type nodeSource struct{}

func (nodeSource) Status(context.Context) nodeapi.Status {
	return nodeapi.Status{Version: "v1", Mode: "erofs", FUSE: true, StartedAt: time.Now(), WorkerRestarts: 2,
		Conditions: []nodeapi.Condition{{Name: "fuse", Status: nodeapi.ConditionOK}, {Name: "containerd", Status: nodeapi.ConditionDegraded, Message: "no answer"}}}
}

func (nodeSource) Images(context.Context) ([]nodeapi.Image, error) {
	return []nodeapi.Image{{Ref: "registry.example/a:1", PrepareMS: 120, Layers: []nodeapi.Layer{
		{Digest: "sha256:aa", State: nodeapi.StateComplete, CompressedSize: 1_000_000, BytesFetched: 1_000_000, Requests: 2},
		{Digest: "sha256:bb", State: nodeapi.StateLazy, CompressedSize: 3_000_000, BytesFetched: 500_000, Requests: 3, OnDemandWaitMS: 250},
	}}}, nil
}

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

func TestNode(t *testing.T) {
	socket := serveNode(t)
	out, err := runNode(t, "images", "--node-address", socket)
	if err != nil {
		t.Fatal(err)
	}
	want := `IMAGE                 LAYERS  STATE  SIZE    FETCHED  REQUESTS  WAITED  PREPARED IN
registry.example/a:1  2       lazy   4.0 MB  1.5 MB   5         250ms   120ms
`
	if d := cmp.Diff(want, out); d != "" {
		t.Errorf("images (-want +got):\n%s", d)
	}
	out, err = runNode(t, "images", "-o", "json", "--node-address", socket)
	if err != nil {
		t.Fatal(err)
	}
	var images []nodeapi.Image
	if err := json.Unmarshal([]byte(out), &images); err != nil || len(images) != 1 || len(images[0].Layers) != 2 {
		t.Errorf("JSON is %q, %v", out, err)
	}
	out, err = runNode(t, "status", "--node-address", socket)
	if err != nil || !strings.Contains(out, "worker restarts  2") || !strings.Contains(out, "degraded: no answer") {
		t.Errorf("status is %q, %v", out, err)
	}
}

func TestNodeErrors(t *testing.T) {
	if _, err := runNode(t, "images", "-o", "yaml"); exitCode(err) != exitUsage {
		t.Errorf("unknown output: %v", err)
	}
	none := filepath.Join(t.TempDir(), "none.sock")
	if _, err := runNode(t, "status", "--node-address", none); err == nil || !strings.Contains(err.Error(), none) {
		t.Errorf("no snapshotter: %v", err)
	}
}
