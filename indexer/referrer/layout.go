package referrer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/firstlight-dev/firstlight/indexer/index"
	"github.com/firstlight-dev/firstlight/indexer/profile"
)

// maxLayoutIndex bounds index.json of a layout.
const maxLayoutIndex = 16 << 20

// Layout is an OCI image layout folder. Artifacts are listed in its index.json,
// without a name.
type Layout struct {
	dir string
}

var _ Store = (*Layout)(nil)

// OpenLayout opens a folder.
func OpenLayout(dir string) (*Layout, error) {
	if _, err := os.Stat(filepath.Join(dir, ocispec.ImageLayoutFile)); err != nil {
		return nil, fmt.Errorf("%s is not an OCI image layout: %w", dir, err)
	}
	return &Layout{dir: dir}, nil
}

func (l *Layout) list() (*ocispec.Index, error) {
	b, err := readFile(filepath.Join(l.dir, ocispec.ImageIndexFile), maxLayoutIndex)
	if err != nil {
		return nil, fmt.Errorf("read layout: %w", err)
	}
	var list ocispec.Index
	if err := json.Unmarshal(b, &list); err != nil {
		return nil, fmt.Errorf("read layout %s: %w", l.dir, err)
	}
	return &list, nil
}

// Manifest implements Fetcher. Of a layout with one image the empty name is that
// image's too.
func (l *Layout) Manifest(_ context.Context, ref string) (ocispec.Descriptor, []byte, error) {
	list, err := l.list()
	if err != nil {
		return ocispec.Descriptor{}, nil, err
	}
	d, err := pick(list.Manifests, ref)
	if err != nil {
		return d, nil, fmt.Errorf("%w in layout %s", err, l.dir)
	}
	b, err := readFile(l.blobPath(d.Digest), maxManifest)
	if errors.Is(err, fs.ErrNotExist) {
		return d, nil, fmt.Errorf("manifest %s of layout %s: %w", d.Digest, l.dir, errdefs.ErrNotFound)
	}
	if err != nil {
		return d, nil, fmt.Errorf("read manifest %s of layout: %w", d.Digest, err)
	}
	if d.MediaType == "" {
		var m struct {
			MediaType string `json:"mediaType"`
		}
		if json.Unmarshal(b, &m) == nil {
			d.MediaType = m.MediaType
		}
		d.Size = int64(len(b))
	}
	return d, b, nil
}

// pick finds what a reference names.
func pick(all []ocispec.Descriptor, ref string) (ocispec.Descriptor, error) {
	if d, err := digest.Parse(ref); err == nil {
		for _, m := range all {
			if m.Digest == d {
				return m, nil
			}
		}
		return ocispec.Descriptor{Digest: d}, nil // inside an image index
	}
	var images []ocispec.Descriptor
	for _, m := range all {
		if m.Digest.Validate() != nil {
			continue
		}
		if ref != "" && m.Annotations[ocispec.AnnotationRefName] == ref {
			return m, nil
		}
		if !isOurs(m) {
			images = append(images, m)
		}
	}
	switch {
	case ref != "":
		return ocispec.Descriptor{}, fmt.Errorf("image %q: %w", ref, errdefs.ErrNotFound)
	case len(images) == 0:
		return ocispec.Descriptor{}, fmt.Errorf("image: %w", errdefs.ErrNotFound)
	case len(images) > 1:
		return ocispec.Descriptor{}, fmt.Errorf("%d images, name one by its tag or digest: %w", len(images), errdefs.ErrInvalidArgument)
	}
	return images[0], nil
}

// Blob implements Fetcher.
func (l *Layout) Blob(_ context.Context, desc ocispec.Descriptor) (io.ReadCloser, error) {
	if err := desc.Digest.Validate(); err != nil {
		return nil, fmt.Errorf("open blob %q: %w", desc.Digest, err)
	}
	f, err := openFile(l.blobPath(desc.Digest))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("blob %s of layout %s: %w", desc.Digest, l.dir, errdefs.ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("open blob of layout: %w", err)
	}
	return f, nil
}

// Referrers implements Fetcher.
func (l *Layout) Referrers(_ context.Context, subject digest.Digest, artifactType string) ([]ocispec.Descriptor, error) {
	list, err := l.list()
	if err != nil {
		return nil, err
	}
	var ds []ocispec.Descriptor
	for _, d := range list.Manifests {
		if artifactType != "" && d.ArtifactType != artifactType || d.Digest.Validate() != nil {
			continue
		}
		b, err := readFile(l.blobPath(d.Digest), maxManifest)
		var m ocispec.Manifest
		if err == nil && json.Unmarshal(b, &m) == nil && m.Subject != nil && m.Subject.Digest == subject {
			ds = append(ds, d)
		}
	}
	return ds, nil
}

// Push implements Store.
func (l *Layout) Push(ctx context.Context, a *Artifact) error {
	unlock, err := lockDir(ctx, l.dir)
	if err != nil {
		return fmt.Errorf("lock layout %s: %w", l.dir, err)
	}
	defer unlock()
	blobs := map[digest.Digest][]byte{a.Descriptor.Digest: a.Manifest}
	for d, b := range a.Blobs {
		blobs[d] = b
	}
	for d, b := range blobs {
		if err := writeFile(l.blobPath(d), b); err != nil {
			return fmt.Errorf("write blob %s: %w", d, err)
		}
	}
	return l.edit(func(ms []ocispec.Descriptor) []ocispec.Descriptor {
		return append(without(ms, a.Descriptor.Digest), a.Descriptor)
	})
}

// Remove implements Store. The indexes or the profile that nothing else in the
// folder names go with it: an artifact can call anything an index, the image's own
// layers too.
func (l *Layout) Remove(ctx context.Context, subject digest.Digest, artifact ocispec.Descriptor) error {
	unlock, err := lockDir(ctx, l.dir)
	if err != nil {
		return fmt.Errorf("lock layout %s: %w", l.dir, err)
	}
	defer unlock()
	if err := l.edit(func(ms []ocispec.Descriptor) []ocispec.Descriptor { return without(ms, artifact.Digest) }); err != nil {
		return err
	}
	list, err := l.list()
	if err != nil {
		return err
	}
	kept := make(map[digest.Digest]bool)
	if !l.reach(append(list.Manifests, ocispec.Descriptor{Digest: subject}), kept) {
		return nil // too many to be sure: a file too much does no harm
	}
	for _, b := range append(l.artifactBlobs(artifact), artifact.Digest) {
		if kept[b] {
			continue
		}
		if err := os.Remove(l.blobPath(b)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove blob: %w", err)
		}
	}
	return nil
}

// maxReach bounds the manifests that are read to learn what a folder needs.
const maxReach = 4096

// reach adds what the manifests name, and what those do. It reports whether that
// is everything.
func (l *Layout) reach(todo []ocispec.Descriptor, kept map[digest.Digest]bool) bool {
	for n := 0; len(todo) > 0; n++ {
		if n == maxReach {
			return false
		}
		d := todo[len(todo)-1].Digest
		todo = todo[:len(todo)-1]
		if d.Validate() != nil {
			continue
		}
		kept[d] = true
		b, err := readFile(l.blobPath(d), maxManifest)
		var m struct {
			ocispec.Manifest
			Manifests []ocispec.Descriptor `json:"manifests"`
		}
		if err != nil || json.Unmarshal(b, &m) != nil {
			continue // it names nothing that could be found
		}
		kept[m.Config.Digest] = true
		for _, x := range m.Layers {
			kept[x.Digest] = true
		}
		for _, x := range m.Manifests {
			if !kept[x.Digest] {
				todo = append(todo, x)
			}
		}
	}
	return true
}

// isOurs tells artifacts from images.
func isOurs(d ocispec.Descriptor) bool {
	return d.ArtifactType == index.ArtifactType || d.ArtifactType == profile.ArtifactType
}

// artifactBlobs lists the indexes, or the profile, of an artifact.
func (l *Layout) artifactBlobs(d ocispec.Descriptor) (blobs []digest.Digest) {
	if !isOurs(d) || d.Digest.Validate() != nil {
		return nil
	}
	b, err := readFile(l.blobPath(d.Digest), maxManifest)
	var m ocispec.Manifest
	if err != nil || json.Unmarshal(b, &m) != nil {
		return nil
	}
	for _, x := range m.Layers {
		if (x.MediaType == index.LayerMediaType || x.MediaType == profile.MediaType) && x.Digest.Validate() == nil {
			blobs = append(blobs, x.Digest)
		}
	}
	return blobs
}

func without(ms []ocispec.Descriptor, d digest.Digest) []ocispec.Descriptor {
	return slices.DeleteFunc(ms, func(m ocispec.Descriptor) bool { return m.Digest == d })
}

// edit changes the list of manifests. What else index.json says stays.
func (l *Layout) edit(change func([]ocispec.Descriptor) []ocispec.Descriptor) error {
	path := filepath.Join(l.dir, ocispec.ImageIndexFile)
	b, err := readFile(path, maxLayoutIndex)
	if err != nil {
		return fmt.Errorf("read layout: %w", err)
	}
	var all map[string]json.RawMessage
	var list ocispec.Index
	if err := errors.Join(json.Unmarshal(b, &all), json.Unmarshal(b, &list)); err != nil {
		return fmt.Errorf("read layout %s: %w", l.dir, err)
	}
	if all["manifests"], err = json.Marshal(change(list.Manifests)); err != nil {
		return fmt.Errorf("encode layout index: %w", err)
	}
	if b, err = json.MarshalIndent(all, "", "  "); err != nil {
		return fmt.Errorf("encode layout index: %w", err)
	}
	if err := writeFile(path, b); err != nil {
		return fmt.Errorf("write layout: %w", err)
	}
	return nil
}

func (l *Layout) blobPath(d digest.Digest) string {
	return filepath.Join(l.dir, ocispec.ImageBlobsDir, d.Algorithm().String(), d.Encoded())
}
