package kube

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttest "k8s.io/client-go/testing"

	"github.com/firstlight-dev/firstlight/launcher/cluster"
)

// kubelet runs every pod as soon as it is made.
func kubelet(action clienttest.Action) (bool, runtime.Object, error) {
	create, ok := action.(clienttest.CreateAction)
	if !ok {
		return false, nil, nil
	}
	if p, ok := create.GetObject().(*corev1.Pod); ok {
		p.Spec.NodeName = "node-1"
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{
			Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()},
		}}}
	}
	return false, nil, nil // the tracker stores it
}

func testCluster(t *testing.T, client *fake.Clientset) *Cluster {
	t.Helper()
	c, err := newCluster(client, Config{Name: "k", Namespace: "ns", ToolsImage: "tools:1"}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	c.watch(t.Context())
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// TestStartAdoptsAndStops starts an environment twice, as a launcher does
// after a restart, and removes it twice.
func TestStartAdoptsAndStops(t *testing.T) {
	client := fake.NewClientset()
	client.PrependReactor("create", "pods", kubelet)
	c := testCluster(t, client)
	l := launch(t, "gpu: {count: 1, share: {memoryMiB: 1000}}")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for range 2 {
		l.Observer = &tape{}
		if err := c.Start(ctx, *l); err != nil {
			t.Fatal(err)
		}
	}
	seen, err := c.Observe(ctx)
	if err != nil || len(seen) != 1 || seen[0].Env != l.Env || seen[0].Name != l.Name || seen[0].Generation != 2 || seen[0].State != cluster.StateRunning {
		t.Errorf("it shows as %+v: %v", seen, err)
	}
	secret, err := client.CoreV1().Secrets("ns").Get(ctx, objectName(l.Env, 2), metav1.GetOptions{})
	if err != nil || len(secret.Data[configFile]) == 0 {
		t.Errorf("its secret: %v", err)
	}
	for range 2 {
		if err := c.Stop(ctx, l.Env); err != nil {
			t.Fatal(err)
		}
	}
	if seen, err := c.Observe(ctx); err != nil || len(seen) != 0 {
		t.Errorf("left behind: %+v: %v", seen, err)
	}
}

func TestStartFails(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	for name, tc := range map[string]struct {
		err       error
		code      cluster.Code
		retryable bool
	}{
		"denied by a webhook": {apierrors.NewForbidden(pods, "p", errors.New("exceeding resource quota")), cluster.CodeAdmissionDenied, false},
		"invalid":             {apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "p", nil), cluster.CodeAdmissionDenied, false},
		"no right":            {apierrors.NewForbidden(pods, "p", errors.New(`User "l" cannot create resource "pods" in API group ""`)), cluster.CodeForbidden, false},
		"no namespace":        {apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "ns"), cluster.CodeMissingCapability, false},
		"server busy":         {apierrors.NewTooManyRequests("later", 1), cluster.CodeUnreachable, true},
		"no connection":       {errors.New("connection refused"), cluster.CodeUnreachable, true},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset()
			client.PrependReactor("create", "pods", func(clienttest.Action) (bool, runtime.Object, error) { return true, nil, tc.err })
			c := testCluster(t, client)
			l := launch(t, "")
			l.Observer = &tape{}
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			err := c.Start(ctx, *l)
			var failed *cluster.Error
			if !errors.As(err, &failed) || failed.Code != tc.code || failed.Retryable != tc.retryable {
				t.Errorf("start: %v, want %s, retryable %t", err, tc.code, tc.retryable)
			}
		})
	}
}

func TestDialWhatDoesNotRun(t *testing.T) {
	c := testCluster(t, fake.NewClientset())
	if _, err := c.Dial(t.Context(), "env-x", 22); !errors.Is(err, cluster.ErrNotFound) {
		t.Errorf("dial: %v", err)
	}
	if _, err := c.Logs(t.Context(), "env-x", false); !errors.Is(err, cluster.ErrNotFound) {
		t.Errorf("logs: %v", err)
	}
}
