package lab

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/firstlight-dev/firstlight/test/images"
)

// newLab starts a lab for one test. The folder is on the disk of the
// repository, because overlayfs does not stack on every temporary folder.
func newLab(t *testing.T) *Lab {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("namespaces and mounts need root")
	}
	l, err := Start(t.Context(), Config{Dir: t.TempDir(), Mbits: 1000})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func pushBusybox(t *testing.T, l *Lab, ref string) {
	t.Helper()
	maker := &images.Maker{Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler)}
	img, err := maker.Busybox(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := images.Push(t.Context(), img, ref, remote.WithTransport(l.Transport())); err != nil {
		t.Fatal(err)
	}
}

// A node's only way to the registry is its link, which counts what crosses.
func TestLink(t *testing.T) {
	l := newLab(t)
	n, err := l.machine(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	before, err := n.Received()
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return n.Dial(ctx, "tcp", RegistryAddress)
		},
	}}
	resp, err := client.Get("http://" + RegistryAddress + "/v2/")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("the registry answers %s", resp.Status)
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Fatal(err)
	}
	after, err := n.Received()
	if err != nil {
		t.Fatal(err)
	}
	if after <= before {
		t.Errorf("the link counted %d bytes before and %d after a request", before, after)
	}
}

// containerd on a node pulls by the lab's registry address and runs what it
// pulled, which covers mounts, cgroups and the configuration.
func TestContainerd(t *testing.T) {
	l := newLab(t)
	ref := RegistryAddress + "/busybox:1"
	pushBusybox(t, l, ref)
	n, err := l.machine(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := n.startContainerd(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Exec(t.Context(), "ctr", "image", "pull", "--hosts-dir", n.HostsDir(), ref); err != nil {
		t.Fatal(err)
	}
	out, err := n.Exec(t.Context(), "ctr", "run", "--rm", ref, "lab-test", "echo", "hello")
	if err != nil {
		t.Fatal(err)
	}
	if strings.TrimSpace(out) != "hello" {
		t.Errorf("the container says %q", out)
	}
}

func TestAProgramThatEndsEarlyIsNamedWithItsLog(t *testing.T) {
	l := newLab(t)
	n, err := l.machine(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(n.Dir, "containerd.toml"), []byte("no toml"), 0o644); err != nil {
		t.Fatal(err)
	}
	err = n.startContainerd(t.Context())
	if err == nil || !strings.Contains(err.Error(), "containerd ended early") {
		t.Errorf("error is %v", err)
	}
}
