package tunnel_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/term"

	"github.com/firstlight-dev/firstlight/launcher/agentapi"
	"github.com/firstlight-dev/firstlight/launcher/tunnel"
)

// startAgent runs the agent as an ordinary process and returns how to log in.
func startAgent(t *testing.T) (string, tunnel.Login) {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "firstlight-agent")
	build := exec.Command("go", "build", "-trimpath", "-o", binary, "github.com/firstlight-dev/firstlight/cmd/firstlight-agent")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if msg, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build agent: %v: %s", err, msg)
	}
	host, err := tunnel.NewKey("")
	if err != nil {
		t.Fatal(err)
	}
	owner, err := tunnel.NewKey("")
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := json.Marshal(agentapi.Config{
		SSH:    agentapi.SSHConfig{Address: "127.0.0.1:0", HostKey: host.Private, AuthorizedKeys: []string{owner.Public}},
		Status: agentapi.StatusConfig{Address: "127.0.0.1:0"},
	})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, "run")
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/", agentapi.ConfigVariable + "=" + string(cfg)}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	var ready struct{ SSH string }
	line, err := bufio.NewReader(stderr).ReadBytes('\n')
	if err != nil || json.Unmarshal(line, &ready) != nil {
		t.Fatalf("agent said %q, %v", line, err)
	}
	go func() { _, _ = io.Copy(io.Discard, stderr) }()
	login := tunnel.Login{}
	if login.Signer, err = tunnel.ParsePrivateKey(owner.Private); err != nil {
		t.Fatal(err)
	}
	if login.HostKey, err = tunnel.ParsePublicKey(host.Public); err != nil {
		t.Fatal(err)
	}
	return ready.SSH, login
}

type screen struct {
	mu  sync.Mutex
	buf bytes.Buffer // guarded by mu
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.Write(p)
}

func (s *screen) shows(text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Contains(s.buf.String(), text)
}

// TestShellThroughTunnel is a person at a terminal, all the way.
func TestShellThroughTunnel(t *testing.T) {
	address, login := startAgent(t)
	conn, err := tunnel.Dial(t.Context(), nil, gateway(t, address), header())
	if err != nil {
		t.Fatal(err)
	}
	client, err := tunnel.Connect(t.Context(), conn, login)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if err := client.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}

	keyboard, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer keyboard.Close()
	defer tty.Close()
	if err := pty.Setsize(keyboard, &pty.Winsize{Rows: 31, Cols: 77}); err != nil {
		t.Fatal(err)
	}
	before, err := term.GetState(int(tty.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	out := &screen{}
	ended := make(chan int, 1)
	go func() {
		code, err := client.Shell(t.Context(), tty, out, "xterm", "")
		if err != nil {
			t.Error(err)
		}
		ended <- code
	}()
	until := func(text string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for !out.shows(text) {
			select {
			case <-ctx.Done():
				t.Fatalf("screen does not show %q", text)
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
	for _, step := range [][2]string{{"stty size\r", "31 77"}, {"echo sum-$((40+2))\r", "sum-42"}, {`sh -c 'trap "echo int-$((20+1)); exit" INT; echo start-$((4+4)); while :; do sleep 0.05; done'` + "\r", "start-8"}, {"\x03", "int-21"}} {
		if _, err := io.WriteString(keyboard, step[0]); err != nil {
			t.Fatal(err)
		}
		until(step[1])
	}
	// A shell may throw away what is typed while it answers the interrupt.
	for code := -1; code != 12; {
		if _, err := io.WriteString(keyboard, "exit 12\r"); err != nil {
			t.Fatal(err)
		}
		select {
		case code = <-ended:
			if code != 12 {
				t.Fatalf("exit code = %d, want 12", code)
			}
		case <-t.Context().Done():
			t.Fatal("shell goes on")
		case <-time.After(50 * time.Millisecond):
		}
	}
	after, err := term.GetState(int(tty.Fd()))
	if err != nil || *after != *before {
		t.Errorf("terminal was not put back: %v", err)
	}
}

// TestConnectGivesUp meets a server that says nothing.
func TestConnectGivesUp(t *testing.T) {
	key, err := tunnel.NewKey("")
	if err != nil {
		t.Fatal(err)
	}
	login := tunnel.Login{}
	if login.Signer, err = tunnel.ParsePrivateKey(key.Private); err != nil {
		t.Fatal(err)
	}
	login.HostKey = login.Signer.PublicKey()
	near, far := net.Pipe()
	defer far.Close()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_, _ = far.Read(make([]byte, 16)) // the client's banner
		cancel()
	}()
	if _, err := tunnel.Connect(ctx, near, login); err == nil || ctx.Err() == nil {
		t.Errorf("error = %v", err)
	}
}
