// Package keeper keeps the snapshotter's mounts alive while its worker is not.
//
// # Vocabulary
//
// The keeper is the small process that owns what must not be lost: the open
// /dev/fuse of the mount, the listening sockets, and a little memory. The worker
// is its child, the same program, which does everything else. A session is what
// a worker gets from its keeper: the device, the handshake that was made on it,
// the sockets, the memory, and a line to the keeper.
//
// # Protocol
//
// The worker finds its session in its file descriptors: 3 is the device, 4 the
// line, a socket on which it writes one byte when it is ready and which ends
// when the keeper does, 5 a sealed memory file with a JSON description, 6 a memory
// file for what a worker leaves to the next one, and from 7 on the sockets in the
// order of the description.
//
// # Invariants
//
// The keeper answers the kernel's INIT itself, before there is a worker, so no
// worker can die with it half done. Requests that a dead worker took are sent
// again by the kernel to the next one; connections to a socket wait in its
// queue. So the death of a worker is a delay, never an error, for the programs
// that read and for containerd.
//
// # Failure behaviour
//
// A worker that dies is started again at once, with pauses when they keep
// dying. One that gives up by itself before any worker was
// ever ready ends the keeper with an error: that is a configuration to mend. If
// the keeper is killed the worker ends too; the mount is then lost, and the
// next keeper clears it away.
package keeper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/firstlight-dev/firstlight/snapshotter/internal/fusefs"
)

const (
	handshakeTimeout   = 10 * time.Second
	defaultStopTimeout = 20 * time.Second
	// Workers that die are replaced at once, up to burst of them; then one in
	// every pause.
	burst = 20
	pause = 5 * time.Second
)

// Config says what to keep.
type Config struct {
	// Mountpoint is where the FUSE file system goes; it is made if need be.
	Mountpoint string
	// Command is the worker's command line, path first.
	Command []string
	// Sockets are the unix sockets to listen on, path by name.
	Sockets []Socket
	// StopTimeout is how long a worker may take to end after SIGTERM.
	StopTimeout time.Duration
	// Stdout and Stderr are the worker's.
	Stdout, Stderr *os.File
}

// Socket is a unix socket that only root may connect to.
type Socket struct {
	Name string // by which the worker asks for it
	Path string
}

// description is what file descriptor 5 holds.
type description struct {
	Init     []byte    `json:"init"`
	Sockets  []string  `json:"sockets"`
	Restarts int       `json:"restarts"`
	Started  time.Time `json:"started"` // of the keeper
}

// keeper is a running Run.
type keeper struct {
	cfg     Config
	log     *slog.Logger
	device  *os.File
	state   *os.File
	sockets []*os.File
	about   description
	ready   bool // a worker was, once
}

// ErrWorker is returned by Run when the worker cannot start.
var ErrWorker = errors.New("worker ended before it was ready")

// Run mounts, listens, and keeps a worker running until the context ends. Then
// it ends the worker and unmounts.
func Run(ctx context.Context, cfg Config, log *slog.Logger) (err error) {
	if cfg.StopTimeout == 0 {
		cfg.StopTimeout = defaultStopTimeout
	}
	k := &keeper{cfg: cfg, log: log, about: description{Started: time.Now()}}
	if k.state, err = newState(); err != nil {
		return err
	}
	defer k.state.Close()
	if err := k.mount(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, k.unmount()) }()
	if err := k.listen(ctx); err != nil {
		return err
	}
	return k.keep(ctx)
}

func (k *keeper) mount() error {
	dir := k.cfg.Mountpoint
	if err := clearMounts(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make mount point: %w", err)
	}
	dev, err := fusefs.Mount(dir)
	if err != nil {
		return err
	}
	k.device = dev
	if k.about.Init, err = fusefs.Handshake(dev, k.log, handshakeTimeout); err != nil {
		return errors.Join(err, k.unmount())
	}
	if !fusefs.CanTakeOver(k.about.Init) {
		k.log.Warn("kernel cannot resend fuse requests: if the worker dies, reads that it had begun hang until they are killed")
	}
	return nil
}

// clearMounts detaches what an earlier keeper left at dir.
func clearMounts(dir string) error {
	for {
		err := unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		switch {
		case err == nil:
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
			return nil
		default:
			return fmt.Errorf("clear mount point %s: %w", dir, err)
		}
	}
}

func (k *keeper) unmount() error {
	err := unix.Unmount(k.cfg.Mountpoint, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		err = nil // somebody did before
	}
	if err != nil {
		err = fmt.Errorf("unmount %s: %w", k.cfg.Mountpoint, err)
	}
	for i, s := range k.sockets {
		_ = s.Close()
		_ = os.Remove(k.cfg.Sockets[i].Path)
	}
	return errors.Join(err, k.device.Close())
}

func (k *keeper) listen(ctx context.Context) error {
	for _, s := range k.cfg.Sockets {
		if err := k.listenOn(ctx, s); err != nil {
			return fmt.Errorf("listen on %s: %w", s.Path, err)
		}
	}
	return nil
}

func (k *keeper) listenOn(ctx context.Context, s Socket) error {
	if err := os.MkdirAll(filepath.Dir(s.Path), 0o711); err != nil {
		return err
	}
	if c, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "unix", s.Path); err == nil {
		_ = c.Close()
		return errors.New("another process serves it; stop that first")
	}
	if err := os.Remove(s.Path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: s.Path, Net: "unix"})
	if err != nil {
		return err
	}
	l.SetUnlinkOnClose(false)
	defer l.Close()
	if err := os.Chmod(s.Path, 0o600); err != nil {
		return err
	}
	f, err := l.File()
	if err != nil {
		return err
	}
	k.sockets = append(k.sockets, f)
	k.about.Sockets = append(k.about.Sockets, s.Name)
	return nil
}

// keep runs workers, one after the other.
func (k *keeper) keep(ctx context.Context) error {
	starts := rate.NewLimiter(rate.Every(pause), burst)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(starts.Reserve().Delay()):
		}
		state, err := k.work(ctx)
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		default:
		}
		if !k.ready && state.Exited() {
			return fmt.Errorf("%w: %s", ErrWorker, state)
		}
		k.about.Restarts++
		k.log.Error("worker died, starting another", "how", state.String(), "restarts", k.about.Restarts)
	}
}

// work runs one worker to its end.
func (k *keeper) work(ctx context.Context) (*os.ProcessState, error) {
	ours, theirs, err := line()
	if err != nil {
		return nil, err
	}
	defer ours.Close()
	about, err := k.describe()
	if err != nil {
		_ = theirs.Close()
		return nil, err
	}
	cmd := exec.Command(k.cfg.Command[0], k.cfg.Command[1:]...) //nolint:noctx // ended by SIGTERM below
	cmd.Stdout, cmd.Stderr = k.cfg.Stdout, k.cfg.Stderr
	cmd.ExtraFiles = append([]*os.File{k.device, theirs, about, k.state}, k.sockets...)
	// Not in our process group: a terminal's Ctrl-C is for the keeper, which
	// tells the worker.
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	err = cmd.Start()
	_ = theirs.Close()
	_ = about.Close()
	if err != nil {
		return nil, fmt.Errorf("start worker: %w", err)
	}
	k.log.Debug("worker started", "pid", cmd.Process.Pid)
	isReady := make(chan bool, 1)
	go func() {
		n, _ := ours.Read(make([]byte, 1)) // ends with the worker at the latest
		isReady <- n == 1
	}()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	err = k.attend(ctx, cmd.Process, isReady, ended)
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return nil, fmt.Errorf("wait for worker: %w", err)
	}
	return cmd.ProcessState, nil
}

// attend waits for a worker's end and brings it about when the context ends.
func (k *keeper) attend(ctx context.Context, p *os.Process, isReady <-chan bool, ended <-chan error) error {
	done := ctx.Done()
	var kill <-chan time.Time
	for {
		select {
		case r := <-isReady:
			k.ready = k.ready || r
			isReady = nil
		case <-done:
			_ = p.Signal(unix.SIGTERM) // it may have ended already
			kill = time.After(k.cfg.StopTimeout)
			done = nil
		case <-kill:
			k.log.Warn("worker does not end, killing it", "pid", p.Pid)
			_ = p.Kill()
		case err := <-ended:
			return err
		}
	}
}

// line makes the two ends of a line.
func line() (ours, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make line to worker: %w", err)
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		return nil, nil, fmt.Errorf("make line to worker: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "line"), os.NewFile(uintptr(fds[1]), "line"), nil
}

func (k *keeper) describe() (*os.File, error) {
	b, err := json.Marshal(k.about)
	if err != nil {
		return nil, fmt.Errorf("describe session: %w", err)
	}
	fd, err := unix.MemfdCreate("firstlight-session", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("describe session: %w", err)
	}
	f := os.NewFile(uintptr(fd), "session")
	if _, err = f.Write(b); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_WRITE|unix.F_SEAL_GROW|unix.F_SEAL_SHRINK)
	}
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("describe session: %w", err)
	}
	return f, nil
}
