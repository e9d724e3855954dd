package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Tools is the folder with the programs that tests run against (make tools):
// $FIRSTLIGHT_TOOLS, else .cache/bin in the repository.
func Tools() (string, error) {
	if dir := os.Getenv("FIRSTLIGHT_TOOLS"); dir != "" {
		return dir, nil
	}
	root, err := RepositoryRoot()
	if err != nil {
		return "", fmt.Errorf("%w; set FIRSTLIGHT_TOOLS", err)
	}
	return filepath.Join(root, ".cache", "bin"), nil
}

// RepositoryRoot walks up to the go.mod of the project.
func RepositoryRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find repository: %w", err)
	}
	for {
		data, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.HasPrefix(string(data), "module github.com/firstlight-dev/firstlight\n") {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("find repository: no go.mod of firstlight above the working folder")
		}
		dir = parent
	}
}
