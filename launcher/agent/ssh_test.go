package agent_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"

	"github.com/firstlight-dev/firstlight/launcher/agentapi"
	"github.com/firstlight-dev/firstlight/launcher/tunnel"
)

var gpuEnv = []string{
	"PATH=/opt/conda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root",
	"CUDA_DEVICE_MEMORY_LIMIT_0=10240m", "CUDA_DEVICE_SM_LIMIT=25", "NVIDIA_VISIBLE_DEVICES=GPU-0", "ODD=a b'c\"d",
}

// TestSessionsCarryTheLimits asks every kind of session for its environment.
func TestSessionsCarryTheLimits(t *testing.T) {
	e := start(t, options{env: gpuEnv})
	want := map[string]string{"CUDA_DEVICE_MEMORY_LIMIT_0": "10240m", "CUDA_DEVICE_SM_LIMIT": "25", "ODD": "a b'c\"d"}
	levels, err := tunnel.ProbeLogin(t.Context(), e.dial, tunnel.Login{Signer: e.owner, HostKey: e.host}, tunnel.LevelEnv, want)
	if err != nil {
		t.Fatalf("after %+v: %v", levels, err)
	}
	var ids []string
	for i, l := range levels {
		ids = append(ids, l.ID)
		if l.End.Before(l.Start) || i > 0 && !l.Start.Equal(levels[i-1].End) {
			t.Errorf("level %s is [%v, %v]", l.ID, l.Start, l.End)
		}
	}
	if diff := cmp.Diff([]string{"banner", "auth", "ping", "shell", "env"}, ids); diff != "" {
		t.Errorf("levels (-want +got):\n%s", diff)
	}
	if _, err := tunnel.ProbeLogin(t.Context(), e.dial, tunnel.Login{Signer: e.owner, HostKey: e.host}, tunnel.LevelEnv, map[string]string{"CUDA_DEVICE_SM_LIMIT": "26"}); !errors.Is(err, tunnel.ErrEnvironment) {
		t.Errorf("wrong grant: %v", err)
	}
	out, _, _ := e.run(t, "env")
	if strings.Contains(out, agentapi.VariablePrefix) || strings.Contains(out, "canary") {
		t.Errorf("session sees the agent's own variables:\n%s", out)
	}
}

func TestClientVariables(t *testing.T) {
	e := start(t, options{env: gpuEnv, config: func(c *agentapi.Config) { c.SSH.AcceptEnv = []string{"LC_*", "*"} }})
	s, err := e.login(t).SSH().NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for name, accepted := range map[string]bool{
		"LC_TIME": true, "MY_OWN": true, "CUDA_DEVICE_SM_LIMIT": false, "LD_PRELOAD": false, "NVIDIA_VISIBLE_DEVICES": false, "FIRSTLIGHT_AGENT_X": false, "": false, "A=B": false,
	} {
		if err := s.Setenv(name, "100"); (err == nil) != accepted {
			t.Errorf("variable %q: %v, want accepted %v", name, err, accepted)
		}
	}
	out, err := s.Output("echo $LC_TIME $MY_OWN $CUDA_DEVICE_SM_LIMIT")
	if err != nil || string(out) != "100 100 25\n" {
		t.Errorf("output = %q, %v", out, err)
	}
}

func TestRun(t *testing.T) {
	e := start(t, options{})
	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<16) // 1 MiB
	tests := map[string]struct {
		command string
		in      []byte
		out     string
		err     string
		code    int
	}{
		"streams":       {command: "echo out; echo err >&2; exit 3", out: "out\n", err: "err\n", code: 3},
		"input":         {command: "cat", in: []byte("hello"), out: "hello"},
		"much":          {command: "cat", in: big, out: string(big)},
		"signal":        {command: "kill -TERM $$", code: 143},
		"shell syntax":  {command: "for i in 1 2; do echo $i; done | tac", out: "2\n1\n"},
		"closed output": {command: "exec >&- 2>&-; exit 5", code: 5},
		"background":    {command: "sleep 1000 & echo done", out: "done\n"},
		"not found":     {command: "no-such-program 2>/dev/null", code: 127},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var out, errOut bytes.Buffer
			code, err := e.login(t).Run(t.Context(), tt.command, tunnel.Streams{In: bytes.NewReader(tt.in), Out: &out, Err: &errOut})
			if err != nil {
				t.Fatal(err)
			}
			if code != tt.code || out.String() != tt.out || errOut.String() != tt.err {
				t.Errorf("code %d, %d bytes of output, error output %q; want %d, %d, %q", code, out.Len(), errOut.String(), tt.code, len(tt.out), tt.err)
			}
		})
	}
}

// TestSlowReaderLosesNothing reads the output of a process that ended long ago.
func TestSlowReaderLosesNothing(t *testing.T) {
	e := start(t, options{})
	s, err := e.login(t).SSH().NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	out, err := s.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	const size = 4 << 20
	marker := filepath.Join(t.TempDir(), "ended")
	if err := s.Start(fmt.Sprintf("head -c %d /dev/zero; : > %s", size, marker)); err != nil {
		t.Fatal(err)
	}
	n, err := io.CopyN(io.Discard, out, size-(1<<20))
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "end of the process", func() bool { _, err := os.Stat(marker); return err == nil })
	rest, err := io.Copy(io.Discard, out)
	if err != nil || n+rest != size {
		t.Errorf("got %d bytes of %d, %v", n+rest, size, err)
	}
}

func TestTerminal(t *testing.T) {
	e := start(t, options{env: append([]string{}, gpuEnv[0], "HOME=/")}) // no start-up files of this machine's root
	s, err := e.login(t).SSH().NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.RequestPty("xterm-256color", 33, 101, ssh.TerminalModes{}); err != nil {
		t.Fatal(err)
	}
	in, err := s.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out := &lockedBuffer{}
	s.Stdout, s.Stderr = out, out
	if err := s.Shell(); err != nil {
		t.Fatal(err)
	}
	say := func(text string) {
		t.Helper()
		if _, err := io.WriteString(in, text); err != nil && !errors.Is(err, io.EOF) { // it may have ended just now
			t.Fatal(err)
		}
	}
	seen := func(text string) {
		t.Helper()
		eventually(t, text+" in "+out.String(), func() bool { return strings.Contains(out.String(), text) })
	}
	say("stty size; echo term-$TERM tty-$SSH_TTY path-$PATH\n")
	seen("33 101")
	seen("term-xterm-256color tty-/dev/pts/")
	seen("path-/opt/conda/bin") // no start-up file may replace PID 1's
	if err := s.WindowChange(44, 55); err != nil {
		t.Fatal(err)
	}
	for !strings.Contains(out.String(), "44 55") { // it may overtake the request
		say("stty size\n")
		select {
		case <-time.After(100 * time.Millisecond):
		case <-t.Context().Done():
			t.Fatalf("size does not change: %s", out)
		}
	}
	say(`sh -c 'trap "echo int-$((20+1)); exit" INT; echo ready-$((40+2)); while :; do sleep 0.05; done'` + "\n")
	seen("ready-42")
	say("\x03") // control-C through the terminal
	seen("int-21")
	ended := make(chan error, 1)
	go func() { ended <- s.Wait() }()
	// A shell may throw away what is typed while it answers the interrupt.
	for exited := false; !exited; {
		say("exit 9\n")
		select {
		case err := <-ended:
			var exit *ssh.ExitError
			if exited = true; !errors.As(err, &exit) || exit.ExitStatus() != 9 {
				t.Errorf("end = %v, want 9", err)
			}
		case <-time.After(200 * time.Millisecond):
		case <-t.Context().Done():
			t.Fatalf("shell goes on: %s", out)
		}
	}
}

// TestHangUp drops connections under running commands.
func TestHangUp(t *testing.T) {
	e := start(t, options{})
	for _, terminal := range []bool{false, true} {
		c := e.login(t)
		s, err := c.SSH().NewSession()
		if err != nil {
			t.Fatal(err)
		}
		if terminal {
			if err := s.RequestPty("xterm", 24, 80, ssh.TerminalModes{}); err != nil {
				t.Fatal(err)
			}
		}
		out, err := s.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Start("echo $$; exec sleep 1000"); err != nil {
			t.Fatal(err)
		}
		var pid int
		if _, err := fmt.Fscan(out, &pid); err != nil {
			t.Fatal(err)
		}
		_ = c.Close()
		eventually(t, "end of the command", func() bool {
			_, _, code := e.run(t, fmt.Sprintf("test -d /proc/%d", pid))
			return code != 0
		})
	}
	e.until(t, "end of the sessions", func(s *agentapi.Status) bool { return s.SSH.Sessions == 0 })
}

func TestSignalRequest(t *testing.T) {
	e := start(t, options{})
	s, err := e.login(t).SSH().NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	out, err := s.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start("trap 'echo usr1; exit 4' USR1; echo up; while :; do sleep 0.05; done"); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 16)
	if n, err := out.Read(buf); err != nil || string(buf[:n]) != "up\n" {
		t.Fatalf("%q, %v", buf[:n], err)
	}
	if err := s.Signal(ssh.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(out)
	var exit *ssh.ExitError
	if waitErr := s.Wait(); err != nil || string(rest) != "usr1\n" || !errors.As(waitErr, &exit) || exit.ExitStatus() != 4 {
		t.Errorf("rest %q, %v, end %v", rest, err, waitErr)
	}
}

func TestSFTP(t *testing.T) {
	e := start(t, options{})
	c, err := sftp.NewClient(e.login(t).SSH())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	body := bytes.Repeat([]byte("firstlight"), 1<<17)
	name := filepath.Join(dir, "sub", "file")
	if err := c.MkdirAll(filepath.Dir(name)); err != nil {
		t.Fatal(err)
	}
	f, err := c.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.ReadFrom(bytes.NewReader(body)); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(name); err != nil || !bytes.Equal(got, body) {
		t.Errorf("file differs: %d bytes, %v", len(got), err)
	}
	if wd, err := c.Getwd(); err != nil || wd != "/root" {
		t.Errorf("start folder = %q, %v", wd, err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	e.until(t, "end of the session", func(s *agentapi.Status) bool { return s.SSH.Sessions == 0 })
}

func TestForwarding(t *testing.T) {
	e := start(t, options{})
	c := e.login(t).SSH()
	unix := filepath.Join(t.TempDir(), "s")
	for _, network := range []string{"tcp", "unix"} {
		address := "127.0.0.1:0"
		if network == "unix" {
			address = unix
		}
		l, err := net.Listen(network, address)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		go echo(l)
		conn, err := c.Dial(network, l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, "to and fro"); err != nil {
			t.Fatal(err)
		}
		if half, ok := conn.(interface{ CloseWrite() error }); ok {
			if err := half.CloseWrite(); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := io.ReadAll(conn); err != nil || string(got) != "to and fro" {
			t.Errorf("%s: %q, %v", network, got, err)
		}
		_ = conn.Close()
	}
	var open *ssh.OpenChannelError
	if _, err := c.Dial("tcp", "127.0.0.1:1"); !errors.As(err, &open) || open.Reason != ssh.ConnectionFailed {
		t.Errorf("closed port: %v", err)
	}
	if _, err := c.Listen("tcp", "127.0.0.1:0"); err == nil {
		t.Error("remote forwarding was granted")
	}
	if _, _, err := c.OpenChannel("x11", nil); !errors.As(err, &open) || open.Reason != ssh.UnknownChannelType {
		t.Errorf("unknown channel: %v", err)
	}
}

func echo(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			_, _ = io.Copy(conn, conn)
			_ = conn.Close()
		}()
	}
}

// TestBareRoot runs the agent in a root with nothing but itself: no shell, no
// passwd, no /tmp, no /dev.
func TestBareRoot(t *testing.T) {
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "proc"), 0o755); err != nil {
		t.Fatal(err)
	}
	e := start(t, options{root: root, env: []string{"ONLY=this"}})
	if _, msg, code := e.run(t, "/firstlight-agent version"); code != 0 {
		t.Errorf("command without a shell: %d, %s", code, msg)
	}
	if _, msg, code := e.run(t, "/firstlight-agent version | cat"); code != 127 || !strings.Contains(msg, "no shell") {
		t.Errorf("command that needs a shell: %d, %q", code, msg)
	}
	if _, msg, code := e.run(t, ""); code != 127 || !strings.Contains(msg, "this image has no shell") || !strings.Contains(msg, "sftp") {
		t.Errorf("login: %d, %q", code, msg)
	}
	levels, err := tunnel.ProbeLogin(t.Context(), e.dial, tunnel.Login{Signer: e.owner, HostKey: e.host}, tunnel.LevelPing, nil)
	if err != nil || len(levels) != 3 {
		t.Errorf("levels = %+v, %v", levels, err)
	}
	c, err := sftp.NewClient(e.login(t).SSH())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if entries, err := c.ReadDir("/"); err != nil || len(entries) != 2 {
		t.Errorf("sftp: %v, %v", entries, err)
	}
}

// TestOpenSSH lets the usual client talk to the agent.
func TestOpenSSH(t *testing.T) {
	if _, err := exec.LookPath("ssh"); err != nil {
		t.Skip("no OpenSSH client on this machine")
	}
	var owner tunnel.Key
	e := start(t, options{config: func(c *agentapi.Config) {
		var err error
		if owner, err = tunnel.NewKey("me"); err != nil {
			t.Fatal(err)
		}
		c.SSH.AuthorizedKeys = append(c.SSH.AuthorizedKeys, owner.Public)
	}})
	dir := t.TempDir()
	host, port, err := net.SplitHostPort(e.ssh)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"key":   owner.Private,
		"known": fmt.Sprintf("[%s]:%s %s", host, port, ssh.MarshalAuthorizedKey(e.host)),
		"send":  "content",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	common := []string{"-F", "none", "-o", "UserKnownHostsFile=" + filepath.Join(dir, "known"), "-o", "StrictHostKeyChecking=yes", "-o", "BatchMode=yes", "-i", filepath.Join(dir, "key")}
	out, err := exec.CommandContext(t.Context(), "ssh", append(common, "-p", port, "anybody@"+host, "-tt", "echo pid1-$(cat /proc/1/comm); exit 6")...).CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 6 || !strings.Contains(string(out), "pid1-firstlight-agen") {
		t.Errorf("ssh: %v: %s", err, out)
	}
	sftpCmd := exec.CommandContext(t.Context(), "sftp", append(common, "-P", port, "-b", "-", "anybody@"+host)...)
	sftpCmd.Stdin = strings.NewReader(fmt.Sprintf("put %[1]s/send %[1]s/got\nls -l %[1]s\n", dir))
	if out, err := sftpCmd.CombinedOutput(); err != nil {
		t.Errorf("sftp: %v: %s", err, out)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "got")); err != nil || string(got) != "content" {
		t.Errorf("file = %q, %v", got, err)
	}
}

// TestHostile is what a stranger, or the owner's broken client, may try.
func TestHostile(t *testing.T) {
	e := start(t, options{})
	dial := func() net.Conn {
		t.Helper()
		conn, err := e.dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	t.Run("wrong key", func(t *testing.T) {
		key, err := tunnel.NewKey("")
		if err != nil {
			t.Fatal(err)
		}
		stranger, err := tunnel.ParsePrivateKey(key.Private)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tunnel.Connect(t.Context(), dial(), tunnel.Login{Signer: stranger, HostKey: e.host}); err == nil {
			t.Error("stranger logged in")
		}
		e.until(t, "failure counted", func(s *agentapi.Status) bool { return s.SSH.AuthFailures > 0 })
	})
	t.Run("password", func(t *testing.T) {
		_, err := ssh.Dial("tcp", e.ssh, &ssh.ClientConfig{User: "root", Auth: []ssh.AuthMethod{ssh.Password("")}, HostKeyCallback: ssh.FixedHostKey(e.host)})
		if err == nil {
			t.Error("password was accepted")
		}
	})
	t.Run("wrong host", func(t *testing.T) {
		if _, err := tunnel.Connect(t.Context(), dial(), tunnel.Login{Signer: e.owner, HostKey: e.owner.PublicKey()}); !errors.Is(err, tunnel.ErrHostKey) {
			t.Errorf("error = %v, want %v", err, tunnel.ErrHostKey)
		}
	})
	t.Run("noise", func(t *testing.T) {
		conn := dial()
		// The banner line, then a packet that claims 4 GiB.
		if _, err := conn.Write([]byte("SSH-2.0-noise\r\n\xff\xff\xff\xff" + strings.Repeat("x", 1<<16))); err != nil {
			t.Log(err) // it may have hung up already
		}
		_, _ = io.Copy(io.Discard, conn) // ends: the server hangs up
	})
	t.Run("silent crowd", func(t *testing.T) { // more than may be unauthenticated at once
		for range 40 {
			dial()
		}
		e.until(t, "refusals", func(s *agentapi.Status) bool { return s.SSH.Refused > 0 })
	})
	e.signal(t, 0) // PID 1 is there
}

// TestManyChannels opens more channels than one connection may have.
func TestManyChannels(t *testing.T) {
	e := start(t, options{})
	c := e.login(t).SSH()
	var refused *ssh.OpenChannelError
	for range 1000 {
		_, requests, err := c.OpenChannel("session", nil)
		if errors.As(err, &refused) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		go ssh.DiscardRequests(requests)
	}
	if refused == nil || refused.Reason != ssh.ResourceShortage {
		t.Errorf("refusal = %v", refused)
	}
	if out, _, _ := e.run(t, "echo fine"); out != "fine\n" {
		t.Errorf("other connection: %q", out)
	}
}

// TestMalformedRequests sends what no client should.
func TestMalformedRequests(t *testing.T) {
	e := start(t, options{})
	c := e.login(t).SSH()
	for _, kind := range []string{"env", "pty-req", "window-change", "signal", "exec", "subsystem", "no-such-request"} {
		for _, payload := range [][]byte{nil, {1}, {0xff, 0xff, 0xff, 0xff, 'x'}, bytes.Repeat([]byte{0}, 1<<15)} {
			ch, requests, err := c.OpenChannel("session", nil)
			if err != nil {
				t.Fatal(err)
			}
			go ssh.DiscardRequests(requests)
			if _, err := ch.SendRequest(kind, true, payload); err != nil && !errors.Is(err, io.EOF) {
				t.Errorf("%s: %v", kind, err)
			}
			_ = ch.Close()
		}
	}
	for _, kind := range []string{"direct-tcpip", "direct-streamlocal@openssh.com"} {
		if _, _, err := c.OpenChannel(kind, []byte{0xff, 0xff, 0xff, 0xff}); err == nil {
			t.Errorf("%s was opened", kind)
		}
	}
	if out, _, _ := e.run(t, "echo fine"); out != "fine\n" {
		t.Errorf("after all that: %q", out)
	}
}

func TestManyAtOnce(t *testing.T) {
	e := start(t, options{})
	c := e.login(t)
	var all sync.WaitGroup
	for i := range 30 {
		all.Go(func() {
			var out bytes.Buffer
			if code, err := c.Run(context.WithoutCancel(t.Context()), fmt.Sprintf("echo %d; exit %d", i, i), tunnel.Streams{Out: &out}); err != nil || code != i || out.String() != fmt.Sprintln(i) {
				t.Errorf("%d: code %d, %q, %v", i, code, out.String(), err)
			}
		})
	}
	all.Wait()
}
