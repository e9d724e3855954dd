// Package sandbox runs programs in namespaces of their own: mounts, network,
// process ids, host name, IPC. What runs inside cannot collide with the machine
// or with another sandbox, and nothing inside outlives the process that made it.
//
//   - The init of the namespaces does nothing but exist. It is killed by the
//     kernel when the process that called New ends, however that ends, and the
//     kernel then kills every process inside.
//   - To act inside, the calling process borrows an operating system thread,
//     moves the thread into the namespaces and throws it away afterwards (see
//     Namespaces.Enter). No helper program and no shell takes part, so a test
//     binary needs nothing beside itself.
package sandbox

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Namespaces are kept alive by one process, their init.
type Namespaces struct {
	pid  int
	init *os.Process // nil when made by Attach
	done chan struct{}
}

// New starts an init in fresh namespaces. It is killed when the calling process ends.
func New(ctx context.Context) (*Namespaces, error) {
	ns := &Namespaces{done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		// The kernel sends the parent death signal when the *thread* that
		// forked ends, so that thread is kept until init has ended.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(ns.done)
		// sleep, with SIGCHLD ignored, is a complete init: the kernel reaps
		// the orphans of a parent that ignores SIGCHLD.
		cmd := exec.CommandContext(context.WithoutCancel(ctx), "env", "--ignore-signal=CHLD", "sleep", "infinity")
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
			// Unshared rather than cloned: then the package makes every mount
			// private first, and none of ours reaches the machine.
			Unshareflags: unix.CLONE_NEWNS,
			Pdeathsig:    syscall.SIGKILL,
			Setsid:       true,
		}
		if err := cmd.Start(); err != nil {
			started <- fmt.Errorf("start namespaces: %w", err)
			return
		}
		ns.init, ns.pid = cmd.Process, cmd.Process.Pid
		started <- nil
		_ = cmd.Wait() // it ends by being killed, which is no news
	}()
	return ns, <-started
}

// Attach returns the namespaces of a running process, usually another
// process's init. They are not this process's to end: Kill does nothing.
func Attach(pid int) *Namespaces { return &Namespaces{pid: pid} }

// PID is the process id of the init, as seen outside.
func (ns *Namespaces) PID() int { return ns.pid }

// Kill ends every process inside and waits for the end.
func (ns *Namespaces) Kill(ctx context.Context) error {
	if ns.init == nil {
		return nil
	}
	if err := ns.init.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill namespaces: %w", err)
	}
	select {
	case <-ns.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the end of the namespaces: %w", ctx.Err())
	}
}

// Enter calls f on a thread that is inside the namespaces. A process started
// by f is born inside; a socket opened by f belongs to the network inside. f
// must not hand its work to other goroutines. The thread ends with f, because
// it cannot be brought back.
func (ns *Namespaces) Enter(f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		// The deferred send covers f calling runtime.Goexit as well.
		err := errors.New("the function inside the namespaces did not return")
		defer func() { result <- err }()
		if err = ns.moveThread(); err == nil {
			err = f()
		}
	}()
	return <-result
}

func (ns *Namespaces) moveThread() error {
	// A thread that shares its root and working folder with others may not
	// change its mount namespace.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare the working folder: %w", err)
	}
	fd, err := unix.PidfdOpen(ns.pid, 0)
	if err != nil {
		return fmt.Errorf("open init %d: %w", ns.pid, err)
	}
	defer func() { _ = unix.Close(fd) }()
	const all = unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWNS
	if err := unix.Setns(fd, all); err != nil {
		return fmt.Errorf("enter the namespaces of init %d: %w", ns.pid, err)
	}
	return nil
}

// Start starts cmd inside.
func (ns *Namespaces) Start(cmd *exec.Cmd) error { return ns.Enter(cmd.Start) }

// Run runs cmd inside to its end.
func (ns *Namespaces) Run(cmd *exec.Cmd) error {
	if err := ns.Start(cmd); err != nil {
		return err
	}
	return cmd.Wait()
}

// Dial connects from inside. The address must be numeric or a path: resolving
// a name would leave the thread.
func (ns *Namespaces) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	var conn net.Conn
	err := ns.Enter(func() (err error) {
		var dialer net.Dialer
		conn, err = dialer.DialContext(ctx, network, address)
		return err
	})
	if err != nil {
		return nil, err
	}
	return conn, nil
}

// Root is the path by which a process outside sees a path inside.
func (ns *Namespaces) Root(path string) string {
	return "/proc/" + strconv.Itoa(ns.pid) + "/root" + path
}
