package registry

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
)

// The kinds of failure. ErrNotFound and the like are those of errdefs, so that
// packages that know nothing of registries can tell them.
var (
	// ErrNoRanges: the registry answers a range request with the whole blob.
	// The layer has to be pulled in full.
	ErrNoRanges = errors.New("registry does not serve ranges")
	// ErrResponse: an answer that does not fit the request.
	ErrResponse = errors.New("unusable answer")
	// ErrTimeout: no answer within the deadline.
	ErrTimeout = errors.New("no answer in time")

	ErrUnauthorized error = errdefs.ErrUnauthenticated
	ErrForbidden    error = errdefs.ErrPermissionDenied
	ErrNotFound     error = errdefs.ErrNotFound
	ErrRange        error = errdefs.ErrOutOfRange
	ErrThrottled    error = errdefs.ErrResourceExhausted
	ErrUnavailable  error = errdefs.ErrUnavailable
)

// Error is a request that failed.
type Error struct {
	Op         string // what was asked for: "layer sha256:…", "manifest v1", …
	Host       string // that was asked last
	Repository string
	Status     int // of the answer, 0 if there was none
	Kind       error
	Cause      error // may be nil
}

func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "fetch %s of %s from %s: ", e.Op, e.Repository, e.Host)
	if e.Status != 0 {
		fmt.Fprintf(&b, "status %d: ", e.Status)
	}
	b.WriteString(e.Kind.Error())
	if e.Cause != nil {
		fmt.Fprintf(&b, ": %v", e.Cause)
	}
	if h := hint(e.Kind); h != "" {
		fmt.Fprintf(&b, " (%s)", h)
	}
	return b.String()
}

// Unwrap gives the kind and the cause.
func (e *Error) Unwrap() []error {
	if e.Cause == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Cause}
}

// is says whether the error is of one of the kinds.
func (e *Error) is(kinds ...error) bool {
	return slices.ContainsFunc(kinds, func(k error) bool { return errors.Is(e.Kind, k) })
}

// Permanent says that asking again soon will not help.
func (e *Error) Permanent() bool {
	return e.is(ErrNoRanges, ErrForbidden, ErrNotFound, ErrRange, ErrUnauthorized)
}

// hint says what to do about a kind of failure.
func hint(kind error) string {
	for _, h := range []struct {
		kind error
		text string
	}{
		{ErrNoRanges, "the layer must be pulled in full; use a registry or mirror with range support for lazy starts"},
		{ErrUnauthorized, "check this host's credentials in the snapshotter's docker config, or point kubelet's imageServiceEndpoint at its image_address"},
		{ErrForbidden, "the credentials lack pull permission for this repository"},
		{ErrNotFound, "it was deleted from the registry, or the name is wrong"},
		{ErrRange, "the blob there is shorter than the manifest says; push the image again"},
		{ErrThrottled, "the registry limits requests; it is asked again later"},
		{ErrUnavailable, "check that the registry is up and this node can reach it"},
		{ErrTimeout, "check that the registry is up and this node can reach it"},
		{ErrResponse, "something between this node and the registry changes its answers"},
	} {
		if errors.Is(kind, h.kind) {
			return h.text
		}
	}
	return ""
}

// kindOf classifies a status that is no success.
func kindOf(status int) error {
	switch {
	case status == http.StatusUnauthorized:
		return ErrUnauthorized
	case status == http.StatusForbidden:
		return ErrForbidden
	case status == http.StatusNotFound, status == http.StatusGone:
		return ErrNotFound
	case status == http.StatusRequestedRangeNotSatisfiable:
		return ErrRange
	case status == http.StatusTooManyRequests:
		return ErrThrottled
	case status == http.StatusRequestTimeout:
		return ErrTimeout
	case status >= 500:
		return ErrUnavailable
	}
	return ErrResponse
}

// errHeaders and errStall are the causes by which our own deadlines cancel.
var (
	errHeaders = errors.New("headers did not come")
	errStall   = errors.New("body stopped coming")
)

// classify turns the error of a transport into kind and printable cause.
func classify(ctx context.Context, err error) (kind, cause error) {
	if c := context.Cause(ctx); errors.Is(c, errHeaders) || errors.Is(c, errStall) {
		return ErrTimeout, c
	}
	if e := ctx.Err(); e != nil {
		return ErrTimeout, e
	}
	// A url.Error quotes the URL.
	if u := (*url.Error)(nil); errors.As(err, &u) {
		err = u.Err
	}
	if n := net.Error(nil); errors.As(err, &n) && n.Timeout() {
		return ErrTimeout, err
	}
	return ErrUnavailable, err
}

// Result names in a word how a request ended, for counting.
func Result(err error) string {
	if err == nil {
		return "ok"
	}
	for _, r := range []struct {
		kind error
		name string
	}{
		{ErrUnauthorized, "unauthorized"}, {ErrForbidden, "forbidden"}, {ErrNotFound, "not_found"}, {ErrRange, "range"}, {ErrNoRanges, "no_ranges"},
		{ErrThrottled, "throttled"}, {ErrUnavailable, "unavailable"}, {ErrTimeout, "timeout"}, {ErrResponse, "bad_answer"},
	} {
		if errors.Is(err, r.kind) {
			return r.name
		}
	}
	return "other"
}
