package agent

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/firstlight-dev/firstlight/launcher/agentapi"
)

// Limits of the SSH server.
const (
	maxConnections     = 64 // an environment has one owner; editors open several
	maxUnauthenticated = 16 // of those, at the same time before their login
	maxAuthTries       = 6  // as OpenSSH's default
	loginGrace         = 20 * time.Second
	maxChannels        = 128 // per connection: forwarded ports count too
	keepaliveInterval  = 30 * time.Second
	keepaliveTimeout   = 30 * time.Second
)

var errNoSuchKey = errors.New("key is not authorized")

// sshServer serves SSH for the environment's owner.
type sshServer struct {
	config   *ssh.ServerConfig
	hostKey  ssh.PublicKey
	keys     [][]byte // authorized keys in wire form
	env      *environment
	children *children
	session  agentapi.SessionConfig
	log      *slog.Logger

	joining chan struct{}

	connections, sessions, logins, failures, refused atomic.Int64
	activity                                         atomic.Int64
}

func newSSHServer(cfg *agentapi.Config, env *environment, c *children, version string, log *slog.Logger) (*sshServer, error) {
	signer, err := parseHostKey(cfg.SSH.HostKey)
	if err != nil {
		return nil, err
	}
	s := &sshServer{
		hostKey:  signer.PublicKey(),
		env:      env,
		children: c,
		session:  cfg.Session,
		log:      log,
		joining:  make(chan struct{}, maxUnauthenticated),
	}
	for i, line := range cfg.SSH.AuthorizedKeys {
		key, _, options, rest, err := ssh.ParseAuthorizedKey([]byte(line))
		if err != nil || len(options) > 0 || len(bytes.TrimSpace(rest)) > 0 {
			return nil, fmt.Errorf("%w: authorized key %d is not one plain authorized_keys line", agentapi.ErrInvalidConfig, i)
		}
		s.keys = append(s.keys, key.Marshal())
	}
	s.config = &ssh.ServerConfig{
		MaxAuthTries:      maxAuthTries,
		PublicKeyCallback: s.authorize,
		ServerVersion:     "SSH-2.0-firstlight_" + softwareVersion(version),
	}
	s.config.AddHostKey(signer)
	return s, nil
}

func parseHostKey(pem string) (ssh.Signer, error) {
	// The error of the parser could quote the key.
	raw, err := ssh.ParseRawPrivateKey([]byte(pem))
	if err != nil {
		return nil, fmt.Errorf("%w: ssh.hostKey is not a PEM private key", agentapi.ErrInvalidConfig)
	}
	switch raw.(type) {
	case *ed25519.PrivateKey, ed25519.PrivateKey:
	default:
		return nil, fmt.Errorf("%w: ssh.hostKey is not an Ed25519 key", agentapi.ErrInvalidConfig)
	}
	signer, err := ssh.NewSignerFromKey(raw)
	if err != nil {
		return nil, fmt.Errorf("%w: ssh.hostKey can't sign", agentapi.ErrInvalidConfig)
	}
	return signer, nil
}

// softwareVersion keeps what RFC 4253 allows in a version string.
func softwareVersion(v string) string {
	const max = 32
	out := make([]byte, 0, max)
	for i := 0; i < len(v) && len(out) < max; i++ {
		if c := v[i]; c > ' ' && c < 0x7f && c != '-' {
			out = append(out, c)
		}
	}
	if len(out) == 0 {
		return "dev"
	}
	return string(out)
}

// authorize accepts any login name: an environment has one user, the one its
// container runs as.
func (s *sshServer) authorize(_ ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
	offered := key.Marshal()
	for _, k := range s.keys {
		if subtle.ConstantTimeCompare(k, offered) == 1 {
			return &ssh.Permissions{}, nil
		}
	}
	return nil, errNoSuchKey
}

// serve accepts connections until the listener is closed or the context ends,
// then waits for those that are open.
func (s *sshServer) serve(ctx context.Context, l net.Listener) error {
	limited := newLimitListener(l, maxConnections, func() { s.refused.Add(1) })
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	var open sync.WaitGroup
	defer open.Wait()
	for {
		conn, err := limited.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			if ne := net.Error(nil); errors.As(err, &ne) && ne.Timeout() || isResource(err) {
				s.log.Warn("ssh accept delayed", "err", err)
				if !sleep(ctx, time.Second) {
					return nil
				}
				continue
			}
			return fmt.Errorf("accept ssh connection: %w", err)
		}
		open.Go(func() { s.handle(ctx, conn) })
	}
}

// handle serves one connection. A bug in it must not end PID 1.
func (s *sshServer) handle(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	defer func() {
		if r := recover(); r != nil {
			s.log.Error("ssh connection panicked", "panic", r)
		}
	}()
	s.connections.Add(1)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()

	sc, channels, requests, err := s.login(conn)
	if err != nil {
		s.log.Debug("ssh login did not succeed", "remote", conn.RemoteAddr(), "err", err)
		return
	}
	defer sc.Close()
	s.logins.Add(1)
	s.touch()
	var work sync.WaitGroup
	defer work.Wait()
	defer cancel() // sessions end before they are waited for
	work.Go(func() { discard(requests) })
	work.Go(func() { s.keepalive(ctx, sc) })
	s.serveChannels(ctx, sc, channels, &work)
}

// login does the handshake within loginGrace.
func (s *sshServer) login(conn net.Conn) (*ssh.ServerConn, <-chan ssh.NewChannel, <-chan *ssh.Request, error) {
	select {
	case s.joining <- struct{}{}:
		defer func() { <-s.joining }()
	default:
		s.refused.Add(1)
		return nil, nil, nil, errTooManyLogins
	}
	if err := conn.SetDeadline(time.Now().Add(loginGrace)); err != nil {
		return nil, nil, nil, err
	}
	sc, channels, requests, err := ssh.NewServerConn(conn, s.config)
	if err != nil {
		if auth := (*ssh.ServerAuthError)(nil); errors.As(err, &auth) {
			s.failures.Add(1)
		}
		return nil, nil, nil, err
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		_ = sc.Close()
		return nil, nil, nil, err
	}
	return sc, channels, requests, nil
}

var errTooManyLogins = errors.New("too many connections before their login")

// discard refuses global requests: no remote forwarding. Keepalives of the
// client are requests as well, and any answer satisfies them.
func discard(requests <-chan *ssh.Request) {
	for r := range requests {
		if r.WantReply {
			_ = r.Reply(false, nil)
		}
	}
}

// keepalive closes a connection whose client doesn't answer.
func (s *sshServer) keepalive(ctx context.Context, sc *ssh.ServerConn) {
	for sleep(ctx, keepaliveInterval) {
		dead := time.AfterFunc(keepaliveTimeout, func() { _ = sc.Close() })
		_, _, err := sc.SendRequest("keepalive@openssh.com", true, nil)
		dead.Stop()
		if err != nil {
			return
		}
	}
}

func (s *sshServer) serveChannels(ctx context.Context, sc *ssh.ServerConn, channels <-chan ssh.NewChannel, work *sync.WaitGroup) {
	slots := make(chan struct{}, maxChannels)
	for nc := range channels {
		select {
		case slots <- struct{}{}:
		default:
			_ = nc.Reject(ssh.ResourceShortage, "too many channels")
			continue
		}
		work.Go(func() {
			defer func() { <-slots }()
			defer func() {
				if r := recover(); r != nil {
					s.log.Error("ssh channel panicked", "panic", r)
				}
			}()
			s.serveChannel(ctx, sc, nc)
		})
	}
}

func (s *sshServer) serveChannel(ctx context.Context, sc *ssh.ServerConn, nc ssh.NewChannel) {
	switch nc.ChannelType() {
	case "session":
		s.serveSession(ctx, sc, nc)
	case "direct-tcpip":
		s.forwardTCP(ctx, nc)
	case "direct-streamlocal@openssh.com":
		s.forwardUnix(ctx, nc)
	default:
		_ = nc.Reject(ssh.UnknownChannelType, "not served here")
	}
}

func (s *sshServer) touch() { s.activity.Store(int64(bootNow())) }

func (s *sshServer) snapshot(addr net.Addr) agentapi.SSH {
	return agentapi.SSH{
		Address:      addr.String(),
		HostKey:      ssh.FingerprintSHA256(s.hostKey),
		Connections:  s.connections.Load(),
		Sessions:     s.sessions.Load(),
		Logins:       s.logins.Load(),
		AuthFailures: s.failures.Load(),
		Refused:      s.refused.Load(),
		LastActivity: agentapi.BootTime(s.activity.Load()),
	}
}
