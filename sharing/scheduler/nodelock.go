package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/firstlight-dev/firstlight/sharing/wire"
)

// ErrNodeLocked means that another pod on the node did not get through Allocate
// in time.
var ErrNodeLocked = errors.New("node lock contention")

// lockPoll is how often a waiting Bind looks at the watch's copy of the node.
const lockPoll = 50 * time.Millisecond

// nodeLocks takes and gives back HAMi's lock on a node: an annotation that
// tells the device plugin which pod the next Allocate is for. Every change
// names the node's resource version, so two writers can't both win.
type nodeLocks struct {
	client kubernetes.Interface
	nodes  corelisters.NodeLister
	pods   corelisters.PodLister
	now    func() time.Time
}

// acquire takes the node's lock for a pod, waiting until ctx ends.
func (k *nodeLocks) acquire(ctx context.Context, name string, pod *corev1.Pod) error {
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	for first := true; ; first = false {
		// The watch's copy is cheap but old: it decides only whether asking the
		// API server is worth it.
		cached, err := k.nodes.Get(name)
		if first || err == nil && k.free(cached, pod.Namespace, pod.Name) {
			took, err := k.try(ctx, name, pod)
			if err != nil && ctx.Err() == nil {
				return err
			}
			if took {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("node %s has been locked within %s: %w", name, wire.LockTimeout, ErrNodeLocked)
		case <-tick.C:
		}
	}
}

func (k *nodeLocks) try(ctx context.Context, name string, pod *corev1.Pod) (bool, error) {
	node, err := k.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return false, fmt.Errorf("read lock of node %s: %w", name, err)
	}
	if !k.free(node, pod.Namespace, pod.Name) {
		return false, nil
	}
	lock := wire.NodeLock{Since: k.now(), Namespace: pod.Namespace, Name: pod.Name}.String()
	switch err := k.patch(ctx, node, &lock); {
	case apierrors.IsConflict(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("lock node %s: %w", name, err)
	}
	return true, nil
}

// free reports whether the named pod may take the node's lock: nobody holds it,
// the pod itself does, or its holder is done or gone. A lock that can't be read
// protects nobody.
func (k *nodeLocks) free(node *corev1.Node, namespace, name string) bool {
	text, held := node.Annotations[wire.NodeMutex]
	if !held || text == "" {
		return true
	}
	lock, err := wire.ParseNodeLock(text)
	if err != nil || lock.HeldBy(namespace, name) || lock.Expired(k.now()) {
		return true
	}
	if lock.Name == "" {
		return false
	}
	return k.abandoned(lock)
}

// abandoned reports whether the lock's pod no longer waits for Allocate.
func (k *nodeLocks) abandoned(lock wire.NodeLock) bool {
	holder, err := k.pods.Pods(lock.Namespace).Get(lock.Name)
	if err != nil {
		return apierrors.IsNotFound(err)
	}
	switch wire.Phase(holder.Annotations[wire.BindPhase]) {
	case wire.PhaseSuccess, wire.PhaseFailed:
		return true
	case wire.PhaseAllocating:
	}
	return holder.Status.Phase == corev1.PodSucceeded || holder.Status.Phase == corev1.PodFailed
}

// release gives the lock back if the named pod holds it.
func (k *nodeLocks) release(ctx context.Context, name, namespace, pod string) error {
	for {
		node, err := k.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read lock of node %s: %w", name, err)
		}
		lock, err := wire.ParseNodeLock(node.Annotations[wire.NodeMutex])
		if ours := err == nil && lock.HeldBy(namespace, pod); !ours {
			return nil // gone, or somebody else's by now
		}
		err = k.patch(ctx, node, nil)
		if apierrors.IsConflict(err) {
			continue // bounded by ctx: the next Get fails when it has ended
		}
		if err != nil {
			return fmt.Errorf("unlock node %s: %w", name, err)
		}
		return nil
	}
}

// patch sets the lock, or removes it if value is nil, unless the node changed.
func (k *nodeLocks) patch(ctx context.Context, node *corev1.Node, value *string) error {
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"resourceVersion": node.ResourceVersion,
		"annotations":     map[string]*string{wire.NodeMutex: value},
	}})
	if err != nil {
		return err
	}
	_, err = k.client.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, body, metav1.PatchOptions{})
	return err
}
