package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/firstlight-dev/firstlight/snapshotter/nodeapi"
	"github.com/firstlight-dev/firstlight/test/trees"
)

// bigFile is large enough for several chunks and small enough for many tests.
const bigFile = 3 << 20

// pull pulls an image with containerd's client.
func (m *machine) pull(snapshotter, ref string, flags ...string) {
	m.Helper()
	argv := append([]string{"ctr", "images", "pull", "--plain-http", "--snapshotter", snapshotter}, flags...)
	m.run(append(argv, ref)...)
}

// tree is what a container of the image sees.
func (m *machine) tree(snapshotter, ref string, implied map[string]bool) trees.Tree {
	m.Helper()
	// containerd remembers a mount by its target beyond the unmounting.
	outside, err := os.MkdirTemp(m.ns.Root("/run"), "tree-")
	if err != nil {
		m.Fatal(err)
	}
	dir := filepath.Join("/run", filepath.Base(outside))
	m.run("ctr", "images", "mount", "--snapshotter", snapshotter, ref, dir)
	tree, err := trees.Read(m.ns.Root(dir), trees.Options{
		IgnoreMtime: implied,
		// Only overlayfs's own view of a lower layer shows these.
		IgnoreXattr: func(name string) bool { return strings.HasPrefix(name, "trusted.overlay.") },
	})
	if err != nil {
		m.Fatal(err)
	}
	m.run("ctr", "images", "unmount", "--rm", "--snapshotter", snapshotter, dir)
	return tree
}

// sameTree pulls the image once more for containerd's own snapshotter and
// compares the two trees.
func (m *machine) sameTree(image *testImage, implied map[string]bool) {
	m.Helper()
	ours := m.tree("firstlight", image.ref, implied)
	m.pull("overlayfs", image.ref)
	theirs := m.tree("overlayfs", image.ref, implied)
	if d := cmp.Diff(theirs, ours); d != "" {
		m.Errorf("tree (-overlayfs +firstlight):\n%s", d)
	}
}

// states are the states of the image's layers, lowest first.
func (m *machine) states(ref string) []string {
	m.Helper()
	images, err := m.node().Images(m.Context())
	if err != nil {
		m.Fatal(err)
	}
	var states []string
	for _, im := range images {
		if im.Ref == ref {
			for _, l := range im.Layers {
				states = append(states, l.State)
			}
		}
	}
	return states
}

// whiteouts is a layer of nothing but whiteouts, in directories that it implies, of which some exist
// nowhere.
func whiteouts(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range []string{"etc/.wh.hostname", "new/deep/.wh.file", ".wh.nothing"} {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o600, ModTime: time.Unix(1e9, 0)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestTrees(t *testing.T) {
	lazy, local := nodeapi.StateLazy, nodeapi.StateLocal
	for _, mode := range []string{"erofs", "fuse"} {
		t.Run(mode, func(t *testing.T) {
			m := newMachine(t)
			m.startSnapshotter("--mode", mode, "--fill-after", "-1s")
			m.startContainerd()
			status, err := m.node().Status(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if status.Mode != mode {
				t.Fatalf("mode is %s: %+v", status.Mode, status.Conditions)
			}
			layers, implied := trees.Layers(bigFile)
			for _, tc := range []struct {
				name   string
				layers [][]byte // the default is all
				how    []compression
				index  bool
				flags  []string
				states []string
			}{
				{name: "indexed", how: []compression{gzipped, plain}, index: true, states: []string{lazy, lazy, lazy, lazy}},
				{name: "zstd", how: []compression{zstandard}, index: true, states: []string{lazy, lazy, lazy, lazy}},
				{name: "one layer", layers: layers[:1], how: []compression{gzipped}, index: true, states: []string{lazy}},
				{name: "a layer twice", layers: [][]byte{layers[0], layers[1], layers[1]}, how: []compression{gzipped}, index: true, states: []string{lazy, lazy, lazy}},
				{name: "nothing in layers", layers: [][]byte{layers[0], make([]byte, 1024), {}, whiteouts(t), layers[1]}, how: []compression{gzipped}, index: true, states: []string{lazy, lazy, lazy, lazy, lazy}},
				{name: "nothing below", layers: [][]byte{make([]byte, 1024), whiteouts(t), layers[0]}, how: []compression{gzipped, plain}, index: true, states: []string{lazy, lazy, lazy}},
				{name: "unindexed", how: []compression{gzipped}},
				{name: "mixed top", how: []compression{gzipped, unindexed}, index: true, states: []string{lazy, local, lazy, local}},
				{name: "mixed bottom", how: []compression{unindexed, gzipped}, index: true, states: []string{local, lazy, local, lazy}},
				{name: "indexed local", how: []compression{gzipped}, index: true, flags: []string{"--local"}},
				{name: "unindexed local", how: []compression{plain}, flags: []string{"--local"}},
			} {
				t.Run(tc.name, func(t *testing.T) {
					m := m.in(t)
					if tc.layers == nil {
						tc.layers = layers
					}
					image := m.push(strings.ReplaceAll(tc.name, " ", "-")+":1", tc.layers, tc.how...)
					if tc.index {
						m.index(image, nil)
					}
					asked := m.count()
					m.pull("firstlight", image.ref, tc.flags...)
					for i, l := range image.layers {
						full, ranged := asked.of(l)
						if wantFull := len(tc.states) == 0 || tc.states[i] == local; wantFull != (full > 0) {
							t.Errorf("layer %d was fetched in full %d times and by range %d times", i, full, ranged)
						}
					}
					if d := cmp.Diff(tc.states, m.states(image.ref)); d != "" {
						t.Errorf("states (-want +got):\n%s", d)
					}
					m.sameTree(image, implied)
					m.removeImage(image.ref)
				})
			}
		})
	}
}

// removeImage removes an image and waits for containerd's garbage collection:
// the next image has the same layers.
func (m *machine) removeImage(ref string) {
	m.Helper()
	m.run("ctr", "images", "rm", "--sync", ref)
	if out := m.run("ctr", "snapshots", "--snapshotter", "firstlight", "ls"); strings.Count(out, "\n") > 1 {
		m.Fatal(fmt.Errorf("snapshots are left:\n%s", out))
	}
	if states := m.states(ref); states != nil {
		m.Errorf("the node API still knows the image: %v", states)
	}
}
