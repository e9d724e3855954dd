package nodeapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"
)

// DefaultSocket is where the snapshotter serves the API unless told otherwise.
const DefaultSocket = "/run/firstlight/node.sock"

const (
	// maxResponse bounds one answer: 10,000 images of 100 layers stay below it.
	maxResponse = 512 << 20
	// requestTimeout bounds one request; the server only reads its memory.
	requestTimeout = 10 * time.Second
	// evictTimeout bounds an eviction: a few syncs for each of hundreds of layers.
	evictTimeout = 5 * time.Minute
)

// Client asks one snapshotter. It is safe for concurrent use.
type Client struct {
	socket string
	http   *http.Client
}

// NewClient returns a client of the snapshotter behind the unix socket. It does
// not connect before the first request.
func NewClient(socket string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}
	return &Client{
		socket: socket,
		http:   &http.Client{Transport: &http.Transport{DialContext: dial}},
	}
}

// Status returns how the snapshotter runs.
func (c *Client) Status(ctx context.Context) (Status, error) {
	var s Status
	return s, c.get(ctx, "/v1/status", &s)
}

// Images returns every image the snapshotter has prepared.
func (c *Client) Images(ctx context.Context) ([]Image, error) {
	var images []Image
	return images, c.get(ctx, "/v1/images", &images)
}

// Containers returns what the reads of each container have cost.
func (c *Client) Containers(ctx context.Context) ([]Container, error) {
	var containers []Container
	return containers, c.get(ctx, "/v1/containers", &containers)
}

// Evict takes cached bytes away. Errors about names that the snapshotter does
// not know wrap ErrNotFound.
func (c *Client) Evict(ctx context.Context, req EvictRequest) (Evicted, error) {
	ctx, cancel := context.WithTimeout(ctx, evictTimeout)
	defer cancel()
	var evicted Evicted
	return evicted, c.do(ctx, http.MethodPost, "/v1/evict", req, func(body io.Reader) error {
		return json.NewDecoder(body).Decode(&evicted)
	})
}

// Warm completes an image and calls report with how far it is. It ends when
// the image is complete or the context ends; what was fetched stays.
func (c *Client) Warm(ctx context.Context, req WarmRequest, report func(Progress)) error {
	return c.do(ctx, http.MethodPost, "/v1/warm", req, func(body io.Reader) error {
		dec := json.NewDecoder(body)
		for {
			var p Progress
			if err := dec.Decode(&p); err != nil {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				return fmt.Errorf("the snapshotter stopped before the image was complete: %w", err)
			}
			report(p)
			switch {
			case p.Error != "":
				return fmt.Errorf("complete %s: %s", p.Image, p.Error)
			case p.Done:
				return nil
			}
		}
	})
}

// Profiles returns the access profiles of the node, and recordings that are on.
func (c *Client) Profiles(ctx context.Context) ([]Profile, error) {
	var all []Profile
	return all, c.get(ctx, "/v1/profiles", &all)
}

// ProfileBytes returns an image's access profile in its own format. The error is
// ErrNotFound if there is none.
func (c *Client) ProfileBytes(ctx context.Context, manifest string) (raw []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	err = c.do(ctx, http.MethodGet, "/v1/profiles/"+url.PathEscape(manifest), nil, func(body io.Reader) (err error) {
		raw, err = io.ReadAll(body)
		return err
	})
	return raw, err
}

// RemoveProfiles deletes an image's profiles from the node.
func (c *Client) RemoveProfiles(ctx context.Context, manifest string) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return c.do(ctx, http.MethodDelete, "/v1/profiles/"+url.PathEscape(manifest), nil, func(io.Reader) error { return nil })
}

// Record begins to record what an image's start reads. Of an image that is not
// here the next start is recorded, and the State of the answer says so.
func (c *Client) Record(ctx context.Context, image string) (Profile, error) {
	return c.profile(ctx, "record", ProfileRequest{Image: image})
}

// StopRecording ends the recording of an image. The error is ErrNotFound if none
// is on.
func (c *Client) StopRecording(ctx context.Context, req ProfileRequest) (Profile, error) {
	return c.profile(ctx, "stop", req)
}

func (c *Client) profile(ctx context.Context, what string, req ProfileRequest) (p Profile, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	err = c.do(ctx, http.MethodPost, "/v1/profiles/"+what, req, func(body io.Reader) error {
		return json.NewDecoder(body).Decode(&p)
	})
	return p, err
}

func (c *Client) get(ctx context.Context, path string, v any) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return c.do(ctx, http.MethodGet, path, nil, func(body io.Reader) error { return json.NewDecoder(body).Decode(v) })
}

// do sends a request and hands its answer on.
func (c *Client) do(ctx context.Context, method, path string, in any, out func(io.Reader) error) error {
	var send io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("build request: %w", err)
		}
		send = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://node"+path, send)
	if err != nil {
		return fmt.Errorf("build request: %w", err)
	}
	resp, err := c.http.Do(req)
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return fmt.Errorf("ask the snapshotter on %s: %w; is firstlight-snapshotter running, and with this --node-address?", c.socket, op.Err)
	}
	if err != nil {
		return fmt.Errorf("ask the snapshotter on %s: %w", c.socket, err)
	}
	defer resp.Body.Close()
	body := io.LimitReader(resp.Body, maxResponse)
	if resp.StatusCode != http.StatusOK {
		return c.failure(resp, body)
	}
	if err := out(body); err != nil {
		return fmt.Errorf("read answer of the snapshotter on %s: %w", c.socket, err)
	}
	return nil
}

// failure is the error that an answer stands for.
func (c *Client) failure(resp *http.Response, body io.Reader) error {
	var p problem
	if err := json.NewDecoder(body).Decode(&p); err != nil || p.Title == "" {
		return fmt.Errorf("ask the snapshotter on %s: %s", c.socket, resp.Status)
	}
	err := fmt.Errorf("%s: %s", p.Title, p.Detail)
	if resp.StatusCode == http.StatusNotFound {
		return &notFound{err}
	}
	return fmt.Errorf("ask the snapshotter on %s: %w", c.socket, err)
}

// notFound is an error that ErrNotFound matches.
type notFound struct{ error }

func (*notFound) Is(target error) bool { return target == ErrNotFound }
