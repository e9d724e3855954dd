package main

import (
	"net/http"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/firstlight-dev/firstlight/snapshotter/nodeapi"
	"github.com/firstlight-dev/firstlight/test/trees"
)

const imageSocket = "/run/firstlight/images.sock"

// gatekeeper is a registry that wants another password for each repository, and
// notes what it was shown.
type gatekeeper struct {
	secrets map[string]string // by repository

	mu    sync.Mutex
	shown map[string]map[string]bool // passwords, by repository
}

func (g *gatekeeper) ask(w http.ResponseWriter, r *http.Request) bool {
	repository, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/v2/"), "/")
	_, password, _ := r.BasicAuth()
	g.mu.Lock()
	defer g.mu.Unlock()
	if password != "" {
		if g.shown[repository] == nil {
			g.shown[repository] = map[string]bool{}
		}
		g.shown[repository][password] = true
	}
	if want, ok := g.secrets[repository]; !ok || password == want {
		return false
	}
	w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
	http.Error(w, `{"errors":[{"code":"UNAUTHORIZED"}]}`, http.StatusUnauthorized)
	return true
}

// TestPullSecrets pulls two images as kubelet does, with a pull secret each,
// through the image service: both are lazy, each is read with its own secret,
// also by the next worker, and no secret is in a log or on disk.
func TestPullSecrets(t *testing.T) {
	m := newMachine(t)
	m.startSnapshotter("--fill-after", "-1s", "--image-address", imageSocket)
	m.startContainerdWithout()
	g := &gatekeeper{secrets: map[string]string{"one": "canary-0ne", "two": "canary-tw0"}, shown: map[string]map[string]bool{}}
	images := map[string]*testImage{}
	for name, size := range map[string]int{"one": bigFile, "two": 2 * bigFile} { // no layer in common
		layers, _ := trees.Layers(size)
		images[name] = m.push(name+"/image:1", [][]byte{layers[0], busybox(t)}, gzipped)
		m.index(images[name], nil)
	}
	m.fail(g.ask)
	conn, err := grpc.NewClient("unix://"+m.ns.Root(imageSocket), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	kubelet := cri.NewImageServiceClient(conn)
	pull := func(ref string, auth *cri.AuthConfig) error {
		_, err := kubelet.PullImage(t.Context(), &cri.PullImageRequest{Image: &cri.ImageSpec{Image: ref}, Auth: auth})
		return err
	}

	if err := pull(images["one"].ref, nil); status.Code(err) == codes.OK || !strings.Contains(err.Error(), "401") && !strings.Contains(err.Error(), "authorization") {
		t.Errorf("without a secret: %v", err)
	}
	for name, image := range images {
		if err := pull(image.ref, &cri.AuthConfig{Username: "robot", Password: g.secrets[name]}); err != nil {
			t.Fatal(err)
		}
		if states := m.states(image.ref); len(states) != 2 || states[0] != nodeapi.StateLazy {
			t.Errorf("%s is %v", name, states)
		}
	}
	if got, err := kubelet.ListImages(t.Context(), &cri.ListImagesRequest{}); err != nil || len(got.GetImages()) == 0 {
		t.Errorf("images are %v: %v", got, err)
	}
	if _, err := kubelet.ImageStatus(t.Context(), &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: images["one"].ref}}); err != nil {
		t.Error(err)
	}

	if err := unix.Kill(m.worker(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for name, image := range images {
		out := m.run("ctr", "-n", "k8s.io", "run", "--rm", "--snapshotter", "firstlight", image.ref, "reader-"+name, "/bin/sha256sum", "/usr/lib/big.so")
		if len(strings.Fields(out)) != 2 {
			t.Errorf("%s read %q", name, out)
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for name, want := range g.secrets {
		if shown := g.shown[name]; len(shown) != 1 || !shown[want] {
			t.Errorf("%s was shown %v", name, shown)
		}
	}
	if strings.Contains(m.log("snapshotter"), "canary") {
		t.Error("the log has a secret")
	}
	if out, err := m.try("grep", "-r", "-l", "canary-", "/var/lib/firstlight"); err == nil {
		t.Errorf("these files have a secret: %s", out)
	}
}
