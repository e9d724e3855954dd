package agent

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// children starts processes and reaps orphans.
//
// A process that ended stays a zombie until its parent waits for it. The
// orphans that PID 1 inherits have nobody else to do that; but a plain "wait
// for any child" would also take the status of children that [exec.Cmd.Wait]
// waits for. So the reaper first looks, without reaping, which process ended,
// and reaps it only if it isn't a known child.
//
// mu closes the one gap in this: a child that ends before start has noted its
// number. Holding it over fork and noting, and over looking and reaping, means
// that the reaper never meets a child it doesn't know.
type children struct {
	mu    sync.Mutex
	known map[int]struct{} // guarded by mu

	reaped atomic.Int64
	wake   chan struct{} // a known child was waited for: look again
}

func newChildren() *children {
	return &children{known: make(map[int]struct{}), wake: make(chan struct{}, 1)}
}

// process is a child that the agent started.
type process struct {
	children *children
	cmd      *exec.Cmd

	mu    sync.Mutex
	ended bool // guarded by mu: its number may soon belong to another process
}

// start is cmd.Start. Every start must be followed by [process.wait].
func (c *children) start(cmd *exec.Cmd) (*process, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c.known[cmd.Process.Pid] = struct{}{}
	return &process{children: c, cmd: cmd}, nil
}

// wait waits for the end and reaps. The state says all that matters.
func (p *process) wait() *os.ProcessState {
	// First wait without reaping, so that no signal can reach a stranger that
	// got the same number.
	awaitEnd(p.cmd.Process.Pid)
	p.mu.Lock()
	p.ended = true
	p.mu.Unlock()
	_ = p.cmd.Wait()
	c := p.children
	c.mu.Lock()
	delete(c.known, p.cmd.Process.Pid)
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
	return p.cmd.ProcessState
}

// signal sends a signal and reports whether the process was there to get it.
func (p *process) signal(sig syscall.Signal) bool { return p.kill(p.cmd.Process.Pid, sig) }

// signalGroup reaches the process group as well. The process must have been
// started as the leader of its own.
func (p *process) signalGroup(sig syscall.Signal) bool { return p.kill(-p.cmd.Process.Pid, sig) }

func (p *process) kill(pid int, sig syscall.Signal) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.ended && unix.Kill(pid, sig) == nil
}

// reap runs until the context ends. It makes this process the parent of
// orphans even where it isn't PID 1, as in a pod that shares its process
// namespace.
func (c *children) reap(ctx context.Context) {
	// Only a kernel before 3.4 refuses, and as PID 1 it makes no difference.
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGCHLD)
	defer signal.Stop(ended)
	for {
		for c.reapOne() {
		}
		select {
		case <-ctx.Done():
			return
		case <-ended:
		case <-c.wake:
		}
	}
}

// reapOne reaps one orphan and reports whether to look again. A known child
// that ended hides the zombies behind it; it is gone once its owner has
// waited, which wakes the reaper.
func (c *children) reapOne() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	pid := endedChild()
	if pid == 0 {
		return false
	}
	if _, known := c.known[pid]; known {
		return false
	}
	for {
		if _, err := unix.Wait4(pid, nil, unix.WNOHANG, nil); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	c.reaped.Add(1)
	return true
}

// childInfo is the kernel's siginfo_t as waitid fills it in on 64-bit
// machines; x/sys hides all but the first three fields.
type childInfo struct {
	signo, errno, code int32
	_                  int32
	pid                int32
	_                  [108]byte
}

// endedChild returns a process that ended and was not waited for, or 0.
func endedChild() int {
	var info childInfo
	if waitNoReap(unix.P_ALL, 0, &info, unix.WNOHANG) != nil {
		return 0 // ECHILD: no children at all
	}
	return int(info.pid)
}

// awaitEnd returns when the child has ended, and leaves it a zombie.
func awaitEnd(pid int) {
	var info childInfo
	_ = waitNoReap(unix.P_PID, pid, &info, 0) // cmd.Wait reports what is wrong
}

func waitNoReap(kind, id int, info *childInfo, flags int) error {
	for {
		err := unix.Waitid(kind, id, (*unix.Siginfo)(unsafe.Pointer(info)), unix.WEXITED|unix.WNOWAIT|flags, nil)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
