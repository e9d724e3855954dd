package kube

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/firstlight-dev/firstlight/launcher/agentapi"
	"github.com/firstlight-dev/firstlight/launcher/backend"
	"github.com/firstlight-dev/firstlight/launcher/backend/hami"
	"github.com/firstlight-dev/firstlight/launcher/cluster"
	"github.com/firstlight-dev/firstlight/launcher/spec"
)

var update = flag.Bool("update", false, "write the golden files")

const hostKey = "canary-host-key"

func launch(t *testing.T, text string) *cluster.Launch {
	t.Helper()
	s, err := spec.Parse([]byte("name: s\nimage: r/i:1\ncpu: \"2\"\nmemory: 8Gi\n" + text))
	if err != nil {
		t.Fatal(err)
	}
	return &cluster.Launch{
		Env: "env-01abc", Name: "train", Generation: 2, Spec: *s,
		Image: cluster.Image{Pinned: "r/i@sha256:1234", Entrypoint: []string{"/start"}, Cmd: []string{"--serve"}},
		Agent: agentapi.Config{Environment: "env-01abc", SSH: agentapi.SSHConfig{HostKey: hostKey}},
	}
}

func TestPodGolden(t *testing.T) {
	volume := rendering{namespace: "ns", tools: "tools:1", delivery: DeliverImageVolume, runtime: "firstlight"}
	initial := rendering{namespace: "ns", tools: "tools:1", delivery: DeliverInitContainer, hostPaths: []string{"/data"}}
	for name, tc := range map[string]struct {
		r    rendering
		spec string
	}{
		"cpu-only": {volume, "command: [sleep, inf]\nonExit: exit\nenv: [{name: A, value: b}]"},
		"share":    {volume, "shm: 1Gi\ngpu: {model: A100, count: 1, share: {memoryMiB: 10240, cores: 25}}"},
		"init-container": {initial, `gpu: {count: 1, whole: true}
backend: hami
volumes:
- {name: claim, claim: c, mountPath: /c, readOnly: true}
- {name: host, hostPath: /data/sets, mountPath: /h}`},
	} {
		t.Run(name, func(t *testing.T) {
			l := launch(t, tc.spec)
			var ask *backend.Ask
			if l.Spec.GPU != nil {
				var err error
				if ask, err = (hami.Backend{}).Translate(&l.Spec, backend.Facts{SchedulerName: "firstlight-scheduler"}); err != nil {
					t.Fatal(err)
				}
			}
			pod, err := tc.r.pod(l, ask)
			if err != nil {
				t.Fatal(err)
			}
			text, err := yaml.Marshal(pod)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(text), hostKey) {
				t.Error("the pod holds the host key")
			}
			golden(t, name+".yaml", text)
		})
	}
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s differs; -update writes it anew\n%s", file, diff)
	}
}

func TestHostPathsAreRefused(t *testing.T) {
	for path, ok := range map[string]bool{"/data": true, "/data/a": true, "/database": false, "/": false, "/etc": false} {
		r := rendering{hostPaths: []string{"/data"}}
		l := launch(t, "volumes: [{name: v, hostPath: \""+path+"\", mountPath: /v}]")
		_, err := r.pod(l, nil)
		if (err == nil) != ok || (!ok && cluster.CodeOf(err) != cluster.CodeUnsupported) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestAccepted(t *testing.T) {
	r := rendering{tools: "tools:1", delivery: DeliverImageVolume}
	l := launch(t, "gpu: {count: 1, whole: true}\nbackend: hami")
	ask := &backend.Ask{SchedulerName: "s"}
	pod, err := r.pod(l, ask)
	if err != nil {
		t.Fatal(err)
	}
	if err := accepted(pod, ask); err != nil {
		t.Errorf("unchanged: %v", err)
	}
	bypassed := pod.DeepCopy()
	bypassed.Spec.SchedulerName = "default-scheduler"
	if got := cluster.CodeOf(accepted(bypassed, ask)); got != cluster.CodeAdmissionBypassed {
		t.Errorf("another scheduler: %q", got)
	}
	dropped := pod.DeepCopy()
	dropped.Spec.Volumes[0].Image = nil
	if got := cluster.CodeOf(accepted(dropped, ask)); got != cluster.CodeMissingCapability {
		t.Errorf("no image volume: %q", got)
	}
}
