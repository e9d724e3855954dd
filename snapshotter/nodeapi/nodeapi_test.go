package nodeapi_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/firstlight-dev/firstlight/snapshotter/nodeapi"
)

type source struct {
	status nodeapi.Status
	images []nodeapi.Image
	err    error
}

func (s source) Status(context.Context) nodeapi.Status           { return s.status }
func (s source) Images(context.Context) ([]nodeapi.Image, error) { return s.images, s.err }

// serve runs the API on a socket and returns a client of it.
func serve(t *testing.T, src nodeapi.Source) *nodeapi.Client {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "node.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: nodeapi.NewHandler(src, nil), ReadHeaderTimeout: time.Second}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(l) }()
	t.Cleanup(func() { srv.Close(); <-done })
	return nodeapi.NewClient(socket)
}

func TestRoundTrip(t *testing.T) {
	want := source{
		status: nodeapi.Status{Version: "1", Mode: "erofs", FUSE: true, StartedAt: time.Unix(1, 0).UTC(), WorkerRestarts: 2,
			Conditions: []nodeapi.Condition{{Name: "fuse", Status: nodeapi.ConditionOK}}},
		images: []nodeapi.Image{{Ref: "r/i:t", Manifest: "sha256:aa", PreparedAt: time.Unix(2, 0).UTC(), PrepareMS: 12,
			Layers: []nodeapi.Layer{{Digest: "sha256:bb", State: nodeapi.StateLazy, Size: 3, BytesFetched: 2, Chunks: 4, ChunksPresent: 1}}}},
	}
	c := serve(t, want)
	status, err := c.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want.status, status); d != "" {
		t.Errorf("status (-want +got):\n%s", d)
	}
	images, err := c.Images(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want.images, images); d != "" {
		t.Errorf("images (-want +got):\n%s", d)
	}
}

func TestErrorsReachTheClient(t *testing.T) {
	c := serve(t, source{err: errors.New("database is gone")})
	if _, err := c.Images(t.Context()); err == nil || !strings.Contains(err.Error(), "database is gone") {
		t.Fatalf("got %v, want the server's reason", err)
	}
}

func TestNobodyListens(t *testing.T) {
	c := nodeapi.NewClient(filepath.Join(t.TempDir(), "none.sock"))
	if _, err := c.Status(t.Context()); err == nil || !strings.Contains(err.Error(), "none.sock") {
		t.Fatalf("got %v, want an error naming the socket", err)
	}
}

func TestTotalsCountALayerOnce(t *testing.T) {
	l := nodeapi.Layer{Digest: "sha256:aa", Size: 10, BytesFetched: 4, Chunks: 2}
	im := nodeapi.Image{Layers: []nodeapi.Layer{l, {Digest: "sha256:bb", Size: 1}, l}}
	want := nodeapi.Layer{Size: 11, BytesFetched: 4, Chunks: 2}
	if d := cmp.Diff(want, im.Totals()); d != "" {
		t.Errorf("totals (-want +got):\n%s", d)
	}
}
