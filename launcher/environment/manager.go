package environment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/firstlight-dev/firstlight/launcher/cluster"
	"github.com/firstlight-dev/firstlight/launcher/store"
	"github.com/firstlight-dev/firstlight/launcher/timeline"
)

// Errors of this package, beside those of the store.
var (
	ErrNoCluster = errors.New("no such cluster")
	ErrNotReady  = errors.New("the environment does not run yet")
	ErrStopping  = errors.New("the launcher is stopping")
)

// Resolver finds out what an image reference stands for.
type Resolver interface {
	// Resolve asks the registry. An error that a retry cannot change is a
	// *cluster.Error.
	Resolve(ctx context.Context, reference string) (cluster.Image, error)
}

// Manager owns the environments of one launcher. It is safe for concurrent
// use.
type Manager struct {
	store    *store.Store
	clusters []cluster.Cluster // the first is the default
	resolver Resolver
	log      *slog.Logger

	life context.Context //nolint:containedctx // the lifetime of runs, not of a call; ends when Run's context does
	stop context.CancelFunc
	wait sync.WaitGroup
	// gate holds a token from the end of adoption on. Whoever goes from the
	// store's environments to their runs takes it for that long, so that none
	// gets two runs, or a run after its removal.
	gate chan struct{}

	mu      sync.Mutex
	runs    map[string]*run          // by identifier; guarded by mu
	changed map[string]chan struct{} // closed at the next event; guarded by mu
	health  map[string]ClusterHealth // by cluster; guarded by mu
}

// ClusterHealth is how a cluster was last seen.
type ClusterHealth struct {
	Name     string    `json:"name"`
	Up       bool      `json:"up"`
	Message  string    `json:"message,omitempty"`
	LastSeen time.Time `json:"lastSeen,omitzero"`
	// Orphans are environments in the cluster that the launcher does not know.
	// They are shown, never removed: they may be another launcher's.
	Orphans []string `json:"orphans,omitempty"`
}

// NewManager returns a manager of the given clusters, of which there must be
// at least one. Call Run to set it going.
func NewManager(ctx context.Context, st *store.Store, clusters []cluster.Cluster, resolver Resolver, log *slog.Logger) *Manager {
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	return &Manager{
		store: st, clusters: clusters, resolver: resolver, log: log,
		life: life, stop: stop, gate: make(chan struct{}, 1),
		runs: map[string]*run{}, changed: map[string]chan struct{}{}, health: map[string]ClusterHealth{},
	}
}

const (
	// observeEvery is the pace of reconciliation: how late an exit is noticed.
	observeEvery = 5 * time.Second
	// observeTimeout bounds one look at one cluster.
	observeTimeout = 20 * time.Second
	// maxEnvironments bounds what one launcher brings up again after a restart.
	maxEnvironments = 10000
)

// Run adopts what was going on before a restart, then watches the clusters
// until ctx ends. It returns when every run has ended.
func (m *Manager) Run(ctx context.Context) error {
	defer m.wait.Wait()
	defer m.stop()
	all, err := m.store.Environments(ctx, store.Page{Limit: maxEnvironments})
	switch {
	case ctx.Err() != nil:
		return nil // told to end before it began
	case err != nil:
		return fmt.Errorf("adopt environments: %w", err)
	}
	for i := range all {
		e := &all[i]
		switch {
		case e.Status.Phase == store.PhaseStopping:
			m.remove(e)
		case e.Status.UsableAt == nil && !e.Status.Phase.Final():
			e.Record.Adopted = true
			m.begin(e)
		}
	}
	m.leave()
	tick := time.NewTicker(observeEvery)
	defer tick.Stop()
	for {
		m.observe(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// enter takes the gate's token. It waits for Run to have adopted what was there
// before.
func (m *Manager) enter(ctx context.Context) error {
	select {
	case <-m.gate:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for environments to be adopted: %w", context.Cause(ctx))
	case <-m.life.Done():
		return ErrStopping
	}
}

func (m *Manager) leave() { m.gate <- struct{}{} }

// cluster returns a cluster by name, the default one for "".
func (m *Manager) cluster(name string) (cluster.Cluster, error) {
	for _, c := range m.clusters {
		if name == "" || c.Name() == name {
			return c, nil
		}
	}
	return nil, fmt.Errorf("cluster %q: %w", name, ErrNoCluster)
}

// Get returns an environment by identifier or name, as it stands now.
func (m *Manager) Get(ctx context.Context, idOrName string) (*store.Environment, error) {
	if r := m.live(idOrName); r != nil {
		return r.snapshot(), nil
	}
	return m.store.Environment(ctx, idOrName)
}

func (m *Manager) live(idOrName string) *run {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r, ok := m.runs[idOrName]; ok {
		return r
	}
	for _, r := range m.runs {
		if r.name == idOrName {
			return r
		}
	}
	return nil
}

// List returns one page of environments.
func (m *Manager) List(ctx context.Context, p store.Page) ([]store.Environment, error) {
	all, err := m.store.Environments(ctx, p)
	if err != nil {
		return nil, err
	}
	for i := range all {
		if r := m.live(all[i].ID); r != nil {
			all[i] = *r.snapshot()
		}
	}
	return all, nil
}

// Timeline returns the waterfall of an environment as it stands now.
func (m *Manager) Timeline(ctx context.Context, idOrName string) (*timeline.Timeline, error) {
	e, err := m.Get(ctx, idOrName)
	if err != nil {
		return nil, err
	}
	t := timeline.Build(&e.Record, time.Now())
	t.Environment, t.Name = e.ID, e.Name
	return t, nil
}

// Explain says why an environment is where it is.
func (m *Manager) Explain(ctx context.Context, idOrName string) (cluster.Explanation, error) {
	e, err := m.Get(ctx, idOrName)
	if err != nil {
		return cluster.Explanation{}, err
	}
	c, err := m.cluster(e.Cluster)
	if err != nil {
		return cluster.Explanation{}, err
	}
	return c.Explain(ctx, cluster.Need{Env: e.ID, Spec: e.Spec})
}

// Dial opens a connection to an environment's port.
func (m *Manager) Dial(ctx context.Context, idOrName string, port int) (net.Conn, error) {
	e, c, err := m.find(ctx, idOrName)
	if err != nil {
		return nil, err
	}
	conn, err := c.Dial(ctx, e.ID, port)
	if errors.Is(err, cluster.ErrNotFound) {
		err = fmt.Errorf("%w (it is %s)", ErrNotReady, e.Status.Phase)
	}
	return conn, err
}

// Logs returns the output of an environment's container.
func (m *Manager) Logs(ctx context.Context, idOrName string, follow bool) (io.ReadCloser, error) {
	e, c, err := m.find(ctx, idOrName)
	if err != nil {
		return nil, err
	}
	logs, err := c.Logs(ctx, e.ID, follow)
	if errors.Is(err, cluster.ErrNotFound) {
		err = fmt.Errorf("%w (it is %s)", ErrNotReady, e.Status.Phase)
	}
	return logs, err
}

func (m *Manager) find(ctx context.Context, idOrName string) (*store.Environment, cluster.Cluster, error) {
	e, err := m.Get(ctx, idOrName)
	if err != nil {
		return nil, nil, err
	}
	c, err := m.cluster(e.Cluster)
	return e, c, err
}

// Clusters returns the clusters' health in their configured order.
func (m *Manager) Clusters() []ClusterHealth {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := make([]ClusterHealth, 0, len(m.clusters))
	for _, c := range m.clusters {
		h := m.health[c.Name()]
		h.Name, h.Orphans = c.Name(), slices.Clone(h.Orphans)
		all = append(all, h)
	}
	return all
}

// Capacity returns the nodes and devices of one cluster.
func (m *Manager) Capacity(ctx context.Context, name string) ([]cluster.Node, error) {
	c, err := m.cluster(name)
	if err != nil {
		return nil, err
	}
	return c.Capacity(ctx)
}

// Changed returns a channel that is closed at the environment's next event.
// Ask for it before reading events, so that none is missed.
func (m *Manager) Changed(id string) <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	ch, ok := m.changed[id]
	if !ok {
		ch = make(chan struct{})
		m.changed[id] = ch
	}
	return ch
}

// announce wakes everyone waiting for the environment's next event.
func (m *Manager) announce(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if ch, ok := m.changed[id]; ok {
		close(ch)
		delete(m.changed, id)
	}
}

// begin starts the run of an environment.
func (m *Manager) begin(e *store.Environment) {
	r := newRun(m, e)
	m.mu.Lock()
	m.runs[e.ID] = r
	m.mu.Unlock()
	ctx, cancel := context.WithCancel(m.life)
	r.cancel = cancel
	m.wait.Go(func() {
		defer close(r.done)
		defer m.forget(e.ID)
		defer cancel()
		r.drive(ctx)
	})
}

func (m *Manager) forget(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.runs, id)
}

// Delete stops an environment and forgets it. It returns at once; the
// environment is gone when Get no longer finds it.
func (m *Manager) Delete(ctx context.Context, idOrName string) (*store.Environment, error) {
	if err := m.enter(ctx); err != nil {
		return nil, err
	}
	e, err := m.Get(ctx, idOrName)
	if err != nil {
		m.leave()
		return nil, err
	}
	r := m.live(e.ID)
	m.leave()
	if r != nil {
		r.cancel()
		select {
		case <-r.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if e, err = m.store.Environment(ctx, e.ID); err != nil {
			return nil, err
		}
	}
	if e.Status.Phase == store.PhaseStopping {
		return e, nil // someone else's request is under way
	}
	e.Status.Phase, e.Status.Stage, e.Status.Reason, e.Status.Message = store.PhaseStopping, "", "", ""
	if err := m.store.SaveEnvironment(ctx, e); err != nil {
		return nil, err
	}
	m.remove(e)
	return e, nil
}

// stopTimeout bounds one attempt to stop an environment. A pod may take its
// grace period of 30 s, a container with open files as long.
const stopTimeout = 2 * time.Minute

// remove stops an environment in its cluster, as often as it takes, and then
// forgets it.
func (m *Manager) remove(e *store.Environment) {
	m.wait.Go(func() {
		pause := newBackoff(time.Second, 30*time.Second)
		for {
			err := m.stopOnce(e)
			if err == nil {
				m.announce(e.ID)
				return
			}
			if m.life.Err() != nil {
				return
			}
			m.log.Warn("environment not removed, trying again", "environment", e.ID, "error", err)
			if pause.wait(m.life) != nil {
				return
			}
		}
	})
}

func (m *Manager) stopOnce(e *store.Environment) error {
	ctx, cancel := context.WithTimeout(m.life, stopTimeout)
	defer cancel()
	c, err := m.cluster(e.Cluster)
	if err != nil && !errors.Is(err, ErrNoCluster) {
		return err
	}
	if err == nil { // a cluster that was taken out of the configuration keeps what it has
		if err := c.Stop(ctx, e.ID); err != nil {
			return fmt.Errorf("stop %s: %w", e.ID, err)
		}
	}
	return m.store.DeleteEnvironment(ctx, e.ID)
}

// observe compares every cluster with what the launcher knows.
func (m *Manager) observe(ctx context.Context) {
	var all sync.WaitGroup
	for _, c := range m.clusters {
		all.Go(func() { m.observeCluster(ctx, c) })
	}
	all.Wait()
}

func (m *Manager) observeCluster(ctx context.Context, c cluster.Cluster) {
	ctx, cancel := context.WithTimeout(ctx, observeTimeout)
	defer cancel()
	seen, err := c.Observe(ctx)
	if ctx.Err() != nil && err != nil && errors.Is(err, context.Canceled) {
		return
	}
	known, listErr := m.store.Environments(ctx, store.Page{Limit: maxEnvironments})
	if listErr != nil {
		m.log.Error("environments not listed", "error", listErr)
		return
	}
	m.noteHealth(c.Name(), seen, known, err)
	byID := make(map[string]cluster.Observed, len(seen))
	for _, o := range seen {
		byID[o.Env] = o
	}
	for i := range known {
		if e := &known[i]; e.Cluster == c.Name() {
			o, there := byID[e.ID]
			m.compare(ctx, e, o, there, err)
		}
	}
}

func (m *Manager) noteHealth(name string, seen []cluster.Observed, known []store.Environment, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := m.health[name]
	was := h.Up
	h.Up, h.Message = err == nil, ""
	if err != nil {
		h.Message = err.Error()
	} else {
		h.LastSeen = time.Now().UTC()
		h.Orphans = nil
		for _, o := range seen {
			if !slices.ContainsFunc(known, func(e store.Environment) bool { return e.ID == o.Env }) {
				h.Orphans = append(h.Orphans, o.Env)
			}
		}
	}
	m.health[name] = h
	switch {
	case err != nil && was:
		m.log.Warn("cluster lost", "cluster", name, "error", err)
	case err == nil && !was:
		m.log.Info("cluster seen", "cluster", name)
	}
}

// compare draws the consequences for one environment. An environment whose run
// is under way is told of an exit only; the run does the rest.
func (m *Manager) compare(ctx context.Context, e *store.Environment, o cluster.Observed, there bool, err error) {
	if r := m.live(e.ID); r != nil {
		if err == nil && there && o.State == cluster.StateExited {
			r.exited(o)
		}
		return
	}
	if e.Status.UsableAt == nil {
		return
	}
	next, reason, message := judge(o, there, err)
	if next == e.Status.Phase && reason == e.Status.Reason {
		return
	}
	if e.Status.Phase == store.PhaseStopping {
		return
	}
	e.Status.Phase, e.Status.Reason, e.Status.Message = next, reason, message
	if err := m.record(ctx, e, "phase", e.Status); err != nil {
		m.log.Error("environment not stored", "environment", e.ID, "error", err)
	}
}

// judge says how an environment that was usable stands.
func judge(o cluster.Observed, there bool, err error) (store.Phase, string, string) {
	switch {
	case err != nil:
		code := cmp.Or(string(cluster.CodeOf(err)), string(cluster.CodeUnreachable))
		return store.PhaseUnknown, code, err.Error()
	case !there:
		return store.PhaseDegraded, "missing", "it no longer exists in the cluster"
	case o.State == cluster.StateExited:
		return store.PhaseDegraded, cmp.Or(o.Reason, "exited"), cmp.Or(o.Message, fmt.Sprintf("its container ended with code %d", o.ExitCode))
	case o.State == cluster.StatePending:
		return store.PhaseDegraded, "restarting", cmp.Or(o.Message, "its container is not running")
	case o.State == cluster.StateUnknown:
		return store.PhaseUnknown, cmp.Or(o.Reason, "unknown"), o.Message
	}
	return store.PhaseUsable, "", ""
}

// record stores an environment and an event about it, then tells who waits.
func (m *Manager) record(ctx context.Context, e *store.Environment, kind string, data any) error {
	if err := m.store.SaveEnvironment(ctx, e); err != nil {
		return err
	}
	ev, err := newEvent(kind, data)
	if err != nil {
		return err
	}
	if err := m.store.AddEvent(ctx, e.ID, ev); err != nil {
		return err
	}
	m.announce(e.ID)
	return nil
}
