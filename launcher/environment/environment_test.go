package environment_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/firstlight-dev/firstlight/launcher/cluster"
	"github.com/firstlight-dev/firstlight/launcher/cluster/clustertest"
	"github.com/firstlight-dev/firstlight/launcher/environment"
	"github.com/firstlight-dev/firstlight/launcher/spec"
	"github.com/firstlight-dev/firstlight/launcher/store"
	"github.com/firstlight-dev/firstlight/launcher/timeline"
)

// resolver knows every image but one.
type resolver struct{}

func (resolver) Resolve(_ context.Context, ref string) (cluster.Image, error) {
	if strings.Contains(ref, "missing") {
		return cluster.Image{}, cluster.Fail(cluster.CodeImage, "no such image")
	}
	return cluster.Image{Reference: ref, Pinned: ref + "@sha256:1", Cmd: []string{"sh"}}, nil
}

// launcher is a manager on a database, with a cluster that outlives it.
type launcher struct {
	*environment.Manager
	store   *store.Store
	cluster *clustertest.Fake
	log     *bytes.Buffer
	stop    func()
}

func start(t *testing.T, path string, fake *clustertest.Fake) *launcher {
	t.Helper()
	l, run := prepare(t, path, fake)
	run()
	return l
}

// prepare returns a launcher that run sets going.
func prepare(t *testing.T, path string, fake *clustertest.Fake) (l *launcher, run func()) {
	t.Helper()
	st, err := store.Open(t.Context(), path, path+".key")
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	l = &launcher{store: st, cluster: fake, log: &log}
	l.Manager = environment.NewManager(t.Context(), st, []cluster.Cluster{fake}, resolver{}, slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	l.stop = sync.OnceFunc(func() {
		cancel()
		if err := errors.Join(<-done, st.Close()); err != nil {
			t.Error(err)
		}
	})
	return l, func() {
		go func() { done <- l.Run(ctx) }()
		t.Cleanup(l.stop)
	}
}

func fixture(t *testing.T) *launcher {
	t.Helper()
	fake := clustertest.New("here")
	t.Cleanup(func() { _ = fake.Close() })
	return start(t, filepath.Join(t.TempDir(), "launcher.db"), fake)
}

func request(t *testing.T, name, image string) environment.Request {
	t.Helper()
	s, err := spec.Parse([]byte("name: s\nimage: " + image + `
cpu: "1"
memory: 1Gi
readiness:
- {name: login, type: ssh_login}
- {name: work, type: exec, command: [work]}
`))
	if err != nil {
		t.Fatal(err)
	}
	return environment.Request{Name: name, Spec: *s, Accepted: time.Now()}
}

// await follows the events until the environment is as wanted.
func (l *launcher) await(t *testing.T, env string, ok func(e *store.Environment) bool) *store.Environment {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for {
		changed := l.Changed(env)
		e, err := l.Get(ctx, env)
		if err != nil {
			t.Fatal(err)
		}
		if ok(e) {
			return e
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatalf("it stays %+v, probes %+v", e.Status, e.Record.Probes)
		}
	}
}

func phase(p store.Phase) func(*store.Environment) bool {
	return func(e *store.Environment) bool { return e.Status.Phase == p }
}

func TestBecomesUsable(t *testing.T) {
	l := fixture(t)
	e, err := l.Create(t.Context(), request(t, "train", "img:1"))
	if err != nil {
		t.Fatal(err)
	}
	if e.Status.Phase != store.PhaseSubmitted {
		t.Errorf("the answer says %s", e.Status.Phase)
	}
	e = l.await(t, e.ID, phase(store.PhaseUsable))
	if e.Status.UsableAt == nil || e.Status.Placement == nil || e.Record.Image == nil {
		t.Fatalf("status is %+v", e.Status)
	}
	if n := l.cluster.StartsEnded(e.ID); n != 1 {
		t.Errorf("the node was told %d times that the start is over", n)
	}
	for _, p := range e.Record.Probes {
		if p.FirstSuccess.IsZero() || !p.Confirmed {
			t.Errorf("probe %s: %+v", p.Name, p)
		}
		if p.FirstSuccess.After(e.Record.Usable) {
			t.Errorf("probe %s succeeded after it was usable", p.Name)
		}
	}
	tl, err := l.Timeline(t.Context(), "train")
	if err != nil {
		t.Fatal(err)
	}
	checkSum(t, tl)
	checkEvents(t, l, e.ID)
}

func checkSum(t *testing.T, tl *timeline.Timeline) {
	t.Helper()
	var sum int64
	for _, row := range tl.CriticalPath {
		sum += row.DurationMs
	}
	if tl.TimeToUsableMs == nil || sum != *tl.TimeToUsableMs {
		t.Errorf("the critical path adds up to %d: %+v", sum, tl)
	}
}

// checkEvents looks for the whole story in the stored events.
func checkEvents(t *testing.T, l *launcher, id string) {
	t.Helper()
	var kinds []string
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for {
		changed := l.Changed(id)
		events, err := l.store.Events(ctx, id, 0)
		if err != nil {
			t.Fatal(err)
		}
		kinds = nil
		for _, e := range events {
			kinds = append(kinds, e.Kind)
		}
		all := strings.Join(kinds, " ")
		if strings.HasSuffix(all, "phase") && strings.Count(all, "probe") >= 2 && strings.Contains(all, "place") && strings.Contains(all, "stage") {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatalf("events are %s", all)
		}
	}
}

func TestWaitingIsNotFailing(t *testing.T) {
	fake := clustertest.New("here")
	fake.Hold = make(chan struct{})
	l := start(t, filepath.Join(t.TempDir(), "launcher.db"), fake)
	e, err := l.Create(t.Context(), request(t, "train", "img:1"))
	if err != nil {
		t.Fatal(err)
	}
	e = l.await(t, e.ID, func(e *store.Environment) bool { return e.Status.Reason == "Waiting" })
	if e.Status.Phase != store.PhaseScheduling || e.Status.Message != "no card is free" {
		t.Errorf("status is %+v", e.Status)
	}
	close(fake.Hold)
	e = l.await(t, e.ID, phase(store.PhaseUsable))
	if e.Status.Reason != "" {
		t.Errorf("a reason to wait stays: %+v", e.Status)
	}
}

func TestFailures(t *testing.T) {
	for name, tc := range map[string]struct {
		image string
		fail  error
		code  cluster.Code
	}{
		"missing image": {image: "missing:1", code: cluster.CodeImage},
		"denied":        {image: "img:1", fail: cluster.Fail(cluster.CodeAdmissionDenied, "no"), code: cluster.CodeAdmissionDenied},
	} {
		t.Run(name, func(t *testing.T) {
			l := fixture(t)
			l.cluster.Fail(tc.fail)
			e, err := l.Create(t.Context(), request(t, "train", tc.image))
			if err != nil {
				t.Fatal(err)
			}
			e = l.await(t, e.ID, phase(store.PhaseFailed))
			if e.Status.Reason != string(tc.code) || e.Status.Message == "" {
				t.Errorf("status is %+v", e.Status)
			}
		})
	}
}

// TestAdopts stops the launcher in every state that matters and starts
// another on the same database.
func TestAdopts(t *testing.T) {
	t.Run("while it waits", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "launcher.db")
		fake := clustertest.New("here")
		fake.Hold = make(chan struct{})
		l := start(t, path, fake)
		e, err := l.Create(t.Context(), request(t, "train", "img:1"))
		if err != nil {
			t.Fatal(err)
		}
		l.await(t, e.ID, func(e *store.Environment) bool { return e.Status.Reason == "Waiting" })
		l.stop()
		close(fake.Hold)
		l = start(t, path, fake)
		e = l.await(t, e.ID, phase(store.PhaseUsable))
		if !e.Record.Adopted || fake.Launches(e.ID) != 2 {
			t.Errorf("adopted: %t, started %d times", e.Record.Adopted, fake.Launches(e.ID))
		}
	})
	t.Run("once usable", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "launcher.db")
		l := start(t, path, clustertest.New("here"))
		e, err := l.Create(t.Context(), request(t, "train", "img:1"))
		if err != nil {
			t.Fatal(err)
		}
		before := l.await(t, e.ID, phase(store.PhaseUsable))
		l.stop()
		l = start(t, path, l.cluster)
		after, err := l.Get(t.Context(), "train")
		if err != nil || !after.Status.UsableAt.Equal(*before.Status.UsableAt) {
			t.Errorf("usable at %v, was %v: %v", after.Status.UsableAt, before.Status.UsableAt, err)
		}
		if n := l.cluster.Launches(e.ID); n != 1 {
			t.Errorf("it was started %d times", n)
		}
	})
}

// TestCreateBeforeAdoption asks for an environment while the launcher is still
// coming up: it must get one run, not a second one by adoption.
func TestCreateBeforeAdoption(t *testing.T) {
	fake := clustertest.New("here")
	fake.Hold = make(chan struct{})
	t.Cleanup(func() { _ = fake.Close() })
	l, run := prepare(t, filepath.Join(t.TempDir(), "launcher.db"), fake)
	created := make(chan error, 1)
	var e *store.Environment
	go func() {
		var err error
		e, err = l.Create(t.Context(), request(t, "train", "img:1"))
		created <- err
	}()
	select {
	case err := <-created:
		t.Errorf("it was accepted before adoption: %v", err)
		created <- err
	case <-time.After(50 * time.Millisecond):
	}
	run()
	if err := <-created; err != nil {
		t.Fatal(err)
	}
	close(fake.Hold)
	e = l.await(t, e.ID, phase(store.PhaseUsable))
	if e.Record.Adopted || fake.Launches(e.ID) != 1 {
		t.Errorf("adopted: %t, started %d times", e.Record.Adopted, fake.Launches(e.ID))
	}

	l, _ = prepare(t, filepath.Join(t.TempDir(), "launcher.db"), fake)
	defer l.store.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := l.Create(ctx, request(t, "late", "img:1")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("without adoption: %v", err)
	}
	if _, err := l.Delete(ctx, "late"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("without adoption: %v", err)
	}
}

func TestDelete(t *testing.T) {
	l := fixture(t)
	e, err := l.Create(t.Context(), request(t, "train", "img:1"))
	if err != nil {
		t.Fatal(err)
	}
	l.await(t, e.ID, phase(store.PhaseUsable))
	if _, err := l.Create(t.Context(), request(t, "train", "img:1")); !errors.Is(err, store.ErrConflict) {
		t.Errorf("the same name again: %v", err)
	}
	if _, err := l.Delete(t.Context(), "train"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for {
		changed := l.Changed(e.ID)
		if _, err := l.Get(ctx, e.ID); errors.Is(err, store.ErrNotFound) {
			break
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatal("it is still there")
		}
	}
	if seen, err := l.cluster.Observe(ctx); err != nil || len(seen) != 0 {
		t.Errorf("the cluster still has %v: %v", seen, err)
	}
	if _, err := l.Delete(ctx, "train"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("deleted twice: %v", err)
	}
}

// TestDeleteWhileWaiting removes an environment whose start is under way.
func TestDeleteWhileWaiting(t *testing.T) {
	fake := clustertest.New("here")
	fake.Hold = make(chan struct{})
	l := start(t, filepath.Join(t.TempDir(), "launcher.db"), fake)
	e, err := l.Create(t.Context(), request(t, "train", "img:1"))
	if err != nil {
		t.Fatal(err)
	}
	l.await(t, e.ID, func(e *store.Environment) bool { return e.Status.Reason == "Waiting" })
	if _, err := l.Delete(t.Context(), e.ID); err != nil {
		t.Fatal(err)
	}
}

func TestSecretsStayOut(t *testing.T) {
	l := fixture(t)
	e, err := l.Create(t.Context(), request(t, "train", "img:1"))
	if err != nil {
		t.Fatal(err)
	}
	l.await(t, e.ID, phase(store.PhaseUsable))
	secrets, err := l.store.Secrets(t.Context(), e.ID)
	if err != nil {
		t.Fatal(err)
	}
	l.stop()
	for name, secret := range map[string]string{"host key": secrets.HostKey, "login key": secrets.LoginKey, "token": secrets.StatusToken} {
		body := strings.Split(strings.TrimSpace(secret), "\n")
		if strings.Contains(l.log.String(), body[len(body)/2]) {
			t.Errorf("the log holds the %s", name)
		}
	}
}
