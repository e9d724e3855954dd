// Package timeline turns what was seen of one environment's start into a
// waterfall whose parts add up.
//
// # Vocabulary
//
// A [Record] holds what was seen: when stages began and ended, and how the
// probes went. [Build] makes a [Timeline] of it. The chain is the row of stages
// from the request to the running agent; a lane is one probe, and lanes run side
// by side. The critical path is the chain followed by the lane that finished
// last.
//
// # Invariants
//
//   - Stages of the chain neither overlap nor leave gaps: time that no stage
//     claims becomes a row of its own, [Unattributed], and is never hidden.
//   - The rows of the critical path add up to the total, exactly, in whole
//     milliseconds: cuts are rounded, not durations.
//   - A row never reaches past the total or before zero, whatever the record
//     says; a record with clocks that disagree yields short rows, not negative
//     ones.
package timeline

import (
	"maps"
	"slices"
	"time"

	"github.com/firstlight-dev/firstlight/launcher/cluster"
)

// Unattributed names rows of time that no stage claims.
const Unattributed = "unattributed"

// Span is when a stage was seen. A zero End means that it has not ended.
type Span struct {
	Begin time.Time      `json:"begin"`
	End   time.Time      `json:"end,omitzero"`
	Attrs map[string]any `json:"attrs,omitempty"`
}

// Level is one step of a probe.
type Level struct {
	ID    string    `json:"id"`
	Begin time.Time `json:"begin"`
	End   time.Time `json:"end"`
}

// Probe is how one probe went.
type Probe struct {
	Name         string        `json:"name"`
	Eligible     time.Time     `json:"eligible,omitzero"`
	FirstSuccess time.Time     `json:"firstSuccess,omitzero"`
	Confirmed    bool          `json:"confirmed"`
	Attempts     int           `json:"attempts"`
	Uncertainty  time.Duration `json:"uncertainty,omitempty"`
	CPU          time.Duration `json:"cpu,omitempty"`
	LastError    string        `json:"lastError,omitempty"`
	Levels       []Level       `json:"levels,omitempty"`
}

// Record is what was seen of one start. Times are on the launcher's clock.
type Record struct {
	Accepted   time.Time              `json:"accepted"`
	Usable     time.Time              `json:"usable,omitzero"`
	Ended      time.Time              `json:"ended,omitzero"` // given up or removed before it was usable
	Spans      map[cluster.Stage]Span `json:"spans"`
	Probes     []Probe                `json:"probes,omitempty"`
	ClockError time.Duration          `json:"clockError,omitempty"`
	Image      *cluster.ImageUse      `json:"image,omitempty"`
	Adopted    bool                   `json:"adopted,omitempty"` // the launcher was restarted meanwhile: cuts are imprecise
}

// Row is one bar of the waterfall. Times are milliseconds after the request.
type Row struct {
	ID         string         `json:"id"`
	StartMs    int64          `json:"startMs"`
	DurationMs int64          `json:"durationMs"`
	Open       bool           `json:"open,omitempty"`    // still going on
	Skipped    bool           `json:"skipped,omitempty"` // this start did without it
	Attrs      map[string]any `json:"attrs,omitempty"`
}

// EndMs returns the row's end.
func (r Row) EndMs() int64 { return r.StartMs + r.DurationMs }

// Lane is one probe.
type Lane struct {
	Row
	Succeeded     bool   `json:"succeeded"`
	Confirmed     bool   `json:"confirmed"`
	Attempts      int    `json:"attempts"`
	UncertaintyMs int64  `json:"uncertaintyMs"`
	CPUMs         int64  `json:"cpuMs,omitempty"`
	LastError     string `json:"lastError,omitempty"`
	Levels        []Row  `json:"levels,omitempty"`
}

// Timeline is the waterfall of one start.
type Timeline struct {
	Environment    string            `json:"environment"`
	Name           string            `json:"name"`
	AcceptedAt     time.Time         `json:"acceptedAt"`
	UsableAt       *time.Time        `json:"usableAt"`
	TimeToUsableMs *int64            `json:"timeToUsableMs"`
	TotalMs        int64             `json:"totalMs"` // up to usable, the end, or now
	ClockErrorMs   int64             `json:"clockErrorMs"`
	Imprecise      bool              `json:"imprecise,omitempty"`
	Stages         []Row             `json:"stages"` // the chain, unattributed rows among it
	Lanes          []Lane            `json:"lanes"`
	CriticalPath   []Row             `json:"criticalPath"` // adds up to totalMs
	UnattributedMs int64             `json:"unattributedMs"`
	Image          *cluster.ImageUse `json:"image,omitempty"`
}

// Build makes the waterfall of a record as it stands at now.
func Build(r *Record, now time.Time) *Timeline {
	end := now
	switch {
	case !r.Usable.IsZero():
		end = r.Usable
	case !r.Ended.IsZero():
		end = r.Ended
	}
	b := builder{origin: r.Accepted}
	b.total = max(b.offset(end), 0)
	t := &Timeline{
		AcceptedAt: r.Accepted, TotalMs: b.total, Imprecise: r.Adopted, Image: r.Image,
		ClockErrorMs: ceilMs(r.ClockError), Lanes: []Lane{},
	}
	if !r.Usable.IsZero() {
		t.UsableAt, t.TimeToUsableMs = &r.Usable, &b.total
	}
	done := end != now
	cursor := b.chain(t, r, done)
	for i := range r.Probes {
		t.Lanes = append(t.Lanes, b.lane(&r.Probes[i], done))
	}
	b.critical(t, cursor)
	for _, row := range t.CriticalPath {
		if row.ID == Unattributed {
			t.UnattributedMs += row.DurationMs
		}
	}
	return t
}

type builder struct {
	origin time.Time
	total  int64
}

// offset rounds a moment to whole milliseconds after the request.
func (b *builder) offset(at time.Time) int64 {
	return at.Sub(b.origin).Round(time.Millisecond).Milliseconds()
}

// cut is offset, held between low and the total.
func (b *builder) cut(at time.Time, low int64) int64 {
	return min(max(b.offset(at), low), b.total)
}

// chain lays the stages end to end and returns where the last one ends.
func (b *builder) chain(t *Timeline, r *Record, done bool) int64 {
	cursor := int64(0)
	last := -1 // the last stage seen; those after it have not come yet
	for i, stage := range cluster.Chain() {
		if _, seen := r.Spans[stage]; seen {
			last = i
		}
	}
	for i, stage := range cluster.Chain() {
		span, seen := r.Spans[stage]
		if !seen {
			if i < last || done {
				t.Stages = append(t.Stages, Row{ID: string(stage), StartMs: cursor, Skipped: true})
			}
			continue
		}
		start := b.cut(span.Begin, cursor)
		if start > cursor {
			t.Stages = append(t.Stages, Row{ID: Unattributed, StartMs: cursor, DurationMs: start - cursor})
		}
		row := Row{ID: string(stage), StartMs: start, Attrs: maps.Clone(span.Attrs)}
		cursor = b.end(&row, span.End, done || i < last)
		t.Stages = append(t.Stages, row)
	}
	return cursor
}

// end closes a row at the given moment, or at the total if there is none.
func (b *builder) end(row *Row, at time.Time, done bool) int64 {
	stop := b.total
	switch {
	case !at.IsZero():
		stop = b.cut(at, row.StartMs)
	case done:
		// Begun, never seen to end, and yet over: nobody can say how long it
		// took, so the time goes to unattributed.
		stop = row.StartMs
	default:
		row.Open = true
	}
	row.DurationMs = stop - row.StartMs
	return stop
}

func (b *builder) lane(p *Probe, done bool) Lane {
	l := Lane{
		Row:       Row{ID: p.Name, StartMs: b.total},
		Succeeded: !p.FirstSuccess.IsZero(), Confirmed: p.Confirmed, Attempts: p.Attempts,
		UncertaintyMs: ceilMs(p.Uncertainty), CPUMs: p.CPU.Milliseconds(), LastError: p.LastError,
	}
	if p.Eligible.IsZero() {
		return l
	}
	l.StartMs = b.cut(p.Eligible, 0)
	if l.Succeeded {
		l.DurationMs = b.cut(p.FirstSuccess, l.StartMs) - l.StartMs
	} else {
		l.DurationMs = b.total - l.StartMs
		l.Open = !done
	}
	for _, level := range p.Levels {
		start := b.cut(level.Begin, 0)
		l.Levels = append(l.Levels, Row{ID: level.ID, StartMs: start, DurationMs: b.cut(level.End, start) - start})
	}
	return l
}

// critical is the chain and the lane that finished last, with every gap named.
func (b *builder) critical(t *Timeline, cursor int64) {
	for _, row := range t.Stages {
		if !row.Skipped {
			t.CriticalPath = append(t.CriticalPath, row)
		}
	}
	gap := func(to int64) {
		if to > cursor {
			t.CriticalPath = append(t.CriticalPath, Row{ID: Unattributed, StartMs: cursor, DurationMs: to - cursor})
			cursor = to
		}
	}
	if len(t.Lanes) > 0 {
		lane := slices.MaxFunc(t.Lanes, func(x, y Lane) int { return int(x.EndMs() - y.EndMs()) })
		if lane.EndMs() > cursor {
			gap(lane.StartMs)
			t.CriticalPath = append(t.CriticalPath, Row{
				ID: lane.ID, StartMs: cursor, DurationMs: lane.EndMs() - cursor, Open: lane.Open,
			})
			cursor = lane.EndMs()
		}
	}
	gap(b.total)
}

// ceilMs rounds up: an error bound must not be printed smaller than it is.
func ceilMs(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}
