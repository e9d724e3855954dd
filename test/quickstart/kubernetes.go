package main

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/firstlight-dev/firstlight/test/cluster"
	"github.com/firstlight-dev/firstlight/test/deployment"
	"github.com/firstlight-dev/firstlight/test/lab"
)

// kubernetesMachine is a Kubernetes of one node with our programs on it, and the
// launcher beside them. A runtime class says which snapshotter a pod's image
// goes to: without one, pods start from containerd's own.
func (s *scene) kubernetesMachine(ctx context.Context, a arm) (*machine, error) {
	m := &machine{dir: filepath.Join(s.dir, "kubernetes-"+a.name), bin: s.bin("firstlight")}
	c, err := s.startCluster(ctx, m)
	if err != nil {
		return nil, err
	}
	m.node = c
	if err := s.deploy(ctx, c, m, a); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return m, nil
}

func (s *scene) startCluster(ctx context.Context, m *machine) (c *cluster.Cluster, err error) {
	err = s.tell.step("start Kubernetes", func() (note string, err error) {
		hosts := filepath.Join(m.dir, "certs.d")
		if err := lab.WriteHosts(hosts, lab.RegistryAddress); err != nil {
			return "", err
		}
		cfg := deployment.ClusterConfig()
		cfg.Dir, cfg.HostsDir = m.dir, hosts
		if c, err = cluster.Start(ctx, cfg); err != nil {
			return "", err
		}
		if m.link, err = s.lab.Join(c.Namespaces()); err != nil {
			return "", errors.Join(err, c.Close())
		}
		return "", nil
	})
	return c, err
}

func (s *scene) deploy(ctx context.Context, c *cluster.Cluster, m *machine, a arm) error {
	return s.tell.step("start snapshotter, scheduler, device plugin and launcher", func() (string, error) {
		d := deployment.New(c, deployment.Config{
			Bin:       filepath.Join(s.root, "bin"),
			HostsDir:  filepath.Join(m.dir, "certs.d"),
			PlainHTTP: []string{lab.RegistryAddress},
		})
		for _, start := range []func(context.Context) error{d.StartSnapshotter, d.StartSharing, d.ImportTools} {
			if err := start(ctx); err != nil {
				return "", err
			}
		}
		return "", d.StartLauncher(ctx, a.snapshotter == deployment.RuntimeClass)
	})
}
