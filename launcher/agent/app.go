package agent

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/firstlight-dev/firstlight/launcher/agentapi"
)

// Exit codes that shells use for commands that could not be started.
const (
	exitNotExecutable = 126
	exitNotFound      = 127
	exitSignalBase    = 128
)

// app runs the image's own command.
type app struct {
	children *children
	log      *slog.Logger

	mu     sync.Mutex
	status agentapi.App // guarded by mu
	proc   *process     // guarded by mu; nil before the start and after the end
	asked  bool         // guarded by mu: a signal that means "end" was passed on
	ended  chan struct{}
}

func newApp(c *children, policy agentapi.Policy, log *slog.Logger) *app {
	return &app{
		children: c,
		log:      log,
		status:   agentapi.App{State: agentapi.AppNone, Policy: policy},
		ended:    make(chan struct{}),
	}
}

// snapshot returns the state for the status server.
func (a *app) snapshot() agentapi.App {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.status
}

// run starts the command and waits for it. It closes a.ended at the end.
func (a *app) run(command, env []string) {
	defer close(a.ended)
	proc, err := a.start(command, env)
	if err != nil {
		code := exitNotExecutable
		if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
			code = exitNotFound
		}
		a.mu.Lock()
		a.status.State, a.status.ExitCode, a.status.Error = agentapi.AppFailed, code, err.Error()
		a.mu.Unlock()
		a.log.Error("app did not start", "command", command[0], "err", err)
		return
	}
	st := proc.wait()
	now, code, sig := bootNow(), exitCode(st), signalName(st)
	a.mu.Lock()
	a.proc = nil
	a.status.State, a.status.Ended, a.status.ExitCode, a.status.Signal = agentapi.AppExited, now, code, sig
	a.mu.Unlock()
	a.log.Info("app ended", "code", code, "signal", sig)
}

func (a *app) start(command, env []string) (*process, error) {
	cmd, err := newCommand(command, env, "")
	if err != nil {
		return nil, err
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	a.mu.Lock()
	defer a.mu.Unlock()
	started := bootNow()
	proc, err := a.children.start(cmd)
	if err != nil {
		return nil, err
	}
	a.proc = proc
	a.status.State, a.status.PID, a.status.Started = agentapi.AppRunning, cmd.Process.Pid, started
	return proc, nil
}

// exitCode counts as a shell does.
func exitCode(st *os.ProcessState) int {
	if ws, ok := st.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return exitSignalBase + int(ws.Signal())
	}
	return st.ExitCode()
}

func signalName(st *os.ProcessState) string {
	if ws, ok := st.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return unix.SignalName(ws.Signal())
	}
	return ""
}

// catchSignals keeps every signal from its default, which would end PID 1. It
// is done first of all and never undone: a signal that arrives while the agent
// ends must not change its exit code.
func catchSignals() <-chan os.Signal {
	signals := make(chan os.Signal, 32)
	signal.Notify(signals)
	return signals
}

// forward passes signals on to the app until the context ends. It calls stop
// when a signal asks for the end and no app is there to answer it.
func (a *app) forward(ctx context.Context, signals <-chan os.Signal, stop func()) {
	for {
		select {
		case <-ctx.Done():
			return
		case s := <-signals:
			sig, ok := s.(syscall.Signal)
			if !ok || isOwnSignal(sig) {
				continue
			}
			if !a.signal(sig) && isEnd(sig) {
				stop()
			}
		}
	}
}

// signal reports whether the app was there to get it.
func (a *app) signal(sig syscall.Signal) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.proc == nil {
		return false
	}
	if isEnd(sig) {
		a.asked = true
	}
	return a.proc.signal(sig)
}

// endsAgent reports whether the agent must end now that the app has.
func (a *app) endsAgent() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.asked || a.status.Policy == agentapi.PolicyExit
}

// isOwnSignal reports signals that are about this process alone: the end of a
// child, the Go runtime's preemption, a closed connection, terminal changes.
func isOwnSignal(sig syscall.Signal) bool {
	switch sig {
	case syscall.SIGCHLD, syscall.SIGURG, syscall.SIGPIPE, syscall.SIGTTIN, syscall.SIGTTOU:
		return true
	}
	return false
}

func isEnd(sig syscall.Signal) bool {
	return sig == syscall.SIGTERM || sig == syscall.SIGINT || sig == syscall.SIGQUIT
}
