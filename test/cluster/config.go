package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/firstlight-dev/firstlight/test/sandbox"
)

// Addresses inside the namespaces. They are constants because nothing outside
// can collide with them.
const (
	nodeIP       = "10.200.0.1"
	apiAddress   = "127.0.0.1:6443"
	etcdAddress  = "127.0.0.1:2379"
	etcdPeer     = "127.0.0.1:2380"
	podSubnet    = "10.244.0.0/24"
	serviceRange = "10.96.0.0/16"

	// RegistryAddress is where Config.Registry listens, inside.
	RegistryAddress = "127.0.0.1:5000"
	// ContainerdSocket is the socket of containerd, inside.
	ContainerdSocket = "/run/containerd/containerd.sock"
	// PauseImage and BusyboxImage are imported into every cluster.
	PauseImage   = "localhost/pause:1"
	BusyboxImage = "localhost/busybox:1"
)

// Config says what to start. The zero value is a plain cluster.
type Config struct {
	// Dir holds the state and the logs. Default: a new temporary folder that
	// Close removes. It must not lie under /run, /var/lib or /var/log.
	Dir string
	// Tools is the folder with containerd, kubeall and so on. Default:
	// $FIRSTLIGHT_TOOLS, else .cache/bin in the repository.
	Tools string
	// Node is the name of the node. Default: node1.
	Node string
	// Registry starts a registry at RegistryAddress.
	Registry bool
	// Snapshotters are proxy plugins of containerd. The caller starts them.
	Snapshotters []Snapshotter
	// HostsDir is the certs.d folder of containerd's registry configuration.
	HostsDir string
	// SchedulerName adds a second profile of that name to kube-scheduler.
	SchedulerName string
	// Extenders are called by every profile for pods asking their resources.
	Extenders []Extender
	// Images are archives (OCI or docker save) to import beside pause and
	// busybox.
	Images []string
	// Flags are further arguments of a component, by its name, for example
	// "kube-apiserver": {"--v=4"}.
	Flags map[string][]string
}

// Snapshotter is a containerd proxy plugin.
type Snapshotter struct {
	Name    string // of the plugin
	Address string // its socket, inside
	Root    string // its state folder, which kubelet measures as the image file system
	Handler string // runtime handler (of a RuntimeClass) whose pods use it; may be empty
	Default bool   // pods without a runtime class use it too
}

// Extender is a kube-scheduler extender serving filter and bind.
type Extender struct {
	URL string
	// Filter, Bind and Prioritize are verbs under URL; empty means not served.
	Filter, Bind, Prioritize string
	// Resources make a pod the extender's business. Ignored ones are those
	// that nodes do not advertise, so that kube-scheduler must not count them.
	Resources, Ignored []string
}

// ErrUnsupported is in the chain of errors that say why this machine cannot
// run a cluster.
var ErrUnsupported = errors.New("this machine cannot run the test cluster")

// requiredTools are looked for in Config.Tools.
func requiredTools(cfg Config) []string {
	tools := []string{
		"containerd", "ctr", "containerd-shim-runc-v2",
		"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl",
	}
	if cfg.Registry {
		tools = append(tools, "registry")
	}
	return tools
}

// Probe says why this machine cannot run a cluster, or nil. Every reason is
// given, not only the first.
func Probe(cfg Config) error {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return err
	}
	var reasons []string
	if os.Geteuid() != 0 {
		reasons = append(reasons, "it needs root")
	}
	for _, tool := range requiredTools(cfg) {
		if _, err := os.Stat(filepath.Join(cfg.Tools, tool)); err != nil {
			reasons = append(reasons, fmt.Sprintf("%s is not in %s (make tools)", tool, cfg.Tools))
		}
	}
	for _, program := range []string{"runc", "busybox", "env", "sleep", "mount"} {
		if _, err := exec.LookPath(program); err != nil {
			reasons = append(reasons, program+" is not installed")
		}
	}
	if _, err := cniPlugins(); err != nil {
		reasons = append(reasons, err.Error())
	}
	if len(reasons) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrUnsupported, strings.Join(reasons, "; "))
}

func (cfg Config) withDefaults() (Config, error) {
	if cfg.Node == "" {
		cfg.Node = "node1"
	}
	if cfg.Tools == "" {
		tools, err := sandbox.Tools()
		if err != nil {
			return cfg, err
		}
		cfg.Tools = tools
	}
	tools, err := filepath.Abs(cfg.Tools)
	if err != nil {
		return cfg, fmt.Errorf("resolve tools folder: %w", err)
	}
	cfg.Tools = tools
	return cfg, nil
}

// checkDir refuses a state folder that the private mounts would hide.
func checkDir(dir string) error {
	for _, hidden := range []string{"/run", "/var/run", "/var/lib", "/var/log"} {
		if dir == hidden || strings.HasPrefix(dir, hidden+"/") {
			return fmt.Errorf("state folder %s lies under %s, which is private inside the cluster", dir, hidden)
		}
	}
	return nil
}

// cniPlugins finds the folder with the plugins of the pod network.
func cniPlugins() (string, error) {
	for _, dir := range []string{"/opt/cni/bin", "/usr/lib/cni"} {
		if _, err := os.Stat(filepath.Join(dir, "bridge")); err == nil {
			return dir, nil
		}
	}
	return "", errors.New("CNI plugins are neither in /opt/cni/bin nor in /usr/lib/cni (package containernetworking-plugins)")
}
