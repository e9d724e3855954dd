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

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/firstlight-dev/firstlight/test/cluster"
	"github.com/firstlight-dev/firstlight/test/deployment"
)

// TestMain ends the shared cluster, which outlives every single test.
func TestMain(m *testing.M) {
	code := m.Run()
	if err := closeShared(code != 0); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// fixture is a cluster with our programs on it.
type fixture struct {
	*cluster.Cluster
	*deployment.Deployment
	bin    string // folder with our programs
	client kubernetes.Interface
	rest   *rest.Config
}

// once is something that the first test to want it starts.
type once struct {
	sync.Once
	err error
}

func (o *once) do(t *testing.T, start func() error) {
	t.Helper()
	o.Do(func() { o.err = start() })
	if o.err != nil {
		t.Fatal(o.err)
	}
}

// sharedFixture is the package's cluster and what runs on it so far.
var sharedFixture struct {
	f                             *fixture
	cluster, snapshotter, sharing once
	launcher                      once
}

func closeShared(keep bool) error {
	f := sharedFixture.f
	if f == nil {
		return nil
	}
	if keep {
		f.Keep()
		fmt.Fprintln(os.Stderr, "logs of the cluster:", f.Logs())
	}
	return f.Close()
}

// shared returns the package's cluster, with a registry.
func shared(t *testing.T) *fixture {
	t.Helper()
	cfg := config()
	if err := cluster.Probe(cfg); err != nil {
		t.Skip(err)
	}
	sharedFixture.cluster.do(t, func() (err error) {
		sharedFixture.f, err = start(cfg)
		return err
	})
	return sharedFixture.f
}

// lazy returns the shared cluster with the snapshotter.
func lazy(t *testing.T) *fixture {
	t.Helper()
	f := shared(t)
	sharedFixture.snapshotter.do(t, func() error { return f.StartSnapshotter(context.Background()) })
	return f
}

// sharing returns the shared cluster with card sharing: two simulated
// A100-40GB, the device plugin, the scheduler and its webhook.
func sharing(t *testing.T) *fixture {
	t.Helper()
	f := shared(t)
	sharedFixture.sharing.do(t, func() error { return f.StartSharing(context.Background()) })
	return f
}

// launched returns the shared cluster with everything: lazy images, card
// sharing, and the launcher.
func launched(t *testing.T) *fixture {
	t.Helper()
	lazy(t)
	f := sharing(t)
	sharedFixture.launcher.do(t, func() error {
		if err := f.ImportTools(context.Background()); err != nil {
			return err
		}
		return f.StartLauncher(context.Background(), true)
	})
	return f
}

func config() cluster.Config {
	cfg := deployment.ClusterConfig()
	cfg.Registry = true
	return cfg
}

// start starts a cluster on which none of our programs runs yet.
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
	f := &fixture{Cluster: c, bin: bin, Deployment: deployment.New(c, deployment.Config{
		Bin: bin, PlainHTTP: []string{cluster.RegistryAddress},
		// Tests count bytes: nothing is to be fetched that nobody read.
		Flags: []string{"--fill-after=-1s"},
	})}
	if err := f.connect(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func (f *fixture) connect() (err error) {
	if f.rest, err = clientcmd.BuildConfigFromFlags("", f.Admin().Outside); err != nil {
		return fmt.Errorf("read kubeconfig: %w", err)
	}
	if f.client, err = kubernetes.NewForConfig(f.rest); err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	return nil
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
