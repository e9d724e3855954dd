package proxy

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"testing"
	"time"
)

func TestKindOf(t *testing.T) {
	for path, want := range map[string]Kind{
		"/v2/":                          Other,
		"/v2/py/manifests/1":            Manifest,
		"/v2/team/py/blobs/sha256:00":   Blob,
		"/v2/py/blobs/uploads/7":        Other,
		"/v2/py/referrers/sha256:00":    Referrers,
		"/elsewhere/manifests/1":        Other,
		"/v2/manifests/blobs/sha256:00": Blob,
	} {
		if got := KindOf(path); got != want {
			t.Errorf("%s is %s, want %s", path, got, want)
		}
	}
}

// serve starts a proxy in front of a registry that answers with handler.
func serve(t *testing.T, latency time.Duration, handler http.HandlerFunc) (*Proxy, string) {
	t.Helper()
	registry := httptest.NewServer(handler)
	t.Cleanup(registry.Close)
	u, err := url.Parse(registry.URL)
	if err != nil {
		t.Fatal(err)
	}
	p := New(u.Host, &http.Transport{DisableKeepAlives: true}, latency)
	front := httptest.NewServer(p)
	t.Cleanup(front.Close)
	return p, front.URL
}

func TestARequestWaitsAndIsRemembered(t *testing.T) {
	const latency = 30 * time.Millisecond
	p, base := serve(t, latency, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Range") != "bytes=0-4" {
			t.Errorf("the registry was asked for %q", r.Header.Get("Range"))
		}
		w.WriteHeader(http.StatusPartialContent)
		_, _ = io.WriteString(w, "12345")
	})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+"/v2/py/blobs/sha256:00", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Range", "bytes=0-4")
	start := time.Now()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "12345" {
		t.Errorf("the body is %q (%v)", body, err)
	}
	if took := time.Since(start); took < latency {
		t.Errorf("the request took %s, less than the latency", took)
	}
	got, dropped := p.Requests()
	if len(got) != 1 || dropped != 0 {
		t.Fatalf("%d requests are remembered and %d dropped", len(got), dropped)
	}
	r := got[0]
	if r.Status != http.StatusPartialContent || r.Bytes != 5 || r.Kind != Blob || r.Range != "bytes=0-4" {
		t.Errorf("the request is remembered as %+v", r)
	}
	p.Reset()
	if got, _ := p.Requests(); len(got) != 0 {
		t.Errorf("after Reset there are %d requests", len(got))
	}
}

// What an answer has carried counts before it is complete.
func TestBytesOfARequestUnderWay(t *testing.T) {
	more := make(chan struct{})
	p, base := serve(t, 0, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "half")
		_ = http.NewResponseController(w).Flush()
		<-more
	})
	resp, err := http.Get(base + "/v2/py/blobs/sha256:00")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.ReadFull(resp.Body, make([]byte, 4)); err != nil {
		t.Fatal(err)
	}
	defer close(more)
	for { // the client may have its bytes just before they are counted
		got, _ := p.Requests()
		if len(got) != 1 || got[0].Took != 0 {
			t.Fatalf("the requests under way are %+v", got)
		}
		if got[0].Bytes == 4 {
			return
		}
		if t.Context().Err() != nil || got[0].Bytes > 4 {
			t.Fatalf("%d bytes are counted, want 4", got[0].Bytes)
		}
		runtime.Gosched()
	}
}

func TestAClientThatGivesUpDoesNotWait(t *testing.T) {
	p := New("127.0.0.1:1", http.DefaultTransport, time.Hour)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	req := httptest.NewRequestWithContext(ctx, http.MethodGet, "/v2/", http.NoBody)
	p.ServeHTTP(httptest.NewRecorder(), req) // would take an hour
	if got, _ := p.Requests(); len(got) != 1 || got[0].Status != 0 {
		t.Errorf("the requests are %+v", got)
	}
}
