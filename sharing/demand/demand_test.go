package demand_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/firstlight-dev/firstlight/sharing/demand"
	"github.com/firstlight-dev/firstlight/sharing/fit"
	"github.com/firstlight-dev/firstlight/sharing/wire"
)

func container(limits map[corev1.ResourceName]string) corev1.Container {
	c := corev1.Container{Name: "c", Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{}}}
	for name, q := range limits {
		c.Resources.Limits[name] = resource.MustParse(q)
	}
	return c
}

func TestAmounts(t *testing.T) {
	for name, tc := range map[string]struct {
		limits map[corev1.ResourceName]string
		want   fit.Request
		bad    bool
	}{
		"none":              {want: fit.Request{}},
		"memory, no count":  {limits: map[corev1.ResourceName]string{wire.ResourceMemory: "100"}},
		"whole card":        {limits: map[corev1.ResourceName]string{wire.ResourceCount: "2"}, want: fit.Request{Count: 2, MemPercent: 100}},
		"share":             {limits: map[corev1.ResourceName]string{wire.ResourceCount: "1", wire.ResourceMemory: "15000", wire.ResourceCores: "30"}, want: fit.Request{Count: 1, MemMiB: 15000, Cores: 30}},
		"15k is a number":   {limits: map[corev1.ResourceName]string{wire.ResourceCount: "1", wire.ResourceMemory: "15k"}, want: fit.Request{Count: 1, MemMiB: 15000}},
		"percent":           {limits: map[corev1.ResourceName]string{wire.ResourceCount: "1", wire.ResourceMemPercent: "50"}, want: fit.Request{Count: 1, MemPercent: 50}},
		"percent above 100": {limits: map[corev1.ResourceName]string{wire.ResourceCount: "1", wire.ResourceMemPercent: "101"}, bad: true},
		"bytes for MiB":     {limits: map[corev1.ResourceName]string{wire.ResourceCount: "1", wire.ResourceMemory: "15Gi"}, bad: true},
		"fraction":          {limits: map[corev1.ResourceName]string{wire.ResourceCount: "1", wire.ResourceMemory: "1500m"}, bad: true},
		"too many":          {limits: map[corev1.ResourceName]string{wire.ResourceCount: "5000"}, bad: true},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{container(tc.limits)}}}
			d, err := demand.FromPod(pod)
			if tc.bad {
				if !errors.Is(err, demand.ErrInvalid) {
					t.Fatalf("FromPod = %+v, %v; want ErrInvalid", d, err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]fit.Request{tc.want}, d.Requests); diff != "" {
				t.Errorf("requests (-want +got):\n%s", diff)
			}
			if d.Any() != (tc.want.Count > 0) {
				t.Errorf("Any = %t", d.Any())
			}
		})
	}
}

func TestRolesAndSteering(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	share := container(map[corev1.ResourceName]string{wire.ResourceCount: "1", wire.ResourceMemory: "1"})
	sidecar := share
	sidecar.RestartPolicy = &always
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		InitContainers: []corev1.Container{share, sidecar}, Containers: []corev1.Container{container(nil), share},
	}}
	pod.Annotations = map[string]string{
		wire.UseUUID: " GPU-a, ,GPU-b", wire.AvoidType: "T4", wire.NumaBind: "true", wire.Mode: "hami-core",
		wire.NodePolicy: "spread", wire.CardPolicy: "binpack",
	}
	d, err := demand.FromPod(pod)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]fit.Role{fit.Init, fit.Sidecar, fit.App, fit.App}, d.Roles()); diff != "" {
		t.Errorf("roles (-want +got):\n%s", diff)
	}
	want := fit.Request{
		Count: 1, MemMiB: 1, UseUUIDs: []string{"GPU-a", "GPU-b"}, AvoidTypes: []string{"T4"}, NumaBind: true, Modes: "hami-core",
	}
	if diff := cmp.Diff(want, d.Requests[3]); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
	if d.NodePolicy != "spread" || d.CardPolicy != "binpack" {
		t.Errorf("policies = %q, %q", d.NodePolicy, d.CardPolicy)
	}
}
