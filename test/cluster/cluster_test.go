package cluster_test

import (
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
	})
	return c
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
