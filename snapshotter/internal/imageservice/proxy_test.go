package imageservice

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// containerd notes what it is asked and answers with all that gRPC has.
type containerd struct {
	runtime.UnimplementedImageServiceServer
	asked chan *runtime.PullImageRequest
}

func (c *containerd) PullImage(ctx context.Context, r *runtime.PullImageRequest) (*runtime.PullImageResponse, error) {
	c.asked <- r
	md, _ := metadata.FromIncomingContext(ctx)
	if err := errors.Join(grpc.SetHeader(ctx, metadata.Pairs("asked-by", md.Get("who")[0])), grpc.SetTrailer(ctx, metadata.Pairs("trailer", "t"))); err != nil {
		return nil, err
	}
	if r.GetImage().GetImage() == "bad" {
		return nil, status.Error(codes.NotFound, "no such image")
	}
	return &runtime.PullImageResponse{ImageRef: "sha256:1"}, nil
}

func serve(t *testing.T, srv *grpc.Server) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sock")
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	t.Cleanup(func() {
		srv.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return path
}

func dial(t *testing.T, path string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func TestProxy(t *testing.T) {
	backend := grpc.NewServer()
	c := &containerd{asked: make(chan *runtime.PullImageRequest, 1)}
	runtime.RegisterImageServiceServer(backend, c)
	ring, _ := newRing(t)
	kubelet := runtime.NewImageServiceClient(dial(t, serve(t, NewProxy(dial(t, serve(t, backend)), ring).Server())))

	ctx := metadata.AppendToOutgoingContext(t.Context(), "who", "kubelet")
	var header, trailer metadata.MD
	auth := &runtime.AuthConfig{Username: "u", Password: "p"}
	got, err := kubelet.PullImage(ctx, &runtime.PullImageRequest{Image: &runtime.ImageSpec{Image: "r.example/a"}, Auth: auth}, grpc.Header(&header), grpc.Trailer(&trailer))
	if err != nil || got.GetImageRef() != "sha256:1" {
		t.Fatalf("got %v: %v", got, err)
	}
	if asked := <-c.asked; asked.GetAuth().GetPassword() != "p" {
		t.Error("containerd was asked something else")
	}
	if len(header.Get("asked-by")) != 1 || header.Get("asked-by")[0] != "kubelet" || len(trailer.Get("trailer")) != 1 {
		t.Errorf("header %v, trailer %v", header, trailer)
	}
	if !ring.Has("r.example/a") {
		t.Error("nothing was learnt")
	}

	_, err = kubelet.PullImage(ctx, &runtime.PullImageRequest{Image: &runtime.ImageSpec{Image: "bad"}})
	if <-c.asked; status.Code(err) != codes.NotFound || status.Convert(err).Message() != "no such image" {
		t.Errorf("a refusal: %v", err)
	}
	if _, err := kubelet.ListImages(ctx, &runtime.ListImagesRequest{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("what containerd does not know: %v", err)
	}
}

// TestProxyWithoutContainerd checks that kubelet learns of it at once.
func TestProxyWithoutContainerd(t *testing.T) {
	ring, _ := newRing(t)
	nobody := dial(t, filepath.Join(t.TempDir(), "nobody"))
	kubelet := runtime.NewImageServiceClient(dial(t, serve(t, NewProxy(nobody, ring).Server())))
	if _, err := kubelet.ListImages(t.Context(), &runtime.ListImagesRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("got %v", err)
	}
}
