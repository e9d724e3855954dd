package daemon

import (
	"context"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/firstlight-dev/firstlight/snapshotter/internal/supply"
	"github.com/firstlight-dev/firstlight/snapshotter/nodeapi"
)

// scrapeTimeout bounds the reading of the database for one scrape.
const scrapeTimeout = 5 * time.Second

// collector makes metrics of the node API's figures. Its labels have a fixed
// number of values: no image, layer or container is ever one.
type collector struct {
	api    *api
	supply *supply.Service

	layers, chunks, bytes, requests, waited, images, pulled, restarts *prometheus.Desc
}

func newCollector(a *api, s *supply.Service) *collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("firstlight_snapshotter_"+name, help, labels, nil)
	}
	return &collector{
		api: a, supply: s,
		layers:   desc("layers", "Layers of prepared images, each counted once.", "state"),
		chunks:   desc("chunks", "Chunks of lazy layers.", "state"),
		bytes:    desc("fetched_bytes", "Bytes that layers in use have read from registries."),
		requests: desc("requests", "Requests that layers in use have made to registries."),
		waited:   desc("on_demand_wait_seconds", "Time in which readers of layers in use had to wait."),
		images:   desc("images_total", "Images asked for, by what became of them.", "outcome"),
		pulled:   desc("layers_pulled_total", "Layers without an index that were unpacked here."),
		restarts: desc("worker_restarts", "Times the worker was started again."),
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.layers, c.chunks, c.bytes, c.requests, c.waited, c.images, c.pulled, c.restarts} {
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
}

func metricsHandler(c *collector) http.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister(c, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{})
}
