package e2e

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/firstlight-dev/firstlight/snapshotter/nodeapi"
	"github.com/firstlight-dev/firstlight/test/cluster"
	"github.com/firstlight-dev/firstlight/test/deployment"
)

// TestLazyPull pulls an indexed image through CRI and reads one file of it.
func TestLazyPull(t *testing.T) {
	for name, tc := range map[string]struct {
		seed    uint64
		start   func(*testing.T) *fixture
		podSpec string
	}{
		"runtime class":       {1, lazy, lazyPod},
		"default snapshotter": {2, withDefaultSnapshotter, plainPod},
	} {
		t.Run(name, func(t *testing.T) {
			f := tc.start(t)
			image := newDataImage(t, tc.seed)
			ref := image.push(t, f, "lazy-"+strconv.FormatUint(tc.seed, 10))
			f.firstlight(t, "index", "create", ref)
			f.apply(t, fmt.Sprintf(tc.podSpec, "reader", ref, "sha256sum /data/3/2; exec sleep infinity"))
			f.waitPod(t, "reader", "condition=Ready")

			if got, want := firstLine(t, f, "reader"), image.sums["/data/3/2"]+"  /data/3/2"; got != want {
				t.Errorf("the pod read %q, want %q", got, want)
			}
			read, size := fetched(t, f, ref), image.size(t)
			t.Logf("fetched %d of %d bytes", read, size)
			if read == 0 || read > size/4 {
				t.Errorf("fetched %d bytes of an image of %d, want some, and at most a quarter", read, size)
			}
			checkImageStats(t, f)
		})
	}
}

// TestPullWithoutIndex checks that an image without an index is an ordinary
// image.
func TestPullWithoutIndex(t *testing.T) {
	f := lazy(t)
	image := newDataImage(t, 3)
	ref := image.push(t, f, "plain")
	f.apply(t, fmt.Sprintf(lazyPod, "plain", ref, "sha256sum /data/0/0; exec sleep infinity"))
	f.waitPod(t, "plain", "condition=Ready")
	if got, want := firstLine(t, f, "plain"), image.sums["/data/0/0"]+"  /data/0/0"; got != want {
		t.Errorf("the pod read %q, want %q", got, want)
	}
}

// TestWorkerKilledWhileReading kills the process that serves a container's
// files while the container reads them. The container must not notice.
func TestWorkerKilledWhileReading(t *testing.T) {
	const kills = 3
	f := lazy(t)
	image := newDataImage(t, 4)
	ref := image.push(t, f, "killed")
	f.firstlight(t, "index", "create", ref)
	f.apply(t, fmt.Sprintf(lazyPod, "reader", ref,
		"for f in /data/*/*; do sha256sum $f || exit 1; done"))
	f.waitPod(t, "reader", "jsonpath={.status.containerStatuses[0].containerID}")

	before := nodeStatus(t, f).WorkerRestarts
	logs, err := f.client.CoreV1().Pods("default").GetLogs("reader", &corev1.PodLogOptions{Follow: true}).Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = logs.Close() }()
	lines, read := 0, bufio.NewScanner(logs)
	for ; read.Scan(); lines++ {
		sum, path, ok := strings.Cut(read.Text(), "  ")
		if !ok || image.sums[path] != sum {
			t.Errorf("the pod read %q", read.Text())
		}
		if lines < kills {
			killWorker(t, f)
		}
	}
	if err := read.Err(); err != nil {
		t.Error(err)
	}
	if lines != len(image.sums) {
		t.Errorf("the pod read %d of %d files", lines, len(image.sums))
	}
	f.waitPod(t, "reader", "jsonpath={.status.phase}=Succeeded")
	if fetched(t, f, ref) == 0 {
		t.Error("the image was not loaded lazily")
	}
	if after := nodeStatus(t, f).WorkerRestarts; after <= before {
		t.Errorf("the worker was killed and counts %d restarts, before %d", after, before)
	}
}

// withDefaultSnapshotter starts a cluster of its own in which every pod uses
// the snapshotter.
func withDefaultSnapshotter(t *testing.T) *fixture {
	t.Helper()
	cfg := config()
	if err := cluster.Probe(cfg); err != nil {
		t.Skip(err)
	}
	cfg.Snapshotters[0].Default, cfg.Snapshotters[0].Handler = true, ""
	f, err := start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			f.Keep()
			t.Log("logs of the cluster:", f.Logs())
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := f.StartSnapshotter(t.Context()); err != nil {
		t.Fatal(err)
	}
	return f
}

// Pods are made from a name, an image and a shell script. Kubelet tells
// containerd the runtime class of a pod only when it starts the pod, not when
// it pulls the image, as long as the feature RuntimeClassInImageCriApi is
// alpha; the annotation tells it at both times.
const (
	lazyPod = `
apiVersion: v1
kind: Pod
metadata: {name: %s, annotations: {io.containerd.cri.runtime-handler: firstlight}}
spec:
  runtimeClassName: firstlight` + podRest
	plainPod = `
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:` + podRest
	podRest = `
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: %s
    imagePullPolicy: Always
    command: [sh, -c, %q]
`
)

// firstLine waits for the first line of a pod's log.
func firstLine(t *testing.T, f *fixture, pod string) string {
	t.Helper()
	logs, err := f.client.CoreV1().Pods("default").GetLogs(pod, &corev1.PodLogOptions{Follow: true}).Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = logs.Close() }()
	read := bufio.NewScanner(logs)
	if !read.Scan() {
		t.Fatalf("the log of %s is empty: %v", pod, read.Err())
	}
	return read.Text()
}

// fetched returns how many bytes the snapshotter fetched of an image.
func fetched(t *testing.T, f *fixture, ref string) int64 {
	t.Helper()
	images, err := nodeapi.NewClient(f.Root(deployment.NodeSocket)).Images(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, image := range images {
		if image.Ref == ref {
			return image.Totals().BytesFetched
		}
	}
	t.Fatalf("the snapshotter does not know %s: %+v", ref, images)
	return 0
}

// checkImageStats checks that kubelet finds the file system of the images; it
// serves no statistics at all otherwise.
func checkImageStats(t *testing.T, f *fixture) {
	t.Helper()
	stats := f.kubectl(t, "get", "--raw", "/api/v1/nodes/"+f.Node()+"/proxy/stats/summary")
	if !strings.Contains(stats, `"imageFs"`) {
		t.Errorf("statistics without the image file system: %s", stats)
	}
}

func nodeStatus(t *testing.T, f *fixture) nodeapi.Status {
	t.Helper()
	status, err := nodeapi.NewClient(f.Root(deployment.NodeSocket)).Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return status
}

// killWorker kills the child of the snapshotter's keeper.
func killWorker(t *testing.T, f *fixture) {
	t.Helper()
	pattern := fmt.Sprintf("/proc/%d/task/*/children", f.Snapshotter.PID())
	files, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		children, err := os.ReadFile(file)
		if err != nil {
			continue // the thread has ended
		}
		for child := range strings.FieldsSeq(string(children)) {
			pid, err := strconv.Atoi(child)
			if err != nil {
				t.Fatal(err)
			}
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	t.Log("the worker was not running when it was to be killed")
}
