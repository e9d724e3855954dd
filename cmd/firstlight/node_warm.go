package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/cheggaaa/pb/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/firstlight-dev/firstlight/snapshotter/nodeapi"
)

func newNodeWarmCommand(f *nodeFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "warm IMAGE",
		Short: "Complete an image's layers now",
		Long: `Fetch what is missing of an image that the snapshotter has prepared, and check its layers as a whole.

Readers go first all the while. Ending the command ends the fetching; what was fetched stays. The image is named by its reference or by the digest of its manifest.`,
		Example: `  firstlight node warm registry.example.com/team/pytorch:2.8
  firstlight node warm registry.example.com/team/pytorch:2.8 -o json     a line of JSON for each step`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			show := newWarmProgress(cmd.OutOrStdout(), f.json())
			err := f.client().Warm(cmd.Context(), nodeapi.WarmRequest{Image: args[0]}, show.report)
			show.end(err == nil)
			if errors.Is(err, nodeapi.ErrNotFound) {
				return codeError{err, exitNotFound}
			}
			return err
		},
	}
}

// warmProgress shows how far an image is: a bar on a terminal, a line of JSON
// for each report, or else a line at either end.
type warmProgress struct {
	w       io.Writer
	json    bool
	started time.Time
	bar     *pb.ProgressBar // nil: no terminal
	begun   bool
	last    nodeapi.Progress
}

// warmTemplate is the bar.
const warmTemplate = `{{string . "image"}} {{bar . "[" "=" ">" " " "]"}} {{percent .}} {{string . "fetched"}}`

func newWarmProgress(w io.Writer, lines bool) *warmProgress {
	p := &warmProgress{w: w, json: lines, started: time.Now()}
	if f, ok := w.(*os.File); ok && !lines && term.IsTerminal(int(f.Fd())) {
		p.bar = pb.ProgressBarTemplate(warmTemplate).New(0).SetWriter(f)
	}
	return p
}

func (p *warmProgress) report(at nodeapi.Progress) {
	p.last = at
	switch {
	case p.json:
		// The reader of the lines is gone when this fails; the context ends next.
		_ = json.NewEncoder(p.w).Encode(at)
	case p.bar != nil:
		p.bar.SetTotal(int64(at.Chunks)).SetCurrent(int64(at.ChunksPresent))
		p.bar.Set("image", printable(at.Image)).Set("fetched", bytesOf(at.BytesFetched))
		if !p.begun {
			p.bar.Start()
		}
	case !p.begun:
		fmt.Fprintf(p.w, "%s: %d of %d layers complete, %d of %d chunks here\n", printable(at.Image), at.LayersDone, at.Layers, at.ChunksPresent, at.Chunks)
	}
	p.begun = true
}

func (p *warmProgress) end(ok bool) {
	if p.bar != nil && p.begun {
		p.bar.Finish()
	}
	if ok && !p.json {
		fmt.Fprintf(p.w, "%s: complete, %s fetched in %.1f s\n", printable(p.last.Image), bytesOf(p.last.BytesFetched), time.Since(p.started).Seconds())
	}
}
