package local

import (
	"context"
	"fmt"
	"time"

	"github.com/firstlight-dev/firstlight/launcher/cluster"
	"github.com/firstlight-dev/firstlight/sharing/fit"
)

// Capacity implements cluster.Cluster.
func (c *Cluster) Capacity(ctx context.Context) ([]cluster.Node, error) {
	ready, err := c.client.IsServing(c.context(ctx))
	n := cluster.Node{Name: c.cfg.Node, Ready: err == nil && ready, Devices: []cluster.DeviceStatus{}}
	for _, u := range c.ledger.usage() {
		n.Devices = append(n.Devices, deviceStatus(&u))
	}
	return []cluster.Node{n}, nil
}

// Explain implements cluster.Cluster.
func (c *Cluster) Explain(_ context.Context, need cluster.Need) (cluster.Explanation, error) {
	e := cluster.Explanation{AsOf: time.Now()}
	g := need.Spec.GPU
	if g == nil {
		e.Verdict, e.Summary = cluster.VerdictFitsNow, "It asks for no GPU; CPU and memory are not reserved on this cluster."
		e.Nodes = []cluster.NodeVerdict{{Name: c.cfg.Node, Verdict: e.Verdict, Devices: []cluster.DeviceVerdict{}}}
		return e, nil
	}
	r := request(g)
	e.Need = cluster.NeedFigures{Model: g.Model, Count: g.Count, MemoryMiB: r.MemMiB, Cores: r.Cores, Whole: g.Share == nil}
	if held, ok := c.ledger.holding(need.Env); ok && need.Env != "" {
		e.Verdict = cluster.VerdictPlaced
		e.Summary = fmt.Sprintf("It holds its share of %s.", cards(len(c.placement(held).Devices)))
	}
	usage := c.ledger.usage(need.Env)
	verdict, refusal := c.judge(usage, r)
	node := cluster.NodeVerdict{Name: c.cfg.Node, Verdict: verdict, Devices: []cluster.DeviceVerdict{}}
	if refusal != nil {
		node.Reasons = []cluster.Reason{{Code: string(nodeCode(refusal, len(usage))), Message: refusal.Summary()}}
	}
	verdicts := fit.Explain(usage, r, c.cfg.Policy)
	for i := range usage {
		node.Devices = append(node.Devices, deviceVerdict(&usage[i], verdicts))
	}
	e.Nodes = []cluster.NodeVerdict{node}
	if e.Verdict == "" {
		e.Verdict = verdict
		e.Summary = summary(verdict, refusal)
		e.WouldFitIf = c.wouldFit(need.Env, r, usage, verdict)
	}
	return e, nil
}

func (c *Cluster) judge(usage []fit.Usage, r fit.Request) (cluster.Verdict, *fit.Refusal) {
	_, refusal := fit.Pick(usage, []fit.Request{r}, c.cfg.Policy)
	switch {
	case refusal == nil:
		return cluster.VerdictFitsNow, nil
	case c.ledger.never(r) != nil:
		return cluster.VerdictFitsNever, refusal
	}
	return cluster.VerdictFitsAfterRelease, refusal
}

func nodeCode(r *fit.Refusal, have int) fit.Code {
	if have < r.Want {
		return fit.NodeHasTooFewDevices
	}
	return fit.CardsTooFewFitting
}

func deviceVerdict(u *fit.Usage, verdicts []fit.Verdict) cluster.DeviceVerdict {
	d := cluster.DeviceVerdict{DeviceStatus: deviceStatus(u), Fits: true}
	for _, v := range verdicts {
		if v.UUID != u.UUID {
			continue
		}
		for _, reason := range v.Reasons {
			d.Reasons = append(d.Reasons, cluster.Reason{Code: string(reason.Code), Message: reason.String()})
		}
	}
	d.Fits = len(d.Reasons) == 0
	return d
}

func summary(v cluster.Verdict, refusal *fit.Refusal) string {
	switch v {
	case cluster.VerdictFitsNow:
		return "It fits now."
	case cluster.VerdictFitsAfterRelease:
		return fmt.Sprintf("It waits for others to release a share: %d of %s fit (%s).", refusal.Found, cards(refusal.Want), refusal.Summary())
	default:
		return fmt.Sprintf("It can't fit on this machine: %d of %s fit (%s). Memory of different cards does not add up.", refusal.Found, cards(refusal.Want), refusal.Summary())
	}
}

func cards(n int) string {
	if n == 1 {
		return "1 card"
	}
	return fmt.Sprintf("%d cards", n)
}

// wouldFit names the smallest changes that would help: one environment less,
// or a smaller share.
func (c *Cluster) wouldFit(env string, r fit.Request, usage []fit.Usage, v cluster.Verdict) []string {
	if v == cluster.VerdictFitsNow {
		return nil
	}
	var out []string
	if v == cluster.VerdictFitsAfterRelease {
		for _, other := range c.ledger.holders() {
			if other == env {
				continue
			}
			if _, refusal := fit.Pick(c.ledger.usage(env, other), []fit.Request{r}, c.cfg.Policy); refusal == nil {
				out = append(out, fmt.Sprintf("environment %s is removed", other))
			}
		}
	}
	if smaller := c.smallerShare(r, usage); smaller > 0 {
		out = append(out, fmt.Sprintf("it asks for %d MiB", smaller))
	}
	return out
}

// smallerShare returns the largest memory below the asked one that fits now.
func (c *Cluster) smallerShare(r fit.Request, usage []fit.Usage) int {
	best := 0
	for _, u := range usage {
		free := u.MemMiB - u.UsedMemMiB
		if free <= best || free >= r.MemMiB {
			continue
		}
		try := r
		try.MemMiB = free
		if _, refusal := fit.Pick(usage, []fit.Request{try}, c.cfg.Policy); refusal == nil {
			best = free
		}
	}
	return best
}
