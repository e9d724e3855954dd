package batch

import (
	"context"
	"errors"
	"fmt"

	"github.com/opencontainers/go-digest"

	"github.com/firstlight-dev/firstlight/indexer/image"
	"github.com/firstlight-dev/firstlight/indexer/referrer"
)

// Copy publishes the indexes that another store has of these images. The images
// must be the same there, digest by digest, as after a copy between registries;
// their tags need not be. The error is ErrNotFound if the other store has no
// index of any of them.
//
// Indexes that are here already and not there stay. Each is decoded on its way:
// what is no index of its layer is not copied.
func (b *Batch) Copy(ctx context.Context, from referrer.Fetcher) ([]Image, error) {
	var images []Image
	for _, img := range b.Images {
		r, err := b.copyOne(ctx, from, img)
		if errors.Is(err, referrer.ErrNotFound) {
			continue
		}
		if err != nil {
			return images, fmt.Errorf("copy indexes of %s: %w", img.Descriptor.Digest, err)
		}
		images = append(images, r)
	}
	if len(images) == 0 {
		return nil, fmt.Errorf("no index where they should come from: %w", referrer.ErrNotFound)
	}
	return images, nil
}

func (b *Batch) copyOne(ctx context.Context, from referrer.Fetcher, img image.Image) (Image, error) {
	theirs, err := referrer.Find(ctx, from, img.Descriptor.Digest)
	if err != nil {
		return Image{}, err
	}
	ours, err := referrer.Find(ctx, b.Store, img.Descriptor.Digest)
	if err != nil && !errors.Is(err, referrer.ErrNotFound) {
		return Image{}, err
	}
	encoded := make(map[digest.Digest][]byte)
	results := make(map[digest.Digest]Layer)
	for _, l := range img.Layers {
		row, raw, err := b.copyLayer(ctx, from, theirs, ours, l)
		if err != nil {
			return Image{}, err
		}
		if raw != nil {
			encoded[l.Descriptor.Digest] = raw
		}
		results[l.Descriptor.Digest] = row
	}
	r := b.report(img, results)
	return r, b.publish(ctx, img, encoded, ours, &r)
}

// copyLayer reads a layer's index from there, or else from here.
func (b *Batch) copyLayer(ctx context.Context, from referrer.Fetcher, theirs, ours *referrer.Set, l image.Layer) (Layer, []byte, error) {
	r := Layer{Digest: l.Descriptor.Digest, Size: l.Descriptor.Size}
	x, err := theirs.Load(ctx, from, l.Descriptor.Digest)
	if errors.Is(err, referrer.ErrNotFound) && ours != nil {
		x, err = ours.Load(ctx, b.Store, l.Descriptor.Digest)
		r.Reused = true
	}
	if errors.Is(err, referrer.ErrNotFound) {
		r.Reused, r.Refused = false, noIndex
		return r, nil, nil
	}
	if err != nil {
		return r, nil, err
	}
	if x.DiffID != l.DiffID || x.CompressedSize != l.Descriptor.Size {
		return r, nil, fmt.Errorf("%w: index of layer %s is of other content", referrer.ErrContent, l.Descriptor.Digest)
	}
	raw, err := x.Encode()
	if err != nil {
		return r, nil, fmt.Errorf("encode index of layer %s: %w", l.Descriptor.Digest, err)
	}
	r.fill(x, raw)
	return r, raw, nil
}
