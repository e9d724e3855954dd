package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"
	"unicode"

	"golang.org/x/term"

	"github.com/firstlight-dev/firstlight/launcher/api"
	"github.com/firstlight-dev/firstlight/launcher/client"
	"github.com/firstlight-dev/firstlight/launcher/cluster"
	"github.com/firstlight-dev/firstlight/launcher/store"
	"github.com/firstlight-dev/firstlight/launcher/timeline"
)

// progress prints what happens to an environment, one line for each thing
// that is over. On a terminal a last line says what is going on.
type progress struct {
	w        io.Writer
	live     bool
	accepted time.Time
	phase    store.Phase
	failure  error
	reason   string            // last reason printed, to say it once
	shown    bool              // the last line is on the screen
	lanes    map[string]string // why probes do not succeed yet
}

func newProgress(w io.Writer, env *api.Environment) *progress {
	return &progress{w: w, live: terminalWidth(w) > 0, accepted: env.Status.AcceptedAt, phase: env.Status.Phase, lanes: map[string]string{}}
}

// terminalWidth returns 0 for what is not a terminal.
func terminalWidth(w io.Writer) int {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return 0
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 80
	}
	return width
}

// plainWidth is the width of pictures that go to files and pipes.
const plainWidth = 100

func styleOf(w io.Writer) timeline.Style {
	if width := terminalWidth(w); width > 0 {
		return timeline.Style{Width: width, Colour: os.Getenv("NO_COLOR") == ""}
	}
	return timeline.Style{Width: plainWidth}
}

// event is told every event; it returns client.ErrStop at the end.
func (p *progress) event(ev client.Event) error {
	switch ev.Kind {
	case "stage":
		var s struct {
			Stage      cluster.Stage
			Begin, End time.Time
			Attrs      map[string]any
		}
		if err := json.Unmarshal(ev.Data, &s); err != nil {
			return err
		}
		p.stage(s.Stage, s.Begin, s.End)
	case "probe":
		var l timeline.Probe
		if err := json.Unmarshal(ev.Data, &l); err != nil {
			return err
		}
		p.probe(&l)
	case "place":
		var pl cluster.Placement
		if err := json.Unmarshal(ev.Data, &pl); err != nil {
			return err
		}
		p.place(pl)
	case "note":
		var n cluster.Note
		if err := json.Unmarshal(ev.Data, &n); err != nil {
			return err
		}
		p.note(n)
	case "phase":
		return p.status(ev.Data)
	case "end":
		p.failure = errors.New("it was removed")
		return client.ErrStop
	}
	return nil
}

func (p *progress) stage(stage cluster.Stage, begin, end time.Time) {
	if end.IsZero() {
		p.current("%s", stage)
		return
	}
	p.line(end, "✓ %-12s %s s", stage, took(begin, end))
}

// probe prints a success; why a probe does not succeed yet is the last line's
// business, until someone gives up waiting.
func (p *progress) probe(l *timeline.Probe) {
	if l.FirstSuccess.IsZero() {
		p.lanes[l.Name] = l.LastError
		p.current("%s: %s", l.Name, l.LastError)
		return
	}
	delete(p.lanes, l.Name)
	p.line(l.FirstSuccess, "✓ %-12s %s s", l.Name, took(l.Eligible, l.FirstSuccess))
}

// pending prints what the environment still lacks.
func (p *progress) pending() {
	for _, name := range slices.Sorted(maps.Keys(p.lanes)) {
		fmt.Fprintf(p.w, "  %s has not succeeded: %s\n", name, printable(p.lanes[name]))
	}
}

func (p *progress) place(pl cluster.Placement) {
	var devices []string
	for _, d := range pl.Devices {
		devices = append(devices, fmt.Sprintf("%s (%d MiB, %d %% cores)", d.UUID, d.MemoryMiB, d.Cores))
	}
	p.line(time.Now(), "  on node %s %s", pl.Node, strings.Join(devices, ", "))
}

func (p *progress) note(n cluster.Note) {
	if n.Warning && n.Reason+n.Message != p.reason {
		p.reason = n.Reason + n.Message
		p.line(n.At, "! %s: %s", n.Reason, n.Message)
	}
}

func (p *progress) status(data json.RawMessage) error {
	var s store.Status
	if err := json.Unmarshal(data, &s); err != nil {
		return err
	}
	p.phase = s.Phase
	switch s.Phase {
	case store.PhaseUsable:
		if s.UsableAt != nil {
			p.line(*s.UsableAt, "✓ usable")
		}
		return client.ErrStop
	case store.PhaseFailed:
		p.failure = fmt.Errorf("%s: %s", s.Reason, s.Message)
		return client.ErrStop
	case store.PhaseProbing:
		p.current("probing")
	}
	return nil
}

func took(begin, end time.Time) string {
	return fmt.Sprintf("%.3f", max(end.Sub(begin), 0).Seconds())
}

func (p *progress) line(at time.Time, format string, args ...any) {
	p.clear()
	fmt.Fprintf(p.w, "%8.3f s  %s\n", max(at.Sub(p.accepted), 0).Seconds(), printable(fmt.Sprintf(format, args...)))
}

func (p *progress) current(format string, args ...any) {
	if p.live {
		p.clear()
		fmt.Fprintf(p.w, "          … %s", printable(fmt.Sprintf(format, args...)))
		p.shown = true
	}
}

// printable keeps out what could steer the terminal: messages may quote a
// container.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text)
}

func (p *progress) clear() {
	if p.shown {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.shown = false
	}
}

func (p *progress) end() { p.clear() }
