// Package webhook completes pods that ask for vGPUs when they are created, and
// refuses those that could not work: it adds HAMi's defaults, sends the pod to
// the sharing scheduler, and denies what would get around the limits.
//
// Only creation is handled. What it changes is small and repeatable: the same
// pod in gives the same pod out, and its own output passes unchanged.
//
// # What is denied
//
//   - a privileged container with a vGPU: it sees every card of the node
//   - a pod that names its node: it never passes the scheduler
//   - amounts that are not whole numbers in range
//   - annotations that only the scheduler and the device plugin may write, on any
//     pod: forged, they would take cards from others
package webhook

import (
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/firstlight-dev/firstlight/sharing/demand"
	"github.com/firstlight-dev/firstlight/sharing/wire"
)

// Config steers the webhook.
type Config struct {
	SchedulerName string   // pods with vGPUs go there
	AlsoFrom      []string // other schedulers' names to take pods from, such as HAMi's
	RuntimeClass  string   // set on pods with vGPUs that name none; empty to leave them
	HideCards     bool     // set NVIDIA_VISIBLE_DEVICES=none on containers without vGPUs
}

// Denial is why a pod is refused.
type Denial string

// Error implements error.
func (d Denial) Error() string { return string(d) }

// owned are the annotations that users must not set.
var owned = []string{wire.AssignedNode, wire.AssignedTime, wire.ToAllocate, wire.Allocated, wire.BindTime, wire.BindPhase}

// Operation is one step of a JSON patch. "add" replaces what is there.
type Operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// Review returns the changes to a pod that is being created, or a Denial.
func (c Config) Review(pod *corev1.Pod) ([]Operation, error) {
	if pod.Labels[wire.WebhookLabel] == wire.WebhookIgnore {
		return nil, nil
	}
	if len(pod.Spec.Containers) == 0 {
		return nil, Denial("pod has no containers")
	}
	for _, key := range owned {
		if _, ok := pod.Annotations[key]; ok {
			return nil, Denial("annotation " + key + " is written by the scheduler only")
		}
	}
	if !c.takes(pod.Spec.SchedulerName) {
		return nil, nil
	}
	r := review{config: c, pod: pod}
	if err := r.containers("initContainers", pod.Spec.InitContainers); err != nil {
		return nil, err
	}
	if err := r.containers("containers", pod.Spec.Containers); err != nil {
		return nil, err
	}
	if !r.vgpus {
		return nil, nil
	}
	return r.finish()
}

// takes reports whether pods for a scheduler are ours to handle.
func (c Config) takes(scheduler string) bool {
	return scheduler == "" || scheduler == corev1.DefaultSchedulerName || scheduler == c.SchedulerName ||
		slices.Contains(c.AlsoFrom, scheduler)
}

// review is one pod on its way through.
type review struct {
	config Config
	pod    *corev1.Pod
	ops    []Operation
	hide   []string // paths of containers without vGPUs, with their variables
	bare   [][]corev1.EnvVar
	vgpus  bool
}

func (r *review) add(path string, value any) {
	r.ops = append(r.ops, Operation{Op: "add", Path: path, Value: value})
}

func (r *review) containers(field string, containers []corev1.Container) error {
	for i := range containers {
		c := &containers[i]
		path := "/spec/" + field + "/" + strconv.Itoa(i)
		resources, uses, err := complete(c)
		if err != nil {
			return Denial("container " + c.Name + ": " + err.Error())
		}
		if !uses {
			r.hide, r.bare = append(r.hide, path), append(r.bare, c.Env)
			continue
		}
		r.vgpus = true
		if s := c.SecurityContext; s != nil && s.Privileged != nil && *s.Privileged {
			return Denial("container " + c.Name + " is privileged")
		}
		if resources != nil {
			r.add(path+"/resources", resources)
		}
		if err := r.priority(path, c); err != nil {
			return err
		}
	}
	return nil
}

// priority passes the priority resource on to HAMi-core.
func (r *review) priority(path string, c *corev1.Container) error {
	priority, named, err := demand.Amount(c, wire.ResourcePriority)
	if err != nil {
		return Denial("container " + c.Name + ": " + err.Error())
	}
	if named {
		r.setEnv(path, c.Env, wire.EnvTaskPriority, strconv.Itoa(priority))
	}
	return nil
}

func (r *review) setEnv(path string, env []corev1.EnvVar, name, value string) {
	if slices.ContainsFunc(env, func(e corev1.EnvVar) bool { return e.Name == name }) {
		return
	}
	r.add(path+"/env", append(slices.Clone(env), corev1.EnvVar{Name: name, Value: value}))
}

func (r *review) finish() ([]Operation, error) {
	pod := r.pod
	if pod.Spec.NodeName != "" {
		return nil, Denial("pod has node assigned")
	}
	if pod.Spec.SchedulerName != r.config.SchedulerName {
		r.add("/spec/schedulerName", r.config.SchedulerName)
	}
	if r.config.RuntimeClass != "" && pod.Spec.RuntimeClassName == nil {
		r.add("/spec/runtimeClassName", r.config.RuntimeClass)
	}
	if r.config.HideCards {
		for i, path := range r.hide {
			r.setEnv(path, r.bare[i], wire.EnvVisibleDevices, "none")
		}
	}
	return r.ops, nil
}

// complete checks a container's amounts and adds HAMi's defaults: one vGPU if
// only its size is given, and all cores with a whole card. It returns nil
// resources if nothing is to change.
func complete(c *corev1.Container) (*corev1.ResourceRequirements, bool, error) {
	amounts := map[corev1.ResourceName]int{}
	named := map[corev1.ResourceName]bool{}
	for _, name := range []corev1.ResourceName{wire.ResourceCount, wire.ResourceMemory, wire.ResourceMemPercent, wire.ResourceCores} {
		n, ok, err := demand.Amount(c, name)
		if err != nil {
			return nil, false, err
		}
		amounts[name], named[name] = n, ok
	}
	if p := amounts[wire.ResourceMemPercent]; p > 100 {
		return nil, false, fmt.Errorf("%s is %d, want 1 to 100", wire.ResourceMemPercent, p)
	}
	uses := named[wire.ResourceMemory] || named[wire.ResourceMemPercent] || named[wire.ResourceCores]
	if named[wire.ResourceCount] {
		uses = amounts[wire.ResourceCount] > 0
	}
	if !uses {
		return nil, false, nil
	}
	resources := c.Resources.DeepCopy()
	changed := false
	set := func(name corev1.ResourceName, n int64) {
		q := *resource.NewQuantity(n, resource.DecimalSI)
		if resources.Limits == nil {
			resources.Limits = corev1.ResourceList{}
		}
		if resources.Requests == nil {
			resources.Requests = corev1.ResourceList{}
		}
		// The API server wants both alike for extended resources.
		resources.Limits[name], resources.Requests[name] = q, q
		changed = true
	}
	if !named[wire.ResourceCount] {
		set(wire.ResourceCount, 1)
	}
	whole := amounts[wire.ResourceMemPercent] == 100 || amounts[wire.ResourceMemPercent] == 0 && amounts[wire.ResourceMemory] == 0
	if whole && !named[wire.ResourceCores] {
		set(wire.ResourceCores, 100)
	}
	if !changed {
		return nil, true, nil
	}
	return resources, true, nil
}
