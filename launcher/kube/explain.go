package kube

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/firstlight-dev/firstlight/launcher/cluster"
	"github.com/firstlight-dev/firstlight/launcher/spec"
	"github.com/firstlight-dev/firstlight/sharing/fit"
)

// maxEventNotes bounds the events an explanation repeats: the newest.
const maxEventNotes = 10

// Explain implements cluster.Cluster. It reads and computes; the scheduler is
// not asked, since its filter reserves what it finds.
func (c *Cluster) Explain(ctx context.Context, need cluster.Need) (cluster.Explanation, error) {
	facts, err := c.readFacts(ctx)
	if err != nil {
		return cluster.Explanation{}, err
	}
	x := judge(facts, &need)
	if need.Env == "" {
		return x, nil
	}
	pod, err := c.podOf(ctx, need.Env)
	if err != nil {
		return x, nil //nolint:nilerr // it has no pod yet: the prediction is all there is
	}
	if pod.Spec.NodeName != "" {
		x.Verdict = cluster.VerdictPlaced
		x.Summary = fmt.Sprintf("It runs on node %s.", pod.Spec.NodeName)
	}
	for _, gate := range pod.Spec.SchedulingGates {
		x.Blockers = append(x.Blockers, cluster.Blocker{Kind: "gate", Code: "SchedulingGated", Message: "held by gate " + gate.Name})
	}
	x.Notes, err = c.eventNotes(ctx, pod)
	return x, err
}

func (c *Cluster) eventNotes(ctx context.Context, pod *corev1.Pod) ([]cluster.Note, error) {
	events, err := c.client.CoreV1().Events(c.cfg.Namespace).List(ctx, metav1.ListOptions{
		FieldSelector: "involvedObject.name=" + pod.Name,
	})
	if err != nil {
		return nil, classify("list events", err)
	}
	var notes []cluster.Note
	for i := range events.Items {
		e := &events.Items[i]
		at := e.LastTimestamp.Time
		if at.IsZero() {
			at = e.EventTime.Time
		}
		notes = append(notes, noteOf(e, at))
	}
	slices.SortStableFunc(notes, func(a, b cluster.Note) int { return a.At.Compare(b.At) })
	return notes[max(0, len(notes)-maxEventNotes):], nil
}

// request translates a spec's GPU into what fit understands.
func request(g *spec.GPU) fit.Request {
	r := fit.Request{Count: g.Count}
	if g.Model != "" {
		r.UseTypes = []string{g.Model}
	}
	if g.Share != nil {
		r.MemMiB, r.Cores = g.Share.MemoryMiB, g.Share.Cores
	} else {
		r.MemPercent, r.Cores = 100, 100
	}
	return r
}

// judge computes the whole answer from the facts. It is pure but for the clock.
func judge(facts []nodeFacts, need *cluster.Need) cluster.Explanation {
	x := cluster.Explanation{AsOf: time.Now().UTC(), Nodes: []cluster.NodeVerdict{}}
	g := need.Spec.GPU
	if g == nil {
		x.Verdict, x.Summary = cluster.VerdictUnknown, "It asks for no GPU; the scheduler's events say the rest."
		return x
	}
	r := request(g)
	x.Need = cluster.NeedFigures{Model: g.Model, Count: g.Count, MemoryMiB: r.MemMiB, Cores: r.Cores, Whole: g.Whole}
	x.Verdict = cluster.VerdictFitsNever
	for i := range facts {
		v := judgeNode(&facts[i], r, need.Env)
		x.Nodes = append(x.Nodes, v)
		if better(v.Verdict, x.Verdict) {
			x.Verdict = v.Verdict
		}
	}
	x.Summary = summary(x.Verdict, &x)
	if x.Verdict != cluster.VerdictFitsNow {
		x.WouldFitIf = ideas(facts, r, need.Env)
	}
	return x
}

func better(a, b cluster.Verdict) bool {
	rank := map[cluster.Verdict]int{
		cluster.VerdictFitsNow: 3, cluster.VerdictFitsAfterRelease: 2, cluster.VerdictUnknown: 1, cluster.VerdictFitsNever: 0,
	}
	return rank[a] > rank[b]
}

func judgeNode(f *nodeFacts, r fit.Request, env string) cluster.NodeVerdict {
	v := cluster.NodeVerdict{Name: f.name, Verdict: cluster.VerdictFitsNever, Devices: []cluster.DeviceVerdict{}}
	usage := f.without(env)
	verdicts := fit.Explain(usage, r, fit.Policy{})
	for i := range usage {
		d := cluster.DeviceVerdict{DeviceStatus: deviceStatus(&usage[i])}
		for _, reason := range verdicts[i].Reasons {
			d.Reasons = append(d.Reasons, cluster.Reason{Code: string(reason.Code), Message: reason.String()})
		}
		d.Fits = len(d.Reasons) == 0
		v.Devices = append(v.Devices, d)
	}
	_, now := fit.Pick(usage, []fit.Request{r}, fit.Policy{})
	_, ever := fit.Pick(f.empty(), []fit.Request{r}, fit.Policy{})
	switch {
	case f.trouble != "":
		v.Verdict = cluster.VerdictUnknown
		v.Reasons = append(v.Reasons, cluster.Reason{Code: "Unreadable", Message: f.trouble})
	case now == nil:
		v.Verdict = cluster.VerdictFitsNow
	case ever == nil:
		v.Verdict = cluster.VerdictFitsAfterRelease
	}
	if now != nil {
		code := fit.CardsTooFewFitting
		if len(usage) < r.Count {
			code = fit.NodeHasTooFewDevices
		}
		v.Reasons = append(v.Reasons, cluster.Reason{Code: string(code), Message: fmt.Sprintf("%d of its %d cards fit, %d needed", now.Found, len(usage), now.Want)})
	}
	f.nodeReasons(&v)
	return v
}

// nodeReasons adds what keeps pods off a node whatever its cards have.
func (f *nodeFacts) nodeReasons(v *cluster.NodeVerdict) {
	add := func(code, message string) {
		v.Reasons = append(v.Reasons, cluster.Reason{Code: code, Message: message})
		if v.Verdict == cluster.VerdictFitsNow {
			v.Verdict = cluster.VerdictFitsAfterRelease
		}
	}
	if !f.ready {
		add("NodeNotReady", "the node is not ready")
	}
	if f.closed {
		add("NodeUnschedulable", "the node is closed to new pods")
	}
	for _, t := range f.taints {
		if t.Effect != corev1.TaintEffectPreferNoSchedule {
			add("NodeTainted", fmt.Sprintf("taint %s=%s:%s", t.Key, t.Value, t.Effect))
		}
	}
}

func summary(v cluster.Verdict, x *cluster.Explanation) string {
	cards, fits, free := 0, 0, 0
	for i := range x.Nodes {
		for j := range x.Nodes[i].Devices {
			d := &x.Nodes[i].Devices[j]
			cards++
			free += d.MemoryMiB - d.MemoryUsedMiB
			if d.Fits {
				fits++
			}
		}
	}
	switch v {
	case cluster.VerdictFitsNow:
		return fmt.Sprintf("It fits: %d of %d cards could take it.", fits, cards)
	case cluster.VerdictFitsAfterRelease:
		return fmt.Sprintf("It waits: %d of %d cards could take it now, enough could when others release theirs.", fits, cards)
	case cluster.VerdictUnknown:
		return "Some facts could not be read, see the nodes."
	}
	if cards == 0 {
		return "No node has registered a card."
	}
	text := fmt.Sprintf("It cannot fit: none of the %d cards is large enough, even empty.", cards)
	if x.Need.MemoryMiB > 0 && free >= x.Need.MemoryMiB*x.Need.Count {
		text += fmt.Sprintf(" The free memory of all cards together is %d MiB, but a share comes from one card.", free)
	}
	return text
}

// maxIdeas bounds the suggestions.
const maxIdeas = 5

// ideas are the smallest changes that would help.
func ideas(facts []nodeFacts, r fit.Request, env string) []string {
	var out []string
	largest := 0
	for i := range facts {
		f := &facts[i]
		for holder := range f.holders {
			if holder == env {
				continue
			}
			if _, refusal := fit.Pick(f.without(env, holder), []fit.Request{r}, fit.Policy{}); refusal == nil {
				out = append(out, "if environment "+holder+" is removed")
			}
		}
		largest = max(largest, largestShare(f.without(env), r))
	}
	slices.SortFunc(out, strings.Compare)
	out = out[:min(len(out), maxIdeas)]
	if largest > 0 && largest < r.MemMiB {
		out = append(out, fmt.Sprintf("with at most %d MiB", largest))
	}
	return out
}

// largestShare returns the most memory that would fit now, all else equal.
func largestShare(usage []fit.Usage, r fit.Request) int {
	best := 0
	if r.MemMiB == 0 {
		return 0
	}
	for i := range usage {
		smaller := r
		smaller.MemMiB = usage[i].MemMiB - usage[i].UsedMemMiB
		if smaller.MemMiB <= best {
			continue
		}
		if _, refusal := fit.Pick(usage, []fit.Request{smaller}, fit.Policy{}); refusal == nil {
			best = smaller.MemMiB
		}
	}
	return best
}
