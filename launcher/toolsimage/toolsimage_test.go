package toolsimage_test

import (
	"archive/tar"
	"errors"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/firstlight-dev/firstlight/launcher/agentapi"
	"github.com/firstlight-dev/firstlight/launcher/toolsimage"
)

// program builds a static program and returns its file.
func program(t *testing.T) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "agent")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", out, "github.com/firstlight-dev/firstlight/cmd/firstlight-agent")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if msg, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build agent: %v: %s", err, msg)
	}
	return out
}

func TestPushIsDeterministic(t *testing.T) {
	agent := program(t)
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	ref, err := name.ParseReference(strings.TrimPrefix(server.URL, "http://") + "/tools:1")
	if err != nil {
		t.Fatal(err)
	}
	var pinned [2]string
	for i := range pinned {
		image, err := toolsimage.Build(agent)
		if err != nil {
			t.Fatal(err)
		}
		if pinned[i], err = toolsimage.Push(t.Context(), ref, image); err != nil {
			t.Fatal(err)
		}
	}
	if pinned[0] != pinned[1] {
		t.Errorf("two builds differ: %s and %s", pinned[0], pinned[1])
	}

	got, err := remote.Image(ref)
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := got.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if cfg.OS != "linux" || cfg.Architecture == "" || !cfg.Created.IsZero() {
		t.Errorf("configuration = %+v", cfg)
	}
	files := mutate.Extract(got)
	defer files.Close()
	want, err := os.ReadFile(agent)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]int64{}
	for r := tar.NewReader(files); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		found[h.Name] = h.Mode
		if h.Typeflag != tar.TypeReg {
			continue
		}
		if body, err := io.ReadAll(r); err != nil || string(body) != string(want) {
			t.Errorf("%s differs from the agent: %v", h.Name, err)
		}
	}
	rel, err := filepath.Rel(agentapi.InjectedDir, agentapi.BinaryPath)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]int64{"bin": 0o755, rel: 0o755}, found); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

func TestLayoutAgain(t *testing.T) {
	image, err := toolsimage.Build(program(t))
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "layout")
	var index [2]string
	for i := range index {
		if _, err := toolsimage.WriteLayout(dir, image); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(filepath.Join(dir, "index.json"))
		if err != nil {
			t.Fatal(err)
		}
		index[i] = string(b)
	}
	if index[0] != index[1] {
		t.Errorf("second write changed the layout:\n%s\n%s", index[0], index[1])
	}
}

func TestBuildRefuses(t *testing.T) {
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := toolsimage.Build(text); err == nil || !strings.Contains(err.Error(), "not an ELF program") {
		t.Errorf("script: %v", err)
	}
	if _, err := toolsimage.Build("/bin/ls"); !errors.Is(err, toolsimage.ErrNotStatic) {
		t.Errorf("dynamic program: %v", err)
	}
	if _, err := toolsimage.Build(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no program: %v", err)
	}
}
