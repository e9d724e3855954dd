package daemon

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"

	"github.com/firstlight-dev/firstlight/snapshotter/internal/cache"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/layers"
	"github.com/firstlight-dev/firstlight/snapshotter/nodeapi"
)

const (
	// warmLayers are completed at a time for one order; readers go before them.
	warmLayers = 2
	// reportEvery is how often an order tells how far it is.
	reportEvery = 200 * time.Millisecond
)

// Evict takes cached bytes away, of every layer that the request names.
func (a *api) Evict(ctx context.Context, req nodeapi.EvictRequest) (nodeapi.Evicted, error) {
	images, err := a.Images(ctx)
	if err != nil {
		return nodeapi.Evicted{}, err
	}
	chosen, err := choose(images, req)
	if err != nil {
		return nodeapi.Evicted{}, err
	}
	out := nodeapi.Evicted{Layers: []nodeapi.EvictedLayer{}}
	for _, l := range chosen {
		if ctx.Err() != nil {
			return out, ctx.Err()
		}
		done, err := a.evict(l)
		if err != nil {
			return out, err
		}
		out.Layers = append(out.Layers, done)
		out.FreedBytes += done.FreedBytes
	}
	return out, nil
}

func (a *api) evict(l nodeapi.Layer) (nodeapi.EvictedLayer, error) {
	out := nodeapi.EvictedLayer{Digest: l.Digest}
	if l.State == nodeapi.StateLocal {
		out.Kept = "it was unpacked, not cached; it goes with its image"
		return out, nil
	}
	freed, err := a.layers.Evict(digest.Digest(l.Digest))
	out.FreedBytes = freed
	switch {
	case errors.Is(err, cache.ErrHeld):
		out.Kept = "it is complete and the kernel reads it by itself; it goes with its image"
		return out, nil
	case errors.Is(err, layers.ErrNotOpen):
		out.Kept = "nothing of it is open"
		return out, nil
	}
	return out, err
}

// choose finds the layers that a request names, each once.
func choose(images []nodeapi.Image, req nodeapi.EvictRequest) ([]nodeapi.Layer, error) {
	var chosen []nodeapi.Layer
	seen := map[string]bool{}
	known := false
	for _, im := range images {
		whole := req.All || req.Image != "" && isNamed(im, req.Image)
		known = known || whole
		for _, l := range im.Layers {
			if (whole || req.Layer != "" && l.Digest == req.Layer) && !seen[l.Digest] {
				seen[l.Digest] = true
				chosen = append(chosen, l)
			}
		}
	}
	switch {
	case req.All, known, len(chosen) > 0:
		return chosen, nil
	case req.Image != "":
		return nil, fmt.Errorf("image %q: %w; see firstlight node images", req.Image, nodeapi.ErrNotFound)
	case req.Layer != "":
		return nil, fmt.Errorf("layer %q: %w; see firstlight node images -o json", req.Layer, nodeapi.ErrNotFound)
	}
	return nil, errors.New("neither image nor layer nor all is named")
}

func isNamed(im nodeapi.Image, name string) bool { return im.Ref == name || im.Manifest == name }

// Warm completes the layers of an image.
func (a *api) Warm(ctx context.Context, req nodeapi.WarmRequest, report func(nodeapi.Progress)) error {
	chosen, err := a.lazyLayers(ctx, req.Image)
	if err != nil {
		return err
	}
	start, err := a.progress(ctx, req.Image, 0)
	if err != nil {
		return err
	}
	already := start.BytesFetched
	start.BytesFetched = 0
	report(start)
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(warmLayers)
	done := make(chan error, 1)
	go func() {
		for _, d := range chosen {
			group.Go(func() error { return a.layers.Complete(gctx, d) })
		}
		done <- group.Wait()
	}()
	t := time.NewTicker(reportEvery)
	defer t.Stop()
	for {
		select {
		case err := <-done:
			p, perr := a.progress(context.WithoutCancel(ctx), req.Image, already)
			if perr == nil {
				report(p)
			}
			return explain(err)
		case <-t.C:
			if p, err := a.progress(ctx, req.Image, already); err == nil {
				report(p)
			}
		}
	}
}

func explain(err error) error {
	if errors.Is(err, cache.ErrFull) {
		return fmt.Errorf("%w (raise cache.max_bytes, lower cache.min_free, or make room: firstlight node evict)", err)
	}
	return err
}

// find returns the image that a name stands for, the last prepared of several.
func (a *api) find(ctx context.Context, name string) (found nodeapi.Image, err error) {
	images, err := a.Images(ctx)
	if err != nil {
		return found, err
	}
	ok := false
	for _, im := range images {
		if isNamed(im, name) && (!ok || im.PreparedAt.After(found.PreparedAt)) {
			found, ok = im, true
		}
	}
	if !ok {
		return found, fmt.Errorf("image %q: %w; see firstlight node images", name, nodeapi.ErrNotFound)
	}
	return found, nil
}

// lazyLayers are the layers of an image that can be incomplete, each once.
func (a *api) lazyLayers(ctx context.Context, name string) ([]digest.Digest, error) {
	im, err := a.find(ctx, name)
	if err != nil {
		return nil, err
	}
	var ds []digest.Digest
	seen := map[string]bool{}
	for _, l := range im.Layers {
		if l.State == nodeapi.StateQuarantined {
			return nil, fmt.Errorf("layer %s is quarantined: its index does not tell the truth", l.Digest)
		}
		if l.State != nodeapi.StateLocal && !seen[l.Digest] {
			seen[l.Digest] = true
			ds = append(ds, digest.Digest(l.Digest))
		}
	}
	return ds, nil
}

// progress is how far an image is, of which so many bytes were there before.
func (a *api) progress(ctx context.Context, name string, already int64) (nodeapi.Progress, error) {
	im, err := a.find(ctx, name)
	if err != nil {
		return nodeapi.Progress{}, err
	}
	sum := im.Totals()
	p := nodeapi.Progress{
		Image: im.Ref, Layers: len(im.Layers), Chunks: sum.Chunks, ChunksPresent: sum.ChunksPresent,
		BytesFetched: sum.BytesFetched - already,
	}
	for _, l := range im.Layers {
		if l.State == nodeapi.StateComplete || l.State == nodeapi.StateLocal {
			p.LayersDone++
		}
	}
	return p, nil
}
