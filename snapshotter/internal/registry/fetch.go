package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

const (
	// maxManifest bounds manifests, indexes and referrers lists, as registries
	// do.
	maxManifest = 4 << 20
	// maxPages bounds a referrers list that comes in pages.
	maxPages = 16
	// maxReferrers bounds what is kept of it.
	maxReferrers = 4096
)

func manifestTypes() http.Header {
	return http.Header{"Accept": {strings.Join([]string{
		ocispec.MediaTypeImageManifest, ocispec.MediaTypeImageIndex,
		"application/vnd.docker.distribution.manifest.v2+json",
		"application/vnd.docker.distribution.manifest.list.v2+json",
		"*/*",
	}, ", ")}}
}

func acceptOK(resp *http.Response) error {
	if resp.StatusCode == http.StatusOK {
		return nil
	}
	return &Error{Kind: kindOf(resp.StatusCode)}
}

// Manifest fetches a manifest or image index by tag or digest. It returns
// ErrNotFound when there is none.
func (r *Repository) Manifest(ctx context.Context, ref string) (ocispec.Descriptor, []byte, error) {
	want, err := digest.Parse(ref)
	need := docker.HostCapabilityPull
	if err != nil {
		want, need = "", docker.HostCapabilityPull|docker.HostCapabilityResolve
	}
	q := request{op: "manifest " + ref, path: []string{"manifests", ref}, header: manifestTypes(), need: need, accept: acceptOK}
	resp, err := r.get(ctx, q)
	if err != nil {
		return ocispec.Descriptor{}, nil, err
	}
	b, err := r.readAll(resp, q.op)
	if err != nil {
		return ocispec.Descriptor{}, nil, err
	}
	got := digest.FromBytes(b)
	if want != "" {
		if got = want.Algorithm().FromBytes(b); got != want {
			return ocispec.Descriptor{}, nil, r.bad(resp, q.op, fmt.Errorf("content is %s", got))
		}
	}
	return ocispec.Descriptor{MediaType: mediaType(resp, b), Digest: got, Size: int64(len(b))}, b, nil
}

// mediaType prefers what the signed bytes say over a header.
func mediaType(resp *http.Response, b []byte) string {
	var m struct {
		MediaType string `json:"mediaType"`
	}
	if json.Unmarshal(b, &m) == nil && m.MediaType != "" {
		return m.MediaType
	}
	t, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil {
		return ocispec.MediaTypeImageManifest
	}
	return t
}

func (r *Repository) bad(resp *http.Response, op string, cause error) error {
	return &Error{Op: op, Host: resp.Request.URL.Host, Repository: r.name, Status: resp.StatusCode, Kind: ErrResponse, Cause: cause}
}

func (r *Repository) readAll(resp *http.Response, op string) ([]byte, error) {
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxManifest+1))
	if err != nil {
		kind := ErrUnavailable
		if errors.Is(err, errStall) {
			kind = ErrTimeout
		}
		return nil, &Error{Op: op, Host: resp.Request.URL.Host, Repository: r.name, Status: resp.StatusCode, Kind: kind, Cause: err}
	}
	if len(b) > maxManifest {
		return nil, r.bad(resp, op, fmt.Errorf("more than %d bytes", maxManifest))
	}
	return b, nil
}

// Blob fetches a whole blob. Its reader fails at the end if size or digest
// differ from the descriptor's.
func (r *Repository) Blob(ctx context.Context, desc ocispec.Descriptor) (io.ReadCloser, error) {
	if err := desc.Digest.Validate(); err != nil || desc.Size < 0 {
		return nil, fmt.Errorf("fetch blob: invalid descriptor %q", desc.Digest)
	}
	q := request{op: "blob " + desc.Digest.String(), path: []string{"blobs", desc.Digest.String()}, need: docker.HostCapabilityPull, accept: acceptOK}
	resp, err := r.get(ctx, q)
	if err != nil {
		return nil, err
	}
	if resp.ContentLength >= 0 && resp.ContentLength != desc.Size {
		_ = resp.Body.Close()
		return nil, r.bad(resp, q.op, fmt.Errorf("%d bytes, the manifest says %d", resp.ContentLength, desc.Size))
	}
	in := &exact{rc: resp.Body, n: desc.Size, fail: func(kind, cause error) error {
		return &Error{Op: q.op, Host: resp.Request.URL.Host, Repository: r.name, Status: resp.StatusCode, Kind: kind, Cause: cause}
	}}
	return &verified{rc: in, verifier: desc.Digest.Verifier(), fail: func() error {
		return r.bad(resp, q.op, errors.New("content does not have its digest"))
	}}, nil
}

// verified checks the digest of what was read through it at its end.
type verified struct {
	rc       io.ReadCloser
	verifier digest.Verifier
	fail     func() error
}

func (v *verified) Read(p []byte) (int, error) {
	n, err := v.rc.Read(p)
	if _, werr := v.verifier.Write(p[:n]); werr != nil {
		return n, werr
	}
	if errors.Is(err, io.EOF) && !v.verifier.Verified() {
		return n, v.fail()
	}
	return n, err
}

func (v *verified) Close() error { return v.rc.Close() }

// Referrers lists what refers to a manifest, of one artifact type or all (""):
// by the Referrers API, or where there is none by the tag scheme that stands in
// for it. No referrers is no error.
func (r *Repository) Referrers(ctx context.Context, subject digest.Digest, artifactType string) ([]ocispec.Descriptor, error) {
	if err := subject.Validate(); err != nil {
		return nil, fmt.Errorf("list referrers: %w", err)
	}
	all, err := r.referrersAPI(ctx, subject, artifactType)
	var e *Error
	if errors.As(err, &e) && noReferrersAPI(e.Status) {
		all, err = r.referrersTag(ctx, subject)
	}
	if err != nil {
		return nil, err
	}
	return filter(all, artifactType), nil
}

// noReferrersAPI says whether a status means that the endpoint does not exist.
func noReferrersAPI(status int) bool {
	switch status {
	case http.StatusNotFound, http.StatusBadRequest, http.StatusMethodNotAllowed, http.StatusNotImplemented, http.StatusNotAcceptable:
		return true
	}
	return false
}

func filter(all []ocispec.Descriptor, artifactType string) []ocispec.Descriptor {
	var kept []ocispec.Descriptor
	for _, d := range all {
		if artifactType == "" || d.ArtifactType == artifactType {
			kept = append(kept, d)
		}
	}
	return kept
}

func (r *Repository) referrersAPI(ctx context.Context, subject digest.Digest, artifactType string) ([]ocispec.Descriptor, error) {
	q := request{
		op: "referrers of " + subject.String(), path: []string{"referrers", subject.String()},
		header: http.Header{"Accept": {ocispec.MediaTypeImageIndex}},
		need:   docker.HostCapabilityPull | docker.HostCapabilityReferrers,
		accept: acceptOK,
	}
	if artifactType != "" {
		q.query = url.Values{"artifactType": {artifactType}}
	}
	var all []ocispec.Descriptor
	for range maxPages {
		resp, err := r.get(ctx, q)
		if err != nil {
			return nil, err
		}
		page, err := r.referrersPage(resp, q.op)
		if err != nil {
			return nil, err
		}
		all = append(all, page...)
		if len(all) > maxReferrers {
			return nil, r.bad(resp, q.op, fmt.Errorf("more than %d", maxReferrers))
		}
		if q.query = nextPage(resp.Header.Get("Link")); q.query == nil {
			return all, nil
		}
	}
	return all, nil
}

func (r *Repository) referrersPage(resp *http.Response, op string) ([]ocispec.Descriptor, error) {
	b, err := r.readAll(resp, op)
	if err != nil {
		return nil, err
	}
	var ix ocispec.Index
	if err := json.Unmarshal(b, &ix); err != nil {
		// Some registries answer unknown paths with a page and status 200.
		return nil, &Error{Op: op, Host: resp.Request.URL.Host, Repository: r.name, Status: http.StatusNotFound, Kind: ErrNotFound, Cause: errors.New("not an image index")}
	}
	return ix.Manifests, nil
}

// nextPage reads the query of a Link header with rel="next"; the path is the
// one we asked. It is nil on the last page.
func nextPage(link string) url.Values {
	target, params, ok := strings.Cut(link, ">")
	if !ok || !strings.HasPrefix(target, "<") || !strings.Contains(params, `rel="next"`) {
		return nil
	}
	u, err := url.Parse(target[1:])
	if err != nil || u.RawQuery == "" {
		return nil
	}
	return u.Query()
}

// referrersTag reads the list kept under a tag made of the subject's digest.
func (r *Repository) referrersTag(ctx context.Context, subject digest.Digest) ([]ocispec.Descriptor, error) {
	tag := subject.Algorithm().String() + "-" + subject.Encoded()
	_, b, err := r.Manifest(ctx, tag)
	if errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var ix ocispec.Index
	if err := json.Unmarshal(b, &ix); err != nil || len(ix.Manifests) > maxReferrers {
		return nil, fmt.Errorf("read referrers tag %s of %s: not a usable image index", tag, r)
	}
	return ix.Manifests, nil
}
