package kube

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/firstlight-dev/firstlight/launcher/cluster"
	"github.com/firstlight-dev/firstlight/sharing/wire"
)

// follower turns what is seen of one pod into stages. It is a state machine
// without a clock: every input carries the moment it was received. Its owner
// serialises the calls.
type follower struct {
	tools    string // image of the agent
	image    string // the environment's image, pinned
	observer cluster.Observer

	begun, ended map[cluster.Stage]bool
	noted        map[string]bool // events passed on, by reason and message
	placed       bool

	running bool           // the container runs
	failure *cluster.Error // it never will
}

func newFollower(tools, image string, o cluster.Observer) *follower {
	return &follower{
		tools: tools, image: image, observer: o,
		begun: map[cluster.Stage]bool{}, ended: map[cluster.Stage]bool{}, noted: map[string]bool{},
	}
}

func (f *follower) begin(s cluster.Stage, at time.Time) {
	if !f.begun[s] {
		f.begun[s] = true
		f.observer.Begin(s, at)
	}
}

// end closes a stage, and opens it first if nothing else has.
func (f *follower) end(s cluster.Stage, at time.Time, attrs map[string]any) {
	f.begin(s, at)
	if !f.ended[s] {
		f.ended[s] = true
		f.observer.End(s, at, attrs)
	}
}

// admitted says that the API server has taken the pod.
func (f *follower) admitted(p *corev1.Pod, at time.Time) {
	f.end(cluster.StageAdmit, at, nil)
	if len(p.Spec.SchedulingGates) > 0 {
		f.begin(cluster.StageQueue, at)
	} else {
		f.begin(cluster.StageSchedule, at)
	}
}

// pod is told each new state of the pod.
func (f *follower) pod(p *corev1.Pod, at time.Time) {
	if f.begun[cluster.StageQueue] && len(p.Spec.SchedulingGates) == 0 {
		f.end(cluster.StageQueue, at, nil)
		f.begin(cluster.StageSchedule, at)
	}
	if p.Spec.NodeName != "" {
		f.scheduled(p, at)
	}
	if condition(p, corev1.PodReadyToStartContainers) {
		f.sandboxed(at)
	}
	for i := range p.Status.InitContainerStatuses {
		if t := p.Status.InitContainerStatuses[i].State.Terminated; t != nil && t.ExitCode == 0 {
			f.toolsThere(at, map[string]any{"delivery": DeliverInitContainer})
		}
	}
	for i := range p.Status.ContainerStatuses {
		f.container(&p.Status.ContainerStatuses[i], at)
	}
	if p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded {
		f.failure = cluster.Fail(cluster.CodeStartFailed, "the pod ended as %s: %s", p.Status.Phase,
			strings.TrimSpace(p.Status.Reason+" "+p.Status.Message))
	}
}

func condition(p *corev1.Pod, kind corev1.PodConditionType) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == kind {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func (f *follower) scheduled(p *corev1.Pod, at time.Time) {
	f.end(cluster.StageSchedule, at, nil)
	f.begin(cluster.StageSandbox, at)
	if !f.placed {
		f.placed = true
		f.observer.Place(placement(p))
	}
}

// placement reads where the scheduler put a pod, and on which cards.
func placement(p *corev1.Pod) cluster.Placement {
	out := cluster.Placement{Node: p.Spec.NodeName}
	// An annotation that cannot be read leaves the devices unknown.
	containers, err := wire.DecodePodDevices(p.Annotations[wire.Allocated])
	if err != nil {
		return out
	}
	for _, devices := range containers {
		for _, d := range devices {
			out.Devices = append(out.Devices, cluster.Device{UUID: d.Card(), MemoryMiB: d.MemMiB, Cores: d.Cores})
		}
	}
	return out
}

func (f *follower) sandboxed(at time.Time) {
	if f.ended[cluster.StageSandbox] {
		return
	}
	f.end(cluster.StageSandbox, at, nil)
	f.begin(cluster.StageTools, at)
}

func (f *follower) toolsThere(at time.Time, attrs map[string]any) {
	f.sandboxed(at)
	f.end(cluster.StageTools, at, attrs)
}

func (f *follower) imageBegins(at time.Time) {
	f.toolsThere(at, nil)
	f.begin(cluster.StageImage, at)
}

func (f *follower) imageThere(at time.Time, attrs map[string]any) {
	f.imageBegins(at)
	f.end(cluster.StageImage, at, attrs)
	f.begin(cluster.StageCreate, at)
}

// fatal are reasons to wait that waiting does not cure.
var fatal = map[string]bool{"InvalidImageName": true, "ErrImageNeverPull": true}

func (f *follower) container(s *corev1.ContainerStatus, at time.Time) {
	switch {
	case s.State.Running != nil:
		f.imageThere(at, nil)
		f.running = true
	case s.State.Waiting != nil && fatal[s.State.Waiting.Reason]:
		f.failure = cluster.Fail(cluster.CodeImage, "%s: %s", s.State.Waiting.Reason, s.State.Waiting.Message)
	case s.State.Waiting != nil && s.State.Waiting.Message != "":
		f.note(cluster.Note{At: at, Warning: true, Source: "kubelet", Reason: s.State.Waiting.Reason, Message: s.State.Waiting.Message})
	}
}

// note passes on what is new.
func (f *follower) note(n cluster.Note) {
	key := n.Reason + "\x00" + n.Message
	if f.noted[key] || len(f.noted) >= maxNotes {
		return
	}
	f.noted[key] = true
	f.observer.Note(n)
}

// maxNotes bounds what one start says: a pod that waits for weeks repeats
// itself, but counters in the text can make each time look new.
const maxNotes = 500

// event is told each event about the pod.
func (f *follower) event(e *corev1.Event, at time.Time) {
	f.note(noteOf(e, at))
	switch e.Reason {
	case "Pulling":
		if f.isTools(e.Message) {
			f.sandboxed(at)
			f.begin(cluster.StageTools, at)
		} else if strings.Contains(e.Message, f.image) {
			f.imageBegins(at)
		}
	case "Pulled":
		attrs := pullAttrs(e.Message)
		if f.isTools(e.Message) {
			f.toolsThere(at, attrs)
		} else if strings.Contains(e.Message, f.image) {
			f.imageThere(at, attrs)
		}
	}
}

// isTools is careful: the environment's image may have the tools' name within
// its own.
func (f *follower) isTools(message string) bool {
	return f.tools != "" && strings.Contains(message, `"`+f.tools+`"`)
}

func noteOf(e *corev1.Event, at time.Time) cluster.Note {
	source := e.Source.Component
	if source == "" {
		source = e.ReportingController
	}
	return cluster.Note{At: at, Warning: e.Type == corev1.EventTypeWarning, Source: source, Reason: e.Reason, Message: e.Message}
}

// pulled matches the kubelet's report: its own time, the time with waiting for
// other pulls, and the size where it knows it.
var pulled = regexp.MustCompile(`in (\S+) \((\S+) including waiting\)(?:\. Image size: (\d+) bytes)?`)

// pullAttrs reads figures from a Pulled event. Text it does not know yields
// none: figures are a hint, the stage is what was seen.
func pullAttrs(message string) map[string]any {
	if strings.Contains(message, "already present") {
		return map[string]any{"present": true}
	}
	m := pulled.FindStringSubmatch(message)
	if m == nil {
		return nil
	}
	own, err1 := time.ParseDuration(m[1])
	all, err2 := time.ParseDuration(m[2])
	if err1 != nil || err2 != nil || own < 0 || all < own {
		return nil
	}
	attrs := map[string]any{"pullOwnMs": own.Milliseconds(), "pullWaitMs": (all - own).Milliseconds()}
	var size int64
	if _, err := fmt.Sscan(m[3], &size); err == nil {
		attrs["imageBytes"] = size
	}
	return attrs
}
