package kube

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/firstlight-dev/firstlight/launcher/backend"
	"github.com/firstlight-dev/firstlight/launcher/cluster"
)

// Start implements cluster.Cluster.
func (c *Cluster) Start(ctx context.Context, l cluster.Launch) error {
	if err := c.awaitSync(ctx); err != nil {
		return err
	}
	ask, err := c.ask(ctx, &l.Spec)
	if err != nil {
		return err
	}
	r := &rendering{
		namespace: c.cfg.Namespace, tools: c.cfg.ToolsImage, delivery: c.cfg.ToolsDelivery,
		runtime: c.cfg.RuntimeClass, hostPaths: c.cfg.HostPaths,
	}
	pod, err := r.pod(&l, ask)
	if err != nil {
		return err
	}
	secret, err := r.secret(&l)
	if err != nil {
		return err
	}
	w := &watched{follower: newFollower(c.cfg.ToolsImage, l.Image.Pinned, l.Observer), changed: make(chan struct{}, 1)}
	c.mu.Lock()
	c.followers[pod.Name] = w
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.followers, pod.Name)
		c.mu.Unlock()
	}()
	if err := c.create(ctx, secret, pod, ask, w); err != nil {
		return err
	}
	return c.await(ctx, w)
}

// awaitSync waits until the informers have seen the cluster once: a pod that
// exists already must be known before it is made again.
func (c *Cluster) awaitSync(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	if !cache.WaitForCacheSync(ctx.Done(), c.pods.HasSynced) {
		return &cluster.Error{Code: cluster.CodeUnreachable, Retryable: true, Err: fmt.Errorf("watch pods: %w", context.Cause(ctx))}
	}
	return nil
}

// create makes the objects, or adopts them.
func (c *Cluster) create(ctx context.Context, secret *corev1.Secret, pod *corev1.Pod, ask *backend.Ask, w *watched) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	began := time.Now()
	w.do(func(f *follower) { f.begin(cluster.StageAdmit, began) })
	_, err := c.client.CoreV1().Secrets(c.cfg.Namespace).Create(ctx, secret, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return denied("create secret", err)
	}
	made, err := c.client.CoreV1().Pods(c.cfg.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		made, err = c.client.CoreV1().Pods(c.cfg.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	}
	at := time.Now()
	if err != nil {
		return denied("create pod", err)
	}
	if err := accepted(made, ask); err != nil {
		return err
	}
	w.do(func(f *follower) {
		f.admitted(made, at)
		f.pod(made, at)
	})
	return nil
}

// accepted checks that admission left in the pod what its GPU depends on.
func accepted(made *corev1.Pod, ask *backend.Ask) error {
	if made.DeletionTimestamp != nil {
		return &cluster.Error{Code: cluster.CodeUnreachable, Retryable: true, Err: fmt.Errorf("pod %s is still being removed", made.Name)}
	}
	switch {
	case ask != nil && ask.SchedulerName != "" && made.Spec.SchedulerName != ask.SchedulerName:
		return cluster.Fail(cluster.CodeAdmissionBypassed,
			"the pod came back with scheduler %q instead of %q", made.Spec.SchedulerName, ask.SchedulerName)
	case !hasTools(made):
		return cluster.Fail(cluster.CodeMissingCapability,
			"the cluster dropped the image volume from the pod: set toolsDelivery to %s", DeliverInitContainer)
	}
	return nil
}

// hasTools reports whether the tools volume survived: an API server that does
// not know image volumes drops the field in silence.
func hasTools(p *corev1.Pod) bool {
	for _, v := range p.Spec.Volumes {
		if v.Name == toolsVolume {
			return v.Image != nil || v.EmptyDir != nil && len(p.Spec.InitContainers) > 0
		}
	}
	return false
}

// denied tells what admission refused from what the launcher has no right to
// ask, which the API server tells apart in words only.
func denied(what string, err error) error {
	if apierrors.IsForbidden(err) && strings.Contains(err.Error(), "cannot create resource") {
		return classify(what, err)
	}
	if apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) {
		return cluster.Fail(cluster.CodeAdmissionDenied, "%s: %w", what, err)
	}
	return classify(what, err)
}

// await returns when the container runs or never will.
func (c *Cluster) await(ctx context.Context, w *watched) error {
	for {
		w.mu.Lock()
		running, failure := w.follower.running, w.follower.failure
		w.mu.Unlock()
		switch {
		case running:
			return nil
		case failure != nil:
			return failure
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.changed:
		}
	}
}

// Stop implements cluster.Cluster.
func (c *Cluster) Stop(ctx context.Context, env string) error {
	own := metav1.ListOptions{LabelSelector: labelManaged + "=" + managedBy + "," + labelEnv + "=" + env}
	pods, err := c.client.CoreV1().Pods(c.cfg.Namespace).List(ctx, own)
	if err != nil {
		return classify("list pods", err)
	}
	grace := metav1.DeleteOptions{GracePeriodSeconds: ptr(int64(gracePeriod))}
	for i := range pods.Items {
		err := c.client.CoreV1().Pods(c.cfg.Namespace).Delete(ctx, pods.Items[i].Name, grace)
		if err != nil && !apierrors.IsNotFound(err) {
			return classify("delete pod", err)
		}
	}
	if err := c.awaitNoPods(ctx, own); err != nil {
		return err
	}
	// The secrets go last: a pod that is still starting would otherwise fail
	// to mount its own, and say so for as long as it lives.
	secrets, err := c.client.CoreV1().Secrets(c.cfg.Namespace).List(ctx, own)
	if err != nil {
		return classify("list secrets", err)
	}
	for i := range secrets.Items {
		err := c.client.CoreV1().Secrets(c.cfg.Namespace).Delete(ctx, secrets.Items[i].Name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return classify("delete secret", err)
		}
	}
	return nil
}

// stopPoll is the pace of looking whether pods are gone.
const stopPoll = 250 * time.Millisecond

func (c *Cluster) awaitNoPods(ctx context.Context, own metav1.ListOptions) error {
	tick := time.NewTicker(stopPoll)
	defer tick.Stop()
	for {
		left, err := c.client.CoreV1().Pods(c.cfg.Namespace).List(ctx, own)
		if err != nil {
			return classify("list pods", err)
		}
		if len(left.Items) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for pods to end: %w", ctx.Err())
		case <-tick.C:
		}
	}
}
