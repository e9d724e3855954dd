package snapshotter_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"

	"github.com/containerd/containerd/v2/core/mount"

	"github.com/firstlight-dev/firstlight/snapshotter"
)

// slowSupplier stops in Withdraw until it may go on.
type slowSupplier struct {
	snapshotter.Supplier
	asked, goOn chan struct{}
}

func (s slowSupplier) Withdraw(context.Context, string, string) error {
	close(s.asked)
	<-s.goOn
	return nil
}

// What a killed process left has the number that the next snapshot gets: Cleanup must not take that
// one's directory for the leftover.
func TestCleanupSparesTheNextSnapshot(t *testing.T) {
	root := t.TempDir()
	// Killed between making the directory and committing the record.
	if err := os.MkdirAll(filepath.Join(root, "snapshots", "1", "fs"), 0o755); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		s := slowSupplier{asked: make(chan struct{}), goOn: make(chan struct{})}
		sn, err := snapshotter.New(root, snapshotter.WithSupplier(s))
		if err != nil {
			t.Fatal(err)
		}
		cleaned := make(chan error, 1)
		go func() { cleaned <- sn.Cleanup(t.Context()) }()
		select {
		case <-s.asked:
		case err := <-cleaned:
			t.Fatalf("nothing was cleaned: %v", err)
		}
		var mounts []mount.Mount
		prepared := make(chan error, 1)
		go func() {
			var err error
			mounts, err = sn.Prepare(t.Context(), "key", "")
			prepared <- err
		}()
		synctest.Wait()
		close(s.goOn)
		if err := errors.Join(<-cleaned, <-prepared); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(mounts[0].Source); err != nil {
			t.Errorf("the new snapshot's directory is gone: %v", err)
		}
		if err := sn.Close(); err != nil {
			t.Error(err)
		}
	})
}
