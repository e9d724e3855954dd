package cluster

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"
)

const (
	apiTimeout = 5 * time.Second
	// maxAnswer bounds an answer of the API server to a wait: a node with all
	// its images is some tens of kilobytes.
	maxAnswer = 4 << 20
)

// apiClient talks to the API server as the administrator, from outside.
func (c *Cluster) apiClient() (*http.Client, error) {
	tls, err := c.pki.clientTLS(subject{name: "admin", groups: []string{masters}})
	if err != nil {
		return nil, err
	}
	return &http.Client{
		Timeout:   apiTimeout,
		Transport: &http.Transport{DialContext: c.ns.Dial, TLSClientConfig: tls, ForceAttemptHTTP2: true},
	}, nil
}

func get(ctx context.Context, client *http.Client, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", url, err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("get %s: %s", url, resp.Status)
	}
	return body, nil
}
