package main

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/firstlight-dev/firstlight/test/trees"
)

// TestSecondSnapshotter: one started by mistake ends at once and harms nothing, wherever it would listen.
func TestSecondSnapshotter(t *testing.T) {
	m := newMachine(t)
	m.startSnapshotter("--fill-after", "-1s")
	m.startContainerd()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, args := range map[string][]string{"same": nil, "other": {"--address", m.dir + "/second.sock", "--node-address", m.dir + "/second-node.sock"}} {
		second := m.spawn("second-"+name, []string{runEnv + "=1"}, append([]string{self}, args...)...)
		select {
		case <-second.Done():
		case <-time.After(startTimeout):
			t.Fatal("a second snapshotter runs")
		}
		if log := m.log("second-" + name); !strings.Contains(log, "another snapshotter uses this root") {
			t.Errorf("%s sockets: a second snapshotter says:\n%s", name, log)
		}
	}
	layers, implied := trees.Layers(bigFile)
	image := m.push("image:1", layers, gzipped)
	m.index(image, nil)
	m.pull("firstlight", image.ref)
	if states := m.states(image.ref); len(states) != 4 {
		t.Errorf("states: %v", states)
	}
	m.pull("overlayfs", image.ref)
	m.sameTree(image, implied)
}
