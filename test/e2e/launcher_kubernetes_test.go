package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/firstlight-dev/firstlight/launcher/api"
	"github.com/firstlight-dev/firstlight/launcher/cluster"
	"github.com/firstlight-dev/firstlight/launcher/store"
	"github.com/firstlight-dev/firstlight/launcher/timeline"
	"github.com/firstlight-dev/firstlight/test/deployment"
)

// user is someone at the command line, with a folder for keys.
type user struct {
	t      *testing.T
	f      *fixture
	dir    string
	server string
	token  string
}

func newUser(t *testing.T, f *fixture) *user {
	t.Helper()
	return &user{t: t, f: f, dir: t.TempDir(), server: "http://" + deployment.LauncherAddress}
}

func (u *user) try(args ...string) (string, error) { return u.in(u.t.Context(), args...) }

func (u *user) in(ctx context.Context, args ...string) (string, error) {
	argv := []string{
		"env", "XDG_CONFIG_HOME=" + u.dir, "FIRSTLIGHT_SERVER=" + u.server, "FIRSTLIGHT_TOKEN=" + u.token,
		filepath.Join(u.f.bin, "firstlight"),
	}
	return u.f.Exec(ctx, append(argv, args...)...)
}

func (u *user) run(args ...string) string {
	u.t.Helper()
	out, err := u.try(args...)
	if err != nil {
		log := ""
		if u.f.Launcher != nil {
			log = "\nthe end of the launcher's log:\n" + u.f.Launcher.Tail()
		}
		u.t.Fatalf("%v\n%s%s", err, out, log)
	}
	return out
}

// ask runs a command and decodes its answer.
func ask[T any](u *user, args ...string) T {
	u.t.Helper()
	out := u.run(append(args, "-o", "json")...)
	var v T
	if err := json.Unmarshal([]byte(out[max(strings.Index(out, "\n{")+1, 0):]), &v); err != nil {
		u.t.Fatalf("decode %s: %v", out, err)
	}
	return v
}

// spec writes a spec that asks for a share of one card.
func (u *user) spec(name, image string, memory, cores int) string {
	u.t.Helper()
	file := filepath.Join(u.dir, name+".yaml")
	text := fmt.Sprintf(`
name: %s
image: %s
cpu: 200m
memory: 256Mi
gpu:
  model: A100
  count: 1
  share: {memoryMiB: %d, cores: %d}
readiness:
- {name: login, type: ssh_login}
- {name: read, type: exec, command: [sha256sum, /data/2/1], expect: /data/2/1}
`, name, image, memory, cores)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		u.t.Fatal(err)
	}
	return file
}

// TestEnvironmentOnKubernetes brings an environment with a share of a card up
// from a lazily loaded image, logs in, and adds its stages up.
func TestEnvironmentOnKubernetes(t *testing.T) {
	f := launched(t)
	image := newDataImage(t, 20)
	ref := image.push(t, f, "environment")
	f.firstlight(t, "index", "create", ref)
	u := newUser(t, f)

	if got := strings.TrimSpace(u.run("spec", "push", u.spec("quarter", ref, 10240, 25))); got != "quarter@1" {
		t.Errorf("the spec became %q", got)
	}
	t.Cleanup(func() { u.clean("train") })
	t.Log(u.run("env", "create", "train", "--spec", "quarter@1", "--wait", "--timeout", "90s"))

	e := ask[api.Environment](u, "env", "get", "train")
	if e.Status.Phase != store.PhaseUsable || e.Status.Placement == nil || len(e.Status.Placement.Devices) != 1 {
		t.Fatalf("environment is %+v", e.Status)
	}
	if d := e.Status.Placement.Devices[0]; d.MemoryMiB != 10240 || d.Cores != 25 {
		t.Errorf("its device is %+v", d)
	}
	if got := u.run("env", "ssh", "train", "--", "echo $CUDA_DEVICE_MEMORY_LIMIT_0 $CUDA_DEVICE_SM_LIMIT"); strings.TrimSpace(got) != "10240m 25" {
		t.Errorf("a session has the limits %q", got)
	}
	if _, err := u.try("env", "ssh", "train", "--", "exit 7"); err == nil || !strings.Contains(err.Error(), "7") {
		t.Errorf("a command that ends with 7: %v", err)
	}
	checkTimeline(t, ask[timeline.Timeline](u, "env", "timeline", "train"), image.size(t))
	u.run("env", "rm", "train")
	if pods := f.kubectl(t, "get", "pods,secrets", "-n", deployment.Namespace, "-o", "name"); strings.TrimSpace(pods) != "" {
		t.Errorf("left behind: %s", pods)
	}
}

// clean removes an environment that a failed test left: its share of a card
// would be missed by the next one.
func (u *user) clean(name string) {
	if u.t.Failed() {
		_, _ = u.in(context.Background(), "env", "rm", name)
	}
}

// checkTimeline adds the critical path up and looks for what a start on
// Kubernetes must have.
func checkTimeline(t *testing.T, tl timeline.Timeline, imageSize int64) {
	t.Helper()
	var sum, unattributed int64
	seen := map[string]bool{}
	for _, row := range tl.CriticalPath {
		sum += row.DurationMs
		seen[row.ID] = true
		if row.ID == timeline.Unattributed {
			unattributed += row.DurationMs
		}
	}
	if tl.TimeToUsableMs == nil || sum != *tl.TimeToUsableMs || sum != tl.TotalMs {
		t.Errorf("the critical path adds up to %d ms of %d", sum, tl.TotalMs)
	}
	if unattributed != tl.UnattributedMs {
		t.Errorf("unattributed is %d ms, its rows say %d", tl.UnattributedMs, unattributed)
	}
	for _, stage := range cluster.Chain() {
		if stage != cluster.StageQueue && !seen[string(stage)] {
			t.Errorf("the timeline has no stage %s", stage)
		}
	}
	if tl.Image == nil || !tl.Image.Lazy || tl.Image.BytesFetched == 0 || tl.Image.BytesFetched > imageSize/2 {
		t.Errorf("of the image's %d bytes were read: %+v", imageSize, tl.Image)
	}
}

// TestExplainNamesCards asks for more than a card has, although the free sum
// would do, and expects an answer for each card.
func TestExplainNamesCards(t *testing.T) {
	f := launched(t)
	image := newDataImage(t, 21)
	ref := image.push(t, f, "too-big")
	u := newUser(t, f)
	file := u.spec("too-big", ref, 45000, 30)
	u.run("env", "create", "big", "--file", file)
	t.Cleanup(func() { u.clean("big") })
	if _, err := u.try("env", "create", "big", "--file", file); err == nil || !strings.Contains(err.Error(), api.CodeNameConflict) {
		t.Errorf("a second environment of the same name: %v", err)
	}

	x := ask[cluster.Explanation](u, "env", "explain", "big")
	if x.Verdict != cluster.VerdictFitsNever || len(x.Nodes) != 1 || len(x.Nodes[0].Devices) != 2 {
		t.Fatalf("the explanation is %+v", x)
	}
	for _, d := range x.Nodes[0].Devices {
		if d.Fits || len(d.Reasons) != 1 || d.Reasons[0].Code != "CardInsufficientMemory" || !strings.Contains(d.Reasons[0].Message, "45000") {
			t.Errorf("card %s lacks %+v", d.UUID, d.Reasons)
		}
	}
	t.Log(u.run("env", "explain", "big"))
	if _, err := u.try("env", "explain", "nobody"); err == nil {
		t.Error("an environment that does not exist is explained")
	}
	u.run("env", "rm", "big")
}
