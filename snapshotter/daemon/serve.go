package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/v2/contrib/snapshotservice"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/firstlight-dev/firstlight/snapshotter/internal/imageservice"
	"github.com/firstlight-dev/firstlight/snapshotter/nodeapi"
)

const (
	// headerTimeout bounds how long a client of the node API takes to ask.
	headerTimeout = 5 * time.Second
	// stopTimeout bounds how long requests under way hold up a stop.
	stopTimeout = 5 * time.Second
)

// serve mounts what the session needs and listens until the context ends.
func (w *worker) serve(ctx context.Context) error {
	// A layer that cannot be shown is its containers' trouble alone.
	if err := w.layers.Remount(ctx); err != nil {
		w.log.Error("layers of earlier images are not all there", "error", err)
	}
	snapshots, err := w.listener(ctx, socketSnapshots, w.cfg.Address)
	if err != nil {
		return err
	}
	node, err := w.listener(ctx, socketNode, w.cfg.NodeAddress)
	if err != nil {
		return errors.Join(err, snapshots.Close())
	}
	images, err := w.imageListener(ctx)
	if err != nil {
		return errors.Join(err, snapshots.Close(), node.Close())
	}
	metrics := metricsHandler(newCollector(w.api, w.supplier), w.meters)
	group, ctx := errgroup.WithContext(ctx)
	srv := grpc.NewServer()
	snapshotsapi.RegisterSnapshotsServer(srv, snapshotservice.FromSnapshotter(w.snap))
	group.Go(func() error { return serveGRPC(ctx, snapshots, srv) })
	if images != nil {
		proxy := imageservice.NewProxy(w.backend.conn, w.pulls)
		group.Go(func() error { return serveGRPC(ctx, images, proxy.Server()) })
	}
	group.Go(func() error { return serveHTTP(ctx, node, nodeapi.NewHandler(w.api, metrics)) })
	if w.cfg.MetricsAddress != "" {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", w.cfg.MetricsAddress)
		if err != nil {
			return fmt.Errorf("listen for metrics: %w", err)
		}
		mux := http.NewServeMux()
		mux.Handle("GET /metrics", metrics)
		group.Go(func() error { return serveHTTP(ctx, l, mux) })
	}
	args := []any{"mode", w.api.mode, "address", w.cfg.Address, "root", w.cfg.Root, "restarts", w.api.restarts}
	if v, err := w.backend.check(ctx); err != nil {
		w.log.Warn("containerd does not answer yet", "error", err)
	} else {
		args = append(args, "containerd", v)
	}
	if w.session != nil {
		if err := w.session.Ready(); err != nil {
			return err
		}
	}
	w.log.Info("ready", args...)
	return group.Wait()
}

// imageListener returns the socket for kubelet, nil if there is to be none.
func (w *worker) imageListener(ctx context.Context) (net.Listener, error) {
	if w.cfg.ImageAddress == "" {
		return nil, nil
	}
	return w.listener(ctx, socketImages, w.cfg.ImageAddress)
}

// listener returns the keeper's socket, or opens one in the place of what a dead
// process left. Only root may connect.
func (w *worker) listener(ctx context.Context, name, path string) (net.Listener, error) {
	if w.session != nil {
		if l := w.session.Listener(name); l != nil {
			return l, nil
		}
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o711); err != nil {
		return nil, fmt.Errorf("create directory of socket: %w", err)
	}
	if conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "unix", path); err == nil {
		return nil, errors.Join(fmt.Errorf("another process serves %s: is a snapshotter running already?", path), conn.Close())
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove old socket: %w", err)
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("protect socket: %w", err), l.Close())
	}
	return l, nil
}

func serveGRPC(ctx context.Context, l net.Listener, srv *grpc.Server) error {
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		timer := time.AfterFunc(stopTimeout, srv.Stop)
		defer timer.Stop()
		srv.GracefulStop()
	})
	err := srv.Serve(l)
	if !stop() {
		<-stopped
	}
	return err
}

func serveHTTP(ctx context.Context, l net.Listener, h http.Handler) error {
	srv := &http.Server{Handler: h, ReadHeaderTimeout: headerTimeout}
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		if srv.Shutdown(end) != nil {
			_ = srv.Close() // the reason is that requests are still under way
		}
	})
	err := srv.Serve(l)
	if !stop() {
		<-stopped
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}
