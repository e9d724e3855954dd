package local

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/oci"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/firstlight-dev/firstlight/launcher/agentapi"
	"github.com/firstlight-dev/firstlight/launcher/cluster"
	"github.com/firstlight-dev/firstlight/sharing/wire"
)

const (
	// cpuPeriod is the kernel's default scheduling period in microseconds.
	cpuPeriod = 100_000
	// sharesPerCPU is the weight of one CPU, as Kubernetes counts.
	sharesPerCPU = 1024
	minShares    = 2 // the kernel's least
	minQuota     = 1000

	// vgpuDir is where HAMi-core's shared region lies in an environment.
	vgpuDir = "/usr/local/vgpu/run"
)

// specOptions say how the container differs from containerd's default: the
// image's own settings, the agent in front of its command, the shares of cards.
func (c *Cluster) specOptions(l *cluster.Launch, devices wire.PodDevices, image containerd.Image) []oci.SpecOpts {
	command := append([]string{agentapi.BinaryPath, "run", "--config", agentapi.ConfigPath, "--"}, l.App()...)
	opts := []oci.SpecOpts{
		// The image may have neither entrypoint nor command, which containerd
		// refuses unless it is given arguments.
		oci.WithImageConfigArgs(image, []string{agentapi.BinaryPath}),
		oci.WithProcessArgs(command...),
		oci.WithHostname(l.Env),
		oci.WithEnv(environment(l, devices)),
		oci.WithMounts(c.mounts(l, devices)),
		oci.WithLinuxNamespace(specs.LinuxNamespace{Type: specs.NetworkNamespace, Path: ownNetwork()}),
		oci.WithMemoryLimit(uint64(l.Spec.MemoryBytes())),
		oci.WithCPUCFS(max(l.Spec.CPUMillis()*cpuPeriod/1000, minQuota), cpuPeriod),
		oci.WithCPUShares(max(uint64(l.Spec.CPUMillis())*sharesPerCPU/1000, minShares)),
		// A development environment is no service: sudo must work, as in a pod.
		oci.WithNewPrivileges,
		withoutLimits,
		seccomp.WithDefaultProfile(),
	}
	if shm := l.Spec.ShmBytes(); shm > 0 {
		opts = append(opts, oci.WithDevShmSize(shm/1024))
	}
	return opts
}

// withoutLimits leaves out containerd's default of 1024 open files, so that the
// limits of containerd's own service hold; raising them would need a capability
// that not every machine gives to root.
func withoutLimits(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
	s.Process.Rlimits = nil
	return nil
}

// environment returns what is set beside the image's own variables. The last
// of a name counts, so that nothing replaces a limit.
func environment(l *cluster.Launch, devices wire.PodDevices) []string {
	vars := make([]string, 0, len(l.Spec.Env)+8)
	for _, v := range l.Spec.Env {
		vars = append(vars, v.Name+"="+v.Value)
	}
	return append(vars, deviceEnv(devices)...)
}

// deviceEnv returns what HAMi-core and NVIDIA's container runtime read.
func deviceEnv(devices wire.PodDevices) []string {
	if devices.Empty() {
		// CUDA base images carry "all".
		return []string{wire.EnvVisibleDevices + "=void"}
	}
	var vars []string
	visible, cores := "", 0
	i := 0
	for _, container := range devices {
		for _, d := range container {
			if i > 0 {
				visible += ","
			}
			visible += d.Card()
			vars = append(vars, fmt.Sprintf("%s=%dm", wire.MemoryLimitEnv(i), d.MemMiB))
			cores = d.Cores
			i++
		}
	}
	return append(vars,
		wire.EnvVisibleDevices+"="+visible,
		fmt.Sprintf("%s=%d", wire.EnvCoreLimit, cores),
		wire.EnvSharedCache+"="+filepath.Join(vgpuDir, "share.cache"),
	)
}

func (c *Cluster) mounts(l *cluster.Launch, devices wire.PodDevices) []specs.Mount {
	bind := func(from, to string, mode ...string) specs.Mount {
		return specs.Mount{Type: "bind", Source: from, Destination: to, Options: append([]string{"rbind", "nosuid", "nodev"}, mode...)}
	}
	mounts := []specs.Mount{
		bind(c.cfg.Agent, agentapi.BinaryPath, "ro"),
		bind(filepath.Join(c.dir(l.Env), configName), agentapi.ConfigPath, "ro"),
	}
	for _, shared := range []string{"/etc/resolv.conf", "/etc/hosts"} { // the network is the machine's
		if _, err := os.Stat(shared); err == nil {
			mounts = append(mounts, bind(shared, shared, "ro"))
		}
	}
	if !devices.Empty() {
		mounts = append(mounts, bind(filepath.Join(c.dir(l.Env), vgpuName), vgpuDir, "rw"))
	}
	for _, v := range l.Spec.Volumes {
		mode := "rw"
		if v.ReadOnly {
			mode = "ro"
		}
		mounts = append(mounts, bind(v.HostPath, v.MountPath, mode))
	}
	return mounts
}

// ownNetwork names this process's network namespace. It is joined when the task
// is created, so the name need not outlive this process.
func ownNetwork() string { return fmt.Sprintf("/proc/%d/ns/net", os.Getpid()) }

// renewNetwork replaces the namespace of a launcher that is gone by this one's.
func (c *Cluster) renewNetwork(ctx context.Context, container containerd.Container) error {
	spec, err := container.Spec(ctx)
	if err != nil {
		return err
	}
	for i := range spec.Linux.Namespaces {
		if spec.Linux.Namespaces[i].Type == specs.NetworkNamespace {
			spec.Linux.Namespaces[i].Path = ownNetwork()
		}
	}
	return container.Update(ctx, containerd.UpdateContainerOpts(containerd.WithSpec(spec)))
}
