package timeline

import (
	"encoding/xml"
	"fmt"
	"io"
	"strings"

	"github.com/firstlight-dev/firstlight/launcher/cluster"
)

func chainNames() []string {
	var names []string
	for _, s := range cluster.Chain() {
		names = append(names, string(s))
	}
	return names
}

const (
	svgWidth = 960
	svgLeft  = 170
	svgRight = 90
	svgRow   = 22
	svgTop   = 44
)

// SVG draws the waterfall as a picture that needs nothing else.
func (t *Timeline) SVG(w io.Writer) error {
	rows := t.svgRows()
	height := svgTop + svgRow*len(rows) + 30
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="system-ui,sans-serif" font-size="12">`+"\n",
		svgWidth, height, svgWidth, height)
	b.WriteString(`<rect width="100%" height="100%" fill="#fff"/>` + "\n")
	fmt.Fprintf(&b, `<text x="12" y="22" font-size="14" font-weight="600">%s</text>`+"\n", escape(t.headline()))
	scale := float64(svgWidth-svgLeft-svgRight) / float64(max(t.TotalMs, 1))
	for i, r := range rows {
		y := svgTop + i*svgRow
		x := svgLeft + float64(r.StartMs)*scale
		width := max(float64(r.DurationMs)*scale, 1)
		fmt.Fprintf(&b, `<text x="12" y="%d">%s</text>`, y+14, escape(r.name))
		if !r.Skipped {
			fmt.Fprintf(&b, `<rect x="%.1f" y="%d" width="%.1f" height="%d" rx="2" fill="%s"/>`, x, y+3, width, svgRow-8, r.fill)
			fmt.Fprintf(&b, `<text x="%.1f" y="%d" fill="#555">%s s</text>`, x+width+4, y+14, seconds(r.DurationMs))
		}
		b.WriteByte('\n')
	}
	fmt.Fprintf(&b, `<text x="12" y="%d" fill="#555">total %s s, unattributed %s s; critical path: %s</text>`+"\n",
		height-10, seconds(t.TotalMs), seconds(t.UnattributedMs), escape(strings.Join(t.pathNames(), " > ")))
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

type svgRowData struct {
	Row
	name, fill string
}

func (t *Timeline) svgRows() []svgRowData {
	const chain, gap, lane, level = "#3178c6", "#d9a514", "#2f9e62", "#a7d7bd"
	var rows []svgRowData
	for _, r := range t.Stages {
		fill := chain
		if r.ID == Unattributed {
			fill = gap
		}
		rows = append(rows, svgRowData{Row: r, name: r.ID, fill: fill})
	}
	if r := t.tail(); r.DurationMs > 0 {
		rows = append(rows, svgRowData{Row: r, name: r.ID, fill: gap})
	}
	for i := range t.Lanes {
		rows = append(rows, svgRowData{Row: t.Lanes[i].Row, name: t.Lanes[i].ID, fill: lane})
		for _, r := range t.Lanes[i].Levels {
			rows = append(rows, svgRowData{Row: r, name: "\u2003" + r.ID, fill: level})
		}
	}
	return rows
}

func escape(text string) string {
	var b strings.Builder
	if err := xml.EscapeText(&b, []byte(text)); err != nil {
		return ""
	}
	return b.String()
}
