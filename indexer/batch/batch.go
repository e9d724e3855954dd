// Package batch does to all layers of an image, in parallel, what the rest of the
// indexer does to one: it makes indexes, publishes them, and verifies them.
package batch

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/firstlight-dev/firstlight/indexer/image"
	"github.com/firstlight-dev/firstlight/indexer/index"
	"github.com/firstlight-dev/firstlight/indexer/referrer"
	"github.com/firstlight-dev/firstlight/indexer/scan"
)

// ErrNothing means that no layer of an image could be indexed.
var ErrNothing = errors.New("no layer can be indexed")

// Observer is told how layers go on. Its methods are called from several
// goroutines.
type Observer interface {
	Start(l image.Layer)
	Read(layer digest.Digest, n int)
	Done(r Layer)
}

// Batch is a set of images in one store.
type Batch struct {
	Store    referrer.Store
	Images   []image.Image
	Jobs     int // layers at a time; each takes some 60 MiB, 200 if it is zstd, 600 if with a long window
	Observer Observer
}

// Layer is what came of one layer.
type Layer struct {
	Digest    digest.Digest `json:"digest"`
	Size      int64         `json:"size"`                 // of the blob
	TarSize   int64         `json:"tarSize,omitempty"`    // of the tar stream
	Entries   int           `json:"entries,omitempty"`    // of the tar
	Chunks    int           `json:"chunks,omitempty"`     // of the index
	IndexSize int64         `json:"indexSize,omitempty"`  // of the encoded index
	Reused    bool          `json:"reused,omitempty"`     // the index was there already
	Refused   string        `json:"refused,omitempty"`    // why there is no index
	Problem   string        `json:"problem,omitempty"`    // why it did not verify
	Millis    int64         `json:"durationMs,omitempty"` // of the work
}

// Image is what came of one image.
type Image struct {
	Manifest digest.Digest `json:"manifest"`
	Platform string        `json:"platform"`
	Artifact digest.Digest `json:"artifact,omitempty"` // that holds the indexes now
	Removed  []string      `json:"removed,omitempty"`  // artifacts it takes the place of
	Warnings []string      `json:"warnings,omitempty"`
	Layers   []Layer       `json:"layers"`
}

// Create makes the indexes of all layers, taking those that are there already
// unless force is set, and publishes them. Layers that cannot be indexed are left
// out. A registry that does not let old artifacts be deleted is a warning.
func (b *Batch) Create(ctx context.Context, force bool) ([]Image, error) {
	known := make(map[digest.Digest]*referrer.Set)
	for _, img := range b.Images {
		set, err := referrer.Find(ctx, b.Store, img.Descriptor.Digest)
		if err != nil && !errors.Is(err, referrer.ErrNotFound) {
			return nil, err
		}
		known[img.Descriptor.Digest] = set
	}
	var mu sync.Mutex
	encoded := make(map[digest.Digest][]byte)
	results, err := b.each(ctx, func(ctx context.Context, l image.Layer) (Layer, error) {
		r, raw, err := b.index(ctx, l, known, force)
		if raw != nil {
			mu.Lock()
			encoded[l.Descriptor.Digest] = raw
			mu.Unlock()
		}
		return r, err
	})
	if err != nil {
		return nil, err
	}
	var images []Image
	for _, img := range b.Images {
		r := b.report(img, results)
		if err := b.publish(ctx, img, encoded, known[img.Descriptor.Digest], &r); err != nil {
			return images, err
		}
		images = append(images, r)
	}
	if len(encoded) == 0 && len(results) > 0 {
		return images, ErrNothing
	}
	return images, nil
}

// index makes or finds the encoded index of a layer.
func (b *Batch) index(ctx context.Context, l image.Layer, known map[digest.Digest]*referrer.Set, force bool) (Layer, []byte, error) {
	r := Layer{Digest: l.Descriptor.Digest, Size: l.Descriptor.Size}
	if r.Refused = l.Refusal(); r.Refused != "" {
		return r, nil, nil
	}
	if x := b.reuse(ctx, l, known); x != nil && !force {
		raw, err := x.Encode()
		if err != nil {
			return r, nil, err
		}
		r.Reused = true
		r.fill(x, raw)
		b.Observer.Read(l.Descriptor.Digest, int(l.Descriptor.Size))
		return r, raw, nil
	}
	x, err := b.scan(ctx, l)
	if errors.Is(err, index.ErrUnsupported) {
		r.Refused = err.Error()
		return r, nil, nil
	}
	if err != nil {
		return r, nil, fmt.Errorf("index layer %s: %w", l.Descriptor.Digest, err)
	}
	raw, err := x.Encode()
	if errors.Is(err, index.ErrUnsupported) {
		r.Refused = err.Error()
		return r, nil, nil
	}
	if err != nil {
		return r, nil, fmt.Errorf("encode index of layer %s: %w", l.Descriptor.Digest, err)
	}
	r.fill(x, raw)
	return r, raw, nil
}

func (r *Layer) fill(x *index.Index, raw []byte) {
	r.TarSize, r.Entries, r.Chunks, r.IndexSize = x.Size, x.NumEntries(), len(x.Chunks), int64(len(raw))
}

// reuse returns an index that is already published and usable.
func (b *Batch) reuse(ctx context.Context, l image.Layer, known map[digest.Digest]*referrer.Set) *index.Index {
	for _, set := range known {
		if set == nil {
			continue
		}
		if x, err := set.Load(ctx, b.Store, l.Descriptor.Digest); err == nil && x.DiffID == l.DiffID && x.CompressedSize == l.Descriptor.Size {
			return x
		}
	}
	return nil
}

func (b *Batch) scan(ctx context.Context, l image.Layer) (x *index.Index, err error) {
	err = b.open(ctx, l, func(in scan.Layer) error {
		x, err = scan.Scan(ctx, in)
		return err
	})
	return x, err
}

// open reads a layer's blob from the store, ahead of its reader.
func (b *Batch) open(ctx context.Context, l image.Layer, fn func(scan.Layer) error) error {
	rc, err := b.Store.Blob(ctx, l.Descriptor)
	if err != nil {
		return err
	}
	defer rc.Close()
	return fn(scan.Layer{
		Reader: bufio.NewReaderSize(rc, 1<<20), Digest: l.Descriptor.Digest, Size: l.Descriptor.Size, DiffID: l.DiffID,
		Progress: func(n int) { b.Observer.Read(l.Descriptor.Digest, n) },
	})
}

// publish pushes the artifact of an image and removes the ones before.
func (b *Batch) publish(ctx context.Context, img image.Image, encoded map[digest.Digest][]byte, old *referrer.Set, r *Image) error {
	mine := make(map[digest.Digest][]byte)
	for _, l := range img.Layers {
		if raw, ok := encoded[l.Descriptor.Digest]; ok {
			mine[l.Descriptor.Digest] = raw
		}
	}
	if len(mine) == 0 {
		r.Warnings = append(r.Warnings, ErrNothing.Error())
		return nil
	}
	a, err := referrer.NewArtifact(img.Descriptor, mine)
	if err != nil {
		return err
	}
	r.Artifact = a.Descriptor.Digest
	var stale []ocispec.Descriptor
	there := false
	if old != nil {
		for _, d := range old.Artifacts {
			if d.Digest == a.Descriptor.Digest {
				there = true
			} else {
				stale = append(stale, d)
			}
		}
	}
	if !there {
		if err := b.Store.Push(ctx, a); err != nil {
			return err
		}
	}
	for _, d := range stale {
		if err := b.Store.Remove(ctx, img.Descriptor.Digest, d); err != nil {
			r.Warnings = append(r.Warnings, fmt.Sprintf("old artifact %s stays: %v", d.Digest, err))
			continue
		}
		r.Removed = append(r.Removed, d.Digest.String())
	}
	return nil
}

// Remove takes the indexes of all images off. The error is ErrNotFound if there
// were none.
func (b *Batch) Remove(ctx context.Context) ([]Image, error) {
	var images []Image
	for _, img := range b.Images {
		set, err := referrer.Find(ctx, b.Store, img.Descriptor.Digest)
		if errors.Is(err, referrer.ErrNotFound) {
			continue
		}
		if err != nil {
			return images, err
		}
		r := Image{Manifest: img.Descriptor.Digest, Platform: img.Platform}
		for _, d := range set.Artifacts {
			if err := b.Store.Remove(ctx, img.Descriptor.Digest, d); err != nil {
				return images, err
			}
			r.Removed = append(r.Removed, d.Digest.String())
		}
		images = append(images, r)
	}
	if len(images) == 0 {
		return nil, fmt.Errorf("no index: %w", errdefs.ErrNotFound)
	}
	return images, nil
}

// each runs fn for every layer once, several at a time.
func (b *Batch) each(ctx context.Context, fn func(context.Context, image.Layer) (Layer, error)) (map[digest.Digest]Layer, error) {
	var mu sync.Mutex
	results := make(map[digest.Digest]Layer)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(max(b.Jobs, 1))
	seen := make(map[digest.Digest]bool)
	for _, img := range b.Images {
		for _, l := range img.Layers {
			if seen[l.Descriptor.Digest] {
				continue
			}
			seen[l.Descriptor.Digest] = true
			g.Go(func() error {
				start := time.Now()
				b.Observer.Start(l)
				r, err := fn(ctx, l)
				if err != nil {
					return err
				}
				r.Millis = time.Since(start).Milliseconds()
				b.Observer.Done(r)
				mu.Lock()
				defer mu.Unlock()
				results[l.Descriptor.Digest] = r
				return nil
			})
		}
	}
	return results, g.Wait()
}

func (b *Batch) report(img image.Image, results map[digest.Digest]Layer) Image {
	r := Image{Manifest: img.Descriptor.Digest, Platform: img.Platform, Layers: []Layer{}}
	for _, l := range img.Layers {
		r.Layers = append(r.Layers, results[l.Descriptor.Digest])
	}
	return r
}

// discard is the observer of those who do not watch.
type discard struct{}

func (discard) Start(image.Layer)       {}
func (discard) Read(digest.Digest, int) {}
func (discard) Done(Layer)              {}

// Quiet returns an observer that does nothing.
func Quiet() Observer { return discard{} }
