package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"

	"github.com/firstlight-dev/firstlight/launcher/cluster"
	"github.com/firstlight-dev/firstlight/launcher/config"
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

func openCluster(_ context.Context, k *config.Cluster, _ *slog.Logger) (cluster.Cluster, error) {
	return nil, fmt.Errorf("kind %s is not built in", k.Kind)
}

