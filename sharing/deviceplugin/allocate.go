package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	kubelet "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/firstlight-dev/firstlight/sharing/wire"
)

// Allocate serves the containers of a call: the next ones of the pending pod.
// An error fails the pod, so the pod is marked and the lock given back.
func (s *service) Allocate(ctx context.Context, req *kubelet.AllocateRequest) (*kubelet.AllocateResponse, error) {
	p := s.plugin
	p.allocating.Lock()
	defer p.allocating.Unlock()
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	if len(req.ContainerRequests) == 0 {
		return &kubelet.AllocateResponse{}, nil
	}
	w, err := p.findPending(ctx, len(req.ContainerRequests[0].DevicesIds))
	if err != nil {
		p.cfg.Log.ErrorContext(ctx, "devices not allocated", "error", err)
		return nil, err
	}
	response, err := p.serve(ctx, w, req)
	name := w.pod.Namespace + "/" + w.pod.Name
	if err != nil {
		err = fmt.Errorf("allocate devices of pod %s: %w", name, err)
		err = errors.Join(err, p.fail(ctx, w.pod))
		p.cfg.Log.ErrorContext(ctx, "devices not allocated", "error", err)
		return nil, err
	}
	return response, nil
}

// serve answers a call and records what is left.
func (p *Plugin) serve(ctx context.Context, w *pending, req *kubelet.AllocateRequest) (*kubelet.AllocateResponse, error) {
	response := &kubelet.AllocateResponse{}
	left := w.left
	for _, r := range req.ContainerRequests {
		i, devices, err := (&pending{pod: w.pod, left: left}).next()
		if err != nil {
			return nil, err
		}
		if len(devices) != len(r.DevicesIds) {
			return nil, fmt.Errorf("device number not matched: container %d has %d, the kubelet wants %d", i, len(devices), len(r.DevicesIds))
		}
		container, err := w.container(i)
		if err != nil {
			return nil, err
		}
		answer, err := p.outfit(w.pod, container, devices)
		if err != nil {
			return nil, err
		}
		if !sameCards(devices, r.DevicesIds) {
			// The scheduler's choice counts; the kubelet's is only a number of
			// slots to us.
			p.cfg.Log.DebugContext(ctx, "kubelet chose slots of other cards", "pod", w.pod.Namespace+"/"+w.pod.Name, "container", container.Name)
		}
		response.ContainerResponses = append(response.ContainerResponses, answer)
		left = left.Without(i)
	}
	if err := p.record(ctx, w, left); err != nil {
		return nil, err
	}
	if left.Empty() {
		if err := p.unlock(ctx, w.pod); err != nil {
			// The pod has its devices; the scheduler frees locks of pods in
			// phase success.
			p.cfg.Log.WarnContext(ctx, "lock stays for the scheduler to remove", "node", p.cfg.Node, "error", err)
		}
		p.cfg.Log.InfoContext(ctx, "devices allocated", "pod", w.pod.Namespace+"/"+w.pod.Name)
	}
	return response, nil
}

// fail marks a pod that did not get its devices and gives its lock back.
func (p *Plugin) fail(ctx context.Context, pod *corev1.Pod) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTime)
	defer cancel()
	return errors.Join(
		p.patchPod(ctx, pod, map[string]string{wire.BindPhase: string(wire.PhaseFailed)}),
		p.unlock(ctx, pod),
	)
}

func sameCards(devices wire.ContainerDevices, ids []string) bool {
	want := map[string]int{}
	for _, d := range devices {
		want[d.Card()]++
	}
	for _, id := range ids {
		card, err := wire.ReplicaCard(id)
		if err != nil || want[card] == 0 {
			return false
		}
		want[card]--
	}
	return true
}

// outfit is what a container gets: variables, and HAMi-core if the host has it.
func (p *Plugin) outfit(pod *corev1.Pod, c *corev1.Container, devices wire.ContainerDevices) (*kubelet.ContainerAllocateResponse, error) {
	hook := filepath.Join(p.cfg.HookPath, "vgpu")
	env := map[string]string{
		wire.EnvCoreLimit:   strconv.Itoa(devices[0].Cores),
		wire.EnvSharedCache: filepath.Join(hook, uuid.NewString()+".cache"),
		wire.EnvLogLevel:    p.cfg.LogLevel,
	}
	uuids := make([]string, len(devices))
	for i, d := range devices {
		uuids[i] = d.UUID
		env[wire.MemoryLimitEnv(i)] = strconv.Itoa(d.MemMiB) + "m"
	}
	env[wire.EnvVisibleDevices] = strings.Join(uuids, ",")
	answer := &kubelet.ContainerAllocateResponse{Envs: env}
	library, preload := filepath.Join(hook, "libvgpu.so"), filepath.Join(hook, "ld.so.preload")
	if !isFile(library) || !isFile(preload) {
		return answer, nil // nothing enforces the limits here
	}
	own := filepath.Join(p.ContainersDir(), string(pod.UID)+"_"+c.Name)
	for _, dir := range []string{own, p.cfg.LockDir} {
		if err := openDir(dir); err != nil {
			return nil, err
		}
	}
	answer.Mounts = []*kubelet.Mount{
		{ContainerPath: hook, HostPath: own},
		{ContainerPath: filepath.Join(hook, "libvgpu.so"), HostPath: library, ReadOnly: true},
		{ContainerPath: "/tmp/vgpulock", HostPath: p.cfg.LockDir},
	}
	if !controlDisabled(c) {
		answer.Mounts = append(answer.Mounts, &kubelet.Mount{ContainerPath: "/etc/ld.so.preload", HostPath: preload, ReadOnly: true})
	}
	return answer, nil
}

// ContainersDir is the folder with one folder per container that HAMi-core
// limits: "<pod UID>_<container>".
func (p *Plugin) ContainersDir() string { return filepath.Join(p.cfg.HookPath, "vgpu", "containers") }

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// openDir makes a folder that any user in a container can write. What is in it
// stays: a container that runs may have its region there.
func openDir(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make folder for the container: %w", err)
	}
	if err := os.Chmod(dir, 0o777); err != nil { //nolint:gosec // containers run as any user
		return fmt.Errorf("open folder for the container: %w", err)
	}
	return nil
}

func controlDisabled(c *corev1.Container) bool {
	for _, e := range c.Env {
		if e.Name == wire.EnvDisableControl {
			return e.Value == "true"
		}
	}
	return false
}

// GetPreferredAllocation steers the kubelet to slots of the cards that the
// scheduler chose, so that its own record agrees. If the pod can't be told, any
// slots do: Allocate decides.
func (s *service) GetPreferredAllocation(ctx context.Context, req *kubelet.PreferredAllocationRequest) (*kubelet.PreferredAllocationResponse, error) {
	p := s.plugin
	p.allocating.Lock()
	defer p.allocating.Unlock()
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	response := &kubelet.PreferredAllocationResponse{}
	var left wire.PodDevices
	if len(req.ContainerRequests) > 0 {
		w, err := p.findPending(ctx, int(req.ContainerRequests[0].AllocationSize))
		if err != nil {
			p.cfg.Log.DebugContext(ctx, "no preference for slots", "error", err)
		} else {
			left = w.left
		}
	}
	for _, r := range req.ContainerRequests {
		var devices wire.ContainerDevices
		if i, err := left.Next(); err == nil {
			devices = left[i]
			left = left.Without(i)
		}
		response.ContainerResponses = append(response.ContainerResponses, &kubelet.ContainerPreferredAllocationResponse{
			DeviceIDs: prefer(r, devices),
		})
	}
	return response, nil
}

// prefer picks the slots that must be in, then one of each wanted card, then any.
func prefer(r *kubelet.ContainerPreferredAllocationRequest, devices wire.ContainerDevices) []string {
	size := int(r.AllocationSize)
	chosen := append([]string(nil), r.MustIncludeDeviceIDs...)
	taken := make(map[string]bool, len(r.AvailableDeviceIDs))
	want := map[string]int{}
	for _, d := range devices {
		want[d.Card()]++
	}
	for _, id := range chosen {
		taken[id] = true
		if card, err := wire.ReplicaCard(id); err == nil {
			want[card]--
		}
	}
	for _, wanted := range []bool{true, false} {
		for _, id := range r.AvailableDeviceIDs {
			card, err := wire.ReplicaCard(id)
			if len(chosen) >= size || taken[id] || err != nil || wanted && want[card] <= 0 {
				continue
			}
			want[card]--
			taken[id] = true
			chosen = append(chosen, id)
		}
	}
	return chosen
}
