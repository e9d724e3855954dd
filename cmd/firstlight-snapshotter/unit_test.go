package main

import (
	"io"
	"os"
	"strings"
	"testing"
)

// TestUnit checks that the command line in the systemd unit is one.
func TestUnit(t *testing.T) {
	text, err := os.ReadFile("../../deploy/snapshotter/firstlight-snapshotter.service")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(text), "\nExecStart=/usr/local/bin/firstlight-snapshotter ")
	line, _, ok2 := strings.Cut(rest, "\n")
	if !ok || !ok2 {
		t.Fatal("no command line")
	}
	cmd := newCommand()
	if err := cmd.ParseFlags(strings.Fields(line)); err != nil || len(cmd.Flags().Args()) > 0 {
		t.Errorf("%s: %v", line, err)
	}
}

func TestConfigCommand(t *testing.T) {
	for args, want := range map[string]string{"config": "[cache]", "config containerd": "[proxy_plugins.firstlight]"} {
		var out strings.Builder
		cmd := newCommand()
		cmd.SetOut(&out)
		cmd.SetErr(io.Discard)
		cmd.SetArgs(strings.Fields(args))
		if err := cmd.ExecuteContext(t.Context()); err != nil || !strings.Contains(out.String(), want) {
			t.Errorf("%s prints %q: %v", args, out.String(), err)
		}
	}
}
