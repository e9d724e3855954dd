package hami_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/firstlight-dev/firstlight/launcher/backend"
	"github.com/firstlight-dev/firstlight/launcher/backend/hami"
	"github.com/firstlight-dev/firstlight/launcher/spec"
)

func TestTranslate(t *testing.T) {
	facts := backend.Facts{SchedulerName: "hami-scheduler"}
	for name, tc := range map[string]struct {
		gpu   spec.GPU
		facts backend.Facts
		want  string
	}{
		"share": {spec.GPU{Count: 1, Share: &spec.Share{MemoryMiB: 15000, Cores: 30}}, facts, `
limits: {nvidia.com/gpu: "1", nvidia.com/gpumem: "15000", nvidia.com/gpucores: "30"}
schedulerName: hami-scheduler
`},
		"share without cores": {spec.GPU{Count: 2, Model: "A100", Share: &spec.Share{MemoryMiB: 1024}}, facts, `
limits: {nvidia.com/gpu: "2", nvidia.com/gpumem: "1024", nvidia.com/gpucores: "0"}
annotations: {nvidia.com/use-gputype: A100}
schedulerName: hami-scheduler
`},
		"whole": {spec.GPU{Count: 8, Whole: true}, backend.Facts{SchedulerName: "s", RuntimeClass: "nvidia"}, `
limits: {nvidia.com/gpu: "8", nvidia.com/gpumem-percentage: "100", nvidia.com/gpucores: "100"}
schedulerName: s
runtimeClass: nvidia
`},
	} {
		t.Run(name, func(t *testing.T) {
			ask, err := hami.Backend{}.Translate(&spec.Spec{GPU: &tc.gpu}, tc.facts)
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

func TestRefusesWithoutScheduler(t *testing.T) {
	s := &spec.Spec{GPU: &spec.GPU{Count: 1, Whole: true}}
	if _, err := (hami.Backend{}).Translate(s, backend.Facts{}); !errors.Is(err, backend.ErrCannotExpress) {
		t.Errorf("translate: %v", err)
	}
}

// TestFiguresStayPlain checks that no figure is written with a suffix: HAMi
// would read 15k as 15 000 of something else, or drop the request.
func TestFiguresStayPlain(t *testing.T) {
	for _, mib := range []int{1, 999, 1000, 1024, 15000, 40960, 1 << 20} {
		s := &spec.Spec{GPU: &spec.GPU{Count: 1, Share: &spec.Share{MemoryMiB: mib}}}
		ask, err := hami.Backend{}.Translate(s, backend.Facts{SchedulerName: "s"})
		if err != nil {
			t.Fatal(err)
		}
		q := ask.Limits["nvidia.com/gpumem"]
		if q.Value() != int64(mib) {
			t.Errorf("%d MiB became %s", mib, q.String())
		}
	}
}
