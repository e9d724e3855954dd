package cluster

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/pelletier/go-toml/v2"
	"sigs.k8s.io/yaml"
)

// TestFiles checks what the programs read from the configuration files.
func TestFiles(t *testing.T) {
	if err := Probe(Config{}); err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	cfg := Config{
		Snapshotters:  []Snapshotter{{Name: "lazy", Address: "/run/lazy.sock", Root: "/var/lib/lazy", Handler: "lazy", Default: true}},
		SchedulerName: "other",
		Extenders:     []Extender{{URL: "http://127.0.0.1:1", Filter: "filter", Resources: []string{"a/b"}, Ignored: []string{"c/d"}}},
	}
	if err := writeFiles(dir, cfg, cgroups{name: "group"}, &authority{dir: dir}); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		file string
		path string
		want any
	}{
		{"containerd.toml", "plugins/io.containerd.cri.v1.images/snapshotter", "lazy"},
		{"containerd.toml", "plugins/io.containerd.cri.v1.images/runtime_platforms/lazy/snapshotter", "lazy"},
		{"containerd.toml", "plugins/io.containerd.cri.v1.runtime/containerd/runtimes/lazy/snapshotter", "lazy"},
		{"containerd.toml", "proxy_plugins/lazy/exports/root", "/var/lib/lazy"},
		{"kubelet.yaml", "cgroupRoot", "/group"},
		{"kubelet.yaml", "tlsCertFile", filepath.Join(dir, "kubelet.crt")},
		{"scheduler.yaml", "profiles", []any{
			map[string]any{"schedulerName": "default-scheduler"}, map[string]any{"schedulerName": "other"},
		}},
		{"scheduler.yaml", "extenders", []any{map[string]any{
			"urlPrefix": "http://127.0.0.1:1", "filterVerb": "filter", "bindVerb": "", "prioritizeVerb": "", "weight": 1.0,
			"nodeCacheCapable": true, "httpTimeout": "30s", "managedResources": []any{
				map[string]any{"name": "a/b", "ignoredByScheduler": false}, map[string]any{"name": "c/d", "ignoredByScheduler": true},
			},
		}}},
	} {
		if diff := cmp.Diff(tc.want, read(t, filepath.Join(dir, tc.file), tc.path)); diff != "" {
			t.Errorf("%s: %s (-want +got):\n%s", tc.file, tc.path, diff)
		}
	}
}

// read reads one value of a configuration file.
func read(t *testing.T, file, path string) any {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var value any
	if filepath.Ext(file) == ".toml" {
		err = toml.Unmarshal(data, &value)
	} else {
		err = yaml.Unmarshal(data, &value)
	}
	if err != nil {
		t.Fatalf("%s: %v\n%s", file, err, data)
	}
	keys := strings.Split(path, "/")
	for _, key := range keys {
		table, ok := value.(map[string]any)
		if !ok {
			t.Fatalf("%s: nothing at %s before %q", file, path, key)
		}
		value = table[key]
	}
	return value
}

func TestQuoteRefuses(t *testing.T) {
	for _, s := range []string{"it's", "two\nlines"} {
		if got, err := quote(s); err == nil {
			t.Errorf("quote(%q) = %s", s, got)
		}
	}
}
