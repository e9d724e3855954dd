package cluster_test

import (
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/firstlight-dev/firstlight/test/cluster"
)

// start starts a cluster that ends with the test. Its logs are kept when the
// test fails.
func start(t *testing.T, cfg cluster.Config) *cluster.Cluster {
	t.Helper()
	if err := cluster.Probe(cfg); err != nil {
		t.Skip(err)
	}
	began := time.Now()
	c, err := cluster.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("started in %s, state in %s", time.Since(began).Round(time.Millisecond), c.Dir())
	t.Cleanup(func() {
		if t.Failed() {
			c.Keep()
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		checkNothingLeft(t, c)
	})
	return c
}

// checkNothingLeft checks that the machine is as it was.
func checkNothingLeft(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	left, err := filepath.Glob("/sys/fs/cgroup/*/firstlight-cluster-" + strconv.Itoa(os.Getpid()) + "-*")
	if err != nil {
		t.Fatal(err)
	}
	if len(left) > 0 {
		t.Errorf("cgroups left: %v", left)
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(mounts), c.Dir()) {
		t.Errorf("mounts left:\n%s", mounts)
	}
	if _, err := os.Stat(c.Dir()); !t.Failed() && !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("state folder left: %v", err)
	}
}

const pod = `
apiVersion: v1
kind: Pod
metadata: {name: hello}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: localhost/busybox:1
    imagePullPolicy: Never
    command: [sh, -c, "echo hello from $(hostname); exec sleep infinity"]
`

func TestPod(t *testing.T) {
	c := start(t, cluster.Config{})
	ctx := t.Context()
	if err := c.Apply(ctx, pod); err != nil {
		t.Fatal(err)
	}
	kubectl := func(args ...string) string {
		t.Helper()
		out, err := c.Kubectl(ctx, args...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	kubectl("wait", "--for=condition=Ready", "pod/hello", "--timeout=60s")
	if got, want := kubectl("logs", "hello"), "hello from hello\n"; got != want {
		t.Errorf("log is %q, want %q", got, want)
	}
	if got := kubectl("exec", "hello", "--", "cat", "/etc/hostname"); got != "hello\n" {
		t.Errorf("exec printed %q", got)
	}
	stats := kubectl("get", "--raw", "/api/v1/nodes/"+c.Node()+"/proxy/stats/summary")
	if !strings.Contains(stats, `"imageFs"`) {
		t.Errorf("statistics without the image file system: %s", stats)
	}
	kubectl("delete", "pod", "hello", "--wait=true", "--timeout=60s")
}

// TestWaysIn checks what a program outside can reach, and as whom.
func TestWaysIn(t *testing.T) {
	c := start(t, cluster.Config{Registry: true, SchedulerName: "other"})
	ctx := t.Context()

	address, err := c.Forward(cluster.RegistryAddress)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Get("http://" + address + "/v2/")
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK {
		t.Errorf("registry answers %s: %s", resp.Status, body)
	}

	conn, err := c.Dial(ctx, "unix", cluster.ContainerdSocket)
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}

	user, err := c.Kubeconfig("somebody", "some-group")
	if err != nil {
		t.Fatal(err)
	}
	outside := c.Command(ctx, "kubectl", "--kubeconfig="+user.Outside, "auth", "whoami")
	if out, err := outside.CombinedOutput(); err != nil || !strings.Contains(string(out), "some-group") {
		t.Errorf("whoami outside: %v\n%s", err, out)
	}
	if out, err := c.Kubectl(ctx, "--kubeconfig="+user.Inside, "get", "pods"); err == nil {
		t.Errorf("an identity without a role listed pods: %s", out)
	}

	attached, err := cluster.Attach(c.Dir())
	if err != nil {
		t.Fatal(err)
	}
	if out, err := attached.Exec(ctx, "hostname"); err != nil || strings.TrimSpace(out) != c.Node() {
		t.Errorf("attached, the host name is %q: %v", out, err)
	}
	if err := attached.Close(); err != nil {
		t.Error(err)
	}

	scheduled := strings.Replace(pod, "spec:", "spec:\n  schedulerName: other", 1)
	if err := c.Apply(ctx, scheduled); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Kubectl(ctx, "wait", "--for=condition=PodScheduled", "pod/hello", "--timeout=60s"); err != nil {
		t.Error(err)
	}
}

// TestComponentEnds checks that a component that cannot start is named, with
// what it said.
func TestComponentEnds(t *testing.T) {
	cfg := cluster.Config{Dir: t.TempDir(), Flags: map[string][]string{"kube-apiserver": {"--no-such-flag"}}}
	if err := cluster.Probe(cfg); err != nil {
		t.Skip(err)
	}
	c, err := cluster.Start(t.Context(), cfg)
	if err == nil {
		t.Fatal(errors.Join(errors.New("a cluster without an API server started"), c.Close()))
	}
	for _, want := range []string{"kube-apiserver ended early", "unknown flag: --no-such-flag", "logs in " + cfg.Dir} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error lacks %q: %v", want, err)
		}
	}
}

func TestStateFolderUnderPrivateFolder(t *testing.T) {
	if err := cluster.Probe(cluster.Config{}); err != nil {
		t.Skip(err)
	}
	_, err := cluster.Start(t.Context(), cluster.Config{Dir: "/var/lib/some-cluster"})
	if err == nil || !strings.Contains(err.Error(), "private inside the cluster") {
		t.Errorf("got error %v", err)
	}
}
