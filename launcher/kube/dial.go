package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/firstlight-dev/firstlight/launcher/cluster"
)

// Dial implements cluster.Cluster.
func (c *Cluster) Dial(ctx context.Context, env string, port int) (net.Conn, error) {
	pod, err := c.running(ctx, env)
	if err != nil {
		return nil, err
	}
	if c.cfg.DirectDial && pod.Status.PodIP != "" {
		var d net.Dialer
		conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(port)))
		if err != nil {
			return nil, fmt.Errorf("dial pod %s: %w", pod.Name, err)
		}
		return conn, nil
	}
	return c.forward(ctx, pod.Name, port)
}

// running returns the environment's pod if its container runs.
func (c *Cluster) running(ctx context.Context, env string) (*corev1.Pod, error) {
	pod, err := c.podOf(ctx, env)
	if err != nil {
		return nil, err
	}
	for i := range pod.Status.ContainerStatuses {
		if pod.Status.ContainerStatuses[i].State.Running != nil {
			return pod, nil
		}
	}
	return nil, fmt.Errorf("pod %s: its container does not run: %w", pod.Name, cluster.ErrNotFound)
}

// podOf returns the environment's newest pod.
func (c *Cluster) podOf(ctx context.Context, env string) (*corev1.Pod, error) {
	if err := c.awaitSync(ctx); err != nil {
		return nil, err
	}
	var found *corev1.Pod
	for _, obj := range c.pods.GetStore().List() {
		if p, ok := obj.(*corev1.Pod); ok && p.Labels[labelEnv] == env {
			if found == nil || generation(p) > generation(found) {
				found = p
			}
		}
	}
	if found == nil {
		return nil, fmt.Errorf("environment %s has no pod: %w", env, cluster.ErrNotFound)
	}
	return found, nil
}

func generation(p *corev1.Pod) int {
	n, err := strconv.Atoi(p.Labels[labelGeneration])
	if err != nil {
		return 0 // someone else's label
	}
	return n
}

// forward opens a connection through the API server: by websocket, or by SPDY
// where that is not served.
func (c *Cluster) forward(ctx context.Context, pod string, port int) (net.Conn, error) {
	url := c.client.CoreV1().RESTClient().Post().Resource("pods").Namespace(c.cfg.Namespace).
		Name(pod).SubResource("portforward").URL()
	transport, upgrader, err := spdy.RoundTripperFor(c.rest)
	if err != nil {
		return nil, fmt.Errorf("forward to pod %s: %w", pod, err)
	}
	dialer := spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, url)
	if ws, err := portforward.NewSPDYOverWebsocketDialerForStreaming(url, c.rest); err == nil {
		dialer = portforward.NewFallbackDialerForStreaming(ws, dialer, func(err error) bool {
			return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
		})
	}
	type result struct {
		conn net.Conn
		err  error
	}
	// The dialer knows no context; a connection that comes too late is closed.
	done := make(chan result, 1)
	go func() {
		conn, err := openStream(dialer, pod, port)
		done <- result{conn, err}
	}()
	select {
	case res := <-done:
		return res.conn, res.err
	case <-ctx.Done():
		go func() {
			if res := <-done; res.conn != nil {
				_ = res.conn.Close()
			}
		}()
		return nil, fmt.Errorf("forward to pod %s: %w", pod, ctx.Err())
	}
}

func openStream(dialer httpstream.Dialer, pod string, port int) (net.Conn, error) {
	conn, protocol, err := dialer.Dial(portforward.PortForwardProtocolV1Name)
	if err != nil {
		return nil, fmt.Errorf("forward to pod %s: %w", pod, err)
	}
	if protocol != portforward.PortForwardProtocolV1Name {
		return nil, errors.Join(fmt.Errorf("forward to pod %s: server speaks %q", pod, protocol), conn.Close())
	}
	header := http.Header{}
	header.Set(corev1.PortHeader, strconv.Itoa(port))
	header.Set(corev1.PortForwardRequestIDHeader, "0")
	header.Set(corev1.StreamType, corev1.StreamTypeError)
	trouble, err := conn.CreateStream(header)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("forward to pod %s: %w", pod, err), conn.Close())
	}
	_ = trouble.Close() // only the server writes to it
	header.Set(corev1.StreamType, corev1.StreamTypeData)
	data, err := conn.CreateStream(header)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("forward to pod %s: %w", pod, err), conn.Close())
	}
	f := &forwarded{Stream: data, conn: conn, address: address(pod + ":" + strconv.Itoa(port)), read: make(chan struct{})}
	go f.watch(trouble) // ends with the connection
	return f, nil
}

// maxTrouble bounds what a server says about a failed connection.
const maxTrouble = 4 << 10

// forwarded is a forwarded connection. The protocol has no deadlines: a
// deadline closes the connection when it passes.
type forwarded struct {
	httpstream.Stream
	conn    httpstream.Connection
	address address
	read    chan struct{} // closed when the error stream has ended

	mu      sync.Mutex
	trouble error       // what the server said; guarded by mu
	timer   *time.Timer // guarded by mu
}

var _ net.Conn = (*forwarded)(nil)

func (f *forwarded) watch(stream io.Reader) {
	defer close(f.read)
	text, _ := io.ReadAll(io.LimitReader(stream, maxTrouble)) // an unreadable message is no message
	if len(text) == 0 {
		return
	}
	f.mu.Lock()
	f.trouble = fmt.Errorf("forward to %s: %s", f.address, text)
	f.mu.Unlock()
	_ = f.conn.Close()
}

// Read implements net.Conn. At the end it waits a moment for the server's
// reason, which comes by another stream.
func (f *forwarded) Read(p []byte) (int, error) {
	n, err := f.Stream.Read(p)
	if err == nil {
		return n, nil
	}
	select {
	case <-f.read:
	case <-time.After(100 * time.Millisecond):
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.trouble != nil {
		err = f.trouble
	}
	return n, err
}

// Close implements net.Conn.
func (f *forwarded) Close() error {
	f.mu.Lock()
	if f.timer != nil {
		f.timer.Stop()
	}
	f.mu.Unlock()
	return errors.Join(f.Stream.Reset(), f.conn.Close())
}

// SetDeadline implements net.Conn.
func (f *forwarded) SetDeadline(t time.Time) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.timer != nil {
		f.timer.Stop()
		f.timer = nil
	}
	if !t.IsZero() {
		f.timer = time.AfterFunc(time.Until(t), func() { _ = f.conn.Close() })
	}
	return nil
}

// SetReadDeadline implements net.Conn.
func (f *forwarded) SetReadDeadline(t time.Time) error { return f.SetDeadline(t) }

// SetWriteDeadline implements net.Conn.
func (f *forwarded) SetWriteDeadline(t time.Time) error { return f.SetDeadline(t) }

// LocalAddr implements net.Conn.
func (f *forwarded) LocalAddr() net.Addr { return address("launcher") }

// RemoteAddr implements net.Conn.
func (f *forwarded) RemoteAddr() net.Addr { return f.address }

type address string

// Network implements net.Addr.
func (address) Network() string { return "portforward" }

// String implements net.Addr.
func (a address) String() string { return string(a) }

// Logs implements cluster.Cluster.
func (c *Cluster) Logs(ctx context.Context, env string, follow bool) (io.ReadCloser, error) {
	pod, err := c.podOf(ctx, env)
	if err != nil {
		return nil, err
	}
	out, err := c.client.CoreV1().Pods(c.cfg.Namespace).
		GetLogs(pod.Name, &corev1.PodLogOptions{Container: mainContainer, Follow: follow}).Stream(ctx)
	if err != nil {
		return nil, classify("read logs of "+pod.Name, err)
	}
	return out, nil
}
