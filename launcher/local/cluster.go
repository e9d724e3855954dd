package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"

	"github.com/firstlight-dev/firstlight/launcher/agentapi"
	"github.com/firstlight-dev/firstlight/launcher/cluster"
	"github.com/firstlight-dev/firstlight/sharing/fit"
	"github.com/firstlight-dev/firstlight/sharing/wire"
	"github.com/firstlight-dev/firstlight/snapshotter/nodeapi"
)

// Defaults of a configuration.
const (
	DefaultContainerd  = "/run/containerd/containerd.sock"
	DefaultNamespace   = "firstlight"
	DefaultSnapshotter = "overlayfs"
	DefaultAddress     = "127.0.0.1"
)

// dialTimeout bounds the first connection to containerd.
const dialTimeout = 10 * time.Second

// Config is what a local cluster needs to know.
type Config struct {
	Name        string // what environments choose it by
	Node        string // the node's name in answers; default: the host name
	Containerd  string // its socket
	Namespace   string // containerd namespace; nothing else may use it
	Snapshotter string
	NodeAPI     string // socket of the lazy snapshotter's node API; empty if there is none
	HostsDir    string // containerd's registry settings (certs.d), as containerd sees the path

	Agent   string // path of firstlight-agent on this machine
	State   string // folder for logs and agent configurations
	Address string // environments listen here

	Cards     []wire.Device
	Policy    fit.Policy
	HostPaths []string // folders that Specs may mount, with all below them
}

func (c *Config) withDefaults() (Config, error) {
	out := *c
	for _, d := range []struct {
		field *string
		value string
	}{
		{&out.Containerd, DefaultContainerd},
		{&out.Namespace, DefaultNamespace},
		{&out.Snapshotter, DefaultSnapshotter},
		{&out.Address, DefaultAddress},
	} {
		if *d.field == "" {
			*d.field = d.value
		}
	}
	if out.Node == "" {
		host, err := os.Hostname()
		if err != nil {
			return out, fmt.Errorf("read host name: %w", err)
		}
		out.Node = host
	}
	switch {
	case out.Name == "":
		return out, errors.New("local cluster has no name")
	case !filepath.IsAbs(out.State):
		return out, fmt.Errorf("local cluster %s: state folder %q is not an absolute path", out.Name, out.State)
	case net.ParseIP(out.Address) == nil:
		return out, fmt.Errorf("local cluster %s: address %q is not an IP address", out.Name, out.Address)
	}
	return out, nil
}

// Cluster is a local cluster.
type Cluster struct {
	cfg    Config
	client *containerd.Client
	node   *nodeapi.Client // nil without a lazy snapshotter
	log    *slog.Logger
	keys   *keys
	ledger *ledger

	mu      sync.Mutex
	records map[string]record // guarded by mu; by environment
}

var (
	_ cluster.Cluster     = (*Cluster)(nil)
	_ cluster.ImageReader = (*Cluster)(nil)
	_ cluster.StartEnder  = (*Cluster)(nil)
)

// New connects to containerd and finds what runs there already.
func New(ctx context.Context, cfg Config, log *slog.Logger) (*Cluster, error) {
	full, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	st, err := os.Stat(full.Agent)
	if err != nil || !st.Mode().IsRegular() || st.Mode()&0o111 == 0 {
		return nil, fmt.Errorf("local cluster %s: agent %q is not an executable file: %w", full.Name, full.Agent, orNotExecutable(err))
	}
	// Agent configurations hold keys: for root alone.
	if err := os.MkdirAll(full.State, 0o700); err != nil {
		return nil, fmt.Errorf("make state folder: %w", err)
	}
	client, err := containerd.New(full.Containerd, containerd.WithDefaultNamespace(full.Namespace), containerd.WithTimeout(dialTimeout))
	if err != nil {
		return nil, unreachable(full.Containerd, err)
	}
	c := &Cluster{
		cfg:     full,
		client:  client,
		log:     log,
		keys:    newKeys(),
		ledger:  newLedger(full.Cards, full.Policy),
		records: make(map[string]record),
	}
	if full.NodeAPI != "" {
		c.node = nodeapi.NewClient(full.NodeAPI)
	}
	if err := c.rebuild(ctx); err != nil {
		return nil, errors.Join(err, client.Close())
	}
	return c, nil
}

var errNotExecutable = errors.New("not a regular file with an executable bit")

func orNotExecutable(err error) error {
	if err != nil {
		return err
	}
	return errNotExecutable
}

// Name implements cluster.Cluster.
func (c *Cluster) Name() string { return c.cfg.Name }

// Close ends the connection to containerd. Environments go on.
func (c *Cluster) Close() error { return c.client.Close() }

// rebuild reads the labels of everything that exists.
func (c *Cluster) rebuild(ctx context.Context) error {
	ctx = c.context(ctx)
	found, err := c.client.Containers(ctx, labelFilter)
	if err != nil {
		return unreachable(c.cfg.Containerd, err)
	}
	for _, container := range found {
		labels, err := container.Labels(ctx)
		if errdefs.IsNotFound(err) {
			continue // removed meanwhile
		}
		if err != nil {
			return fmt.Errorf("read labels of %s: %w", container.ID(), err)
		}
		r, err := parseRecord(labels)
		if err != nil {
			// Its share is unknown, so counting it as free would hand it
			// out twice: a person must look.
			return fmt.Errorf("read labels of container %s in namespace %s: %w", container.ID(), c.cfg.Namespace, err)
		}
		c.remember(r)
		c.ledger.restore(r.env, r.devices)
	}
	return nil
}

func (c *Cluster) context(ctx context.Context) context.Context {
	return namespaces.WithNamespace(ctx, c.cfg.Namespace)
}

func (c *Cluster) remember(r record) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.records[r.env] = r
}

func (c *Cluster) forget(env string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.records, env)
}

func (c *Cluster) record(env string) (record, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r, ok := c.records[env]
	if !ok {
		return record{}, fmt.Errorf("environment %s: %w", env, cluster.ErrNotFound)
	}
	return r, nil
}

// dir is the environment's folder.
func (c *Cluster) dir(env string) string { return filepath.Join(c.cfg.State, env) }

// Dial implements cluster.Cluster. Only the environment's own two services can
// be reached: other ports of this network belong to the machine. What a program
// in the environment serves is reached by forwarding over SSH.
func (c *Cluster) Dial(ctx context.Context, env string, port int) (net.Conn, error) {
	r, err := c.record(env)
	if err != nil {
		return nil, err
	}
	var address string
	switch port {
	case agentapi.SSHPort:
		address = r.ssh
	case agentapi.StatusPort:
		address = r.status
	default:
		return nil, fmt.Errorf("environment %s: port %d is not served by it: environments of cluster %s share the machine's network, so use ssh port forwarding", env, port, c.cfg.Name)
	}
	var d net.Dialer
	return d.DialContext(ctx, "tcp", address)
}

// unreachable says what to look at when containerd doesn't answer.
func unreachable(socket string, err error) error {
	hint := "is it running?"
	if errors.Is(err, fs.ErrPermission) {
		hint = "only root may open it"
	}
	return &cluster.Error{
		Code: cluster.CodeUnreachable, Retryable: true,
		Err: fmt.Errorf("containerd at %s does not answer (%s): %w", socket, hint, err),
	}
}
