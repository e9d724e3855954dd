package webhook_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admission "k8s.io/api/admission/v1"
	admissionregistration "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/firstlight-dev/firstlight/sharing/webhook"
	"github.com/firstlight-dev/firstlight/sharing/wire"
)

var config = webhook.Config{SchedulerName: wire.SchedulerName, AlsoFrom: []string{wire.HAMiSchedulerName}}

type limits = map[corev1.ResourceName]string

func pod(l limits, change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{Spec: corev1.PodSpec{SchedulerName: corev1.DefaultSchedulerName, Containers: []corev1.Container{{Name: "main"}}}}
	for name, q := range l {
		if p.Spec.Containers[0].Resources.Limits == nil {
			p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{}
		}
		p.Spec.Containers[0].Resources.Limits[name] = resource.MustParse(q)
	}
	if change != nil {
		change(p)
	}
	return p
}

// outcome applies the patch and gives what matters of the result in words.
func outcome(t *testing.T, c webhook.Config, p *corev1.Pod) string {
	t.Helper()
	ops, err := c.Review(p)
	if err != nil {
		var denial webhook.Denial
		if !errors.As(err, &denial) {
			t.Fatal(err)
		}
		return "denied: " + err.Error()
	}
	words := []string{}
	for _, op := range ops {
		text, err := json.Marshal(op.Value)
		if err != nil {
			t.Fatal(err)
		}
		words = append(words, op.Path+"="+string(text))
	}
	return strings.Join(words, " ")
}

const toUs = `/spec/schedulerName="firstlight-scheduler"`

func TestReview(t *testing.T) {
	yes := true
	for name, tc := range map[string]struct {
		pod  *corev1.Pod
		want string
	}{
		"no vGPU":       {pod(nil, nil), ""},
		"no containers": {&corev1.Pod{}, "denied: pod has no containers"},
		"complete share": {
			pod(limits{wire.ResourceCount: "1", wire.ResourceMemory: "15000", wire.ResourceCores: "30"}, nil), toUs,
		},
		"memory only": {
			pod(limits{wire.ResourceMemory: "15000"}, nil),
			`/spec/containers/0/resources={"limits":{"nvidia.com/gpu":"1","nvidia.com/gpumem":"15k"},"requests":{"nvidia.com/gpu":"1"}} ` + toUs,
		},
		"whole card": {
			pod(limits{wire.ResourceCount: "2"}, nil),
			`/spec/containers/0/resources={"limits":{"nvidia.com/gpu":"2","nvidia.com/gpucores":"100"},"requests":{"nvidia.com/gpucores":"100"}} ` + toUs,
		},
		"half a card": {pod(limits{wire.ResourceCount: "1", wire.ResourceMemPercent: "50"}, nil), toUs},
		"zero":        {pod(limits{wire.ResourceCount: "0", wire.ResourceMemory: "1"}, nil), ""},
		"other scheduler": {
			pod(limits{wire.ResourceCount: "1"}, func(p *corev1.Pod) { p.Spec.SchedulerName = "volcano" }), "",
		},
		"HAMi's scheduler": {
			pod(limits{wire.ResourceCount: "1", wire.ResourceMemory: "1"}, func(p *corev1.Pod) { p.Spec.SchedulerName = wire.HAMiSchedulerName }), toUs,
		},
		"ours already": {
			pod(limits{wire.ResourceCount: "1", wire.ResourceMemory: "1"}, func(p *corev1.Pod) { p.Spec.SchedulerName = wire.SchedulerName }), "",
		},
		"ignored by label": {
			pod(limits{wire.ResourceMemory: "15Gi"}, func(p *corev1.Pod) { p.Labels = map[string]string{wire.WebhookLabel: "ignore"} }), "",
		},
		"node assigned": {
			pod(limits{wire.ResourceCount: "1"}, func(p *corev1.Pod) { p.Spec.NodeName = "n1" }), "denied: pod has node assigned",
		},
		"privileged": {
			pod(limits{wire.ResourceMemory: "1"}, func(p *corev1.Pod) {
				p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: &yes}
			}), "denied: container main is privileged",
		},
		"privileged without vGPU": {
			pod(nil, func(p *corev1.Pod) { p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: &yes} }), "",
		},
		"percent": {
			pod(limits{wire.ResourceMemPercent: "101"}, nil),
			"denied: container main: nvidia.com/gpumem-percentage is 101, want 1 to 100",
		},
		"bytes for MiB": {
			pod(limits{wire.ResourceMemory: "15Gi"}, nil),
			"denied: container main: nvidia.com/gpumem is 15Gi: want a whole number up to 2147483647, in MiB and without a suffix",
		},
		"forged": {
			pod(nil, func(p *corev1.Pod) { p.Annotations = map[string]string{wire.Allocated: ""} }),
			"denied: annotation hami.io/vgpu-devices-allocated is written by the scheduler only",
		},
		"priority": {
			pod(limits{wire.ResourceCount: "1", wire.ResourceMemory: "1", wire.ResourcePriority: "0"}, nil),
			`/spec/containers/0/env=[{"name":"CUDA_TASK_PRIORITY","value":"0"}] ` + toUs,
		},
		"init container": {
			pod(nil, func(p *corev1.Pod) {
				p.Spec.InitContainers = pod(limits{wire.ResourceCores: "10"}, nil).Spec.Containers
			}),
			`/spec/initContainers/0/resources={"limits":{"nvidia.com/gpu":"1","nvidia.com/gpucores":"10"},"requests":{"nvidia.com/gpu":"1"}} ` + toUs,
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, outcome(t, config, tc.pod)); diff != "" {
				t.Errorf("outcome (-want +got):\n%s", diff)
			}
		})
	}
}

func TestOptions(t *testing.T) {
	c := config
	c.RuntimeClass, c.HideCards = "nvidia", true
	p := pod(limits{wire.ResourceCount: "1", wire.ResourceMemory: "1"}, func(p *corev1.Pod) {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "side"})
	})
	want := toUs + ` /spec/runtimeClassName="nvidia" /spec/containers/1/env=[{"name":"NVIDIA_VISIBLE_DEVICES","value":"none"}]`
	if diff := cmp.Diff(want, outcome(t, c, p)); diff != "" {
		t.Errorf("outcome (-want +got):\n%s", diff)
	}
}

func TestHandler(t *testing.T) {
	handler := config.Handler(slog.New(slog.DiscardHandler))
	call := func(op admission.Operation, object any) *admission.AdmissionResponse {
		t.Helper()
		raw, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		body, err := json.Marshal(admission.AdmissionReview{
			TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
			Request:  &admission.AdmissionRequest{UID: "u", Operation: op, Object: runtime.RawExtension{Raw: raw}},
		})
		if err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/webhook", bytes.NewReader(body)))
		var review admission.AdmissionReview
		if err := json.Unmarshal(w.Body.Bytes(), &review); err != nil || review.Response == nil || review.Response.UID != "u" {
			t.Fatalf("answer %d %s: %v", w.Code, w.Body, err)
		}
		return review.Response
	}
	if r := call(admission.Create, pod(limits{wire.ResourceMemory: "1"}, nil)); !r.Allowed || !strings.Contains(string(r.Patch), wire.SchedulerName) {
		t.Errorf("share: %+v", r)
	}
	if r := call(admission.Create, pod(nil, nil)); !r.Allowed || r.Patch != nil || r.PatchType != nil {
		t.Errorf("plain pod: %+v", r)
	}
	if r := call(admission.Update, pod(limits{wire.ResourceMemory: "15Gi"}, nil)); !r.Allowed {
		t.Errorf("update: %+v", r)
	}
	if r := call(admission.Create, pod(limits{wire.ResourceMemory: "15Gi"}, nil)); r.Allowed || r.Result.Code != http.StatusForbidden {
		t.Errorf("wrong share: %+v", r)
	}
	if r := call(admission.Create, []int{1}); r.Allowed {
		t.Errorf("no pod: %+v", r)
	}
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/webhook", strings.NewReader("{")))
	if w.Code != http.StatusBadRequest {
		t.Errorf("garbage: %d", w.Code)
	}
}

func TestSelfSigned(t *testing.T) {
	certificate, authority, err := webhook.SelfSigned([]string{"scheduler.ns.svc", "127.0.0.1"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(config.Handler(slog.New(slog.DiscardHandler)))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}
	server.StartTLS()
	defer server.Close()
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(authority) {
		t.Fatal("authority is no PEM certificate")
	}
	for _, name := range []string{"scheduler.ns.svc", "127.0.0.1"} {
		client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: name, MinVersion: tls.VersionTLS12}}}
		resp, err := client.Post(server.URL, "application/json", strings.NewReader("{"))
		if err != nil {
			t.Errorf("as %s: %v", name, err)
			continue
		}
		resp.Body.Close()
	}
	if _, _, err := webhook.SelfSigned(nil, time.Now()); err == nil {
		t.Error("a certificate for nobody")
	}
}

func TestTrust(t *testing.T) {
	client := fake.NewClientset(&admissionregistration.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "vgpu"},
		Webhooks:   []admissionregistration.MutatingWebhook{{Name: "a"}, {Name: "b"}},
	})
	if err := webhook.Trust(t.Context(), client, "vgpu", []byte("pem")); err != nil {
		t.Fatal(err)
	}
	got, err := client.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(t.Context(), "vgpu", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range got.Webhooks {
		if string(w.ClientConfig.CABundle) != "pem" {
			t.Errorf("webhook %s trusts %q", w.Name, w.ClientConfig.CABundle)
		}
	}
	if err := webhook.Trust(t.Context(), client, "missing", nil); err == nil {
		t.Error("a missing configuration is no error")
	}
}
