package keeper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/firstlight-dev/firstlight/snapshotter/internal/fusefs"
)

// File descriptors of a worker.
const (
	deviceFD  = 3
	lineFD    = 4
	aboutFD   = 5
	stateFD   = 6
	socketsFD = 7
)

// maxDescription bounds what a worker reads about its session.
const maxDescription = 1 << 20

// Session is what a worker got from its keeper.
type Session struct {
	// Restarts is how many workers died before this one, Started when the
	// keeper was.
	Restarts int
	Started  time.Time
	// State outlives the worker.
	State *State

	device    *os.File
	line      *os.File
	init      []byte
	listeners map[string]net.Listener
}

// ErrNoKeeper is returned by Attach in a process that no keeper started.
var ErrNoKeeper = errors.New("not started by a keeper")

// Attach takes over the session that this process was started with. It may be
// called once.
func Attach() (*Session, error) {
	f := os.NewFile(aboutFD, "session")
	b, err := io.ReadAll(io.LimitReader(f, maxDescription))
	if err != nil {
		return nil, fmt.Errorf("attach to keeper: %w: %w", ErrNoKeeper, err)
	}
	_ = f.Close()
	var d description
	if err := json.Unmarshal(b, &d); err != nil {
		return nil, fmt.Errorf("attach to keeper: %w: %w", ErrNoKeeper, err)
	}
	s := &Session{Restarts: d.Restarts, Started: d.Started, init: d.Init, listeners: map[string]net.Listener{}}
	for _, fd := range []int{deviceFD, lineFD} {
		if err := unix.SetNonblock(fd, true); err != nil {
			return nil, fmt.Errorf("attach to keeper: %w: %w", ErrNoKeeper, err)
		}
		unix.CloseOnExec(fd)
	}
	unix.CloseOnExec(stateFD)
	s.State = &State{os.NewFile(stateFD, "state")}
	s.device = os.NewFile(deviceFD, "/dev/fuse")
	s.line = os.NewFile(lineFD, "line")
	for i, name := range d.Sockets {
		unix.CloseOnExec(socketsFD + i)
		sock := os.NewFile(uintptr(socketsFD+i), name)
		l, err := net.FileListener(sock)
		_ = sock.Close()
		if err != nil {
			return nil, fmt.Errorf("attach to keeper: socket %s: %w", name, err)
		}
		if u, ok := l.(*net.UnixListener); ok {
			u.SetUnlinkOnClose(false) // it is the keeper's
		}
		s.listeners[name] = l
	}
	return s, nil
}

// Listener returns the listening socket of a name, nil if there is none.
func (s *Session) Listener(name string) net.Listener { return s.listeners[name] }

// CanTakeOver says whether the next worker could answer what this one leaves
// unanswered.
func (s *Session) CanTakeOver() bool { return fusefs.CanTakeOver(s.init) }

// Serve answers the kernel from fsys, which must hold every layer of the worker
// before, until the context ends or the file system is unmounted.
func (s *Session) Serve(ctx context.Context, fsys *fusefs.Server) error {
	return fsys.Serve(ctx, s.device, s.init, s.Restarts > 0 && s.CanTakeOver())
}

// Ready tells the keeper that this worker serves.
func (s *Session) Ready() error {
	if _, err := s.line.Write([]byte{1}); err != nil {
		return fmt.Errorf("tell keeper: %w", err)
	}
	return nil
}

// WithKeeper returns a context that ends when the keeper does.
func (s *Session) WithKeeper(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		// The keeper never writes, so this ends with it, or with the deadline
		// set when the context ends.
		_, _ = s.line.Read(make([]byte, 1))
		cancel()
	}()
	context.AfterFunc(ctx, func() { _ = s.line.SetReadDeadline(time.Unix(1, 0)) })
	return ctx, cancel
}
