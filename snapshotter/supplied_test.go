package snapshotter_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	labels "github.com/containerd/containerd/v2/pkg/snapshotters"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"go.etcd.io/bbolt"

	"github.com/firstlight-dev/firstlight/snapshotter"
)

// supplier has the layers whose digest it knows.
type supplier struct {
	knows     map[digest.Digest]bool
	place     error // of every layer
	withdrawn []string
	placed    []snapshotter.Spot
}

func (s *supplier) Supply(_ context.Context, req snapshotter.Request) (snapshotter.Layer, error) {
	if !s.knows[req.Layer] {
		return nil, fmt.Errorf("%w: never heard of it", snapshotter.ErrOrdinary)
	}
	return suppliedLayer{s, req}, nil
}

func (s *supplier) Withdraw(_ context.Context, id, _ string) error {
	s.withdrawn = append(s.withdrawn, id)
	return nil
}

type suppliedLayer struct {
	*supplier
	req snapshotter.Request
}

func (l suppliedLayer) Place(_ context.Context, spot snapshotter.Spot) (snapshots.Usage, error) {
	if l.place != nil {
		return snapshots.Usage{}, l.place
	}
	name := filepath.Join(spot.Dir, l.req.Layer.Encoded())
	return snapshots.Usage{Size: 7, Inodes: 1}, os.WriteFile(name, nil, 0o600)
}

func (l suppliedLayer) Placed(_ context.Context, spot snapshotter.Spot) {
	l.supplier.placed = append(l.supplier.placed, spot)
}

// fixture is a snapshotter under containerd's metadata database.
type fixture struct {
	*testing.T
	root     string
	supplier *supplier
	backend  *snapshotter.Snapshotter
	sn       snapshots.Snapshotter
}

func newFixture(t *testing.T, knows ...string) *fixture {
	t.Helper()
	f := &fixture{T: t, root: t.TempDir(), supplier: &supplier{knows: map[digest.Digest]bool{}}}
	for _, name := range knows {
		f.supplier.knows[digest.FromString(name)] = true
	}
	var err error
	if f.backend, err = snapshotter.New(f.root, snapshotter.WithSupplier(f.supplier)); err != nil {
		t.Fatal(err)
	}
	db, err := bbolt.Open(filepath.Join(f.root, "containerd.db"), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	f.sn = metadata.NewDB(db, nil, map[string]snapshots.Snapshotter{"firstlight": f.backend}).Snapshotter("firstlight")
	t.Cleanup(func() {
		if err := errors.Join(f.sn.Close(), db.Close()); err != nil {
			t.Error(err)
		}
	})
	return f
}

// prepare asks for a layer as containerd's unpacker does.
func (f *fixture) prepare(ns, layer, chain, parent string) ([]mount.Mount, error) {
	ctx := namespaces.WithNamespace(f.Context(), ns)
	key := "extract-" + digest.FromString(ns+layer+chain).Encoded()
	return f.sn.Prepare(ctx, key, parent, snapshots.WithLabels(map[string]string{
		snapshots.LabelSnapshotRef:       chain,
		labels.TargetRefLabel:            "registry.example/image:1",
		labels.TargetManifestDigestLabel: digest.FromString("manifest").String(),
		labels.TargetLayerDigestLabel:    digest.FromString(layer).String(),
	}))
}

func chainID(name string) string { return digest.FromString("chain " + name).String() }

func TestSuppliedLayerIsCommitted(t *testing.T) {
	f := newFixture(t, "a", "b")
	for i, layer := range []string{"a", "b"} {
		parent := ""
		if i > 0 {
			parent = chainID("a")
		}
		// Twice: the second time containerd finds its own record.
		for range 2 {
			if _, err := f.prepare("one", layer, chainID(layer), parent); !errdefs.IsAlreadyExists(err) {
				t.Fatalf("layer %s: %v", layer, err)
			}
		}
		ctx := namespaces.WithNamespace(t.Context(), "one")
		info, err := f.sn.Stat(ctx, chainID(layer))
		if err != nil {
			t.Fatal(err)
		}
		if info.Kind != snapshots.KindCommitted || info.Parent != parent {
			t.Errorf("layer %s: %+v", layer, info)
		}
		if usage, err := f.sn.Usage(ctx, chainID(layer)); err != nil || usage.Size != 7 {
			t.Errorf("layer %s: usage %+v, %v", layer, usage, err)
		}
	}
	if spots := f.supplier.placed; len(spots) != 2 || len(spots[1].Lowers) != 1 || spots[1].LowerIDs[0] != spots[0].ID {
		t.Errorf("placed at %+v", spots)
	}
}

// Two namespaces share what was supplied, whatever the names of the parents.
func TestNamespacesShareSuppliedLayers(t *testing.T) {
	f := newFixture(t, "a")
	for _, ns := range []string{"one", "two"} {
		if _, err := f.prepare(ns, "a", chainID("a"), ""); !errdefs.IsAlreadyExists(err) {
			t.Fatalf("namespace %s: %v", ns, err)
		}
		if _, err := f.sn.Stat(namespaces.WithNamespace(t.Context(), ns), chainID("a")); err != nil {
			t.Errorf("namespace %s: %v", ns, err)
		}
	}
	if n := len(f.supplier.placed); n != 1 {
		t.Errorf("the layer was placed %d times", n)
	}
}

func TestWhatIsNotSuppliedIsWritable(t *testing.T) {
	for name, change := range map[string]func(*supplier){
		"unknown layer":    func(s *supplier) { s.knows = nil },
		"failing to place": func(s *supplier) { s.place = errors.New("no room") },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, "a")
			change(f.supplier)
			mounts, err := f.prepare("one", "a", chainID("a"), "")
			if err != nil {
				t.Fatal(err)
			}
			// containerd takes a read-only last mount for a finished layer.
			if len(mounts) == 0 || mounts[len(mounts)-1].ReadOnly() {
				t.Errorf("mounts are %+v", mounts)
			}
			if err := f.backend.Cleanup(t.Context()); err != nil {
				t.Fatal(err)
			}
			entries, err := os.ReadDir(filepath.Join(f.root, "snapshots"))
			if err != nil {
				t.Fatal(err)
			}
			if len(entries) != 1 {
				t.Errorf("%d directories are left", len(entries))
			}
		})
	}
}

func TestCleanupWithdraws(t *testing.T) {
	f := newFixture(t, "a")
	if _, err := f.prepare("one", "a", chainID("a"), ""); !errdefs.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	var name string
	err := f.backend.Walk(t.Context(), func(_ context.Context, i snapshots.Info) error { name = i.Name; return nil })
	if err != nil {
		t.Fatal(err)
	}
	if err := f.backend.Remove(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	if err := f.backend.Cleanup(t.Context()); err != nil {
		t.Fatal(err)
	}
	if w := f.supplier.withdrawn; len(w) != 1 || w[0] != f.supplier.placed[0].ID {
		t.Errorf("withdrawn %v, placed %v", w, f.supplier.placed)
	}
}

// containerd's parallel unpack has no parent to give: such a layer must not be
// committed without one.
func TestLayerWithoutItsParentIsOrdinary(t *testing.T) {
	f := newFixture(t, "b")
	mounts, err := f.backend.Prepare(t.Context(), "one/1/extract", "", snapshots.WithLabels(map[string]string{
		snapshots.LabelSnapshotRef:               chainID("b"),
		"containerd.io/snapshot/parent-chain-id": chainID("a"),
		labels.TargetRefLabel:                    "registry.example/image:1",
		labels.TargetManifestDigestLabel:         digest.FromString("manifest").String(),
		labels.TargetLayerDigestLabel:            digest.FromString("b").String(),
	}))
	if err != nil || len(mounts) != 1 {
		t.Fatalf("mounts %v, %v", mounts, err)
	}
	if len(f.supplier.placed) != 0 {
		t.Error("the layer was placed")
	}
}
