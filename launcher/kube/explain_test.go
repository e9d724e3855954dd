package kube

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/firstlight-dev/firstlight/launcher/cluster"
	"github.com/firstlight-dev/firstlight/launcher/spec"
	"github.com/firstlight-dev/firstlight/sharing/wire"
)

// twoCards is a node with two A100-40GB.
func twoCards(t *testing.T) corev1.Node {
	t.Helper()
	card := wire.Device{Slots: 10, MemMiB: 40960, Cores: 100, Type: "NVIDIA A100-SXM4-40GB", Mode: wire.ModeCore, Healthy: true}
	a, b := card, card
	a.UUID, b.UUID, b.Index = "GPU-a", "GPU-b", 1
	text, err := wire.EncodeDevices([]wire.Device{a, b})
	if err != nil {
		t.Fatal(err)
	}
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Annotations: map[string]string{wire.NodeRegister: text}}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	return n
}

func holder(env, devices string) corev1.Pod {
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Labels: map[string]string{labelEnv: env}, Annotations: map[string]string{wire.Allocated: devices, wire.AssignedNode: "n1"},
	}}
	p.Spec.Containers = make([]corev1.Container, 1)
	return p
}

func share(memory, cores int) *cluster.Need {
	return &cluster.Need{Env: "me", Spec: spec.Spec{GPU: &spec.GPU{Count: 1, Share: &spec.Share{MemoryMiB: memory, Cores: cores}}}}
}

func TestJudge(t *testing.T) {
	busy := []corev1.Pod{holder("one", "GPU-a,NVIDIA,15000,30:;"), holder("two", "GPU-a,NVIDIA,15000,30:;"), holder("three", "GPU-b,NVIDIA,15000,30:;")}
	for name, tc := range map[string]struct {
		need    *cluster.Need
		pods    []corev1.Pod
		change  func(n *corev1.Node)
		verdict cluster.Verdict
		reasons [2]string // of the two cards
		text    string    // part of summary, ideas and node reasons
	}{
		"empty":        {need: share(40960, 100), verdict: cluster.VerdictFitsNow},
		"shared":       {need: share(20000, 30), pods: busy, verdict: cluster.VerdictFitsNow, reasons: [2]string{"CardInsufficientMemory", ""}},
		"after others": {need: share(30000, 30), pods: busy, verdict: cluster.VerdictFitsAfterRelease, reasons: [2]string{"CardInsufficientMemory", "CardInsufficientMemory"}, text: "if environment three is removed"},
		"never": {
			need: share(45000, 30), pods: busy, verdict: cluster.VerdictFitsNever,
			reasons: [2]string{"CardInsufficientMemory", "CardInsufficientMemory"}, text: "with at most 25960 MiB",
		},
		"never though the sum would do": {need: share(45000, 30), verdict: cluster.VerdictFitsNever, reasons: [2]string{"CardInsufficientMemory", "CardInsufficientMemory"}, text: "81920 MiB, but a share comes from one card"},
		"own share does not count":      {need: share(40000, 30), pods: []corev1.Pod{holder("me", "GPU-a,NVIDIA,40000,30:;"), holder("x", "GPU-b,NVIDIA,9000,1:;")}, verdict: cluster.VerdictFitsNow, reasons: [2]string{"", "CardInsufficientMemory"}},
		"another model":                 {need: &cluster.Need{Spec: spec.Spec{GPU: &spec.GPU{Model: "H100", Count: 1, Whole: true}}}, verdict: cluster.VerdictFitsNever, reasons: [2]string{"CardTypeMismatch", "CardTypeMismatch"}},
		"too many":                      {need: &cluster.Need{Spec: spec.Spec{GPU: &spec.GPU{Count: 3, Whole: true}}}, verdict: cluster.VerdictFitsNever, text: "2 of its 2 cards fit, 3 needed"},
		"finished pods hold nothing": {need: share(40960, 100), pods: func() []corev1.Pod {
			p := holder("x", "GPU-a,NVIDIA,40960,100:;")
			p.Status.Phase = corev1.PodSucceeded
			return []corev1.Pod{p}
		}(), verdict: cluster.VerdictFitsNow},
		"cordoned": {need: share(1000, 0), change: func(n *corev1.Node) { n.Annotations[wire.NodeCordon] = "GPU-a,GPU-b" }, verdict: cluster.VerdictFitsNever, reasons: [2]string{"CardCordoned", "CardCordoned"}},
		"tainted": {need: share(1000, 0), change: func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoSchedule}}
		}, verdict: cluster.VerdictFitsAfterRelease, text: "taint k"},
		"unreadable pod": {need: share(1000, 0), pods: []corev1.Pod{holder("x", "nonsense;")}, verdict: cluster.VerdictUnknown, text: "cannot be read"},
	} {
		t.Run(name, func(t *testing.T) {
			n := twoCards(t)
			if tc.change != nil {
				tc.change(&n)
			}
			x := judge(gather([]corev1.Node{n}, tc.pods), tc.need)
			if x.Verdict != tc.verdict {
				t.Errorf("verdict is %s, want %s: %+v", x.Verdict, tc.verdict, x)
			}
			text := x.Summary + strings.Join(x.WouldFitIf, ";")
			for _, r := range x.Nodes[0].Reasons {
				text += r.Message
			}
			if !strings.Contains(text, tc.text) {
				t.Errorf("%q does not say %q", text, tc.text)
			}
			for i, d := range x.Nodes[0].Devices {
				var codes []string
				for _, r := range d.Reasons {
					codes = append(codes, r.Code)
				}
				if got := strings.Join(codes, ","); got != tc.reasons[i] || d.Fits != (got == "") {
					t.Errorf("card %s lacks %q, want %q", d.UUID, got, tc.reasons[i])
				}
			}
		})
	}
}

func TestUnreadableNode(t *testing.T) {
	n := twoCards(t)
	n.Annotations[wire.NodeRegister] = "{"
	x := judge(gather([]corev1.Node{n}, nil), share(1, 0))
	if x.Verdict != cluster.VerdictUnknown || len(x.Nodes[0].Reasons) == 0 {
		t.Errorf("%+v", x)
	}
}
