package kube

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/firstlight-dev/firstlight/launcher/cluster"
	"github.com/firstlight-dev/firstlight/sharing/fit"
	"github.com/firstlight-dev/firstlight/sharing/wire"
)

// nodeFacts are one node's cards with what is taken of them. A node whose
// annotations cannot be read has no cards and says why.
type nodeFacts struct {
	name    string
	ready   bool
	cards   []fit.Usage
	trouble string
	taints  []corev1.Taint
	closed  bool                    // unschedulable
	holders map[string][]fit.Charge // of environments on the node
}

// readFacts reads all nodes and everything that holds cards on them. What
// holds them may be anyone's pod.
func (c *Cluster) readFacts(ctx context.Context) ([]nodeFacts, error) {
	nodes, err := c.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, classify("list nodes", err)
	}
	pods, err := c.client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		ResourceVersion: "0", LabelSelector: wire.AssignedNode,
	})
	if err != nil {
		return nil, classify("list pods", err)
	}
	return gather(nodes.Items, pods.Items), nil
}

// gather is pure.
func gather(nodes []corev1.Node, pods []corev1.Pod) []nodeFacts {
	all := make([]nodeFacts, 0, len(nodes))
	for i := range nodes {
		all = append(all, nodeCards(&nodes[i]))
	}
	slices.SortFunc(all, func(a, b nodeFacts) int { return strings.Compare(a.name, b.name) })
	for i := range pods {
		p := &pods[i]
		if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		node := cmp.Or(p.Spec.NodeName, p.Annotations[wire.AssignedNode])
		at := slices.IndexFunc(all, func(f nodeFacts) bool { return f.name == node })
		if at < 0 || p.Annotations[wire.Allocated] == "" {
			continue
		}
		all[at].charge(p)
	}
	return all
}

func nodeCards(n *corev1.Node) nodeFacts {
	f := nodeFacts{name: n.Name, taints: n.Spec.Taints, closed: n.Spec.Unschedulable, holders: map[string][]fit.Charge{}}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			f.ready = c.Status == corev1.ConditionTrue
		}
	}
	text := n.Annotations[wire.NodeRegister]
	if text == "" {
		return f
	}
	devices, err := wire.DecodeDevices(text)
	if err != nil {
		f.trouble = fmt.Sprintf("its cards cannot be read: %v", err)
		return f
	}
	cordoned := strings.Split(n.Annotations[wire.NodeCordon], ",")
	for _, d := range devices {
		f.cards = append(f.cards, fit.Usage{Device: d, Cordoned: slices.Contains(cordoned, d.UUID)})
	}
	slices.SortFunc(f.cards, func(a, b fit.Usage) int {
		return cmp.Or(cmp.Compare(a.Index, b.Index), strings.Compare(a.UUID, b.UUID))
	})
	return f
}

// charge takes what a pod holds.
func (f *nodeFacts) charge(p *corev1.Pod) {
	allocation, err := wire.DecodePodDevices(p.Annotations[wire.Allocated])
	if err != nil {
		f.trouble = fmt.Sprintf("what pod %s/%s holds cannot be read: %v", p.Namespace, p.Name, err)
		return
	}
	charges := fit.Charges(allocation, roles(p))
	if env := p.Labels[labelEnv]; env != "" {
		f.holders[env] = append(f.holders[env], charges...)
	}
	f.take(charges, 1)
}

func (f *nodeFacts) take(charges []fit.Charge, sign int) {
	for _, ch := range charges {
		for i := range f.cards {
			if f.cards[i].UUID == ch.UUID {
				f.cards[i].Take(ch, sign)
			}
		}
	}
}

// without returns the cards as if an environment held nothing.
func (f *nodeFacts) without(envs ...string) []fit.Usage {
	free := nodeFacts{cards: slices.Clone(f.cards)}
	for _, env := range envs {
		free.take(f.holders[env], -1)
	}
	return free.cards
}

// empty returns the cards as if nobody held anything.
func (f *nodeFacts) empty() []fit.Usage {
	cards := slices.Clone(f.cards)
	for i := range cards {
		cards[i].UsedMemMiB, cards[i].UsedCores, cards[i].UsedSlots = 0, 0, 0
	}
	return cards
}

func roles(p *corev1.Pod) []fit.Role {
	var out []fit.Role
	for i := range p.Spec.InitContainers {
		role := fit.Init
		if r := p.Spec.InitContainers[i].RestartPolicy; r != nil && *r == corev1.ContainerRestartPolicyAlways {
			role = fit.Sidecar
		}
		out = append(out, role)
	}
	for range p.Spec.Containers {
		out = append(out, fit.App)
	}
	return out
}

// Capacity implements cluster.Cluster.
func (c *Cluster) Capacity(ctx context.Context) ([]cluster.Node, error) {
	facts, err := c.readFacts(ctx)
	if err != nil {
		return nil, err
	}
	nodes := make([]cluster.Node, 0, len(facts))
	for i := range facts {
		n := cluster.Node{Name: facts[i].name, Ready: facts[i].ready, Devices: []cluster.DeviceStatus{}}
		for j := range facts[i].cards {
			n.Devices = append(n.Devices, deviceStatus(&facts[i].cards[j]))
		}
		nodes = append(nodes, n)
	}
	return nodes, nil
}

func deviceStatus(u *fit.Usage) cluster.DeviceStatus {
	return cluster.DeviceStatus{
		UUID: u.UUID, Index: u.Index, Model: u.Type, Healthy: u.Healthy,
		MemoryMiB: u.MemMiB, MemoryUsedMiB: u.UsedMemMiB,
		Cores: u.Cores, CoresUsed: u.UsedCores, Slots: u.Slots, SlotsUsed: u.UsedSlots,
	}
}
