package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/template"

	_ "embed"

	"github.com/firstlight-dev/firstlight/snapshotter/nodeapi"
	"github.com/firstlight-dev/firstlight/test/sandbox"
)

// Paths and addresses on a node.
const (
	ContainerdSocket  = "/run/containerd/containerd.sock"
	SnapshotterSocket = "/run/firstlight/snapshotter.sock"
	NodeSocket        = "/run/firstlight/node.sock"
)

// Node is a machine of its own, joined to the registry by a shaped link.
type Node struct {
	*Link
	Name string
	Dir  string // state and logs, the same path inside and outside

	cfg       Config
	ns        *sandbox.Namespaces
	processes []*sandbox.Process
}

// Node makes a node and starts containerd and firstlight-snapshotter on it.
func (l *Lab) Node(ctx context.Context) (*Node, error) {
	return l.NodeWith(ctx, (*Node).StartFirstlight)
}

// NodeWith makes a node and starts containerd on it after each of snapshotters,
// which write their part of containerd's configuration with WriteDropIn.
func (l *Lab) NodeWith(ctx context.Context, snapshotters ...func(*Node, context.Context) error) (*Node, error) {
	n, err := l.machine(ctx)
	if err != nil {
		return nil, err
	}
	for _, start := range append(snapshotters, (*Node).startContainerd) {
		if err := start(n, ctx); err != nil {
			return nil, errors.Join(fmt.Errorf("%w (logs in %s)", err, n.Dir), n.Close())
		}
	}
	return n, nil
}

// machine makes a node on which nothing runs yet. Lab.Close ends it, also when
// making it stopped half-way.
func (l *Lab) machine(ctx context.Context) (_ *Node, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	number := len(l.nodes) + 1
	n := &Node{Name: fmt.Sprintf("node%d", number), cfg: l.cfg}
	n.Dir = filepath.Join(l.cfg.Dir, n.Name)
	l.nodes = append(l.nodes, n)
	if err := n.writeConfig(); err != nil {
		return nil, err
	}
	if n.ns, err = sandbox.New(ctx); err != nil {
		return nil, err
	}
	if err := n.ns.CoverMounts(ctx, filepath.Join(n.Dir, "varlib")); err != nil {
		return nil, err
	}
	if err := n.ns.Enter(func() error { return addLoopback("") }); err != nil {
		return nil, err
	}
	if n.Link, err = l.Join(n.ns); err != nil {
		return nil, err
	}
	return n, nil
}

//go:embed containerd.toml
var containerdConfig string

func (n *Node) containerdConfig() string { return filepath.Join(n.Dir, "containerd.toml") }

// HostsDir is the folder with the registry's hosts.toml.
func (n *Node) HostsDir() string { return filepath.Join(n.Dir, "certs.d") }

func (n *Node) writeConfig() error {
	for _, address := range append([]string{RegistryAddress}, n.cfg.Mirrors...) {
		if err := WriteHosts(n.HostsDir(), address); err != nil {
			return err
		}
	}
	var config bytes.Buffer
	tmpl := template.Must(template.New("containerd.toml").Parse(containerdConfig))
	err := tmpl.Execute(&config, map[string]string{
		"HostsDir":   n.HostsDir(),
		"Containerd": ContainerdSocket,
		"DropIns":    filepath.Join(n.dropIns(), "*.toml"),
	})
	if err != nil {
		return fmt.Errorf("make containerd configuration: %w", err)
	}
	if err := os.WriteFile(n.containerdConfig(), config.Bytes(), 0o644); err != nil {
		return fmt.Errorf("write containerd configuration: %w", err)
	}
	return nil
}

// WriteHosts writes into a certs.d folder that a registry speaks plain HTTP.
func WriteHosts(dir, address string) error {
	dir = filepath.Join(dir, address)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make registry hosts folder: %w", err)
	}
	text := fmt.Sprintf("server = \"http://%s\"\n", address)
	if err := os.WriteFile(filepath.Join(dir, "hosts.toml"), []byte(text), 0o644); err != nil {
		return fmt.Errorf("write registry hosts: %w", err)
	}
	return nil
}

// dropIns is the folder of additions to containerd's configuration.
func (n *Node) dropIns() string { return filepath.Join(n.Dir, "conf.d") }

// WriteDropIn adds a file to containerd's configuration. It counts when it is
// there before containerd starts.
func (n *Node) WriteDropIn(name, text string) error {
	if err := os.MkdirAll(n.dropIns(), 0o755); err != nil {
		return fmt.Errorf("make drop-in folder: %w", err)
	}
	if err := os.WriteFile(filepath.Join(n.dropIns(), name+".toml"), []byte(text), 0o644); err != nil {
		return fmt.Errorf("write containerd drop-in %s: %w", name, err)
	}
	return nil
}

// StartFirstlight makes firstlight-snapshotter known to containerd, by what it
// prints for the purpose, and starts it.
func (n *Node) StartFirstlight(ctx context.Context) error {
	text, err := n.Exec(ctx, "firstlight-snapshotter", "config", "containerd")
	if err != nil {
		return err
	}
	if err := n.WriteDropIn("firstlight", text); err != nil {
		return err
	}
	p, err := n.Spawn(ctx, "snapshotter", "firstlight-snapshotter",
		"--address", SnapshotterSocket, "--node-address", NodeSocket, "--containerd-address", ContainerdSocket,
		"--root", "/var/lib/firstlight", "--hosts-dir", n.HostsDir(), "--log-level", "debug")
	if err != nil {
		return err
	}
	client := nodeapi.NewClient(n.ns.Root(NodeSocket))
	return p.WaitReady(ctx, func(ctx context.Context) error {
		_, err := client.Status(ctx)
		return err
	})
}

func (n *Node) startContainerd(ctx context.Context) error {
	p, err := n.Spawn(ctx, "containerd", "containerd", "--config", n.containerdConfig())
	if err != nil {
		return err
	}
	return p.WaitReady(ctx, func(ctx context.Context) error {
		_, err := n.Exec(ctx, "ctr", "--connect-timeout", "2s", "version")
		return err
	})
}

// NodeAPI is a client of the snapshotter's node API, for callers outside.
func (n *Node) NodeAPI() *nodeapi.Client { return nodeapi.NewClient(n.ns.Root(NodeSocket)) }

// Command makes a command on the node. A program without a path is looked for
// among the project's commands and the tools first.
func (n *Node) Command(ctx context.Context, argv ...string) *exec.Cmd {
	return n.cfg.command(ctx, argv)
}

// Run runs a command of Command to its end.
func (n *Node) Run(cmd *exec.Cmd) error { return n.ns.Run(cmd) }

// Exec runs a command and returns its standard output. The error of a command
// that did not succeed holds its standard error.
func (n *Node) Exec(ctx context.Context, argv ...string) (string, error) {
	cmd := n.Command(ctx, argv...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := n.Run(cmd); err != nil {
		return stdout.String(), fmt.Errorf("run %s: %w: %s", strings.Join(argv, " "), err, stderr.String())
	}
	return stdout.String(), nil
}

// Spawn starts a long-running program, with its output in <name>.log in the
// node's folder. It ends with the node.
func (n *Node) Spawn(ctx context.Context, name string, argv ...string) (*sandbox.Process, error) {
	p, err := n.ns.Spawn(n.Dir, name, n.Command(context.WithoutCancel(ctx), argv...))
	if err != nil {
		return nil, err
	}
	n.processes = append(n.processes, p)
	return p, nil
}

// Serve starts a program like Spawn and waits until it listens.
func (n *Node) Serve(ctx context.Context, name, network, address string, argv ...string) error {
	p, err := n.Spawn(ctx, name, argv...)
	if err != nil {
		return err
	}
	return p.WaitListening(ctx, n.ns, network, address)
}

// Dial connects to an address of the node from inside it.
func (n *Node) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	return n.ns.Dial(ctx, network, address)
}

// Root is the path by which programs outside see a path of the node.
func (n *Node) Root(path string) string { return n.ns.Root(path) }

// Close ends every process of the node.
func (n *Node) Close() error {
	if n.ns == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	errs := []error{n.ns.Kill(ctx)}
	for _, p := range n.processes {
		errs = append(errs, p.Stop(ctx, os.Kill))
	}
	n.processes = nil
	return errors.Join(errs...)
}
