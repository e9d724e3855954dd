package spec_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/firstlight-dev/firstlight/launcher/spec"
)

const quarter = `
name: quarter
image: registry.local:5000/torch:2.9
cpu: 500m
memory: 8Gi
shm: 1Gi
gpu: {model: A100, count: 1, share: {memoryMiB: 10240, cores: 25}}
readiness:
- {name: login, type: ssh_login}
- {name: torch, type: exec, command: [python3, -c, import torch], timeout: 2m}
volumes:
- {name: data, claim: datasets, mountPath: /data, readOnly: true}
`

func TestParseFillsInDefaults(t *testing.T) {
	s, err := spec.Parse([]byte(quarter))
	if err != nil {
		t.Fatal(err)
	}
	if s.Backend != spec.BackendHAMi || s.OnExit != spec.OnExitKeep || !cmp.Equal(s.Tools, []string{spec.ToolSSH}) {
		t.Errorf("defaults are %q, %q, %q", s.Backend, s.OnExit, s.Tools)
	}
	if s.CPUMillis() != 500 || s.MemoryBytes() != 8<<30 || s.ShmBytes() != 1<<30 {
		t.Errorf("sizes are %d, %d, %d", s.CPUMillis(), s.MemoryBytes(), s.ShmBytes())
	}
	if got := s.Readiness[1].Attempt(time.Second); got != 2*time.Minute {
		t.Errorf("an attempt gets %v", got)
	}
	if !s.GPU.MatchesModel("NVIDIA a100-SXM4-40GB") || s.GPU.MatchesModel("NVIDIA H100") {
		t.Error("the model is matched wrongly")
	}
}

// TestCompleteIsStable checks that a stored revision means the same when it is
// read again.
func TestCompleteIsStable(t *testing.T) {
	s, err := spec.Parse([]byte(quarter))
	if err != nil {
		t.Fatal(err)
	}
	text, err := yaml.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	again, err := spec.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(s, again); diff != "" {
		t.Error(diff)
	}
}

func TestWholeCardChoosesItsBackend(t *testing.T) {
	s, err := spec.Parse([]byte("{name: a, image: b, cpu: 1, memory: 1Gi, gpu: {count: 2, whole: true}}"))
	if err == nil && s.Backend != spec.BackendWhole {
		t.Errorf("backend is %q", s.Backend)
	}
	if err != nil && !strings.Contains(err.Error(), "cpu") { // a bare number is no string
		t.Error(err)
	}
}

// TestValidate names the field of every problem.
func TestValidate(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(s *spec.Spec)
		field  string
	}{
		"name":               {func(s *spec.Spec) { s.Name = "A" }, "name"},
		"image":              {func(s *spec.Spec) { s.Image = "a b" }, "image"},
		"empty argument":     {func(s *spec.Spec) { s.Command = []string{""} }, "command[0]"},
		"zero byte":          {func(s *spec.Spec) { s.Command = []string{"a", "\x00"} }, "command[1]"},
		"on exit":            {func(s *spec.Spec) { s.OnExit = "restart" }, "onExit"},
		"variable":           {func(s *spec.Spec) { s.Env = []spec.EnvVar{{Name: "1A"}} }, "env[0].name"},
		"variable twice":     {func(s *spec.Spec) { s.Env = []spec.EnvVar{{Name: "A"}, {Name: "A"}} }, "env[1].name"},
		"limit lifted":       {func(s *spec.Spec) { s.Env = []spec.EnvVar{{Name: "CUDA_DEVICE_MEMORY_LIMIT_0"}} }, "env[0].name"},
		"loader steered":     {func(s *spec.Spec) { s.Env = []spec.EnvVar{{Name: "LD_PRELOAD"}} }, "env[0].name"},
		"no cpu":             {func(s *spec.Spec) { s.CPU = "" }, "cpu"},
		"negative memory":    {func(s *spec.Spec) { s.Memory = "-1" }, "memory"},
		"shm over memory":    {func(s *spec.Spec) { s.Shm = "9Gi" }, "shm"},
		"whole and share":    {func(s *spec.Spec) { s.GPU.Whole = true }, "gpu"},
		"no cards":           {func(s *spec.Spec) { s.GPU.Count = 0 }, "gpu.count"},
		"no memory":          {func(s *spec.Spec) { s.GPU.Share.MemoryMiB = 0 }, "gpu.share.memoryMiB"},
		"too many cores":     {func(s *spec.Spec) { s.GPU.Share.Cores = 101 }, "gpu.share.cores"},
		"backend":            {func(s *spec.Spec) { s.Backend = "magic" }, "backend"},
		"whole with share":   {func(s *spec.Spec) { s.Backend = spec.BackendWhole }, "gpu.share"},
		"backend without":    {func(s *spec.Spec) { s.GPU = nil }, "backend"},
		"tool":               {func(s *spec.Spec) { s.Tools = []string{"ssh", "emacs"} }, "tools[1]"},
		"mount at root":      {func(s *spec.Spec) { s.Volumes[0].MountPath = "/" }, "volumes[0].mountPath"},
		"mount over tools":   {func(s *spec.Spec) { s.Volumes[0].MountPath = "/opt" }, "volumes[0].mountPath"},
		"mount not clean":    {func(s *spec.Spec) { s.Volumes[0].MountPath = "/a/../b" }, "volumes[0].mountPath"},
		"two sources":        {func(s *spec.Spec) { s.Volumes[0].HostPath = "/x" }, "volumes[0]"},
		"probe name":         {func(s *spec.Spec) { s.Readiness[1].Name = "login" }, "readiness[1].name"},
		"probe kind":         {func(s *spec.Spec) { s.Readiness[0].Type = "ping" }, "readiness[0].type"},
		"probe command":      {func(s *spec.Spec) { s.Readiness[1].Command = nil }, "readiness[1].command"},
		"login with command": {func(s *spec.Spec) { s.Readiness[0].Command = []string{"a"} }, "readiness[0]"},
		"probe timeout":      {func(s *spec.Spec) { s.Readiness[1].Timeout = "soon" }, "readiness[1].timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := spec.Parse([]byte(quarter))
			if err != nil {
				t.Fatal(err)
			}
			tc.change(s)
			got := s.Validate()
			if len(got) != 1 || got[0].Path != tc.field {
				t.Errorf("problems are %v, want one with %s", got, tc.field)
			}
			if !errors.Is(got, spec.ErrInvalid) {
				t.Error("the problems are not ErrInvalid")
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"unknown field":   quarter + "gpus: 2\n",
		"field twice":     quarter + "cpu: \"2\"\n",
		"not an object":   "[]",
		"too long":        "name: " + strings.Repeat("a", 70<<10),
		"memory in words": strings.Replace(quarter, "10240", "10Gi", 1),
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := spec.Parse([]byte(text)); !errors.Is(err, spec.ErrInvalid) {
				t.Errorf("parse: %v", err)
			}
		})
	}
}

func TestParseRef(t *testing.T) {
	for text, want := range map[string]spec.Ref{"a": {Name: "a"}, "a-b@12": {Name: "a-b", Revision: 12}} {
		got, err := spec.ParseRef(text)
		if err != nil || got != want || got.String() != text {
			t.Errorf("%s is %+v: %v", text, got, err)
		}
	}
	for _, text := range []string{"", "A", "a@", "a@0", "a@-1", "a@b", "a@1@2"} {
		if got, err := spec.ParseRef(text); err == nil {
			t.Errorf("%q is %+v", text, got)
		}
	}
}

// FuzzParse checks that whatever parses is valid and parses to the same again.
func FuzzParse(f *testing.F) {
	f.Add([]byte(quarter))
	f.Add([]byte(`{"name":"a","image":"b","cpu":"1","memory":"1"}`))
	f.Add([]byte("a: &a [*a]"))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := spec.Parse(text)
		if err != nil {
			return
		}
		again, err := yaml.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		other, err := spec.Parse(again)
		if err != nil {
			t.Fatalf("what parsed does not parse again: %v\n%s", err, again)
		}
		if diff := cmp.Diff(s, other); diff != "" {
			t.Fatal(diff)
		}
	})
}
