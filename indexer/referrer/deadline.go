package referrer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"
)

// idleTimeout bounds the wait for more of an answer, and for the registry to take
// more of what it is sent.
const idleTimeout = time.Minute

// errIdle is the reason an exchange was given up.
var errIdle = fmt.Errorf("the registry stood still for %s", idleTimeout)

// deadlines gives up exchanges that stand still: manifests, lists, tokens and
// uploads as well as blobs.
type deadlines struct {
	base http.RoundTripper
	idle time.Duration
}

var _ http.RoundTripper = (*deadlines)(nil)

// RoundTrip implements http.RoundTripper.
func (d *deadlines) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	timer := time.AfterFunc(d.idle, func() { cancel(errIdle) })
	req = req.Clone(ctx)
	var answered atomic.Bool // early, when some of the body is still to be sent
	if req.Body != nil && req.Body != http.NoBody {
		req.Body = &sentBody{req.Body, func() {
			if !answered.Load() {
				timer.Reset(d.idle)
			}
		}}
	}
	resp, err := d.base.RoundTrip(req)
	answered.Store(true)
	timer.Stop()
	if err != nil {
		err = given(ctx, err)
		cancel(nil)
		return nil, err
	}
	resp.Body = &idleBody{rc: resp.Body, ctx: ctx, cancel: cancel, timer: timer, idle: d.idle}
	return resp, nil
}

// given tells an exchange that was given up from one that failed.
func given(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); errors.Is(cause, errIdle) {
		return cause
	}
	return err
}

// sentBody is a request's body: each read of it shows that the registry took more.
type sentBody struct {
	io.ReadCloser
	moved func()
}

func (b *sentBody) Read(p []byte) (int, error) {
	b.moved()
	return b.ReadCloser.Read(p)
}

// idleBody is an answer's body, each read of which has a deadline.
type idleBody struct {
	rc     io.ReadCloser
	ctx    context.Context //nolint:containedctx // its cause is the error to report
	cancel context.CancelCauseFunc
	timer  *time.Timer
	idle   time.Duration
}

func (b *idleBody) Read(p []byte) (int, error) {
	b.timer.Reset(b.idle)
	n, err := b.rc.Read(p)
	b.timer.Stop()
	if err != nil && !errors.Is(err, io.EOF) {
		err = given(b.ctx, err)
	}
	return n, err
}

func (b *idleBody) Close() error {
	b.timer.Stop()
	err := b.rc.Close()
	b.cancel(nil)
	return err
}
