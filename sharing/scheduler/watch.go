package scheduler

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/firstlight-dev/firstlight/sharing/demand"
	"github.com/firstlight-dev/firstlight/sharing/wire"
)

// trim drops what the scheduler never reads, so that a cluster's pods fit in
// little memory.
func trim(obj any) (any, error) {
	switch o := obj.(type) {
	case *corev1.Pod:
		o.ManagedFields = nil
		o.Status.ContainerStatuses, o.Status.InitContainerStatuses = nil, nil
	case *corev1.Node:
		o.ManagedFields = nil
		o.Status.Images = nil
	}
	return obj, nil
}

func (s *Scheduler) watch(pods, nodes cache.SharedIndexInformer) error {
	onPods, err := pods.AddEventHandler(handler(s.podChanged, func(pod *corev1.Pod) { s.ledger.Remove(pod.UID) }))
	if err != nil {
		return fmt.Errorf("watch pods: %w", err)
	}
	onNodes, err := nodes.AddEventHandler(handler(s.nodeChanged, func(node *corev1.Node) { s.ledger.RemoveNode(node.Name) }))
	if err != nil {
		return fmt.Errorf("watch nodes: %w", err)
	}
	s.synced = []cache.InformerSynced{onPods.HasSynced, onNodes.HasSynced}
	return nil
}

// handler makes an event handler for objects of type T. An object whose
// deletion was missed comes as its last known state.
func handler[T any](changed, gone func(T)) cache.ResourceEventHandlerFuncs {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if o, ok := obj.(T); ok {
				changed(o)
			}
		},
		UpdateFunc: func(_, obj any) {
			if o, ok := obj.(T); ok {
				changed(o)
			}
		},
		DeleteFunc: func(obj any) {
			if last, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = last.Obj
			}
			if o, ok := obj.(T); ok {
				gone(o)
			}
		},
	}
}

// podChanged brings the account in line with a pod. An unbound pod's
// annotations mean nothing: only its reservation counts.
func (s *Scheduler) podChanged(pod *corev1.Pod) {
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		s.ledger.Remove(pod.UID)
		return
	}
	if pod.Spec.NodeName == "" {
		return
	}
	d, err := demand.FromPod(pod)
	text, annotated := pod.Annotations[wire.Allocated]
	switch {
	case !annotated && err == nil && !d.Any():
		return
	case !annotated:
		s.block(pod, fmt.Sprintf("pod %s uses %s without an allocation", podName(pod), wire.ResourceCount))
		return
	}
	devices, err := wire.DecodePodDevices(text)
	if err != nil {
		s.block(pod, fmt.Sprintf("pod %s has an allocation that can't be read", podName(pod)))
		return
	}
	s.ledger.Observe(keyOf(pod), pod.Spec.NodeName, devices, d.Roles())
}

func (s *Scheduler) block(pod *corev1.Pod, why string) {
	s.ledger.Block(keyOf(pod), pod.Spec.NodeName, why)
	s.cfg.Recorder.Event(pod, corev1.EventTypeWarning, "AllocationUnknown", "node "+pod.Spec.NodeName+" takes no new vGPUs: "+why)
}

func (s *Scheduler) nodeChanged(node *corev1.Node) { s.ledger.SetNode(node.Name, factsOf(node)) }

// pluginGone is why a node with cards takes no work when kubelet counts none.
const pluginGone = "node's device plugin is not running: it has no allocatable " + wire.ResourceCount

// factsOf reads a node. Cards are usable only while the kubelet counts devices:
// it stops when the device plugin is gone.
func factsOf(node *corev1.Node) NodeFacts {
	text, ok := node.Annotations[wire.NodeRegister]
	if !ok {
		return NodeFacts{Closed: notRegistered}
	}
	cards, err := wire.DecodeDevices(text)
	if err != nil {
		return NodeFacts{Closed: "node's cards can't be read"}
	}
	f := NodeFacts{Cards: cards}
	for uuid := range strings.SplitSeq(node.Annotations[wire.NodeCordon], ",") {
		if uuid = strings.TrimSpace(uuid); uuid != "" {
			f.Cordoned = append(f.Cordoned, uuid)
		}
	}
	if q := node.Status.Allocatable[wire.ResourceCount]; q.Value() <= 0 {
		f.Closed = pluginGone
	}
	return f
}
