package registry

import (
	"context"
	"errors"
	"io"
	"time"
)

// body is a response body whose every read has a deadline. Cancelling the
// request's context is what ends a read that hangs.
type body struct {
	ctx    context.Context //nolint:containedctx // of this one response, to tell why it ended
	cancel context.CancelCauseFunc
	rc     io.ReadCloser
	stall  time.Duration
	timer  *time.Timer
}

func newBody(ctx context.Context, cancel context.CancelCauseFunc, rc io.ReadCloser, stall time.Duration) *body {
	t := time.AfterFunc(stall, func() { cancel(errStall) })
	t.Stop()
	return &body{ctx: ctx, cancel: cancel, rc: rc, stall: stall, timer: t}
}

func (b *body) Read(p []byte) (int, error) {
	b.timer.Reset(b.stall)
	n, err := b.rc.Read(p)
	b.timer.Stop()
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
