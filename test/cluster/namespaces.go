package cluster

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

// namespaces are kept alive by one process, their init.
type namespaces struct {
	pid  int
	init *os.Process // nil when attached to another process's cluster
	done chan struct{}
}

// newNamespaces starts an init. It is killed when the calling process ends.
func newNamespaces(ctx context.Context) (*namespaces, error) {
	ns := &namespaces{done: make(chan struct{})}
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

// kill ends every process inside and waits for the end.
func (ns *namespaces) kill(ctx context.Context) error {
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

// enter calls f on a thread that is inside the namespaces. A process started
// by f is born inside; a socket opened by f belongs to the network inside. f
// must not hand its work to other goroutines. The thread ends with f, because
// it cannot be brought back.
func (ns *namespaces) enter(f func() error) error {
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

func (ns *namespaces) moveThread() error {
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

// start starts cmd inside.
func (ns *namespaces) start(cmd *exec.Cmd) error { return ns.enter(cmd.Start) }

// run runs cmd inside to its end.
func (ns *namespaces) run(cmd *exec.Cmd) error {
	if err := ns.start(cmd); err != nil {
		return err
	}
	return cmd.Wait()
}

// dial connects from inside. The address must be numeric or a path: resolving
// a name would leave the thread.
func (ns *namespaces) dial(ctx context.Context, network, address string) (net.Conn, error) {
	var conn net.Conn
	err := ns.enter(func() (err error) {
		var dialer net.Dialer
		conn, err = dialer.DialContext(ctx, network, address)
		return err
	})
	if err != nil {
		return nil, err
	}
	return conn, nil
}

// root is the path by which a process outside sees a path inside.
func (ns *namespaces) root(path string) string {
	return "/proc/" + strconv.Itoa(ns.pid) + "/root" + path
}
