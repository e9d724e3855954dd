package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/firstlight-dev/firstlight/sharing/wire"
	"github.com/firstlight-dev/firstlight/test/cluster"
	"github.com/firstlight-dev/firstlight/test/deployment"
	"github.com/firstlight-dev/firstlight/test/sandbox"
)

const (
	cardMiB = 40960
	// eventWait bounds the wait for something that a component does by itself.
	eventWait = time.Minute
)

// sharePod is a pod for HAMi: it names neither scheduler nor number of vGPUs.
func sharePod(name string, memory, cores int, annotations string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata:
  name: %s
  annotations: {%s}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: %s
    command: [sh, -c, "env; exec sleep infinity"]
    resources: {limits: {nvidia.com/gpumem: "%d", nvidia.com/gpucores: "%d"}}
---
`, name, annotations, cluster.BusyboxImage, memory, cores)
}

// TestSharesOfTwoCards runs three pods of a share each on two cards and keeps a
// fourth waiting that no single card can hold.
func TestSharesOfTwoCards(t *testing.T) {
	f := sharing(t)
	const pods, memory, cores = 3, 15000, 30
	var manifests strings.Builder
	names := []string{"share-0", "share-1", "share-2"}
	for _, name := range names {
		manifests.WriteString(sharePod(name, memory, cores, ""))
	}
	f.apply(t, manifests.String())
	perCard := map[string]int{}
	for _, name := range names {
		f.waitPod(t, name, "condition=Ready")
		device := allocation(t, f, name)
		if device.MemMiB != memory || device.Cores != cores {
			t.Errorf("pod %s got %+v", name, device)
		}
		perCard[device.UUID] += device.MemMiB
		checkEnvironment(t, f, name, device)
	}
	if len(perCard) != 2 {
		t.Errorf("the pods run on %d cards, want 2: %v", len(perCard), perCard)
	}
	for card, used := range perCard {
		if used > cardMiB {
			t.Errorf("card %s gives %d MiB of %d", card, used, cardMiB)
		}
	}
	checkUnlocked(t, f)
	checkMetrics(t, f, pods*memory)

	f.apply(t, sharePod("too-big", 45000, 30, ""))
	checkRefused(t, f, "too-big", perCard)
}

// TestTooBigForEveryCard checks that memory of several cards is never added up,
// on a node where all of it is free.
func TestTooBigForEveryCard(t *testing.T) {
	f := sharing(t)
	f.apply(t, sharePod("too-big", 45000, 30, ""))
	checkRefused(t, f, "too-big", nil)
}

// TestCardPolicies checks the placements in which binpack and spread differ.
func TestCardPolicies(t *testing.T) {
	f := sharing(t)
	for policy, want := range map[string]int{"binpack": 1, "spread": 2} {
		t.Run(policy, func(t *testing.T) {
			cards := map[string]bool{}
			for i := range 2 {
				name := fmt.Sprintf("%s-%d", policy, i)
				f.apply(t, sharePod(name, 10000, 10, wire.CardPolicy+": "+policy))
				f.waitPod(t, name, "condition=Ready")
				cards[allocation(t, f, name).UUID] = true
			}
			if len(cards) != want {
				t.Errorf("two pods run on %d cards, want %d", len(cards), want)
			}
		})
	}
}

// TestManyPodsAtOnce creates more pods than the cards hold: as many run as fit,
// no card is over its limits, and the others run when there is room.
func TestManyPodsAtOnce(t *testing.T) {
	const pods, memory, fitting = 10, 10000, 8
	f := sharing(t)
	var manifests strings.Builder
	for i := range pods {
		manifests.WriteString(sharePod(fmt.Sprintf("many-%d", i), memory, 10, ""))
	}
	f.apply(t, manifests.String())
	running := map[string]bool{}
	eventually(t, fmt.Sprintf("%d pods run", fitting), func(ctx context.Context) (bool, error) {
		list, err := f.client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		for i := range list.Items {
			if list.Items[i].Status.Phase == corev1.PodRunning {
				running[list.Items[i].Name] = true
			}
		}
		return len(running) >= fitting, nil
	})
	perCard := map[string]int{}
	for i := range pods {
		name := fmt.Sprintf("many-%d", i)
		if !running[name] {
			checkRefused(t, f, name, nil)
			continue
		}
		device := allocation(t, f, name)
		perCard[device.UUID] += device.MemMiB
	}
	for card, used := range perCard {
		if used > cardMiB {
			t.Errorf("card %s gives %d MiB of %d", card, used, cardMiB)
		}
	}
	for name := range running {
		f.kubectl(t, "delete", "pod", name, "--wait", "--timeout=60s")
		break
	}
	eventually(t, "a waiting pod runs", func(ctx context.Context) (bool, error) {
		list, err := f.client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		for i := range list.Items {
			if pod := &list.Items[i]; pod.Status.Phase == corev1.PodRunning && !running[pod.Name] {
				return true, nil
			}
		}
		return false, nil
	})
}

// TestSchedulerForgetsNothing kills the scheduler while pods hold cards; the new
// one must count them.
func TestSchedulerForgetsNothing(t *testing.T) {
	f := sharing(t)
	f.apply(t, sharePod("holder-0", 30000, 10, "")+sharePod("holder-1", 30000, 10, ""))
	f.waitPod(t, "holder-0", "condition=Ready")
	f.waitPod(t, "holder-1", "condition=Ready")
	kill(t, f.Scheduler)
	if err := f.StartScheduler(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.apply(t, sharePod("late", 20000, 10, ""))
	checkRefused(t, f, "late", nil)
	f.kubectl(t, "delete", "pod", "holder-0", "--wait", "--timeout=60s")
	f.waitPod(t, "late", "condition=Ready")
}

// TestDevicePluginComesBack kills the device plugin; a pod created meanwhile
// runs once it is back.
func TestDevicePluginComesBack(t *testing.T) {
	f := sharing(t)
	kill(t, f.DevicePlugin)
	f.kubectl(t, "wait", "node/"+f.Node(), `--for=jsonpath={.status.allocatable.nvidia\.com/gpu}=0`, "--timeout=60s")
	f.apply(t, sharePod("patient", 1000, 10, ""))
	if err := f.StartDevicePlugin(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.waitPod(t, "patient", "condition=Ready")
}

// TestDeniedPods checks what the webhook does not let in.
func TestDeniedPods(t *testing.T) {
	f := sharing(t)
	pod := func(change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "denied"}, Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "main", Image: cluster.BusyboxImage}},
		}}
		change(p)
		return p
	}
	for name, tc := range map[string]struct {
		pod  *corev1.Pod
		want string
	}{
		"privileged": {pod(func(p *corev1.Pod) {
			yes := true
			p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{wire.ResourceMemory: resource.MustParse("1000")}
			p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: &yes}
		}), "is privileged"},
		"forged allocation": {pod(func(p *corev1.Pod) {
			p.Annotations = map[string]string{wire.Allocated: "GPU-a,NVIDIA,1,1:;"}
		}), "scheduler only"},
		"memory in bytes": {pod(func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{wire.ResourceMemory: resource.MustParse("15Gi")}
		}), "whole number"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := f.client.CoreV1().Pods("default").Create(t.Context(), tc.pod, metav1.CreateOptions{})
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("create pod: %v, want %q", err, tc.want)
			}
		})
	}
}

// allocation returns the only vGPU of a pod that is through Allocate.
func allocation(t *testing.T, f *fixture, name string) wire.ContainerDevice {
	t.Helper()
	pod, err := f.client.CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	devices, err := wire.DecodePodDevices(pod.Annotations[wire.Allocated])
	if err != nil || len(devices) != 1 || len(devices[0]) != 1 {
		t.Fatalf("allocation of %s is %q: %v", name, pod.Annotations[wire.Allocated], err)
	}
	if got := pod.Annotations[wire.BindPhase]; got != string(wire.PhaseSuccess) {
		t.Errorf("pod %s is in phase %q", name, got)
	}
	if got := pod.Annotations[wire.ToAllocate]; got != ";" {
		t.Errorf("pod %s still is to be allocated %q", name, got)
	}
	if got := pod.Labels[wire.AssignedNode]; got != f.Node() {
		t.Errorf("pod %s has node label %q", name, got)
	}
	if pod.Spec.SchedulerName != deployment.SchedulerName {
		t.Errorf("pod %s went to scheduler %s", name, pod.Spec.SchedulerName)
	}
	return devices[0][0]
}

// checkEnvironment compares the variables that the container really has.
func checkEnvironment(t *testing.T, f *fixture, name string, device wire.ContainerDevice) {
	t.Helper()
	// The container has printed its environment before it is ready: it has no
	// readiness probe, so that is not certain, and the log is followed.
	ctx, cancel := context.WithTimeout(t.Context(), eventWait)
	defer cancel()
	logs, err := f.client.CoreV1().Pods("default").GetLogs(name, &corev1.PodLogOptions{Follow: true}).Stream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = logs.Close() }()
	missing := []string{
		wire.EnvVisibleDevices + "=" + device.UUID,
		fmt.Sprintf("%s=%dm", wire.MemoryLimitEnv(0), device.MemMiB),
		fmt.Sprintf("%s=%d", wire.EnvCoreLimit, device.Cores),
	}
	for lines := bufio.NewScanner(logs); len(missing) > 0 && lines.Scan(); {
		missing = slices.DeleteFunc(missing, func(s string) bool { return s == lines.Text() })
	}
	if len(missing) > 0 {
		t.Errorf("pod %s lacks %v", name, missing)
	}
}

// checkUnlocked waits until no pod holds the node: the last Allocate gives the
// lock back after it has marked its pod.
func checkUnlocked(t *testing.T, f *fixture) {
	t.Helper()
	eventually(t, "node lock is gone", func(ctx context.Context) (bool, error) {
		node, err := f.client.CoreV1().Nodes().Get(ctx, f.Node(), metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		_, locked := node.Annotations[wire.NodeMutex]
		return !locked, nil
	})
}

// checkRefused waits for an event that names each card of the node and what it
// has free, if used says so.
func checkRefused(t *testing.T, f *fixture, name string, used map[string]int) {
	t.Helper()
	node, err := f.client.CoreV1().Nodes().Get(t.Context(), f.Node(), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cards, err := wire.DecodeDevices(node.Annotations[wire.NodeRegister])
	if err != nil || len(cards) != 2 {
		t.Fatalf("node has cards %v, %v", cards, err)
	}
	pod, err := f.client.CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var messages []string
	eventually(t, "event of pod "+name, func(ctx context.Context) (bool, error) {
		events, err := f.client.CoreV1().Events("default").List(ctx, metav1.ListOptions{
			FieldSelector: fields.Set{"involvedObject.uid": string(pod.UID), "reason": "FilteringFailed"}.String(),
		})
		if err != nil {
			return false, err
		}
		for i := range events.Items {
			messages = append(messages, events.Items[i].Message)
		}
		return len(messages) > 0, nil
	})
	for _, card := range cards {
		if !strings.Contains(messages[0], card.UUID) {
			t.Errorf("event does not name card %s: %s", card.UUID, messages[0])
		}
		if free := fmt.Sprintf("free %d of %d", cardMiB-used[card.UUID], cardMiB); used != nil && !strings.Contains(messages[0], free) {
			t.Errorf("event does not say %q: %s", free, messages[0])
		}
	}
	if want := f.Node() + ": 2/2 CardInsufficientMemory"; !strings.Contains(messages[0], want) {
		t.Errorf("event does not say %q: %s", want, messages[0])
	}
	if pod, err = f.client.CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	if pod.Status.Phase != corev1.PodPending || pod.Spec.NodeName != "" {
		t.Errorf("pod %s is %s on %q", name, pod.Status.Phase, pod.Spec.NodeName)
	}
	t.Log(messages[0])
}

// checkMetrics compares the scheduler's sum of allocated memory, and that the
// device plugin answers.
func checkMetrics(t *testing.T, f *fixture, wantMiB int) {
	t.Helper()
	sum := 0.0
	for line := range strings.SplitSeq(scrape(t, f, deployment.SchedulerMetrics), "\n") {
		var value float64
		if labels, number, ok := strings.Cut(line, "} "); ok && strings.HasPrefix(labels, "hami_gpu_memory_allocated_bytes{") {
			if _, err := fmt.Sscan(number, &value); err != nil {
				t.Fatalf("metric %q: %v", line, err)
			}
			sum += value
		}
	}
	if sum != float64(wantMiB)*(1<<20) {
		t.Errorf("metrics show %.0f MiB allocated, want %d", sum/(1<<20), wantMiB)
	}
	scrape(t, f, deployment.PluginMetrics)
}

func kill(t *testing.T, p *sandbox.Process) {
	t.Helper()
	if err := p.Stop(t.Context(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

func scrape(t *testing.T, f *fixture, address string) string {
	t.Helper()
	client := http.Client{Timeout: eventWait, Transport: &http.Transport{
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) { return f.Dial(ctx, network, address) },
	}}
	defer client.CloseIdleConnections()
	resp, err := client.Get("http://" + address + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("scrape %s: %s, %v", address, resp.Status, err)
	}
	return string(body)
}

// eventually polls for what has no event to wait for.
func eventually(t *testing.T, what string, done func(context.Context) (bool, error)) {
	t.Helper()
	if err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, eventWait, true, done); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}
