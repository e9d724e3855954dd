package local_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/firstlight-dev/firstlight/launcher/agentapi"
	"github.com/firstlight-dev/firstlight/launcher/cluster"
	"github.com/firstlight-dev/firstlight/launcher/spec"
)

func share(model string, mib, cores int) *spec.GPU {
	return &spec.GPU{Model: model, Count: 1, Share: &spec.Share{MemoryMiB: mib, Cores: cores}}
}

// TestLife is one environment from its start to its end, looked at from all
// sides.
func TestLife(t *testing.T) {
	m := newMachine(t)
	config := v1.Config{
		Entrypoint: []string{"/bin/sh", "-c"}, Cmd: []string{"echo app-says $GREETING; exec sleep 100000"},
		Env: []string{"PATH=/bin", "GREETING=image", "FROM=image"}, User: "user", WorkingDir: "/home",
	}
	pinned := m.push(t, "life", config)
	c := m.cluster(t, twoCards(t))
	l, p, who := launch(t, "env-life", pinned, config, func(l *cluster.Launch) {
		l.Spec.GPU = share("A100", 10240, 25)
		l.Spec.Env = []spec.EnvVar{{Name: "GREETING", Value: "spec"}}
	})
	if err := c.Start(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	want := []cluster.Stage{cluster.StageSchedule, cluster.StageTools, cluster.StageImage, cluster.StageCreate}
	if diff := cmp.Diff(want, p.order); diff != "" {
		t.Errorf("stages (-want +got):\n%s", diff)
	}
	if got, _ := p.attrs(cluster.StageImage)["bytesFetched"].(int64); got < 100_000 {
		t.Errorf("image stage: %v, want the layer's bytes", p.attrs(cluster.StageImage))
	}

	client := login(t, c, l.Env, who)
	facts := strings.Split(strings.TrimSpace(run(t, client, `echo $GREETING $FROM; id -u; hostname; echo $CUDA_DEVICE_MEMORY_LIMIT_0 $CUDA_DEVICE_SM_LIMIT; cat /proc/1/comm; ulimit -n; cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/cpu/cpu.cfs_quota_us 2>/dev/null; df -k /dev/shm | { read x; read a b c; echo $b; }`)), "\n")
	for i, want := range []string{"spec image", "1000", "env-life", "10240m 25", "firstlight-agen"} {
		if facts[i] != want {
			t.Errorf("fact %d = %q, want %q (all: %q)", i, facts[i], want, facts)
		}
	}
	if facts[len(facts)-1] != "32768" {
		t.Errorf("/dev/shm has %s KiB, want 32768", facts[len(facts)-1])
	}
	if out := run(t, client, "cat /run/firstlight/agent.json"); !strings.Contains(out, "hostKey") {
		t.Error("the user can't read the agent's configuration")
	}

	st, _, err := agentapi.NewClient(dialer(c, l.Env), "canary-token").Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if st.App.State != agentapi.AppRunning || st.Environment != "env-life" {
		t.Errorf("status = %+v", st)
	}
	await(t, "log", func() bool { return strings.Contains(logs(t, m, c, l.Env), "app-says spec") })

	all, err := c.Observe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 1 || all[0].State != cluster.StateRunning || all[0].Name != "name-of-env-life" || len(all[0].Placement.Devices) != 1 || all[0].Placement.Devices[0].MemoryMiB != 10240 {
		t.Errorf("observed = %+v", all)
	}
	if err := c.Start(t.Context(), l); err != nil { // adopts
		t.Errorf("second start: %v", err)
	}
	use, err := c.ImageUse(t.Context(), l.Env)
	if err != nil || use.Lazy || use.BytesFetched < 100_000 {
		t.Errorf("image use = %+v, %v", use, err)
	}

	for range 2 {
		if err := c.Stop(t.Context(), l.Env); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Dial(t.Context(), l.Env, agentapi.SSHPort); !errors.Is(err, cluster.ErrNotFound) {
		t.Errorf("dial after stop: %v", err)
	}
	if entries, err := os.ReadDir(filepath.Join(m.dir, "envs")); err != nil || len(entries) != 0 {
		t.Errorf("files left: %v %v", entries, err)
	}
	nodes, err := c.Capacity(t.Context())
	if err != nil || nodes[0].Devices[0].MemoryUsedMiB+nodes[0].Devices[1].MemoryUsedMiB != 0 {
		t.Errorf("capacity after stop = %+v, %v", nodes, err)
	}
	if out, err := m.ctr("snapshots", "ls"); err != nil || strings.Contains(out, "env-life") {
		t.Errorf("snapshot left: %s %v", out, err)
	}
}

func dialer(c cluster.Cluster, env string) agentapi.DialFunc {
	return func(ctx context.Context) (net.Conn, error) { return c.Dial(ctx, env, agentapi.StatusPort) }
}

func logs(t *testing.T, _ *machine, c cluster.Cluster, env string) string {
	t.Helper()
	r, err := c.Logs(t.Context(), env, false)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestRestartOfTheLauncher makes a second cluster over the same containerd.
func TestRestartOfTheLauncher(t *testing.T) {
	m := newMachine(t)
	config := v1.Config{Cmd: []string{"/bin/sleep", "100000"}, Env: []string{"PATH=/bin"}}
	pinned := m.push(t, "restart", config)
	c := m.cluster(t, twoCards(t))
	l, _, who := launch(t, "env-a", pinned, config, func(l *cluster.Launch) { l.Spec.GPU = share("", 30000, 60) })
	if err := c.Start(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	before, err := c.Capacity(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}

	c = m.cluster(t, twoCards(t))
	after, err := c.Capacity(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("usage after a restart (-before +after):\n%s", diff)
	}
	if err := c.Start(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	if out := run(t, login(t, c, l.Env, who), "hostname"); out != "env-a\n" {
		t.Errorf("login after a restart: %q", out)
	}
	// A next generation replaces the container.
	l.Generation = 2
	if err := c.Start(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	all, err := c.Observe(t.Context())
	if err != nil || len(all) != 1 || all[0].Generation != 2 {
		t.Errorf("observed = %+v, %v", all, err)
	}
	login(t, c, l.Env, who)
}

func TestSharesAndWaiting(t *testing.T) {
	m := newMachine(t)
	config := v1.Config{Cmd: []string{"/bin/sleep", "100000"}, Env: []string{"PATH=/bin"}}
	pinned := m.push(t, "shares", config)
	c := m.cluster(t, twoCards(t))
	for _, env := range []string{"env-1", "env-2", "env-3", "env-4"} {
		l, _, _ := launch(t, env, pinned, config, func(l *cluster.Launch) { l.Spec.GPU = share("A100", 15000, 30) })
		if err := c.Start(t.Context(), l); err != nil {
			t.Fatal(err)
		}
	}
	// 2 x 10960 MiB are free: enough in sum, on no card alone.
	l, p, _ := launch(t, "env-5", pinned, config, func(l *cluster.Launch) { l.Spec.GPU = share("A100", 15000, 30) })
	e, err := c.Explain(t.Context(), cluster.Need{Env: l.Env, Spec: l.Spec})
	if err != nil {
		t.Fatal(err)
	}
	if e.Verdict != cluster.VerdictFitsAfterRelease || len(e.Nodes[0].Devices) != 2 {
		t.Errorf("explanation = %+v", e)
	}
	for _, d := range e.Nodes[0].Devices {
		if d.Fits || len(d.Reasons) != 1 || d.Reasons[0].Code != "CardInsufficientMemory" || !strings.Contains(d.Reasons[0].Message, "10960") {
			t.Errorf("device = %+v", d)
		}
	}
	if diff := cmp.Diff([]string{
		"environment env-1 is removed", "environment env-2 is removed", "environment env-3 is removed", "environment env-4 is removed", "it asks for 10960 MiB",
	}, e.WouldFitIf); diff != "" {
		t.Errorf("would fit if (-want +got):\n%s", diff)
	}
	started := make(chan error, 1)
	go func() { started <- c.Start(t.Context(), l) }()
	await(t, "note", func() bool { return strings.Contains(p.note(), "CardInsufficientMemory") })
	if err := c.Stop(t.Context(), "env-2"); err != nil {
		t.Fatal(err)
	}
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	e, err = c.Explain(t.Context(), cluster.Need{Env: l.Env, Spec: l.Spec})
	if err != nil || e.Verdict != cluster.VerdictPlaced {
		t.Errorf("explanation = %+v, %v", e, err)
	}

	never, _, _ := launch(t, "env-6", pinned, config, func(l *cluster.Launch) { l.Spec.GPU = share("A100", 45000, 30) })
	if err := c.Start(t.Context(), never); cluster.CodeOf(err) != cluster.CodeUnsupported || !strings.Contains(err.Error(), "45000") {
		t.Errorf("impossible share: %v", err)
	}
	e, err = c.Explain(t.Context(), cluster.Need{Spec: never.Spec})
	if err != nil || e.Verdict != cluster.VerdictFitsNever {
		t.Errorf("explanation = %+v, %v", e, err)
	}
}

func TestRefusals(t *testing.T) {
	m := newMachine(t)
	config := v1.Config{Cmd: []string{"/bin/sleep", "100000"}, Env: []string{"PATH=/bin"}}
	pinned := m.push(t, "refusals", config)
	repository, _, _ := strings.Cut(pinned, "@")
	c := m.cluster(t, nil)
	tests := map[string]struct {
		change func(*cluster.Launch)
		code   cluster.Code
		text   string
	}{
		"claim": {func(l *cluster.Launch) { l.Spec.Volumes = []spec.Volume{{Name: "v", MountPath: "/v", Claim: "c"}} }, cluster.CodeUnsupported, "claims"},
		"host path": {func(l *cluster.Launch) {
			l.Spec.Volumes = []spec.Volume{{Name: "v", MountPath: "/v", HostPath: "/etc"}}
		}, cluster.CodeUnsupported, "/etc"},
		"no card": {func(l *cluster.Launch) { l.Spec.GPU = share("", 1, 1) }, cluster.CodeUnsupported, "never"},
		"no image": {func(l *cluster.Launch) {
			l.Image.Pinned = repository + "@sha256:" + strings.Repeat("0", 64)
		}, cluster.CodeImage, "not found"},
		"no registry": {func(l *cluster.Launch) {
			l.Image.Pinned = "127.0.0.1:1/x@sha256:" + strings.Repeat("0", 64)
		}, cluster.CodeImage, "127.0.0.1:1"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			l, _, _ := launch(t, "env-refused", pinned, config, tt.change)
			err := c.Start(t.Context(), l)
			if cluster.CodeOf(err) != tt.code || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("error = %v, want %s with %q", err, tt.code, tt.text)
			}
			if err := c.Stop(t.Context(), "env-refused"); err != nil {
				t.Errorf("stop: %v", err)
			}
		})
	}
}

// TestExit lets the environment end by itself.
func TestExit(t *testing.T) {
	m := newMachine(t)
	config := v1.Config{Cmd: []string{"/bin/sh", "-c", "echo bye; exit 7"}, Env: []string{"PATH=/bin"}}
	pinned := m.push(t, "exit", config)
	c := m.cluster(t, nil)
	l, _, _ := launch(t, "env-exit", pinned, config, func(l *cluster.Launch) { l.Agent.App.Policy = agentapi.PolicyExit })
	if err := c.Start(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	r, err := c.Logs(t.Context(), l.Env, true)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	b, err := io.ReadAll(r) // ends with the container
	if err != nil || !strings.Contains(string(b), "bye\n") {
		t.Errorf("log = %q, %v", b, err)
	}
	all, err := c.Observe(t.Context())
	if err != nil || len(all) != 1 || all[0].State != cluster.StateExited || all[0].ExitCode != 7 {
		t.Errorf("observed = %+v, %v", all, err)
	}
	if err := c.Start(t.Context(), l); cluster.CodeOf(err) != cluster.CodeStartFailed {
		t.Errorf("start of what has ended: %v", err)
	}
}
