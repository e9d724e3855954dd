package daemon

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A root belongs to one snapshotter. A second one must find that out before it touches anything: the
// first thing a keeper does is to clear away the mount that the last one left.
func TestRootHasOneOwner(t *testing.T) {
	root := t.TempDir()
	release, err := lockRoot(root)
	if err != nil {
		t.Fatal(err)
	}
	_, err = lockRoot(root)
	if !errors.Is(err, errRootInUse) || !strings.Contains(err.Error(), root) {
		t.Errorf("a second owner: %v", err)
	}
	// A worker inherits files, but must not keep the lock when its keeper is gone.
	cmd := exec.CommandContext(t.Context(), "sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = cmd.Process.Kill(), cmd.Wait() }()
	if err := release(); err != nil {
		t.Fatal(err)
	}
	if release, err = lockRoot(root); err != nil {
		t.Fatalf("after the first: %v", err)
	}
	if err := release(); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(filepath.Join(root, lockFile)); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("lock file %v, %v", st, err)
	}
}
