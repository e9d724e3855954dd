// Package report turns the runs of a benchmark into figures: a file for
// programs, tables for people.
//
// A run is one cold start of one image by one arm, an arm being one way to start
// it. Arms are compared within one report only: the figures of two machines, or
// of one machine at two times, say nothing about each other.
package report

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/firstlight-dev/firstlight/test/bench/proxy"
	"github.com/firstlight-dev/firstlight/test/bench/stat"
)

// Arms that are compared by name.
const (
	Firstlight = "firstlight"
	Profiled   = "firstlight+profile"
	Overlayfs  = "overlayfs"
	SOCI       = "soci"
)

// Conditions are what the figures depend on.
type Conditions struct {
	Date     time.Time `json:"date"`
	CPUs     int       `json:"cpus"`
	Kernel   string    `json:"kernel"`
	Mbits    int       `json:"mbits"`
	Latency  float64   `json:"latency_seconds"` // of each request
	Load     float64   `json:"load"`            // average of the minute before
	LoadLast float64   `json:"load_last"`       // of the last minute, the benchmark's own share in it
}

// Run is one cold start, from the pull until the image's program has run.
type Run struct {
	Image    string             `json:"image"`
	Arm      string             `json:"arm"`
	Pulled   float64            `json:"pulled_seconds"` // the pull's part of Usable
	Usable   float64            `json:"usable_seconds"`
	Bytes    int64              `json:"bytes"` // of bodies, until usable
	Requests int                `json:"requests"`
	Kinds    map[proxy.Kind]int `json:"kinds"`
	CPU      float64            `json:"cpu_seconds"` // of containerd and the snapshotter, until usable
	PeakRSS  int64              `json:"peak_rss"`    // bytes, of the snapshotter's processes together; overlayfs: containerd
}

// Report is the whole.
type Report struct {
	Conditions Conditions         `json:"conditions"`
	Ratios     map[string]float64 `json:"ratios"`
	Runs       []Run              `json:"runs"`
}

// key is a ratio that a report states, and the bar it is held to.
type key struct {
	name        string
	image       string
	above, over string // arms
	value       func(Run) float64
	bar         float64
}

func keys() []key {
	return []key{
		{"py_lazy_vs_overlayfs", "py", Firstlight, Overlayfs, usable, 0.25},
		{"py_lazy_vs_soci", "py", Firstlight, SOCI, usable, 0.55},
		{"py_bytes_vs_soci", "py", Firstlight, SOCI, carried, 0.7},
	}
}

func usable(r Run) float64   { return r.Usable }
func pulled(r Run) float64   { return r.Pulled }
func carried(r Run) float64  { return float64(r.Bytes) / 1e6 }
func requests(r Run) float64 { return float64(r.Requests) }
func cpu(r Run) float64      { return r.CPU }
func rss(r Run) float64      { return float64(r.PeakRSS) / 1e6 }

// New computes the ratios of medians that the runs allow.
func New(conditions Conditions, runs []Run) Report {
	r := Report{Conditions: conditions, Ratios: map[string]float64{}, Runs: runs}
	for _, k := range keys() {
		above, over := r.summary(k.image, k.above, k.value), r.summary(k.image, k.over, k.value)
		if ratio, ok := stat.Ratio(above, over); ok {
			r.Ratios[k.name] = ratio
		}
	}
	return r
}

func (r Report) summary(image, arm string, value func(Run) float64) stat.Summary {
	var values []float64
	for _, run := range r.Runs {
		if run.Image == image && run.Arm == arm {
			values = append(values, value(run))
		}
	}
	return stat.Of(values)
}

// WriteFile writes the report as JSON, with the folder that it lies in.
func (r Report) WriteFile(path string) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("encode report: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("make report folder: %w", err)
	}
	if err := os.WriteFile(path, append(b, '\n'), 0o644); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

// WriteTables prints a table of each image, and the ratios beside their bars.
// Each figure is a median, with the range behind it where runs differ.
func (r Report) WriteTables(w io.Writer) error {
	c := r.Conditions
	fmt.Fprintf(w, "%d CPUs, Linux %s, %d Mbit/s, %.0f ms per request, load %.1f before and %.1f at the end\n",
		c.CPUs, c.Kernel, c.Mbits, c.Latency*1e3, c.Load, c.LoadLast)
	for _, image := range r.distinct(func(run Run) string { return run.Image }) {
		fmt.Fprintln(w)
		table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintf(table, "%s\truns\tusable, s\tof it pull, s\tMB\trequests\tCPU, s\tpeak RSS, MB\n", image)
		for _, arm := range r.distinct(func(run Run) string { return run.Arm }) {
			of := func(value func(Run) float64) stat.Summary { return r.summary(image, arm, value) }
			fmt.Fprintf(table, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\n", arm, of(usable).N, spread(of(usable), 2), spread(of(pulled), 2),
				spread(of(carried), 1), spread(of(requests), 0), spread(of(cpu), 1), spread(of(rss), 0))
		}
		if err := table.Flush(); err != nil {
			return fmt.Errorf("print table: %w", err)
		}
	}
	return r.writeRatios(w)
}

func (r Report) writeRatios(w io.Writer) error {
	fmt.Fprintln(w)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "ratio\tmeasured\tbar\t")
	for _, k := range keys() {
		ratio, ok := r.Ratios[k.name]
		if !ok {
			continue
		}
		verdict := "met"
		if ratio > k.bar {
			verdict = "missed"
		}
		fmt.Fprintf(table, "%s\t%.2f\t%.2f\t%s\n", k.name, ratio, k.bar, verdict)
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("print ratios: %w", err)
	}
	return nil
}

func (r Report) distinct(of func(Run) string) []string {
	var names []string
	for _, run := range r.Runs {
		if name := of(run); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

func spread(s stat.Summary, decimals int) string {
	number := func(v float64) string { return fmt.Sprintf("%.*f", decimals, v) }
	low, high := number(s.Min), number(s.Max)
	if s.N == 0 {
		return "-"
	}
	if low == high {
		return low
	}
	return fmt.Sprintf("%s (%s to %s)", number(s.Median), low, high)
}
