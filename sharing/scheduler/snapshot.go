package scheduler

import (
	"slices"
	"strings"

	"github.com/firstlight-dev/firstlight/sharing/fit"
	"github.com/firstlight-dev/firstlight/sharing/wire"
)

// NodeUsage is a node's cards at one moment.
type NodeUsage struct {
	Node   string
	Closed string
	Cards  []fit.Usage
}

// PodUsage is what a pod holds at one moment.
type PodUsage struct {
	Pod     PodKey
	Node    string
	Devices wire.PodDevices
}

// Snapshot returns the whole account, ordered by name.
func (l *Ledger) Snapshot() ([]NodeUsage, []PodUsage) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expire()
	nodes := make([]NodeUsage, 0, len(l.nodes))
	for name, n := range l.nodes {
		if len(n.cards) > 0 {
			nodes = append(nodes, NodeUsage{Node: name, Closed: n.refuses(), Cards: n.usage()})
		}
	}
	pods := make([]PodUsage, 0, len(l.pods))
	for _, h := range l.pods {
		pods = append(pods, PodUsage{Pod: h.pod, Node: h.node, Devices: h.devices})
	}
	slices.SortFunc(nodes, func(a, b NodeUsage) int { return strings.Compare(a.Node, b.Node) })
	slices.SortFunc(pods, func(a, b PodUsage) int { return strings.Compare(string(a.Pod.UID), string(b.Pod.UID)) })
	return nodes, pods
}
