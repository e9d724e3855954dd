package agent

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Install copies this program to bin/firstlight-agent below dir: what an init
// container does where images can't be mounted as volumes. The copy appears
// complete or not at all, and doing it again is harmless.
func Install(dir string) error {
	target := filepath.Join(dir, "bin", "firstlight-agent")
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return fmt.Errorf("install agent: %w", err)
	}
	from, err := os.Open("/proc/self/exe")
	if err != nil {
		return fmt.Errorf("install agent: %w", err)
	}
	defer from.Close()
	temp := target + ".new"
	if err := copyTo(temp, from); err != nil {
		return fmt.Errorf("install agent: %w", err)
	}
	if err := os.Rename(temp, target); err != nil {
		return fmt.Errorf("install agent: %w", err)
	}
	return nil
}

func copyTo(path string, from io.Reader) error {
	to, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(to, from); err != nil {
		_ = to.Close()
		return err
	}
	// The mode must hold whatever the umask is: another user runs the copy.
	if err := to.Chmod(0o755); err != nil {
		_ = to.Close()
		return err
	}
	return to.Close()
}
