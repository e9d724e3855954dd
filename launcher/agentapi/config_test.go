package agentapi_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/firstlight-dev/firstlight/launcher/agentapi"
)

func valid() agentapi.Config {
	return agentapi.Config{
		Environment: "env-1",
		SSH:         agentapi.SSHConfig{Address: ":2222", HostKey: "canary-host-key", AuthorizedKeys: []string{"ssh-ed25519 AAAA"}},
		Status:      agentapi.StatusConfig{Address: ":2223", Token: "canary-token"},
		Probes:      []agentapi.Probe{{ID: "python", Exec: []string{"python3", "-c", "1"}, Timeout: agentapi.Duration(time.Second)}},
	}
}

func TestConfigRoundTrip(t *testing.T) {
	b, err := json.Marshal(valid())
	if err != nil {
		t.Fatal(err)
	}
	got, err := agentapi.ReadConfig(strings.NewReader(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	want := valid()
	want.App.Policy = agentapi.PolicyKeep
	want.SSH.AcceptEnv = agentapi.DefaultAcceptEnv()
	want.Probes[0].GiveUp = agentapi.Duration(agentapi.DefaultProbeGiveUp)
	if diff := cmp.Diff(want, *got); diff != "" {
		t.Errorf("configuration differs (-want +got):\n%s", diff)
	}
}

func TestConfigRefuses(t *testing.T) {
	tests := map[string]struct {
		change func(*agentapi.Config)
		want   string
	}{
		"no ssh address":  {func(c *agentapi.Config) { c.SSH.Address = "" }, "ssh.address"},
		"no host key":     {func(c *agentapi.Config) { c.SSH.HostKey = "" }, "ssh.hostKey"},
		"nobody":          {func(c *agentapi.Config) { c.SSH.AuthorizedKeys = nil }, "authorizedKeys"},
		"too many keys":   {func(c *agentapi.Config) { c.SSH.AuthorizedKeys = make([]string, 1000) }, "authorized keys"},
		"no status":       {func(c *agentapi.Config) { c.Status.Address = "" }, "status.address"},
		"policy":          {func(c *agentapi.Config) { c.App.Policy = "maybe" }, "app.policy"},
		"probe id":        {func(c *agentapi.Config) { c.Probes[0].ID = "a b" }, "probe id"},
		"probe command":   {func(c *agentapi.Config) { c.Probes[0].Exec = nil }, "no command"},
		"probe twice":     {func(c *agentapi.Config) { c.Probes = append(c.Probes, c.Probes[0]) }, "twice"},
		"too many probes": {func(c *agentapi.Config) { c.Probes = make([]agentapi.Probe, 1000) }, "probes"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := valid()
			tt.change(&c)
			b, err := json.Marshal(c)
			if err != nil {
				t.Fatal(err)
			}
			_, err = agentapi.ReadConfig(strings.NewReader(string(b)))
			if !errors.Is(err, agentapi.ErrInvalidConfig) || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("error = %v, want one about %q", err, tt.want)
			}
			if strings.Contains(err.Error(), "canary") {
				t.Errorf("error repeats a secret: %v", err)
			}
		})
	}
}

func TestConfigStrict(t *testing.T) {
	for name, text := range map[string]string{
		"unknown field": `{"sshd":{}}`,
		"two values":    `{} {}`,
		"no JSON":       `ssh: true`,
		"too long":      strings.Repeat(" ", 2<<20),
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := agentapi.ReadConfig(strings.NewReader(text)); !errors.Is(err, agentapi.ErrInvalidConfig) {
				t.Errorf("error = %v, want %v", err, agentapi.ErrInvalidConfig)
			}
		})
	}
}

func FuzzReadConfig(f *testing.F) {
	b, err := json.Marshal(valid())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(b))
	f.Add(`{}`)
	f.Fuzz(func(t *testing.T, text string) {
		c, err := agentapi.ReadConfig(strings.NewReader(text))
		if err != nil {
			return
		}
		again, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		d, err := agentapi.ReadConfig(strings.NewReader(string(again)))
		if err != nil {
			t.Fatalf("own output is refused: %v", err)
		}
		if diff := cmp.Diff(c, d); diff != "" {
			t.Error(diff)
		}
	})
}
