package deviceplugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"

	"github.com/firstlight-dev/firstlight/sharing/wire"
)

var (
	// ErrNoPod means that no pod on the node waits for its devices.
	ErrNoPod = errors.New("no binding pod found on node")
	// ErrAmbiguous means that several pods could be meant.
	ErrAmbiguous = errors.New("several pods wait for devices and no lock says which is served")
)

// pending is a pod between bind and the end of Allocate.
type pending struct {
	pod  *corev1.Pod
	left wire.PodDevices // what ToAllocate says
}

// next returns the container to serve and its vGPUs.
func (w *pending) next() (int, wire.ContainerDevices, error) {
	i, err := w.left.Next()
	if err != nil {
		return 0, nil, err
	}
	return i, w.left[i], nil
}

// container returns the pod's container at a position of the annotation.
func (w *pending) container(i int) (*corev1.Container, error) {
	inits, apps := w.pod.Spec.InitContainers, w.pod.Spec.Containers
	switch {
	case i < len(inits):
		return &inits[i], nil
	case i < len(inits)+len(apps):
		return &apps[i-len(inits)], nil
	}
	return nil, fmt.Errorf("pod %s/%s has no container %d", w.pod.Namespace, w.pod.Name, i)
}

// findPending returns the pod that the next call, for count devices, is about.
func (p *Plugin) findPending(ctx context.Context, count int) (*pending, error) {
	node, err := p.cfg.Client.CoreV1().Nodes().Get(ctx, p.cfg.Node, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read lock of node %s: %w", p.cfg.Node, err)
	}
	if lock, err := wire.ParseNodeLock(node.Annotations[wire.NodeMutex]); err == nil && lock.Name != "" {
		pod, err := p.cfg.Client.CoreV1().Pods(lock.Namespace).Get(ctx, lock.Name, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("read pod %s/%s, which holds the lock of node %s: %w", lock.Namespace, lock.Name, p.cfg.Node, err)
		}
		if err == nil {
			if w, err := p.examine(pod); err == nil {
				return w, nil
			}
		}
	}
	return p.findUnlocked(ctx, count)
}

// findUnlocked looks for the only pod that can be meant.
func (p *Plugin) findUnlocked(ctx context.Context, count int) (*pending, error) {
	list, err := p.cfg.Client.CoreV1().Pods("").List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", p.cfg.Node).String(),
	})
	if err != nil {
		return nil, fmt.Errorf("list pods of node %s: %w", p.cfg.Node, err)
	}
	var found *pending
	for i := range list.Items {
		w, err := p.examine(&list.Items[i])
		if err != nil {
			continue
		}
		if _, devices, err := w.next(); err != nil || len(devices) != count {
			continue
		}
		if found != nil {
			return nil, ErrAmbiguous
		}
		found = w
	}
	if found == nil {
		return nil, fmt.Errorf("%w %s", ErrNoPod, p.cfg.Node)
	}
	return found, nil
}

// examine checks that a pod waits for devices here and that its annotations
// agree with each other and with the cards.
func (p *Plugin) examine(pod *corev1.Pod) (*pending, error) {
	name, notes := pod.Namespace+"/"+pod.Name, pod.Annotations
	if pod.Spec.NodeName != p.cfg.Node || notes[wire.AssignedNode] != p.cfg.Node {
		return nil, fmt.Errorf("pod %s is not assigned to node %s", name, p.cfg.Node)
	}
	if pod.Status.Phase != corev1.PodPending && pod.Status.Phase != "" {
		return nil, fmt.Errorf("pod %s is %s", name, pod.Status.Phase)
	}
	if phase := wire.Phase(notes[wire.BindPhase]); phase != wire.PhaseAllocating {
		return nil, fmt.Errorf("pod %s is in phase %q", name, phase)
	}
	left, err := wire.DecodePodDevices(notes[wire.ToAllocate])
	if err != nil {
		return nil, fmt.Errorf("pod %s: %w", name, err)
	}
	all, err := wire.DecodePodDevices(notes[wire.Allocated])
	if err != nil {
		return nil, fmt.Errorf("pod %s: %w", name, err)
	}
	cards := p.Cards()
	for i, devices := range left {
		if len(devices) > 0 && (i >= len(all) || !reflect.DeepEqual(devices, all[i])) {
			return nil, fmt.Errorf("pod %s: container %d is to get other devices than it was allocated", name, i)
		}
		for _, d := range devices {
			if !slices.ContainsFunc(cards, func(c wire.Device) bool { return c.UUID == d.Card() && d.MemMiB <= c.MemMiB }) {
				return nil, fmt.Errorf("pod %s: container %d is allocated %d MiB of card %s, which node %s does not have", name, i, d.MemMiB, d.UUID, p.cfg.Node)
			}
		}
	}
	if left.Empty() {
		return nil, fmt.Errorf("pod %s: %w", name, wire.ErrNoneLeft)
	}
	return &pending{pod: pod, left: left}, nil
}

// record writes what is left to allocate; when nothing is, the pod has
// succeeded. The pod's UID guards against a namesake.
func (p *Plugin) record(ctx context.Context, w *pending, left wire.PodDevices) error {
	text, err := wire.EncodePodDevices(left)
	if err != nil {
		return err
	}
	notes := map[string]string{wire.ToAllocate: text}
	if left.Empty() {
		notes[wire.BindPhase] = string(wire.PhaseSuccess)
	}
	return p.patchPod(ctx, w.pod, notes)
}

func (p *Plugin) patchPod(ctx context.Context, pod *corev1.Pod, notes map[string]string) error {
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID, "annotations": notes}})
	if err != nil {
		return err
	}
	if _, err := p.cfg.Client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, body, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("annotate pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// unlockPause spaces attempts to give the lock back.
const unlockPause = 100 * time.Millisecond

// unlock gives the node's lock back if the pod holds it. It tries until ctx
// ends: a lock that stays makes every other pod on the node wait.
func (p *Plugin) unlock(ctx context.Context, pod *corev1.Pod) error {
	for {
		err := p.tryUnlock(ctx, pod)
		if err == nil || !sleep(ctx, unlockPause) {
			return err
		}
	}
}

func (p *Plugin) tryUnlock(ctx context.Context, pod *corev1.Pod) error {
	node, err := p.cfg.Client.CoreV1().Nodes().Get(ctx, p.cfg.Node, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read lock of node %s: %w", p.cfg.Node, err)
	}
	lock, err := wire.ParseNodeLock(node.Annotations[wire.NodeMutex])
	if ours := err == nil && lock.HeldBy(pod.Namespace, pod.Name); !ours {
		return nil // gone, or somebody else's
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"resourceVersion": node.ResourceVersion, "annotations": map[string]any{wire.NodeMutex: nil},
	}})
	if err != nil {
		return err
	}
	if _, err := p.cfg.Client.CoreV1().Nodes().Patch(ctx, p.cfg.Node, types.MergePatchType, body, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("unlock node %s: %w", p.cfg.Node, err)
	}
	return nil
}
