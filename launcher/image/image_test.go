package image_test

import (
	"errors"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/firstlight-dev/firstlight/launcher/cluster"
	"github.com/firstlight-dev/firstlight/launcher/image"
)

func TestResolve(t *testing.T) {
	srv := httptest.NewServer(registry.New(registry.Logger(slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug))))
	t.Cleanup(srv.Close)
	host := strings.TrimPrefix(srv.URL, "http://")
	img, err := mutate.Config(empty.Image, v1.Config{
		Entrypoint: []string{"/start"}, Cmd: []string{"--serve"}, Env: []string{"A=b"}, User: "1000", WorkingDir: "/work",
	})
	if err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag(host + "/img:1")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(tag, img, remote.WithContext(t.Context())); err != nil {
		t.Fatal(err)
	}
	digest, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	r := &image.Registry{PlainHTTP: []string{host}}
	got, err := r.Resolve(t.Context(), host+"/img:1")
	if err != nil {
		t.Fatal(err)
	}
	want := cluster.Image{
		Reference: host + "/img:1", Pinned: host + "/img@" + digest.String(),
		Entrypoint: []string{"/start"}, Cmd: []string{"--serve"}, Env: []string{"A=b"}, User: "1000", WorkingDir: "/work",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	check(t, r, host+"/nobody:1", false)
	srv.Close()
	check(t, r, host+"/img:1", true)
}

// check expects an error that a retry may or may not cure.
func check(t *testing.T, r *image.Registry, ref string, retryable bool) {
	t.Helper()
	_, err := r.Resolve(t.Context(), ref)
	var failed *cluster.Error
	if !errors.As(err, &failed) || failed.Code != cluster.CodeImage || failed.Retryable != retryable {
		t.Errorf("%s: %v", ref, err)
	}
}
