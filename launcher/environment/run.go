package environment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/firstlight-dev/firstlight/launcher/agentapi"
	"github.com/firstlight-dev/firstlight/launcher/cluster"
	"github.com/firstlight-dev/firstlight/launcher/spec"
	"github.com/firstlight-dev/firstlight/launcher/store"
	"github.com/firstlight-dev/firstlight/launcher/timeline"
	"github.com/firstlight-dev/firstlight/launcher/tunnel"
)

// run brings one environment up. It is the Observer of its Launch.
type run struct {
	m      *Manager
	id     string
	name   string
	cancel context.CancelFunc
	done   chan struct{} // closed when the run has ended
	wake   chan struct{} // there is something to store
	gone   chan struct{} // closed when the container has ended

	mu      sync.Mutex
	env     *store.Environment // guarded by mu
	pending []*store.Event     // to be stored; guarded by mu
	exit    *cluster.Observed  // guarded by mu
}

var _ cluster.Observer = (*run)(nil)

func newRun(m *Manager, e *store.Environment) *run {
	return &run{
		m: m, id: e.ID, name: e.Name, env: e,
		done: make(chan struct{}), wake: make(chan struct{}, 1), gone: make(chan struct{}),
	}
}

// snapshot returns a copy that the run will not change.
func (r *run) snapshot() *store.Environment {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.copyLocked()
}

func (r *run) copyLocked() *store.Environment {
	e := *r.env
	e.Record.Spans = maps.Clone(e.Record.Spans)
	e.Record.Probes = slices.Clone(e.Record.Probes)
	if p := e.Status.Placement; p != nil {
		c := *p
		e.Status.Placement = &c
	}
	return &e
}

// change alters the environment and appends an event with what alter returns,
// or none if that is nil. It does not wait for the store: keep does that.
func (r *run) change(kind string, alter func(e *store.Environment) any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	data := alter(r.env)
	if data == nil {
		return
	}
	ev, err := newEvent(kind, data)
	if err != nil {
		r.m.log.Error("event not encoded", "environment", r.id, "kind", kind, "error", err)
		return
	}
	r.pending = append(r.pending, ev)
	select {
	case r.wake <- struct{}{}:
	default: // a wake-up is waiting already
	}
}

// keep stores changes until ctx ends, and then what is left.
func (r *run) keep(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			r.flushLast(ctx)
			return
		case <-r.wake:
			r.flush(ctx)
		}
	}
}

// lastFlush bounds the storing of what is left when a run ends.
const lastFlush = 10 * time.Second

func (r *run) flushLast(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastFlush)
	defer cancel()
	r.flush(ctx)
}

// flush stores the environment and its pending events. What cannot be stored
// is kept and tried again with the next change.
func (r *run) flush(ctx context.Context) {
	r.mu.Lock()
	e := r.copyLocked()
	events := r.pending
	r.pending = nil
	r.mu.Unlock()
	err := r.m.store.SaveEnvironment(ctx, e)
	for len(events) > 0 && err == nil {
		if err = r.m.store.AddEvent(ctx, r.id, events[0]); err == nil {
			events = events[1:]
		}
	}
	if err != nil && ctx.Err() == nil {
		r.m.log.Error("environment not stored", "environment", r.id, "error", err)
	}
	r.mu.Lock()
	r.pending = append(events, r.pending...)
	r.mu.Unlock()
	r.m.announce(r.id)
}

// drive takes the environment to usable, or to failure, or to the end of ctx.
func (r *run) drive(ctx context.Context) {
	keeping, stop := context.WithCancel(ctx)
	var keeper sync.WaitGroup
	keeper.Go(func() { r.keep(keeping) })
	defer keeper.Wait()
	defer stop()
	r.change("phase", func(e *store.Environment) any { return e.Status })

	pause := newBackoff(time.Second, 30*time.Second)
	for {
		err := r.attempt(ctx)
		switch {
		case err == nil:
			r.m.log.Info("environment usable", "environment", r.id, "name", r.name)
			return
		case ctx.Err() != nil:
			return
		case permanent(err):
			r.fail(err)
			return
		}
		r.Note(cluster.Note{At: time.Now(), Warning: true, Source: "launcher",
			Reason: cmp.Or(string(cluster.CodeOf(err)), "retrying"), Message: err.Error()})
		if pause.wait(ctx) != nil {
			return
		}
	}
}

func permanent(err error) bool {
	var e *cluster.Error
	return errors.As(err, &e) && !e.Retryable
}

func (r *run) fail(err error) {
	code := cmp.Or(string(cluster.CodeOf(err)), string(cluster.CodeStartFailed))
	r.m.log.Warn("environment failed", "environment", r.id, "name", r.name, "code", code, "error", err)
	r.phase(store.PhaseFailed, code, err.Error(), func(e *store.Environment) { e.Record.Ended = time.Now() })
}

// phase changes the phase and says so.
func (r *run) phase(p store.Phase, reason, message string, also func(e *store.Environment)) {
	r.change("phase", func(e *store.Environment) any {
		e.Status.Phase, e.Status.Reason, e.Status.Message = p, reason, message
		if p == store.PhaseFailed || p == store.PhaseUsable {
			e.Status.Stage = ""
		}
		if also != nil {
			also(e)
		}
		return e.Status
	})
}

// attempt goes through the whole start once. It is repeatable: the cluster
// adopts what an earlier attempt made.
func (r *run) attempt(ctx context.Context) error {
	secrets, err := r.m.store.Secrets(ctx, r.id)
	if err != nil {
		return err
	}
	if err := r.resolve(ctx); err != nil {
		return err
	}
	e := r.snapshot()
	c, err := r.m.cluster(e.Cluster)
	if err != nil {
		return &cluster.Error{Code: cluster.CodeUnreachable, Retryable: false, Err: err}
	}
	if err := c.Start(ctx, r.launch(e, secrets)); err != nil {
		return err
	}
	r.phase(store.PhaseStarting, "", "", nil)
	return newProber(r, c, e, secrets).run(ctx)
}

// resolveTimeout bounds asking the registry: three small requests.
const resolveTimeout = time.Minute

func (r *run) resolve(ctx context.Context) error {
	e := r.snapshot()
	if e.Image != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	r.Begin(cluster.StageResolve, time.Now())
	image, err := r.m.resolver.Resolve(ctx, e.Spec.Image)
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.env.Image = &image
	r.mu.Unlock()
	r.End(cluster.StageResolve, time.Now(), map[string]any{"pinned": image.Pinned})
	return nil
}

// launch puts together what the cluster is told.
func (r *run) launch(e *store.Environment, secrets store.Secrets) cluster.Launch {
	keys := slices.Clone(e.SSHKeys)
	if signer, err := tunnel.ParsePrivateKey(secrets.LoginKey); err == nil {
		keys = append(keys, publicLine(signer.PublicKey()))
	}
	cfg := agentapi.Config{
		Environment: e.ID,
		SSH:         agentapi.SSHConfig{Address: fmt.Sprintf(":%d", agentapi.SSHPort), HostKey: secrets.HostKey, AuthorizedKeys: keys},
		Status:      agentapi.StatusConfig{Address: fmt.Sprintf(":%d", agentapi.StatusPort), Token: secrets.StatusToken},
		App:         agentapi.AppConfig{Policy: agentapi.Policy(e.Spec.OnExit)},
	}
	for i := range e.Spec.Readiness {
		p := &e.Spec.Readiness[i]
		if p.Type == spec.ProbeExec {
			cfg.Probes = append(cfg.Probes, agentapi.Probe{
				ID: p.Name, Exec: p.Command, Expect: p.Expect, Timeout: agentapi.Duration(p.Attempt(0)),
				GiveUp: agentapi.Duration(probeGiveUp),
			})
		}
	}
	return cluster.Launch{
		Env: e.ID, Name: e.Name, Generation: e.Generation,
		Spec: e.Spec, Image: *e.Image, Agent: cfg, Observer: r,
	}
}

// exited tells the run that the container has ended.
func (r *run) exited(o cluster.Observed) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.exit == nil {
		r.exit = &o
		close(r.gone)
	}
}

// Begin implements cluster.Observer.
func (r *run) Begin(stage cluster.Stage, at time.Time) {
	r.change("stage", func(e *store.Environment) any {
		if _, known := e.Record.Spans[stage]; known {
			return nil
		}
		e.Record.Spans[stage] = timeline.Span{Begin: at}
		e.Status.Stage = stage
		if p := phaseOf(stage); p != "" {
			e.Status.Phase = p
		}
		return stageEvent{Stage: stage, Begin: at}
	})
}

// End implements cluster.Observer.
func (r *run) End(stage cluster.Stage, at time.Time, attrs map[string]any) {
	r.change("stage", func(e *store.Environment) any {
		span, known := e.Record.Spans[stage]
		if !known || !span.End.IsZero() {
			return nil
		}
		span.End, span.Attrs = at, attrs
		e.Record.Spans[stage] = span
		return stageEvent{Stage: stage, Begin: span.Begin, End: at, Attrs: attrs}
	})
}

// Place implements cluster.Observer.
func (r *run) Place(p cluster.Placement) {
	r.change("place", func(e *store.Environment) any {
		e.Status.Placement = &p
		return p
	})
}

// Note implements cluster.Observer.
func (r *run) Note(n cluster.Note) {
	r.change("note", func(e *store.Environment) any {
		if n.Warning && e.Status.UsableAt == nil {
			e.Status.Reason, e.Status.Message = n.Reason, n.Message
		}
		return n
	})
}

type stageEvent struct {
	Stage cluster.Stage  `json:"stage"`
	Begin time.Time      `json:"begin"`
	End   time.Time      `json:"end,omitzero"`
	Attrs map[string]any `json:"attrs,omitempty"`
}

func phaseOf(stage cluster.Stage) store.Phase {
	switch stage {
	case cluster.StageAccept, cluster.StageResolve, cluster.StageAdmit:
		return store.PhaseSubmitted
	case cluster.StageQueue:
		return store.PhaseQueued
	case cluster.StageSchedule:
		return store.PhaseScheduling
	case cluster.StageSandbox, cluster.StageTools, cluster.StageImage:
		return store.PhasePreparing
	case cluster.StageCreate, cluster.StageAgent:
		return store.PhaseStarting
	}
	return ""
}
