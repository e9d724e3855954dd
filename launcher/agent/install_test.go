package agent_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

func TestInstall(t *testing.T) {
	binary, err := buildAgent()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for range 2 {
		if out, err := exec.Command(binary, "install", dir).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	entries, err := os.ReadDir(filepath.Join(dir, "bin"))
	if err != nil || len(entries) != 1 {
		t.Fatalf("files = %v, %v", entries, err)
	}
	if out, err := exec.Command(filepath.Join(dir, "bin", "firstlight-agent"), "version").CombinedOutput(); err != nil {
		t.Errorf("copy does not run: %v: %s", err, out)
	}
	if out, err := exec.Command(binary, "install").CombinedOutput(); err == nil {
		t.Errorf("no folder: %s", out)
	}
}
