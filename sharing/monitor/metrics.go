package monitor

import (
	"context"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/firstlight-dev/firstlight/sharing/inventory"
	"github.com/firstlight-dev/firstlight/sharing/wire"
)

// Metric names are HAMi's. Utilisation is in percent, despite its name.
const (
	metricHostMemory  = "hami_host_gpu_memory_used_bytes"
	metricHostUtil    = "hami_host_gpu_utilization_ratio"
	metricUsed        = "hami_vgpu_memory_used_bytes"
	metricLimit       = "hami_vgpu_memory_limit_bytes"
	metricContainer   = "hami_container_device_memory_bytes"
	metricUtilization = "hami_container_device_utilization_ratio"
	metricContext     = "hami_vgpu_memory_context_bytes"
	metricModule      = "hami_vgpu_memory_module_bytes"
	metricBuffer      = "hami_vgpu_memory_buffer_bytes"
	metricLastKernel  = "hami_container_last_kernel_elapsed_seconds"
	metricHealthy     = "firstlight_card_healthy"
)

// measureTime bounds one question to the driver.
const measureTime = 5 * time.Second

// Collector gives the node's metrics, read at scrape time.
type Collector struct {
	node       string
	cards      func() []wire.Device
	meter      inventory.Meter // nil if nobody can measure
	containers *Containers
	descs      map[string]*prometheus.Desc
}

// NewCollector returns the metrics of a node. Cards that the source can't
// measure, such as simulated ones, have no host metrics.
func NewCollector(node string, cards func() []wire.Device, source inventory.Source, containers *Containers) *Collector {
	c := &Collector{node: node, cards: cards, containers: containers, descs: map[string]*prometheus.Desc{}}
	c.meter, _ = source.(inventory.Meter)
	zone := prometheus.Labels{"zone": "vGPU"}
	card := []string{"node", "device_index", "device_uuid", "device_type"}
	vgpu := []string{"namespace", "pod", "container", "vdevice_index", "device_uuid"}
	for _, m := range []struct {
		name, help string
		labels     []string
	}{
		{metricHostMemory, "Memory in use on a card.", card},
		{metricHostUtil, "Time in which a card ran a kernel, in percent.", card},
		{metricHealthy, "1 if a card works.", card},
		{metricUsed, "Memory that a container uses of a vGPU.", vgpu},
		{metricLimit, "Memory that a container may use of a vGPU, 0 for no limit.", vgpu},
		{metricContainer, "Memory that a container uses of a vGPU.", vgpu},
		{metricUtilization, "Cores that a container uses of a card, in percent.", vgpu},
		{metricContext, "Memory of a container's CUDA contexts.", vgpu},
		{metricModule, "Memory of a container's CUDA modules.", vgpu},
		{metricBuffer, "Memory of a container's CUDA buffers.", vgpu},
		{metricLastKernel, "Time since a container launched a kernel.", vgpu},
	} {
		c.descs[m.name] = prometheus.NewDesc(m.name, m.help, m.labels, zone)
	}
	return c
}

var _ prometheus.Collector = (*Collector)(nil)

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	send := func(name string, value float64, labels ...string) {
		if m, err := prometheus.NewConstMetric(c.descs[name], prometheus.GaugeValue, value, labels...); err == nil {
			ch <- m
		}
	}
	c.collectCards(send)
	regions, err := c.containers.Regions()
	if err != nil {
		ch <- prometheus.NewInvalidMetric(c.descs[metricUsed], err)
	}
	for _, r := range regions {
		for i, d := range r.Region.Devices {
			vgpu := []string{r.Namespace, r.Pod, r.Container, strconv.Itoa(i), d.UUID}
			send(metricUsed, float64(d.UsedBytes), vgpu...)
			send(metricContainer, float64(d.UsedBytes), vgpu...)
			send(metricLimit, float64(d.LimitBytes), vgpu...)
			send(metricUtilization, float64(d.Utilization), vgpu...)
			send(metricContext, float64(d.Context), vgpu...)
			send(metricModule, float64(d.Module), vgpu...)
			send(metricBuffer, float64(d.Buffer), vgpu...)
			if last := r.Region.LastKernel; !last.IsZero() {
				send(metricLastKernel, max(c.containers.Now().Sub(last).Seconds(), 0), vgpu...)
			}
		}
	}
}

func (c *Collector) collectCards(send func(string, float64, ...string)) {
	cards := map[string][]string{}
	for _, d := range c.cards() {
		labels := []string{c.node, strconv.Itoa(d.Index), d.UUID, d.Type}
		cards[d.UUID] = labels
		healthy := 0.0
		if d.Healthy {
			healthy = 1
		}
		send(metricHealthy, healthy, labels...)
	}
	if c.meter == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), measureTime) // a scrape brings none
	defer cancel()
	loads, err := c.meter.Loads(ctx)
	if err != nil {
		return // the cards' health says so already
	}
	for _, l := range loads {
		if labels, ok := cards[l.UUID]; ok {
			send(metricHostMemory, float64(l.UsedBytes), labels...)
			send(metricHostUtil, float64(l.UtilizationRate), labels...)
		}
	}
}
