package snapshotter

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/storage"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	labels "github.com/containerd/containerd/v2/pkg/snapshotters"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// ErrOrdinary says that containerd shall pull a layer itself. The wrapping
// error gives the reason.
var ErrOrdinary = errors.New("layer is not supplied")

// Request names the layer that containerd asks for. The labels it comes from
// can be written by whoever made the image: a supplier must check them against
// the manifest.
type Request struct {
	Namespace string
	Ref       string        // of the image
	Manifest  digest.Digest // of the image, for this platform
	Layer     digest.Digest // of the blob
	ChainID   digest.Digest // of this layer on top of those below
}

// Spot is where a supplied layer goes.
type Spot struct {
	ID     string   // of the snapshot
	Dir    string   // an empty directory, to be filled or mounted on
	Lowers []string // trees below, nearest first
	// LowerIDs are the numbers of the snapshots below, in the same order.
	LowerIDs []string
}

// Supplier has layers of remote images.
type Supplier interface {
	// Supply returns the layer once it can be placed. It must return an error
	// that wraps ErrOrdinary where containerd shall pull, and may return any
	// other error to the same effect; a caller reports those.
	Supply(ctx context.Context, req Request) (Layer, error)
	// Withdraw undoes Place after the snapshot is gone: dir must then be
	// removable. It is also called for snapshots that were never supplied.
	Withdraw(ctx context.Context, id, dir string) error
}

// Layer is one layer ready to be placed.
type Layer interface {
	// Place puts the layer's tree at the spot, as containerd's differ would
	// have made it there, and returns the space it takes when complete.
	Place(ctx context.Context, spot Spot) (snapshots.Usage, error)
	// Placed reports that the snapshot at the spot was committed.
	Placed(ctx context.Context, spot Spot)
}

// request reads the labels of a Prepare. ok is false when they do not announce
// a layer of a known image.
func request(ctx context.Context, key, parent string, l map[string]string) (Request, bool) {
	req := Request{
		Ref:      l[labels.TargetRefLabel],
		Manifest: digest.Digest(l[labels.TargetManifestDigestLabel]),
		Layer:    digest.Digest(l[labels.TargetLayerDigestLabel]),
		ChainID:  digest.Digest(l[snapshots.LabelSnapshotRef]),
	}
	if req.Ref == "" || req.Manifest.Validate() != nil || req.Layer.Validate() != nil || req.ChainID.Validate() != nil {
		return Request{}, false
	}
	// Without its parent (containerd's parallel unpack) a layer must not be
	// committed. We do not advertise that capability, so this is a precaution.
	if parent == "" && l["containerd.io/snapshot/parent-chain-id"] != "" {
		return Request{}, false
	}
	ns, ok := namespaces.Namespace(ctx)
	if !ok {
		// containerd's metadata names backend snapshots namespace/number/name.
		ns, _, ok = strings.Cut(key, "/")
	}
	req.Namespace = ns
	return req, ok && ns != ""
}

// prepareSupplied reports whether a committed snapshot of the announced layer
// exists now.
func (sn *Snapshotter) prepareSupplied(ctx context.Context, key, parent string, opts []snapshots.Opt) (bool, error) {
	if sn.supplier == nil {
		return false, nil
	}
	var info snapshots.Info
	for _, o := range opts {
		if err := o(&info); err != nil {
			return false, err
		}
	}
	req, ok := request(ctx, key, parent, info.Labels)
	if !ok {
		return false, nil
	}
	name, err := sn.suppliedName(ctx, req.ChainID, parent)
	if err != nil {
		return false, err
	}
	if _, err := sn.Stat(ctx, name); err == nil {
		return true, nil
	}
	layer, err := sn.supplier.Supply(ctx, req)
	if err != nil {
		return false, err
	}
	if err := sn.place(ctx, layer, key, parent, name, opts); err != nil {
		return false, fmt.Errorf("place layer %s: %w", req.Layer, err)
	}
	return true, nil
}

// suppliedPrefix begins the names of supplied snapshots.
const suppliedPrefix = "supplied/"

// suppliedName is the name of the committed snapshot of a chain. The parent's
// number is part of it: two namespaces can have the same chain on different
// parents.
func (sn *Snapshotter) suppliedName(ctx context.Context, chain digest.Digest, parent string) (string, error) {
	id := "0"
	if parent != "" {
		err := sn.db.WithTransaction(ctx, false, func(ctx context.Context) (err error) {
			id, _, _, err = storage.GetInfo(ctx, parent)
			return err
		})
		if err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%s%s/%s", suppliedPrefix, id, chain), nil
}

// place makes a snapshot with the layer in it and commits it. What it leaves
// behind on an error is garbage for Cleanup.
func (sn *Snapshotter) place(ctx context.Context, layer Layer, key, parent, name string, opts []snapshots.Opt) error {
	s, err := sn.create(ctx, snapshots.KindActive, key, parent, opts)
	if err != nil {
		return err
	}
	spot := Spot{ID: s.ID, Dir: sn.treeDir(s.ID), Lowers: sn.treeDirs(s.ParentIDs), LowerIDs: s.ParentIDs}
	usage, err := layer.Place(ctx, spot)
	if err == nil {
		err = sn.db.WithTransaction(ctx, true, func(ctx context.Context) error {
			_, err := storage.CommitActive(ctx, key, name, usage, opts...)
			return err
		})
	}
	if err != nil {
		// Not bounded by ctx, which may be the reason: the key must be free for
		// the ordinary snapshot that follows.
		err = errors.Join(err, sn.Remove(context.WithoutCancel(ctx), key))
		if errdefs.IsAlreadyExists(err) {
			return nil // another namespace was faster
		}
		return err
	}
	layer.Placed(ctx, spot)
	return nil
}
