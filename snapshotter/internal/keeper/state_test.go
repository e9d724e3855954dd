package keeper

import (
	"bytes"
	"testing"
)

func TestState(t *testing.T) {
	f, err := newState()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s := &State{f}
	if b, err := s.Load(); err != nil || b != nil {
		t.Errorf("new: %q, %v", b, err)
	}
	for _, want := range [][]byte{[]byte("first"), bytes.Repeat([]byte("long"), 1000), []byte("short"), {}} {
		if err := s.Store(want); err != nil {
			t.Fatal(err)
		}
		if b, err := s.Load(); err != nil || !bytes.Equal(b, want) {
			t.Errorf("stored %.10q, loaded %.10q: %v", want, b, err)
		}
	}
	if err := s.Store(make([]byte, maxState+1)); err == nil {
		t.Error("it stores without bound")
	}

	// A worker that is killed inside Store leaves any part of it.
	if err := s.Store([]byte("complete")); err != nil {
		t.Fatal(err)
	}
	for _, damage := range []struct{ at, b int64 }{{0, 0xff}, {7, 0x7f}, {8, 0}, {stateHeader, 0}} {
		if _, err := f.WriteAt([]byte{byte(damage.b)}, damage.at); err != nil {
			t.Fatal(err)
		}
		if b, err := s.Load(); err == nil {
			t.Errorf("with byte %d changed it loads %q", damage.at, b)
		}
		if err := s.Store([]byte("complete")); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Truncate(stateHeader - 1); err != nil {
		t.Fatal(err)
	}
	if b, err := s.Load(); err == nil {
		t.Errorf("cut short it loads %q", b)
	}
}
