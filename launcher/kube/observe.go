package kube

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/firstlight-dev/firstlight/launcher/cluster"
	"github.com/firstlight-dev/firstlight/snapshotter/nodeapi"
)

// Observe implements cluster.Cluster. It asks the API server, not the cache:
// an answer must mean that the cluster can be reached.
func (c *Cluster) Observe(ctx context.Context) ([]cluster.Observed, error) {
	pods, err := c.client.CoreV1().Pods(c.cfg.Namespace).List(ctx, metav1.ListOptions{LabelSelector: labelManaged + "=" + managedBy, ResourceVersion: "0"})
	if err != nil {
		return nil, classify("list pods", err)
	}
	newest := map[string]*corev1.Pod{}
	for i := range pods.Items {
		p := &pods.Items[i]
		env := p.Labels[labelEnv]
		if old := newest[env]; env != "" && (old == nil || generation(p) > generation(old)) {
			newest[env] = p
		}
	}
	all := make([]cluster.Observed, 0, len(newest))
	for _, p := range newest {
		all = append(all, observed(p))
	}
	slices.SortFunc(all, func(a, b cluster.Observed) int { return strings.Compare(a.Env, b.Env) })
	return all, nil
}

func observed(p *corev1.Pod) cluster.Observed {
	o := cluster.Observed{
		Env: p.Labels[labelEnv], Name: p.Annotations[annotationName], Generation: generation(p),
		State: cluster.StatePending, Reason: p.Status.Reason, Message: p.Status.Message, Placement: placement(p),
	}
	for i := range p.Status.ContainerStatuses {
		s := &p.Status.ContainerStatuses[i]
		o.Restarts = int(s.RestartCount)
		switch {
		case s.State.Running != nil:
			o.State, o.StartedAt = cluster.StateRunning, s.State.Running.StartedAt.Time
		case s.State.Terminated != nil:
			o.ExitCode, o.Reason, o.Message = int(s.State.Terminated.ExitCode), s.State.Terminated.Reason, s.State.Terminated.Message
		case s.State.Waiting != nil:
			o.Reason, o.Message = s.State.Waiting.Reason, s.State.Waiting.Message
		}
	}
	switch p.Status.Phase {
	case corev1.PodFailed, corev1.PodSucceeded:
		o.State = cluster.StateExited
	case corev1.PodUnknown:
		o.State = cluster.StateUnknown
	}
	return o
}

// ImageUse implements cluster.ImageReader.
func (c *Cluster) ImageUse(ctx context.Context, env string) (cluster.ImageUse, error) {
	im, err := c.imageOf(ctx, env)
	if err != nil {
		return cluster.ImageUse{}, err
	}
	return imageUse(&im), nil
}

// imageOf asks the snapshotter for the image of an environment. The error is
// ErrNotFound if it is not lazy there, or there is nobody to ask.
func (c *Cluster) imageOf(ctx context.Context, env string) (nodeapi.Image, error) {
	if c.node == nil {
		return nodeapi.Image{}, fmt.Errorf("no node API can be reached: %w", cluster.ErrNotFound)
	}
	pod, err := c.podOf(ctx, env)
	if err != nil {
		return nodeapi.Image{}, err
	}
	images, err := c.node.Images(ctx)
	if err != nil {
		return nodeapi.Image{}, fmt.Errorf("ask node: %w", err)
	}
	_, digest, _ := strings.Cut(pod.Spec.Containers[0].Image, "@")
	for i := range images {
		if images[i].Manifest == digest || images[i].Ref == pod.Spec.Containers[0].Image {
			return images[i], nil
		}
	}
	return nodeapi.Image{}, fmt.Errorf("image of %s is not lazy on its node: %w", env, cluster.ErrNotFound)
}

// EndStart implements cluster.StartEnder.
func (c *Cluster) EndStart(ctx context.Context, env string, command []string) error {
	if c.node == nil {
		return nil
	}
	im, err := c.imageOf(ctx, env)
	if errors.Is(err, cluster.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = c.node.StopRecording(ctx, nodeapi.ProfileRequest{Image: im.Manifest, Command: command, Usable: true})
	if errors.Is(err, nodeapi.ErrNotFound) {
		return nil
	}
	return err
}

func imageUse(im *nodeapi.Image) cluster.ImageUse {
	sum := im.Totals()
	use := cluster.ImageUse{
		BytesFetched: sum.BytesFetched, Requests: sum.Requests, Complete: true,
		OnDemandWait: time.Duration(sum.OnDemandWaitMS) * time.Millisecond,
	}
	for i := range im.Layers {
		lazy := im.Layers[i].State == nodeapi.StateLazy
		use.Lazy = use.Lazy || lazy
		use.Complete = use.Complete && !lazy
	}
	return use
}
