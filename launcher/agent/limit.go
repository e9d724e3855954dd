package agent

import (
	"net"
	"sync"
)

// limitListener hands out at most n open connections. What comes beyond is
// closed at once: waiting would let a few idle clients lock everybody out of
// knowing why.
type limitListener struct {
	net.Listener
	slots  chan struct{}
	refuse func()
}

func newLimitListener(l net.Listener, n int, refuse func()) *limitListener {
	return &limitListener{Listener: l, slots: make(chan struct{}, n), refuse: refuse}
}

// Accept implements net.Listener.
func (l *limitListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		select {
		case l.slots <- struct{}{}:
			return &limitConn{Conn: conn, release: sync.OnceFunc(func() { <-l.slots })}, nil
		default:
			l.refuse()
			_ = conn.Close()
		}
	}
}

type limitConn struct {
	net.Conn
	release func()
}

// Close implements net.Conn.
func (c *limitConn) Close() error {
	defer c.release()
	return c.Conn.Close()
}
