// Package clustertest has a cluster for tests: environments are a few
// goroutines on loopback listeners that speak SSH and the agent's status
// protocol, with the keys and the token of their Launch.
package clustertest

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/firstlight-dev/firstlight/launcher/agentapi"
	"github.com/firstlight-dev/firstlight/launcher/cluster"
)

// Fake is a cluster. Its fields may be set before it is used.
type Fake struct {
	ClusterName string
	// Hold, when not nil, keeps Start waiting until it is closed.
	Hold chan struct{}

	mu       sync.Mutex
	fail     error                   // of Start and Observe; guarded by mu
	launches map[string]int          // calls of Start, by environment; guarded by mu
	ended    map[string]int          // calls of EndStart, by environment; guarded by mu
	envs     map[string]*environment // guarded by mu
}

var (
	_ cluster.Cluster     = (*Fake)(nil)
	_ cluster.ImageReader = (*Fake)(nil)
	_ cluster.StartEnder  = (*Fake)(nil)
)

// New returns an empty cluster.
func New(name string) *Fake {
	return &Fake{ClusterName: name, launches: map[string]int{}, ended: map[string]int{}, envs: map[string]*environment{}}
}

// Fail makes Start and Observe return an error from now on; nil ends that.
func (f *Fake) Fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = err
}

// Launches returns how often an environment was started.
func (f *Fake) Launches(env string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.launches[env]
}

// EndStart implements cluster.StartEnder.
func (f *Fake) EndStart(_ context.Context, env string, _ []string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended[env]++
	return nil
}

// StartsEnded returns how often the environment's start was said to be over.
func (f *Fake) StartsEnded(env string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ended[env]
}

// Exit lets an environment's container end.
func (f *Fake) Exit(env string, code int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if e := f.envs[env]; e != nil {
		e.observed.State, e.observed.ExitCode = cluster.StateExited, code
	}
}

// Close ends everything.
func (f *Fake) Close() error {
	f.mu.Lock()
	envs := f.envs
	f.envs = map[string]*environment{}
	f.mu.Unlock()
	for _, e := range envs {
		e.close()
	}
	return nil
}

// Name implements cluster.Cluster.
func (f *Fake) Name() string { return f.ClusterName }

// Start implements cluster.Cluster.
func (f *Fake) Start(ctx context.Context, l cluster.Launch) error {
	f.mu.Lock()
	f.launches[l.Env]++
	fail, running := f.fail, f.envs[l.Env] != nil
	f.mu.Unlock()
	if fail != nil {
		return fail
	}
	begin := time.Now()
	l.Observer.Begin(cluster.StageAdmit, begin)
	l.Observer.End(cluster.StageAdmit, begin, nil)
	l.Observer.Begin(cluster.StageSchedule, begin)
	if f.Hold != nil {
		l.Observer.Note(cluster.Note{At: begin, Warning: true, Source: "scheduler", Reason: "Waiting", Message: "no card is free"})
		select {
		case <-f.Hold:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	l.Observer.End(cluster.StageSchedule, time.Now(), nil)
	place := cluster.Placement{Node: "node-1", Devices: []cluster.Device{{UUID: "GPU-a", MemoryMiB: 10240, Cores: 25}}}
	l.Observer.Place(place)
	l.Observer.Begin(cluster.StageImage, time.Now())
	l.Observer.End(cluster.StageImage, time.Now(), map[string]any{"pullOwnMs": 1})
	l.Observer.Begin(cluster.StageCreate, time.Now())
	if running {
		return nil
	}
	e, err := newEnvironment(&l)
	if err != nil {
		return err
	}
	e.observed = cluster.Observed{Env: l.Env, Name: l.Name, Generation: l.Generation, State: cluster.StateRunning, StartedAt: time.Now(), Placement: place}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.envs[l.Env] = e
	return nil
}

// Stop implements cluster.Cluster.
func (f *Fake) Stop(_ context.Context, env string) error {
	f.mu.Lock()
	e := f.envs[env]
	delete(f.envs, env)
	f.mu.Unlock()
	if e != nil {
		e.close()
	}
	return nil
}

func (f *Fake) env(env string) (*environment, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if e := f.envs[env]; e != nil {
		return e, nil
	}
	return nil, fmt.Errorf("environment %s: %w", env, cluster.ErrNotFound)
}

// Dial implements cluster.Cluster.
func (f *Fake) Dial(ctx context.Context, env string, port int) (net.Conn, error) {
	e, err := f.env(env)
	if err != nil {
		return nil, err
	}
	target := e.ssh
	if port == agentapi.StatusPort {
		target = e.status
	}
	var d net.Dialer
	return d.DialContext(ctx, "tcp", target.Addr().String())
}

// Logs implements cluster.Cluster.
func (f *Fake) Logs(_ context.Context, env string, _ bool) (io.ReadCloser, error) {
	if _, err := f.env(env); err != nil {
		return nil, err
	}
	return io.NopCloser(strings.NewReader("hello from " + env + "\n")), nil
}

// Explain implements cluster.Cluster.
func (f *Fake) Explain(_ context.Context, need cluster.Need) (cluster.Explanation, error) {
	x := cluster.Explanation{Verdict: cluster.VerdictFitsAfterRelease, AsOf: time.Now(), Summary: "It waits."}
	if _, err := f.env(need.Env); err == nil {
		x.Verdict = cluster.VerdictPlaced
	}
	return x, nil
}

// Observe implements cluster.Cluster.
func (f *Fake) Observe(context.Context) ([]cluster.Observed, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return nil, f.fail
	}
	var all []cluster.Observed
	for _, e := range f.envs {
		all = append(all, e.observed)
	}
	return all, nil
}

// Capacity implements cluster.Cluster.
func (f *Fake) Capacity(context.Context) ([]cluster.Node, error) {
	return []cluster.Node{{Name: "node-1", Ready: true, Devices: []cluster.DeviceStatus{{UUID: "GPU-a", MemoryMiB: 40960}}}}, nil
}

// ImageUse implements cluster.ImageReader.
func (f *Fake) ImageUse(context.Context, string) (cluster.ImageUse, error) {
	return cluster.ImageUse{BytesFetched: 1 << 20, Requests: 3, Lazy: true}, nil
}
