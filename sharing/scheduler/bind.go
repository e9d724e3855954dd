package scheduler

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	extender "k8s.io/kube-scheduler/extender/v1"

	"github.com/firstlight-dev/firstlight/sharing/demand"
	"github.com/firstlight-dev/firstlight/sharing/wire"
)

// cleanupTime bounds what is done after a bind went wrong, when the caller's
// own time may be over.
const cleanupTime = 5 * time.Second

// Bind answers kube-scheduler's bind call.
func (s *Scheduler) Bind(ctx context.Context, args extender.ExtenderBindingArgs) error {
	if !s.Ready() {
		return ErrNotReady
	}
	pod, err := s.findPod(ctx, args)
	if err != nil {
		return err
	}
	if err := s.bind(ctx, pod, args.Node); err != nil {
		s.cfg.Recorder.Event(pod, corev1.EventTypeWarning, eventBindFailed, shorten(err.Error()))
		return err
	}
	s.cfg.Recorder.Eventf(pod, corev1.EventTypeNormal, eventBindSucceed, "Successfully binding node [%s] to %s", args.Node, podName(pod))
	return nil
}

// findPod returns the very pod that is meant: a pod that was deleted and made
// again under the same name is another one.
func (s *Scheduler) findPod(ctx context.Context, args extender.ExtenderBindingArgs) (*corev1.Pod, error) {
	pod, err := s.pods.Pods(args.PodNamespace).Get(args.PodName)
	if err != nil || pod.UID != args.PodUID {
		pod, err = s.cfg.Client.CoreV1().Pods(args.PodNamespace).Get(ctx, args.PodName, metav1.GetOptions{})
	}
	if err != nil {
		return nil, fmt.Errorf("look up pod %s/%s: %w", args.PodNamespace, args.PodName, err)
	}
	if pod.UID != args.PodUID {
		return nil, fmt.Errorf("pod %s/%s was made again: it is %s, not %s", args.PodNamespace, args.PodName, pod.UID, args.PodUID)
	}
	return pod, nil
}

func (s *Scheduler) bind(ctx context.Context, pod *corev1.Pod, node string) error {
	d, err := demand.FromPod(pod)
	if err != nil {
		return err
	}
	target := &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		Target:     corev1.ObjectReference{Kind: "Node", Name: node},
	}
	if !d.Any() {
		return s.post(ctx, target)
	}
	devices, err := s.ledger.BeginBind(keyOf(pod), d, s.policies(ctx, pod, d), node)
	if err != nil {
		return fmt.Errorf("bind pod %s: %w", podName(pod), err)
	}
	if err := s.annotate(target, devices); err != nil {
		s.ledger.EndBind(pod.UID, false)
		return err
	}
	if err := s.lockAndPost(ctx, pod, target); err != nil {
		return err
	}
	s.ledger.EndBind(pod.UID, true)
	if s.cfg.PatchLabel {
		s.label(ctx, pod, node)
	}
	return nil
}

// annotate puts the allocation on the Binding.
func (s *Scheduler) annotate(b *corev1.Binding, devices wire.PodDevices) error {
	text, err := wire.EncodePodDevices(devices)
	if err != nil {
		return fmt.Errorf("encode allocation of pod %s/%s: %w", b.Namespace, b.Name, err)
	}
	now := unixSeconds(s.cfg.Now())
	b.Labels = map[string]string{wire.AssignedNode: b.Target.Name}
	b.Annotations = map[string]string{
		wire.AssignedNode: b.Target.Name,
		wire.AssignedTime: now,
		wire.Allocated:    text,
		wire.ToAllocate:   text,
		wire.BindTime:     now,
		wire.BindPhase:    string(wire.PhaseAllocating),
	}
	return nil
}

// lockAndPost binds under the node's lock, which the device plugin gives back
// at the end of Allocate. On an error the lock and, if the pod is surely not
// bound, the reservation are given back.
func (s *Scheduler) lockAndPost(ctx context.Context, pod *corev1.Pod, b *corev1.Binding) error {
	wait, cancel := context.WithTimeout(ctx, s.cfg.LockWait)
	defer cancel()
	if err := s.locks.acquire(wait, b.Target.Name, pod); err != nil {
		s.ledger.EndBind(pod.UID, false)
		return fmt.Errorf("bind pod %s: %w", podName(pod), err)
	}
	err := s.post(ctx, b)
	if err == nil {
		return nil
	}
	cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
	defer cancel()
	switch s.outcome(cleanup, pod, b.Target.Name, err) {
	case isBound:
		return nil
	case isNotBound:
		s.ledger.EndBind(pod.UID, false)
	case isInDoubt:
		s.ledger.DoubtBind(pod.UID)
	}
	return errors.Join(err, s.locks.release(cleanup, b.Target.Name, pod.Namespace, pod.Name))
}

func (s *Scheduler) post(ctx context.Context, b *corev1.Binding) error {
	if err := s.cfg.Client.CoreV1().Pods(b.Namespace).Bind(ctx, b, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("bind pod %s/%s to node %s: %w", b.Namespace, b.Name, b.Target.Name, err)
	}
	return nil
}

// outcome of a bind that answered with an error.
type outcome int

const (
	isNotBound outcome = iota
	isBound
	isInDoubt
)

// outcome tells a refusal from a lost answer.
func (s *Scheduler) outcome(ctx context.Context, pod *corev1.Pod, node string, err error) outcome {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		code := status.Status().Code
		if code >= http.StatusBadRequest && code < http.StatusInternalServerError &&
			code != http.StatusRequestTimeout && code != http.StatusConflict {
			return isNotBound
		}
	}
	now, getErr := s.cfg.Client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(getErr), getErr == nil && now.UID != pod.UID:
		return isNotBound
	case getErr == nil && now.Spec.NodeName == node:
		return isBound
	case getErr == nil && now.Spec.NodeName != "":
		return isNotBound
	case getErr == nil && apierrors.IsConflict(err):
		return isNotBound
	}
	return isInDoubt
}

// label sets HAMi's label where the Binding could not. The pod is bound
// already, so an error is only logged.
func (s *Scheduler) label(ctx context.Context, pod *corev1.Pod, node string) {
	patch := fmt.Sprintf(`{"metadata":{"uid":%q,"labels":{%q:%q}}}`, pod.UID, wire.AssignedNode, node)
	_, err := s.cfg.Client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil {
		s.cfg.Log.WarnContext(ctx, "bound pod keeps no node label", "pod", podName(pod), "error", err)
	}
}
