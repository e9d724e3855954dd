package tunnel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/term"

	"github.com/firstlight-dev/firstlight/launcher/agentapi"
)

// ErrHostKey means that what answered is not the environment it should be.
var ErrHostKey = errors.New("host key is not the environment's")

const (
	// loginTimeout bounds a login when the context has no deadline. The agent
	// itself allows 20 s.
	loginTimeout      = 30 * time.Second
	keepaliveInterval = 30 * time.Second
	keepaliveTimeout  = 30 * time.Second
)

// exitSignalBase is added to a signal's number, as shells do.
const exitSignalBase = 128

// Login is who logs in where.
type Login struct {
	User    string // any name: an environment has one user
	Signer  ssh.Signer
	HostKey ssh.PublicKey // the only one accepted
}

// Client is an SSH connection to an environment.
type Client struct {
	ssh  *ssh.Client
	stop context.CancelFunc
}

// Connect logs in over the connection, which it owns from then on. The context
// bounds the login only.
func Connect(ctx context.Context, conn net.Conn, login Login) (*Client, error) {
	ctx, cancel := context.WithTimeout(ctx, loginTimeout)
	defer cancel()
	// Closing is the one way to interrupt a handshake on any connection.
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	user := login.User
	if user == "" {
		user = "env"
	}
	want := login.HostKey.Marshal()
	sc, channels, requests, err := ssh.NewClientConn(conn, "environment", &ssh.ClientConfig{
		User: user,
		Auth: []ssh.AuthMethod{ssh.PublicKeys(login.Signer)},
		HostKeyCallback: func(_ string, _ net.Addr, key ssh.PublicKey) error {
			if !bytes.Equal(key.Marshal(), want) {
				return fmt.Errorf("%w: it is %s", ErrHostKey, ssh.FingerprintSHA256(key))
			}
			return nil
		},
		HostKeyAlgorithms: []string{login.HostKey.Type()},
	})
	if err != nil {
		_ = conn.Close()
		if ctx.Err() != nil {
			err = errors.Join(ctx.Err(), err)
		}
		return nil, fmt.Errorf("log in: %w", err)
	}
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	c := &Client{ssh: ssh.NewClient(sc, channels, requests), stop: end}
	go c.keepalive(life) // ends with Close or the connection
	return c, nil
}

// Close ends the connection.
func (c *Client) Close() error {
	c.stop()
	return c.ssh.Close()
}

// SSH gives the connection itself, for forwarding and SFTP.
func (c *Client) SSH() *ssh.Client { return c.ssh }

func (c *Client) keepalive(ctx context.Context) {
	tick := time.NewTicker(keepaliveInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		dead := time.AfterFunc(keepaliveTimeout, func() { _ = c.ssh.Close() })
		_, _, err := c.ssh.SendRequest("keepalive@openssh.com", true, nil)
		dead.Stop()
		if err != nil {
			return
		}
	}
}

// Streams are a command's streams. Any may be nil.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
}

// Run runs a command, or without one a shell that reads from In, and returns
// the exit code. An error means that the code is not known.
func (c *Client) Run(ctx context.Context, command string, io Streams) (int, error) {
	s, err := c.ssh.NewSession()
	if err != nil {
		return 0, fmt.Errorf("open session: %w", err)
	}
	defer s.Close()
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	defer stop()
	s.Stdin, s.Stdout, s.Stderr = io.In, io.Out, io.Err
	if command == "" {
		err = s.Shell()
	} else {
		err = s.Start(command)
	}
	if err != nil {
		return 0, contextual(ctx, fmt.Errorf("start session: %w", err))
	}
	return wait(ctx, s)
}

// Ping opens a session that ends at once and touches nothing in the image.
func (c *Client) Ping(ctx context.Context) error {
	channel, requests, err := c.ssh.OpenChannel("session", nil)
	if err != nil {
		return fmt.Errorf("open session: %w", err)
	}
	defer channel.Close()
	stop := context.AfterFunc(ctx, func() { _ = channel.Close() })
	defer stop()
	name := struct{ Name string }{agentapi.PingSubsystem}
	ok, err := channel.SendRequest("subsystem", true, ssh.Marshal(name))
	if err != nil {
		return contextual(ctx, fmt.Errorf("request ping: %w", err))
	}
	if !ok {
		return errors.New("request ping: server has no such subsystem")
	}
	for r := range requests {
		if r.Type == "exit-status" {
			return nil
		}
	}
	return contextual(ctx, errors.New("ping ended without a status"))
}

func wait(ctx context.Context, s *ssh.Session) (int, error) {
	err := s.Wait()
	var exit *ssh.ExitError
	switch {
	case err == nil:
		return 0, nil
	case errors.As(err, &exit) && exit.Signal() != "":
		return exitSignalBase + signalNumber(exit.Signal()), nil
	case errors.As(err, &exit):
		return exit.ExitStatus(), nil
	}
	return 0, contextual(ctx, fmt.Errorf("wait for session: %w", err))
}

func contextual(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return errors.Join(ctx.Err(), err)
	}
	return err
}

// Shell runs a login on the user's own terminal, in raw mode, and follows its
// size. An empty command means the login shell. It returns the exit code.
func (c *Client) Shell(ctx context.Context, tty *os.File, out io.Writer, terminal, command string) (int, error) {
	s, err := c.ssh.NewSession()
	if err != nil {
		return 0, fmt.Errorf("open session: %w", err)
	}
	defer s.Close()
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	defer stop()
	fd := int(tty.Fd())
	width, height, err := term.GetSize(fd)
	if err != nil {
		return 0, fmt.Errorf("read terminal size: %w", err)
	}
	if err := s.RequestPty(terminal, height, width, ssh.TerminalModes{}); err != nil {
		return 0, fmt.Errorf("request terminal: %w", err)
	}
	for _, name := range []string{"LANG", "LC_ALL", "COLORTERM"} {
		if v, ok := os.LookupEnv(name); ok {
			_ = s.Setenv(name, v) // a server may refuse any of them
		}
	}
	s.Stdin, s.Stdout, s.Stderr = tty, out, out
	state, err := term.MakeRaw(fd)
	if err != nil {
		return 0, fmt.Errorf("switch terminal to raw mode: %w", err)
	}
	defer func() { _ = term.Restore(fd, state) }()
	follow, cancel := context.WithCancel(ctx)
	defer cancel()
	go followSize(follow, fd, s)
	if command == "" {
		err = s.Shell()
	} else {
		err = s.Start(command)
	}
	if err != nil {
		return 0, contextual(ctx, fmt.Errorf("start session: %w", err))
	}
	return wait(ctx, s)
}

func followSize(ctx context.Context, fd int, s *ssh.Session) {
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, syscall.SIGWINCH)
	defer signal.Stop(resized)
	for {
		select {
		case <-ctx.Done():
			return
		case <-resized:
			if width, height, err := term.GetSize(fd); err == nil {
				_ = s.WindowChange(height, width)
			}
		}
	}
}

// signalNumber gives the Linux number of a signal's name.
func signalNumber(name string) int {
	for n, s := range map[ssh.Signal]syscall.Signal{
		ssh.SIGABRT: syscall.SIGABRT, ssh.SIGALRM: syscall.SIGALRM, ssh.SIGFPE: syscall.SIGFPE,
		ssh.SIGHUP: syscall.SIGHUP, ssh.SIGILL: syscall.SIGILL, ssh.SIGINT: syscall.SIGINT,
		ssh.SIGKILL: syscall.SIGKILL, ssh.SIGPIPE: syscall.SIGPIPE, ssh.SIGQUIT: syscall.SIGQUIT,
		ssh.SIGSEGV: syscall.SIGSEGV, ssh.SIGTERM: syscall.SIGTERM, ssh.SIGUSR1: syscall.SIGUSR1,
		ssh.SIGUSR2: syscall.SIGUSR2, "BUS": syscall.SIGBUS,
	} {
		if string(n) == name {
			return int(s)
		}
	}
	return 0
}
