package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// logTail is how much of a log an error shows: enough for a stack's top and
// the lines before it.
const logTail = 2 << 10

// Process is a long-running program inside.
type Process struct {
	Name string
	Log  string // the file with its output
	cmd  *exec.Cmd
	done chan struct{}
	err  error // of Wait; read after done
}

// Spawn starts cmd inside with its output in <log folder>/<name>.log, appended
// to what an earlier process of that name wrote.
func (ns *Namespaces) Spawn(logs, name string, cmd *exec.Cmd) (*Process, error) {
	p := &Process{Name: name, Log: filepath.Join(logs, name+".log"), cmd: cmd, done: make(chan struct{})}
	log, err := os.OpenFile(p.Log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	defer func() { _ = log.Close() }() // the child has its own copy
	cmd.Stdout, cmd.Stderr = log, log
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setsid = true // a terminal's interrupt is for the caller
	if err := ns.Start(cmd); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		defer close(p.done)
		p.err = cmd.Wait()
	}()
	return p, nil
}

// PID is the process id as seen outside.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Stop sends a signal and waits for the end, which may have been before.
func (p *Process) Stop(ctx context.Context, signal os.Signal) error {
	if err := p.cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %s: %w", p.Name, err)
	}
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the end of %s: %w", p.Name, ctx.Err())
	}
}

// Ended describes the end of a process that should still be running.
func (p *Process) Ended() error {
	return fmt.Errorf("%s ended early (%v); the end of %s:\n%s", p.Name, p.err, p.Log, p.Tail()) //nolint:errorlint // err is nil when the program exited with 0
}

const (
	// readyTimeout bounds the start of one program: seconds on an idle machine,
	// and still enough on one that is building something else.
	readyTimeout = 2 * time.Minute
	readyPoll    = 20 * time.Millisecond
)

// WaitReady calls ready until it succeeds, and gives up when the process has
// ended, because then ready never will.
func (p *Process) WaitReady(ctx context.Context, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	tick := time.NewTicker(readyPoll)
	defer tick.Stop()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return p.Ended()
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w (last answer: %w); the end of %s:\n%s", p.Name, ctx.Err(), err, p.Log, p.Tail())
		case <-tick.C:
		}
	}
}

// WaitListening waits until an address of the namespaces accepts connections.
func (p *Process) WaitListening(ctx context.Context, ns *Namespaces, network, address string) error {
	return p.WaitReady(ctx, func(ctx context.Context) error {
		conn, err := ns.Dial(ctx, network, address)
		if err == nil {
			err = conn.Close()
		}
		return err
	})
}

// Tail is the end of the log.
func (p *Process) Tail() string {
	f, err := os.Open(p.Log)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = f.Close() }()
	if size, err := f.Seek(0, io.SeekEnd); err == nil {
		_, _ = f.Seek(max(0, size-logTail), io.SeekStart)
	}
	tail, err := io.ReadAll(io.LimitReader(f, logTail))
	if err != nil {
		return err.Error()
	}
	return string(tail)
}
