package timeline

import (
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/dustin/go-humanize"
)

// Style says how a waterfall is drawn as text.
type Style struct {
	Width  int  // columns; at least minWidth is used
	Colour bool // ANSI colours
}

const (
	minWidth   = 56
	nameWidth  = 16
	figures    = 2 + 9 + 1 + 9 + 1 // blanks, start, blank, took, blank
	colourDim  = "\x1b[2m"
	colourBar  = "\x1b[36m"
	colourLane = "\x1b[32m"
	colourGap  = "\x1b[33m"
	colourEnd  = "\x1b[0m"
)

// Text draws the waterfall.
func (t *Timeline) Text(w io.Writer, style Style) error {
	p := printer{style: style, total: t.TotalMs}
	p.bar = max(style.Width, minWidth) - nameWidth - figures - 2
	p.line("%s", t.headline())
	p.line("%-*s%*s%*s", nameWidth, "stage", 11, "start", 10, "took")
	for _, row := range t.Stages {
		p.row(row, row.ID, colourBar)
	}
	if gap := t.tail(); gap.DurationMs > 0 {
		p.row(gap, Unattributed, colourGap)
	}
	for i := range t.Lanes {
		p.lane(&t.Lanes[i])
	}
	p.line("%-*s%*s%*s", nameWidth, "total", 11, "", 10, seconds(t.TotalMs))
	p.line("%-*s%*s%*s", nameWidth, Unattributed, 11, "", 10, seconds(t.UnattributedMs))
	p.line("critical path   %s", strings.Join(t.pathNames(), " > "))
	_, err := io.WriteString(w, p.out.String())
	return err
}

func (t *Timeline) headline() string {
	var b strings.Builder
	b.WriteString(t.Name)
	if t.TimeToUsableMs != nil {
		fmt.Fprintf(&b, ": usable after %s s", seconds(*t.TimeToUsableMs))
	} else {
		fmt.Fprintf(&b, ": not usable after %s s", seconds(t.TotalMs))
	}
	if t.Image != nil {
		kind := "full pull"
		if t.Image.Lazy {
			kind = "lazy"
		}
		fmt.Fprintf(&b, ", %s, %s fetched", kind, bytesText(t.Image.BytesFetched))
	}
	if t.ClockErrorMs > 0 {
		fmt.Fprintf(&b, ", clocks within %d ms", t.ClockErrorMs)
	}
	if t.Imprecise {
		b.WriteString(", imprecise: the launcher was restarted meanwhile")
	}
	return b.String()
}

// tail is the time between the chain and the lane on the critical path, or
// the end: the one gap that is not among the stages.
func (t *Timeline) tail() Row {
	for _, row := range t.CriticalPath[min(len(t.CriticalPath), t.shown()):] {
		if row.ID == Unattributed {
			return row
		}
	}
	return Row{}
}

func (t *Timeline) shown() int {
	n := 0
	for _, row := range t.Stages {
		if !row.Skipped {
			n++
		}
	}
	return n
}

func (t *Timeline) pathNames() []string {
	var names []string
	for _, row := range t.CriticalPath {
		if row.ID != Unattributed {
			names = append(names, row.ID)
		}
	}
	return names
}

type printer struct {
	style Style
	out   strings.Builder
	bar   int   // columns of the drawing
	total int64 // milliseconds those columns stand for
}

func (p *printer) line(format string, args ...any) {
	p.out.WriteString(strings.TrimRight(fmt.Sprintf(format, args...), " "))
	p.out.WriteByte('\n')
}

func (p *printer) paint(colour, text string) string {
	if !p.style.Colour || strings.TrimSpace(text) == "" {
		return text
	}
	return colour + text + colourEnd
}

func (p *printer) row(row Row, name, colour string) {
	took, note := seconds(row.DurationMs), ""
	switch {
	case row.Skipped:
		took = "-"
	case row.Open:
		note = " ..."
	}
	if row.ID == Unattributed {
		colour = colourGap
	}
	start := seconds(row.StartMs)
	if row.Skipped {
		start = ""
	}
	p.line("%s%*s%*s  %s%s", pad(name, nameWidth), 11, start, 10, took, p.paint(colour, p.draw(row)), note)
}

func (p *printer) lane(l *Lane) {
	mark := "✓ "
	if !l.Succeeded {
		mark = "· "
	}
	p.row(l.Row, mark+l.ID, colourLane)
	for _, level := range l.Levels {
		p.row(level, "    "+level.ID, colourDim)
	}
	if !l.Succeeded && l.LastError != "" {
		p.line("    %s", clip(l.LastError, nameWidth+figures+p.bar-4))
	}
}

// draw places the bar in eighths of a column, at least one eighth wide.
func (p *printer) draw(row Row) string {
	if row.Skipped || p.total <= 0 {
		return ""
	}
	unit := func(ms int64) int64 { return ms * int64(p.bar) * 8 / p.total }
	from := min(unit(row.StartMs), int64(p.bar)*8-1)
	to := max(unit(row.EndMs()), from+1)
	// A block grows from the left, so only the right end can be fine.
	first := from / 8
	full := to/8 - first
	rest := []string{"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"}[to%8]
	return strings.Repeat(" ", int(first)) + strings.Repeat("█", int(full)) + rest
}

func seconds(ms int64) string { return fmt.Sprintf("%d.%03d", ms/1000, ms%1000) }

func bytesText(n int64) string { return humanize.Bytes(uint64(max(n, 0))) }

// pad fills text to n columns and cuts what is longer.
func pad(text string, n int) string {
	text = clip(text, n-1)
	return text + strings.Repeat(" ", n-utf8.RuneCountInString(text))
}

// clip also keeps out what could steer a terminal: an error may quote a
// container.
func clip(text string, n int) string {
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text)
	if utf8.RuneCountInString(text) <= n {
		return text
	}
	return string([]rune(text)[:max(n-1, 0)]) + "…"
}
