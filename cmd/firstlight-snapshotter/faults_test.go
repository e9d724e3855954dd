package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/firstlight-dev/firstlight/indexer/index"
	"github.com/firstlight-dev/firstlight/indexer/scan"
	"github.com/firstlight-dev/firstlight/snapshotter/nodeapi"
	"github.com/firstlight-dev/firstlight/test/trees"
)

// wantLog fails the test unless the snapshotter said so.
func (m *machine) wantLog(parts ...string) {
	m.Helper()
	log := m.log("snapshotter")
	for _, part := range parts {
		if !strings.Contains(log, part) {
			m.Errorf("the snapshotter does not say %q", part)
		}
	}
}

// TestFullPull meets trouble that must not cost more than the lazy start: the
// image is there, and what the snapshotter says tells a person what to do.
func TestFullPull(t *testing.T) {
	layers, implied := trees.Layers(bigFile)
	for _, tc := range []struct {
		name   string
		faults faults
		change func(*machine, *testImage) func(int, []byte) []byte // of the index
		says   []string
	}{
		{
			name: "registry has no answer to the search for an index",
			faults: func(w http.ResponseWriter, r *http.Request) bool {
				if !strings.Contains(r.URL.Path, "/referrers/") && !strings.Contains(r.URL.Path, "/manifests/sha256-") {
					return false
				}
				http.Error(w, "out of order", http.StatusServiceUnavailable)
				return true
			},
			says: []string{"look for the index of", "check that the registry is up"},
		},
		{
			name: "registry refuses ranges",
			faults: func(_ http.ResponseWriter, r *http.Request) bool {
				r.Header.Del("Range")
				return false
			},
			says: []string{"does not serve ranges", "must be pulled in full"},
		},
		{
			name: "index is damaged",
			change: func(*machine, *testImage) func(int, []byte) []byte {
				return func(_ int, b []byte) []byte {
					return b[:len(b)*2/3]
				}
			},
			says: []string{"index is of no use, the layer is pulled in full"},
		},
		{
			name: "index is that of another layer",
			change: func(m *machine, image *testImage) func(int, []byte) []byte {
				return func(i int, _ []byte) []byte {
					return encode(m, image.layers[(i+1)%len(image.layers)].blob)
				}
			},
			says: []string{"index is of no use, the layer is pulled in full"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := newMachine(t)
			m.startSnapshotter("--fill-after", "-1s")
			m.startContainerd()
			image := m.push("image:1", layers, gzipped, plain)
			var change func(int, []byte) []byte
			if tc.change != nil {
				change = tc.change(m, image)
			}
			m.index(image, change)
			m.fail(tc.faults)
			m.pull("firstlight", image.ref)
			for _, s := range m.states(image.ref) {
				if s != nodeapi.StateLocal {
					t.Errorf("a layer is %s", s)
				}
			}
			m.wantLog(tc.says...)
			m.sameTree(image, implied)
		})
	}
}

func encode(m *machine, blob []byte) []byte {
	m.Helper()
	ix, err := scan.Scan(m.Context(), scan.Layer{Reader: bytes.NewReader(blob), Size: -1})
	if err != nil {
		m.Fatal(err)
	}
	b, err := ix.Encode()
	if err != nil {
		m.Fatal(err)
	}
	return b
}

func TestCredentials(t *testing.T) {
	m := newMachine(t)
	m.startSnapshotter("--fill-after", "-1s")
	m.startContainerd()
	layers, _ := trees.Layers(bigFile)
	image := m.push("private:1", layers, gzipped)
	m.index(image, nil)
	const user, secret = "robot", "canary-5ecret"
	ask := func(w http.ResponseWriter, r *http.Request) bool {
		if u, p, ok := r.BasicAuth(); ok && u == user && p == secret {
			return false
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
		http.Error(w, `{"errors":[{"code":"UNAUTHORIZED"}]}`, http.StatusUnauthorized)
		return true
	}
	m.fail(ask)
	m.pull("firstlight", image.ref, "--user", user+":"+secret)
	if states := m.states(image.ref); states != nil {
		t.Errorf("lazy without credentials: %v", states)
	}
	m.wantLog("check this host's credentials in the snapshotter's docker config")

	// The file counts without a restart. Another manifest is another question.
	config := `{"auths":{"` + registryAddr + `":{"username":"` + user + `","password":"` + secret + `"}}}`
	if err := os.WriteFile(filepath.Join(m.dir, "docker.json"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	m.fail(nil)
	m.removeImage(image.ref)
	image = m.push("private:2", layers[:2], gzipped)
	m.index(image, nil)
	m.fail(ask)
	m.pull("firstlight", image.ref, "--user", user+":"+secret)
	if states := m.states(image.ref); len(states) != 2 || states[0] != nodeapi.StateLazy {
		t.Errorf("states with credentials: %v", states)
	}
	if strings.Contains(m.log("snapshotter"), secret) {
		t.Error("the log has the secret")
	}
}

// TestNoFUSE runs on a machine whose /dev/fuse is not one.
func TestNoFUSE(t *testing.T) {
	m := newMachine(t)
	nothing := m.ns.Root("/run/nothing")
	if err := os.WriteFile(nothing, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	m.run("mount", "--bind", "/run/nothing", "/dev/fuse")
	m.startSnapshotter()
	m.startContainerd()
	status, err := m.node().Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if status.FUSE || status.Mode != "none" || len(status.Conditions) == 0 || status.Conditions[0].Status != nodeapi.ConditionFailed {
		t.Errorf("status is %+v", status)
	}
	m.wantLog("no FUSE, so containerd pulls every image in full", "modprobe fuse")
	layers, implied := trees.Layers(bigFile)
	image := m.push("image:1", layers, gzipped)
	m.index(image, nil)
	m.pull("firstlight", image.ref)
	m.sameTree(image, implied)
}

// TestNoContainerd starts the snapshotter first and lets containerd restart.
func TestNoContainerd(t *testing.T) {
	m := newMachine(t)
	m.startSnapshotter("--fill-after", "-1s")
	condition := func() nodeapi.Condition {
		status, err := m.node().Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return status.Conditions[len(status.Conditions)-1]
	}
	if c := condition(); c.Status != nodeapi.ConditionDegraded || !strings.Contains(c.Message, "is containerd running") {
		t.Errorf("condition without containerd: %+v", c)
	}
	layers, _ := trees.Layers(bigFile)
	image := m.push("image:1", layers, gzipped)
	m.index(image, nil)
	first := m.startContainerd()
	if err := first.Stop(t.Context(), unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	m.startContainerd()
	m.pull("firstlight", image.ref)
	if states := m.states(image.ref); len(states) != 4 {
		t.Errorf("states: %v", states)
	}
	if c := condition(); c.Status != nodeapi.ConditionOK {
		t.Errorf("condition with containerd: %+v", c)
	}
}

// container runs a command in a container of the image.
func (m *machine) container(id string, image *testImage, argv ...string) (string, error) {
	return m.try(append([]string{"ctr", "run", "--rm", "--snapshotter", "firstlight", image.ref, id}, argv...)...)
}

// bigSum is the digest of the large file that the layers of package trees have.
func bigSum(t *testing.T, m *machine, image *testImage) string {
	t.Helper()
	tree := m.tree("overlayfs", image.ref, nil)
	return tree["/usr/lib/big.so"].SHA256
}

// TestTruncatedLayer: the registry has less of the layer than the manifest says.
func TestTruncatedLayer(t *testing.T) {
	m := newMachine(t)
	m.startSnapshotter("--fill-after", "-1s")
	m.startContainerd()
	layers, _ := trees.Layers(8 << 20)
	image := m.push("image:1", [][]byte{busybox(t), layers[0]}, gzipped)
	m.index(image, nil)
	m.pull("firstlight", image.ref)
	cut := image.layers[1]
	m.fail(func(w http.ResponseWriter, r *http.Request) bool {
		d, ok := blobOf(r)
		if !ok || d != cut.digest.String() {
			return false
		}
		http.ServeContent(w, r, "", trees.When, bytes.NewReader(cut.blob[:len(cut.blob)*2/3]))
		return true
	})
	out, err := m.container("truncated", image, "/bin/sha256sum", "/usr/lib/big.so")
	if err == nil {
		t.Errorf("the file was read: %s", out)
	} else if !strings.Contains(err.Error(), "input/output error") && !strings.Contains(err.Error(), "I/O error") {
		t.Errorf("the reader got %v, want an I/O error", err)
	}
	m.wantLog(cut.digest.String(), "shorter than the manifest says")
}

// TestLyingIndex: an index that names the layer but describes other bytes. No
// read may return them.
func TestLyingIndex(t *testing.T) {
	m := newMachine(t)
	m.startSnapshotter("--fill-after", "0s")
	m.startContainerd()
	layers, _ := trees.Layers(bigFile)
	image := m.push("image:1", [][]byte{busybox(t), layers[0]}, plain)
	m.index(image, func(i int, b []byte) []byte {
		if i != 1 {
			return b
		}
		other := bytes.Clone(image.layers[1].blob)
		for i := len(other) / 3; i < len(other)/3+len(other)/10; i++ {
			other[i] ^= 1
		}
		ix, err := scan.Scan(t.Context(), scan.Layer{Reader: bytes.NewReader(other), Size: -1})
		if err != nil {
			t.Fatal(err)
		}
		ix.Layer, ix.DiffID = digest.Digest(image.layers[1].digest.String()), digest.FromBytes(image.layers[1].tar)
		if b, err = ix.Encode(); err != nil {
			t.Fatal(err)
		}
		return b
	})
	m.pull("firstlight", image.ref)
	if out, err := m.container("lied-to", image, "/bin/sha256sum", "/usr/lib/big.so"); err == nil {
		t.Errorf("the file was read: %s", out)
	}
	m.wantLog(index.ErrMismatch.Error())
}

// TestIndexLiesAboutNames: the content is right, the modes are not. The check of
// the complete layer finds out.
func TestIndexLiesAboutNames(t *testing.T) {
	m := newMachine(t)
	m.startSnapshotter("--fill-after", "0s")
	m.startContainerd()
	tarOf := func(mode int64) []byte {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		content := []byte("#!/bin/sh\n")
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "tool", Mode: mode, Size: int64(len(content))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(content); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	image := m.push("image:1", [][]byte{busybox(t), tarOf(0o755)}, plain)
	m.index(image, func(i int, b []byte) []byte {
		if i != 1 {
			return b
		}
		honest, err := index.Decode(b)
		if err != nil {
			t.Fatal(err)
		}
		ix, err := scan.Scan(t.Context(), scan.Layer{Reader: bytes.NewReader(tarOf(0o4755)), Size: -1})
		if err != nil {
			t.Fatal(err)
		}
		ix.Layer, ix.DiffID, ix.Chunks = honest.Layer, honest.DiffID, honest.Chunks
		if b, err = ix.Encode(); err != nil {
			t.Fatal(err)
		}
		return b
	})
	m.pull("firstlight", image.ref)
	m.waitFor(m.snapshotter, func(context.Context) error {
		if states := m.states(image.ref); len(states) != 2 || states[1] != nodeapi.StateQuarantined {
			return fmt.Errorf("states are %v", states)
		}
		return nil
	})
	m.waitFor(m.snapshotter, func(context.Context) error { // the log comes after the state
		if !strings.Contains(m.log("snapshotter"), "layer quarantined") {
			return errors.New("the log does not say so")
		}
		return nil
	})
	if out, err := m.container("quarantined", image, "/bin/cat", "/tool"); err == nil {
		t.Errorf("the file was read: %s", out)
	}
}

// TestComplete fetches a layer in the background until nothing is missing. A
// container started then reads without the registry.
func TestComplete(t *testing.T) {
	m := newMachine(t)
	m.startSnapshotter("--fill-after", "0s")
	m.startContainerd()
	layers, implied := trees.Layers(bigFile)
	image := m.push("image:1", [][]byte{busybox(t), layers[0], layers[1]}, gzipped, plain)
	m.index(image, nil)
	m.pull("firstlight", image.ref)
	complete := nodeapi.StateComplete
	m.waitFor(m.snapshotter, func(context.Context) error {
		if d := cmp.Diff([]string{complete, complete, complete}, m.states(image.ref)); d != "" {
			return errors.New(d)
		}
		return nil
	})
	m.checkMetrics(image)
	down := m.count()
	before, err := m.container("complete", image, "/bin/sha256sum", "/usr/lib/big.so")
	if err != nil {
		t.Fatal(err)
	}
	for i, l := range image.layers {
		if full, ranged := down.of(l); full+ranged > 0 {
			t.Errorf("the complete layer %d was asked for", i)
		}
	}
	m.fail(nil)
	// A new session mounts complete layers from their files.
	// A new session mounts complete layers from their files.
	if err := m.snapshotter.Stop(t.Context(), unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	m.startSnapshotter("--fill-after", "-1s")
	m.awaitReconnect()
	if after, err := m.container("again", image, "/bin/sha256sum", "/usr/lib/big.so"); err != nil || after != before {
		t.Errorf("after the restart: %q, %v; before %q", after, err, before)
	}
	m.sameTree(image, implied)
}

// checkMetrics reads /metrics. What it says must not grow with images.
func (m *machine) checkMetrics(image *testImage) {
	m.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", m.ns.Root(nodeSocket))
	}}}
	resp, err := client.Get("http://node/metrics")
	if err != nil {
		m.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		m.Fatal(err)
	}
	text := string(b)
	for _, want := range []string{
		fmt.Sprintf(`firstlight_snapshotter_layers{state="complete"} %d`, len(image.layers)),
		`firstlight_snapshotter_chunks{state="missing"} 0`,
		`firstlight_snapshotter_images_total{outcome="lazy"} 1`,
		`firstlight_snapshotter_registry_requests_total{host="` + registryAddr + `",result="ok"}`,
		`firstlight_snapshotter_cache_evicted_chunks_total 0`,
	} {
		if !strings.Contains(text, want) {
			m.Errorf("metrics lack %s", want)
		}
	}
	// A host is a label, an image or layer never.
	hosts := regexp.MustCompile(`host="[^"]*"`)
	for _, never := range []string{registryAddr, "sha256:"} {
		if strings.Contains(hosts.ReplaceAllString(text, ""), never) {
			m.Errorf("metrics name %s", never)
		}
	}
}

// worker is the process id of the keeper's child.
func (m *machine) worker() int {
	m.Helper()
	pid, ok := m.findWorker()
	if !ok {
		m.Fatal("the keeper has no child, or several")
	}
	return pid
}

// findWorker returns the process id of the keeper's child, if there is one.
func (m *machine) findWorker() (pid int, ok bool) {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", m.snapshotter.PID()))
	if err != nil {
		return 0, false
	}
	var children []string
	for _, path := range threads {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // the thread ended
		}
		children = append(children, strings.Fields(string(b))...)
	}
	if len(children) != 1 {
		return 0, false
	}
	pid, err = strconv.Atoi(children[0])
	return pid, err == nil
}

// TestWorkerKilled kills workers while a container waits for bytes.
func TestWorkerKilled(t *testing.T) {
	for _, mode := range []string{"erofs", "fuse"} {
		t.Run(mode, func(t *testing.T) {
			m := newMachine(t)
			m.startSnapshotter("--mode", mode, "--fill-after", "-1s")
			m.startContainerd()
			layers, _ := trees.Layers(12 << 20)
			image := m.push("image:1", [][]byte{busybox(t), layers[0]}, gzipped)
			m.index(image, nil)
			m.pull("firstlight", image.ref)

			// Every range request of the layer reports and waits to be let go.
			asked, release := make(chan struct{}), make(chan struct{})
			m.fail(func(_ http.ResponseWriter, r *http.Request) bool {
				if d, ok := blobOf(r); ok && d == image.layers[1].digest.String() {
					select {
					case asked <- struct{}{}:
					case <-release:
					case <-r.Context().Done():
					}
					select {
					case <-release:
					case <-r.Context().Done():
					}
				}
				return false
			})
			type result struct {
				out string
				err error
			}
			done := make(chan result, 1)
			go func() {
				out, err := m.container("reader", image, "/bin/sha256sum", "/usr/lib/big.so")
				done <- result{out, err}
			}()
			for range 3 {
				select {
				case <-asked:
				case r := <-done:
					t.Fatalf("the container ended: %q, %v", r.out, r.err)
				}
				if err := unix.Kill(m.worker(), unix.SIGKILL); err != nil {
					t.Fatal(err)
				}
			}
			select {
			case <-asked:
			case r := <-done:
				t.Fatalf("the container ended: %q, %v", r.out, r.err)
			}
			close(release)
			r := <-done
			if r.err != nil {
				t.Fatal(r.err)
			}
			m.fail(nil)
			m.pull("overlayfs", image.ref)
			if want := bigSum(t, m, image); !strings.HasPrefix(r.out, want) {
				t.Errorf("the container read %q, want %s", r.out, want)
			}
			status, err := m.node().Status(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if status.WorkerRestarts != 3 {
				t.Errorf("the worker was started again %d times", status.WorkerRestarts)
			}
		})
	}
}

// TestRestartWithoutRegistry restarts everything of ours while the registry is
// down: what is cached is served, and the rest when the registry is back.
func TestRestartWithoutRegistry(t *testing.T) {
	for _, mode := range []string{"erofs", "fuse"} {
		t.Run(mode, func(t *testing.T) {
			m := newMachine(t)
			args := []string{"--mode", mode, "--fill-after", "-1s"}
			m.startSnapshotter(args...)
			m.startContainerd()
			layers, implied := trees.Layers(12 << 20)
			image := m.push("image:1", [][]byte{busybox(t), layers[0], layers[1]}, gzipped, zstandard, unindexed)
			m.index(image, nil)
			m.pull("firstlight", image.ref)
			before, err := m.container("before", image, "/bin/sha256sum", "/etc/hostname")
			if err != nil {
				t.Fatal(err)
			}
			if err := m.snapshotter.Stop(t.Context(), unix.SIGTERM); err != nil {
				t.Fatal(err)
			}
			down := make(chan struct{})
			asked := make(chan struct{}, 1)
			m.fail(func(w http.ResponseWriter, r *http.Request) bool {
				select {
				case <-down:
					return false
				default:
				}
				if _, ok := blobOf(r); ok {
					select {
					case asked <- struct{}{}:
					default:
					}
				}
				http.Error(w, "down", http.StatusBadGateway)
				return true
			})
			m.startSnapshotter(args...)
			m.awaitReconnect()
			after, err := m.container("after", image, "/bin/sha256sum", "/etc/hostname")
			if err != nil || after != before {
				t.Errorf("cached file: %q, %v; before the restart %q", after, err, before)
			}
			done := make(chan error, 1)
			var sum string
			go func() {
				var err error
				sum, err = m.container("waits", image, "/bin/sha256sum", "/usr/lib/big.so")
				done <- err
			}()
			select {
			case <-asked:
			case err := <-done:
				t.Fatalf("the container ended without the registry: %q, %v", sum, err)
			}
			close(down)
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			m.fail(nil)
			m.pull("overlayfs", image.ref)
			if want := bigSum(t, m, image); !strings.HasPrefix(sum, want) {
				t.Errorf("large file is %s, want %s", sum, want)
			}
			m.sameTree(image, implied)
		})
	}
}
