package registry

import (
	"context"
	"io"
	"net/http"
)

// maxToken bounds the answer of a token server; tokens have some kilobytes.
const maxToken = 1 << 20

// tokenLimit cuts off the answers to containerd's authorizer, which keeps them in
// memory whatever their size. Requests of our own bound what they read themselves, and
// say so by a context from withOwnLimit.
type tokenLimit struct{ http.RoundTripper }

type ownLimit struct{}

func withOwnLimit(ctx context.Context) context.Context {
	return context.WithValue(ctx, ownLimit{}, true)
}

// RoundTrip implements http.RoundTripper.
func (l tokenLimit) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := l.RoundTripper.RoundTrip(req)
	if err != nil || req.Context().Value(ownLimit{}) != nil {
		return resp, err
	}
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.LimitReader(resp.Body, maxToken), resp.Body}
	return resp, nil
}
