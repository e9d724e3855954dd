package registry

import (
	"context"
	"errors"
	"io"
	"time"
)

// minRate is what a body must come at, in bytes a second: a host that sends a byte
// now and then is as good as silent, but would occupy whoever waits for it.
const minRate = 1 << 10

// body is a response body whose every read has a deadline, and all of them together:
// the stall deadline and what the bytes so far take at minRate. Time in which nobody reads does
// not count. Cancelling the request's context is what ends a read that hangs.
type body struct {
	ctx    context.Context //nolint:containedctx // of this one response, to tell why it ended
	cancel context.CancelCauseFunc
	rc     io.ReadCloser
	stall  time.Duration
	timer  *time.Timer
	waited time.Duration // in Read
	got    int64
}

func newBody(ctx context.Context, cancel context.CancelCauseFunc, rc io.ReadCloser, stall time.Duration) *body {
	t := time.AfterFunc(stall, func() { cancel(errStall) })
	t.Stop()
	return &body{ctx: ctx, cancel: cancel, rc: rc, stall: stall, timer: t}
}

func (b *body) Read(p []byte) (int, error) {
	start := time.Now()
	b.timer.Reset(b.stall)
	n, err := b.rc.Read(p)
	b.timer.Stop()
	b.waited += time.Since(start)
	b.got += int64(n)
	if b.waited > b.stall+time.Duration(b.got)*(time.Second/minRate) {
		b.cancel(errStall) // the next read fails
	}
	if err != nil && !errors.Is(err, io.EOF) {
		if c := context.Cause(b.ctx); c != nil {
			err = c
		}
	}
	return n, err
}

func (b *body) Close() error {
	b.timer.Stop()
	b.cancel(nil)
	return b.rc.Close()
}

// exact reads exactly n bytes and explains it when they do not come.
type exact struct {
	rc   io.ReadCloser
	n    int64
	fail func(kind, cause error) error
}

func (e *exact) Read(p []byte) (int, error) {
	if e.n == 0 {
		return 0, io.EOF
	}
	if int64(len(p)) > e.n {
		p = p[:e.n]
	}
	n, err := e.rc.Read(p)
	e.n -= int64(n)
	switch {
	case err == nil, e.n == 0 && errors.Is(err, io.EOF):
		return n, nil
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return n, e.fail(ErrUnavailable, io.ErrUnexpectedEOF)
	case errors.Is(err, errStall):
		return n, e.fail(ErrTimeout, err)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return n, err
	}
	return n, e.fail(ErrUnavailable, err)
}

func (e *exact) Close() error { return e.rc.Close() }
