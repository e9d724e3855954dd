package daemon

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/firstlight-dev/firstlight/snapshotter/internal/layers"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/registry"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/supply"
	"github.com/firstlight-dev/firstlight/snapshotter/nodeapi"
)

// scrapeTimeout bounds the reading of the database for one scrape.
const scrapeTimeout = 5 * time.Second

// namespace begins every name.
const namespace = "firstlight_snapshotter_"

// maxHosts bounds the hosts that have a label of their own. Their names come
// from images; nodes pull from a handful of registries and their mirrors, and
// what comes after that many is "other".
const maxHosts = 16

// meters are the metrics that are counted as things happen.
type meters struct {
	requests *prometheus.CounterVec
	waits    prometheus.Histogram

	mu    sync.Mutex
	hosts map[string]bool
}

func newMeters() *meters {
	return &meters{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: namespace + "registry_requests_total", Help: "Requests to registries, mirrors and where they redirect to, by what came of their headers.",
		}, []string{"host", "result"}),
		waits: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: namespace + "read_wait_seconds", Help: "How long reads of lazy layers waited for a registry; reads of what is here are not counted.",
			// From a chunk out of a mirror on the node to the deadline of a read.
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}),
		hosts: map[string]bool{},
	}
}

// request counts a request to a registry.
func (m *meters) request(host string, err error) {
	m.requests.WithLabelValues(m.label(host), registry.Result(err)).Inc()
}

func (m *meters) label(host string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.hosts[host] {
		if len(m.hosts) >= maxHosts {
			return "other"
		}
		m.hosts[host] = true
	}
	return host
}

func (m *meters) waited(d time.Duration) { m.waits.Observe(d.Seconds()) }

// collector makes metrics of the node API's figures. Its labels have a fixed
// number of values: no image, layer or container is ever one.
type collector struct {
	api    *api
	supply *supply.Service

	layers, chunks, bytes, requests, waited, images, pulled, restarts *prometheus.Desc

	fetched, ranges, failures, hung                                   *prometheus.Desc
	cacheBytes, cacheLimit, cacheHeld, evicted, evictedBytes, refused *prometheus.Desc
}

func newCollector(a *api, s *supply.Service) *collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(namespace+name, help, labels, nil)
	}
	return &collector{
		api: a, supply: s,
		fetched:      desc("fetched_bytes_total", "Bytes of layers received from registries."),
		ranges:       desc("range_requests_total", "Range requests made for layers."),
		failures:     desc("fetch_failures_total", "Range requests that failed, or brought what is not the layer."),
		hung:         desc("hung_reads", "Reads that have waited for a registry for more than ten seconds."),
		cacheBytes:   desc("cache_bytes", "Disk space of fetched layers."),
		cacheLimit:   desc("cache_limit_bytes", "Disk space that they may take now; 0 for no limit."),
		cacheHeld:    desc("cache_held_bytes", "Disk space of layers that the kernel reads by itself, which are not evicted."),
		evicted:      desc("cache_evicted_chunks_total", "Chunks taken out of the cache."),
		evictedBytes: desc("cache_evicted_bytes_total", "Disk space that freed."),
		refused:      desc("cache_refused_chunks_total", "Chunks that were served but not kept, for want of room."),
		layers:       desc("layers", "Layers of prepared images, each counted once.", "state"),
		chunks:       desc("chunks", "Chunks of lazy layers.", "state"),
		bytes:        desc("fetched_bytes", "Bytes that layers in use have read from registries."),
		requests:     desc("requests", "Requests that layers in use have made to registries."),
		waited:       desc("on_demand_wait_seconds", "Time in which readers of layers in use had to wait."),
		images:       desc("images_total", "Images asked for, by what became of them.", "outcome"),
		pulled:       desc("layers_pulled_total", "Layers without an index that were unpacked here."),
		restarts:     desc("worker_restarts", "Times the worker was started again."),
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		c.layers, c.chunks, c.bytes, c.requests, c.waited, c.images, c.pulled, c.restarts, c.fetched, c.ranges, c.failures, c.hung,
		c.cacheBytes, c.cacheLimit, c.cacheHeld, c.evicted, c.evictedBytes, c.refused,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	images, err := c.api.Images(ctx)
	if err != nil {
		ch <- prometheus.NewInvalidMetric(c.layers, err)
		return
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	states := map[string]float64{nodeapi.StateLazy: 0, nodeapi.StateComplete: 0, nodeapi.StateLocal: 0, nodeapi.StateQuarantined: 0}
	all := nodeapi.Image{}
	seen := map[string]bool{}
	for _, im := range images {
		for _, l := range im.Layers {
			if !seen[l.Digest] {
				seen[l.Digest] = true
				states[l.State]++
				all.Layers = append(all.Layers, l)
			}
		}
	}
	for state, n := range states {
		gauge(c.layers, n, state)
	}
	sum := all.Totals()
	gauge(c.chunks, float64(sum.ChunksPresent), "present")
	gauge(c.chunks, float64(sum.Chunks-sum.ChunksPresent), "missing")
	gauge(c.bytes, float64(sum.BytesFetched))
	gauge(c.requests, float64(sum.Requests))
	gauge(c.waited, float64(sum.OnDemandWaitMS)/1000)
	gauge(c.restarts, float64(c.api.restarts))
	n := c.supply.Counters()
	for outcome, v := range map[string]int64{"lazy": n.Lazy, "ordinary": n.Ordinary, "failed": n.Failed} {
		ch <- prometheus.MustNewConstMetric(c.images, prometheus.CounterValue, float64(v), outcome)
	}
	ch <- prometheus.MustNewConstMetric(c.pulled, prometheus.CounterValue, float64(n.Pulled))
	c.collectNode(ch)
}

// collectNode sends what is not of any layer.
func (c *collector) collectNode(ch chan<- prometheus.Metric) {
	gate := c.api.layers.Gate
	t, st := gate.Totals(), c.api.cacheStatus()
	for d, v := range map[*prometheus.Desc]int64{
		c.fetched: t.BytesFetched, c.ranges: t.Requests, c.failures: t.Failures,
		c.evicted: st.EvictedChunks, c.evictedBytes: st.EvictedBytes, c.refused: st.RefusedChunks,
	} {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v))
	}
	for d, v := range map[*prometheus.Desc]int64{
		c.cacheBytes: st.Bytes, c.cacheLimit: st.Limit, c.cacheHeld: st.HeldBytes, c.hung: int64(gate.Waiting(layers.HungAfter)),
	} {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v))
	}
}

func metricsHandler(c *collector, m *meters) http.Handler {
	return promhttp.HandlerFor(newRegistry(c, m), promhttp.HandlerOpts{})
}

func newRegistry(c *collector, m *meters) *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(c, m.requests, m.waits, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}
