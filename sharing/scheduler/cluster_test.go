package scheduler_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	extender "k8s.io/kube-scheduler/extender/v1"

	"github.com/firstlight-dev/firstlight/sharing/scheduler"
	"github.com/firstlight-dev/firstlight/sharing/wire"
)

// patience bounds every wait of the tests; it only passes when one fails.
const patience = 20 * time.Second

// clusterFixture is a fake API server that binds as the real one does, and a
// scheduler on it.
type clusterFixture struct {
	t      *testing.T
	client *fake.Clientset
	events *record.FakeRecorder

	scheduler *scheduler.Scheduler
	server    *httptest.Server
	stop      func()

	mu      sync.Mutex
	bindErr error // guarded by mu: answer of the next bind
	land    bool  // guarded by mu: whether that bind happens all the same
	serial  atomic.Int64
}

func newCluster(t *testing.T, objects ...runtime.Object) *clusterFixture {
	t.Helper()
	c := &clusterFixture{t: t, client: fake.NewClientset(objects...), events: record.NewFakeRecorder(10000)}
	c.client.PrependReactor("create", "pods", c.bind)
	c.start()
	return c
}

// start starts a scheduler; a second call is a restart.
func (c *clusterFixture) start() {
	c.t.Helper()
	if c.stop != nil {
		c.stop()
	}
	s, err := scheduler.New(scheduler.Config{
		Client: c.client, Recorder: c.events, Log: slog.New(slog.DiscardHandler), LockWait: patience / 2,
	})
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(c.t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	c.scheduler, c.server = s, httptest.NewServer(s.Handler())
	stopped := false
	c.stop = func() {
		if stopped {
			return
		}
		stopped = true
		c.server.Close()
		cancel()
		if err := <-done; err != nil {
			c.t.Error(err)
		}
	}
	c.t.Cleanup(c.stop)
	c.eventually("scheduler is ready", s.Ready)
}

// bind is the binding subresource: node name, annotations and labels at once.
func (c *clusterFixture) bind(action clienttesting.Action) (bool, runtime.Object, error) {
	create, ok := action.(clienttesting.CreateAction)
	if !ok || action.GetSubresource() != "binding" {
		return false, nil, nil
	}
	binding := create.GetObject().(*corev1.Binding)
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.bindErr
	c.bindErr = nil
	if err != nil && !c.land {
		return true, nil, err
	}
	pods := c.client.Tracker()
	gvr := corev1.SchemeGroupVersion.WithResource("pods")
	obj, getErr := pods.Get(gvr, binding.Namespace, binding.Name)
	if getErr != nil {
		return true, nil, getErr
	}
	pod := obj.(*corev1.Pod).DeepCopy()
	if pod.UID != binding.UID || pod.Spec.NodeName != "" {
		return true, nil, apierrors.NewConflict(gvr.GroupResource(), binding.Name, nil)
	}
	pod.Spec.NodeName = binding.Target.Name
	pod.Annotations = merged(pod.Annotations, binding.Annotations)
	pod.Labels = merged(pod.Labels, binding.Labels)
	if updateErr := pods.Update(gvr, pod, pod.Namespace); updateErr != nil {
		return true, nil, updateErr
	}
	return true, binding, err
}

func merged(a, b map[string]string) map[string]string {
	m := map[string]string{}
	for _, from := range []map[string]string{a, b} {
		for k, v := range from {
			m[k] = v
		}
	}
	return m
}

func (c *clusterFixture) failNextBind(err error, land bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bindErr, c.land = err, land
}

// create makes a pod with one container.
func (c *clusterFixture) create(name string, limits map[corev1.ResourceName]string, change func(*corev1.Pod)) *corev1.Pod {
	c.t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, UID: types.UID("uid-" + strconv.FormatInt(c.serial.Add(1), 10))},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main"}}},
	}
	list := corev1.ResourceList{}
	for k, v := range limits {
		list[k] = resource.MustParse(v)
	}
	pod.Spec.Containers[0].Resources.Limits = list
	if change != nil {
		change(pod)
	}
	made, err := c.client.CoreV1().Pods("team").Create(c.t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return made
}

func (c *clusterFixture) get(name string) *corev1.Pod {
	c.t.Helper()
	pod, err := c.client.CoreV1().Pods("team").Get(c.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return pod
}

func (c *clusterFixture) delete(name string) {
	c.t.Helper()
	if err := c.client.CoreV1().Pods("team").Delete(c.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

func (c *clusterFixture) update(pod *corev1.Pod) {
	c.t.Helper()
	if _, err := c.client.CoreV1().Pods("team").Update(c.t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

func (c *clusterFixture) post(path string, args, result any) {
	c.t.Helper()
	body, err := json.Marshal(args)
	if err != nil {
		c.t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(c.t.Context(), http.MethodPost, c.server.URL+path, bytes.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	resp, err := c.server.Client().Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		c.t.Fatalf("%s: %s", path, resp.Status)
	}
	if err := json.NewDecoder(resp.Body).Decode(result); err != nil {
		c.t.Fatal(err)
	}
}

func (c *clusterFixture) filter(pod *corev1.Pod, nodes ...string) extender.ExtenderFilterResult {
	c.t.Helper()
	var result extender.ExtenderFilterResult
	c.post("/filter", extender.ExtenderArgs{Pod: pod, NodeNames: &nodes}, &result)
	return result
}

// bindTo binds and returns the error in words.
func (c *clusterFixture) bindTo(pod *corev1.Pod, node string) string {
	c.t.Helper()
	var result extender.ExtenderBindingResult
	c.post("/bind", extender.ExtenderBindingArgs{PodName: pod.Name, PodNamespace: pod.Namespace, PodUID: pod.UID, Node: node}, &result)
	return result.Error
}

// allocate does what the device plugin does at the end.
func (c *clusterFixture) allocate(pod *corev1.Pod) {
	c.t.Helper()
	pod = c.get(pod.Name)
	pod.Annotations[wire.BindPhase] = string(wire.PhaseSuccess)
	c.update(pod)
	patch := `{"metadata":{"annotations":{"` + wire.NodeMutex + `":null}}}`
	if _, err := c.client.CoreV1().Nodes().Patch(c.t.Context(), pod.Spec.NodeName, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

// place filters and binds, and finishes the allocation.
func (c *clusterFixture) place(pod *corev1.Pod, nodes ...string) (node string) {
	c.t.Helper()
	result := c.filter(pod, nodes...)
	if result.NodeNames == nil {
		return ""
	}
	node = (*result.NodeNames)[0]
	if text := c.bindTo(pod, node); text != "" {
		c.t.Fatalf("bind %s to %s: %s", pod.Name, node, text)
	}
	c.allocate(pod)
	return node
}

func (c *clusterFixture) lock(node string) string {
	c.t.Helper()
	n, err := c.client.CoreV1().Nodes().Get(c.t.Context(), node, metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return n.Annotations[wire.NodeMutex]
}

func (c *clusterFixture) eventually(what string, ok func() bool) {
	c.t.Helper()
	err := wait.PollUntilContextTimeout(c.t.Context(), time.Millisecond, patience, true, func(context.Context) (bool, error) { return ok(), nil })
	if err != nil {
		c.t.Fatalf("%s: %v", what, err)
	}
}

// used sums the account up.
func (c *clusterFixture) used() (mem, slots int) {
	nodes, _ := c.scheduler.Ledger().Snapshot()
	for _, n := range nodes {
		for _, u := range n.Cards {
			if u.UsedMemMiB > u.MemMiB || u.UsedCores > u.Cores || u.UsedSlots > u.Slots {
				c.t.Errorf("over-allocated: %+v", u)
			}
			mem += u.UsedMemMiB
			slots += u.UsedSlots
		}
	}
	return mem, slots
}

func (c *clusterFixture) usedIs(want int) {
	c.t.Helper()
	c.eventually("account shows "+strconv.Itoa(want)+" MiB", func() bool {
		mem, _ := c.used()
		return mem == want
	})
}

// node has two simulated A100-40GB.
func node(name string, change func(*corev1.Node)) *corev1.Node {
	inv := wire.Inventory{Devices: []wire.CardGroup{{Model: "NVIDIA A100-SXM4-40GB", MemoryMiB: 40960, Count: 2}}}
	cards, err := inv.Cards(name)
	if err != nil {
		panic(err)
	}
	text, err := wire.EncodeDevices(cards)
	if err != nil {
		panic(err)
	}
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{wire.NodeRegister: text}},
		Status:     corev1.NodeStatus{Allocatable: corev1.ResourceList{wire.ResourceCount: resource.MustParse("20")}},
	}
	if change != nil {
		change(n)
	}
	return n
}

func share(mem string) map[corev1.ResourceName]string {
	return map[corev1.ResourceName]string{wire.ResourceCount: "1", wire.ResourceMemory: mem, wire.ResourceCores: "30"}
}
