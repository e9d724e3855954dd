package sandbox

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"
)

// CoverMounts hides the folders that a machine's services write to: /run and
// /var/log become empty and live in memory, /var/lib becomes the folder varLib,
// because images and volumes land there. /proc shows the processes inside.
func (ns *Namespaces) CoverMounts(ctx context.Context, varLib string) error {
	if err := os.MkdirAll(varLib, 0o755); err != nil {
		return fmt.Errorf("make private /var/lib: %w", err)
	}
	// A proc file system shows the PID namespace of the process that mounts
	// it, and a borrowed thread still lives in ours.
	mount := exec.CommandContext(ctx, "mount", "-t", "proc", "proc", "/proc")
	var stderr bytes.Buffer
	mount.Stderr = &stderr
	if err := ns.Run(mount); err != nil {
		return fmt.Errorf("mount /proc: %w: %s", err, stderr.String())
	}
	return ns.Enter(func() error {
		for _, m := range []struct {
			source, target, kind string
			flags                uintptr
		}{
			{"tmpfs", "/run", "tmpfs", 0},
			{"tmpfs", "/var/log", "tmpfs", 0},
			{varLib, "/var/lib", "", unix.MS_BIND},
			// Bidirectional mount propagation of pods needs a shared root.
			{"none", "/", "", unix.MS_REC | unix.MS_SHARED},
		} {
			if err := unix.Mount(m.source, m.target, m.kind, m.flags, ""); err != nil {
				return fmt.Errorf("mount %s on %s: %w", m.source, m.target, err)
			}
		}
		return nil
	})
}
