package tunnel_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/coder/websocket"

	"github.com/firstlight-dev/firstlight/launcher/tunnel"
)

// echoServer echoes each connection until its end. It returns its address.
func echoServer(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(conn, conn)
				_ = conn.Close()
			}()
		}
	}()
	return l.Addr().String()
}

// gateway serves tunnels to the address. It waits for all to end.
func gateway(t *testing.T, address string) string {
	t.Helper()
	var open sync.WaitGroup
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		open.Add(1)
		defer open.Done()
		if r.Header.Get("Authorization") != "Bearer tok" {
			http.Error(w, `{"title":"no token"}`, http.StatusUnauthorized)
			return
		}
		var d net.Dialer
		target, err := d.DialContext(r.Context(), "tcp", address)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		_ = tunnel.Serve(w, r, target)
	}))
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
		open.Wait()
	})
	return s.URL
}

func header() http.Header { return http.Header{"Authorization": {"Bearer tok"}} }

func TestEcho(t *testing.T) {
	url := gateway(t, echoServer(t))
	ctx, cancel := context.WithCancel(t.Context())
	conn, err := tunnel.Dial(ctx, nil, url, header())
	if err != nil {
		t.Fatal(err)
	}
	cancel() // bounds the dialling only
	data := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	sent := make(chan error, 1)
	go func() {
		_, err := conn.Write(data)
		sent <- err
	}()
	got := make([]byte, len(data))
	if _, err := io.ReadFull(conn, got); err != nil || !bytes.Equal(got, data) {
		t.Fatalf("echo differs: %v", err)
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := conn.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	if _, err := conn.Read(got); err == nil {
		t.Error("read after close")
	}
}

// TestTargetEnds lets the far end hang up: the near end must notice.
func TestTargetEnds(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		conn, err := l.Accept()
		if err == nil {
			_, _ = io.WriteString(conn, "bye")
			_ = conn.Close()
		}
	}()
	conn, err := tunnel.Dial(t.Context(), nil, gateway(t, l.Addr().String()), header())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	got := make([]byte, 3)
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != "bye" {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := conn.Read(got); err == nil {
		t.Error("tunnel outlived its target")
	}
}

func TestRefusals(t *testing.T) {
	var refused *tunnel.RefusedError
	url := gateway(t, echoServer(t))
	if _, err := tunnel.Dial(t.Context(), nil, url, nil); !errors.As(err, &refused) || refused.Status != http.StatusUnauthorized || !strings.Contains(string(refused.Body), "no token") {
		t.Errorf("no token: %v", err)
	}
	if _, err := tunnel.Dial(t.Context(), nil, gateway(t, "127.0.0.1:1"), header()); !errors.As(err, &refused) || refused.Status != http.StatusBadGateway {
		t.Errorf("no target: %v", err)
	}
	if _, err := tunnel.Dial(t.Context(), nil, "http://127.0.0.1:1", nil); err == nil || errors.As(err, &refused) {
		t.Errorf("no server: %v", err)
	}
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ws, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		_, _, _ = ws.Read(r.Context())
	}))
	defer other.Close()
	if _, err := tunnel.Dial(t.Context(), nil, other.URL, nil); err == nil || !strings.Contains(err.Error(), "does not serve tunnels") {
		t.Errorf("another service: %v", err)
	}
	// The other way round: a client that is not ours.
	ws, _, err := websocket.Dial(t.Context(), url, &websocket.DialOptions{HTTPHeader: header()})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := ws.Read(t.Context()); websocket.CloseStatus(err) != websocket.StatusPolicyViolation {
		t.Errorf("another client: %v", err)
	}
}

func TestStdio(t *testing.T) {
	conn, err := tunnel.Dial(t.Context(), nil, gateway(t, echoServer(t)), header())
	if err != nil {
		t.Fatal(err)
	}
	in, feed := io.Pipe()
	out, sink := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- tunnel.Stdio(t.Context(), conn, in, sink)
		_ = sink.Close()
	}()
	if _, err := io.WriteString(feed, "hello"); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 5)
	if _, err := io.ReadFull(out, got); err != nil || string(got) != "hello" {
		t.Errorf("got %q, %v", got, err)
	}
	_ = feed.Close() // ssh is done
	if err := <-ended; err != nil {
		t.Errorf("end: %v", err)
	}
}

func TestKeys(t *testing.T) {
	key, err := tunnel.NewKey("a comment")
	if err != nil {
		t.Fatal(err)
	}
	signer, err := tunnel.ParsePrivateKey(key.Private)
	if err != nil {
		t.Fatal(err)
	}
	public, err := tunnel.ParsePublicKey(key.Public)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(signer.PublicKey().Marshal(), public.Marshal()) || !strings.HasSuffix(key.Public, " a comment") {
		t.Errorf("halves differ: %q", key.Public)
	}
	if _, err := tunnel.ParsePrivateKey("-----BEGIN canary"); err == nil || strings.Contains(err.Error(), "canary") {
		t.Errorf("error = %v", err)
	}
}
