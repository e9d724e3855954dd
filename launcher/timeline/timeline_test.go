package timeline_test

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/firstlight-dev/firstlight/launcher/cluster"
	"github.com/firstlight-dev/firstlight/launcher/timeline"
)

var update = flag.Bool("update", false, "write the golden files")

var origin = time.Date(2026, 12, 1, 9, 0, 0, 0, time.UTC)

func at(ms int) time.Time { return origin.Add(time.Duration(ms) * time.Millisecond) }

// lazyStart is a start as it looks on Kubernetes.
func lazyStart() *timeline.Record {
	return &timeline.Record{
		Accepted: origin, Usable: at(4110), ClockError: 2100 * time.Microsecond,
		Spans: map[cluster.Stage]timeline.Span{
			cluster.StageAccept:   {Begin: at(0), End: at(3)},
			cluster.StageResolve:  {Begin: at(3), End: at(45)},
			cluster.StageAdmit:    {Begin: at(45), End: at(70)},
			cluster.StageSchedule: {Begin: at(70), End: at(130)},
			cluster.StageSandbox:  {Begin: at(130), End: at(620)},
			cluster.StageTools:    {Begin: at(620), End: at(640)},
			cluster.StageImage:    {Begin: at(655), End: at(1400), Attrs: map[string]any{"pullOwnMs": 700}},
			cluster.StageCreate:   {Begin: at(1400), End: at(1710)},
			cluster.StageAgent:    {Begin: at(1710), End: at(1745)},
		},
		Probes: []timeline.Probe{
			{Name: "login", Eligible: at(1760), FirstSuccess: at(2300), Confirmed: true, Attempts: 2, Levels: []timeline.Level{
				{ID: "banner", Begin: at(2100), End: at(2120)}, {ID: "shell", Begin: at(2120), End: at(2300)},
			}},
			{Name: "numpy", Eligible: at(1750), FirstSuccess: at(4110), Confirmed: true, Attempts: 1},
		},
		Image: &cluster.ImageUse{BytesFetched: 38_200_000, Requests: 41, Lazy: true},
	}
}

func fullPull() *timeline.Record {
	r := lazyStart()
	shift := func(t time.Time) time.Time { return t.Add(9800 * time.Millisecond) }
	image := r.Spans[cluster.StageImage]
	image.End = shift(image.End)
	r.Spans[cluster.StageImage] = image
	for _, s := range []cluster.Stage{cluster.StageCreate, cluster.StageAgent} {
		span := r.Spans[s]
		r.Spans[s] = timeline.Span{Begin: shift(span.Begin), End: shift(span.End)}
	}
	for i := range r.Probes {
		p := &r.Probes[i]
		p.Eligible, p.FirstSuccess, p.Levels = shift(p.Eligible), shift(p.FirstSuccess).Add(-2*time.Second), nil
	}
	r.Probes[0].FirstSuccess = r.Probes[0].Eligible.Add(200 * time.Millisecond)
	r.Usable = r.Probes[1].FirstSuccess
	r.Image = &cluster.ImageUse{BytesFetched: 140_000_000, Complete: true}
	return r
}

// waiting is a start that is not over.
func waiting() *timeline.Record {
	r := lazyStart()
	r.Usable, r.Image = time.Time{}, nil
	for _, s := range []cluster.Stage{cluster.StageCreate, cluster.StageAgent} {
		delete(r.Spans, s)
	}
	r.Spans[cluster.StageImage] = timeline.Span{Begin: at(655)}
	r.Probes = []timeline.Probe{{Name: "login", LastError: "dial: connection refused"}}
	return r
}

func build(r *timeline.Record, name string) *timeline.Timeline {
	t := timeline.Build(r, at(2000))
	t.Environment, t.Name = "env-1", name
	return t
}

func TestGolden(t *testing.T) {
	lazy, full := build(lazyStart(), "lazy"), build(fullPull(), "full")
	text := func(tl *timeline.Timeline, s timeline.Style) func(io.Writer) error {
		return func(w io.Writer) error { return tl.Text(w, s) }
	}
	for name, draw := range map[string]func(io.Writer) error{
		"lazy-80.txt":    text(lazy, timeline.Style{Width: 80}),
		"lazy-120.txt":   text(lazy, timeline.Style{Width: 120}),
		"lazy-tiny.txt":  text(lazy, timeline.Style{Width: 1}),
		"colour.txt":     text(lazy, timeline.Style{Width: 80, Colour: true}),
		"waiting-80.txt": text(build(waiting(), "waiting"), timeline.Style{Width: 80}),
		"lazy.svg":       lazy.SVG,
		"lazy.json": func(w io.Writer) error {
			enc := json.NewEncoder(w)
			enc.SetIndent("", " ")
			return enc.Encode(lazy)
		},
		"compare-120.txt": func(w io.Writer) error {
			return timeline.Compare(w, timeline.Run{Label: "lazy", Timeline: lazy}, timeline.Run{Label: "full", Timeline: full}, timeline.Style{Width: 120})
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got bytes.Buffer
			if err := draw(&got); err != nil {
				t.Fatal(err)
			}
			golden(t, name, got.Bytes())
		})
	}
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s differs; -update writes it anew\n%s", file, diff)
	}
}

// TestAddsUp draws records at random, also impossible ones, and checks what
// must hold for all of them.
func TestAddsUp(t *testing.T) {
	for seed := range uint64(3000) {
		rng := rand.New(rand.NewPCG(seed, 1))
		r := randomRecord(rng)
		tl := timeline.Build(r, at(rng.IntN(12000)))
		var sum, unattributed, cursor int64
		for _, row := range tl.CriticalPath {
			if row.StartMs != cursor {
				t.Fatalf("seed %d: %s starts at %d, the row before ends at %d", seed, row.ID, row.StartMs, cursor)
			}
			sum, cursor = sum+row.DurationMs, row.EndMs()
			if row.ID == timeline.Unattributed {
				unattributed += row.DurationMs
			}
		}
		if sum != tl.TotalMs || unattributed != tl.UnattributedMs {
			t.Fatalf("seed %d: the critical path has %d of %d ms, %d of %d unattributed", seed, sum, tl.TotalMs, unattributed, tl.UnattributedMs)
		}
		for _, row := range allRows(tl) {
			if row.DurationMs < 0 || row.StartMs < 0 || row.EndMs() > tl.TotalMs {
				t.Fatalf("seed %d: row %+v of %d ms", seed, row, tl.TotalMs)
			}
		}
		checkDrawings(t, tl)
	}
}

func allRows(tl *timeline.Timeline) []timeline.Row {
	rows := append(append([]timeline.Row(nil), tl.Stages...), tl.CriticalPath...)
	for i := range tl.Lanes {
		rows = append(append(rows, tl.Lanes[i].Row), tl.Lanes[i].Levels...)
	}
	return rows
}

func checkDrawings(t *testing.T, tl *timeline.Timeline) {
	t.Helper()
	var svg bytes.Buffer
	err := errors.Join(tl.Text(io.Discard, timeline.Style{Width: 70}), tl.SVG(&svg),
		timeline.Compare(io.Discard, timeline.Run{Label: "a", Timeline: tl}, timeline.Run{Label: "b", Timeline: tl}, timeline.Style{}))
	if err != nil {
		t.Fatal(err)
	}
	for dec := xml.NewDecoder(&svg); ; {
		if _, err := dec.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatalf("the picture is not XML: %v", err)
		}
	}
}

func randomRecord(rng *rand.Rand) *timeline.Record {
	r := &timeline.Record{Accepted: origin, Spans: map[cluster.Stage]timeline.Span{}, ClockError: time.Duration(rng.IntN(5000)) * time.Microsecond}
	moment := func() time.Time {
		return origin.Add(time.Duration(rng.IntN(10_000_000)-500_000) * time.Microsecond)
	}
	maybe := func() time.Time {
		if rng.IntN(4) == 0 {
			return time.Time{}
		}
		return moment()
	}
	for _, s := range cluster.Chain() {
		if rng.IntN(4) > 0 {
			r.Spans[s] = timeline.Span{Begin: moment(), End: maybe()}
		}
	}
	for _, name := range []string{"a<b", "c\n&d", "eeeeeeeeeeeeeeeeeeeeeeeeee"}[:rng.IntN(4)] {
		r.Probes = append(r.Probes, timeline.Probe{
			Name: name, Eligible: maybe(), FirstSuccess: maybe(), LastError: "no \x1b luck",
			Levels: []timeline.Level{{ID: "x", Begin: moment(), End: moment()}},
		})
	}
	switch rng.IntN(3) {
	case 0:
		r.Usable = moment()
	case 1:
		r.Ended = moment()
	}
	return r
}
