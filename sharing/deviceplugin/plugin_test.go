package deviceplugin_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/fake"
	kubelet "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/firstlight-dev/firstlight/sharing/deviceplugin"
	"github.com/firstlight-dev/firstlight/sharing/wire"
)

const (
	nodeName = "n1"
	// patience bounds every wait of the tests; it only passes when one fails.
	patience = 20 * time.Second
)

// fakeKubelet is the kubelet's end of the protocol, on real sockets.
type fakeKubelet struct {
	kubelet.UnimplementedRegistrationServer
	dir        string
	server     *grpc.Server
	registered chan *kubelet.RegisterRequest
}

func startKubelet(t *testing.T, dir string) *fakeKubelet {
	t.Helper()
	listener, err := net.Listen("unix", filepath.Join(dir, "kubelet.sock"))
	if err != nil {
		t.Fatal(err)
	}
	k := &fakeKubelet{dir: dir, server: grpc.NewServer(), registered: make(chan *kubelet.RegisterRequest, 10)}
	kubelet.RegisterRegistrationServer(k.server, k)
	go func() { _ = k.server.Serve(listener) }()
	t.Cleanup(k.server.Stop)
	return k
}

// Register implements the kubelet's API.
func (k *fakeKubelet) Register(_ context.Context, r *kubelet.RegisterRequest) (*kubelet.Empty, error) {
	k.registered <- r
	return &kubelet.Empty{}, nil
}

func (k *fakeKubelet) wait(t *testing.T) kubelet.DevicePluginClient {
	t.Helper()
	select {
	case r := <-k.registered:
		if r.ResourceName != wire.ResourceCount || r.Version != kubelet.Version || !r.Options.GetPreferredAllocationAvailable {
			t.Errorf("registration = %+v", r)
		}
		conn, err := grpc.NewClient("unix://"+filepath.Join(k.dir, r.Endpoint), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return kubelet.NewDevicePluginClient(conn)
	case <-time.After(patience):
		t.Fatal("the plugin does not register")
		return nil
	}
}

// cards is a source whose cards the test changes.
type cards struct {
	mu   sync.Mutex
	list []wire.Device
	err  error
}

// Cards implements inventory.Source.
func (c *cards) Cards(context.Context) ([]wire.Device, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.list), c.err
}

func twoCards() *cards {
	inv := wire.Inventory{Devices: []wire.CardGroup{{Model: "NVIDIA A100-SXM4-40GB", MemoryMiB: 40960, Count: 2}}}
	list, err := inv.Cards(nodeName)
	if err != nil {
		panic(err)
	}
	return &cards{list: list}
}

type fixture struct {
	*testing.T
	client *fake.Clientset
	cards  *cards
	uuid   [2]string
	kube   *fakeKubelet
	plugin kubelet.DevicePluginClient
	hook   string
}

func start(t *testing.T, change func(*deviceplugin.Config)) *fixture {
	t.Helper()
	dir := t.TempDir()
	f := &fixture{
		T: t, cards: twoCards(), kube: startKubelet(t, dir), hook: t.TempDir(),
		client: fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}),
	}
	f.uuid = [2]string{f.cards.list[0].UUID, f.cards.list[1].UUID}
	cfg := deviceplugin.Config{
		Node: nodeName, Client: f.client, Source: f.cards, Log: slog.New(slog.DiscardHandler),
		KubeletDir: dir, HookPath: f.hook, LockDir: filepath.Join(f.hook, "lock"),
	}
	if change != nil {
		change(&cfg)
	}
	plugin, err := deviceplugin.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- plugin.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	f.plugin = f.kube.wait(t)
	return f
}

// bound makes a pod that the scheduler has bound here with an allocation.
func (f *fixture) bound(name, allocation string, change func(*corev1.Pod)) *corev1.Pod {
	f.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, UID: types.UID("uid-" + name), Annotations: map[string]string{
			wire.AssignedNode: nodeName, wire.Allocated: allocation, wire.ToAllocate: allocation, wire.BindPhase: string(wire.PhaseAllocating),
		}},
		Spec:   corev1.PodSpec{NodeName: nodeName, Containers: []corev1.Container{{Name: "main"}, {Name: "second"}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
	if change != nil {
		change(pod)
	}
	made, err := f.client.CoreV1().Pods("team").Create(f.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		f.Fatal(err)
	}
	return made
}

func (f *fixture) lock(name string) {
	f.Helper()
	node := f.node()
	if node.Annotations == nil {
		node.Annotations = map[string]string{}
	}
	node.Annotations[wire.NodeMutex] = wire.NodeLock{Since: time.Now(), Namespace: "team", Name: name}.String()
	if _, err := f.client.CoreV1().Nodes().Update(f.Context(), node, metav1.UpdateOptions{}); err != nil {
		f.Fatal(err)
	}
}

func (f *fixture) node() *corev1.Node {
	f.Helper()
	node, err := f.client.CoreV1().Nodes().Get(f.Context(), nodeName, metav1.GetOptions{})
	if err != nil {
		f.Fatal(err)
	}
	return node
}

func (f *fixture) pod(name string) *corev1.Pod {
	f.Helper()
	pod, err := f.client.CoreV1().Pods("team").Get(f.Context(), name, metav1.GetOptions{})
	if err != nil {
		f.Fatal(err)
	}
	return pod
}

// allocate asks for as many slots as there are ids.
func (f *fixture) allocate(ids ...string) (*kubelet.ContainerAllocateResponse, error) {
	f.Helper()
	r, err := f.plugin.Allocate(f.Context(), &kubelet.AllocateRequest{ContainerRequests: []*kubelet.ContainerAllocateRequest{{DevicesIds: ids}}})
	if err != nil {
		return nil, err
	}
	return r.ContainerResponses[0], nil
}

func (f *fixture) eventually(what string, ok func() bool) {
	f.Helper()
	err := wait.PollUntilContextTimeout(f.Context(), time.Millisecond, patience, true, func(context.Context) (bool, error) { return ok(), nil })
	if err != nil {
		f.Fatalf("%s: %v", what, err)
	}
}

func TestListAndWatch(t *testing.T) {
	f := start(t, nil)
	stream, err := f.plugin.ListAndWatch(t.Context(), &kubelet.Empty{})
	if err != nil {
		t.Fatal(err)
	}
	list, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Devices) != 20 || list.Devices[0].ID != f.uuid[0]+"-0" || list.Devices[19].ID != f.uuid[1]+"-9" || list.Devices[0].Health != kubelet.Healthy {
		t.Errorf("devices = %v", list.Devices)
	}
}

func TestAnnotatesTheNode(t *testing.T) {
	f := start(t, nil)
	want, err := wire.EncodeDevices(f.cards.list)
	if err != nil {
		t.Fatal(err)
	}
	f.eventually("node is annotated", func() bool { return f.node().Annotations[wire.NodeRegister] == want })
	if h, err := wire.ParseHandshake(f.node().Annotations[wire.NodeHandshake], time.Local); err != nil || h.State != wire.HandshakeReported {
		t.Errorf("handshake = %q, %v", f.node().Annotations[wire.NodeHandshake], err)
	}
}

// Cards that can't be read are unhealthy until they can, and an annotation that
// somebody removes comes back.
func TestRecovers(t *testing.T) {
	f := start(t, func(c *deviceplugin.Config) { c.RefreshEvery = time.Millisecond })
	stream, err := f.plugin.ListAndWatch(t.Context(), &kubelet.Empty{})
	if err != nil {
		t.Fatal(err)
	}
	fail := func(err error) {
		f.cards.mu.Lock()
		defer f.cards.mu.Unlock()
		f.cards.err = err
	}
	for i, want := range []string{kubelet.Healthy, kubelet.Unhealthy, kubelet.Healthy} {
		if i > 0 {
			fail([]error{nil, errors.New("driver is gone"), nil}[i])
		}
		list, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if len(list.Devices) != 20 || list.Devices[0].Health != want {
			t.Errorf("list %d has %d devices, health %s; want %s", i, len(list.Devices), list.Devices[0].Health, want)
		}
	}
	f.eventually("node is annotated", func() bool { return f.node().Annotations[wire.NodeRegister] != "" })
	patch := `{"metadata":{"annotations":{"` + wire.NodeRegister + `":null}}}`
	if _, err := f.client.CoreV1().Nodes().Patch(t.Context(), nodeName, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	f.eventually("annotation is back", func() bool { return f.node().Annotations[wire.NodeRegister] != "" })
}

func TestLegacyRegister(t *testing.T) {
	f := start(t, func(c *deviceplugin.Config) { c.Legacy = true })
	want, err := wire.EncodeDevicesLegacy(f.cards.list)
	if err != nil {
		t.Fatal(err)
	}
	f.eventually("node is annotated", func() bool { return f.node().Annotations[wire.NodeRegister] == want })
}

func TestRegistersAgain(t *testing.T) {
	f := start(t, nil)
	dir := f.kube.dir
	// A kubelet that restarts removes all sockets and makes its own anew.
	f.kube.server.Stop()
	for _, name := range []string{"kubelet.sock", "firstlight-gpu.sock"} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	}
	plugin := startKubelet(t, dir).wait(t)
	if _, err := plugin.GetDevicePluginOptions(t.Context(), &kubelet.Empty{}); err != nil {
		t.Error(err)
	}
}

func TestAllocate(t *testing.T) {
	f := start(t, nil)
	allocation := f.uuid[1] + ",NVIDIA,15000,30:;" + f.uuid[0] + ",NVIDIA,3000,10:" + f.uuid[1] + ",NVIDIA,4000,10:;"
	f.bound("dev", allocation, nil)
	f.lock("dev")
	got, err := f.allocate(f.uuid[1] + "-0")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(got.Envs[wire.EnvSharedCache], f.hook+"/vgpu/") {
		t.Errorf("cache = %q", got.Envs[wire.EnvSharedCache])
	}
	delete(got.Envs, wire.EnvSharedCache)
	want := map[string]string{
		wire.EnvVisibleDevices: f.uuid[1], "CUDA_DEVICE_MEMORY_LIMIT_0": "15000m", wire.EnvCoreLimit: "30", wire.EnvLogLevel: "1",
	}
	if diff := cmp.Diff(want, got.Envs); diff != "" {
		t.Errorf("variables (-want +got):\n%s", diff)
	}
	if len(got.Mounts) != 0 {
		t.Errorf("mounts without HAMi-core: %v", got.Mounts)
	}
	pod := f.pod("dev")
	if left := pod.Annotations[wire.ToAllocate]; left != ";"+f.uuid[0]+",NVIDIA,3000,10:"+f.uuid[1]+",NVIDIA,4000,10:;" {
		t.Errorf("left = %q", left)
	}
	if pod.Annotations[wire.BindPhase] != string(wire.PhaseAllocating) || f.node().Annotations[wire.NodeMutex] == "" {
		t.Error("done after the first container of two")
	}

	// The kubelet's slots are of another order; the allocation counts.
	if got, err = f.allocate(f.uuid[1]+"-1", f.uuid[0]+"-0"); err != nil {
		t.Fatal(err)
	}
	if got.Envs[wire.EnvVisibleDevices] != f.uuid[0]+","+f.uuid[1] || got.Envs["CUDA_DEVICE_MEMORY_LIMIT_0"] != "3000m" || got.Envs["CUDA_DEVICE_MEMORY_LIMIT_1"] != "4000m" {
		t.Errorf("variables = %v", got.Envs)
	}
	pod = f.pod("dev")
	if pod.Annotations[wire.ToAllocate] != ";;" || pod.Annotations[wire.BindPhase] != string(wire.PhaseSuccess) || pod.Annotations[wire.Allocated] != allocation {
		t.Errorf("annotations = %v", pod.Annotations)
	}
	if lock, held := f.node().Annotations[wire.NodeMutex]; held {
		t.Errorf("lock = %q", lock)
	}
	if _, err := f.allocate(f.uuid[0] + "-2"); err == nil || !strings.Contains(err.Error(), "no binding pod found on node n1") {
		t.Errorf("nobody waits: %v", err)
	}
}

func TestMountsOfHAMiCore(t *testing.T) {
	f := start(t, nil)
	vgpu := filepath.Join(f.hook, "vgpu")
	if err := os.MkdirAll(vgpu, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"libvgpu.so", "ld.so.preload"} {
		if err := os.WriteFile(filepath.Join(vgpu, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	f.bound("dev", f.uuid[0]+",NVIDIA,15000,30:;"+f.uuid[0]+",NVIDIA,15000,30:;", func(p *corev1.Pod) {
		p.Spec.Containers[1].Env = []corev1.EnvVar{{Name: wire.EnvDisableControl, Value: "true"}}
	})
	f.lock("dev")
	for _, tc := range []struct {
		container string
		preload   bool
	}{{"main", true}, {"second", false}} {
		got, err := f.allocate(f.uuid[0] + "-0")
		if err != nil {
			t.Fatal(err)
		}
		own := filepath.Join(vgpu, "containers", "uid-dev_"+tc.container)
		paths := map[string]string{}
		for _, m := range got.Mounts {
			paths[m.ContainerPath] = m.HostPath
			if m.ReadOnly != (filepath.Ext(m.HostPath) != "" && m.HostPath != own) {
				t.Errorf("mount %v", m)
			}
		}
		want := map[string]string{vgpu: own, filepath.Join(vgpu, "libvgpu.so"): filepath.Join(vgpu, "libvgpu.so"), "/tmp/vgpulock": filepath.Join(f.hook, "lock")}
		if tc.preload {
			want["/etc/ld.so.preload"] = filepath.Join(vgpu, "ld.so.preload")
		}
		if diff := cmp.Diff(want, paths); diff != "" {
			t.Errorf("mounts of %s (-want +got):\n%s", tc.container, diff)
		}
		if info, err := os.Stat(own); err != nil || info.Mode().Perm() != 0o777 {
			t.Errorf("folder of %s: %v, %v", tc.container, info, err)
		}
	}
}

func TestWhichPod(t *testing.T) {
	one := func(f *fixture) string { return f.uuid[0] + ",NVIDIA,1000,10:;" }
	for name, tc := range map[string]struct {
		prepare func(*fixture)
		want    string // pod that is served, or the error
	}{
		"the lock's": {func(f *fixture) {
			f.bound("a", one(f), nil)
			f.bound("b", one(f), nil)
			f.lock("b")
		}, "b"},
		"the only one": {func(f *fixture) { f.bound("a", one(f), nil) }, "a"},
		"the only one that fits the call": {func(f *fixture) {
			f.bound("a", f.uuid[0]+",NVIDIA,1,1:"+f.uuid[1]+",NVIDIA,1,1:;", nil)
			f.bound("b", one(f), nil)
		}, "b"},
		"two without a lock": {func(f *fixture) {
			f.bound("a", one(f), nil)
			f.bound("b", one(f), nil)
		}, "no lock says which"},
		"lock of a gone pod": {func(f *fixture) {
			f.bound("a", one(f), nil)
			f.lock("gone")
		}, "a"},
		"elsewhere": {func(f *fixture) {
			f.bound("a", one(f), func(p *corev1.Pod) { p.Spec.NodeName = "n2" })
			f.lock("a")
		}, "no binding pod"},
		"running already": {func(f *fixture) {
			f.bound("a", one(f), func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning })
			f.lock("a")
		}, "no binding pod"},
		"served already": {func(f *fixture) {
			f.bound("a", one(f), func(p *corev1.Pod) { p.Annotations[wire.BindPhase] = string(wire.PhaseSuccess) })
			f.lock("a")
		}, "no binding pod"},
		"annotations disagree": {func(f *fixture) {
			f.bound("a", one(f), func(p *corev1.Pod) { p.Annotations[wire.ToAllocate] = f.uuid[0] + ",NVIDIA,40000,100:;" })
			f.lock("a")
		}, "no binding pod"},
		"card of another node": {func(f *fixture) {
			f.bound("a", "GPU-x,NVIDIA,1000,10:;", nil)
			f.lock("a")
		}, "no binding pod"},
		"more than the card has": {func(f *fixture) {
			f.bound("a", f.uuid[0]+",NVIDIA,50000,10:;", nil)
			f.lock("a")
		}, "no binding pod"},
		"number differs": {func(f *fixture) {
			f.bound("a", f.uuid[0]+",NVIDIA,1,1:"+f.uuid[1]+",NVIDIA,1,1:;", nil)
			f.lock("a")
		}, "device number not matched"},
	} {
		t.Run(name, func(t *testing.T) {
			f := start(t, nil)
			f.eventually("node is annotated", func() bool { return f.node().Annotations[wire.NodeRegister] != "" })
			tc.prepare(f)
			_, err := f.allocate(f.uuid[0] + "-0")
			if len(tc.want) > 1 {
				if err == nil || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("allocate: %v, want %q", err, tc.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := f.pod(tc.want).Annotations[wire.BindPhase]; got != string(wire.PhaseSuccess) {
				t.Errorf("pod %s is in phase %q", tc.want, got)
			}
		})
	}
}

func TestFailedPodIsMarkedAndUnlocked(t *testing.T) {
	f := start(t, nil)
	f.bound("dev", f.uuid[0]+",NVIDIA,1,1:"+f.uuid[1]+",NVIDIA,1,1:;", nil)
	f.lock("dev")
	if _, err := f.allocate(f.uuid[0] + "-0"); err == nil {
		t.Fatal("one slot for two vGPUs")
	}
	if got := f.pod("dev").Annotations[wire.BindPhase]; got != string(wire.PhaseFailed) {
		t.Errorf("phase = %q", got)
	}
	if lock, held := f.node().Annotations[wire.NodeMutex]; held {
		t.Errorf("lock = %q", lock)
	}
}

func TestPreferredAllocation(t *testing.T) {
	f := start(t, nil)
	f.bound("dev", f.uuid[1]+",NVIDIA,15000,30:;", nil)
	f.lock("dev")
	prefer := func(size int32, must ...string) []string {
		t.Helper()
		var available []string
		for _, card := range f.uuid {
			available = append(available, wire.ReplicaID(card, 0), wire.ReplicaID(card, 1))
		}
		r, err := f.plugin.GetPreferredAllocation(t.Context(), &kubelet.PreferredAllocationRequest{
			ContainerRequests: []*kubelet.ContainerPreferredAllocationRequest{{AvailableDeviceIDs: available, MustIncludeDeviceIDs: must, AllocationSize: size}},
		})
		if err != nil {
			t.Fatal(err)
		}
		return r.ContainerResponses[0].DeviceIDs
	}
	if diff := cmp.Diff([]string{f.uuid[1] + "-0"}, prefer(1)); diff != "" {
		t.Errorf("slots (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{f.uuid[0] + "-1", f.uuid[1] + "-0", f.uuid[0] + "-0"}, prefer(3, f.uuid[0]+"-1")); diff != "" {
		t.Errorf("slots (-want +got):\n%s", diff)
	}
}

func TestNoCardsNoStart(t *testing.T) {
	for name, source := range map[string]*cards{"none": {}, "unreadable": {err: errors.New("driver is gone")}} {
		p, err := deviceplugin.New(deviceplugin.Config{Node: nodeName, Client: fake.NewClientset(), Source: source, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Run(t.Context()); err == nil {
			t.Errorf("%s: the plugin starts", name)
		}
	}
}
