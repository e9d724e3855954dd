// Package deployment puts our programs on a test cluster the way an operator
// would: the snapshotter beside containerd, the scheduler extender with its
// webhook beside kube-scheduler, and the device plugin beside kubelet. Each of
// them has an identity of its own with no more rights than it needs.
//
// They are plain processes in the cluster's namespaces, so that a test can kill
// them, read their logs and reach their sockets.
package deployment

import (
	"context"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/firstlight-dev/firstlight/test/cluster"
	"github.com/firstlight-dev/firstlight/test/sandbox"
)

const (
	// RuntimeClass is the class whose pods start from lazily loaded images.
	RuntimeClass = "firstlight"
	// SchedulerName is the profile for pods that share cards.
	SchedulerName = "firstlight-scheduler"

	// SnapshotterRoot, SnapshotterSocket and NodeSocket are paths inside.
	SnapshotterRoot   = "/var/lib/firstlight"
	SnapshotterSocket = "/run/firstlight/snapshotter.sock"
	NodeSocket        = "/run/firstlight/node.sock"

	// Namespace holds the launcher's environments.
	Namespace = "environments"

	// ExtenderAddress, WebhookAddress, LauncherAddress and the two metrics
	// addresses are inside.
	ExtenderAddress  = "127.0.0.1:9901"
	WebhookAddress   = "127.0.0.1:9443"
	SchedulerMetrics = "127.0.0.1:9395"
	PluginMetrics    = "127.0.0.1:9394"
	LauncherAddress  = "127.0.0.1:7070"
)

var (
	//go:embed roles.yaml
	roles string
	//go:embed webhook.yaml
	webhook string
	//go:embed runtimeclass.yaml
	runtimeClass string
	// twoA100 are the simulated cards of the node.
	//go:embed cards.yaml
	twoA100 []byte
)

// ClusterConfig returns what a cluster must be started with. Its containerd
// knows the snapshotter as a handler, not as the default.
func ClusterConfig() cluster.Config {
	return cluster.Config{
		Snapshotters: []cluster.Snapshotter{{
			Name: "firstlight", Address: SnapshotterSocket, Root: SnapshotterRoot, Handler: RuntimeClass,
		}},
		SchedulerName: SchedulerName,
		Extenders: []cluster.Extender{{
			URL: "http://" + ExtenderAddress, Filter: "filter", Bind: "bind",
			// The extender counts all of them; nodes advertise only the first.
			Ignored: []string{
				"nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores", "nvidia.com/priority",
			},
		}},
	}
}

// Config says what to deploy.
type Config struct {
	Bin      string   // folder with our programs
	HostsDir string   // certs.d folder of the snapshotter; default: none
	Flags    []string // further flags of the snapshotter
	Cards    string   // inventory file; default: two A100-40GB
	// PlainHTTP names registries, as host:port, that the launcher speaks to
	// without TLS.
	PlainHTTP []string
}

// Deployment is our programs on one cluster.
type Deployment struct {
	cluster *cluster.Cluster
	cfg     Config

	Snapshotter  *sandbox.Process
	Scheduler    *sandbox.Process
	DevicePlugin *sandbox.Process
	Launcher     *sandbox.Process
}

// New returns a deployment of which nothing runs yet.
func New(c *cluster.Cluster, cfg Config) *Deployment {
	if cfg.HostsDir == "" {
		cfg.HostsDir = filepath.Join(c.Dir(), "certs.d")
	}
	return &Deployment{cluster: c, cfg: cfg}
}

// StartSnapshotter starts the snapshotter and makes its runtime class.
func (d *Deployment) StartSnapshotter(ctx context.Context) (err error) {
	if err := d.cluster.Apply(ctx, runtimeClass); err != nil {
		return err
	}
	args := append([]string{
		"--root=" + SnapshotterRoot, "--address=" + SnapshotterSocket, "--node-address=" + NodeSocket,
		"--containerd-address=" + cluster.ContainerdSocket, "--hosts-dir=" + d.cfg.HostsDir,
	}, d.cfg.Flags...)
	if d.Snapshotter, err = d.spawn(ctx, "firstlight-snapshotter", args...); err != nil {
		return err
	}
	return d.waitListening(ctx, d.Snapshotter, "unix", NodeSocket)
}

// StartSharing starts the scheduler with its webhook and the device plugin,
// and returns when the node advertises the cards.
func (d *Deployment) StartSharing(ctx context.Context) error {
	if err := d.cluster.Apply(ctx, roles); err != nil {
		return err
	}
	if err := d.StartScheduler(ctx); err != nil {
		return err
	}
	if err := d.StartDevicePlugin(ctx); err != nil {
		return err
	}
	bundle := base64.StdEncoding.EncodeToString(d.cluster.CA())
	return d.cluster.Apply(ctx, fmt.Sprintf(webhook, "https://"+WebhookAddress+"/webhook", bundle))
}

// StartScheduler starts the extender and the webhook, also again.
func (d *Deployment) StartScheduler(ctx context.Context) error {
	kubeconfig, err := d.cluster.Kubeconfig("firstlight-scheduler")
	if err != nil {
		return err
	}
	cert, key, err := d.cluster.ServerCertificate("webhook", "127.0.0.1")
	if err != nil {
		return err
	}
	d.Scheduler, err = d.spawn(ctx, "firstlight-scheduler",
		"--kubeconfig="+kubeconfig.Inside, "--scheduler-name="+SchedulerName,
		"--listen="+ExtenderAddress, "--webhook-listen="+WebhookAddress, "--tls-cert="+cert, "--tls-key="+key)
	if err != nil {
		return err
	}
	if err := d.waitListening(ctx, d.Scheduler, "tcp", ExtenderAddress); err != nil {
		return err
	}
	return d.waitListening(ctx, d.Scheduler, "tcp", WebhookAddress)
}

// StartDevicePlugin starts the device plugin, also again, and waits until
// kubelet has its devices in the node's status.
func (d *Deployment) StartDevicePlugin(ctx context.Context) error {
	kubeconfig, err := d.cluster.Kubeconfig("firstlight-device-plugin")
	if err != nil {
		return err
	}
	cards := d.cfg.Cards
	if cards == "" {
		cards = filepath.Join(d.cluster.Dir(), "cards.yaml")
		if err := os.WriteFile(cards, twoA100, 0o644); err != nil {
			return fmt.Errorf("write inventory: %w", err)
		}
	}
	d.DevicePlugin, err = d.spawn(ctx, "firstlight-device-plugin",
		"--kubeconfig="+kubeconfig.Inside, "--node-name="+d.cluster.Node(), "--simulate="+cards)
	if err != nil {
		return err
	}
	return d.waitCards(ctx)
}

// waitCards waits until the node's status counts devices. It says 0 while a
// plugin that was there before is gone.
func (d *Deployment) waitCards(ctx context.Context) error {
	return d.DevicePlugin.WaitReady(ctx, func(ctx context.Context) error {
		count, err := d.cluster.Kubectl(ctx, "get", "node", d.cluster.Node(), "--output",
			`jsonpath={.status.allocatable.nvidia\.com/gpu}`)
		if err == nil && (count == "" || count == "0") {
			err = errors.New("the node has no allocatable cards")
		}
		return err
	})
}

func (d *Deployment) spawn(ctx context.Context, program string, args ...string) (*sandbox.Process, error) {
	argv := append([]string{filepath.Join(d.cfg.Bin, program)}, args...)
	// The program ends with the cluster, not with the context of its start.
	return d.cluster.Spawn(program, d.cluster.Command(context.WithoutCancel(ctx), argv...))
}

// waitListening waits until a program that was just started can be reached.
func (d *Deployment) waitListening(ctx context.Context, p *sandbox.Process, network, address string) error {
	return p.WaitListening(ctx, d.cluster.Namespaces(), network, address)
}
