package lazy

import (
	"context"
	"fmt"

	"github.com/firstlight-dev/firstlight/indexer/index"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/cache"
)

// Index says how the layer is cut.
func (l *Layer) Index() *index.Index { return l.ix }

// Present reports whether a chunk is there.
func (l *Layer) Present(chunk int) bool { return l.cache.Complete() || l.cache.Has(chunk) }

// Prefetch fetches the missing chunks of [first, last] for the replay of a
// profile and returns when they have settled. It does not try again: a reader
// will. The caller bounds how many are under way.
func (l *Layer) Prefetch(ctx context.Context, first, last int) error {
	if first < 0 || last < first || last >= len(l.ix.Chunks) {
		return fmt.Errorf("prefetch layer %s: no chunks %d to %d", l.ix.Layer, first, last)
	}
	if l.cache.Complete() {
		return nil
	}
	if !l.cache.Room(l.missing(first, last)) {
		return fmt.Errorf("prefetch layer %s: %w", l.ix.Layer, cache.ErrFull)
	}
	l.markReplayed(first, last)
	if err := await(ctx, l.want(ctx, first, last, replay)); err != nil {
		return fmt.Errorf("prefetch layer %s: %w", l.ix.Layer, err)
	}
	return nil
}

func (l *Layer) markReplayed(first, last int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.replayed == nil {
		l.replayed = make([]uint64, (len(l.ix.Chunks)+63)/64)
	}
	for i := first; i <= last; i++ {
		l.replayed[i/64] |= 1 << (i % 64)
	}
}

// isReplayed reports whether a profile asked for the chunk. The caller holds
// l.mu.
func (l *Layer) isReplayed(chunk int) bool {
	return len(l.replayed) > 0 && l.replayed[chunk/64]&(1<<(chunk%64)) != 0
}
