package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	remoteerrors "github.com/containerd/containerd/v2/core/remotes/errors"
)

const (
	// maxTries bounds the tries at one host; maxAuth those of them that answer
	// a challenge: first without a token, then with one, then with a fresh one.
	maxTries = 3
	maxAuth  = 3
	// maxRedirects bounds how far a blob may be from the registry.
	maxRedirects = 5
	// maxPause bounds what a Retry-After makes us wait; beyond it the caller's
	// own retrying takes over.
	maxPause = 5 * time.Second
	minPause = 100 * time.Millisecond
	// maxDrain is read of an answer nobody wants, to keep its connection.
	maxDrain = 64 << 10
)

// request is something to get from a repository.
type request struct {
	op     string // for errors
	path   []string
	query  url.Values
	header http.Header
	need   docker.HostCapabilities
	// accept turns an answer into an error, nil to take it.
	accept func(*http.Response) error
}

// get asks one host after the other and returns the first answer accepted,
// its body under the stall deadline.
func (r *Repository) get(ctx context.Context, q request) (*http.Response, error) {
	hosts, err := r.endpoints(q.need)
	if err != nil {
		return nil, err
	}
	if len(hosts) == 0 {
		return nil, &Error{Op: q.op, Host: r.registry, Repository: r.name, Kind: ErrUnavailable,
			Cause: errors.New("hosts.toml names no host that may be asked")}
	}
	var errs []error
	for _, h := range hosts {
		resp, err := r.tryHost(ctx, h, q)
		if err == nil {
			r.client.pardon(h.Host)
			return resp, nil
		}
		if errors.Is(err, ErrTimeout) || errors.Is(err, ErrUnavailable) {
			r.client.penalize(h.Host)
		}
		errs = append(errs, err)
		if ctx.Err() != nil {
			break
		}
	}
	if len(errs) == 1 {
		return nil, errs[0]
	}
	return nil, joined(errs)
}

// joined keeps the kind of the last error, the origin's, and tells of the
// mirrors' too.
func joined(errs []error) error {
	last := errs[len(errs)-1]
	return fmt.Errorf("%w; before that: %w", last, errors.Join(errs[:len(errs)-1]...))
}

// tryHost asks one host, again if it is worth it.
func (r *Repository) tryHost(ctx context.Context, h docker.RegistryHost, q request) (*http.Response, error) {
	pause := minPause
	for try := 1; ; try++ {
		resp, err := r.authorized(ctx, h, q)
		r.client.cfg.Observe(h.Host, err)
		var e *Error
		if err == nil || !errors.As(err, &e) || try == maxTries || e.Permanent() || e.is(ErrTimeout, ErrResponse) {
			return resp, err
		}
		wait := max(pause, retryAfter(err))
		if wait > maxPause {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(wait):
		}
		pause *= 4
	}
}

// pauseError carries a Retry-After to tryHost.
type pauseError struct {
	error
	after time.Duration
}

func (p *pauseError) Unwrap() error { return p.error }

func retryAfter(err error) time.Duration {
	var p *pauseError
	if errors.As(err, &p) {
		return p.after
	}
	return 0
}

// authorized sends the request, answering challenges, and classifies what comes
// back.
func (r *Repository) authorized(ctx context.Context, h docker.RegistryHost, q request) (*http.Response, error) {
	fail := func(status int, kind, cause error) error {
		return &Error{Op: q.op, Host: h.Host, Repository: r.name, Status: status, Kind: kind, Cause: cause}
	}
	ctx = docker.ContextWithAppendPullRepositoryScope(ctx, r.name)
	var answers []*http.Response
	for auth := 1; ; auth++ {
		resp, err := r.follow(ctx, h, q)
		if err != nil {
			var e *Error
			if !errors.As(err, &e) {
				kind, cause := classify(ctx, err)
				return nil, fail(0, kind, cause)
			}
			e.Op, e.Repository = q.op, r.name
			return nil, err
		}
		if resp.StatusCode == http.StatusUnauthorized && auth < maxAuth {
			answers = append(answers, resp)
			drain(resp)
			if err := r.challenged(ctx, &h, answers); err != nil {
				return nil, fail(resp.StatusCode, ErrUnauthorized, err)
			}
			continue
		}
		err = q.accept(resp)
		if err == nil {
			return resp, nil
		}
		drain(resp)
		var e *Error
		if errors.As(err, &e) {
			e.Op, e.Host, e.Repository, e.Status = q.op, h.Host, r.name, resp.StatusCode
			if d := parseRetryAfter(resp.Header.Get("Retry-After"), time.Now()); d > 0 {
				err = &pauseError{err, d}
			}
		}
		return nil, err
	}
}

// challenged prepares the answer to a 401. The second in a row means that the
// token itself was refused: everything known about the registry is dropped and
// a new one asked for.
func (r *Repository) challenged(ctx context.Context, h *docker.RegistryHost, answers []*http.Response) error {
	last := answers[len(answers)-1]
	if len(answers) > 1 {
		fresh, err := r.renew(*h)
		if err != nil {
			return err
		}
		*h = fresh
		answers = []*http.Response{last}
	}
	if h.Authorizer == nil {
		return errors.New("no way to log in is configured")
	}
	return h.Authorizer.AddResponses(ctx, answers)
}

func (r *Repository) renew(h docker.RegistryHost) (docker.RegistryHost, error) {
	r.forget()
	hosts, err := r.endpoints(h.Capabilities)
	if err != nil {
		return h, err
	}
	for _, n := range hosts {
		if n.Host == h.Host {
			return n, nil
		}
	}
	return h, errors.New("the host was removed from hosts.toml")
}

// follow sends a request to a host and follows redirects, without credentials.
func (r *Repository) follow(ctx context.Context, h docker.RegistryHost, q request) (*http.Response, error) {
	u := &url.URL{Scheme: h.Scheme, Host: h.Host, Path: path.Join(append([]string{"/", h.Path, r.name}, q.path...)...)}
	query := url.Values{}
	for k, v := range q.query {
		query[k] = v
	}
	if h.Host != r.registry && (r.registry != "docker.io" || h.Host != "registry-1.docker.io") {
		query.Set("ns", r.registry)
	}
	u.RawQuery = query.Encode()
	resp, err := r.send(ctx, h, u, q.header, true)
	for hops := 0; err == nil && isRedirect(resp.StatusCode); hops++ {
		drain(resp)
		next, rerr := redirect(resp, hops)
		if rerr != nil {
			return nil, &Error{Host: h.Host, Status: resp.StatusCode, Kind: ErrResponse, Cause: rerr}
		}
		resp, err = r.send(ctx, h, next, q.header, next.Host == h.Host)
	}
	return resp, err
}

// redirect is where an answer points to, if going there is allowed.
func redirect(resp *http.Response, hops int) (*url.URL, error) {
	next, err := resp.Location()
	from := resp.Request.URL.Scheme
	switch {
	case err != nil:
		return nil, errors.New("redirect to nowhere")
	case hops == maxRedirects:
		return nil, errors.New("too many redirects")
	case next.Scheme != "https" && (next.Scheme != "http" || from != "http"):
		return nil, fmt.Errorf("redirect from %s to %.10q", from, next.Scheme)
	}
	return next, nil
}

func isRedirect(status int) bool {
	switch status {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		return true
	}
	return false
}

// send performs one exchange up to the headers of the answer.
func (r *Repository) send(ctx context.Context, h docker.RegistryHost, u *url.URL, header http.Header, own bool) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(r.client.cfg.HeaderTimeout, func() { cancel(errHeaders) })
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		cancel(nil)
		return nil, errors.New("build request: invalid URL")
	}
	if own {
		for k, v := range h.Header {
			req.Header[k] = v
		}
	}
	for k, v := range header {
		req.Header[k] = v
	}
	req.Header.Set("User-Agent", r.client.cfg.UserAgent)
	req.Header.Set("Accept-Encoding", "identity")
	if own && h.Authorizer != nil {
		if err := h.Authorizer.Authorize(ctx, req); err != nil {
			timer.Stop()
			r.forget()
			err = r.authFailure(ctx, h, err)
			cancel(nil)
			return nil, err
		}
	}
	client := *h.Client
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	resp, err := client.Do(req.WithContext(withOwnLimit(ctx)))
	if !timer.Stop() || err != nil {
		if err == nil {
			_ = resp.Body.Close()
			err = errHeaders
		}
		kind, cause := classify(ctx, err)
		cancel(nil)
		return nil, &Error{Host: u.Host, Kind: kind, Cause: cause}
	}
	resp.Body = newBody(ctx, cancel, resp.Body, r.client.cfg.StallTimeout)
	return resp, nil
}

// authFailure tells a token server that refuses from one that is away.
func (r *Repository) authFailure(ctx context.Context, h docker.RegistryHost, err error) error {
	kind, cause := classify(ctx, err)
	var status remoteerrors.ErrUnexpectedStatus
	if n := net.Error(nil); errors.As(err, &status) && status.StatusCode >= 500 {
		kind = ErrUnavailable
	} else if errors.Is(kind, ErrUnavailable) && !errors.As(err, &n) {
		kind = ErrUnauthorized // there was an answer
	}
	return &Error{Host: h.Host, Kind: kind, Cause: fmt.Errorf("get a token: %w", cause)}
}

func drain(resp *http.Response) {
	// What cannot be drained is closed, which is all that matters.
	_, _ = io.CopyN(io.Discard, resp.Body, maxDrain)
	_ = resp.Body.Close()
}

// parseRetryAfter reads the header's two forms; 0 if it has neither.
func parseRetryAfter(s string, now time.Time) time.Duration {
	s = strings.TrimSpace(s)
	if n, err := strconv.ParseUint(s, 10, 31); err == nil {
		return time.Duration(n) * time.Second
	}
	if t, err := http.ParseTime(s); err == nil {
		return max(0, t.Sub(now))
	}
	return 0
}
