package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// dialTimeout bounds a relay's connection inside, where nothing is far away.
const dialTimeout = 10 * time.Second

// relay forwards connections from the machine's loopback into the namespaces.
type relay struct {
	listener net.Listener
	dial     func(context.Context) (net.Conn, error)
	cancel   context.CancelFunc
	wait     sync.WaitGroup
}

func newRelay(dial func(context.Context) (net.Conn, error)) (*relay, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for a relay: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &relay{listener: listener, dial: dial, cancel: cancel}
	r.wait.Go(func() { r.serve(ctx) })
	return r, nil
}

func (r *relay) address() string { return r.listener.Addr().String() }

// close ends the relay and every connection through it.
func (r *relay) close() error {
	r.cancel()
	err := r.listener.Close()
	r.wait.Wait()
	return err
}

func (r *relay) serve(ctx context.Context) {
	for {
		outside, err := r.listener.Accept()
		if err != nil {
			return // closed
		}
		r.wait.Go(func() {
			defer func() { _ = outside.Close() }()
			dialCtx, cancel := context.WithTimeout(ctx, dialTimeout)
			inside, err := r.dial(dialCtx)
			cancel()
			if err != nil {
				return // the client sees the connection end, as if refused
			}
			defer func() { _ = inside.Close() }()
			stop := context.AfterFunc(ctx, func() { _, _ = outside.Close(), inside.Close() })
			defer stop()
			join(outside, inside)
		})
	}
}

// join copies both ways until both ways have ended. The end of one way is
// passed on as a half close, for protocols that answer after it.
func join(a, b net.Conn) {
	var wait sync.WaitGroup
	copyTo := func(dst, src net.Conn) {
		_, err := io.Copy(dst, src)
		if half, ok := dst.(interface{ CloseWrite() error }); ok && err == nil {
			err = half.CloseWrite()
		}
		if err != nil && !errors.Is(err, net.ErrClosed) {
			_, _ = a.Close(), b.Close()
		}
	}
	wait.Go(func() { copyTo(a, b) })
	wait.Go(func() { copyTo(b, a) })
	wait.Wait()
}
