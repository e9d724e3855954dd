// Package config reads the launcher's configuration: one YAML file, in which
// unknown keys are errors, so that a misspelt setting does not silently leave
// its default in force.
package config

import (
	"cmp"
	_ "embed" // the example
	"errors"
	"fmt"
	"os"

	"sigs.k8s.io/yaml"
)

// Kinds of clusters.
const (
	KindLocal      = "local"
	KindKubernetes = "kubernetes"
)

// Defaults.
const (
	DefaultListen   = "127.0.0.1:7070"
	DefaultDatabase = "/var/lib/firstlight/launcher.db"
)

// maxFile bounds the configuration file; real ones have a few KiB.
const maxFile = 1 << 20

// Example is a configuration file with every usual setting and what it is for.
//
//go:embed example.yaml
var Example string

// Config is the launcher's configuration.
type Config struct {
	Listen    string    `json:"listen"`    // host:port of the API
	Database  string    `json:"database"`  // path of the SQLite file
	KeyFile   string    `json:"keyFile"`   // keys that seal the database's secrets; made if absent; default: Database + ".key"
	TokenFile string    `json:"tokenFile"` // who may use the API; empty serves this machine only
	LogLevel  string    `json:"logLevel"`  // debug, info, warn or error
	PlainHTTP []string  `json:"plainHTTP"` // registries (host:port) spoken to without TLS
	Clusters  []Cluster `json:"clusters"`  // the first is the default
}

// Cluster configures one cluster. Which fields count depends on Kind.
type Cluster struct {
	Name string `json:"name"`
	Kind string `json:"kind"`

	// Both kinds.
	Namespace string   `json:"namespace,omitempty"` // of containerd or Kubernetes; nothing else may use it
	NodeAPI   string   `json:"nodeAPI,omitempty"`   // socket of the lazy snapshotter's node API, where it can be reached
	HostPaths []string `json:"hostPaths,omitempty"` // folders of the node that specs may mount

	// local
	Node        string `json:"node,omitempty"`
	Containerd  string `json:"containerd,omitempty"` // its socket
	Snapshotter string `json:"snapshotter,omitempty"`
	HostsDir    string `json:"hostsDir,omitempty"` // containerd's registry settings (certs.d)
	Agent       string `json:"agent,omitempty"`    // path of firstlight-agent
	State       string `json:"state,omitempty"`    // folder for logs and agent configurations
	Address     string `json:"address,omitempty"`  // where environments listen
	Devices     string `json:"devices,omitempty"`  // inventory file of simulated cards
	Policy      string `json:"policy,omitempty"`   // binpack or spread

	// kubernetes
	Kubeconfig      string `json:"kubeconfig,omitempty"`            // path; empty in a pod is the pod's own cluster
	Context         string `json:"context,omitempty"`               // in the kubeconfig; default: its current one
	AllowUnsafeKube bool   `json:"allowUnsafeKubeconfig,omitempty"` // plugins, file references and disabled TLS checks
	ToolsImage      string `json:"toolsImage,omitempty"`            // image that holds firstlight-agent
	ToolsDelivery   string `json:"toolsDelivery,omitempty"`         // imageVolume or initContainer
	SchedulerName   string `json:"schedulerName,omitempty"`         // of the GPU scheduler
	RuntimeClass    string `json:"runtimeClass,omitempty"`          // of GPU environments
	DirectDial      bool   `json:"directDial,omitempty"`            // pod addresses can be reached from here
}

// Read reads and checks a configuration file.
func Read(path string) (*Config, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	if info.Size() > maxFile {
		return nil, fmt.Errorf("read configuration: %s is larger than %d bytes", path, maxFile)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	c, err := Parse(text)
	if err != nil {
		return nil, fmt.Errorf("configuration %s: %w", path, err)
	}
	return c, nil
}

// Parse decodes and checks a configuration, and fills in its defaults.
func Parse(text []byte) (*Config, error) {
	var c Config
	if err := yaml.UnmarshalStrict(text, &c); err != nil {
		return nil, err
	}
	c.Listen = cmp.Or(c.Listen, DefaultListen)
	c.Database = cmp.Or(c.Database, DefaultDatabase)
	c.KeyFile = cmp.Or(c.KeyFile, c.Database+".key")
	c.LogLevel = cmp.Or(c.LogLevel, "info")
	if len(c.Clusters) == 0 {
		return nil, errors.New("clusters: at least one is needed")
	}
	seen := map[string]bool{}
	for i := range c.Clusters {
		k := &c.Clusters[i]
		at := fmt.Sprintf("clusters[%d]", i)
		switch {
		case k.Name == "" || seen[k.Name]:
			return nil, fmt.Errorf("%s.name: must be a name of its own", at)
		case k.Kind != KindLocal && k.Kind != KindKubernetes:
			return nil, fmt.Errorf("%s.kind: %q is neither %s nor %s", at, k.Kind, KindLocal, KindKubernetes)
		}
		seen[k.Name] = true
	}
	return &c, nil
}
