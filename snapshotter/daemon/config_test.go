package daemon_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/pelletier/go-toml/v2"

	"github.com/firstlight-dev/firstlight/snapshotter/daemon"
)

var update = flag.Bool("update", false, "write the golden files anew")

// TestExample checks that the example has every setting, with its default.
func TestExample(t *testing.T) {
	path := filepath.Join(t.TempDir(), "snapshotter.toml")
	if err := os.WriteFile(path, []byte(daemon.Example), 0o600); err != nil {
		t.Fatal(err)
	}
	var got daemon.Config
	if err := got.Load(path); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(daemon.Default(), got); d != "" {
		t.Error(d)
	}
	all, err := toml.Marshal(daemon.Default())
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(all)) {
		if key, _, ok := strings.Cut(line, " = "); ok && !strings.Contains(daemon.Example, "\n"+key+" = ") {
			t.Errorf("the example lacks %s", key)
		}
	}
}

func TestLoad(t *testing.T) {
	want := daemon.Default()
	want.Root, want.Mode, want.FillAfter = "/srv/fl", "fuse", daemon.Duration(90*time.Second)
	want.Cache.MaxBytes, want.Cache.MinFree = daemon.Amount{Bytes: 50e9}, daemon.Amount{Percent: 7.5}
	want.Profiles.Record = false
	for _, tc := range []struct {
		name, file, err string
	}{
		{name: "some keys", file: "root = '/srv/fl'\nmode = 'fuse'\nfill_after = '1m30s'\n[cache]\nmax_bytes = '50GB'\nmin_free = '7.5%'\n[profiles]\nrecord = false\n"},
		{name: "unknown key", file: "rooot = '/srv/fl'\n", err: "rooot"},
		{name: "unknown key of a table", file: "[profiles]\npush = true\n", err: "push"},
		{name: "wrong type", file: "root = 3\n", err: "root"},
		{name: "not TOML", file: "root: /srv/fl\n", err: "configuration"},
		{name: "no duration", file: "fill_after = 'soon'\n", err: "fill_after"},
		{name: "no amount", file: "[cache]\nmax_bytes = 'much'\n", err: "neither a size"},
		{name: "no percentage", file: "[cache]\nmin_free = '110%'\n", err: "no percentage"},
		{name: "unknown key of the cache", file: "[cache]\nmax = '1GB'\n", err: "max"},
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
		"max_bytes": func(c *daemon.Config) { c.Cache.MaxBytes.Bytes = 1000 },
		"min_free":  func(c *daemon.Config) { c.Cache.MinFree.Percent = 99 },
		"low_water": func(c *daemon.Config) { c.Cache.LowWater = daemon.Amount{Bytes: 50} },
		"quiet":     func(c *daemon.Config) { c.Profiles.Quiet = 0 },
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

func TestAmount(t *testing.T) {
	for text, want := range map[string]daemon.Amount{
		"0": {}, "20GB": {Bytes: 20e9}, "1 GiB": {Bytes: 1 << 30}, "10%": {Percent: 10}, "2.5 %": {Percent: 2.5},
	} {
		var got daemon.Amount
		if err := got.UnmarshalText([]byte(text)); err != nil || got != want {
			t.Errorf("%s is %+v, %v", text, got, err)
		}
		again, err := got.MarshalText()
		if err != nil {
			t.Error(err)
		}
		if err := got.UnmarshalText(again); err != nil || got != want {
			t.Errorf("%s, written and read, is %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "-1", "-5%", "101%", "NaN%", "x", "1e30GB", "%"} {
		if err := new(daemon.Amount).UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is an amount", text)
		}
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
