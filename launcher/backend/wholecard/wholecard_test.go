package wholecard_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/firstlight-dev/firstlight/launcher/backend"
	"github.com/firstlight-dev/firstlight/launcher/backend/wholecard"
	"github.com/firstlight-dev/firstlight/launcher/spec"
)

func facts() backend.Facts {
	return backend.Facts{Products: []string{"NVIDIA-H100-80GB", "NVIDIA-A100-SXM4-80GB", "NVIDIA-A100-PCIE-40GB", "NVIDIA-H100-80GB"}}
}

func TestTranslate(t *testing.T) {
	for name, tc := range map[string]struct {
		gpu  spec.GPU
		want string
	}{
		"any model": {spec.GPU{Count: 2, Whole: true}, `limits: {nvidia.com/gpu: "2"}`},
		"model": {spec.GPU{Count: 1, Whole: true, Model: "a100"}, `
limits: {nvidia.com/gpu: "1"}
node: {nvidia.com/gpu.product: [NVIDIA-A100-PCIE-40GB, NVIDIA-A100-SXM4-80GB]}
`},
		"model on many nodes": {spec.GPU{Count: 1, Whole: true, Model: "H100"}, `
limits: {nvidia.com/gpu: "1"}
node: {nvidia.com/gpu.product: [NVIDIA-H100-80GB]}
`},
	} {
		t.Run(name, func(t *testing.T) {
			ask, err := wholecard.Backend{}.Translate(&spec.Spec{GPU: &tc.gpu}, facts())
			if err != nil {
				t.Fatal(err)
			}
			var want backend.Ask
			if err := yaml.UnmarshalStrict([]byte(tc.want), &want); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(&want, ask); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestRefuses(t *testing.T) {
	for name, gpu := range map[string]spec.GPU{
		"share":         {Count: 1, Share: &spec.Share{MemoryMiB: 1000}},
		"unknown model": {Count: 1, Whole: true, Model: "B200"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := (wholecard.Backend{}).Translate(&spec.Spec{GPU: &gpu}, facts()); !errors.Is(err, backend.ErrCannotExpress) {
				t.Errorf("translate: %v", err)
			}
		})
	}
}
