package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/firstlight-dev/firstlight/test/sandbox"
)

const (
	// startTimeout bounds Start: seconds on an idle machine, and still enough
	// on one that is building something else at the same time.
	startTimeout = 3 * time.Minute
	// closeTimeout bounds the end of the processes after they were killed.
	closeTimeout = 30 * time.Second
	pollInterval = 50 * time.Millisecond
)

// serial tells the clusters of one process apart.
var serial atomic.Int64

// Cluster is a running cluster. Its methods are safe for concurrent use.
type Cluster struct {
	cfg     Config
	dir     string
	ownDir  bool // made by Start, so removed by Close
	ns      *sandbox.Namespaces
	cgroups cgroups
	pki     *authority
	admin   Kubeconfig

	mu        sync.Mutex
	processes []*sandbox.Process
	relays    map[string]*relay // by address inside
	keep      bool
}

// Kubeconfig is one identity's configuration, twice.
type Kubeconfig struct {
	Inside  string // path of the file for programs inside the cluster
	Outside string // path of the file for programs outside it
}

// Start starts a cluster and returns when its node is ready for pods. The
// cluster ends with Close or with the calling process.
func Start(ctx context.Context, cfg Config) (_ *Cluster, err error) {
	if err := Probe(cfg); err != nil {
		return nil, err
	}
	if cfg, err = cfg.withDefaults(); err != nil {
		return nil, err
	}
	c := &Cluster{cfg: cfg, relays: make(map[string]*relay)}
	defer func() {
		if err != nil {
			c.Keep()
			err = errors.Join(fmt.Errorf("%w (logs in %s)", err, c.Logs()), c.Close())
		}
	}()
	if err := c.makeDir(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := c.startMachine(ctx); err != nil {
		return nil, err
	}
	if err := c.startKubernetes(ctx); err != nil {
		return nil, err
	}
	return c, c.writeState()
}

func (c *Cluster) makeDir() (err error) {
	if c.dir = c.cfg.Dir; c.dir == "" {
		c.ownDir = true
		if c.dir, err = os.MkdirTemp("", "firstlight-cluster-"); err != nil {
			return fmt.Errorf("make state folder: %w", err)
		}
	}
	if c.dir, err = filepath.Abs(c.dir); err != nil {
		return fmt.Errorf("make state folder: %w", err)
	}
	if err := checkDir(c.dir); err != nil {
		return err
	}
	if err := os.MkdirAll(c.Logs(), 0o755); err != nil {
		return fmt.Errorf("make state folder: %w", err)
	}
	return nil
}

// startMachine makes everything that is there before a process runs inside.
func (c *Cluster) startMachine(ctx context.Context) (err error) {
	if c.cgroups, err = newCgroups(serial.Add(1)); err != nil {
		return err
	}
	if c.pki, err = newAuthority(c.path("pki")); err != nil {
		return err
	}
	if err := issueAll(c.pki, c.cfg.Node); err != nil {
		return err
	}
	if err := writeFiles(c.dir, c.cfg, c.cgroups, c.pki); err != nil {
		return err
	}
	if c.ns, err = sandbox.New(ctx); err != nil {
		return err
	}
	if err := prepareMachine(ctx, c.ns, c.dir, c.cfg.Node); err != nil {
		return err
	}
	c.admin, err = c.Kubeconfig("admin", masters)
	return err
}

func (c *Cluster) startKubernetes(ctx context.Context) error {
	if err := errors.Join(c.startStorage(ctx), c.startAPIServer(ctx)); err != nil {
		return err
	}
	images := make(chan error, 1)
	go func() { images <- c.importImages(ctx) }()
	err := c.waitAPI(ctx, "API server", "/readyz", func(body []byte) bool { return string(body) == "ok" })
	if err == nil {
		err = c.startControllers(ctx)
	}
	if err == nil {
		err = c.waitAPI(ctx, "node", "/api/v1/nodes/"+c.cfg.Node, nodeReady)
	}
	if err == nil {
		// Pods are refused until their service account exists.
		err = c.waitAPI(ctx, "service account", "/api/v1/namespaces/default/serviceaccounts/default",
			func([]byte) bool { return true })
	}
	return errors.Join(err, <-images)
}

// waitAPI reads path until the answer is accepted.
func (c *Cluster) waitAPI(ctx context.Context, what, path string, accept func([]byte) bool) error {
	client, err := c.apiClient()
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	return c.poll(ctx, what, func(ctx context.Context) error {
		body, err := get(ctx, client, "https://"+apiAddress+path)
		if err == nil && !accept(body) {
			err = errNotReady
		}
		return err
	})
}

var errNotReady = errors.New("not ready")

func nodeReady(body []byte) bool {
	var node struct {
		Status struct {
			Conditions []struct{ Type, Status string }
		}
	}
	if json.Unmarshal(body, &node) != nil {
		return false
	}
	for _, c := range node.Status.Conditions {
		if c.Type == "Ready" {
			return c.Status == "True"
		}
	}
	return false
}

// poll calls ready until it succeeds. It gives up when a component has ended,
// because then ready never will.
func (c *Cluster) poll(ctx context.Context, what string, ready func(context.Context) error) error {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		if ended := c.firstEnded(); ended != nil {
			return fmt.Errorf("wait for the %s: %w", what, ended.Ended())
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the %s: %w (last answer: %w)", what, ctx.Err(), err)
		case <-tick.C:
		}
	}
}

func (c *Cluster) firstEnded() *sandbox.Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.processes {
		select {
		case <-p.Done():
			return p
		default:
		}
	}
	return nil
}

// Close ends every process of the cluster and removes what it made. Nothing
// inside gets a chance to say goodbye.
func (c *Cluster) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for _, r := range c.relays {
		errs = append(errs, r.close())
	}
	c.relays = nil
	if c.ns != nil {
		errs = append(errs, c.ns.Kill(ctx))
	}
	for _, p := range c.processes {
		errs = append(errs, p.Stop(ctx, os.Kill))
	}
	c.processes = nil
	if c.cgroups.name != "" {
		errs = append(errs, c.cgroups.remove())
	}
	if c.ownDir {
		errs = append(errs, c.removeDir())
	}
	return errors.Join(errs...)
}

// removeDir removes the state folder, or what is large in it.
func (c *Cluster) removeDir() error {
	if !c.keep {
		return os.RemoveAll(c.dir)
	}
	var errs []error
	for _, large := range []string{"containerd", "etcd", "registry", "varlib"} {
		errs = append(errs, os.RemoveAll(c.path(large)))
	}
	return errors.Join(errs...)
}

// Keep makes Close leave the logs and the configuration files.
func (c *Cluster) Keep() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keep = true
}

// Logs is the folder with one log file per process.
func (c *Cluster) Logs() string { return c.path("log") }

// Dir is the state folder. Inside and outside see it under the same path, as
// they do all folders but /run, /var/lib and /var/log.
func (c *Cluster) Dir() string { return c.dir }

// Node is the name of the node.
func (c *Cluster) Node() string { return c.cfg.Node }

// Namespaces are where the cluster runs, for what Cluster has no method for,
// such as laying a network link to it.
func (c *Cluster) Namespaces() *sandbox.Namespaces { return c.ns }

// Root is the path by which programs outside see a path inside, also the one
// of a socket.
func (c *Cluster) Root(path string) string { return c.ns.Root(path) }

func (c *Cluster) path(name string) string { return filepath.Join(c.dir, name) }

// Command makes a command for Run or Spawn. The first argument is looked for
// among the tools first. Its environment has the tools in PATH and the
// administrator's KUBECONFIG.
func (c *Cluster) Command(ctx context.Context, argv ...string) *exec.Cmd {
	program := argv[0]
	if tool := filepath.Join(c.cfg.Tools, program); !strings.Contains(program, "/") {
		if _, err := os.Stat(tool); err == nil {
			program = tool
		}
	}
	cmd := exec.CommandContext(ctx, program, argv[1:]...)
	cmd.Env = append(os.Environ(), "PATH="+c.cfg.Tools+":"+os.Getenv("PATH"), "KUBECONFIG="+c.admin.Inside)
	// The borrowed thread stands in the root folder.
	if dir, err := os.Getwd(); err == nil {
		cmd.Dir = dir
	}
	return cmd
}

// Run runs cmd inside to its end.
func (c *Cluster) Run(cmd *exec.Cmd) error { return c.ns.Run(cmd) }

// Exec runs a command inside and returns its standard output. The error of a
// command that did not succeed holds its standard error.
func (c *Cluster) Exec(ctx context.Context, argv ...string) (string, error) {
	return c.exec(ctx, "", argv...)
}

func (c *Cluster) exec(ctx context.Context, stdin string, argv ...string) (string, error) {
	cmd := c.Command(ctx, argv...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	if err := c.ns.Run(cmd); err != nil {
		return stdout.String(), fmt.Errorf("run %s: %w: %s", strings.Join(argv, " "), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// Kubectl runs kubectl as the administrator.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) (string, error) {
	return c.exec(ctx, "", append([]string{"kubectl"}, args...)...)
}

// Apply applies manifests as the administrator.
func (c *Cluster) Apply(ctx context.Context, manifests string) error {
	_, err := c.exec(ctx, manifests, "kubectl", "apply", "-f", "-")
	return err
}

// ImportImage imports an archive for pods.
func (c *Cluster) ImportImage(ctx context.Context, archive string) error {
	_, err := c.Exec(ctx, "ctr", "--address="+ContainerdSocket, "--namespace=k8s.io", "image", "import", archive)
	return err
}

// Spawn starts a long-running command inside; its output goes to
// <name>.log in Logs. It ends with the cluster at the latest.
func (c *Cluster) Spawn(name string, cmd *exec.Cmd) (*sandbox.Process, error) {
	p, err := c.ns.Spawn(c.Logs(), name, cmd)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.processes = append(c.processes, p)
	return p, nil
}

// Dial connects to a numeric address or a socket's path inside.
func (c *Cluster) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	return c.ns.Dial(ctx, network, address)
}

// Forward makes a TCP address inside reachable outside and returns the
// address on the machine's loopback that leads to it.
func (c *Cluster) Forward(address string) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := c.relays[address]; r != nil {
		return r.address(), nil
	}
	r, err := newRelay(func(ctx context.Context) (net.Conn, error) { return c.ns.Dial(ctx, "tcp", address) })
	if err != nil {
		return "", err
	}
	c.relays[address] = r
	return r.address(), nil
}

// Admin is the identity that may do everything.
func (c *Cluster) Admin() Kubeconfig { return c.admin }

// Kubeconfig makes an identity. What it may do, role bindings say.
func (c *Cluster) Kubeconfig(user string, groups ...string) (Kubeconfig, error) {
	outside, err := c.Forward(apiAddress)
	if err != nil {
		return Kubeconfig{}, err
	}
	s := subject{name: user, groups: groups}
	var k Kubeconfig
	file := strings.NewReplacer("/", "-", ":", "-").Replace(user)
	if k.Inside, err = c.pki.kubeconfig(file, apiAddress, s); err != nil {
		return k, err
	}
	k.Outside, err = c.pki.kubeconfig(file+"-outside", outside, s)
	return k, err
}

// ServerCertificate issues a certificate for a server inside, for example an
// admission webhook, and returns the paths of its files.
func (c *Cluster) ServerCertificate(name string, hosts ...string) (cert, key string, err error) {
	if err := c.pki.issueFiles(name, subject{name: name, hosts: hosts}); err != nil {
		return "", "", err
	}
	return c.pki.path(name + ".crt"), c.pki.path(name + ".key"), nil
}

// CA is the certificate, in PEM, of the authority behind every certificate of
// the cluster: what a webhook configuration's caBundle holds.
func (c *Cluster) CA() []byte { return bytes.Clone(c.pki.pem) }
