package scheduler

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/firstlight-dev/firstlight/sharing/wire"
)

// sweepTime bounds one sweep.
const sweepTime = 10 * time.Second

// sweep repairs what lost events and dead peers left behind: pods that were
// assumed bound and never seen, and locks of pods that no longer wait.
func (s *Scheduler) sweep(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, sweepTime)
	defer cancel()
	for _, key := range s.ledger.Unconfirmed() {
		pod, err := s.cfg.Client.CoreV1().Pods(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err), err == nil && (pod.UID != key.UID || pod.Spec.NodeName == ""):
			s.ledger.Forget(key.UID)
		case err == nil:
			s.podChanged(pod)
		default:
			s.cfg.Log.WarnContext(ctx, "bound pod can't be looked up", "pod", key.Namespace+"/"+key.Name, "error", err)
		}
	}
	nodes, err := s.nodes.List(labels.Everything())
	if err != nil {
		s.cfg.Log.WarnContext(ctx, "nodes can't be listed", "error", err)
		return
	}
	for _, node := range nodes {
		lock, err := wire.ParseNodeLock(node.Annotations[wire.NodeMutex])
		if err != nil || lock.Name == "" || !s.locks.abandoned(lock) {
			continue
		}
		if err := s.locks.release(ctx, node.Name, lock.Namespace, lock.Name); err != nil {
			s.cfg.Log.WarnContext(ctx, "left-behind lock stays", "node", node.Name, "error", err)
			continue
		}
		s.cfg.Log.InfoContext(ctx, "left-behind lock removed", "node", node.Name, "pod", lock.Namespace+"/"+lock.Name)
	}
}
