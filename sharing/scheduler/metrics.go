package scheduler

import (
	"slices"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/firstlight-dev/firstlight/sharing/wire"
)

// mib is the unit of memory in annotations.
const mib = 1 << 20

// Collector gives the account as HAMi's scheduler metrics, read at scrape time.
type Collector struct {
	ledger *Ledger
	descs  map[string]*prometheus.Desc
}

// Metric names and their meaning. "Core" figures are percents, despite their names.
const (
	metricMemLimit   = "hami_gpu_memory_limit_bytes"
	metricCoreLimit  = "hami_gpu_core_limit_ratio"
	metricShared     = "hami_gpu_shared_count"
	metricCoreUsed   = "hami_gpu_core_allocated_ratio"
	metricMemRatio   = "hami_node_gpu_memory_allocated_ratio"
	metricMemUsed    = "hami_gpu_memory_allocated_bytes"
	metricOverview   = "hami_node_gpu_overview"
	metricVGPUMem    = "hami_vgpu_memory_allocated_bytes"
	metricVGPUCore   = "hami_vgpu_core_allocated_ratio"
	metricNodeClosed = "firstlight_node_closed"
)

// NewCollector returns the metrics of a ledger.
func NewCollector(l *Ledger) *Collector {
	c := &Collector{ledger: l, descs: map[string]*prometheus.Desc{}}
	zone := prometheus.Labels{"zone": "vGPU"}
	card := []string{"node", "device_uuid", "device_index", "device_type"}
	vgpu := []string{"namespace", "node", "pod", "container_index", "device_uuid"}
	for _, m := range []struct {
		name, help string
		labels     []string
	}{
		{metricMemLimit, "Memory of a card.", card},
		{metricCoreLimit, "Cores of a card, in percent.", card},
		{metricShared, "vGPUs on a card.", card},
		{metricCoreUsed, "Cores allocated on a card, in percent.", card},
		{metricMemRatio, "Part of a card's memory that is allocated, 0 to 1.", card},
		{metricMemUsed, "Memory allocated on a card.", append(card[:4:4], "device_cores")},
		{metricOverview, "Memory allocated on a card, with its limits as labels.", append(card[:4:4], "device_cores", "device_memory_limit")},
		{metricVGPUMem, "Memory allocated to a container on a card.", vgpu},
		{metricVGPUCore, "Cores allocated to a container on a card, in percent.", vgpu},
		{metricNodeClosed, "1 if a node with cards takes no new work.", []string{"node"}},
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
		// Labels come from annotations; a value that no label can hold is left out.
		if m, err := prometheus.NewConstMetric(c.descs[name], prometheus.GaugeValue, value, labels...); err == nil {
			ch <- m
		}
	}
	nodes, pods := c.ledger.Snapshot()
	for _, n := range nodes {
		closed := 0.0
		if n.Closed != "" {
			closed = 1
		}
		send(metricNodeClosed, closed, n.Node)
		for _, u := range n.Cards {
			card := []string{n.Node, u.UUID, strconv.Itoa(u.Index), u.Type}
			cores := strconv.Itoa(u.UsedCores)
			send(metricMemLimit, float64(u.MemMiB)*mib, card...)
			send(metricCoreLimit, float64(u.Cores), card...)
			send(metricShared, float64(u.UsedSlots), card...)
			send(metricCoreUsed, float64(u.UsedCores), card...)
			if u.MemMiB > 0 {
				send(metricMemRatio, float64(u.UsedMemMiB)/float64(u.MemMiB), card...)
			}
			send(metricMemUsed, float64(u.UsedMemMiB)*mib, append(card, cores)...)
			send(metricOverview, float64(u.UsedMemMiB)*mib, append(card, cores, strconv.Itoa(u.MemMiB))...)
		}
	}
	for _, p := range pods {
		for i, container := range p.Devices {
			for _, d := range onePerCard(container) {
				vgpu := []string{p.Pod.Namespace, p.Node, p.Pod.Name, strconv.Itoa(i), d.UUID}
				send(metricVGPUMem, float64(d.MemMiB)*mib, vgpu...)
				send(metricVGPUCore, float64(d.Cores), vgpu...)
			}
		}
	}
}

// onePerCard sums a container's vGPUs per card: an annotation that somebody
// wrote by hand may name a card twice, a metric may not.
func onePerCard(devices wire.ContainerDevices) wire.ContainerDevices {
	var sums wire.ContainerDevices
	for _, d := range devices {
		i := slices.IndexFunc(sums, func(o wire.ContainerDevice) bool { return o.UUID == d.UUID })
		if i < 0 {
			sums = append(sums, d)
			continue
		}
		sums[i].MemMiB += d.MemMiB
		sums[i].Cores += d.Cores
	}
	return sums
}
