package main

import (
	"encoding/xml"
	"fmt"
	"io"
	"strings"

	"github.com/firstlight-dev/firstlight/launcher/timeline"
)

// Measures of the picture, in pixels.
const (
	pictureWidth = 860
	nameColumn   = 150
	numberColumn = 70
	rowHeight    = 22
	blockHead    = 34
	pictureFoot  = 26
	// leastMs keeps out what would not be seen; the text shows every row.
	leastMs = 5
)

// Colours that can be told apart in light, in dark and in grey.
const (
	inkColour  = "#444"
	stageShade = "#3b6fb6"
	gapShade   = "#c9a227"
	laneShade  = "#3a9668"
)

// draw draws both runs, one under the other, on one scale: only so can their
// lengths be compared.
func draw(w io.Writer, opts options, lazy, full *result) error {
	scale := float64(pictureWidth-nameColumn-numberColumn) / float64(max(lazy.timeline.TotalMs, full.timeline.TotalMs, 1))
	var body strings.Builder
	y := 8
	for _, r := range []*result{lazy, full} {
		title := fmt.Sprintf("%s start: usable after %.1f s, %s over the network", r.name, r.seconds(), megabytes(r.bytes))
		fmt.Fprintf(&body, `<text x="0" y="%d" font-weight="600" font-size="14">%s</text>`+"\n", y+18, escape(title))
		y += blockHead
		for _, row := range pictureRows(r.timeline) {
			drawRow(&body, row, y, scale)
			y += rowHeight
		}
		y += 12
	}
	fmt.Fprintf(&body, `<text x="0" y="%d" font-size="11">one image, link of %d Mbit/s, fresh node each; blue: stages, green: probes of readiness, yellow: time no stage claims; nothing under %d ms</text>`+"\n",
		y+12, opts.mbits, leastMs)
	height := y + pictureFoot
	_, err := fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="-12 0 %d %d" width="%d" height="%d" font-family="system-ui, sans-serif" font-size="12" fill="%s">
<rect x="-12" width="100%%" height="100%%" fill="#fff"/>
%s</svg>
`, pictureWidth+24, height, pictureWidth+24, height, inkColour, body.String())
	return err
}

type pictureRow struct {
	timeline.Row
	shade string
}

func pictureRows(t *timeline.Timeline) []pictureRow {
	var rows []pictureRow
	for _, row := range t.Stages {
		shade := stageShade
		if row.ID == timeline.Unattributed {
			shade = gapShade
		}
		if !row.Skipped && row.DurationMs >= leastMs {
			rows = append(rows, pictureRow{row, shade})
		}
	}
	for i := range t.Lanes {
		rows = append(rows, pictureRow{t.Lanes[i].Row, laneShade})
	}
	return rows
}

func drawRow(b *strings.Builder, row pictureRow, y int, scale float64) {
	x := nameColumn + float64(row.StartMs)*scale
	width := max(float64(row.DurationMs)*scale, 1) // a stage that took no time was still there
	fmt.Fprintf(b, `<text x="%d" y="%d">%s</text>`, 0, y+14, escape(row.ID))
	fmt.Fprintf(b, `<rect x="%.1f" y="%d" width="%.1f" height="%d" rx="2" fill="%s"/>`, x, y+3, width, rowHeight-8, row.shade)
	fmt.Fprintf(b, `<text x="%.1f" y="%d">%.2f s</text>`+"\n", x+width+5, y+14, float64(row.DurationMs)/1000)
}

func escape(text string) string {
	var b strings.Builder
	if xml.EscapeText(&b, []byte(text)) != nil {
		return "" // a strings.Builder does not fail
	}
	return b.String()
}
