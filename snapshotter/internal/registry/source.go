package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Source reads ranges of one blob. It is safe for concurrent use.
type Source struct {
	repo *Repository
	desc ocispec.Descriptor

	mu   sync.Mutex
	jump *shortcut
}

// shortcut is where a registry redirected a blob to.
type shortcut struct {
	host docker.RegistryHost
	url  *url.URL
}

// Source returns a source for a blob of the repository.
func (r *Repository) Source(desc ocispec.Descriptor) *Source {
	return &Source{repo: r, desc: desc}
}

func (s *Source) op() string { return "layer " + s.desc.Digest.String() }

// ReadRange returns n bytes of the blob from off. The reader ends with an error
// if fewer come. ErrNoRanges says that the blob can only be had whole.
func (s *Source) ReadRange(ctx context.Context, off, n int64) (io.ReadCloser, error) {
	if off < 0 || n <= 0 || off > s.desc.Size-n {
		return nil, &Error{Op: s.op(), Host: s.repo.registry, Repository: s.repo.name, Kind: ErrRange,
			Cause: fmt.Errorf("%d bytes at %d of %d", n, off, s.desc.Size)}
	}
	header := http.Header{"Range": {fmt.Sprintf("bytes=%d-%d", off, off+n-1)}}
	accept := func(resp *http.Response) error { return checkRange(resp, off, n, s.desc.Size) }
	if resp := s.tryShortcut(ctx, header, accept); resp != nil {
		return s.body(resp, n), nil
	}
	resp, err := s.repo.get(ctx, request{
		op: s.op(), path: []string{"blobs", s.desc.Digest.String()}, header: header,
		need: docker.HostCapabilityPull, accept: func(resp *http.Response) error {
			err := accept(resp)
			if err == nil {
				s.remember(resp)
			}
			return err
		},
	})
	if err != nil {
		return nil, err
	}
	return s.body(resp, n), nil
}

func (s *Source) body(resp *http.Response, n int64) io.ReadCloser {
	return &exact{rc: resp.Body, n: n, fail: func(kind, cause error) error {
		return &Error{Op: s.op(), Host: resp.Request.URL.Host, Repository: s.repo.name, Status: resp.StatusCode, Kind: kind, Cause: cause}
	}}
}

// remember keeps a redirect's target for the next range.
func (s *Source) remember(resp *http.Response) {
	hosts, err := s.repo.endpoints(docker.HostCapabilityPull)
	if err != nil {
		return
	}
	for _, h := range hosts {
		if h.Host == resp.Request.URL.Host {
			return // not redirected
		}
	}
	if len(hosts) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.jump = &shortcut{host: hosts[len(hosts)-1], url: resp.Request.URL}
}

// tryShortcut asks where the registry pointed to before. Anything but an
// acceptable answer makes it forget that and return nil.
func (s *Source) tryShortcut(ctx context.Context, header http.Header, accept func(*http.Response) error) *http.Response {
	s.mu.Lock()
	j := s.jump
	s.mu.Unlock()
	if j == nil {
		return nil
	}
	resp, err := s.repo.send(ctx, j.host, j.url, header, false)
	if err == nil {
		if err = accept(resp); err != nil {
			drain(resp)
		}
	}
	s.repo.client.cfg.Observe(j.url.Host, err)
	if err == nil {
		return resp
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.jump == j {
		s.jump = nil
	}
	return nil
}

// checkRange accepts the answer to a request for n bytes at off of a blob of
// total bytes.
func checkRange(resp *http.Response, off, n, total int64) error {
	if e := resp.Header.Get("Content-Encoding"); e != "" && e != "identity" {
		return &Error{Kind: ErrResponse, Cause: fmt.Errorf("content encoding %.20q", e)}
	}
	switch resp.StatusCode {
	case http.StatusOK:
		if off == 0 && n == total && (resp.ContentLength < 0 || resp.ContentLength == n) {
			return nil
		}
		return &Error{Kind: ErrNoRanges}
	case http.StatusPartialContent:
		start, end, size, err := parseContentRange(resp.Header.Get("Content-Range"))
		if err != nil {
			return &Error{Kind: ErrResponse, Cause: err}
		}
		if size >= 0 && size != total {
			return &Error{Kind: ErrRange, Cause: fmt.Errorf("the blob there has %d bytes, the manifest says %d", size, total)}
		}
		if start != off || end != off+n-1 || resp.ContentLength >= 0 && resp.ContentLength != n {
			return &Error{Kind: ErrResponse, Cause: fmt.Errorf("got bytes %d-%d, asked for %d-%d", start, end, off, off+n-1)}
		}
		return nil
	}
	return &Error{Kind: kindOf(resp.StatusCode)}
}

var errContentRange = errors.New("no valid Content-Range")

// parseContentRange reads "bytes START-END/SIZE"; size is -1 for "*".
func parseContentRange(s string) (start, end, size int64, err error) {
	rest, ok := strings.CutPrefix(s, "bytes ")
	span, total, ok2 := strings.Cut(rest, "/")
	from, to, ok3 := strings.Cut(span, "-")
	if !ok || !ok2 || !ok3 {
		return 0, 0, 0, errContentRange
	}
	a, err1 := strconv.ParseUint(from, 10, 63)
	b, err2 := strconv.ParseUint(to, 10, 63)
	size = -1
	var err3 error
	if total != "*" {
		var n uint64
		n, err3 = strconv.ParseUint(total, 10, 63)
		size = int64(n)
	}
	start, end = int64(a), int64(b)
	if err1 != nil || err2 != nil || err3 != nil || start > end || size >= 0 && end >= size {
		return 0, 0, 0, errContentRange
	}
	return start, end, size, nil
}
