package environment

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/firstlight-dev/firstlight/launcher/agentapi"
	"github.com/firstlight-dev/firstlight/launcher/cluster"
	"github.com/firstlight-dev/firstlight/launcher/spec"
	"github.com/firstlight-dev/firstlight/launcher/store"
	"github.com/firstlight-dev/firstlight/launcher/timeline"
	"github.com/firstlight-dev/firstlight/launcher/tunnel"
)

const (
	// The pace of probing: quick at first, since a poll gap is an error of the
	// measurement, and then slower, since probing takes CPU from the start.
	probeFirst = 50 * time.Millisecond
	probeLimit = 500 * time.Millisecond
	// loginAttempt bounds one login: a shell read over a slow link may take
	// this long, and ending it early would only start it over.
	loginAttempt = 2 * time.Minute
	// statusAttempt bounds one reading of the agent's status.
	statusAttempt = 10 * time.Second
	// maxLoginNews is up to which attempt a new kind of failure is an event:
	// enough to see what a login waits for, few if the text differs each time.
	maxLoginNews = 50
	// confirmAttempt bounds one confirming round.
	confirmAttempt = 10 * time.Minute
	// probeGiveUp is when the agent stops trying: not before its environment
	// has been given up by everyone.
	probeGiveUp = 24 * time.Hour
)

var errRestarted = errors.New("the container was restarted: what the probes saw no longer counts")

// prober finds out when an environment that runs is usable.
type prober struct {
	r       *run
	c       cluster.Cluster
	env     *store.Environment
	secrets store.Secrets
	agent   *agentapi.Client
	login   tunnel.Login
}

func newProber(r *run, c cluster.Cluster, e *store.Environment, secrets store.Secrets) *prober {
	p := &prober{r: r, c: c, env: r.snapshot(), secrets: secrets}
	p.agent = agentapi.NewClient(func(ctx context.Context) (net.Conn, error) {
		return c.Dial(ctx, e.ID, agentapi.StatusPort)
	}, secrets.StatusToken)
	return p
}

// run returns nil when the environment is usable.
func (p *prober) run(ctx context.Context) error {
	defer p.agent.Close()
	signer, err := tunnel.ParsePrivateKey(p.secrets.LoginKey)
	if err != nil {
		return fmt.Errorf("read login key: %w", err)
	}
	host, err := tunnel.ParsePublicKey(p.env.Status.HostKey)
	if err != nil {
		return fmt.Errorf("read host key: %w", err)
	}
	p.login = tunnel.Login{Signer: signer, HostKey: host}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-ctx.Done():
		case <-p.r.gone:
			cancel(p.exitError())
		}
	})
	err = p.probe(ctx)
	if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(cause, context.Canceled) {
		err = cause
	}
	cancel(nil)
	watch.Wait()
	return err
}

func (p *prober) exitError() error {
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	o := p.r.exit
	return cluster.Fail(cluster.CodeStartFailed, "the container ended with code %d before it was usable: %s", o.ExitCode, strings.TrimSpace(o.Reason+" "+o.Message))
}

// probe runs all probes side by side, then confirms them.
func (p *prober) probe(ctx context.Context) error {
	eligible := time.Now()
	p.reset(eligible)
	first, err := p.awaitAgent(ctx)
	if err != nil {
		return err
	}
	p.r.phase(store.PhaseProbing, "", "", nil)
	lanes, cancel := context.WithCancel(ctx)
	defer cancel()
	results := make(chan error)
	n := 0
	start := func(probe func(context.Context) error) {
		n++
		go func() { results <- probe(lanes) }() // received below, every one
	}
	for i := range p.env.Spec.Readiness {
		if pr := &p.env.Spec.Readiness[i]; pr.Type == spec.ProbeSSHLogin {
			start(func(ctx context.Context) error { return p.awaitLogin(ctx, pr) })
		}
	}
	if p.hasExec() {
		start(p.awaitLanes)
	}
	for range n {
		if laneErr := <-results; laneErr != nil && err == nil {
			err = laneErr
			cancel()
		}
	}
	if err != nil {
		return err
	}
	return p.confirm(ctx, first)
}

// reset writes a lane for every probe of the spec.
func (p *prober) reset(eligible time.Time) {
	probes := make([]timeline.Probe, 0, len(p.env.Spec.Readiness))
	for i := range p.env.Spec.Readiness {
		pr := &p.env.Spec.Readiness[i]
		lane := timeline.Probe{Name: pr.Name}
		if pr.Type == spec.ProbeSSHLogin {
			lane.Eligible = eligible
		}
		probes = append(probes, lane)
	}
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	p.r.env.Record.Probes = probes
}

func (p *prober) hasExec() bool {
	return slices.ContainsFunc(p.env.Spec.Readiness, func(pr spec.Probe) bool { return pr.Type == spec.ProbeExec })
}

// awaitAgent waits for the agent's first answer, which also tells when PID 1
// was started.
func (p *prober) awaitAgent(ctx context.Context) (*agentapi.Status, error) {
	pause := newBackoff(probeFirst, probeLimit)
	for {
		st, sample, err := p.status(ctx)
		if err == nil && st.Start.Ready != 0 {
			born := sample.Time(st.Start.Init)
			p.r.End(cluster.StageCreate, born, nil)
			p.r.Begin(cluster.StageAgent, born)
			p.r.End(cluster.StageAgent, sample.Time(st.Start.Ready), map[string]any{"version": st.Version})
			return st, nil
		}
		if errors.Is(err, agentapi.ErrUnauthorized) {
			return nil, cluster.Fail(cluster.CodeStartFailed, "what answers on the agent's port is not this environment's agent: %w", err)
		}
		if err := pause.wait(ctx); err != nil {
			return nil, err
		}
	}
}

func (p *prober) status(ctx context.Context) (*agentapi.Status, agentapi.Sample, error) {
	ctx, cancel := context.WithTimeout(ctx, statusAttempt)
	defer cancel()
	st, sample, err := p.agent.Status(ctx)
	if err == nil {
		p.r.mu.Lock()
		if rec := &p.r.env.Record; rec.ClockError == 0 || sample.Err > rec.ClockError {
			rec.ClockError = sample.Err
		}
		p.r.mu.Unlock()
	}
	return st, sample, err
}

// lane changes a probe's lane; if alter returns true, an event says so.
func (p *prober) lane(name string, alter func(l *timeline.Probe) bool) {
	p.r.change("probe", func(e *store.Environment) any {
		for i := range e.Record.Probes {
			if l := &e.Record.Probes[i]; l.Name == name && alter(l) {
				return *l
			}
		}
		return nil
	})
}

// awaitLogin repeats the login until it succeeds.
func (p *prober) awaitLogin(ctx context.Context, pr *spec.Probe) error {
	pause := newBackoff(probeFirst, probeLimit)
	var failed time.Time // start of the last failed attempt
	for {
		began := time.Now()
		levels, err := p.tryLogin(ctx, pr)
		if err == nil {
			p.lane(pr.Name, func(l *timeline.Probe) bool {
				l.Attempts++
				l.Levels = levels
				l.FirstSuccess = levels[len(levels)-1].End
				if !failed.IsZero() {
					l.Uncertainty = l.FirstSuccess.Sub(failed)
				}
				l.LastError = ""
				return true
			})
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		failed = began
		p.lane(pr.Name, func(l *timeline.Probe) bool {
			l.Attempts++
			news := l.LastError != err.Error() && l.Attempts <= maxLoginNews
			l.LastError = err.Error()
			return news
		})
		if err := pause.wait(ctx); err != nil {
			return err
		}
	}
}

// tryLogin logs in once, as deep as the spec makes sense: with a share of a
// card, the session must carry the limits.
func (p *prober) tryLogin(ctx context.Context, pr *spec.Probe) ([]timeline.Level, error) {
	ctx, cancel := context.WithTimeout(ctx, pr.Attempt(loginAttempt))
	defer cancel()
	last, want := tunnel.LevelShell, map[string]string(nil)
	if g := p.env.Spec.GPU; g != nil && g.Share != nil {
		last, want = tunnel.LevelEnv, p.limits()
	}
	levels, err := tunnel.ProbeLogin(ctx, func(ctx context.Context) (net.Conn, error) {
		return p.c.Dial(ctx, p.env.ID, agentapi.SSHPort)
	}, p.login, last, want)
	out := make([]timeline.Level, 0, len(levels))
	for _, l := range levels {
		out = append(out, timeline.Level{ID: l.ID, Begin: l.Start, End: l.End})
	}
	return out, err
}

// limits are the variables HAMi-core reads the grant from.
func (p *prober) limits() map[string]string {
	placement := p.r.snapshot().Status.Placement
	if placement == nil {
		return nil
	}
	want := make(map[string]string, len(placement.Devices))
	for i, d := range placement.Devices {
		want["CUDA_DEVICE_MEMORY_LIMIT_"+strconv.Itoa(i)] = strconv.Itoa(d.MemoryMiB) + "m"
	}
	return want
}

// awaitLanes follows the agent's own probes until all have succeeded.
func (p *prober) awaitLanes(ctx context.Context) error {
	pause := newBackoff(probeFirst, probeLimit)
	for {
		st, sample, err := p.status(ctx)
		if err == nil && p.copyLanes(st, sample) {
			return nil
		}
		if err := pause.wait(ctx); err != nil {
			return err
		}
	}
}

// copyLanes writes the agent's lanes into the record, on the launcher's clock,
// and reports whether all have succeeded.
func (p *prober) copyLanes(st *agentapi.Status, sample agentapi.Sample) bool {
	all := true
	for i := range p.env.Spec.Readiness {
		pr := &p.env.Spec.Readiness[i]
		if pr.Type != spec.ProbeExec {
			continue
		}
		lane, ok := st.Lane(pr.Name)
		if !ok {
			all = false
			continue
		}
		succeeded := lane.State == agentapi.LaneSucceeded
		all = all && succeeded
		p.lane(pr.Name, func(l *timeline.Probe) bool {
			first := succeeded && l.FirstSuccess.IsZero()
			fillLane(l, &lane, sample)
			return first
		})
	}
	return all
}

func fillLane(l *timeline.Probe, lane *agentapi.Lane, sample agentapi.Sample) {
	l.Attempts, l.LastError, l.CPU, l.Uncertainty = lane.Attempts, lane.LastError, lane.CPU, lane.Uncertainty
	if lane.Eligible != 0 && l.Eligible.IsZero() {
		l.Eligible = sample.Time(lane.Eligible)
	}
	if lane.State != agentapi.LaneSucceeded || !l.FirstSuccess.IsZero() {
		return
	}
	l.LastError = ""
	l.FirstSuccess = sample.Time(lane.FirstSuccess)
	l.Levels = nil
	for _, level := range lane.Levels {
		l.Levels = append(l.Levels, timeline.Level{ID: level.ID, Begin: sample.Time(level.Start), End: sample.Time(level.End)})
	}
}

// confirm repeats every probe once, after all have succeeded. A round that
// fails is repeated: the environment is usable only when one passes.
func (p *prober) confirm(ctx context.Context, first *agentapi.Status) error {
	pause := newBackoff(probeLimit, 10*time.Second)
	for {
		err := p.round(ctx)
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		p.r.Note(cluster.Note{At: time.Now(), Warning: true, Source: "launcher", Reason: "NotConfirmed", Message: err.Error()})
		if err := pause.wait(ctx); err != nil {
			return err
		}
	}
	now, _, err := p.status(ctx)
	if err != nil {
		return err
	}
	if now.Start.BootID != first.Start.BootID || now.Start.Init != first.Start.Init {
		return errRestarted
	}
	p.finish(ctx)
	return nil
}

func (p *prober) round(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, confirmAttempt)
	defer cancel()
	if p.hasExec() {
		round, err := p.agent.Confirm(ctx)
		if err != nil {
			return err
		}
		for _, res := range round.Results {
			if !res.OK {
				return fmt.Errorf("%s succeeded once, and then not: %s", res.Probe, res.Error)
			}
		}
		if !round.OK {
			return errors.New("a probe succeeded once, and then not")
		}
	}
	for i := range p.env.Spec.Readiness {
		if pr := &p.env.Spec.Readiness[i]; pr.Type == spec.ProbeSSHLogin {
			if _, err := p.tryLogin(ctx, pr); err != nil {
				return fmt.Errorf("%s succeeded once, and then not: %w", pr.Name, err)
			}
		}
	}
	return nil
}

// finish writes down when the environment became usable. The node is told first:
// what is read from now on is no part of the start.
func (p *prober) finish(ctx context.Context) {
	p.endStart(ctx)
	var use *cluster.ImageUse
	if reader, ok := p.c.(cluster.ImageReader); ok {
		ctx, cancel := context.WithTimeout(ctx, statusAttempt)
		defer cancel()
		if got, err := reader.ImageUse(ctx, p.env.ID); err == nil {
			use = &got
		}
	}
	p.r.phase(store.PhaseUsable, "", "", func(e *store.Environment) {
		usable := e.Record.Accepted
		for _, span := range e.Record.Spans {
			if span.End.After(usable) {
				usable = span.End
			}
		}
		for i := range e.Record.Probes {
			l := &e.Record.Probes[i]
			l.Confirmed = true
			if l.FirstSuccess.After(usable) {
				usable = l.FirstSuccess
			}
		}
		e.Record.Usable, e.Record.Image = usable, use
		at := usable.UTC()
		e.Status.UsableAt = &at
	})
}

func (p *prober) endStart(ctx context.Context) {
	ender, ok := p.c.(cluster.StartEnder)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, statusAttempt)
	defer cancel()
	if err := ender.EndStart(ctx, p.env.ID, p.env.Spec.Command); err != nil {
		p.r.m.log.Warn("node is not told that the environment is usable", "environment", p.env.ID, "error", err)
	}
}

func publicLine(key ssh.PublicKey) string {
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key))) + " firstlight-launcher"
}
