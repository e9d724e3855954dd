package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/opencontainers/go-digest"

	"github.com/firstlight-dev/firstlight/indexer/profile"
	"github.com/firstlight-dev/firstlight/snapshotter/nodeapi"
)

// profileNode is a snapshotter with a profile of one image.
type profileNode struct {
	nodeSource
	profile *profile.Profile
	asked   []string
}

func (n *profileNode) Profiles(context.Context) ([]nodeapi.Profile, error) {
	return []nodeapi.Profile{{Ref: "r/i:1", Manifest: n.profile.Manifest.String(), State: nodeapi.ProfileRecording}, summarize(n.profile)}, nil
}

func (n *profileNode) ProfileBytes(_ context.Context, manifest string) ([]byte, error) {
	if manifest != n.profile.Manifest.String() {
		return nil, fmt.Errorf("no profile of %s: %w", manifest, nodeapi.ErrNotFound)
	}
	return n.profile.Encode()
}

func (n *profileNode) RemoveProfiles(_ context.Context, manifest string) error {
	n.asked = append(n.asked, "rm "+manifest)
	return nil
}

func (n *profileNode) Record(_ context.Context, req nodeapi.ProfileRequest) (nodeapi.Profile, error) {
	n.asked = append(n.asked, "record "+req.Image)
	return nodeapi.Profile{Ref: req.Image, State: nodeapi.ProfileWanted}, nil
}

func (n *profileNode) StopRecording(_ context.Context, req nodeapi.ProfileRequest) (nodeapi.Profile, error) {
	return nodeapi.Profile{}, fmt.Errorf("no recording of %s is on: %w", req.Image, nodeapi.ErrNotFound)
}

func (n *profileNode) serve(t *testing.T) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "node.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: nodeapi.NewHandler(n, nil), ReadHeaderTimeout: time.Second}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(l) }()
	t.Cleanup(func() { _ = srv.Close(); <-done })
	return socket
}

func runProfile(t *testing.T, args ...string) (string, int) {
	t.Helper()
	cmd := newRootCommand()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetArgs(append([]string{"profile"}, args...))
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		return out.String() + err.Error(), exitCode(err)
	}
	return out.String(), 0
}

// pushed is an image in a registry, and its manifest's digest.
func pushed(t *testing.T) (string, digest.Digest) {
	t.Helper()
	s := httptest.NewServer(registry.New(registry.WithReferrersSupport(true), registry.Logger(slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo))))
	t.Cleanup(s.Close)
	ref := strings.TrimPrefix(s.URL, "http://") + "/team/image:1"
	r, err := name.ParseReference(ref)
	if err != nil {
		t.Fatal(err)
	}
	img := testImage(t, "amd64", tarGzip(t, "text", false))
	if err := remote.Write(r, img, remote.WithContext(t.Context())); err != nil {
		t.Fatal(err)
	}
	d, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return ref, digest.Digest(d.String())
}

func TestProfilePushShowRemove(t *testing.T) {
	ref, manifest := pushed(t)
	n := &profileNode{profile: &profile.Profile{Manifest: manifest, Command: []string{"python3", "-m", "app"}, Reason: profile.Usable,
		Layers: []profile.Layer{{Digest: digest.FromString("l"), Size: 5 << 20}}, Parts: []profile.Part{{First: 2, Count: 256}}}}
	socket := n.serve(t)
	if out, code := runProfile(t, "show", ref); code != exitNotFound {
		t.Errorf("show before: %d %s", code, out)
	}
	for i := range 2 { // the second takes the place of the first
		n.profile.Parts[0].First = int64(i)
		if out, code := runProfile(t, "push", "--node-address", socket, ref); code != 0 {
			t.Fatalf("push: %d %s", code, out)
		}
	}
	out, code := runProfile(t, "show", ref)
	want := fmt.Sprintf(`IMAGE                COMMAND         STATE     ENDED BY  READS    RANGES
%.19s  python3 -m app  recorded  usable    1.0 MiB  1
`, manifest)
	if d := cmp.Diff(want, out); d != "" || code != 0 {
		t.Errorf("show %d (-want +got):\n%s", code, d)
	}
	out, _ = runProfile(t, "show", "-o", "json", ref)
	var all struct{ Profiles []nodeapi.Profile }
	if err := json.Unmarshal([]byte(out), &all); err != nil || len(all.Profiles) != 1 || all.Profiles[0].Bytes != 1<<20 {
		t.Errorf("JSON is %s, %v", out, err)
	}
	if out, code := runProfile(t, "rm", ref); code != 0 {
		t.Errorf("rm: %d %s", code, out)
	}
	if out, code := runProfile(t, "rm", ref); code != exitNotFound {
		t.Errorf("rm of nothing: %d %s", code, out)
	}
	n.profile.Manifest = digest.FromString("another image")
	if out, code := runProfile(t, "push", "--node-address", socket, ref); code != exitNotFound || !strings.Contains(out, "on this machine") {
		t.Errorf("push of nothing: %d %s", code, out)
	}
}

func TestProfileOnNode(t *testing.T) {
	n := &profileNode{profile: &profile.Profile{Manifest: digest.FromString("m"), Command: []string{"sh", "\x1b[31m", strings.Repeat("x", 100)}, Reason: profile.Quiet,
		Layers: []profile.Layer{{Digest: digest.FromString("l"), Size: 1}}, Parts: []profile.Part{{Count: 1}}}}
	socket := n.serve(t)
	out, code := runProfile(t, "ls", "--node-address", socket)
	if code != 0 || !strings.Contains(out, "r/i:1") || !strings.Contains(out, "recording") || !strings.Contains(out, "quiet") || strings.Contains(out, "\x1b") {
		t.Errorf("ls: %d %q", code, out)
	}
	if out, code := runProfile(t, "record", "--node-address", socket, "r/i:2"); code != 0 || !strings.Contains(out, "wanted") {
		t.Errorf("record: %d %s", code, out)
	}
	if out, code := runProfile(t, "stop", "--node-address", socket, "r/i:1"); code != exitNotFound || !strings.Contains(out, "r/i:1") {
		t.Errorf("stop of no recording: %d %s", code, out)
	}
	if out, code := runProfile(t, "rm", "--local", "--node-address", socket, n.profile.Manifest.String()); code != 0 {
		t.Errorf("rm --local: %d %s", code, out)
	}
	if d := cmp.Diff([]string{"record r/i:2", "rm " + n.profile.Manifest.String()}, n.asked); d != "" {
		t.Errorf("asked (-want +got):\n%s", d)
	}
}

func TestProfileUsage(t *testing.T) {
	for _, args := range [][]string{{"record"}, {"stop", "a", "b"}, {"ls", "x"}, {"push"}, {"show", "-o", "yaml", "r/i:1"}, {"rm", "--local", "r/i:1"}, {"shwo"}} {
		if out, code := runProfile(t, args...); code != exitUsage {
			t.Errorf("%q: %d %s", args, code, out)
		}
	}
}
