package local_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/firstlight-dev/firstlight/launcher/agentapi"
	"github.com/firstlight-dev/firstlight/launcher/cluster"
	"github.com/firstlight-dev/firstlight/launcher/local"
	"github.com/firstlight-dev/firstlight/launcher/spec"
	"github.com/firstlight-dev/firstlight/launcher/tunnel"
	"github.com/firstlight-dev/firstlight/sharing/wire"
	"github.com/firstlight-dev/firstlight/test/sandbox"
)

// patience bounds every wait of these tests; none of them asserts a time.
const patience = 2 * time.Minute

// machine is a registry and a containerd, with nothing of the host's own.
type machine struct {
	dir, tools, socket, registry, agent, namespace string
}

var buildAgent = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "firstlight-local-test")
	if err != nil {
		return "", err
	}
	out := filepath.Join(dir, "firstlight-agent")
	cmd := exec.Command("go", "build", "-trimpath", "-o", out, "github.com/firstlight-dev/firstlight/cmd/firstlight-agent")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if msg, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build agent: %w: %s", err, msg)
	}
	return out, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if path, err := buildAgent(); err == nil {
		_ = os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root to run containers")
	}
	tools, err := sandbox.Tools()
	if err != nil {
		t.Fatal(err)
	}
	agent, err := buildAgent()
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{dir: t.TempDir(), tools: tools, agent: agent, namespace: fmt.Sprintf("fltest%d-%d", os.Getpid(), rand.N(1<<20))}
	m.socket = filepath.Join(m.dir, "c.sock")
	m.startRegistry(t)
	m.startContainerd(t)
	return m
}

func (m *machine) startRegistry(t *testing.T) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m.registry = l.Addr().String()
	_ = l.Close()
	config := filepath.Join(m.dir, "registry.yml")
	write(t, config, fmt.Sprintf("version: 0.1\nlog: {level: error, accesslog: {disabled: true}}\nstorage: {filesystem: {rootdirectory: %s/registry}}\nhttp: {addr: %q}\n", m.dir, m.registry))
	m.daemon(t, "registry", "serve", config)
	await(t, "registry", func() bool {
		res, err := http.Get("http://" + m.registry + "/v2/")
		if err != nil {
			return false
		}
		_ = res.Body.Close()
		return res.StatusCode == http.StatusOK
	})
	write(t, filepath.Join(m.hostsDir(), m.registry, "hosts.toml"), fmt.Sprintf("server = \"http://%s\"\n", m.registry))
}

func (m *machine) hostsDir() string { return filepath.Join(m.dir, "hosts") }

const containerdConfig = `version = 4
root = '%[1]s/root'
state = '%[1]s/state'
disabled_plugins = ['io.containerd.cri.v1.images', 'io.containerd.cri.v1.runtime', 'io.containerd.grpc.v1.cri', 'io.containerd.snapshotter.v1.devmapper', 'io.containerd.snapshotter.v1.zfs', 'io.containerd.snapshotter.v1.blockfile', 'io.containerd.snapshotter.v1.btrfs', 'io.containerd.tracing.processor.v1.otlp', 'io.containerd.nri.v1.nri']
[plugins.'io.containerd.server.v1.debug']
  level = 'warn'
[plugins.'io.containerd.server.v1.grpc']
  address = '%[2]s'
[plugins.'io.containerd.server.v1.ttrpc']
  address = '%[2]s.ttrpc'
[plugins.'io.containerd.internal.v1.opt']
  path = '%[1]s/opt'
`

func (m *machine) startContainerd(t *testing.T) {
	t.Helper()
	config := filepath.Join(m.dir, "containerd.toml")
	write(t, config, fmt.Sprintf(containerdConfig, m.dir, m.socket))
	m.daemon(t, "containerd", "--config", config)
	t.Cleanup(func() { m.sweep(t) }) // before the daemon ends
	await(t, "containerd", func() bool {
		conn, err := net.Dial("unix", m.socket)
		if err != nil {
			return false
		}
		_ = conn.Close()
		_, err = m.ctr("version")
		return err == nil
	})
}

// daemon runs a program until the test ends.
func (m *machine) daemon(t *testing.T, program string, args ...string) {
	t.Helper()
	log, err := os.Create(filepath.Join(m.dir, program+".log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(m.tools, program), args...)
	cmd.Env = append(os.Environ(), "PATH="+m.tools+":"+os.Getenv("PATH")+":/usr/sbin")
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatalf("start %s (make tools builds it): %v", program, err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		_ = log.Close()
		if t.Failed() {
			if b, err := os.ReadFile(log.Name()); err == nil {
				t.Logf("%s:\n%s", program, b[max(0, len(b)-4096):])
			}
		}
	})
}

func (m *machine) ctr(args ...string) (string, error) {
	cmd := exec.Command(filepath.Join(m.tools, "ctr"), append([]string{"-a", m.socket, "-n", m.namespace}, args...)...)
	out, err := cmd.Output() // deprecation notices go to standard error
	return string(out), err
}

// sweep removes what a failed test left, and checks that nothing stays.
func (m *machine) sweep(t *testing.T) {
	t.Helper()
	c, err := local.New(context.Background(), m.config(nil), slog.New(slog.DiscardHandler))
	if err == nil {
		all, err := c.Observe(context.Background())
		if err != nil {
			t.Error(err)
		}
		for _, o := range all {
			if err := c.Stop(context.Background(), o.Env); err != nil {
				t.Errorf("sweep %s: %v", o.Env, err)
			}
		}
		_ = c.Close()
	}
	for _, list := range []string{"tasks", "containers"} {
		if out, err := m.ctr(list, "ls", "-q"); err != nil || strings.TrimSpace(out) != "" {
			t.Errorf("%s left behind: %q %v", list, out, err)
		}
	}
	roots, _ := filepath.Glob("/sys/fs/cgroup/*/" + m.namespace)
	for _, dir := range roots {
		_ = os.Remove(dir)
	}
}

func (m *machine) config(cards []wire.Device) local.Config {
	return local.Config{
		Name: "here", Node: "node-1", Containerd: m.socket, Namespace: m.namespace,
		HostsDir: m.hostsDir(), Agent: m.agent, State: filepath.Join(m.dir, "envs"), Cards: cards,
	}
}

func (m *machine) cluster(t *testing.T, cards []wire.Device) *local.Cluster {
	t.Helper()
	c, err := local.New(t.Context(), m.config(cards), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// twoCards are two simulated A100 of 40 GiB.
func twoCards(t *testing.T) []wire.Device {
	t.Helper()
	inv, err := wire.ParseInventory([]byte("devices:\n- model: NVIDIA A100-SXM4-40GB\n  memoryMiB: 40960\n  count: 2\n"))
	if err != nil {
		t.Fatal(err)
	}
	cards, err := inv.Cards("node-1")
	if err != nil {
		t.Fatal(err)
	}
	return cards
}

// push makes an image of busybox and pushes it. It returns the pinned reference.
func (m *machine) push(t *testing.T, repository string, config v1.Config) string {
	t.Helper()
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatalf("busybox-static is not installed: %v", err)
	}
	binary, err := os.ReadFile(busybox)
	if err != nil {
		t.Fatal(err)
	}
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	add := func(h tar.Header, body []byte) {
		h.Size = int64(len(body))
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(body); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{"bin", "etc", "proc", "dev", "sys", "run", "root", "home", "home/user"} {
		add(tar.Header{Name: dir + "/", Typeflag: tar.TypeDir, Mode: 0o755}, nil)
	}
	add(tar.Header{Name: "bin/busybox", Typeflag: tar.TypeReg, Mode: 0o755}, binary)
	for _, applet := range []string{"sh", "cat", "id", "sleep", "echo", "env", "ls", "hostname", "df", "true", "printf", "ulimit", "kill"} {
		add(tar.Header{Name: "bin/" + applet, Typeflag: tar.TypeSymlink, Linkname: "busybox"}, nil)
	}
	add(tar.Header{Name: "etc/passwd", Typeflag: tar.TypeReg, Mode: 0o644}, []byte("root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n"))
	add(tar.Header{Name: "etc/group", Typeflag: tar.TypeReg, Mode: 0o644}, []byte("root:x:0:\nuser:x:1000:\n"))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(layer.Bytes())), nil })
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, l)
	if err != nil {
		t.Fatal(err)
	}
	img, err = mutate.ConfigFile(img, &v1.ConfigFile{Architecture: "amd64", OS: "linux", Config: config, RootFS: rootFS(t, img)})
	if err != nil {
		t.Fatal(err)
	}
	ref, err := name.ParseReference(m.registry + "/" + repository + ":1")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, img, remote.WithContext(t.Context())); err != nil {
		t.Fatal(err)
	}
	digest, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return ref.Context().Digest(digest.String()).Name()
}

func rootFS(t *testing.T, img v1.Image) v1.RootFS {
	t.Helper()
	cfg, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	return cfg.RootFS
}

// launch makes a Launch with fresh keys.
func launch(t *testing.T, env, pinned string, config v1.Config, change func(*cluster.Launch)) (cluster.Launch, *progress, tunnel.Login) {
	t.Helper()
	host, err := tunnel.NewKey("")
	if err != nil {
		t.Fatal(err)
	}
	owner, err := tunnel.NewKey("")
	if err != nil {
		t.Fatal(err)
	}
	signer, err := tunnel.ParsePrivateKey(owner.Private)
	if err != nil {
		t.Fatal(err)
	}
	hostKey, err := tunnel.ParsePublicKey(host.Public)
	if err != nil {
		t.Fatal(err)
	}
	p := &progress{stages: map[cluster.Stage]map[string]any{}}
	l := cluster.Launch{
		Env: env, Name: "name-of-" + env, Generation: 1,
		Spec: spec.Spec{Name: "test", Image: pinned, CPU: "500m", Memory: "256Mi", Shm: "32Mi"},
		Image: cluster.Image{
			Reference: pinned, Pinned: pinned,
			Entrypoint: config.Entrypoint, Cmd: config.Cmd, Env: config.Env, User: config.User, WorkingDir: config.WorkingDir,
		},
		Agent: agentapi.Config{
			Environment: env,
			SSH:         agentapi.SSHConfig{Address: ":2222", HostKey: host.Private, AuthorizedKeys: []string{owner.Public}},
			Status:      agentapi.StatusConfig{Address: ":2223", Token: "canary-token"},
			App:         agentapi.AppConfig{Policy: agentapi.PolicyKeep},
		},
		Observer: p,
	}
	if change != nil {
		change(&l)
	}
	return l, p, tunnel.Login{Signer: signer, HostKey: hostKey}
}

// progress is an observer that remembers.
type progress struct {
	mu     sync.Mutex
	order  []cluster.Stage                  // guarded by mu
	stages map[cluster.Stage]map[string]any // guarded by mu; ended ones
	places []cluster.Placement              // guarded by mu
	notes  []cluster.Note                   // guarded by mu
}

func (p *progress) Begin(s cluster.Stage, _ time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.order = append(p.order, s)
}

func (p *progress) End(s cluster.Stage, _ time.Time, attrs map[string]any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stages[s] = attrs
}

func (p *progress) Place(pl cluster.Placement) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.places = append(p.places, pl)
}

func (p *progress) Note(n cluster.Note) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.notes = append(p.notes, n)
}

func (p *progress) note() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	b, _ := json.Marshal(p.notes)
	return string(b)
}

func (p *progress) attrs(s cluster.Stage) map[string]any {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stages[s]
}

// login connects as a user does.
func login(t *testing.T, c *local.Cluster, env string, who tunnel.Login) *tunnel.Client {
	t.Helper()
	var client *tunnel.Client
	await(t, "login", func() bool {
		conn, err := c.Dial(t.Context(), env, agentapi.SSHPort)
		if err != nil {
			return false
		}
		client, err = tunnel.Connect(t.Context(), conn, who)
		return err == nil
	})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func run(t *testing.T, c *tunnel.Client, command string) string {
	t.Helper()
	var out, errOut bytes.Buffer
	code, err := c.Run(t.Context(), command, tunnel.Streams{Out: &out, Err: &errOut})
	if err != nil || code != 0 {
		t.Fatalf("%s: code %d, %v, %s", command, code, err, errOut.String())
	}
	return out.String()
}

func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("no %s", what)
		}
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
