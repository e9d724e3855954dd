package store_test

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/firstlight-dev/firstlight/snapshotter/internal/store"
)

func open(t *testing.T, path string) *store.Store {
	t.Helper()
	s, err := store.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func TestNumbersAreNeverUsedAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "layers.db")
	s := open(t, path)
	a, b := digest.FromString("a"), digest.FromString("b")
	put := func(d digest.Digest) uint64 {
		l, err := s.PutLayer(t.Context(), store.Layer{Digest: d})
		if err != nil {
			t.Fatal(err)
		}
		return l.Number
	}
	first := put(a)
	if again := put(a); again != first {
		t.Errorf("layer recorded again got number %d instead of %d", again, first)
	}
	if err := s.DeleteLayer(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, path)
	if n := put(b); n == first {
		t.Errorf("number %d was given to a second layer", n)
	}
}

func TestImagesGoWithTheirLastSnapshot(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "layers.db"))
	d := digest.FromString("layer")
	for _, id := range []string{"1", "2"} {
		if err := s.PutSnapshot(t.Context(), store.Snapshot{ID: id, Layer: d, Lazy: true}); err != nil {
			t.Fatal(err)
		}
	}
	im := store.Image{Ref: "r/a:1", Manifest: digest.FromString("m"), PreparedAt: time.Unix(5, 0).UTC(),
		Layers: []store.ImageLayer{{Digest: d, Snapshot: "1"}, {Digest: d, Snapshot: "2"}}}
	if err := s.PutImage(t.Context(), im); err != nil {
		t.Fatal(err)
	}
	for i, want := range [][]store.Image{{im}, nil} {
		if _, err := s.DeleteSnapshot(t.Context(), []string{"2", "1"}[i]); err != nil {
			t.Fatal(err)
		}
		got, err := s.Images(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("images after %d deletions (-want +got):\n%s", i+1, diff)
		}
	}
	if _, err := s.DeleteSnapshot(t.Context(), "1"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("deleting a snapshot twice: %v", err)
	}
}

func TestSecondProcessIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "layers.db")
	open(t, path)
	if _, err := store.Open(path); err == nil {
		t.Fatal("two stores share one file")
	}
}
