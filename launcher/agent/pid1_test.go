package agent_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/firstlight-dev/firstlight/launcher/agentapi"
	"github.com/firstlight-dev/firstlight/launcher/tunnel"
)

// patience bounds every wait of these tests; none of them asserts a time.
const patience = 60 * time.Second

// buildAgent returns the agent's binary, built once.
var buildAgent = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "firstlight-agent-test")
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

// environment is one agent that is PID 1 of a new process namespace.
type environment struct {
	cmd        *exec.Cmd
	owner      ssh.Signer
	host       ssh.PublicKey
	ssh        string
	status     *agentapi.Client
	dialStatus agentapi.DialFunc
	init       int // PID 1 as this machine numbers it
	stdout     *lockedBuffer
	log        *lockedBuffer
	exited     chan struct{}
	code       int
}

type options struct {
	command []string
	env     []string // replaces the environment when not nil
	root    string   // a directory to be the container's root
	config  func(*agentapi.Config)
}

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func start(t *testing.T, o options) *environment {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root for a process namespace")
	}
	binary, err := buildAgent()
	if err != nil {
		t.Fatal(err)
	}
	e := &environment{exited: make(chan struct{}), stdout: &lockedBuffer{}, log: &lockedBuffer{}}
	cfg := e.makeConfig(t, o)
	args := []string{"--pid", "--mount", "--fork", "--kill-child", "--mount-proc"}
	if o.root != "" {
		args = append(args, "--root="+o.root)
		copyFile(t, binary, filepath.Join(o.root, "firstlight-agent"))
		binary = "/firstlight-agent"
	}
	args = append(args, binary, "run", "--")
	e.cmd = exec.Command("unshare", append(args, o.command...)...)
	env := o.env
	if env == nil {
		env = os.Environ()
	}
	e.cmd.Env = append(append([]string{}, env...), agentapi.ConfigVariable+"="+cfg)
	e.cmd.Stdout = e.stdout
	stderr, err := e.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := e.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ready := make(chan map[string]any, 1)
	go e.follow(stderr, ready)
	t.Cleanup(func() {
		_ = e.cmd.Process.Kill() // --kill-child ends the namespace
		<-e.exited
		if t.Failed() {
			t.Logf("the agent's log:\n%s", e.log)
		}
	})
	select {
	case line := <-ready:
		e.connectTo(t, line)
	case <-e.exited:
		t.Fatalf("agent ended with %d before it was ready", e.code)
	case <-time.After(patience):
		t.Fatal("agent is not ready")
	}
	return e
}

func (e *environment) makeConfig(t *testing.T, o options) string {
	t.Helper()
	host, err := tunnel.NewKey("")
	if err != nil {
		t.Fatal(err)
	}
	owner, err := tunnel.NewKey("owner")
	if err != nil {
		t.Fatal(err)
	}
	if e.owner, err = tunnel.ParsePrivateKey(owner.Private); err != nil {
		t.Fatal(err)
	}
	if e.host, err = tunnel.ParsePublicKey(host.Public); err != nil {
		t.Fatal(err)
	}
	cfg := agentapi.Config{
		Environment: "env-test",
		SSH:         agentapi.SSHConfig{Address: "127.0.0.1:0", HostKey: host.Private, AuthorizedKeys: []string{owner.Public}},
		Status:      agentapi.StatusConfig{Address: "127.0.0.1:0", Token: "canary-token"},
	}
	if o.config != nil {
		o.config(&cfg)
	}
	b, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// follow reads the agent's log until it ends.
func (e *environment) follow(stderr io.Reader, ready chan<- map[string]any) {
	lines := bufio.NewScanner(stderr)
	for lines.Scan() {
		var line map[string]any
		if json.Unmarshal(lines.Bytes(), &line) == nil && line["msg"] == "agent ready" {
			ready <- line
		}
		_, _ = fmt.Fprintf(e.log, "%s\n", lines.Bytes())
	}
	var exit *exec.ExitError
	if err := e.cmd.Wait(); errors.As(err, &exit) {
		e.code = exit.ExitCode()
	}
	close(e.exited)
}

func (e *environment) connectTo(t *testing.T, line map[string]any) {
	t.Helper()
	e.ssh, _ = line["ssh"].(string)
	addr, _ := line["status"].(string)
	e.dialStatus = func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", addr)
	}
	e.status = agentapi.NewClient(e.dialStatus, "canary-token")
	t.Cleanup(e.status.Close)
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", e.cmd.Process.Pid, e.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscan(string(b), &e.init); err != nil {
		t.Fatal(err)
	}
}

func (e *environment) dial(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", e.ssh)
}

func (e *environment) login(t *testing.T) *tunnel.Client {
	t.Helper()
	conn, err := e.dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c, err := tunnel.Connect(t.Context(), conn, tunnel.Login{Signer: e.owner, HostKey: e.host})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// wait returns the agent's exit code.
func (e *environment) wait(t *testing.T) int {
	t.Helper()
	select {
	case <-e.exited:
		return e.code
	case <-time.After(patience):
		t.Fatal("agent goes on")
		return 0
	}
}

func (e *environment) signal(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(e.init, sig); err != nil {
		t.Fatal(err)
	}
}

// until polls the status until ok.
func (e *environment) until(t *testing.T, what string, ok func(*agentapi.Status) bool) *agentapi.Status {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var last *agentapi.Status
	for ctx.Err() == nil {
		st, _, err := e.status.Status(ctx)
		if err != nil {
			t.Fatalf("waiting for %s: %v", what, err)
		}
		if ok(st) {
			return st
		}
		last = st
		poll(ctx)
	}
	t.Fatalf("no %s; last status: %+v", what, last)
	return nil
}

// poll keeps a waiting test from taking the processor for itself.
func poll(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(10 * time.Millisecond):
	}
}

// eventually polls any condition.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for !ok() {
		if ctx.Err() != nil {
			t.Fatalf("no %s", what)
		}
		poll(ctx)
	}
}

// run runs a command over a new login and returns its output and exit code.
func (e *environment) run(t *testing.T, command string) (string, string, int) {
	t.Helper()
	var out, errOut bytes.Buffer
	c := e.login(t)
	defer c.Close()
	code, err := c.Run(t.Context(), command, tunnel.Streams{Out: &out, Err: &errOut})
	if err != nil {
		t.Fatalf("run %q: %v", command, err)
	}
	return out.String(), errOut.String(), code
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, b, 0o755); err != nil {
		t.Fatal(err)
	}
}

func first(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return strings.TrimSpace(line)
}
