package scheduler

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	extender "k8s.io/kube-scheduler/extender/v1"

	"github.com/firstlight-dev/firstlight/sharing/demand"
)

// Reasons of the events on pods. HAMi's users know them.
const (
	eventFilterFailed  = "FilteringFailed"
	eventFilterSucceed = "FilteringSucceed"
	eventBindFailed    = "BindingFailed"
	eventBindSucceed   = "BindingSucceed"
)

// maxEvent bounds an event's message; the API server refuses more than 1024 bytes.
const maxEvent = 1000

// Filter answers kube-scheduler's filter call: at most one node, on which the
// pod's cards are now reserved. A call with whole nodes instead of names is an
// autoscaler's what-if and reserves nothing.
func (s *Scheduler) Filter(ctx context.Context, args extender.ExtenderArgs) (*extender.ExtenderFilterResult, error) {
	if !s.Ready() {
		return nil, ErrNotReady
	}
	if args.Pod == nil {
		return nil, fmt.Errorf("filter call without a pod")
	}
	pod := args.Pod
	names, whatIf := candidates(args)
	d, err := demand.FromPod(pod)
	if err != nil {
		s.cfg.Recorder.Event(pod, corev1.EventTypeWarning, eventFilterFailed, shorten(err.Error()))
		failed := make(extender.FailedNodesMap, len(names))
		for _, name := range names {
			failed[name] = err.Error()
		}
		return &extender.ExtenderFilterResult{FailedAndUnresolvableNodes: failed}, nil
	}
	if !d.Any() {
		return &extender.ExtenderFilterResult{Nodes: args.Nodes, NodeNames: args.NodeNames}, nil
	}
	ttl := s.cfg.ReservationTTL
	if whatIf {
		ttl = 0
	}
	policies := s.policies(ctx, pod, d)
	choice := s.ledger.Reserve(keyOf(pod), d, policies, names, ttl)
	if choice.Node == "" && s.refresh(ctx, choice.Failed) {
		choice = s.ledger.Reserve(keyOf(pod), d, policies, names, ttl)
	}
	if whatIf {
		return answerWhatIf(args.Nodes, choice), nil
	}
	s.tell(ctx, pod, choice)
	result := &extender.ExtenderFilterResult{FailedNodes: choice.Failed}
	if choice.Node != "" {
		result.NodeNames = &[]string{choice.Node}
		result.FailedNodes = nil
	}
	return result, nil
}

func candidates(args extender.ExtenderArgs) (names []string, whatIf bool) {
	if args.Nodes != nil {
		for i := range args.Nodes.Items {
			names = append(names, args.Nodes.Items[i].Name)
		}
		return names, true
	}
	if args.NodeNames != nil {
		names = *args.NodeNames
	}
	return names, false
}

func answerWhatIf(nodes *corev1.NodeList, choice Choice) *extender.ExtenderFilterResult {
	fits := make(map[string]bool, len(choice.Fitting))
	for _, f := range choice.Fitting {
		fits[f.Node] = true
	}
	result := &extender.ExtenderFilterResult{Nodes: &corev1.NodeList{}, FailedNodes: choice.Failed}
	for i := range nodes.Items {
		if fits[nodes.Items[i].Name] {
			result.Nodes.Items = append(result.Nodes.Items, nodes.Items[i])
		}
	}
	return result
}

// tell puts the outcome on the pod, where its author looks first.
func (s *Scheduler) tell(ctx context.Context, pod *corev1.Pod, c Choice) {
	if c.Node == "" {
		s.cfg.Recorder.Event(pod, corev1.EventTypeWarning, eventFilterFailed, refusalEvent(c.Failed))
		s.cfg.Log.DebugContext(ctx, "no node fits", "pod", podName(pod), "nodes", len(c.Failed))
		return
	}
	fitting := make([]string, len(c.Fitting))
	for i, f := range c.Fitting {
		fitting[i] = fmt.Sprintf("%s:%.2f", f.Node, f.Score)
	}
	s.cfg.Recorder.Event(pod, corev1.EventTypeNormal, eventFilterSucceed, shorten(fmt.Sprintf(
		"find fit node(%s), %d nodes not fit, %d nodes fit(%s)", c.Node, len(c.Failed), len(fitting), strings.Join(fitting, ","))))
	s.cfg.Log.DebugContext(ctx, "cards reserved", "pod", podName(pod), "node", c.Node)
}

// refusalEvent names every node and what its cards lack, as far as it fits.
// Nodes with the same words are named together; those without cards come last.
func refusalEvent(failed map[string]string) string {
	byReason := map[string][]string{}
	for _, name := range slices.Sorted(maps.Keys(failed)) {
		byReason[failed[name]] = append(byReason[failed[name]], name)
	}
	reasons := slices.SortedFunc(maps.Keys(byReason), func(a, b string) int {
		if (a == notRegistered) != (b == notRegistered) {
			if a == notRegistered {
				return 1
			}
			return -1
		}
		return strings.Compare(byReason[a][0], byReason[b][0])
	})
	parts := make([]string, len(reasons))
	for i, reason := range reasons {
		parts[i] = strings.Join(byReason[reason], ",") + ": " + reason
	}
	return shorten(fmt.Sprintf("no available node, %d nodes do not meet: %s", len(failed), strings.Join(parts, "; ")))
}

func shorten(s string) string {
	if len(s) <= maxEvent {
		return s
	}
	return strings.ToValidUTF8(s[:maxEvent-len(" …")], "") + " …"
}

// unixSeconds is the form of times in a pod's annotations.
func unixSeconds(t time.Time) string { return strconv.FormatInt(t.Unix(), 10) }
