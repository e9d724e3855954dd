package local_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/firstlight-dev/firstlight/launcher/cluster"
	"github.com/firstlight-dev/firstlight/launcher/local"
	"github.com/firstlight-dev/firstlight/snapshotter/nodeapi"
)

// recording is a snapshotter that records one start. What it is not asked for
// is missing.
type recording struct {
	nodeapi.Source
	nodeapi.ProfileSource
	stopped []nodeapi.ProfileRequest
}

func (*recording) Images(context.Context) ([]nodeapi.Image, error) { return nil, nil }

func (r *recording) StopRecording(_ context.Context, req nodeapi.ProfileRequest) (nodeapi.Profile, error) {
	r.stopped = append(r.stopped, req)
	if len(r.stopped) > 1 {
		return nodeapi.Profile{}, fmt.Errorf("no recording is on: %w", nodeapi.ErrNotFound)
	}
	return nodeapi.Profile{State: nodeapi.ProfileRecorded}, nil
}

// TestEndStart: the snapshotter is told which image's start is over, and what it
// runs; that none was recorded is no error.
func TestEndStart(t *testing.T) {
	m := newMachine(t)
	r := &recording{}
	socket := filepath.Join(t.TempDir(), "node.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: nodeapi.NewHandler(r, nil), ReadHeaderTimeout: time.Second}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(l) }()
	t.Cleanup(func() { _ = srv.Close(); <-done })

	config := v1.Config{Cmd: []string{"/bin/sleep", "100000"}, Env: []string{"PATH=/bin"}}
	pinned := m.push(t, "endstart", config)
	cfg := m.config(nil)
	cfg.NodeAPI = socket
	c, err := local.New(t.Context(), cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	env, _, _ := launch(t, "env-endstart", pinned, config, func(*cluster.Launch) {})
	if err := c.Start(t.Context(), env); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := c.EndStart(t.Context(), env.Env, []string{"train"}); err != nil {
			t.Fatal(err)
		}
	}
	_, manifest, _ := strings.Cut(pinned, "@")
	want := nodeapi.ProfileRequest{Image: manifest, Command: []string{"train"}, Usable: true}
	if d := cmp.Diff([]nodeapi.ProfileRequest{want, want}, r.stopped); d != "" {
		t.Errorf("asked (-want +got):\n%s", d)
	}
	if err := c.Stop(t.Context(), env.Env); err != nil {
		t.Fatal(err)
	}
}
