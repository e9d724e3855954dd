package layers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/firstlight-dev/firstlight/indexer/tree"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/erofs"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/inherit"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/store"
)

// Files beside the directory of a snapshot.
const (
	metaFile      = "erofs.meta" // the file system's metadata
	inheritedFile = "inherited"  // what implied directories took from below
)

// maxInherited bounds the inherited file: a directory that has the longest
// attributes Linux allows still leaves room for thousands.
const maxInherited = 64 << 20

// Mount shows the layer at dir, the tree directory of the snapshot id, on top
// of lowers, nearest first.
func (h *Handle) Mount(ctx context.Context, id, dir string, lowers []string) (snapshots.Usage, error) {
	inherited, err := takeOver(h.tree, lowers)
	if err != nil {
		return snapshots.Usage{}, fmt.Errorf("stack layer %s: %w", h.layer.Digest, err)
	}
	if len(inherited) > 0 {
		b, err := json.Marshal(inherited)
		if err != nil {
			return snapshots.Usage{}, fmt.Errorf("keep inherited attributes: %w", err)
		}
		if err := writeFile(filepath.Join(filepath.Dir(dir), inheritedFile), b); err != nil {
			return snapshots.Usage{}, err
		}
	}
	number, err := h.set.Store.NewNumber(ctx)
	if err != nil {
		return snapshots.Usage{}, fmt.Errorf("number snapshot %s: %w", id, err)
	}
	sn := store.Snapshot{ID: id, Number: number, Layer: h.layer.Digest, Lazy: true, Bottom: len(lowers) == 0, Mode: string(h.set.Mode), Session: h.set.Session,
		Size: h.layer.index.Size, Blob: h.layer.Size}
	t := stack(h.tree, sn.Bottom, inherited)
	if err := h.set.show(h.layer, &sn, t, dir); err != nil {
		return snapshots.Usage{}, errors.Join(err, h.set.hide(sn, dir))
	}
	if err := h.set.Store.PutSnapshot(ctx, sn); err != nil {
		return snapshots.Usage{}, errors.Join(err, h.set.hide(sn, dir))
	}
	// The snapshot is a use of its own.
	h.set.enter(h.layer.Digest)
	return snapshots.Usage{Size: h.layer.index.Size, Inodes: int64(len(t.Nodes))}, nil
}

// takeOver looks up what the tree's implied directories take from below.
func takeOver(t *tree.Tree, lowers []string) (map[int]inherit.Attributes, error) {
	inherited := map[int]inherit.Attributes{}
	for row := range t.Nodes {
		if !t.Nodes[row].Implied || row == tree.Root {
			continue
		}
		a, err := inherit.From(lowers, path(t, row))
		if err != nil {
			return nil, err
		}
		if a != nil {
			inherited[row] = *a
		}
	}
	return inherited, nil
}

func path(t *tree.Tree, row int) string {
	p := ""
	for ; row != tree.Root; row = t.Nodes[row].Parent {
		p = "/" + t.Nodes[row].Name + p
	}
	return p
}

// stack makes of a layer's tree what it is in its place: on the layers that its
// implied directories inherited from, or at the bottom, where whiteouts have
// nothing to hide and containerd leaves them out.
func stack(t *tree.Tree, bottom bool, inherited map[int]inherit.Attributes) *tree.Tree {
	if !bottom && len(inherited) == 0 {
		return t
	}
	stacked := &tree.Tree{Nodes: append([]tree.Node(nil), t.Nodes...)}
	for row := range stacked.Nodes {
		n := &stacked.Nodes[row]
		if a, ok := inherited[row]; ok {
			n.Mode = n.Mode&^0o7777 | a.Mode
			n.UID, n.GID = a.UID, a.GID
			n.Xattrs = mergeXattrs(n.Xattrs, a.Xattrs)
		}
		if bottom {
			dropWhiteouts(t, n)
		}
	}
	return stacked
}

func dropWhiteouts(t *tree.Tree, n *tree.Node) {
	if n.Opaque {
		n.Opaque = false
		n.Xattrs = withoutXattr(n.Xattrs, tree.OpaqueXattr)
	}
	for i, c := range n.Children {
		if !t.Nodes[c.Row].Whiteout {
			continue
		}
		kept := append([]tree.Child(nil), n.Children[:i]...)
		for _, c := range n.Children[i:] {
			if !t.Nodes[c.Row].Whiteout {
				kept = append(kept, c)
			}
		}
		n.Children = kept
		return
	}
}

// show mounts the tree t of l at dir, in the way that sn.Mode says. What EROFS
// cannot hold becomes a FUSE tree, and sn.Mode says so then.
func (s *Set) show(l *layer, sn *store.Snapshot, t *tree.Tree, dir string) error {
	if Mode(sn.Mode) == EROFS {
		meta := filepath.Join(filepath.Dir(dir), metaFile)
		err := writeMeta(meta, t, l)
		if err == nil {
			return s.mountEROFS(l, sn, meta, dir)
		}
		if !errors.Is(err, erofs.ErrUnsupported) {
			return fmt.Errorf("build EROFS metadata of layer %s: %w", l.Digest, err)
		}
		s.Log.Warn("layer is served as a FUSE tree", "layer", l.Digest.String(), "reason", err)
		sn.Mode = string(FUSE)
	}
	sn.Served = true
	if err := s.Server.AddTree(sn.Number, t, l.lazy); err != nil {
		return fmt.Errorf("serve tree of layer %s: %w", l.Digest, err)
	}
	return bind(filepath.Join(s.FUSEDir, "tree", strconv.FormatUint(sn.Number, 10)), dir)
}

func (s *Set) mountEROFS(l *layer, sn *store.Snapshot, meta, dir string) error {
	device := filepath.Join(s.FUSEDir, "layer", strconv.FormatUint(l.Number, 10))
	sn.Served = true
	if l.cached.Hold() {
		// Nothing is missing, nor will be: the kernel reads the file itself.
		device, sn.Served = l.cached.Path(), false
	}
	if err := erofs.Mount(meta, device, dir); err != nil {
		return fmt.Errorf("mount layer %s: %w", l.Digest, err)
	}
	return nil
}

// hide undoes show.
func (s *Set) hide(sn store.Snapshot, dir string) error {
	err := unmount(dir)
	if Mode(sn.Mode) == FUSE {
		s.Server.Remove(sn.Number)
	}
	return err
}

// bind shows the directory from at to, like an EROFS mount: for overlayfs only.
func bind(from, to string) error {
	if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s: %w", from, err)
	}
	if err := unix.Mount("", to, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, ""); err != nil {
		return errors.Join(fmt.Errorf("make %s read-only: %w", to, err), unmount(to))
	}
	return nil
}

// unmount takes away whatever is mounted at dir, also a file system whose
// server is dead. Whoever still reads from it keeps it until done.
func unmount(dir string) error {
	for {
		mounted, err := mountinfo.Mounted(dir)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		// A dead FUSE mount cannot be looked at, but unmounted.
		if err == nil && !mounted {
			return nil
		}
		if err := unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); errors.Is(err, unix.EINVAL) {
			return nil
		} else if err != nil {
			return fmt.Errorf("unmount %s: %w", dir, err)
		}
	}
}

// Unmount undoes Mount, if there was one, and with the last snapshot of a layer
// forgets the layer.
func (s *Set) Unmount(ctx context.Context, id, dir string) error {
	if err := unmount(dir); err != nil {
		return err
	}
	sn, err := s.Store.DeleteSnapshot(ctx, id)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil
	case err != nil:
		return fmt.Errorf("forget snapshot %s: %w", id, err)
	case !sn.Lazy:
		return nil
	}
	if Mode(sn.Mode) == FUSE {
		s.Server.Remove(sn.Number)
	}
	s.mu.Lock()
	e := s.entries[sn.Layer]
	s.mu.Unlock()
	if e == nil {
		return nil // it could not be opened again after a restart
	}
	return s.leave(ctx, sn.Layer, e)
}

// writeMeta writes the EROFS metadata of the tree, durably. An older file of that
// name stays as it is for the mounts that still use it.
func writeMeta(path string, t *tree.Tree, l *layer) error {
	return replaceFile(path, func(w io.Writer) error { return erofs.Build(w, t, l.index.Size) })
}

func readInherited(dir string) (map[int]inherit.Attributes, error) {
	f, err := os.Open(filepath.Join(filepath.Dir(dir), inheritedFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read inherited attributes: %w", err)
	}
	defer f.Close()
	var inherited map[int]inherit.Attributes
	if err := json.NewDecoder(io.LimitReader(f, maxInherited)).Decode(&inherited); err != nil {
		return nil, fmt.Errorf("read inherited attributes: %w", err)
	}
	return inherited, nil
}
