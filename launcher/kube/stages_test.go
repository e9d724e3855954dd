package kube

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/firstlight-dev/firstlight/launcher/cluster"
	"github.com/firstlight-dev/firstlight/sharing/wire"
)

// tape writes down what an observer is told.
type tape struct{ lines []string }

func (t *tape) add(format string, args ...any) {
	t.lines = append(t.lines, fmt.Sprintf(format, args...))
}

func (t *tape) Begin(s cluster.Stage, at time.Time) { t.add("%d begin %s", at.Unix(), s) }
func (t *tape) End(s cluster.Stage, at time.Time, attrs map[string]any) {
	t.add("%d end %s %v", at.Unix(), s, attrs)
}
func (t *tape) Place(p cluster.Placement) { t.add("place %s %v", p.Node, p.Devices) }
func (t *tape) Note(n cluster.Note)       { t.add("note %s", n.Reason) }

func second(n int64) time.Time { return time.Unix(n, 0) }

func event(reason, message string) *corev1.Event {
	return &corev1.Event{Reason: reason, Message: message}
}

// TestFollower replays a start as a kubelet reports it.
func TestFollower(t *testing.T) {
	var got tape
	f := newFollower("tools:1", "r/i@sha256:1", &got)
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{}}}
	p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "quota"}}
	f.begin(cluster.StageAdmit, second(0))
	f.admitted(p, second(1))
	f.pod(p, second(2))
	p.Spec.SchedulingGates = nil
	f.pod(p, second(3))
	f.event(event("FailedScheduling", "no card"), second(4))
	f.event(event("FailedScheduling", "no card"), second(5))
	p.Spec.NodeName = "n"
	p.Annotations[wire.Allocated] = "GPU-a,NVIDIA,10240,25:;"
	f.pod(p, second(6))
	f.event(event("Pulling", `Pulling image "tools:1"`), second(7))
	f.event(event("Pulled", `Successfully pulled image "tools:1" in 1s (1s including waiting). Image size: 10 bytes.`), second(8))
	f.event(event("Pulling", `Pulling image "r/i@sha256:1"`), second(9))
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionTrue}}
	f.pod(p, second(10)) // late: it must not move what is known
	f.event(event("Pulled", `Successfully pulled image "r/i@sha256:1" in 1.4s (1.5s including waiting). Image size: 77 bytes.`), second(11))
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	f.pod(p, second(12))
	want := []string{
		"0 begin admit", "1 end admit map[]", "1 begin queue", "3 end queue map[]", "3 begin schedule",
		"note FailedScheduling",
		"6 end schedule map[]", "6 begin sandbox", "place n [{GPU-a  10240 25}]",
		"note Pulling", "7 end sandbox map[]", "7 begin tools",
		"note Pulled", "8 end tools map[imageBytes:10 pullOwnMs:1000 pullWaitMs:0]",
		"note Pulling", "9 begin image",
		"note Pulled", "11 end image map[imageBytes:77 pullOwnMs:1400 pullWaitMs:100]", "11 begin create",
	}
	if diff := cmp.Diff(want, got.lines); diff != "" {
		t.Error(diff)
	}
	if !f.running || f.failure != nil {
		t.Errorf("running is %t, failure %v", f.running, f.failure)
	}
}

// TestFollowerAdopts sees only the end, as after a restart.
func TestFollowerAdopts(t *testing.T) {
	var got tape
	f := newFollower("tools:1", "r/i@sha256:1", &got)
	p := &corev1.Pod{Spec: corev1.PodSpec{NodeName: "n"}}
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	f.pod(p, second(5))
	f.pod(p, second(6))
	all := strings.Join(got.lines, "\n")
	for _, s := range []cluster.Stage{cluster.StageSchedule, cluster.StageSandbox, cluster.StageTools, cluster.StageImage} {
		if strings.Count(all, "end "+string(s)) != 1 {
			t.Errorf("stage %s is not ended once:\n%s", s, all)
		}
	}
	if !f.running {
		t.Error("it does not run")
	}
}

func TestFollowerFails(t *testing.T) {
	for name, tc := range map[string]struct {
		status corev1.PodStatus
		want   cluster.Code
	}{
		"refused by the node": {corev1.PodStatus{Phase: corev1.PodFailed, Reason: "UnexpectedAdmissionError"}, cluster.CodeStartFailed},
		"image name": {corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "InvalidImageName"}},
		}}}, cluster.CodeImage},
		"registry down": {corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "back-off"}},
		}}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFollower("", "i", &tape{})
			f.pod(&corev1.Pod{Status: tc.status}, second(1))
			got := cluster.Code("")
			if f.failure != nil {
				got = f.failure.Code
			}
			if got != tc.want {
				t.Errorf("code is %q, want %q", got, tc.want)
			}
		})
	}
}

func FuzzPullAttrs(f *testing.F) {
	f.Add(`Successfully pulled image "a" in 1.4s (1.5s including waiting). Image size: 77 bytes.`)
	f.Add(`Container image "a" already present on machine`)
	f.Fuzz(func(t *testing.T, message string) {
		attrs := pullAttrs(message)
		for _, key := range []string{"pullOwnMs", "pullWaitMs"} {
			if n, ok := attrs[key].(int64); ok && n < 0 {
				t.Errorf("%s is %d", key, n)
			}
		}
	})
}
