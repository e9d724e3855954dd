package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/creack/pty"
	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/firstlight-dev/firstlight/launcher/agentapi"
)

// SFTPCommand is the sub-command by which the agent runs its own binary as the
// SFTP server of one session.
const SFTPCommand = "sftp-server"

// session is one SSH session channel. Its requests are handled one after the
// other by serve; the process runs beside it.
type session struct {
	server  *sshServer
	channel ssh.Channel
	client  net.Addr
	local   net.Addr

	vars []string // set by the client
	term string
	size *pty.Winsize // nil without a terminal

	proc *process // nil before the start
	ptmx *os.File // nil without a terminal

	answered chan struct{} // closed when the request to start was answered
	early    func()        // set by a start that ended at once; runs after the answer
}

// Payloads of session requests (RFC 4254 section 6).
type (
	ptyRequest struct {
		Term                         string
		Columns, Rows, Width, Height uint32
		Modes                        string
	}
	windowChange struct{ Columns, Rows, Width, Height uint32 }
	envRequest   struct{ Name, Value string }
	textRequest  struct{ Text string } // exec, subsystem, signal
	exitStatus   struct{ Code uint32 }
	exitSignal   struct {
		Signal   string
		Core     bool
		Message  string
		Language string
	}
)

func (s *sshServer) serveSession(ctx context.Context, sc *ssh.ServerConn, nc ssh.NewChannel) {
	channel, requests, err := nc.Accept()
	if err != nil {
		return
	}
	s.sessions.Add(1)
	defer s.sessions.Add(-1)
	ses := &session{server: s, channel: channel, client: sc.RemoteAddr(), local: sc.LocalAddr(), answered: make(chan struct{})}
	defer channel.Close()
	ses.serve(ctx, requests)
}

// serve answers requests until the channel ends. If the process still runs
// then, its client is gone: it is hung up, as by a terminal. One that ignores
// that goes on, as under nohup, and is waited for in the background.
func (s *session) serve(ctx context.Context, requests <-chan *ssh.Request) {
	stop := context.AfterFunc(ctx, func() { _ = s.channel.Close() })
	defer stop()
	for r := range requests {
		ok := s.request(r)
		if r.WantReply {
			_ = r.Reply(ok, nil)
		}
		s.answer()
	}
	if s.proc == nil {
		return
	}
	s.proc.signalGroup(syscall.SIGHUP)
	if s.ptmx != nil {
		_ = s.ptmx.Close()
	}
}

func (s *session) request(r *ssh.Request) bool {
	switch r.Type {
	case "env":
		return s.setEnv(r.Payload)
	case "pty-req":
		return s.setTerminal(r.Payload)
	case "window-change":
		return s.resize(r.Payload)
	case "signal":
		return s.signal(r.Payload)
	case "shell", "exec", "subsystem":
		if s.proc != nil || s.early != nil || s.isAnswered() {
			return false
		}
		return s.run(r.Type, r.Payload)
	}
	return false
}

// answer notes that a request to start was answered: not before may the
// channel say that what it started has ended.
func (s *session) answer() {
	if (s.proc != nil || s.early != nil) && !s.isAnswered() {
		close(s.answered)
		if s.early != nil {
			s.early()
		}
	}
}

func (s *session) isAnswered() bool {
	select {
	case <-s.answered:
		return true
	default:
		return false
	}
}

func (s *session) setEnv(payload []byte) bool {
	var p envRequest
	if ssh.Unmarshal(payload, &p) != nil || len(s.vars) >= maxClientVariables || !s.server.env.acceptable(p.Name, p.Value) {
		return false
	}
	s.vars = append(s.vars, p.Name+"="+p.Value)
	return true
}

func (s *session) setTerminal(payload []byte) bool {
	var p ptyRequest
	if ssh.Unmarshal(payload, &p) != nil || s.proc != nil || len(p.Term) > maxVariableBytes {
		return false
	}
	s.term, s.size = p.Term, winsize(windowChange{p.Columns, p.Rows, p.Width, p.Height})
	return true
}

func (s *session) resize(payload []byte) bool {
	var p windowChange
	if ssh.Unmarshal(payload, &p) != nil || s.ptmx == nil {
		return false
	}
	return pty.Setsize(s.ptmx, winsize(p)) == nil
}

func winsize(p windowChange) *pty.Winsize {
	clamp := func(v uint32) uint16 { return uint16(min(v, 1<<16-1)) }
	return &pty.Winsize{Cols: clamp(p.Columns), Rows: clamp(p.Rows), X: clamp(p.Width), Y: clamp(p.Height)}
}

func (s *session) signal(payload []byte) bool {
	var p textRequest
	if ssh.Unmarshal(payload, &p) != nil || s.proc == nil {
		return false
	}
	sig := unix.SignalNum("SIG" + p.Text)
	return sig != 0 && s.proc.signalGroup(sig)
}

// run starts what the request asks for. Where that can't be, the user reads
// why, and the session ends as if a shell had failed to find the command.
func (s *session) run(kind string, payload []byte) bool {
	var p textRequest
	if kind != "shell" && ssh.Unmarshal(payload, &p) != nil {
		return false
	}
	if kind == "subsystem" {
		switch p.Text {
		case agentapi.PingSubsystem:
			s.early = func() { s.finish(0) }
			return true
		case "sftp":
		default:
			return false
		}
	}
	cmd, err := s.command(kind, p.Text)
	if err == nil {
		err = s.start(cmd)
	}
	if err != nil {
		_, _ = fmt.Fprintf(s.channel.Stderr(), "firstlight: %v\r\n", err)
		s.early = func() { s.finish(exitNotFound) }
	}
	return true
}

// command makes the command of a session.
func (s *session) command(kind, text string) (*exec.Cmd, error) {
	env, cfg := s.server.env, s.server.session
	shell, shellErr := env.shell(cfg.Shell)
	vars := env.session(shell, s.sessionVars())
	dir := env.startDir(cfg.Dir)
	switch {
	case kind == "subsystem":
		return &exec.Cmd{Path: "/proc/self/exe", Args: []string{"firstlight-agent", SFTPCommand}, Env: vars, Dir: dir}, nil
	case shellErr == nil && kind == "shell":
		return &exec.Cmd{Path: shell, Args: []string{filepath.Base(shell)}, Env: vars, Dir: dir}, nil
	case shellErr == nil:
		return &exec.Cmd{Path: shell, Args: []string{filepath.Base(shell), "-c", text}, Env: vars, Dir: dir}, nil
	case kind == "shell":
		return nil, shellErr
	}
	words, err := splitWords(text)
	if err != nil {
		return nil, err
	}
	return newCommand(words, vars, dir)
}

func (s *session) sessionVars() []string {
	vars := append([]string(nil), s.vars...)
	if s.size != nil {
		vars = append(vars, "TERM="+s.term)
	}
	ch, cp, err1 := net.SplitHostPort(s.client.String())
	lh, lp, err2 := net.SplitHostPort(s.local.String())
	if errors.Join(err1, err2) == nil {
		vars = append(vars, "SSH_CLIENT="+ch+" "+cp+" "+lp, "SSH_CONNECTION="+ch+" "+cp+" "+lh+" "+lp)
	}
	return vars
}

func (s *session) start(cmd *exec.Cmd) error {
	if s.size != nil {
		return s.startTerminal(cmd)
	}
	return s.startPipes(cmd)
}

// startTerminal runs the command on a new pseudo terminal.
func (s *session) startTerminal(cmd *exec.Cmd) error {
	ptmx, tty, err := pty.Open()
	if err != nil {
		return fmt.Errorf("open a terminal: %w", err)
	}
	defer tty.Close()
	if err := pty.Setsize(ptmx, s.size); err != nil {
		_ = ptmx.Close()
		return fmt.Errorf("size the terminal: %w", err)
	}
	cmd.Env = append(cmd.Env, "SSH_TTY="+tty.Name())
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	proc, err := s.server.children.start(cmd)
	if err != nil {
		_ = ptmx.Close()
		return err
	}
	s.proc, s.ptmx = proc, ptmx
	ended := make(chan struct{})
	go func() { _, _ = io.Copy(ptmx, activityReader{s.channel, s.server}) }() // ends with the channel or the terminal
	go func() {
		var output sync.WaitGroup
		output.Go(func() { _ = pump(s.channel, ptmx, ended) })
		st := proc.wait()
		close(ended)
		output.Wait()
		_ = ptmx.Close() // hangs up what still runs in the foreground
		s.end(st)
	}()
	return nil
}

// startPipes runs the command with one pipe for each stream.
func (s *session) startPipes(cmd *exec.Cmd) error {
	p, err := openPipes(cmd)
	if err != nil {
		return fmt.Errorf("open pipes: %w", err)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	proc, err := s.server.children.start(cmd)
	p.closeChild()
	if err != nil {
		p.closeOwn()
		return err
	}
	s.proc = proc
	ended := make(chan struct{})
	go func() { // ends with the channel, or with the reading end of the pipe
		_, _ = io.Copy(p.stdin, activityReader{s.channel, s.server})
		_ = p.stdin.Close()
	}()
	go func() {
		var output sync.WaitGroup
		output.Go(func() { _ = pump(s.channel, p.stdout, ended); _ = p.stdout.Close() })
		output.Go(func() { _ = pump(s.channel.Stderr(), p.stderr, ended); _ = p.stderr.Close() })
		st := proc.wait()
		close(ended)
		output.Wait()
		s.end(st)
	}()
	return nil
}

// end reports how the process ended and closes the channel.
func (s *session) end(st *os.ProcessState) {
	<-s.answered
	if ws, ok := st.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		name := unix.SignalName(ws.Signal())
		if len(name) > len("SIG") {
			_, _ = s.channel.SendRequest("exit-signal", false, ssh.Marshal(exitSignal{Signal: name[len("SIG"):], Core: ws.CoreDump()}))
			s.close()
			return
		}
	}
	s.finish(uint32(exitCode(st)))
}

func (s *session) finish(code uint32) {
	_, _ = s.channel.SendRequest("exit-status", false, ssh.Marshal(exitStatus{Code: code}))
	s.close()
}

func (s *session) close() {
	_ = s.channel.CloseWrite()
	_ = s.channel.Close()
}
