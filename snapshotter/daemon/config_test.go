package daemon_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/firstlight-dev/firstlight/snapshotter/daemon"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestLoad(t *testing.T) {
	want := daemon.Default()
	want.Root, want.Mode, want.FillAfter = "/srv/fl", "fuse", daemon.Duration(90*time.Second)
	for _, tc := range []struct {
		name, file, err string
	}{
		{name: "some keys", file: "root = '/srv/fl'\nmode = 'fuse'\nfill_after = '1m30s'\n"},
		{name: "unknown key", file: "rooot = '/srv/fl'\n", err: "rooot"},
		{name: "wrong type", file: "root = 3\n", err: "root"},
		{name: "not TOML", file: "root: /srv/fl\n", err: "configuration"},
		{name: "no duration", file: "fill_after = 'soon'\n", err: "fill_after"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "snapshotter.toml")
			if err := os.WriteFile(path, []byte(tc.file), 0o600); err != nil {
				t.Fatal(err)
			}
			got := daemon.Default()
			err := got.Load(path)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Fatalf("got %v, want an error about %s", err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("configuration (-want +got):\n%s", d)
			}
		})
	}
}

func TestValidate(t *testing.T) {
	for name, change := range map[string]func(*daemon.Config){
		"root":      func(c *daemon.Config) { c.Root = "/a:b" },
		"address":   func(c *daemon.Config) { c.Address = "sock" },
		"mode":      func(c *daemon.Config) { c.Mode = "ext4" },
		"log_level": func(c *daemon.Config) { c.LogLevel = "loud" },
	} {
		c := daemon.Default()
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v, want an error naming it", name, err)
		}
	}
	c := daemon.Default()
	if err := c.Validate(); err != nil {
		t.Errorf("defaults: %v", err)
	}
}

func TestDropIn(t *testing.T) {
	var b strings.Builder
	if err := daemon.WriteDropIn(&b, daemon.Default()); err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", "containerd.toml")
	if *update {
		if err := os.WriteFile(golden, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), b.String()); d != "" {
		t.Errorf("drop-in (-want +got):\n%s", d)
	}
}
