package scheduler_test

import (
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	extender "k8s.io/kube-scheduler/extender/v1"

	"github.com/firstlight-dev/firstlight/sharing/scheduler"
	"github.com/firstlight-dev/firstlight/sharing/wire"
)

func TestFilterAndBind(t *testing.T) {
	c := newCluster(t, node("n1", nil), node("n2", func(n *corev1.Node) { n.Annotations = nil }))
	pod := c.create("dev", share("15000"), nil)
	result := c.filter(pod, "n1", "n2")
	if result.NodeNames == nil || len(*result.NodeNames) != 1 || (*result.NodeNames)[0] != "n1" || result.Error != "" {
		t.Fatalf("filter = %+v", result)
	}
	c.usedIs(15000)
	if _, written := c.get("dev").Annotations[wire.Allocated]; written {
		t.Error("Filter wrote the allocation before the bind")
	}
	if text := c.bindTo(pod, "n1"); text != "" {
		t.Fatal(text)
	}
	bound := c.get("dev")
	devices, err := wire.DecodePodDevices(bound.Annotations[wire.Allocated])
	if err != nil || len(devices) != 1 || len(devices[0]) != 1 || devices[0][0].MemMiB != 15000 || devices[0][0].Cores != 30 {
		t.Fatalf("allocation = %+v, %v", devices, err)
	}
	for key, want := range map[string]string{
		wire.ToAllocate: bound.Annotations[wire.Allocated], wire.BindPhase: string(wire.PhaseAllocating), wire.AssignedNode: "n1",
	} {
		if got := bound.Annotations[key]; got != want {
			t.Errorf("%s = %q, want %q", key, got, want)
		}
	}
	if bound.Labels[wire.AssignedNode] != "n1" || bound.Annotations[wire.BindTime] == "" || bound.Annotations[wire.AssignedTime] == "" {
		t.Errorf("labels %v, annotations %v", bound.Labels, bound.Annotations)
	}
	lock, err := wire.ParseNodeLock(c.lock("n1"))
	if err != nil || !lock.HeldBy("team", "dev") {
		t.Errorf("lock = %q, %v", c.lock("n1"), err)
	}
	c.usedIs(15000)
	c.delete("dev")
	c.usedIs(0)
}

func TestFilterRefusesWithNumbers(t *testing.T) {
	c := newCluster(t, node("n1", nil))
	c.place(c.create("small", share("15000"), nil), "n1")
	result := c.filter(c.create("big", share("45000"), nil), "n1", "n9")
	if result.NodeNames != nil {
		t.Fatalf("filter = %+v", result)
	}
	for _, want := range []string{"2/2 CardInsufficientMemory", "0000 needs 45000 MiB, free 25960 of 40960", "0001 needs 45000 MiB, free 40960 of 40960"} {
		if !strings.Contains(result.FailedNodes["n1"], want) {
			t.Errorf("n1 fails with %q, want %q", result.FailedNodes["n1"], want)
		}
	}
	if got := result.FailedNodes["n9"]; got != "node unregistered" {
		t.Errorf("n9 fails with %q", got)
	}
	for event := range c.events.Events {
		if !strings.Contains(event, "FilteringFailed") {
			continue
		}
		if !strings.Contains(event, "n1: 2/2 CardInsufficientMemory (GPU-") || !strings.Contains(event, "2 nodes do not meet") {
			t.Errorf("event = %s", event)
		}
		break
	}
}

func TestFilterPassesPlainPods(t *testing.T) {
	c := newCluster(t)
	if result := c.filter(c.create("plain", nil, nil), "n1", "n2"); result.NodeNames == nil || len(*result.NodeNames) != 2 {
		t.Errorf("filter = %+v", result)
	}
	result := c.filter(c.create("wrong", map[corev1.ResourceName]string{wire.ResourceCount: "1", wire.ResourceMemory: "15Gi"}, nil), "n1")
	if !strings.Contains(result.FailedAndUnresolvableNodes["n1"], "whole number") {
		t.Errorf("filter = %+v", result)
	}
}

func TestWhatIfReservesNothing(t *testing.T) {
	c := newCluster(t, node("n1", nil))
	pod := c.create("dev", share("15000"), nil)
	var result extender.ExtenderFilterResult
	c.post("/filter", extender.ExtenderArgs{Pod: pod, Nodes: &corev1.NodeList{Items: []corev1.Node{*node("n1", nil), *node("n2", nil)}}}, &result)
	if result.Nodes == nil || len(result.Nodes.Items) != 1 || result.FailedNodes["n2"] == "" {
		t.Errorf("filter = %+v", result)
	}
	c.usedIs(0)
}

func TestNodePolicies(t *testing.T) {
	for policy, want := range map[string]string{"binpack": "n1,n1,n1", "spread": "n1,n2,n1"} {
		t.Run(policy, func(t *testing.T) {
			c := newCluster(t, node("n1", nil), node("n2", nil))
			var got []string
			for i := range 3 {
				pod := c.create("p"+strconv.Itoa(i), share("10000"), func(p *corev1.Pod) {
					p.Annotations = map[string]string{wire.NodePolicy: policy, wire.CardPolicy: "topology-aware"}
				})
				got = append(got, c.place(pod, "n1", "n2"))
			}
			if s := strings.Join(got, ","); s != want {
				t.Errorf("nodes = %s, want %s", s, want)
			}
		})
	}
}

func TestClosedNodes(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*corev1.Node)
		want   string
	}{
		"no plugin":      {func(n *corev1.Node) { n.Status.Allocatable = nil }, "device plugin is not running"},
		"garbage":        {func(n *corev1.Node) { n.Annotations[wire.NodeRegister] = "[{" }, "can't be read"},
		"legacy is read": {func(n *corev1.Node) { n.Annotations[wire.NodeRegister] = "GPU-a,10,100,100,NVIDIA,0,true:" }, "1/1 CardInsufficientMemory"},
		"cordoned":       {cordon, "2/2 CardCordoned"},
		"unhealthy cards": {func(n *corev1.Node) {
			n.Annotations[wire.NodeRegister] = `[{"id":"GPU-a","count":1,"devmem":40960,"devcore":100}]`
		}, "1/1 CardNotHealth"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, node("n1", tc.change))
			if got := c.filter(c.create("dev", share("15000"), nil), "n1").FailedNodes["n1"]; !strings.Contains(got, tc.want) {
				t.Errorf("n1 fails with %q, want %q", got, tc.want)
			}
		})
	}
}

// kube-scheduler may see the device plugin come back before our own watch does.
func TestPluginBackBeforeTheWatchSays(t *testing.T) {
	c := newCluster(t, node("n1", func(n *corev1.Node) { n.Status.Allocatable = nil }))
	c.client.PrependReactor("get", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, node("n1", nil), nil
	})
	result := c.filter(c.create("dev", share("15000"), nil), "n1")
	if result.NodeNames == nil || len(*result.NodeNames) != 1 {
		t.Errorf("filter = %+v", result)
	}
}

func cordon(n *corev1.Node) {
	cards, err := wire.DecodeDevices(n.Annotations[wire.NodeRegister])
	if err != nil {
		panic(err)
	}
	n.Annotations[wire.NodeCordon] = cards[0].UUID + ", " + cards[1].UUID
}

// Many pods at once, on nodes that hold half of them: each node takes exactly
// what fits, whatever the order.
func TestConcurrentPods(t *testing.T) {
	const pods = 16
	c := newCluster(t, node("n1", nil), node("n2", nil))
	var wg sync.WaitGroup
	for i := range pods {
		pod := c.create("p"+strconv.Itoa(i), share("20000"), nil)
		wg.Go(func() { c.place(pod, "n1", "n2") })
	}
	wg.Wait()
	if mem, slots := c.used(); slots != 8 || mem != 8*20000 {
		t.Errorf("%d pods hold %d MiB, want 8", slots, mem)
	}
}

func TestBindWaitsForTheLock(t *testing.T) {
	c := newCluster(t, node("n1", nil))
	first, second := c.create("first", share("1000"), nil), c.create("second", share("1000"), nil)
	c.filter(first, "n1")
	c.filter(second, "n1")
	if text := c.bindTo(first, "n1"); text != "" {
		t.Fatal(text)
	}
	done := make(chan string, 1)
	go func() { done <- c.bindTo(second, "n1") }()
	if c.get("second").Spec.NodeName != "" {
		t.Error("second pod was bound while the first held the lock")
	}
	c.allocate(first)
	if text := <-done; text != "" {
		t.Error(text)
	}
	if lock, _ := wire.ParseNodeLock(c.lock("n1")); !lock.HeldBy("team", "second") {
		t.Errorf("lock = %q", c.lock("n1"))
	}
}

func TestLeftBehindLocks(t *testing.T) {
	for name, lock := range map[string]string{
		"expired":  "2020-01-01T00:00:00Z,team,other",
		"pod gone": wire.NodeLock{Since: metav1.Now().Time, Namespace: "team", Name: "gone"}.String(),
		"garbage":  "yesterday",
		"own":      wire.NodeLock{Since: metav1.Now().Time, Namespace: "team", Name: "dev"}.String(),
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, node("n1", func(n *corev1.Node) { n.Annotations[wire.NodeMutex] = lock }))
			if got := c.place(c.create("dev", share("1000"), nil), "n1"); got != "n1" {
				t.Errorf("placed on %q", got)
			}
		})
	}
}

func TestFailedBindGivesBack(t *testing.T) {
	refused := apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "dev", errors.New("no"))
	c := newCluster(t, node("n1", nil))
	pod := c.create("dev", share("15000"), nil)
	c.filter(pod, "n1")
	c.failNextBind(refused, false)
	if text := c.bindTo(pod, "n1"); !strings.Contains(text, "forbidden") {
		t.Errorf("bind: %q", text)
	}
	c.usedIs(0)
	if lock := c.lock("n1"); lock != "" {
		t.Errorf("lock stays: %q", lock)
	}
	if got := c.place(pod, "n1"); got != "n1" {
		t.Errorf("second try placed on %q", got)
	}
}

// The API server bound the pod but its answer was lost.
func TestLostAnswerOfBind(t *testing.T) {
	c := newCluster(t, node("n1", nil))
	pod := c.create("dev", share("15000"), nil)
	c.filter(pod, "n1")
	c.failNextBind(errors.New("connection reset"), true)
	if text := c.bindTo(pod, "n1"); text != "" {
		t.Errorf("bind: %q", text)
	}
	c.usedIs(15000)
}

// Nobody knows whether the pod is bound: its cards stay taken.
func TestBindInDoubt(t *testing.T) {
	c := newCluster(t, node("n1", nil))
	pod := c.create("dev", share("15000"), nil)
	c.filter(pod, "n1")
	c.failNextBind(errors.New("connection reset"), false)
	if text := c.bindTo(pod, "n1"); !strings.Contains(text, "connection reset") {
		t.Errorf("bind: %q", text)
	}
	c.usedIs(15000)
}

func TestBindChecks(t *testing.T) {
	c := newCluster(t, node("n1", nil), node("n2", nil))
	pod := c.create("dev", share("15000"), nil)
	c.filter(pod, "n1")
	again := pod.DeepCopy()
	again.UID = "another"
	if text := c.bindTo(again, "n1"); !strings.Contains(text, "made again") {
		t.Errorf("other UID: %q", text)
	}
	// kube-scheduler may choose another node than we did; the pod is fitted anew.
	if text := c.bindTo(pod, "n2"); text != "" {
		t.Errorf("other node: %q", text)
	}
	nodes, _ := c.scheduler.Ledger().Snapshot()
	if nodes[0].Cards[0].UsedSlots+nodes[0].Cards[1].UsedSlots != 0 {
		t.Errorf("n1 still holds the pod: %+v", nodes[0])
	}
	late := c.create("late", share("45000"), nil)
	if text := c.bindTo(late, "n1"); !strings.Contains(text, "CardInsufficientMemory") {
		t.Errorf("unfiltered pod: %q", text)
	}
}

func TestRestart(t *testing.T) {
	c := newCluster(t, node("n1", nil))
	c.place(c.create("running", share("15000"), nil), "n1")
	c.place(c.create("terminating", share("10000"), func(p *corev1.Pod) { p.Finalizers = []string{"x/y"} }), "n1")
	c.place(c.create("done", share("9000"), nil), "n1")
	c.filter(c.create("reserved", share("8000"), nil), "n1")
	c.create("forged", share("7000"), func(p *corev1.Pod) {
		p.Annotations = map[string]string{wire.AssignedNode: "n1", wire.Allocated: "GPU-a,NVIDIA,7000,10:;"}
	})
	now := metav1.Now()
	terminating := c.get("terminating")
	terminating.DeletionTimestamp = &now
	c.update(terminating)
	done := c.get("done")
	done.Status.Phase = corev1.PodSucceeded
	c.update(done)
	c.start()
	// What is bound counts, terminating or not; promises and unbound pods'
	// annotations do not.
	c.usedIs(25000)
}

func TestUnknownAllocationsCloseTheNode(t *testing.T) {
	for name, tc := range map[string]struct {
		annotations map[string]string
		want        string
	}{
		"garbage":       {map[string]string{wire.Allocated: "GPU-a,NVIDIA:;"}, "can't be read"},
		"no allocation": {nil, "without an allocation"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, node("n1", nil))
			c.create("odd", share("1000"), func(p *corev1.Pod) {
				p.Annotations, p.Spec.NodeName = tc.annotations, "n1"
			})
			c.start()
			pod := c.create("dev", share("1000"), nil)
			if got := c.filter(pod, "n1").FailedNodes["n1"]; !strings.Contains(got, tc.want) || !strings.Contains(got, "team/odd") {
				t.Errorf("n1 fails with %q", got)
			}
			c.delete("odd")
			c.eventually("node opens", func() bool { return c.filter(pod, "n1").NodeNames != nil })
		})
	}
}

// Cards that vanish and come back still have what runs on them.
func TestCardsComeBack(t *testing.T) {
	c := newCluster(t, node("n1", nil))
	c.place(c.create("dev", share("15000"), nil), "n1")
	for _, register := range []string{"[]", node("n1", nil).Annotations[wire.NodeRegister]} {
		n, err := c.client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		n.Annotations[wire.NodeRegister] = register
		if _, err := c.client.CoreV1().Nodes().Update(t.Context(), n, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if register == "[]" {
			c.usedIs(0)
		}
	}
	c.usedIs(15000)
}

func TestSameNameAnotherPod(t *testing.T) {
	c := newCluster(t, node("n1", nil))
	c.place(c.create("dev", share("15000"), nil), "n1")
	c.delete("dev")
	c.place(c.create("dev", share("20000"), nil), "n1")
	c.usedIs(20000)
}

func TestNotReadyBeforeTheClusterIsRead(t *testing.T) {
	s, err := scheduler.New(scheduler.Config{
		Client: fake.NewClientset(), Recorder: record.NewFakeRecorder(1), Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Filter(t.Context(), extender.ExtenderArgs{Pod: &corev1.Pod{}}); !errors.Is(err, scheduler.ErrNotReady) {
		t.Errorf("filter: %v", err)
	}
	if err := s.Bind(t.Context(), extender.ExtenderBindingArgs{}); !errors.Is(err, scheduler.ErrNotReady) {
		t.Errorf("bind: %v", err)
	}
	for path, want := range map[string]int{"/readyz": http.StatusServiceUnavailable, "/healthz": http.StatusOK} {
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		if w.Code != want {
			t.Errorf("%s = %d, want %d", path, w.Code, want)
		}
	}
}
