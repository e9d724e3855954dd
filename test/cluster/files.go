package cluster

import (
	"embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"text/template"
)

//go:embed conf
var conf embed.FS

// writeFiles writes the configuration of every component into the state
// folder.
func writeFiles(dir string, cfg Config, g cgroups, pki *authority) error {
	runc, err := exec.LookPath("runc")
	if err != nil {
		return fmt.Errorf("find runc: %w", err)
	}
	plugins, err := cniPlugins()
	if err != nil {
		return err
	}
	hosts := cfg.HostsDir
	if hosts == "" {
		hosts = filepath.Join(dir, "certs.d")
	}
	snapshotter := "overlayfs"
	for _, s := range cfg.Snapshotters {
		if s.Default {
			snapshotter = s.Name
		}
	}
	return errors.Join(
		writeFile(dir, "containerd.toml", map[string]any{
			"Root": filepath.Join(dir, "containerd"), "Opt": filepath.Join(dir, "opt"), "Socket": ContainerdSocket,
			"Snapshotter": snapshotter, "Snapshotters": cfg.Snapshotters, "Platform": "linux/" + runtime.GOARCH,
			"Pause": PauseImage, "HostsDir": hosts, "Runc": runc,
			"CNIPlugins": plugins, "CNIConfig": filepath.Join(dir, "cni"),
		}),
		writeFile(dir, "kubelet.yaml", map[string]any{
			"CgroupRoot": "/" + g.name, "Socket": "unix://" + ContainerdSocket,
			"CA": pki.path("ca.crt"), "Cert": pki.path("kubelet.crt"), "Key": pki.path("kubelet.key"),
		}),
		writeFile(dir, "scheduler.yaml", map[string]any{
			"Kubeconfig": pki.path("scheduler.kubeconfig"), "SchedulerName": cfg.SchedulerName, "Extenders": cfg.Extenders,
		}),
		writeFile(dir, "cni/cni.conflist", map[string]any{"Subnet": podSubnet}),
		writeFile(dir, "registry.yml", map[string]any{"Root": filepath.Join(dir, "registry"), "Address": RegistryAddress}),
	)
}

func writeFile(dir, name string, values map[string]any) error {
	source := "conf/" + filepath.Base(name)
	t, err := template.New(filepath.Base(name)).Option("missingkey=error").
		Funcs(template.FuncMap{"quote": quote}).ParseFS(conf, source)
	if err != nil {
		return fmt.Errorf("parse %s: %w", source, err)
	}
	var text strings.Builder
	if err := t.Execute(&text, values); err != nil {
		return fmt.Errorf("fill %s: %w", source, err)
	}
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	if err := os.WriteFile(path, []byte(text.String()), 0o644); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

// quote makes a string that TOML and YAML both read literally.
func quote(s string) (string, error) {
	if strings.ContainsAny(s, "'\n") {
		return "", fmt.Errorf("%q cannot be written into a configuration file", s)
	}
	return "'" + s + "'", nil
}
