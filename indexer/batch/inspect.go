package batch

import (
	"context"
	"errors"
	"fmt"

	"github.com/opencontainers/go-digest"

	"github.com/firstlight-dev/firstlight/indexer/image"
	"github.com/firstlight-dev/firstlight/indexer/index"
	"github.com/firstlight-dev/firstlight/indexer/referrer"
	"github.com/firstlight-dev/firstlight/indexer/scan"
)

// ErrVerify means that an index does not match its layer.
var ErrVerify = errors.New("verification found differences")

// List says which layers have an index, without reading the indexes.
func (b *Batch) List(ctx context.Context) ([]Image, error) {
	return b.visit(ctx, func(set *referrer.Set, l image.Layer, r *Layer) error {
		d, ok := set.Layer(l.Descriptor.Digest)
		if !ok {
			r.Refused = noIndex
			return nil
		}
		r.IndexSize = d.Size
		return nil
	})
}

// noIndex is the note on a layer without an index: pulled in full.
const noIndex = "no index"

// Inspect reads the indexes.
func (b *Batch) Inspect(ctx context.Context) ([]Image, error) {
	return b.visit(ctx, func(set *referrer.Set, l image.Layer, r *Layer) error {
		x, err := set.Load(ctx, b.Store, l.Descriptor.Digest)
		switch {
		case errors.Is(err, referrer.ErrNotFound):
			r.Refused = noIndex
			return nil
		case errors.Is(err, index.ErrInvalid), errors.Is(err, referrer.ErrContent):
			r.Problem = err.Error()
			return nil
		case err != nil:
			return err
		}
		d, _ := set.Layer(l.Descriptor.Digest)
		r.TarSize, r.Entries, r.Chunks, r.IndexSize = x.Size, x.NumEntries(), len(x.Chunks), d.Size
		return nil
	})
}

// visit goes through the layers of all images that have an index. The error is
// ErrNotFound if none has.
func (b *Batch) visit(ctx context.Context, fn func(*referrer.Set, image.Layer, *Layer) error) ([]Image, error) {
	var images []Image
	var missing error
	for _, img := range b.Images {
		set, err := referrer.Find(ctx, b.Store, img.Descriptor.Digest)
		if errors.Is(err, referrer.ErrNotFound) {
			missing = err
			continue
		}
		if err != nil {
			return nil, err
		}
		r := Image{Manifest: img.Descriptor.Digest, Platform: img.Platform, Layers: []Layer{}}
		for i, d := range set.Artifacts {
			if i == 0 {
				r.Artifact = d.Digest
			} else {
				r.Warnings = append(r.Warnings, fmt.Sprintf("another artifact: %s", d.Digest))
			}
		}
		for _, l := range img.Layers {
			row := Layer{Digest: l.Descriptor.Digest, Size: l.Descriptor.Size}
			if err := fn(set, l, &row); err != nil {
				return nil, err
			}
			r.Layers = append(r.Layers, row)
		}
		images = append(images, r)
	}
	if len(images) == 0 {
		return nil, missing
	}
	return images, nil
}

// Verify proves every published index against its layer, which it reads
// completely. The error is ErrVerify if one does not match; the images say which.
func (b *Batch) Verify(ctx context.Context) ([]Image, error) {
	sets := make([]*referrer.Set, len(b.Images)) // nil: no index
	found := false
	for i, img := range b.Images {
		set, err := referrer.Find(ctx, b.Store, img.Descriptor.Digest)
		if err != nil && !errors.Is(err, referrer.ErrNotFound) {
			return nil, err
		}
		found = found || set != nil
		sets[i] = set
	}
	if !found {
		return nil, fmt.Errorf("no index: %w", referrer.ErrNotFound)
	}
	results, err := b.each(ctx, func(ctx context.Context, l image.Layer) (Layer, error) {
		r := Layer{Digest: l.Descriptor.Digest, Size: l.Descriptor.Size, Refused: noIndex}
		done := make(map[digest.Digest]bool) // images share indexes
		for _, set := range sets {
			if set == nil {
				continue
			}
			d, ok := set.Layer(l.Descriptor.Digest)
			if !ok || done[d.Digest] {
				continue
			}
			done[d.Digest] = true
			var err error
			if r, err = b.verify(ctx, set, l, d.Size); err != nil || r.Problem != "" {
				return r, err
			}
		}
		return r, nil
	})
	if err != nil {
		return nil, err
	}
	var images []Image
	bad := false
	for i, img := range b.Images {
		set := sets[i]
		if set == nil {
			continue
		}
		r := b.report(img, results)
		if len(set.Artifacts) > 0 {
			r.Artifact = set.Artifacts[0].Digest
		}
		for _, l := range r.Layers {
			bad = bad || l.Problem != ""
		}
		images = append(images, r)
	}
	if bad {
		return images, ErrVerify
	}
	return images, nil
}

// verify tells differences, which the layer's row reports, from failures to read.
func (b *Batch) verify(ctx context.Context, set *referrer.Set, l image.Layer, size int64) (Layer, error) {
	r := Layer{Digest: l.Descriptor.Digest, Size: l.Descriptor.Size, IndexSize: size}
	x, err := set.Load(ctx, b.Store, l.Descriptor.Digest)
	if err == nil {
		r.TarSize, r.Entries, r.Chunks = x.Size, x.NumEntries(), len(x.Chunks)
		err = b.open(ctx, l, func(in scan.Layer) error { return scan.Verify(ctx, in, x) })
	}
	for _, e := range []error{index.ErrInvalid, index.ErrMismatch, index.ErrUnsupported, scan.ErrMismatch, referrer.ErrContent} {
		if errors.Is(err, e) {
			r.Problem = err.Error()
			return r, nil
		}
	}
	if err != nil {
		return r, fmt.Errorf("verify layer %s: %w", l.Descriptor.Digest, err)
	}
	return r, nil
}
