// Package client speaks the launcher's API. It is what the command line uses,
// on the same types as the server.
//
// Every POST carries an idempotency key and is repeated when the connection
// breaks, so a request is served once even if its first answer was lost.
// Problems come back as *api.Problem.
package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/firstlight-dev/firstlight/launcher/api"
	"github.com/firstlight-dev/firstlight/launcher/cluster"
	"github.com/firstlight-dev/firstlight/launcher/spec"
	"github.com/firstlight-dev/firstlight/launcher/store"
	"github.com/firstlight-dev/firstlight/launcher/timeline"
	"github.com/firstlight-dev/firstlight/launcher/tunnel"
)

const (
	// requestTimeout bounds requests that are not streams.
	requestTimeout = time.Minute
	// attempts is how often a request is sent when the connection breaks.
	attempts = 3
	// maxAnswer bounds an answer; a page of 500 environments is well below.
	maxAnswer = 64 << 20
	// maxEvent bounds one event of a stream.
	maxEvent = 4 << 20
)

// Client speaks to one launcher. It is safe for concurrent use.
type Client struct {
	base  *url.URL
	token string
	http  *http.Client
}

// New returns a client of the launcher at the given URL. The token may be
// empty.
func New(server, token string) (*Client, error) {
	base, err := url.Parse(server)
	if err != nil || base.Host == "" || (base.Scheme != "http" && base.Scheme != "https") {
		return nil, fmt.Errorf("server %q is not an http or https URL", server)
	}
	return &Client{base: base, token: token, http: &http.Client{}}, nil
}

// PushSpec stores a spec.
func (c *Client) PushSpec(ctx context.Context, s *spec.Spec) (*store.Revision, error) {
	return call[store.Revision](ctx, c, http.MethodPost, "/v1/specs", s)
}

// Specs lists the newest revision of every spec.
func (c *Client) Specs(ctx context.Context) ([]store.Revision, error) {
	all, err := call[api.Specs](ctx, c, http.MethodGet, "/v1/specs", nil)
	if err != nil {
		return nil, err
	}
	return all.Items, nil
}

// Spec returns one revision.
func (c *Client) Spec(ctx context.Context, ref spec.Ref) (*store.Revision, error) {
	path := "/v1/specs/" + url.PathEscape(ref.Name)
	if ref.Revision > 0 {
		path += "/revisions/" + strconv.Itoa(ref.Revision)
	}
	return call[store.Revision](ctx, c, http.MethodGet, path, nil)
}

// Create asks for an environment.
func (c *Client) Create(ctx context.Context, req *api.CreateEnvironment) (*api.Environment, error) {
	return call[api.Environment](ctx, c, http.MethodPost, "/v1/environments", req)
}

// Environments lists all environments.
func (c *Client) Environments(ctx context.Context) ([]api.Environment, error) {
	var all []api.Environment
	cursor := ""
	for {
		page, err := call[api.Environments](ctx, c, http.MethodGet, "/v1/environments?limit=500&cursor="+url.QueryEscape(cursor), nil)
		if err != nil {
			return nil, err
		}
		all = append(all, page.Items...)
		if page.NextCursor == "" {
			return all, nil
		}
		cursor = page.NextCursor
	}
}

// Environment returns one environment.
func (c *Client) Environment(ctx context.Context, env string) (*api.Environment, error) {
	return call[api.Environment](ctx, c, http.MethodGet, path(env, ""), nil)
}

// Delete stops and forgets an environment.
func (c *Client) Delete(ctx context.Context, env string) (*api.Environment, error) {
	return call[api.Environment](ctx, c, http.MethodDelete, path(env, ""), nil)
}

// Timeline returns the waterfall of an environment's start.
func (c *Client) Timeline(ctx context.Context, env string) (*timeline.Timeline, error) {
	return call[timeline.Timeline](ctx, c, http.MethodGet, path(env, "/timeline"), nil)
}

// Explain says why an environment is where it is.
func (c *Client) Explain(ctx context.Context, env string) (*cluster.Explanation, error) {
	return call[cluster.Explanation](ctx, c, http.MethodGet, path(env, "/explain"), nil)
}

// Clusters lists clusters with their health.
func (c *Client) Clusters(ctx context.Context) (*api.Clusters, error) {
	return call[api.Clusters](ctx, c, http.MethodGet, "/v1/clusters", nil)
}

// Capacity lists a cluster's nodes and devices.
func (c *Client) Capacity(ctx context.Context, name string) (*api.Capacity, error) {
	return call[api.Capacity](ctx, c, http.MethodGet, "/v1/clusters/"+url.PathEscape(name)+"/capacity", nil)
}

// Logs returns the output of the environment's container.
func (c *Client) Logs(ctx context.Context, env string, follow bool) (io.ReadCloser, error) {
	res, err := c.stream(ctx, path(env, "/logs")+"?follow="+strconv.FormatBool(follow), "text/plain")
	if err != nil {
		return nil, err
	}
	return res.Body, nil
}

// Tunnel opens a connection to one of the environment's ports.
func (c *Client) Tunnel(ctx context.Context, env string, port int) (net.Conn, error) {
	header := http.Header{}
	c.authorize(header)
	conn, err := tunnel.Dial(ctx, c.http, c.url(path(env, "/tunnel")+"?port="+strconv.Itoa(port)), header)
	var refused *tunnel.RefusedError
	if errors.As(err, &refused) {
		if p, ok := decodeProblem(refused.Body); ok {
			return nil, p
		}
	}
	return conn, err
}

// Event is one event of an environment.
type Event struct {
	ID   int64
	Kind string
	Data json.RawMessage
}

// Events calls fn for every event after the given one, until fn returns an
// error or ctx ends. It resumes by itself when the connection breaks. The
// error ErrStop from fn ends it without one.
func (c *Client) Events(ctx context.Context, env string, after int64, fn func(Event) error) error {
	for failures := 0; ; {
		last, err := c.eventsOnce(ctx, env, after, fn)
		switch {
		case errors.Is(err, ErrStop):
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && !errors.Is(err, errBroken):
			return err
		}
		if failures++; last > after {
			failures = 0
		}
		if after = last; failures > attempts {
			return fmt.Errorf("stream events of %s: %w", env, err)
		}
		if err := sleep(ctx, time.Second); err != nil {
			return err
		}
	}
}

// ErrStop ends Events without an error.
var ErrStop = errors.New("stop")

// errBroken means that a request may be tried again.
var errBroken = errors.New("no answer from the launcher")

func (c *Client) eventsOnce(ctx context.Context, env string, after int64, fn func(Event) error) (int64, error) {
	res, err := c.stream(ctx, path(env, "/events")+"?after="+strconv.FormatInt(after, 10), "text/event-stream")
	if err != nil {
		return after, err
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, maxEvent)
	var ev Event
	for lines.Scan() {
		field, value, _ := strings.Cut(lines.Text(), ": ")
		switch field {
		case "id":
			if ev.ID, err = strconv.ParseInt(value, 10, 64); err != nil {
				return after, fmt.Errorf("read event: %w", err)
			}
		case "event":
			ev.Kind = value
		case "data":
			ev.Data = json.RawMessage(value)
		case "":
			if ev.Kind == "" {
				continue // the end of a comment
			}
			if err := fn(ev); err != nil {
				return after, err
			}
			after, ev = ev.ID, Event{}
		}
	}
	return after, fmt.Errorf("%w: %w", errBroken, orEOF(lines.Err()))
}

func orEOF(err error) error {
	if err == nil {
		return io.ErrUnexpectedEOF
	}
	return err
}

func (c *Client) stream(ctx context.Context, path, accept string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url(path), http.NoBody)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", accept)
	c.authorize(req.Header)
	res, err := c.http.Do(req)
	if err != nil {
		return nil, c.broken(err)
	}
	if res.StatusCode != http.StatusOK {
		defer res.Body.Close()
		return nil, readProblem(res)
	}
	return res, nil
}

// broken names the launcher that could not be asked. What never connected is
// more often a wrong address than a broken line, and is told so.
func (c *Client) broken(err error) error {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return fmt.Errorf("%w at %s: %w; is it running there? --server or FIRSTLIGHT_SERVER names another",
			errBroken, c.base.Redacted(), op.Err)
	}
	return fmt.Errorf("%w: %w", errBroken, err)
}

func (c *Client) url(path string) string { return strings.TrimSuffix(c.base.String(), "/") + path }

func (c *Client) authorize(h http.Header) {
	if c.token != "" {
		h.Set("Authorization", "Bearer "+c.token)
	}
}

func path(env, rest string) string { return "/v1/environments/" + url.PathEscape(env) + rest }

// call sends a request and decodes the answer. A request whose connection
// broke is sent again, with the same key.
func call[T any](ctx context.Context, c *Client, method, path string, body any) (*T, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	var text []byte
	if body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			return nil, fmt.Errorf("encode request: %w", err)
		}
	}
	key := uuid.NewString()
	for n := 1; ; n++ {
		out, err := once[T](ctx, c, method, path, text, key)
		if err == nil || !errors.Is(err, errBroken) || n == attempts || ctx.Err() != nil {
			return out, err
		}
		if err := sleep(ctx, time.Duration(n)*300*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

func once[T any](ctx context.Context, c *Client, method, path string, body []byte, key string) (*T, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.url(path), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	c.authorize(req.Header)
	req.Header.Set("Accept", "application/json")
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Idempotency-Key", key)
	}
	res, err := c.http.Do(req)
	if err != nil {
		return nil, c.broken(err)
	}
	defer res.Body.Close()
	if res.StatusCode >= http.StatusBadRequest {
		return nil, readProblem(res)
	}
	out := new(T)
	if err := json.NewDecoder(io.LimitReader(res.Body, maxAnswer)).Decode(out); err != nil {
		return nil, fmt.Errorf("decode answer of %s %s: %w", method, path, err)
	}
	return out, nil
}

// readProblem turns an answer into an error.
func readProblem(res *http.Response) error {
	body, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err != nil {
		return fmt.Errorf("%w: %w", errBroken, err)
	}
	kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type")) // none is not a problem document
	if p, ok := decodeProblem(body); ok && kind == "application/problem+json" {
		return p
	}
	return fmt.Errorf("launcher answered %s", res.Status)
}

func decodeProblem(body []byte) (*api.Problem, bool) {
	var p api.Problem
	err := json.Unmarshal(body, &p)
	return &p, err == nil && p.Code != ""
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
