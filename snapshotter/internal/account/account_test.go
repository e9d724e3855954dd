package account

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// proc is a /proc with threads that can be moved.
type proc struct {
	*testing.T
	dir string
}

func newProc(t *testing.T) *proc { return &proc{t, t.TempDir()} }

func (p *proc) move(tid int, lines ...string) {
	p.Helper()
	dir := filepath.Join(p.dir, fmt.Sprint(tid))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		p.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "cgroup"), []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		p.Fatal(err)
	}
}

func TestNames(t *testing.T) {
	id := strings.Repeat("0a", 32)
	for text, want := range map[string]string{
		"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice/cri-containerd-" + id + ".scope\n": id,
		"12:cpu,cpuacct:/default/redis\n1:name=systemd:/default/redis\n0::/\n":                                        "redis",
		"9:name=systemd:/\n8:pids:/k8s.io/" + id + "\n":                                                               id,
		"0::/system.slice/containerd.service\n":                                                                       "containerd.service",
		"0::/system.slice/docker-" + id + ".scope\n":                                                                  id,
		"0::/init.scope\n": "init",
		"0::/\n":           "/",
		"":                 "/",
		"nonsense":         "/",
		"0::/with:colon\n": "with:colon",
	} {
		if got := name(parseGroup(text)); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestBook(t *testing.T) {
	p := newProc(t)
	now := time.Unix(1000, 0)
	b := NewBook(WithProc(p.dir), WithClock(func() time.Time { return now }))
	p.move(1, "0::/a")
	p.move(2, "0::/a")
	p.move(3, "0::/b")
	a := b.Of(1)
	if b.Of(2) != a || b.Of(3) == a {
		t.Error("threads of a container do not share an account, or others do")
	}
	if b.Of(0).Group() != Unknown || b.Of(99).Group() != Unknown {
		t.Error("threads that are not there are somewhere")
	}
	p.move(1, "0::/b") // the number is another thread's now
	if b.Of(1) != a {
		t.Error("looked up again at once")
	}
	now = now.Add(threadTTL)
	if b.Of(1).Group() != "/b" {
		t.Error("not looked up again")
	}
	ctx := With(context.Background(), a)
	From(ctx).Served(10)
	From(ctx).Request()
	From(ctx).Fetched(7)
	From(context.Background()).Served(1)
	From(context.Background()).Wait()()
	got := b.Figures()
	if len(got) != 3 || got[0].Container != "a" || got[0].Reads != 1 || got[0].Bytes != 10 || got[0].Requests != 1 || got[0].Fetched != 7 || !got[0].Last.Equal(now) {
		t.Errorf("figures: %+v", got)
	}
}

// TestBounds: a node where containers and threads come without end.
func TestBounds(t *testing.T) {
	p := newProc(t)
	now := time.Unix(1000, 0)
	b := NewBook(WithProc(p.dir), WithClock(func() time.Time { return now }))
	p.move(1, "0::/first")
	first := b.Of(1)
	for i := range maxAccounts + 50 {
		p.move(2, fmt.Sprintf("0::/c%d", i))
		now = now.Add(threadTTL)
		b.Of(2).Served(1)
		first.Served(1) // it is in use
	}
	if n := len(b.Figures()); n != maxAccounts {
		t.Errorf("%d accounts", n)
	}
	if b.accounts["/first"] != first || b.accounts["/c0"] != nil {
		t.Error("another account than the one unused for longest was closed")
	}
	for tid := range uint32(2 * maxThreads) {
		b.Of(tid + 1000)
	}
	if n := len(b.threads); n > maxThreads {
		t.Errorf("%d threads", n)
	}
}

func TestUnion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var u Union
		one := u.Begin()
		<-time.After(2 * time.Second)
		two := u.Begin()
		<-time.After(time.Second)
		one()
		<-time.After(time.Second)
		if d, n := u.Total(); d != 4*time.Second || n != 2 {
			t.Errorf("%v of %d intervals, one of them open", d, n)
		}
		two()
		<-time.After(time.Hour)
		u.Begin()()
		if d, n := u.Total(); d != 4*time.Second || n != 3 {
			t.Errorf("%v of %d intervals", d, n)
		}
	})
}

func FuzzParseGroup(f *testing.F) {
	f.Add("0::/a/b.scope\n")
	f.Add("3:cpu:/x\n2:\n:::\n")
	f.Fuzz(func(t *testing.T, text string) {
		g := parseGroup(text)
		if !strings.HasPrefix(g, "/") || g != "/" && !strings.Contains(text, g) {
			t.Errorf("%q is in %q", text, g)
		}
		_ = name(g)
	})
}

func BenchmarkOf(b *testing.B) {
	book := NewBook()
	tid := uint32(os.Getpid())
	for b.Loop() {
		book.Of(tid).Served(4096)
	}
}
