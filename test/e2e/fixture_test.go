package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/firstlight-dev/firstlight/test/cluster"
	"github.com/firstlight-dev/firstlight/test/sandbox"
)

const (
	snapshotterSocket = "/run/firstlight/snapshotter.sock"
	nodeSocket        = "/run/firstlight/node.sock"
	// runtimeClass is the class whose pods start from lazily loaded images.
	runtimeClass = "firstlight"

	schedulerName  = "firstlight-scheduler"
	extenderListen = "127.0.0.1:9901"
	webhookListen  = "127.0.0.1:9443"
)

// TestMain ends the shared cluster, which outlives every single test.
func TestMain(m *testing.M) {
	code := m.Run()
	if err := sharedFixture.close(code != 0); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// fixture is a cluster with our programs at hand.
type fixture struct {
	*cluster.Cluster
	bin         string // folder with our programs
	snapshotter *sandbox.Process
	client      kubernetes.Interface
	rest        *rest.Config
}

// lazyFixture starts a fixture when the first test wants it.
type lazyFixture struct {
	once sync.Once
	f    *fixture
	err  error
}

var sharedFixture lazyFixture

func (l *lazyFixture) close(keep bool) error {
	if l.f == nil {
		return nil
	}
	if keep {
		l.f.Keep()
		fmt.Fprintln(os.Stderr, "logs of the cluster:", l.f.Logs())
	}
	return l.f.Close()
}

// shared returns the package's cluster: registry, snapshotter and the
// scheduler profile are there; card sharing is started by the tests that need
// it.
func shared(t *testing.T) *fixture {
	t.Helper()
	cfg := config()
	if err := cluster.Probe(cfg); err != nil {
		t.Skip(err)
	}
	sharedFixture.once.Do(func() { sharedFixture.f, sharedFixture.err = start(cfg) })
	if sharedFixture.err != nil {
		t.Fatal(sharedFixture.err)
	}
	return sharedFixture.f
}

func config() cluster.Config {
	return cluster.Config{
		Registry: true,
		Snapshotters: []cluster.Snapshotter{{
			Name: "firstlight", Address: snapshotterSocket, Root: "/var/lib/firstlight", Handler: runtimeClass,
		}},
		SchedulerName: schedulerName,
		Extenders: []cluster.Extender{{
			URL: "http://" + extenderListen, Filter: "filter", Bind: "bind",
			Ignored: []string{
				"nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores", "nvidia.com/priority",
			},
		}},
	}
}

// start starts a cluster and the snapshotter in it.
func start(cfg cluster.Config) (*fixture, error) {
	ctx := context.Background()
	bin, err := programs(ctx)
	if err != nil {
		return nil, err
	}
	c, err := cluster.Start(ctx, cfg)
	if err != nil {
		return nil, err
	}
	f := &fixture{Cluster: c, bin: bin}
	if err := f.prepare(ctx); err != nil {
		f.Keep()
		return nil, errors.Join(fmt.Errorf("%w (logs in %s)", err, f.Logs()), f.Close())
	}
	return f, nil
}

func (f *fixture) prepare(ctx context.Context) (err error) {
	if f.rest, err = clientcmd.BuildConfigFromFlags("", f.Admin().Outside); err != nil {
		return fmt.Errorf("read kubeconfig: %w", err)
	}
	if f.client, err = kubernetes.NewForConfig(f.rest); err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	if err := f.Apply(ctx, `{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: firstlight}, handler: firstlight}`); err != nil {
		return err
	}
	return f.startSnapshotter(ctx)
}

// startSnapshotter starts the snapshotter and waits for its node API.
func (f *fixture) startSnapshotter(ctx context.Context) error {
	var err error
	f.snapshotter, err = f.spawn(ctx, "firstlight-snapshotter",
		"--root=/var/lib/firstlight", "--address="+snapshotterSocket, "--node-address="+nodeSocket,
		"--containerd-address="+cluster.ContainerdSocket, "--hosts-dir="+filepath.Join(f.Dir(), "certs.d"),
		// Tests count bytes: nothing is to be fetched that nobody read.
		"--fill-after=-1s")
	if err != nil {
		return err
	}
	return f.waitListening(ctx, f.snapshotter, "unix", nodeSocket)
}

// spawn starts one of our programs inside the cluster.
func (f *fixture) spawn(ctx context.Context, program string, args ...string) (*sandbox.Process, error) {
	argv := append([]string{filepath.Join(f.bin, program)}, args...)
	return f.Spawn(program, f.Command(context.WithoutCancel(ctx), argv...))
}

// waitListening waits until a program that was just started can be reached.
func (f *fixture) waitListening(ctx context.Context, p *sandbox.Process, network, address string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := f.Dial(ctx, network, address)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-p.Done():
			return fmt.Errorf("%s ended; its log:\n%s", p.Name, p.Tail())
		case <-ctx.Done():
			return fmt.Errorf("%s does not listen at %s: %w; its log:\n%s", p.Name, address, err, p.Tail())
		case <-tick.C:
		}
	}
}

// firstlight runs the command line inside the cluster and returns its output.
func (f *fixture) firstlight(t *testing.T, args ...string) string {
	t.Helper()
	out, err := f.Exec(t.Context(), append([]string{filepath.Join(f.bin, "firstlight")}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// kubectl runs kubectl as the administrator.
func (f *fixture) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := f.Kubectl(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// apply applies manifests and deletes them when the test ends.
func (f *fixture) apply(t *testing.T, manifests string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "manifests.yaml")
	if err := os.WriteFile(file, []byte(manifests), 0o600); err != nil {
		t.Fatal(err)
	}
	f.kubectl(t, "apply", "-f", file)
	t.Cleanup(func() {
		if t.Failed() {
			out, _ := f.Kubectl(context.Background(), "describe", "-f", file)
			t.Log(out)
		}
		if out, err := f.Kubectl(context.Background(), "delete", "--ignore-not-found", "--wait", "--timeout=60s", "-f", file); err != nil {
			t.Error(err, out)
		}
	})
}

// waitPod waits for a condition of a pod in the default namespace.
func (f *fixture) waitPod(t *testing.T, pod, condition string) {
	t.Helper()
	f.kubectl(t, "wait", "--for="+condition, "pod/"+pod, "--timeout=120s")
}

// programs returns the folder with our programs: $FIRSTLIGHT_BIN, or bin/ in
// the repository, which is built first so that a test never runs yesterday's
// program.
func programs(ctx context.Context) (string, error) {
	if dir := os.Getenv("FIRSTLIGHT_BIN"); dir != "" {
		return filepath.Abs(dir)
	}
	root, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return "", fmt.Errorf("find the module: %w", err)
	}
	dir := strings.TrimSpace(string(root))
	// The settings of make build: anything else compiles everything again.
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", "bin/", "./cmd/...")
	build.Dir = dir
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the programs: %w\n%s", err, out)
	}
	return filepath.Join(dir, "bin"), nil
}
