package nodeapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// DefaultSocket is where the snapshotter serves the API unless told otherwise.
const DefaultSocket = "/run/firstlight/node.sock"

const (
	// maxResponse bounds one answer: 10,000 images of 100 layers stay below it.
	maxResponse = 512 << 20
	// requestTimeout bounds one request; the server only reads its memory.
	requestTimeout = 10 * time.Second
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
		http:   &http.Client{Transport: &http.Transport{DialContext: dial}, Timeout: requestTimeout},
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

func (c *Client) get(ctx context.Context, path string, v any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://node"+path, nil)
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
	body := json.NewDecoder(io.LimitReader(resp.Body, maxResponse))
	if resp.StatusCode != http.StatusOK {
		var p problem
		if err := body.Decode(&p); err != nil || p.Title == "" {
			return fmt.Errorf("ask the snapshotter on %s: %s", c.socket, resp.Status)
		}
		return fmt.Errorf("ask the snapshotter on %s: %s: %s", c.socket, p.Title, p.Detail)
	}
	if err := body.Decode(v); err != nil {
		return fmt.Errorf("read answer of the snapshotter on %s: %w", c.socket, err)
	}
	return nil
}
