package timeline

import (
	"fmt"
	"io"
	"slices"
)

// Run is a timeline with a label for comparison.
type Run struct {
	Label string
	*Timeline
}

// Compare draws two runs side by side on one scale, row by row.
func Compare(w io.Writer, a, b Run, style Style) error {
	p := printer{style: style, total: max(a.TotalMs, b.TotalMs)}
	p.bar = max((max(style.Width, 2*minWidth)-nameWidth-2*12)/2, 8)
	half := p.bar + 12
	p.line("%s%s%s", pad("stage", nameWidth), pad(fmt.Sprintf("%9s  ", a.Label), half), fmt.Sprintf("%9s", b.Label))
	for _, id := range rowNames(a.Timeline, b.Timeline) {
		left, right := p.cell(a.Timeline, id), p.cell(b.Timeline, id)
		p.line("%s%s%s", pad(id, nameWidth), padRight(left, half), right)
	}
	p.line("%s%s%s", pad("total", nameWidth), pad(fmt.Sprintf("%9s", seconds(a.TotalMs)), half), fmt.Sprintf("%9s", seconds(b.TotalMs)))
	p.line("%s%s%s", pad(Unattributed, nameWidth), pad(fmt.Sprintf("%9s", seconds(a.UnattributedMs)), half), fmt.Sprintf("%9s", seconds(b.UnattributedMs)))
	p.line("%s%s%s", pad("fetched", nameWidth), pad(fmt.Sprintf("%9s", fetched(a.Timeline)), half), fmt.Sprintf("%9s", fetched(b.Timeline)))
	_, err := io.WriteString(w, p.out.String())
	return err
}

func fetched(t *Timeline) string {
	if t.Image == nil {
		return "-"
	}
	return bytesText(t.Image.BytesFetched)
}

// rowNames lists the rows of both runs: stages in the order of the chain, then
// lanes.
func rowNames(a, b *Timeline) []string {
	var names []string
	add := func(id string) {
		if id != Unattributed && !slices.Contains(names, id) {
			names = append(names, id)
		}
	}
	for _, stage := range chainNames() {
		if a.has(stage) || b.has(stage) {
			add(stage)
		}
	}
	for _, t := range []*Timeline{a, b} {
		for i := range t.Lanes {
			add(t.Lanes[i].ID)
		}
	}
	return names
}

func (t *Timeline) has(id string) bool {
	row, ok := t.find(id)
	return ok && !row.Skipped
}

func (t *Timeline) find(id string) (Row, bool) {
	for _, row := range t.Stages {
		if row.ID == id {
			return row, true
		}
	}
	for i := range t.Lanes {
		if t.Lanes[i].ID == id {
			return t.Lanes[i].Row, true
		}
	}
	return Row{}, false
}

func (p *printer) cell(t *Timeline, id string) cellText {
	row, ok := t.find(id)
	if !ok || row.Skipped {
		return cellText{plain: fmt.Sprintf("%9s", "-")}
	}
	colour := colourBar
	for i := range t.Lanes {
		if t.Lanes[i].ID == id {
			colour = colourLane
		}
	}
	bar := p.draw(row)
	head := fmt.Sprintf("%9s  ", seconds(row.DurationMs))
	return cellText{plain: head + bar, shown: head + p.paint(colour, bar)}
}

// cellText is a cell's text with and without colours: only the latter can be
// measured.
type cellText struct{ plain, shown string }

func (c cellText) String() string {
	if c.shown != "" {
		return c.shown
	}
	return c.plain
}

func padRight(c cellText, n int) string {
	missing := len([]rune(pad(c.plain, n))) - len([]rune(c.plain))
	return c.String() + fmt.Sprintf("%*s", max(missing, 1), "")
}
