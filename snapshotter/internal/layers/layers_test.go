package layers

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/firstlight-dev/firstlight/indexer/index"
	"github.com/firstlight-dev/firstlight/indexer/scan"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/cache"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/fusefs"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/lazy"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/store"
)

// node is the state of a snapshotter on disk, without a mount.
type node struct {
	*testing.T
	dir   string
	store *store.Store
	cache *cache.Cache
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{T: t, dir: t.TempDir()}
	var err error
	if n.store, err = store.Open(filepath.Join(n.dir, "layers.db")); err != nil {
		t.Fatal(err)
	}
	if n.cache, err = cache.Open(filepath.Join(n.dir, "cache")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(n.dir, "indexes"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(n.cache.Close(), n.store.Close()); err != nil {
			t.Error(err)
		}
	})
	return n
}

func (n *node) open() *Set {
	n.Helper()
	s, err := Open(n.Context(), Config{
		Store: n.store, Cache: n.cache, Server: fusefs.New(nil), FUSEDir: n.dir, Session: "this", Mode: EROFS,
		Indexes: filepath.Join(n.dir, "indexes"), FillAfter: -1,
		TreeDir: func(id string) string { return filepath.Join(n.dir, "snapshots", id, "fs") },
		Source:  func(string, ocispec.Descriptor) (lazy.Source, error) { return nil, nil },
	})
	if err != nil {
		n.Fatal(err)
	}
	n.Cleanup(func() {
		if err := s.Close(); err != nil {
			n.Error(err)
		}
	})
	return s
}

func newIndex(t *testing.T) (*index.Index, store.Layer) {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := errors.Join(w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: "d", Mode: 0o755}), w.Close()); err != nil {
		t.Fatal(err)
	}
	x, err := scan.Scan(t.Context(), scan.Layer{Reader: bytes.NewReader(b.Bytes()), Size: -1})
	if err != nil {
		t.Fatal(err)
	}
	return x, store.Layer{Digest: x.Layer, DiffID: x.DiffID, Size: x.CompressedSize, Ref: "registry.example/image:1"}
}

// A snapshot whose layer could not be opened at the start is a use of the layer all the same: when it goes,
// the layer must stay for those who opened it since.
func TestDamagedIndexHeals(t *testing.T) {
	n := newNode(t)
	x, rec := newIndex(t)
	ctx := t.Context()
	if _, err := n.store.PutLayer(ctx, rec); err != nil {
		t.Fatal(err)
	}
	// Two old snapshots, one of which the kernel reads by itself.
	for id, served := range map[string]bool{"1": true, "2": false} {
		if err := n.store.PutSnapshot(ctx, store.Snapshot{ID: id, Layer: rec.Digest, Lazy: true, Mode: string(EROFS), Session: "before", Served: served}); err != nil {
			t.Fatal(err)
		}
	}
	set := n.open()
	if err := os.WriteFile(set.indexPath(rec.Digest), []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	set = n.open()
	if _, _, ok := set.Stats(rec.Digest); ok {
		t.Fatal("a layer is open with a damaged index")
	}
	h, err := set.Acquire(ctx, rec, func(context.Context) (*index.Index, error) { return x, nil })
	if err != nil {
		t.Fatal(err)
	}
	if _, err := set.Evict(rec.Digest); !errors.Is(err, cache.ErrHeld) {
		t.Errorf("bytes that the kernel reads by itself can be evicted: %v", err)
	}
	for _, id := range []string{"1", "2"} {
		if err := set.Unmount(ctx, id, set.TreeDir(id)); err != nil {
			t.Fatal(err)
		}
		if _, _, ok := set.Stats(rec.Digest); !ok {
			t.Fatalf("the layer went with snapshot %s, while in use", id)
		}
	}
	if err := h.Release(ctx); err != nil {
		t.Fatal(err)
	}
	if recs, err := n.store.Layers(ctx); err != nil || len(recs) > 0 {
		t.Errorf("the layer stayed after its last use: %v, %v", recs, err)
	}
}

// What a killed process left among the indexes goes with the next start.
func TestLeftIndexesAreRemoved(t *testing.T) {
	n := newNode(t)
	x, rec := newIndex(t)
	set := n.open()
	h, err := set.Acquire(t.Context(), rec, func(context.Context) (*index.Index, error) { return x, nil })
	if err != nil {
		t.Fatal(err)
	}
	if err := n.store.PutSnapshot(t.Context(), store.Snapshot{ID: "1", Layer: rec.Digest, Lazy: true, Mode: string(EROFS)}); err != nil {
		t.Fatal(err)
	}
	kept := set.indexPath(rec.Digest)
	left := []string{set.indexPath(digest.FromString("without a record")), filepath.Join(set.Indexes, ".new-123")}
	for _, path := range left {
		if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_ = h // it is the killed process's
	if err := set.Close(); err != nil {
		t.Fatal(err)
	}
	n.open()
	for _, path := range left {
		if _, err := os.Stat(path); !os.IsNotExist(err) {
			t.Errorf("%s is still there: %v", filepath.Base(path), err)
		}
	}
	if _, err := os.Stat(kept); err != nil {
		t.Errorf("the index in use: %v", err)
	}
}
