package agent

import (
	"context"
	"io"
	"net"
	"strconv"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
)

// forwardDialTimeout bounds a connection that a client asks for. Most targets
// are on the loopback.
const forwardDialTimeout = 10 * time.Second

// directTCP is the payload of a direct-tcpip channel (RFC 4254 section 7.2).
type directTCP struct {
	Host       string
	Port       uint32
	OriginHost string
	OriginPort uint32
}

// directUnix is the payload of OpenSSH's direct-streamlocal channel.
type directUnix struct {
	Path     string
	Reserved string
	Unused   uint32
}

func (s *sshServer) forwardTCP(ctx context.Context, nc ssh.NewChannel) {
	var p directTCP
	if err := ssh.Unmarshal(nc.ExtraData(), &p); err != nil || p.Port == 0 || p.Port > 65535 {
		_ = nc.Reject(ssh.ConnectionFailed, "malformed request")
		return
	}
	s.forward(ctx, nc, "tcp", net.JoinHostPort(p.Host, strconv.FormatUint(uint64(p.Port), 10)))
}

func (s *sshServer) forwardUnix(ctx context.Context, nc ssh.NewChannel) {
	var p directUnix
	if err := ssh.Unmarshal(nc.ExtraData(), &p); err != nil || p.Path == "" {
		_ = nc.Reject(ssh.ConnectionFailed, "malformed request")
		return
	}
	s.forward(ctx, nc, "unix", p.Path)
}

func (s *sshServer) forward(ctx context.Context, nc ssh.NewChannel, network, address string) {
	d := net.Dialer{Timeout: forwardDialTimeout}
	conn, err := d.DialContext(ctx, network, address)
	if err != nil {
		_ = nc.Reject(ssh.ConnectionFailed, err.Error())
		return
	}
	defer conn.Close()
	channel, requests, err := nc.Accept()
	if err != nil {
		return
	}
	defer channel.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()

	go discard(requests) // ends with the channel
	var upstream sync.WaitGroup
	upstream.Go(func() {
		_, _ = io.Copy(conn, activityReader{channel, s})
		if half, ok := conn.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite()
		}
	})
	_, err = io.Copy(channel, conn)
	_ = channel.CloseWrite()
	if err != nil { // the client is gone, or the target broke off
		_ = conn.Close()
		_ = channel.Close()
	}
	upstream.Wait()
}

// activityReader notes that the client sent something.
type activityReader struct {
	io.Reader
	server *sshServer
}

// Read implements io.Reader.
func (r activityReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if n > 0 {
		r.server.touch()
	}
	return n, err
}
