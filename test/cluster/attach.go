package cluster

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/firstlight-dev/firstlight/test/sandbox"
)

// stateFile is in the state folder of a running cluster.
const stateFile = "cluster.json"

type state struct {
	Init   int
	Config Config
	Admin  Kubeconfig
}

func (c *Cluster) writeState() error {
	data, err := json.MarshalIndent(state{Init: c.ns.PID(), Config: c.cfg, Admin: c.admin}, "", "  ")
	if err != nil {
		return fmt.Errorf("encode state: %w", err)
	}
	if err := os.WriteFile(c.path(stateFile), append(data, '\n'), 0o600); err != nil {
		return fmt.Errorf("write state: %w", err)
	}
	return nil
}

// Attach returns the running cluster of another process by its state folder.
// Close then only ends what was started through the returned value.
func Attach(dir string) (*Cluster, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("attach to cluster: %w", err)
	}
	data, err := os.ReadFile(filepath.Join(dir, stateFile))
	if err != nil {
		return nil, fmt.Errorf("attach to cluster: %w", err)
	}
	var s state
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, fmt.Errorf("read state of cluster %s: %w", dir, err)
	}
	pki, err := loadAuthority(filepath.Join(dir, "pki"))
	if err != nil {
		return nil, err
	}
	return &Cluster{
		cfg: s.Config, dir: dir, pki: pki, admin: s.Admin,
		ns: sandbox.Attach(s.Init), relays: make(map[string]*relay),
	}, nil
}
