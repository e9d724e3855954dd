package wire_test

import (
	"testing"
	"time"

	"github.com/firstlight-dev/firstlight/sharing/wire"
)

func TestNodeLock(t *testing.T) {
	since := time.Date(2026, 9, 1, 10, 20, 30, 0, time.UTC)
	for text, want := range map[string]wire.NodeLock{
		"2026-09-01T10:20:30Z,team-a,dev-1": {Since: since, Namespace: "team-a", Name: "dev-1"},
		"2026-09-01T10:20:30Z":              {Since: since},
	} {
		got, err := wire.ParseNodeLock(text)
		if err != nil || got != want {
			t.Errorf("ParseNodeLock(%q) = %+v, %v", text, got, err)
		}
		if got.String() != text {
			t.Errorf("String = %q, want %q", got, text)
		}
	}
	for _, bad := range []string{"", "now", "2026-09-01T10:20:30Z,", "2026-09-01T10:20:30Z,a", "2026-09-01T10:20:30Z,a,b,c", "2026-09-01T10:20:30Z,,b"} {
		if got, err := wire.ParseNodeLock(bad); err == nil {
			t.Errorf("ParseNodeLock(%q) = %+v, want an error", bad, got)
		}
	}
	lock := wire.NodeLock{Since: since, Namespace: "a", Name: "b"}
	if !lock.HeldBy("a", "b") || lock.HeldBy("a", "c") || (wire.NodeLock{}).HeldBy("", "") {
		t.Error("HeldBy is wrong")
	}
	if lock.Expired(since.Add(wire.LockTimeout)) || !lock.Expired(since.Add(wire.LockTimeout+time.Second)) {
		t.Error("Expired is wrong")
	}
}

func TestHandshake(t *testing.T) {
	at := time.Date(2026, 9, 1, 10, 20, 30, 0, time.UTC)
	for text, want := range map[string]wire.Handshake{
		"Requesting_2026-09-01 10:20:30":         {State: wire.HandshakeRequesting, At: at},
		"Deleted_2026-09-01 10:20:30":            {State: wire.HandshakeDeleted, At: at},
		"Reported 2026-09-01 10:20:30 +0000 UTC": {State: wire.HandshakeReported, At: at},
	} {
		got, err := wire.ParseHandshake(text, time.UTC)
		if err != nil || got.State != want.State || !got.At.Equal(want.At) {
			t.Errorf("ParseHandshake(%q) = %+v, %v", text, got, err)
		}
		if want.String() != text {
			t.Errorf("String = %q, want %q", want, text)
		}
	}
	if _, err := wire.ParseHandshake("Reported 2026-09-01 10:20:30.5 +0000 UTC m=+0.1", time.UTC); err != nil {
		t.Errorf("with a monotonic clock: %v", err)
	}
	for _, bad := range []string{"", "Requesting", "Requesting_2026.09.01 10:20:30", "Alive_2026-09-01 10:20:30"} {
		if got, err := wire.ParseHandshake(bad, time.UTC); err == nil {
			t.Errorf("ParseHandshake(%q) = %+v, want an error", bad, got)
		}
	}
}

func FuzzParseNodeLock(f *testing.F) {
	f.Add("2026-09-01T10:20:30Z,team-a,dev-1")
	f.Fuzz(func(t *testing.T, s string) {
		lock, err := wire.ParseNodeLock(s)
		if err != nil {
			return
		}
		if lock.Since.Year() > 9999 || lock.Since.Year() < 0 {
			return
		}
		again, err := wire.ParseNodeLock(lock.String())
		if err != nil || again.Name != lock.Name || again.Namespace != lock.Namespace {
			t.Errorf("round trip of %q: %+v, %v", s, again, err)
		}
	})
}

func FuzzParseHandshake(f *testing.F) {
	f.Add("Requesting_2026-09-01 10:20:30")
	f.Add("Reported 2026-09-01 10:20:30 +0000 UTC m=+0.1")
	f.Fuzz(func(t *testing.T, s string) {
		h, err := wire.ParseHandshake(s, time.UTC)
		if err == nil && h.State == "" {
			t.Errorf("ParseHandshake(%q) has no state", s)
		}
	})
}
