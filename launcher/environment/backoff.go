package environment

import (
	"context"
	"time"
)

// backoff waits longer each time, up to a cap.
type backoff struct{ next, limit time.Duration }

func newBackoff(first, limit time.Duration) *backoff { return &backoff{next: first, limit: limit} }

// wait returns the context's error if that ends first.
func (b *backoff) wait(ctx context.Context) error {
	timer := time.NewTimer(b.next)
	defer timer.Stop()
	b.next = min(b.next*3/2, b.limit)
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
