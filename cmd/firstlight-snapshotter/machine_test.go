package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/firstlight-dev/firstlight/snapshotter/daemon"
	"github.com/firstlight-dev/firstlight/snapshotter/nodeapi"
	"github.com/firstlight-dev/firstlight/test/sandbox"
)

// runEnv makes the test binary behave as the snapshotter.
const runEnv = "FIRSTLIGHT_TEST_RUN_SNAPSHOTTER"

func TestMain(m *testing.M) {
	if os.Getenv(runEnv) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

const (
	registryAddr = "127.0.0.1:5000" // what everybody asks: faults in front of
	backendAddr  = "127.0.0.1:5001" // the registry
	nodeSocket   = "/run/firstlight/node.sock"
	startTimeout = time.Minute
)

// machine is a node with a registry, containerd and, once started, the
// snapshotter, in namespaces of its own.
type machine struct {
	*testing.T
	ns          *sandbox.Namespaces
	dir, tools  string
	snapshotter *sandbox.Process
	faults      *atomic.Pointer[faults]
}

// in is the machine for a sub-test.
func (m *machine) in(t *testing.T) *machine {
	sub := *m
	sub.T = t
	return &sub
}

// faults changes answers of the registry. It returns true if it answered.
type faults func(w http.ResponseWriter, r *http.Request) bool

func newMachine(t *testing.T) *machine {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("namespaces and mounts need root")
	}
	tools, err := sandbox.Tools()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(tools, "containerd")); err != nil {
		t.Fatalf("%v: run make tools, or set FIRSTLIGHT_TOOLS", err)
	}
	ns, err := sandbox.New(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{T: t, ns: ns, dir: t.TempDir(), tools: tools, faults: &atomic.Pointer[faults]{}}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
		defer cancel()
		if err := ns.Kill(ctx); err != nil {
			t.Error(err)
		}
		if t.Failed() && m.snapshotter != nil {
			t.Logf("snapshotter:\n%s", m.log("snapshotter"))
		}
	})
	if err := ns.CoverMounts(t.Context(), filepath.Join(m.dir, "varlib")); err != nil {
		t.Fatal(err)
	}
	m.run("ip", "link", "set", "lo", "up")
	m.startRegistry()
	return m
}

func (m *machine) startRegistry() {
	m.Helper()
	config := filepath.Join(m.dir, "registry.yml")
	text := fmt.Sprintf("version: 0.1\nlog: {level: warn}\nstorage: {filesystem: {rootdirectory: %s}}\nhttp: {addr: %q}\n",
		filepath.Join(m.dir, "registry"), backendAddr)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		m.Fatal(err)
	}
	p := m.spawn("registry", nil, "registry", "serve", config)
	m.waitFor(p, func(ctx context.Context) error {
		conn, err := m.ns.Dial(ctx, "tcp", backendAddr)
		if err == nil {
			err = conn.Close()
		}
		return err
	})
	var l net.Listener
	err := m.ns.Enter(func() (err error) {
		l, err = net.Listen("tcp", registryAddr)
		return err
	})
	if err != nil {
		m.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: backendAddr})
	proxy.Transport = m.transport(backendAddr)
	proxy.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError) // clients that are killed
	srv := &http.Server{ReadHeaderTimeout: startTimeout, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if f := m.faults.Load(); f != nil && (*f)(w, r) {
			return
		}
		proxy.ServeHTTP(w, r)
	})}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(l) }()
	m.Cleanup(func() { _ = srv.Close(); <-done })
}

// fail changes the registry's answers until the test ends or fail(nil).
func (m *machine) fail(f faults) {
	if f == nil {
		m.faults.Store(nil)
		return
	}
	m.faults.Store(&f)
}

func (m *machine) transport(addr string) *http.Transport {
	t := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return m.ns.Dial(ctx, "tcp", addr) }}
	m.Cleanup(t.CloseIdleConnections)
	return t
}

// noCRI are the plugins that serve kubelet.
var noCRI = []string{"io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri"}

// startContainerd uses the configuration that our own command prints.
func (m *machine) startContainerd() *sandbox.Process {
	m.Helper()
	return m.startContainerdWithout(noCRI...)
}

func (m *machine) startContainerdWithout(plugins ...string) *sandbox.Process {
	m.Helper()
	disabled, err := json.Marshal(append(plugins, "io.containerd.nri.v1.nri"))
	if err != nil {
		m.Fatal(err)
	}
	var dropIn strings.Builder
	if err := daemon.WriteDropIn(&dropIn, daemon.Default()); err != nil {
		m.Fatal(err)
	}
	imported := filepath.Join(m.dir, "firstlight.toml")
	config := filepath.Join(m.dir, "containerd.toml")
	text := fmt.Sprintf(`version = 3
imports = [%q]
disabled_plugins = %s
`, imported, disabled)
	for path, content := range map[string]string{imported: dropIn.String(), config: text} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			m.Fatal(err)
		}
	}
	p := m.spawn("containerd", nil, "containerd", "--config", config, "--log-level", "debug")
	m.waitFor(p, func(ctx context.Context) error {
		return m.ns.Run(m.command(ctx, "ctr", "--connect-timeout", "2s", "version"))
	})
	return p
}

// startSnapshotter starts the keeper, which is this binary, and waits until the
// node API answers.
func (m *machine) startSnapshotter(args ...string) {
	m.Helper()
	self, err := os.Executable()
	if err != nil {
		m.Fatal(err)
	}
	argv := append([]string{self, "--log-level", "debug", "--docker-config", filepath.Join(m.dir, "docker.json")}, args...)
	m.snapshotter = m.spawn("snapshotter", []string{runEnv + "=1"}, argv...)
	m.waitFor(m.snapshotter, func(ctx context.Context) error {
		_, err := m.node().Status(ctx)
		return err
	})
}

// awaitReconnect waits until a running containerd has noticed that the
// snapshotter is back: its client pauses for a second after a broken connection.
func (m *machine) awaitReconnect() {
	m.Helper()
	m.waitFor(m.snapshotter, func(ctx context.Context) error {
		return m.ns.Run(m.command(ctx, "ctr", "snapshots", "--snapshotter", "firstlight", "ls"))
	})
}

// node asks the snapshotter. The socket is reached through the machine's root,
// so the path is stable across restarts.
func (m *machine) node() *nodeapi.Client { return nodeapi.NewClient(m.ns.Root(nodeSocket)) }

func (m *machine) log(name string) string {
	m.Helper()
	b, err := os.ReadFile(filepath.Join(m.dir, name+".log"))
	if err != nil {
		m.Fatal(err)
	}
	return string(b)
}

func (m *machine) command(ctx context.Context, argv ...string) *exec.Cmd {
	if tool := filepath.Join(m.tools, argv[0]); !strings.Contains(argv[0], "/") {
		if _, err := os.Stat(tool); err == nil {
			argv = append([]string{tool}, argv[1:]...)
		}
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "PATH="+m.tools+":"+os.Getenv("PATH"))
	return cmd
}

func (m *machine) spawn(name string, env []string, argv ...string) *sandbox.Process {
	m.Helper()
	cmd := m.command(context.WithoutCancel(m.Context()), argv...)
	cmd.Env = append(cmd.Env, env...)
	p, err := m.ns.Spawn(m.dir, name, cmd)
	if err != nil {
		m.Fatal(err)
	}
	return p
}

// run runs a program to its end and returns its standard output.
func (m *machine) run(argv ...string) string {
	m.Helper()
	out, err := m.try(argv...)
	if err != nil {
		m.Fatal(err)
	}
	return out
}

func (m *machine) try(argv ...string) (string, error) {
	cmd := m.command(m.Context(), argv...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := m.ns.Run(cmd); err != nil {
		return stdout.String(), fmt.Errorf("run %s: %w\n%s", strings.Join(argv, " "), err, stderr.String())
	}
	return stdout.String(), nil
}

// waitFor waits until check succeeds.
func (m *machine) waitFor(p *sandbox.Process, check func(context.Context) error) {
	m.Helper()
	ctx, cancel := context.WithTimeout(m.Context(), startTimeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check(ctx)
		if err == nil {
			return
		}
		select {
		case <-p.Done():
			m.Fatalf("%s ended:\n%s", p.Name, p.Tail())
		case <-ctx.Done():
			m.Fatalf("%s: %v:\n%s", p.Name, err, p.Tail())
		case <-tick.C:
		}
	}
}
