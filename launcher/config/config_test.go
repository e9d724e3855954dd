package config_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/firstlight-dev/firstlight/launcher/config"
)

func TestParse(t *testing.T) {
	got, err := config.Parse([]byte(`
plainHTTP: ["registry:5000"]
clusters:
- {name: here, kind: local, agent: /bin/agent, state: /state, devices: /cards.yaml}
- {name: bj-1, kind: kubernetes, kubeconfig: /k, toolsImage: "tools:1"}
`))
	if err != nil {
		t.Fatal(err)
	}
	want := &config.Config{
		Listen: config.DefaultListen, Database: config.DefaultDatabase, KeyFile: config.DefaultDatabase + ".key", LogLevel: "info", PlainHTTP: []string{"registry:5000"},
		Clusters: []config.Cluster{
			{Name: "here", Kind: config.KindLocal, Agent: "/bin/agent", State: "/state", Devices: "/cards.yaml"},
			{Name: "bj-1", Kind: config.KindKubernetes, Kubeconfig: "/k", ToolsImage: "tools:1"},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestParseRefuses(t *testing.T) {
	for name, tc := range map[string]struct{ text, want string }{
		"no cluster":   {"listen: a:1", "at least one"},
		"unknown key":  {"lisen: a:1\nclusters: [{name: a, kind: local}]", "lisen"},
		"unknown kind": {"clusters: [{name: a, kind: docker}]", "clusters[0].kind"},
		"name twice":   {"clusters: [{name: a, kind: local}, {name: a, kind: local}]", "clusters[1].name"},
		"no name":      {"clusters: [{kind: local}]", "clusters[0].name"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := config.Parse([]byte(tc.text)); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("parse: %v", err)
			}
		})
	}
}

func TestExample(t *testing.T) {
	c, err := config.Parse([]byte(config.Example))
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Clusters) != 1 || c.Clusters[0].Kind != config.KindLocal {
		t.Errorf("example has clusters %v, want one of kind local", c.Clusters)
	}
}
