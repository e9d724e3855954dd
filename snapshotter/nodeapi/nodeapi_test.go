package nodeapi_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/firstlight-dev/firstlight/snapshotter/nodeapi"
)

type source struct {
	status     nodeapi.Status
	images     []nodeapi.Image
	containers []nodeapi.Container
	err        error
}

func (s source) Status(context.Context) nodeapi.Status           { return s.status }
func (s source) Images(context.Context) ([]nodeapi.Image, error) { return s.images, s.err }
func (s source) Containers(context.Context) ([]nodeapi.Container, error) {
	return s.containers, s.err
}

func (s source) Evict(_ context.Context, req nodeapi.EvictRequest) (nodeapi.Evicted, error) {
	return nodeapi.Evicted{Layers: []nodeapi.EvictedLayer{{Digest: req.Layer, Kept: req.Image}}, FreedBytes: 5}, s.err
}

func (s source) Warm(ctx context.Context, req nodeapi.WarmRequest, report func(nodeapi.Progress)) error {
	switch req.Image {
	case "nobody":
		return fmt.Errorf("image nobody: %w", nodeapi.ErrNotFound)
	case "endless":
		report(nodeapi.Progress{Image: req.Image})
		<-ctx.Done()
		return ctx.Err()
	}
	report(nodeapi.Progress{Image: req.Image, Chunks: 2, ChunksPresent: 1})
	report(nodeapi.Progress{Image: req.Image, Chunks: 2, ChunksPresent: 2})
	return s.err
}

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

func TestOrders(t *testing.T) {
	c := serve(t, source{containers: []nodeapi.Container{{ID: "a", OnDemandWaitMS: 3}}})
	containers, err := c.Containers(t.Context())
	if err != nil || len(containers) != 1 || containers[0].OnDemandWaitMS != 3 {
		t.Errorf("containers: %+v, %v", containers, err)
	}
	evicted, err := c.Evict(t.Context(), nodeapi.EvictRequest{Layer: "sha256:aa", Image: "i"})
	if want := (nodeapi.Evicted{Layers: []nodeapi.EvictedLayer{{Digest: "sha256:aa", Kept: "i"}}, FreedBytes: 5}); err != nil || !cmp.Equal(want, evicted) {
		t.Errorf("evicted %+v, %v", evicted, err)
	}
	var seen []nodeapi.Progress
	report := func(p nodeapi.Progress) { seen = append(seen, p) }
	if err := c.Warm(t.Context(), nodeapi.WarmRequest{Image: "i"}, report); err != nil {
		t.Error(err)
	}
	want := []nodeapi.Progress{{Image: "i", Chunks: 2, ChunksPresent: 1}, {Image: "i", Chunks: 2, ChunksPresent: 2}, {Image: "i", Chunks: 2, ChunksPresent: 2, Done: true}}
	if d := cmp.Diff(want, seen); d != "" {
		t.Errorf("progress (-want +got):\n%s", d)
	}
	if err := c.Warm(t.Context(), nodeapi.WarmRequest{Image: "nobody"}, report); !errors.Is(err, nodeapi.ErrNotFound) {
		t.Errorf("warm nobody: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if err := c.Warm(ctx, nodeapi.WarmRequest{Image: "endless"}, func(nodeapi.Progress) { cancel() }); !errors.Is(err, context.Canceled) {
		t.Errorf("warm until cancelled: %v", err)
	}
	c = serve(t, source{err: errors.New("no room")})
	if err := c.Warm(t.Context(), nodeapi.WarmRequest{Image: "i"}, report); err == nil || !strings.Contains(err.Error(), "no room") {
		t.Errorf("warm without room: %v", err)
	}
	if _, err := c.Evict(t.Context(), nodeapi.EvictRequest{All: true}); err == nil || errors.Is(err, nodeapi.ErrNotFound) {
		t.Errorf("evict: %v", err)
	}
}

func TestBadRequests(t *testing.T) {
	h := nodeapi.NewHandler(source{}, nil)
	for _, body := range []string{"", "{", "[]", `{"everything":true}`, `{"image":"` + strings.Repeat("x", 1<<17) + `"}`} {
		for _, path := range []string{"/v1/evict", "/v1/warm"} {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, strings.NewReader(body)))
			if w.Code != http.StatusBadRequest {
				t.Errorf("%s with %.20q: status %d", path, body, w.Code)
			}
		}
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
