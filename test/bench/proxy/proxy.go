// Package proxy stands between a registry and its clients: it makes every
// request wait, as if the registry were far away, and remembers what was asked.
//
// The wait comes before a request is passed on, once for each, however many
// connections there are: it stands for the round trip and the registry's own
// work, while the rate of the link is the link's business. What a request
// carried is counted while it is still under way, so that a reading in the midst
// of a long answer is exact.
//
// The memory of requests is bounded: beyond maxRequests they are only counted.
package proxy

import (
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// maxRequests bounds the memory of requests, at about 300 bytes each. A start
// of a large image by the most talkative snapshotter takes some thousands.
const maxRequests = 100_000

// Kind is what a request is about.
type Kind string

// The kinds of requests to a registry.
const (
	Manifest  Kind = "manifest"
	Blob      Kind = "blob"
	Referrers Kind = "referrers"
	Other     Kind = "other" // the API's root, tags, uploads
)

// KindOf tells a request's kind by its path: what stands before the last part,
// which is a tag or digest. A repository may have any name.
func KindOf(path string) Kind {
	parts := strings.Split(path, "/")
	if len(parts) < 5 || parts[1] != "v2" {
		return Other
	}
	switch parts[len(parts)-2] {
	case "manifests":
		return Manifest
	case "blobs":
		return Blob
	case "referrers":
		return Referrers
	default:
		return Other
	}
}

// Request is what is remembered of one request.
type Request struct {
	At     time.Duration `json:"at"`   // since Reset
	Took   time.Duration `json:"took"` // 0 while it is under way
	Method string        `json:"method"`
	Path   string        `json:"path"`
	Range  string        `json:"range,omitempty"`
	Kind   Kind          `json:"kind"`
	Status int           `json:"status"`
	Bytes  int64         `json:"bytes"` // of the answer's body
}

// Proxy is the handler.
type Proxy struct {
	latency time.Duration
	forward *httputil.ReverseProxy

	mu       sync.Mutex
	since    time.Time // guarded, like all below
	requests []*entry
	dropped  int
}

// entry is a request that may be under way.
type entry struct {
	Request
	bytes atomic.Int64 // Request.Bytes, as it grows
}

// New makes a proxy for the registry at host that transport reaches.
func New(host string, transport http.RoundTripper, latency time.Duration) *Proxy {
	target := &url.URL{Scheme: "http", Host: host}
	return &Proxy{
		latency: latency,
		since:   time.Now(),
		forward: &httputil.ReverseProxy{
			Transport:     transport,
			FlushInterval: -1,
			Rewrite: func(r *httputil.ProxyRequest) {
				r.SetURL(target)
				r.Out.Host = r.In.Host
			},
		},
	}
}

// ServeHTTP waits, asks the registry and counts.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e := p.begin(r)
	counted := &counter{ResponseWriter: w, entry: e, mu: &p.mu}
	defer p.end(e)
	wait := time.NewTimer(p.latency)
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-r.Context().Done():
		return
	}
	p.forward.ServeHTTP(counted, r)
}

func (p *Proxy) begin(r *http.Request) *entry {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := &entry{Request: Request{
		At:     time.Since(p.since),
		Method: r.Method,
		Path:   r.URL.Path,
		Range:  r.Header.Get("Range"),
		Kind:   KindOf(r.URL.Path),
	}}
	if len(p.requests) < maxRequests {
		p.requests = append(p.requests, e)
	} else {
		p.dropped++
	}
	return e
}

func (p *Proxy) end(e *entry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e.Took = time.Since(p.since) - e.At
}

// Reset forgets all requests. Those under way are not counted any more.
func (p *Proxy) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.since, p.requests, p.dropped = time.Now(), nil, 0
}

// Requests returns the requests since Reset in the order in which they came,
// and how many more there were than are remembered.
func (p *Proxy) Requests() (requests []Request, dropped int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.requests {
		r := e.Request
		r.Bytes = e.bytes.Load()
		requests = append(requests, r)
	}
	return requests, p.dropped
}

// counter counts what goes to the client.
type counter struct {
	http.ResponseWriter
	entry *entry
	mu    *sync.Mutex // of the proxy, guards entry.Status
}

func (c *counter) WriteHeader(status int) {
	c.mu.Lock()
	c.entry.Status = status
	c.mu.Unlock()
	c.ResponseWriter.WriteHeader(status)
}

func (c *counter) Write(b []byte) (int, error) {
	n, err := c.ResponseWriter.Write(b)
	c.entry.bytes.Add(int64(n))
	return n, err
}

// Unwrap lets http.ResponseController flush.
func (c *counter) Unwrap() http.ResponseWriter { return c.ResponseWriter }
