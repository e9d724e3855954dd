package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

const cgroupMount = "/sys/fs/cgroup"

// cgroupPrefix is followed by the process id of the owner and its how-manieth
// cluster this is.
const cgroupPrefix = "firstlight-cluster-"

// cgroups is one folder of the same name in every hierarchy.
type cgroups struct{ name string }

// newCgroups makes the parent cgroup of all pods of a cluster. Kubelet insists
// that it exists.
func newCgroups(serial int64) (cgroups, error) {
	sweepCgroups()
	g := cgroups{name: cgroupPrefix + strconv.Itoa(os.Getpid()) + "-" + strconv.FormatInt(serial, 10)}
	roots, err := cgroupRoots()
	if err != nil {
		return g, err
	}
	for _, root := range roots {
		if err := g.make(root); err != nil {
			return g, errors.Join(fmt.Errorf("make cgroup: %w", err), g.remove())
		}
	}
	return g, nil
}

func (g cgroups) make(root string) error {
	dir := filepath.Join(root, g.name)
	if filepath.Clean(root) == cgroupMount { // version 2: children get what the parent passes on
		control := filepath.Join(root, "cgroup.subtree_control")
		if err := os.WriteFile(control, []byte("+cpuset +cpu +memory +pids"), 0o644); err != nil {
			return err
		}
		return os.Mkdir(dir, 0o755)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	// A new cpuset of version 1 is empty, and no process may join an empty one.
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		value, err := os.ReadFile(filepath.Join(root, file))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, file), value, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// remove removes the folders. The processes in them must have ended.
func (g cgroups) remove() error {
	var errs []error
	for _, dir := range findCgroups(g.name) {
		errs = append(errs, removeCgroup(dir))
	}
	return errors.Join(errs...)
}

// findCgroups finds the folders of that name (a pattern) in every hierarchy,
// also in those that are not kubelet's: runc joins all of them.
func findCgroups(name string) []string {
	// Glob's only error is a malformed pattern.
	v2, _ := filepath.Glob(filepath.Join(cgroupMount, name))
	v1, _ := filepath.Glob(filepath.Join(cgroupMount, "*", name))
	return append(v2, v1...)
}

// removeCgroup removes a folder and those below it, the deepest first. The
// files in a cgroup cannot be removed and need not be.
func removeCgroup(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if e.IsDir() {
			err = errors.Join(err, removeCgroup(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(err, os.Remove(dir))
}

// sweepCgroups removes what killed processes left. It is a courtesy: a folder
// that is in use cannot be removed, and nothing depends on it.
func sweepCgroups() {
	for _, dir := range findCgroups(cgroupPrefix + "*") {
		pid, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), cgroupPrefix), "-")
		if _, err := os.Stat(filepath.Join("/proc", pid)); errors.Is(err, fs.ErrNotExist) {
			_ = removeCgroup(dir)
		}
	}
}

// cgroupRoots are the folders of all hierarchies that kubelet uses.
func cgroupRoots() ([]string, error) {
	if _, err := os.Stat(filepath.Join(cgroupMount, "cgroup.controllers")); err == nil {
		return []string{cgroupMount}, nil
	}
	entries, err := os.ReadDir(cgroupMount)
	if err != nil {
		return nil, fmt.Errorf("list cgroup hierarchies: %w", err)
	}
	var roots []string
	for _, e := range entries {
		// Beside version 1, "unified" is version 2 without controllers.
		if e.IsDir() && e.Name() != "unified" {
			roots = append(roots, filepath.Join(cgroupMount, e.Name()))
		}
	}
	if len(roots) == 0 {
		return nil, fmt.Errorf("%w: no cgroup hierarchy under %s", ErrUnsupported, cgroupMount)
	}
	return roots, nil
}
