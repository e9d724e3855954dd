// Package daemon joins the snapshotter's parts to a program.
//
// # Vocabulary
//
// Two processes of one binary: the keeper owns the FUSE device and the sockets
// and starts the worker, which does everything else; it may die or be replaced
// at any time. A session is the life of one FUSE mount: workers of one session
// take over from each other, while what older mounts refer to is lost with
// their session.
//
// # Order of a start
//
// The worker opens the layers of the last one and registers them before it
// answers the kernel, and answers the kernel before it mounts anything or
// listens to containerd: a request for a layer is never met with "unknown".
//
// # Failure behaviour
//
// What is missing on the node costs features, not service: without FUSE, or in
// erofs mode without EROFS, containerd pulls every image as it would without
// us; without containerd, we wait for it. The log and the node API's conditions
// say so, and what to do.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/firstlight-dev/firstlight/snapshotter"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/account"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/cache"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/erofs"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/fusefs"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/imageservice"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/keeper"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/layers"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/lazy"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/profiles"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/registry"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/store"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/supply"
	"github.com/firstlight-dev/firstlight/snapshotter/nodeapi"
)

// modeNone is reported when no layer can be lazy.
const modeNone = "none"

// worker is the parts of a running worker.
type worker struct {
	cfg     Config
	log     *slog.Logger
	session *keeper.Session // nil without FUSE
	noFUSE  error           // why

	store    *store.Store
	cache    *cache.Cache
	server   *fusefs.Server
	layers   *layers.Set
	backend  *containerd
	pulls    *imageservice.Ring
	profiles *profiles.Book
	supplier *supply.Service
	snap     *snapshotter.Snapshotter
	api      *api
	meters   *meters
}

// Run is the snapshotter: it keeps workers, which are this program started with
// the arguments, until the context ends. Without FUSE there is nothing to keep
// and the work is done here.
func Run(ctx context.Context, cfg Config, worker []string, version string, log *slog.Logger) (err error) {
	if err := os.MkdirAll(cfg.Root, 0o700); err != nil {
		return fmt.Errorf("create root: %w", err)
	}
	unlock, err := lockRoot(cfg.Root)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	if err := probeFUSE(); err != nil {
		return run(ctx, cfg, nil, err, version, log)
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find own program: %w", err)
	}
	sockets := []keeper.Socket{{Name: socketSnapshots, Path: cfg.Address}, {Name: socketNode, Path: cfg.NodeAddress}}
	if cfg.ImageAddress != "" {
		sockets = append(sockets, keeper.Socket{Name: socketImages, Path: cfg.ImageAddress})
	}
	return keeper.Run(ctx, keeper.Config{
		Mountpoint: cfg.FUSEDir(),
		Command:    append([]string{self}, worker...),
		Sockets:    sockets,
		Stdout:     os.Stdout,
		Stderr:     os.Stderr,
	}, log)
}

// Sockets that the keeper holds.
const (
	socketSnapshots = "snapshots"
	socketNode      = "node"
	socketImages    = "images"
)

// probeFUSE says why the machine has no FUSE.
func probeFUSE() error {
	const advice = "load the module with modprobe fuse; in a container, pass the device in"
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("%w (%s)", err, advice)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return fmt.Errorf("look at /dev/fuse: %w", err)
	}
	if st.Mode()&os.ModeCharDevice == 0 {
		return fmt.Errorf("/dev/fuse is no device (%s)", advice)
	}
	return nil
}

// Work is a worker that a keeper started.
func Work(ctx context.Context, cfg Config, version string, log *slog.Logger) error {
	session, err := keeper.Attach()
	if err != nil {
		return err
	}
	ctx, cancel := session.WithKeeper(ctx)
	defer cancel()
	return run(ctx, cfg, session, nil, version, log)
}

// run serves until the context ends or serving fails.
func run(ctx context.Context, cfg Config, session *keeper.Session, noFUSE error, version string, log *slog.Logger) (err error) {
	w := &worker{cfg: cfg, log: log, session: session, noFUSE: noFUSE}
	defer func() { err = errors.Join(err, w.close()) }()
	if err := w.open(ctx, version); err != nil {
		return err
	}
	group, gctx := errgroup.WithContext(ctx)
	if session != nil {
		group.Go(func() error {
			err := session.Serve(gctx, w.server)
			if err == nil && gctx.Err() == nil {
				err = errors.New("the FUSE mount is gone: somebody unmounted it")
			}
			return err
		})
	}
	group.Go(func() error { return w.serve(gctx) })
	err = group.Wait()
	if ctx.Err() != nil {
		return nil // asked to stop
	}
	return err
}

// open makes the parts, in the order of their dependencies.
func (w *worker) open(ctx context.Context, version string) (err error) {
	for _, dir := range []string{w.cfg.Root, filepath.Join(w.cfg.Root, "indexes")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("create %s: %w", dir, err)
		}
	}
	if err := w.openStore(ctx); err != nil {
		return err
	}
	limits, err := w.cfg.Cache.limits(w.cfg.Root)
	if err != nil {
		return err
	}
	if w.cache, err = cache.Open(filepath.Join(w.cfg.Root, "cache"), cache.WithLogger(w.log), cache.WithLimits(limits)); err != nil {
		return fmt.Errorf("open chunk cache: %w", err)
	}
	if w.backend, err = dialContainerd(w.cfg.ContainerdAddress); err != nil {
		return err
	}
	w.api = &api{version: version, started: time.Now().UTC(), store: w.store, cache: w.cache, book: account.NewBook(), backend: w.backend}
	var session string
	if w.session != nil {
		w.api.restarts = w.session.Restarts
		session = w.session.Started.UTC().Format(time.RFC3339Nano)
	}
	mode, disabled := w.choose(ctx)
	w.meters = newMeters()
	w.server = fusefs.New(w.log, fusefs.WithBook(w.api.book))
	w.pulls = imageservice.NewRing(w.memory(), w.log)
	reg := registry.New(registry.Config{HostsDir: w.cfg.HostsDir, DockerConfig: w.cfg.DockerConfig, Pulls: w.pulls, UserAgent: "firstlight-snapshotter/" + version, Logger: w.log,
		Observe: w.meters.request})
	w.layers, err = layers.Open(ctx, layers.Config{
		Store: w.store, Cache: w.cache, Server: w.server, FUSEDir: w.cfg.FUSEDir(), Mode: mode, Session: session,
		Indexes: filepath.Join(w.cfg.Root, "indexes"),
		TreeDir: func(id string) string { return filepath.Join(w.cfg.Root, "snapshots", id, "fs") },
		Source: func(ref string, desc ocispec.Descriptor) (lazy.Source, error) {
			repo, err := reg.Repository(ref)
			if err != nil {
				return nil, err
			}
			return repo.Source(desc), nil
		},
		Gate:      lazy.NewGate(lazy.WithWaitObserver(w.meters.waited)),
		FillAfter: time.Duration(w.cfg.FillAfter), Log: w.log,
	})
	if err != nil {
		return err
	}
	w.api.layers = w.layers
	w.profiles, err = profiles.Open(ctx, profiles.Config{
		Dir: filepath.Join(w.cfg.Root, "profiles"), Record: w.cfg.Profiles.Record, Replay: w.cfg.Profiles.Replay,
		Quiet: time.Duration(w.cfg.Profiles.Quiet), Watch: w.layers.Watch, Log: w.log,
	})
	if err != nil {
		return err
	}
	w.api.profiles = w.profiles
	w.supplier, err = supply.New(ctx, supply.Config{
		Disabled: disabled, Content: w.backend, Layers: w.layers, Store: w.store, Profiles: w.profiles,
		Repository: func(ref string) (supply.Repository, error) { return reg.Repository(ref) },
		Dir:        filepath.Join(w.cfg.Root, "unpack"), Log: w.log,
	})
	if err != nil {
		return err
	}
	w.snap, err = snapshotter.New(w.cfg.Root, snapshotter.WithSupplier(w.supplier), snapshotter.WithLogger(w.log))
	return err
}

// memory is what the next worker finds again, where there can be one.
func (w *worker) memory() imageservice.Memory {
	if w.session == nil {
		return noMemory{}
	}
	return w.session.State
}

type noMemory struct{}

func (noMemory) Load() ([]byte, error) { return nil, nil }
func (noMemory) Store([]byte) error    { return nil }

// choose finds out how layers can be mounted, or why they cannot.
func (w *worker) choose(ctx context.Context) (layers.Mode, error) {
	if w.session == nil {
		err := fmt.Errorf("no FUSE, so containerd pulls every image in full: %w", w.noFUSE)
		w.api.mode = modeNone
		w.api.add("fuse", nodeapi.ConditionFailed, err.Error())
		w.log.Warn("lazy layers are off", "error", err)
		return layers.FUSE, err
	}
	w.api.add("fuse", nodeapi.ConditionOK, "")
	if w.cfg.Mode == ModeFUSE {
		w.api.mode = ModeFUSE
		return layers.FUSE, nil
	}
	err := erofs.Probe(ctx, w.cfg.Root)
	switch {
	case err == nil:
		w.api.mode = ModeEROFS
		w.api.add("erofs", nodeapi.ConditionOK, "")
		return layers.EROFS, nil
	case w.cfg.Mode == ModeEROFS:
		err = fmt.Errorf("no EROFS and mode is erofs, so containerd pulls every image in full: %w", err)
		w.api.mode = modeNone
		w.api.add("erofs", nodeapi.ConditionFailed, err.Error())
		w.log.Warn("lazy layers are off", "error", err)
		return layers.EROFS, err
	}
	w.api.mode = ModeFUSE
	w.api.add("erofs", nodeapi.ConditionDegraded, fmt.Sprintf("layers are served as FUSE trees, which is slower: %v", err))
	w.log.Info("no EROFS, layers are served as FUSE trees", "reason", err)
	return layers.FUSE, nil
}

// close gives everything back that was opened, in the opposite order.
func (w *worker) close() error {
	var errs []error
	if w.snap != nil {
		errs = append(errs, w.snap.Close())
	}
	if w.supplier != nil {
		errs = append(errs, w.supplier.Close())
	}
	if w.profiles != nil {
		errs = append(errs, w.profiles.Close())
	}
	if w.layers != nil {
		errs = append(errs, w.layers.Close())
	}
	if w.backend != nil {
		errs = append(errs, w.backend.close())
	}
	if w.cache != nil {
		errs = append(errs, w.cache.Close())
	}
	if w.store != nil {
		errs = append(errs, w.store.Close())
	}
	return errors.Join(errs...)
}
