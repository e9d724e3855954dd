package kube

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/firstlight-dev/firstlight/launcher/agentapi"
	"github.com/firstlight-dev/firstlight/launcher/backend"
	"github.com/firstlight-dev/firstlight/launcher/cluster"
	"github.com/firstlight-dev/firstlight/launcher/spec"
	"github.com/firstlight-dev/firstlight/sharing/wire"
)

// Labels and annotations of what this package makes.
const (
	labelManaged    = "app.kubernetes.io/managed-by"
	managedBy       = "firstlight-launcher"
	labelEnv        = "firstlight.dev/environment"
	labelGeneration = "firstlight.dev/generation"
	annotationName  = "firstlight.dev/name"
	// annotationRuntime tells containerd the runtime handler when it pulls the
	// image, which decides the snapshotter. Kubelets do so themselves only with
	// the alpha feature RuntimeClassInImageCriApi. Classes are nearly always
	// named like their handler; where not, containerd ignores it.
	annotationRuntime = "io.containerd.cri.runtime-handler"
)

// How the agent gets into the pod.
const (
	DeliverImageVolume   = "imageVolume"
	DeliverInitContainer = "initContainer"
)

const (
	mainContainer = "main"
	toolsVolume   = "firstlight-tools"
	configVolume  = "firstlight-config"
	shmVolume     = "firstlight-shm"
	configDir     = "/run/firstlight"
	configFile    = "agent.json"
	// secretMode lets the container's user read the configuration even where
	// that is not root: the pod's own network and processes are its boundary.
	secretMode = 0o444
	// gracePeriod is what an app gets to end by itself.
	gracePeriod = 10
)

// rendering is all that a pod is made of.
type rendering struct {
	namespace string
	tools     string // image that holds the agent
	delivery  string
	runtime   string // runtime class of environments without a GPU
	hostPaths []string
}

func objectName(env string, generation int) string { return env + "-g" + strconv.Itoa(generation) }

func meta(namespace string, l *cluster.Launch) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: objectName(l.Env, l.Generation), Namespace: namespace,
		Labels: map[string]string{
			labelManaged: managedBy, labelEnv: l.Env, labelGeneration: strconv.Itoa(l.Generation),
		},
		Annotations: map[string]string{annotationName: l.Name},
	}
}

// secret holds the agent's configuration.
func (r *rendering) secret(l *cluster.Launch) (*corev1.Secret, error) {
	text, err := json.Marshal(l.Agent)
	if err != nil {
		return nil, fmt.Errorf("encode agent configuration: %w", err)
	}
	return &corev1.Secret{
		ObjectMeta: meta(r.namespace, l), Type: corev1.SecretTypeOpaque,
		Data: map[string][]byte{configFile: text},
	}, nil
}

// pod renders a Launch. ask is nil without a GPU.
func (r *rendering) pod(l *cluster.Launch, ask *backend.Ask) (*corev1.Pod, error) {
	p := &corev1.Pod{ObjectMeta: meta(r.namespace, l)}
	p.Spec = corev1.PodSpec{
		Containers:                    []corev1.Container{r.container(l, ask)},
		RestartPolicy:                 corev1.RestartPolicyAlways,
		AutomountServiceAccountToken:  new(bool), // a user's shell needs no say in the cluster
		EnableServiceLinks:            new(bool),
		TerminationGracePeriodSeconds: ptr(int64(gracePeriod)),
	}
	if l.Spec.OnExit == spec.OnExitExit {
		p.Spec.RestartPolicy = corev1.RestartPolicyNever
	}
	if r.runtime != "" {
		p.Spec.RuntimeClassName = &r.runtime
		p.Annotations[annotationRuntime] = r.runtime
	}
	r.deliver(p)
	if err := r.volumes(p, &l.Spec); err != nil {
		return nil, err
	}
	if ask != nil {
		apply(p, ask)
	}
	return p, nil
}

func ptr[T any](v T) *T { return &v }

func (r *rendering) container(l *cluster.Launch, ask *backend.Ask) corev1.Container {
	s := &l.Spec
	limits := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse(s.CPU), corev1.ResourceMemory: resource.MustParse(s.Memory),
	}
	requests := maps.Clone(limits)
	if ask != nil {
		maps.Copy(limits, ask.Limits)
	}
	c := corev1.Container{
		Name: mainContainer, Image: l.Image.Pinned, ImagePullPolicy: corev1.PullIfNotPresent,
		Command:   append([]string{agentapi.BinaryPath, "run", "--config", agentapi.ConfigPath, "--"}, l.App()...),
		Resources: corev1.ResourceRequirements{Limits: limits, Requests: requests},
		Ports: []corev1.ContainerPort{
			{Name: "ssh", ContainerPort: agentapi.SSHPort}, {Name: "status", ContainerPort: agentapi.StatusPort},
		},
	}
	for _, v := range s.Env {
		c.Env = append(c.Env, corev1.EnvVar{Name: v.Name, Value: v.Value})
	}
	if ask == nil {
		// CUDA base images ask for every card of the node by this variable.
		c.Env = append(c.Env, corev1.EnvVar{Name: wire.EnvVisibleDevices, Value: "void"})
	}
	return c
}

// deliver brings the agent and its configuration into the pod.
func (r *rendering) deliver(p *corev1.Pod) {
	tools := corev1.Volume{Name: toolsVolume}
	mount := corev1.VolumeMount{Name: toolsVolume, MountPath: agentapi.InjectedDir, ReadOnly: true}
	if r.delivery == DeliverInitContainer {
		tools.EmptyDir = &corev1.EmptyDirVolumeSource{}
		p.Spec.InitContainers = []corev1.Container{{
			Name: "tools", Image: r.tools, ImagePullPolicy: corev1.PullIfNotPresent,
			Command:      []string{"/bin/firstlight-agent", "install", agentapi.InjectedDir},
			VolumeMounts: []corev1.VolumeMount{{Name: toolsVolume, MountPath: agentapi.InjectedDir}},
		}}
	} else {
		tools.Image = &corev1.ImageVolumeSource{Reference: r.tools, PullPolicy: corev1.PullIfNotPresent}
	}
	secret := corev1.Volume{Name: configVolume}
	secret.Secret = &corev1.SecretVolumeSource{SecretName: p.Name, DefaultMode: ptr(int32(secretMode))}
	p.Spec.Volumes = append(p.Spec.Volumes, tools, secret)
	c := &p.Spec.Containers[0]
	c.VolumeMounts = append(c.VolumeMounts, mount,
		corev1.VolumeMount{Name: configVolume, MountPath: configDir, ReadOnly: true})
}

func (r *rendering) volumes(p *corev1.Pod, s *spec.Spec) error {
	c := &p.Spec.Containers[0]
	if s.Shm != "" {
		size := resource.MustParse(s.Shm)
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: shmVolume, VolumeSource: corev1.VolumeSource{
			EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory, SizeLimit: &size},
		}})
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: shmVolume, MountPath: "/dev/shm"})
	}
	for _, v := range s.Volumes {
		out := corev1.Volume{Name: "user-" + v.Name}
		switch {
		case v.Claim != "":
			out.PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{ClaimName: v.Claim, ReadOnly: v.ReadOnly}
		case allowed(r.hostPaths, v.HostPath):
			out.HostPath = &corev1.HostPathVolumeSource{Path: v.HostPath, Type: ptr(corev1.HostPathDirectory)}
		default:
			return cluster.Fail(cluster.CodeUnsupported, "volumes: host path %s is not among those this cluster allows", v.HostPath)
		}
		p.Spec.Volumes = append(p.Spec.Volumes, out)
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: out.Name, MountPath: v.MountPath, ReadOnly: v.ReadOnly})
	}
	return nil
}

// allowed reports whether a clean path is one of the folders or below one.
func allowed(folders []string, path string) bool {
	return slices.ContainsFunc(folders, func(f string) bool {
		return path == f || (len(path) > len(f) && path[:len(f)] == f && path[len(f)] == '/')
	})
}

// apply adds what the backend asks for.
func apply(p *corev1.Pod, ask *backend.Ask) {
	maps.Copy(p.Annotations, ask.Annotations)
	p.Spec.SchedulerName = ask.SchedulerName
	if ask.RuntimeClass != "" {
		p.Spec.RuntimeClassName = &ask.RuntimeClass
	}
	if len(ask.Node) == 0 {
		return
	}
	var conditions []corev1.NodeSelectorRequirement
	for _, key := range slices.Sorted(maps.Keys(ask.Node)) {
		conditions = append(conditions, corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: ask.Node[key]})
	}
	p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: conditions}},
		},
	}}
}
