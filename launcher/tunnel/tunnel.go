package tunnel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
)

// Subprotocol is offered by clients and chosen by the server, so that neither
// takes another websocket service for a tunnel.
const Subprotocol = "tunnel.firstlight.dev"

const (
	pingInterval = 30 * time.Second // below the idle limit of common proxies
	pingTimeout  = 30 * time.Second
	// maxErrorBody bounds what is shown of a server's refusal.
	maxErrorBody = 4 << 10
)

// Serve upgrades the request and copies between it and target until either
// ends. It closes target in every case. What can still be told by an HTTP
// status, such as an environment that can't be reached, must be told before.
func Serve(w http.ResponseWriter, r *http.Request, target net.Conn) error {
	defer target.Close()
	ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{
		Subprotocols:    []string{Subprotocol},
		CompressionMode: websocket.CompressionDisabled, // ciphertext doesn't compress
	})
	if err != nil {
		return fmt.Errorf("accept tunnel: %w", err)
	}
	if ws.Subprotocol() != Subprotocol {
		_ = ws.Close(websocket.StatusPolicyViolation, "not a tunnel client")
		return fmt.Errorf("accept tunnel: client does not offer %s", Subprotocol)
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	conn := newConn(ctx, cancel, ws)
	defer conn.Close()
	splice(ctx, conn, target)
	return nil
}

// splice copies in both directions until one of them or the context ends, then
// closes both connections and returns.
func splice(ctx context.Context, a, b net.Conn) {
	end := sync.OnceFunc(func() {
		_ = a.Close()
		_ = b.Close()
	})
	defer end()
	stop := context.AfterFunc(ctx, end)
	defer stop()
	var both sync.WaitGroup
	for _, d := range [][2]net.Conn{{a, b}, {b, a}} {
		both.Go(func() {
			_, _ = io.Copy(d[0], d[1])
			end()
		})
	}
	both.Wait()
}

// Dial opens a tunnel at an http or https URL of the launcher's API. The
// context bounds the dialling only; Close ends the tunnel.
func Dial(ctx context.Context, client *http.Client, url string, header http.Header) (net.Conn, error) {
	ws, res, err := websocket.Dial(ctx, url, &websocket.DialOptions{
		HTTPClient:      client,
		HTTPHeader:      header,
		Subprotocols:    []string{Subprotocol},
		CompressionMode: websocket.CompressionDisabled,
	})
	if err != nil {
		return nil, dialError(res, err)
	}
	if ws.Subprotocol() != Subprotocol {
		_ = ws.CloseNow()
		return nil, errors.New("open tunnel: the server does not serve tunnels here")
	}
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	return newConn(life, cancel, ws), nil
}

// RefusedError is the server's refusal to open a tunnel.
type RefusedError struct {
	Status int
	Body   []byte // the beginning of it; a problem document of the launcher's API
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("open tunnel: server answered %d: %s", e.Status, strings.TrimSpace(string(e.Body)))
}

func dialError(res *http.Response, err error) error {
	if res == nil || res.StatusCode < 400 {
		return fmt.Errorf("open tunnel: %w", err)
	}
	refused := &RefusedError{Status: res.StatusCode}
	if res.Body != nil {
		refused.Body, _ = io.ReadAll(io.LimitReader(res.Body, maxErrorBody)) // part of it is better than nothing
	}
	return refused
}

// conn is a websocket as a net.Conn that keeps itself alive.
type conn struct {
	net.Conn
	close func() error
}

func newConn(ctx context.Context, cancel context.CancelFunc, ws *websocket.Conn) *conn {
	nc := websocket.NetConn(ctx, ws, websocket.MessageBinary)
	var pings sync.WaitGroup
	pings.Go(func() { keepalive(ctx, ws) })
	return &conn{Conn: nc, close: sync.OnceValue(func() error {
		// A polite close would wait for a peer that may be gone.
		cancel()
		err := ws.CloseNow()
		pings.Wait()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		return err
	})}
}

// Close implements net.Conn.
func (c *conn) Close() error { return c.close() }

func keepalive(ctx context.Context, ws *websocket.Conn) {
	tick := time.NewTicker(pingInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		pong, cancel := context.WithTimeout(ctx, pingTimeout)
		err := ws.Ping(pong)
		cancel()
		if err != nil {
			_ = ws.CloseNow()
			return
		}
	}
}

// Stdio joins a tunnel to two streams, as ssh's ProxyCommand needs. It returns
// when the tunnel ends, or when in ends: ssh closes it when it is done.
func Stdio(ctx context.Context, tunnel net.Conn, in io.Reader, out io.Writer) error {
	defer tunnel.Close()
	stop := context.AfterFunc(ctx, func() { _ = tunnel.Close() })
	defer stop()
	go func() { // a read of standard input can't be interrupted; it ends with the process
		_, _ = io.Copy(tunnel, in)
		_ = tunnel.Close()
	}()
	_, err := io.Copy(out, tunnel)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err == nil, errors.Is(err, net.ErrClosed), errors.Is(err, context.Canceled), websocket.CloseStatus(err) != -1:
		return nil
	}
	return fmt.Errorf("read tunnel: %w", err)
}
