package supply

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/snapshots"
	"golang.org/x/sys/unix"

	"github.com/firstlight-dev/firstlight/indexer/index"
	"github.com/firstlight-dev/firstlight/indexer/referrer"
	"github.com/firstlight-dev/firstlight/snapshotter"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/image"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/layers"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/pull"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/store"
)

// plan is the decision about one image.
type plan struct {
	service *Service
	key     planKey
	started time.Time

	decided chan struct{} // closed when the following are final
	err     error         // why the image is not supplied
	image   *image.Image
	first   int // the first layer to supply
	layers  []*supplied
	cancel  context.CancelFunc

	finish sync.Once
	done   chan struct{} // closed when the topmost layer was placed
}

// wait returns layer i when it is ready.
func (p *plan) wait(ctx context.Context, i int) (*supplied, error) {
	l := p.layers[i]
	if l == nil {
		return nil, fmt.Errorf("%w: layer %d was there when the pull began", snapshotter.ErrOrdinary, i)
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-l.ready:
		return l, l.err
	}
}

// abandon stops the work and drops what nobody has taken.
func (p *plan) abandon(ctx context.Context) {
	if p.cancel == nil {
		return
	}
	p.cancel()
	for _, l := range p.layers {
		if l == nil {
			continue
		}
		<-l.ready
		if err := l.drop(ctx); err != nil {
			p.service.Log.Warn("drop layer", "layer", l.Digest.String(), "error", err)
		}
	}
}

// supplied is one layer of a plan: lazy (handle) or unpacked (tree).
type supplied struct {
	image.Layer
	plan    *plan
	number  int
	indexed bool

	opened chan struct{} // closed when it is known whether the layer is lazy
	ready  chan struct{} // closed when one of these is set
	handle *layers.Handle
	tree   *pull.Tree
	err    error

	mu    sync.Mutex
	taken bool // the tree was moved to a snapshot, or dropped
}

var _ snapshotter.Layer = (*supplied)(nil)

// begin starts to get the layer ready.
func (l *supplied) begin(ctx context.Context, repo Repository, set *referrer.Set) {
	s := l.plan.service
	s.work.Add(1)
	go func() {
		defer s.work.Done()
		defer close(l.ready)
		ctx, cancel := context.WithTimeout(ctx, layerTimeout)
		defer cancel()
		var err error
		if l.indexed {
			err = l.open(ctx, repo, set)
		}
		close(l.opened)
		switch {
		case l.indexed && err == nil:
			return
		case err != nil:
			s.Log.Warn("index is of no use, the layer is pulled in full", "image", l.plan.key.ref, "layer", l.Digest.String(), "error", err)
		}
		l.err = l.pull(ctx, repo)
	}()
}

// open makes the layer lazy.
func (l *supplied) open(ctx context.Context, repo Repository, set *referrer.Set) error {
	rec := store.Layer{Digest: l.Digest, DiffID: l.DiffID, MediaType: l.MediaType, Size: l.Size, Ref: l.plan.key.ref}
	var err error
	l.handle, err = l.plan.service.Layers.Acquire(ctx, rec, func(ctx context.Context) (*index.Index, error) {
		return set.Load(ctx, repo, l.Digest)
	})
	return err
}

// pull fetches and unpacks the layer.
func (l *supplied) pull(ctx context.Context, repo Repository) (err error) {
	s := l.plan.service
	select {
	case <-ctx.Done():
		return ctx.Err()
	case s.pulls <- struct{}{}:
		defer func() { <-s.pulls }()
	}
	r, err := l.blob(ctx, repo)
	if err != nil {
		return fmt.Errorf("pull layer %s: %w", l.Digest, err)
	}
	defer r.Close()
	dir, err := os.MkdirTemp(s.Dir, "")
	if err != nil {
		return fmt.Errorf("create directory for layer: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	tree := filepath.Join(dir, "fs")
	if err := os.Mkdir(tree, 0o755); err != nil {
		return fmt.Errorf("create directory for layer: %w", err)
	}
	// It becomes a root directory, whatever our umask.
	if err := os.Chmod(tree, 0o755); err != nil {
		return fmt.Errorf("set mode of layer: %w", err)
	}
	if l.tree, err = pull.Unpack(ctx, tree, r, blob(l.Layer), l.DiffID, l.number == 0); err != nil {
		return err
	}
	s.mu.Lock()
	s.stats.Pulled++
	s.mu.Unlock()
	return nil
}

// blob opens the layer's blob, in containerd's content store if it is there.
func (l *supplied) blob(ctx context.Context, repo Repository) (io.ReadCloser, error) {
	ra, err := l.plan.service.Content.ReaderAt(ctx, blob(l.Layer))
	if err != nil {
		return repo.Blob(ctx, blob(l.Layer))
	}
	return struct {
		io.Reader
		io.Closer
	}{content.NewReader(ra), ra}, nil
}

// Place puts the layer's tree at the spot.
func (l *supplied) Place(ctx context.Context, spot snapshotter.Spot) (snapshots.Usage, error) {
	if l.handle != nil {
		return l.handle.Mount(ctx, spot.ID, spot.Dir, spot.Lowers)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.taken {
		return snapshots.Usage{}, fmt.Errorf("layer %s was unpacked for another snapshot", l.Digest)
	}
	if err := l.tree.Settle(spot.Lowers); err != nil {
		return snapshots.Usage{}, fmt.Errorf("settle layer %s: %w", l.Digest, err)
	}
	// rename(2) replaces an empty directory, os.Rename does not.
	if err := unix.Rename(l.tree.Dir, spot.Dir); err != nil {
		return snapshots.Usage{}, fmt.Errorf("move layer %s: %w", l.Digest, err)
	}
	l.taken = true
	sn := store.Snapshot{ID: spot.ID, Layer: l.Digest, Size: l.tree.Size, Blob: l.Size, Fetched: l.Size}
	return l.tree.Usage, l.plan.service.Store.PutSnapshot(ctx, sn)
}

// Placed records the image when its topmost layer is in place.
func (l *supplied) Placed(ctx context.Context, spot snapshotter.Spot) {
	p := l.plan
	if l.number != len(p.image.Layers)-1 {
		return
	}
	im := store.Image{Ref: p.key.ref, Manifest: p.key.manifest, PreparedAt: time.Now().UTC(), Took: time.Since(p.started)}
	ids := append([]string{spot.ID}, spot.LowerIDs...) // topmost first
	for i, layer := range p.image.Layers {
		il := store.ImageLayer{Digest: layer.Digest, Blob: layer.Size}
		if n := len(ids) - 1 - i; n >= 0 {
			il.Snapshot = ids[n]
		}
		im.Layers = append(im.Layers, il)
	}
	if err := p.service.Store.PutImage(ctx, im); err != nil {
		p.service.Log.Warn("image is not recorded", "image", im.Ref, "error", err)
	}
	p.service.Log.Info("image prepared", "image", im.Ref, "manifest", im.Manifest.String(), "layers", len(im.Layers), "took", im.Took.String())
	p.service.forget(p)
	p.finish.Do(func() { close(p.done) })
}

// drop gives up what was not placed.
func (l *supplied) drop(ctx context.Context) error {
	if l.handle != nil {
		return l.handle.Release(ctx)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.tree == nil {
		return nil
	}
	l.taken = true
	return os.RemoveAll(filepath.Dir(l.tree.Dir))
}
