package scheduler

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// maxRefresh bounds the nodes that one refusal reads again. Device plugins are
// down on few nodes at a time.
const maxRefresh = 16

// refresh reads again the nodes that were refused because their device plugin
// is not running, and reports whether one of them has changed since.
//
// kube-scheduler asks again about a refused pod when it sees a change that
// could help. When it sees the plugin come back before our own watch does, a
// refusal from what we remember would be the last word until it sweeps its
// queue, minutes later.
func (s *Scheduler) refresh(ctx context.Context, failed map[string]string) (changed bool) {
	left := maxRefresh
	for name, reason := range failed {
		if reason != pluginGone || left == 0 {
			continue
		}
		left--
		node, err := s.cfg.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			s.cfg.Log.DebugContext(ctx, "node not read again", "node", name, "error", err)
			continue // the refusal stands
		}
		if facts := factsOf(node); facts.Closed != pluginGone {
			s.ledger.SetNode(name, facts)
			changed = true
		}
	}
	return changed
}
