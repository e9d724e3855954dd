package sandbox

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

func newNamespaces(t *testing.T) *Namespaces {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("namespaces need root")
	}
	ns, err := New(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ns.Kill(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return ns
}

func TestInsideIsApart(t *testing.T) {
	ns := newNamespaces(t)
	if err := ns.CoverMounts(t.Context(), t.TempDir()); err != nil {
		t.Fatal(err)
	}
	for what, argv := range map[string][]string{
		"an empty /run":         {"sh", "-c", "ls -A /run | wc -l"},
		"an empty /var/lib":     {"sh", "-c", "ls -A /var/lib | wc -l"},
		"no network but itself": {"sh", "-c", "grep -c : /proc/net/dev | grep -vx 1; echo 0"},
	} {
		cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
		var out strings.Builder
		cmd.Stdout = &out
		if err := ns.Run(cmd); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if strings.TrimSpace(out.String()) != "0" {
			t.Errorf("%s: %q", what, out.String())
		}
	}
}

func TestKillEndsEveryProcess(t *testing.T) {
	ns := newNamespaces(t)
	p, err := ns.Spawn(t.TempDir(), "sleeper", exec.CommandContext(t.Context(), "sleep", "infinity"))
	if err != nil {
		t.Fatal(err)
	}
	if err := Attach(ns.PID()).Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(p.PID(), 0); err != nil {
		t.Fatalf("ended by a visitor: %v", err)
	}
	if err := ns.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.Done():
	case <-time.After(10 * time.Second):
		t.Error("a process outlives its namespaces")
	}
}

func TestWaitReady(t *testing.T) {
	ns := newNamespaces(t)
	notYet := errors.New("not yet")
	p, err := ns.Spawn(t.TempDir(), "talker", exec.CommandContext(t.Context(), "sh", "-c", "echo last words; exit 3"))
	if err != nil {
		t.Fatal(err)
	}
	err = p.WaitReady(t.Context(), func(context.Context) error { return notYet })
	if err == nil || !strings.Contains(err.Error(), "last words") {
		t.Errorf("a program that ended: %v", err)
	}

	p, err = ns.Spawn(t.TempDir(), "sleeper", exec.CommandContext(t.Context(), "sleep", "infinity"))
	if err != nil {
		t.Fatal(err)
	}
	tries := 0
	err = p.WaitReady(t.Context(), func(context.Context) error {
		if tries++; tries < 3 {
			return notYet
		}
		return nil
	})
	if err != nil || tries != 3 {
		t.Errorf("ready after %d tries: %v", tries, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.WaitReady(ctx, func(context.Context) error { return notYet }); !errors.Is(err, context.Canceled) || !errors.Is(err, notYet) {
		t.Errorf("a wait that was given up: %v", err)
	}
}
