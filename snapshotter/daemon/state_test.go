package daemon

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/firstlight-dev/firstlight/snapshotter"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/store"
)

func overwrite(path string, b []byte, at int64) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(b, at)
	return errors.Join(err, f.Close())
}

// Databases that are damaged or lost are found at the start, by name and with what to do, not when the
// first container starts on an empty directory.
func TestDamagedState(t *testing.T) {
	garbage := bytes.Repeat([]byte("garbage "), 8<<10)
	for name, c := range map[string]struct {
		damage func(root string) error
		says   []string
	}{
		"nothing":             {func(string) error { return nil }, nil},
		"layers damaged":      {func(root string) error { return os.WriteFile(filepath.Join(root, "layers.db"), garbage, 0o600) }, []string{"layers.db", "restore it"}},
		"layers cut short":    {func(root string) error { return os.Truncate(filepath.Join(root, "layers.db"), 5000) }, []string{"layers.db", "restore it"}},
		"layers lost":         {func(root string) error { return os.Remove(filepath.Join(root, "layers.db")) }, []string{"layers.db", "1 snapshot", "restore it"}},
		"snapshots damaged":   {func(root string) error { return os.WriteFile(filepath.Join(root, "metadata.db"), garbage, 0o600) }, []string{"metadata.db", "restore it"}},
		"a missing tail":      {func(root string) error { return os.Truncate(filepath.Join(root, "metadata.db"), 2*4096) }, []string{"metadata.db", "restore it"}},
		"a page of them is":   {func(root string) error { return overwrite(filepath.Join(root, "metadata.db"), garbage[:8<<10], 2*4096) }, []string{"metadata.db", "restore it"}},
		"snapshots cut short": {func(root string) error { return os.Truncate(filepath.Join(root, "metadata.db"), 5000) }, []string{"metadata.db", "restore it"}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := Default()
			cfg.Root, cfg.ContainerdAddress = t.TempDir(), filepath.Join(t.TempDir(), "none.sock")
			start := func() error {
				w := &worker{cfg: cfg, log: slog.New(slog.DiscardHandler), noFUSE: errors.New("none")}
				return errors.Join(w.open(t.Context(), "test"), w.close())
			}
			if err := start(); err != nil {
				t.Fatal(err)
			}
			sn, err := snapshotter.New(cfg.Root)
			if err != nil {
				t.Fatal(err)
			}
			_, err = sn.Prepare(t.Context(), "key", "")
			if err = errors.Join(err, sn.Commit(t.Context(), "supplied/0/sha256:1", "key"), sn.Close()); err != nil {
				t.Fatal(err)
			}
			db, err := store.Open(filepath.Join(cfg.Root, "layers.db"))
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(db.PutSnapshot(t.Context(), store.Snapshot{ID: "1"}), db.Close()); err != nil {
				t.Fatal(err)
			}
			if err := c.damage(cfg.Root); err != nil {
				t.Fatal(err)
			}
			err = start()
			if (err != nil) != (len(c.says) > 0) {
				t.Fatalf("start: %v", err)
			}
			for _, want := range c.says {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("no %q in: %v", want, err)
				}
			}
		})
	}
}
