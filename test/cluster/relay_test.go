package cluster

import (
	"context"
	"io"
	"net"
	"testing"
)

// TestRelay checks that an answer given after the end of the question arrives.
func TestRelay(t *testing.T) {
	inside, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer inside.Close()
	go func() {
		conn, err := inside.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		question, err := io.ReadAll(conn)
		if err == nil {
			_, err = conn.Write(append([]byte("answer to "), question...))
		}
		if err != nil {
			t.Error(err)
		}
	}()
	conn := dialRelay(t, inside.Addr().String())
	if _, err := conn.Write([]byte("question")); err != nil {
		t.Fatal(err)
	}
	if err := conn.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(conn)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != "answer to question" {
		t.Errorf("got %q", got)
	}
}

// TestRelayCloses checks that closing ends connections on which nothing
// happens, and waits for them.
func TestRelayCloses(t *testing.T) {
	inside, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer inside.Close()
	r, err := newRelay(dialTo(inside.Addr().String()))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", r.address())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	accepted, err := inside.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer accepted.Close()
	if err := r.close(); err != nil {
		t.Fatal(err)
	}
	if n, err := conn.Read(make([]byte, 1)); err == nil {
		t.Errorf("read %d bytes after the end", n)
	}
}

// TestRelayToNothing checks that a connection ends when nobody listens inside.
func TestRelayToNothing(t *testing.T) {
	inside, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := inside.Close(); err != nil {
		t.Fatal(err)
	}
	if n, err := dialRelay(t, inside.Addr().String()).Read(make([]byte, 1)); err == nil {
		t.Errorf("read %d bytes from nobody", n)
	}
}

func dialRelay(t *testing.T, inside string) *net.TCPConn {
	t.Helper()
	r, err := newRelay(dialTo(inside))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.close(); err != nil {
			t.Error(err)
		}
	})
	conn, err := net.Dial("tcp", r.address())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		t.Fatalf("connection is a %T", conn)
	}
	return tcp
}

func dialTo(address string) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", address)
	}
}
