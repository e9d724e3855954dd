// Package pull unpacks whole layers the way containerd does: with containerd's
// own differ, into the directory an overlay snapshot keeps.
//
// containerd unpacks a layer on top of those below it, because a directory that
// a layer implies (a/b without an entry for a) takes its owner, mode and
// extended attributes from the layers below. Here layers are unpacked side by
// side, before those below are there; [Tree.Settle] fills in the implied
// directories once they are. The result is the same tree.
//
// A layer is trusted only after both of its digests were checked over every
// byte, trailing ones included.
package pull

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sort"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/archive"
	"github.com/containerd/containerd/v2/pkg/archive/compression"
	continuity "github.com/containerd/continuity/fs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/firstlight-dev/firstlight/snapshotter/internal/inherit"
)

// ErrMismatch marks a blob that is not the layer it should be.
var ErrMismatch = errors.New("layer does not match its digest")

// Tree is an unpacked layer.
type Tree struct {
	Dir     string // the tree's root
	Size    int64  // bytes of the uncompressed tar stream
	Usage   snapshots.Usage
	implied []string // directories without an entry, parents first
	late    []string // directories whose entry came after an entry below them
}

// Unpack reads the blob of desc from r into dir, which must be empty. bottom is
// whether the layer is the lowest of its image: containerd resolves whiteouts
// there instead of keeping them.
func Unpack(ctx context.Context, dir string, r io.Reader, desc ocispec.Descriptor, diffID digest.Digest, bottom bool) (*Tree, error) {
	blob := desc.Digest.Verifier()
	// One byte beyond the size shows a blob that is too long.
	counted := &counter{r: io.TeeReader(io.LimitReader(r, desc.Size+1), blob)}
	stream, err := compression.DecompressStream(counted)
	if err != nil {
		return nil, fmt.Errorf("decompress layer %s: %w", desc.Digest, err)
	}
	defer stream.Close()
	diff := diffID.Verifier()
	tarred := &counter{r: io.TeeReader(stream, diff)}
	seen := newSeen()
	opts := []archive.ApplyOpt{archive.WithFilter(seen.filter)}
	if !bottom {
		opts = append(opts, archive.WithConvertWhiteout(archive.OverlayConvertWhiteout))
	}
	if _, err := archive.Apply(ctx, dir, tarred, opts...); err != nil {
		return nil, fmt.Errorf("unpack layer %s: %w", desc.Digest, errors.Join(err, counted.err()))
	}
	for _, rest := range []io.Reader{tarred, counted} {
		if _, err := io.Copy(io.Discard, rest); err != nil {
			return nil, fmt.Errorf("read rest of layer %s: %w", desc.Digest, err)
		}
	}
	switch {
	case counted.n != desc.Size:
		return nil, fmt.Errorf("%w: %s has %d bytes instead of %d", ErrMismatch, desc.Digest, counted.n, desc.Size)
	case !blob.Verified():
		return nil, fmt.Errorf("%w: blob is not %s", ErrMismatch, desc.Digest)
	case !diff.Verified():
		return nil, fmt.Errorf("%w: %s does not unpack to %s", ErrMismatch, desc.Digest, diffID)
	}
	t := &Tree{Dir: dir, Size: tarred.n, late: seen.late}
	if t.implied, err = seen.implied(dir); err != nil {
		return nil, fmt.Errorf("walk layer %s: %w", desc.Digest, err)
	}
	du, err := continuity.DiskUsage(ctx, dir)
	if err != nil {
		return nil, fmt.Errorf("measure layer %s: %w", desc.Digest, err)
	}
	t.Usage = snapshots.Usage(du)
	return t, nil
}

// counter counts bytes and remembers why a stream broke off: the differ
// sometimes reports only that it did.
type counter struct {
	r      io.Reader
	n      int64
	failed error
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	if err != nil && err != io.EOF {
		c.failed = err
	}
	return n, err
}

func (c *counter) err() error { return c.failed }

// seen remembers which directories had an entry of their own.
type seen struct {
	entry map[string]bool // directories with an entry
	below map[string]bool // directories with an entry below them
	late  []string
}

func newSeen() *seen { return &seen{entry: map[string]bool{}, below: map[string]bool{}} }

func (s *seen) filter(h *tar.Header) (bool, error) {
	name := filepath.Clean("/" + h.Name)
	for dir := filepath.Dir(name); dir != "/" && !s.below[dir]; dir = filepath.Dir(dir) {
		s.below[dir] = true
	}
	if h.Typeflag == tar.TypeDir && !s.entry[name] {
		s.entry[name] = true
		if s.below[name] {
			s.late = append(s.late, name)
		}
	}
	return true, nil
}

// implied lists the directories under root that no entry made. A name that
// leads through a symbolic link is resolved as the differ resolves it.
func (s *seen) implied(root string) ([]string, error) {
	explicit := make(map[string]bool, len(s.entry))
	for name := range s.entry {
		real, err := continuity.RootPath(root, name)
		if err != nil {
			return nil, err
		}
		explicit[real] = true
	}
	var dirs []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != root && !explicit[path] {
			rel, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			dirs = append(dirs, "/"+rel)
		}
		return nil
	})
	sort.Strings(dirs)
	return dirs, err
}

// Settle gives the implied directories what they take from the layers below,
// nearest first. Their modification time stays that of the unpacking, as with
// containerd.
func (t *Tree) Settle(lowers []string) error {
	for _, rel := range t.implied {
		a, err := inherit.From(lowers, rel)
		if err != nil {
			return err
		}
		if a != nil {
			if err := a.Apply(filepath.Join(t.Dir, rel)); err != nil {
				return err
			}
		}
	}
	// A directory that existed before its entry came keeps the attributes that
	// the entry does not set itself.
	for _, rel := range t.late {
		a, err := inherit.From(lowers, rel)
		if err != nil {
			return err
		}
		path, err := continuity.RootPath(t.Dir, rel)
		if err != nil {
			return err
		}
		if st, err := os.Lstat(path); a == nil || err != nil || !st.IsDir() {
			continue
		}
		if err := a.ApplyXattrs(path); err != nil {
			return err
		}
	}
	return nil
}
