package snapshotter_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"

	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/v2/contrib/snapshotservice"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/proxy"
	"github.com/containerd/containerd/v2/core/snapshots/testsuite"
	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/firstlight-dev/firstlight/snapshotter"
)

func TestMain(m *testing.M) {
	// containerd's suite clears the mask only until its parallel tests start.
	unix.Umask(0)
	os.Exit(m.Run())
}

func needsRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
}

// suiteName makes containerd's suite leave out the rename of a lower layer's
// directory, as it does for its own overlay snapshotter.
const suiteName = "overlayfs"

func open(_ context.Context, root string) (snapshots.Snapshotter, func() error, error) {
	sn, err := snapshotter.New(root)
	if err != nil {
		return nil, nil, err
	}
	return sn, func() error {
		return errors.Join(sn.Close(), mount.UnmountAll(root, unix.MNT_DETACH))
	}, nil
}

func TestContainerdSuite(t *testing.T) {
	needsRoot(t)
	testsuite.SnapshotterSuite(t, suiteName, open)
}

func TestContainerdSuiteOverGRPC(t *testing.T) {
	needsRoot(t)
	testsuite.SnapshotterSuite(t, suiteName, openGRPC)
}

func openGRPC(ctx context.Context, root string) (snapshots.Snapshotter, func() error, error) {
	sn, closeSN, err := open(ctx, root)
	if err != nil {
		return nil, nil, err
	}
	socket := filepath.Join(root, "sn.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		return nil, nil, err
	}
	srv := grpc.NewServer()
	snapshotsapi.RegisterSnapshotsServer(srv, snapshotservice.FromSnapshotter(sn))
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, nil, err
	}
	client := proxy.NewSnapshotter(snapshotsapi.NewSnapshotsClient(conn), "firstlight")
	return client, func() error {
		err := conn.Close()
		srv.Stop()
		return errors.Join(err, <-served, closeSN())
	}, nil
}

func TestContainerdSuiteUnderMetadata(t *testing.T) {
	needsRoot(t)
	testsuite.SnapshotterSuite(t, suiteName, openMetadata)
}

func openMetadata(ctx context.Context, root string) (snapshots.Snapshotter, func() error, error) {
	sn, closeSN, err := openGRPC(ctx, root)
	if err != nil {
		return nil, nil, err
	}
	db, err := bbolt.Open(filepath.Join(root, "containerd.db"), 0o600, nil)
	if err != nil {
		return nil, nil, err
	}
	named := metadata.NewDB(db, nil, map[string]snapshots.Snapshotter{"firstlight": sn}).Snapshotter("firstlight")
	return named, func() error { return errors.Join(named.Close(), closeSN(), db.Close()) }, nil
}
