package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/firstlight-dev/firstlight/test/lab"
)

// deviceFile simulates two cards. The fit code is the same as for real ones.
const deviceFile = `devices:
- model: NVIDIA A100-PCIE-40GB
  memoryMiB: 40960
  count: 2
`

// specFile asks a quarter of a card, and says when the environment counts as
// usable.
const specFile = `name: quarter
image: ` + imageRef + `
cpu: "1"
memory: 2Gi
gpu:
  model: A100
  count: 1
  share: {memoryMiB: 10240, cores: 25}
readiness:
  - {name: ssh_login, type: ssh_login}
  - name: scipy
    type: exec
    command: [python3, -c, "import numpy, scipy.linalg; print('det', round(scipy.linalg.det(2 * numpy.eye(3))))"]
    expect: det 8
`

// localConfig is the launcher's configuration with containerd alone.
const localConfig = `listen: %[1]s
database: %[2]s/launcher.db
plainHTTP: [` + lab.RegistryAddress + `]
clusters:
  - name: here
    kind: local
    containerd: %[3]s
    snapshotter: %[4]s
    hostsDir: %[5]s
    nodeAPI: %[6]s
    agent: %[7]s
    state: %[2]s/environments
    devices: %[2]s/devices.yaml
`

// localMachine is a node with containerd alone, and the launcher's local cluster.
func (s *scene) localMachine(ctx context.Context, a arm) (*machine, error) {
	var node *lab.Node
	err := s.tell.step("start containerd, snapshotter and launcher", func() (note string, err error) {
		if node, err = s.lab.Node(ctx); err != nil {
			return "", err
		}
		config := fmt.Sprintf(localConfig, launcherAddress, node.Dir, lab.ContainerdSocket, a.snapshotter,
			node.HostsDir(), lab.NodeSocket, s.bin("firstlight-agent"))
		err = errors.Join(
			os.WriteFile(filepath.Join(node.Dir, "devices.yaml"), []byte(deviceFile), 0o644),
			os.WriteFile(filepath.Join(node.Dir, "launcher.yaml"), []byte(config), 0o644))
		if err != nil {
			return "", fmt.Errorf("write launcher configuration: %w", err)
		}
		return "", node.Serve(ctx, "launcher", "tcp", launcherAddress,
			"firstlight-launcher", "--config", filepath.Join(node.Dir, "launcher.yaml"))
	})
	if err != nil {
		return nil, err
	}
	return &machine{node: node, link: node.Link, dir: node.Dir, bin: s.bin("firstlight")}, nil
}

func (s *scene) bin(name string) string { return filepath.Join(s.root, "bin", name) }
