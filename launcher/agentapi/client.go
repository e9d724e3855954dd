package agentapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// Paths of the status server.
const (
	StatusPath  = "/v1/status"
	ConfirmPath = "/v1/confirm"
)

// maxAnswerBytes bounds an answer: a container is not trusted. A status with
// every lane at its limits is well below.
const maxAnswerBytes = 4 << 20

// ErrUnauthorized means that the agent did not accept the token.
var ErrUnauthorized = errors.New("agent refused the token")

// DialFunc opens a connection to the agent's status port.
type DialFunc func(ctx context.Context) (net.Conn, error)

// Client reads one agent's status. It is safe for concurrent use.
type Client struct {
	http  *http.Client
	token string
}

// NewClient returns a client that reaches the agent by dial. Close it to end
// its idle connections.
func NewClient(dial DialFunc, token string) *Client {
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
		// One agent answers few requests; a second connection is for a
		// status read beside a running confirmation.
		MaxConnsPerHost: 2,
		IdleConnTimeout: time.Minute,
	}
	return &Client{http: &http.Client{Transport: transport}, token: token}
}

// Close ends idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Sample ties the agent's clock to the caller's.
type Sample struct {
	Boot BootTime      // the agent's clock
	Wall time.Time     // the caller's clock at the same moment
	Err  time.Duration // at most this much apart: half the round trip
}

// Time places a stamp of the agent on the caller's clock.
func (s Sample) Time(b BootTime) time.Time { return s.Wall.Add(b.Sub(s.Boot)) }

// Status reads the status, and how the agent's clock stands to the caller's.
// The context must have a deadline or be cancelled by its owner.
func (c *Client) Status(ctx context.Context) (*Status, Sample, error) {
	var st Status
	sent := time.Now()
	if err := c.do(ctx, http.MethodGet, StatusPath, &st); err != nil {
		return nil, Sample{}, fmt.Errorf("read agent status: %w", err)
	}
	half := time.Since(sent) / 2
	return &st, Sample{Boot: st.Now, Wall: sent.Add(half), Err: half}, nil
}

// Confirm runs every probe once more and waits for the result.
func (c *Client) Confirm(ctx context.Context) (*Round, error) {
	var r Round
	if err := c.do(ctx, http.MethodPost, ConfirmPath, &r); err != nil {
		return nil, fmt.Errorf("confirm probes: %w", err)
	}
	return &r, nil
}

func (c *Client) do(ctx context.Context, method, path string, into any) error {
	req, err := http.NewRequestWithContext(ctx, method, "http://agent"+path, http.NoBody)
	if err != nil {
		return err
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	res, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswerBytes+1))
	switch {
	case err != nil:
		return err
	case len(body) > maxAnswerBytes:
		return fmt.Errorf("answer is longer than %d bytes", maxAnswerBytes)
	case res.StatusCode == http.StatusUnauthorized:
		return ErrUnauthorized
	case res.StatusCode != http.StatusOK:
		return fmt.Errorf("agent answered %s: %.200s", res.Status, strings.TrimSpace(string(body)))
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("decode answer: %w", err)
	}
	return nil
}
