package agent

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/firstlight-dev/firstlight/launcher/agentapi"
)

// Cadence of probes: quick at first, since most of a wait is short, then at
// most twice a second, which costs a container with little CPU no more than it
// can bear.
const (
	pollFirst  = 50 * time.Millisecond
	pollGrowth = 1.5
	pollCap    = 500 * time.Millisecond
)

var (
	errProbeTimeout = errors.New("attempt timed out")
	errRoundRunning = errors.New("a confirming round is running")
)

// prober repeats every probe until it first succeeds.
type prober struct {
	env      *environment
	children *children
	session  agentapi.SessionConfig
	probes   []agentapi.Probe

	mu    sync.Mutex
	lanes []agentapi.Lane // guarded by mu; parallel to probes
	round *agentapi.Round // guarded by mu

	confirming atomic.Bool
}

func newProber(cfg *agentapi.Config, env *environment, c *children) *prober {
	p := &prober{env: env, children: c, session: cfg.Session, probes: cfg.Probes}
	for _, probe := range cfg.Probes {
		p.lanes = append(p.lanes, agentapi.Lane{Probe: probe.ID, State: agentapi.LanePending})
	}
	return p
}

func (p *prober) snapshot() ([]agentapi.Lane, *agentapi.Round) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]agentapi.Lane{}, p.lanes...), p.round
}

func (p *prober) update(i int, change func(*agentapi.Lane)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(&p.lanes[i])
}

// run drives all probes side by side until each has succeeded or given up.
func (p *prober) run(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	for i := range p.probes {
		all.Go(func() { p.poll(ctx, i) })
	}
}

func (p *prober) poll(ctx context.Context, i int) {
	probe := p.probes[i]
	eligible := bootNow()
	p.update(i, func(l *agentapi.Lane) { l.Eligible = eligible })
	giveUp := agentapi.BootTime(time.Duration(probe.GiveUp))
	pause := pollFirst
	var lastFailed agentapi.BootTime
	for {
		a := p.attempt(ctx, probe)
		if ctx.Err() != nil {
			return // the agent is ending; this attempt says nothing
		}
		p.update(i, func(l *agentapi.Lane) { a.record(l, lastFailed) })
		if a.err == nil {
			return
		}
		lastFailed = a.started
		if bootNow()-eligible > giveUp {
			p.update(i, func(l *agentapi.Lane) { l.State = agentapi.LaneGaveUp })
			return
		}
		if !sleep(ctx, pause) {
			return
		}
		pause = min(time.Duration(float64(pause)*pollGrowth), pollCap)
	}
}

// record adds the attempt to the lane's history.
func (a *attempt) record(l *agentapi.Lane, lastFailed agentapi.BootTime) {
	l.Attempts++
	if a.err != nil {
		l.LastError = a.err.Error()
		if errors.Is(a.err, errProbeTimeout) {
			l.Timeouts++
		}
		return
	}
	l.State, l.FirstSuccess, l.Levels, l.CPU = agentapi.LaneSucceeded, a.ended, a.levels, a.cpu
	if lastFailed != 0 {
		l.Uncertainty = a.ended.Sub(lastFailed)
	}
}

// confirm runs every probe once more. The caller decides when: after the last
// first success of all lanes, its own included.
func (p *prober) confirm(ctx context.Context) (*agentapi.Round, error) {
	if !p.confirming.CompareAndSwap(false, true) {
		return nil, errRoundRunning
	}
	defer p.confirming.Store(false)
	r := &agentapi.Round{Started: bootNow(), OK: true, Results: make([]agentapi.RoundResult, len(p.probes))}
	var all sync.WaitGroup
	for i, probe := range p.probes {
		all.Go(func() {
			a := p.attempt(ctx, probe)
			r.Results[i] = agentapi.RoundResult{Probe: probe.ID, OK: a.err == nil, Duration: a.ended.Sub(a.started)}
			if a.err != nil {
				r.Results[i].Error = a.err.Error()
			}
		})
	}
	all.Wait()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	for _, res := range r.Results {
		r.OK = r.OK && res.OK
	}
	r.Ended = bootNow()
	p.mu.Lock()
	p.round = r
	p.mu.Unlock()
	return r, nil
}

// attempt is one run of a probe's command.
type attempt struct {
	started, ended agentapi.BootTime
	levels         []agentapi.Level
	cpu            time.Duration
	err            error
}

func (p *prober) attempt(ctx context.Context, probe agentapi.Probe) attempt {
	a := attempt{started: bootNow()}
	a.err = p.execute(ctx, probe, &a)
	a.ended = bootNow()
	if a.err == nil {
		a.closeLevels()
	}
	return a
}

func (p *prober) execute(ctx context.Context, probe agentapi.Probe, a *attempt) error {
	nonce := rand.Text()
	shell, err := p.env.shell(p.session.Shell)
	if err != nil {
		shell = "" // a probe needs none
	}
	vars := p.env.session(shell, []string{agentapi.NonceVariable + "=" + nonce})
	cmd, err := newCommand(probe.Exec, vars, p.env.startDir(p.session.Dir))
	if err != nil {
		return err
	}
	pipes, err := openPipes(cmd)
	if err != nil {
		return fmt.Errorf("open pipes: %w", err)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	proc, err := p.children.start(cmd)
	pipes.closeChild()
	if err != nil {
		pipes.closeOwn()
		return err
	}
	_ = pipes.stdin.Close()

	out := &marks{prefix: "firstlight:" + nonce + ":", now: bootNow}
	tail := &tail{}
	ended := make(chan struct{})
	var output sync.WaitGroup
	output.Go(func() { _ = pump(out, pipes.stdout, ended); _ = pipes.stdout.Close() })
	output.Go(func() { _ = pump(tail, pipes.stderr, ended); _ = pipes.stderr.Close() })

	ctx, cancel := context.WithTimeoutCause(ctx, time.Duration(probe.Timeout), errProbeTimeout)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { proc.signalGroup(syscall.SIGKILL) })
	st := proc.wait()
	stop()
	close(ended)
	output.Wait()

	a.cpu = st.UserTime() + st.SystemTime()
	a.setLevels(out.found)
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%w after %v%s", context.Cause(ctx), time.Duration(probe.Timeout), tail)
	case !st.Success():
		return fmt.Errorf("%s: %s%s", probe.Exec[0], st, tail)
	case probe.Expect != "" && !strings.Contains(out.text.String(), probe.Expect):
		return fmt.Errorf("%s: output does not hold %q%s", probe.Exec[0], probe.Expect, tail)
	}
	return nil
}

func (a *attempt) setLevels(found []mark) {
	from := a.started
	for _, m := range found {
		a.levels = append(a.levels, agentapi.Level{ID: m.id, Start: from, End: m.at})
		from = m.at
	}
}

// closeLevels adds what lies between the last mark and the end.
func (a *attempt) closeLevels() {
	if len(a.levels) == 0 {
		a.levels = []agentapi.Level{{ID: "run", Start: a.started, End: a.ended}}
		return
	}
	a.levels = append(a.levels, agentapi.Level{ID: "exit", Start: a.levels[len(a.levels)-1].End, End: a.ended})
}
