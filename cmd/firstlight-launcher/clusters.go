package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"

	"k8s.io/client-go/rest"

	"github.com/firstlight-dev/firstlight/launcher/cluster"
	"github.com/firstlight-dev/firstlight/launcher/config"
	"github.com/firstlight-dev/firstlight/launcher/kube"
	"github.com/firstlight-dev/firstlight/launcher/local"
	"github.com/firstlight-dev/firstlight/sharing/fit"
	"github.com/firstlight-dev/firstlight/sharing/wire"
)

// openClusters opens every configured cluster. The returned function closes
// those that want it.
func openClusters(ctx context.Context, cfg *config.Config, log *slog.Logger) ([]cluster.Cluster, func(), error) {
	var all []cluster.Cluster
	closeAll := func() {
		for _, c := range all {
			if closer, ok := c.(io.Closer); ok {
				if err := closer.Close(); err != nil {
					log.Warn("cluster not closed", "cluster", c.Name(), "error", err)
				}
			}
		}
	}
	for i := range cfg.Clusters {
		c, err := openCluster(ctx, &cfg.Clusters[i], log)
		if err != nil {
			closeAll()
			return nil, nil, fmt.Errorf("cluster %s: %w", cfg.Clusters[i].Name, err)
		}
		all = append(all, c)
	}
	return all, closeAll, nil
}

func openCluster(ctx context.Context, k *config.Cluster, log *slog.Logger) (cluster.Cluster, error) {
	if k.Kind == config.KindLocal {
		return openLocal(ctx, k, log)
	}
	return openKubernetes(ctx, k, log)
}

func openKubernetes(ctx context.Context, k *config.Cluster, log *slog.Logger) (cluster.Cluster, error) {
	access, err := reach(k)
	if err != nil {
		return nil, err
	}
	return kube.New(ctx, access, kube.Config{
		Name: k.Name, Namespace: k.Namespace, ToolsImage: k.ToolsImage, ToolsDelivery: k.ToolsDelivery,
		SchedulerName: k.SchedulerName, RuntimeClass: k.RuntimeClass, DirectDial: k.DirectDial,
		HostPaths: k.HostPaths, NodeAPI: k.NodeAPI,
	}, log)
}

// reach says how to reach a cluster: by its kubeconfig, or as a pod of it.
func reach(k *config.Cluster) (*rest.Config, error) {
	if k.Kubeconfig == "" {
		return kube.InCluster()
	}
	return kube.LoadKubeconfig(k.Kubeconfig, k.Context, k.AllowUnsafeKube)
}

func openLocal(ctx context.Context, k *config.Cluster, log *slog.Logger) (cluster.Cluster, error) {
	policy, ok := fit.ParsePolicy(k.Policy)
	if k.Policy != "" && !ok {
		return nil, fmt.Errorf("policy %q is neither binpack nor spread", k.Policy)
	}
	var cards []wire.Device
	if k.Devices != "" {
		text, err := os.ReadFile(k.Devices)
		if err != nil {
			return nil, fmt.Errorf("read devices: %w", err)
		}
		inventory, err := wire.ParseInventory(text)
		if err != nil {
			return nil, fmt.Errorf("devices %s: %w", k.Devices, err)
		}
		if cards, err = inventory.Cards(k.Name); err != nil {
			return nil, fmt.Errorf("devices %s: %w", k.Devices, err)
		}
	}
	return local.New(ctx, local.Config{
		Name: k.Name, Node: k.Node, Containerd: k.Containerd, Namespace: k.Namespace, Snapshotter: k.Snapshotter,
		NodeAPI: k.NodeAPI, HostsDir: k.HostsDir, Agent: k.Agent, State: k.State, Address: k.Address,
		Cards: cards, Policy: policy, HostPaths: k.HostPaths,
	}, log)
}
