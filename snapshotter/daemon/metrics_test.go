package daemon

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/firstlight-dev/firstlight/snapshotter/internal/account"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/cache"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/fusefs"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/layers"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/registry"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/store"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/supply"
)

// newScraped is a node without images, and what it counts by.
func newScraped(t *testing.T) (*collector, *meters) {
	t.Helper()
	dir, log := t.TempDir(), slog.New(slog.DiscardHandler)
	st, err := store.Open(filepath.Join(dir, "layers.db"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := cache.Open(filepath.Join(dir, "cache"), cache.WithLimits(cache.Limits{MaxBytes: 1 << 30}))
	if err != nil {
		t.Fatal(err)
	}
	set, err := layers.Open(t.Context(), layers.Config{Store: st, Cache: c, Server: fusefs.New(log)})
	if err != nil {
		t.Fatal(err)
	}
	svc, err := supply.New(t.Context(), supply.Config{Dir: filepath.Join(dir, "unpack"), Log: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(svc.Close(), set.Close(), c.Close(), st.Close()); err != nil {
			t.Error(err)
		}
	})
	return newCollector(&api{store: st, cache: c, layers: set, book: account.NewBook(), restarts: 3}, svc), newMeters()
}

// TestMetrics scrapes a node that has talked to more registries than it has
// labels for, and compares the names, types and labels of what it counts.
func TestMetrics(t *testing.T) {
	c, m := newScraped(t)
	for i := range 3 * maxHosts {
		m.request(fmt.Sprintf("registry-%d.example", i), nil)
		m.request(fmt.Sprintf("registry-%d.example", i), fmt.Errorf("fetch: %w", registry.ErrTimeout))
	}
	m.waited(3 * time.Second)
	rec := httptest.NewRecorder()
	metricsHandler(c, m).ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	b, err := io.ReadAll(rec.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`firstlight_snapshotter_registry_requests_total{host="registry-3.example",result="timeout"} 1`,
		fmt.Sprintf(`firstlight_snapshotter_registry_requests_total{host="other",result="ok"} %d`, 2*maxHosts),
		`firstlight_snapshotter_read_wait_seconds_bucket{le="5"} 1`,
		`firstlight_snapshotter_cache_limit_bytes 1.073741824e+09`,
		`firstlight_snapshotter_worker_restarts 3`,
		`firstlight_snapshotter_hung_reads 0`,
	} {
		if !strings.Contains(string(b), want+"\n") {
			t.Errorf("the scrape lacks %s", want)
		}
	}
	families, err := newRegistry(c, m).Gather()
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), namespace) {
			continue // Go's and the process's own
		}
		values := map[string]map[string]bool{}
		for _, metric := range f.GetMetric() {
			for _, l := range metric.GetLabel() {
				if values[l.GetName()] == nil {
					values[l.GetName()] = map[string]bool{}
				}
				values[l.GetName()][l.GetValue()] = true
			}
		}
		line := f.GetName() + " " + strings.ToLower(f.GetType().String())
		for _, label := range slices.Sorted(maps.Keys(values)) {
			line += fmt.Sprintf(" %s=%d", label, len(values[label]))
			if len(values[label]) > maxHosts+1 {
				t.Errorf("%s has %d values of %s", f.GetName(), len(values[label]), label)
			}
		}
		lines = append(lines, line)
	}
	golden(t, "metrics.txt", strings.Join(lines, "\n")+"\n")
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if flag.Lookup("update").Value.String() == "true" {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("%s (-want +got):\n%s", name, d)
	}
}
