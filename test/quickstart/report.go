package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/firstlight-dev/firstlight/launcher/timeline"
)

// report prints both timelines and, last, what they come to.
func report(tell *teller, opts options, lazy, full *result) error {
	tell.say("")
	runs := [2]timeline.Run{
		{Label: "lazy", Timeline: lazy.timeline},
		{Label: "full", Timeline: full.timeline},
	}
	if err := timeline.Compare(tell.out, runs[0], runs[1], timeline.Style{Width: reportWidth}); err != nil {
		return fmt.Errorf("print timelines: %w", err)
	}
	tell.say("over the link until usable, registry to node: lazy %s, full %s", megabytes(lazy.bytes), megabytes(full.bytes))
	if opts.svg != "" {
		if err := writePicture(opts, lazy, full); err != nil {
			return err
		}
	}
	tell.say("")
	tell.say("usable: lazy %.1f s (%s), full %.1f s (%s)",
		lazy.seconds(), megabytes(lazy.bytes), full.seconds(), megabytes(full.bytes))
	if 2*lazy.timeline.TotalMs > full.timeline.TotalMs || 2*lazy.bytes > full.bytes {
		return errSlow
	}
	return nil
}

// reportWidth suits a terminal and a README alike.
const reportWidth = 100

func (r *result) seconds() float64 { return float64(r.timeline.TotalMs) / 1000 }

func writePicture(opts options, lazy, full *result) error {
	if err := os.MkdirAll(filepath.Dir(opts.svg), 0o755); err != nil {
		return fmt.Errorf("make picture folder: %w", err)
	}
	f, err := os.Create(opts.svg)
	if err != nil {
		return fmt.Errorf("create picture: %w", err)
	}
	defer f.Close()
	if err := draw(f, opts, lazy, full); err != nil {
		return fmt.Errorf("draw timelines: %w", err)
	}
	return f.Close()
}
