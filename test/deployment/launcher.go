package deployment

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"sigs.k8s.io/yaml"

	"github.com/firstlight-dev/firstlight/launcher/config"
)

// LauncherConfig is the configuration of a launcher inside the cluster. With
// lazy, environments start from lazily loaded images.
func (d *Deployment) LauncherConfig(kubeconfig string, lazy bool) config.Config {
	target := config.Cluster{
		Name: "kubernetes", Kind: config.KindKubernetes, Namespace: Namespace, Kubeconfig: kubeconfig,
		ToolsImage: ToolsImage, SchedulerName: SchedulerName,
	}
	if lazy {
		target.RuntimeClass, target.NodeAPI = RuntimeClass, NodeSocket
	}
	return config.Config{
		Listen: LauncherAddress, Database: filepath.Join(d.cluster.Dir(), "launcher.db"), LogLevel: "debug",
		PlainHTTP: d.cfg.PlainHTTP, Clusters: []config.Cluster{target},
	}
}

// StartLauncher starts the launcher at LauncherAddress, also again. It needs
// what StartSharing and ImportTools bring.
func (d *Deployment) StartLauncher(ctx context.Context, lazy bool) error {
	kubeconfig, err := d.cluster.Kubeconfig("firstlight-launcher")
	if err != nil {
		return err
	}
	text, err := yaml.Marshal(d.LauncherConfig(kubeconfig.Inside, lazy))
	if err != nil {
		return fmt.Errorf("encode launcher configuration: %w", err)
	}
	file := filepath.Join(d.cluster.Dir(), "launcher.yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return fmt.Errorf("write launcher configuration: %w", err)
	}
	if d.Launcher, err = d.spawn(ctx, "firstlight-launcher", "--config="+file); err != nil {
		return err
	}
	return d.waitListening(ctx, d.Launcher, "tcp", LauncherAddress)
}
