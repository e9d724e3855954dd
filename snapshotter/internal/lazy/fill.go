package lazy

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"

	"github.com/firstlight-dev/firstlight/snapshotter/internal/cache"
)

// Fill fetches in the background what is missing, until the layer is complete
// and was checked as a whole, or the context ends. Other trouble makes it try
// again a few times, but for causes that waiting does not cure: a caller that
// fills many layers goes on with another one then. cache.ErrFull says that the
// rest would push out what readers use. A layer whose whole is wrong is
// quarantined and ErrMismatch returned.
func (l *Layer) Fill(ctx context.Context) error {
	pause := retryMin
	for tries := 0; !l.cache.Complete(); tries++ {
		before, begun := l.cache.Present(), time.Now()
		err := l.fillOnce(ctx)
		if err == nil {
			err = l.check(ctx)
		}
		if l.cache.Present() > before {
			tries = 0
		}
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("fill layer %s: %w", l.ix.Layer, ctx.Err())
		case isPermanent(err), errors.Is(err, ErrMismatch), errors.Is(err, cache.ErrFull), tries == fillTries || time.Since(begun) > fillPatience:
			return fmt.Errorf("fill layer %s: %w", l.ix.Layer, err)
		}
		l.log.Warn("fill layer, trying again", "layer", l.ix.Layer.String(), "error", err)
		select {
		case <-ctx.Done():
			return fmt.Errorf("fill layer %s: %w", l.ix.Layer, ctx.Err())
		case <-time.After(pause):
		}
		pause = min(2*pause, retryMax)
	}
	return nil
}

const (
	// fillTries is how many times in a row the background tries again without a
	// chunk to show for it, and
	fillTries = 4
	// fillPatience how long a try that fails may take to be worth another at once:
	// a registry that lets requests hang has one.
	fillPatience = 10 * time.Second
)

// missing is the size of the chunks from first to last that are not there.
func (l *Layer) missing(first, last int) (n int64) {
	for i := first; i <= last; i++ {
		if !l.cache.Has(i) {
			n += l.ix.Chunks[i].Size
		}
	}
	return n
}

// fillOnce goes over the layer once, a few requests at a time.
func (l *Layer) fillOnce(ctx context.Context) error {
	if n := l.missing(0, len(l.ix.Chunks)-1); !l.cache.Room(n) {
		return fmt.Errorf("%d bytes are missing: %w", n, cache.ErrFull)
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(fillRequests)
	for i := 0; i < len(l.ix.Chunks); {
		if l.cache.Has(i) {
			i++
			continue
		}
		if l.gate.wait(gctx, nil, background) != nil {
			break
		}
		first, last := i, l.fillEnd(i)
		if !l.cache.Room(l.missing(first, last)) { // it filled up meanwhile
			return errors.Join(cache.ErrFull, g.Wait())
		}
		g.Go(func() error { return await(gctx, l.want(gctx, first, last, background)) })
		i = last + 1
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return ctx.Err()
}

// fillEnd is the last chunk of what one background request may fetch from
// first on.
func (l *Layer) fillEnd(first int) int {
	last := first
	for end := l.ix.Chunks[first].CompressedOffset + fillRun; last+1 < len(l.ix.Chunks); last++ {
		if c := &l.ix.Chunks[last+1]; c.CompressedOffset+c.CompressedSize > end {
			break
		}
	}
	return last
}

// await returns when every chunk has settled, with the first error.
func await(ctx context.Context, waits []*pending) error {
	for _, w := range waits {
		if w == nil {
			continue
		}
		select {
		case <-w.done:
		case <-ctx.Done():
			return ctx.Err()
		}
		if w.err != nil {
			return w.err
		}
	}
	return nil
}

// check compares the whole layer with the diffID that the image names, and
// makes the outcome durable. The bytes are those a reader gets, so this proves
// what was served, index included: a chunk digest that lied would show here.
func (l *Layer) check(ctx context.Context) error {
	h := sha256.New()
	buf := make([]byte, checkBuffer)
	for off := int64(0); off < l.ix.Size; {
		if err := l.gate.wait(ctx, nil, background); err != nil {
			return err
		}
		n := min(int64(len(buf)), l.ix.Size-off)
		if _, err := l.cache.PeekAt(buf[:n], off); err != nil {
			return err
		}
		h.Write(buf[:n])
		off += n
	}
	if got := digest.NewDigest(digest.SHA256, h); got != l.ix.DiffID {
		err := fmt.Errorf("%w: tar stream is %s, the index says %s", ErrMismatch, got, l.ix.DiffID)
		return errors.Join(err, l.cache.Quarantine())
	}
	err := l.checkHeaders()
	switch {
	case err == nil:
		return l.cache.MarkComplete()
	case errors.Is(err, ErrMismatch):
		return errors.Join(err, l.cache.Quarantine())
	}
	return err
}

// checkHeaders compares the headers that the index brought, from which the
// layer's tree was made, with those in the stream: content can be right while
// names and modes were not.
func (l *Layer) checkHeaders() error {
	var buf []byte
	return l.ix.WalkHeaders(func(off int64, p []byte) error {
		buf = append(buf[:0], p...)
		if _, err := l.cache.PeekAt(buf, off); err != nil {
			return err
		}
		if !bytes.Equal(buf, p) {
			return fmt.Errorf("%w: the index has other headers at %d", ErrMismatch, off)
		}
		return nil
	})
}

const checkBuffer = 1 << 20
