package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/firstlight-dev/firstlight/snapshotter/nodeapi"
)

// minInterval keeps a typing mistake from asking without pause.
const minInterval = 100 * time.Millisecond

func newNodeTopCommand(f *nodeFlags) *cobra.Command {
	var interval time.Duration
	var count, rows int
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Watch what containers read and wait for",
		Long: `Watch what containers read and wait for, those first that waited most since the last look.

WAITING is the share of the interval in which at least one of a container's readers waited for a registry. On a terminal the table is drawn in place until interrupted; elsewhere each look is printed below the one before, and with -o json each is a line.`,
		Example: `  firstlight node top
  firstlight node top --interval 500ms --rows 5
  firstlight node top --count 10 -o json > samples.jsonl`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if interval < minInterval || count < 0 || rows < 1 {
				return usageError{fmt.Errorf("--interval must be %v or more, --rows 1 or more, --count 0 or more", minInterval)}
			}
			err := (&nodeTop{flags: f, w: cmd.OutOrStdout(), rows: rows}).run(cmd.Context(), interval, count)
			if errors.Is(err, context.Canceled) && count == 0 {
				return nil // it is how one leaves
			}
			return err
		},
	}
	cmd.Flags().DurationVar(&interval, "interval", 2*time.Second, "between two looks")
	cmd.Flags().IntVar(&count, "count", 0, "looks before it ends, 0 for no end")
	cmd.Flags().IntVar(&rows, "rows", 20, "most containers and images to show")
	return cmd
}

// nodeTop looks at a snapshotter again and again.
type nodeTop struct {
	flags *nodeFlags
	w     io.Writer
	rows  int
}

// sample is one look.
type sample struct {
	at         time.Time
	status     nodeapi.Status
	images     []nodeapi.Image
	containers []nodeapi.Container
}

func (t *nodeTop) run(ctx context.Context, interval time.Duration, count int) error {
	file, ok := t.w.(*os.File)
	terminal := ok && term.IsTerminal(int(file.Fd())) && !t.flags.json()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	var last *sample
	for n := 1; ; n++ {
		now, err := t.look(ctx)
		switch {
		case err == nil:
			if err := t.show(topOf(last, now), now, terminal, n); err != nil {
				return err
			}
			last = now
		case last == nil || ctx.Err() != nil:
			return errors.Join(ctx.Err(), err)
		default: // it may be starting again
			fmt.Fprintln(t.w, printable(err.Error()))
		}
		if n == count {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

func (t *nodeTop) look(ctx context.Context) (*sample, error) {
	c := t.flags.client()
	s := &sample{at: time.Now()}
	var err error
	if s.status, err = c.Status(ctx); err != nil {
		return nil, err
	}
	if s.images, err = c.Images(ctx); err != nil {
		return nil, err
	}
	s.containers, err = c.Containers(ctx)
	return s, err
}

func (t *nodeTop) show(top nodeTopLine, now *sample, terminal bool, n int) error {
	if t.flags.json() {
		return json.NewEncoder(t.w).Encode(top)
	}
	var b bytes.Buffer
	if terminal {
		b.WriteString("\x1b[H\x1b[2J")
	} else if n > 1 {
		b.WriteString("\n")
	}
	if err := printTop(&b, top, now.status, t.rows); err != nil {
		return err
	}
	_, err := t.w.Write(b.Bytes()) // at once, or it flickers
	return err
}

// nodeTopLine is a look with what changed since the one before.
type nodeTopLine struct {
	Time       time.Time      `json:"time"`
	Cache      nodeapi.Cache  `json:"cache"`
	Containers []topContainer `json:"containers"`
	Images     []topImage     `json:"images"`
}

type topContainer struct {
	nodeapi.Container
	ReadPerSecond     float64 `json:"readBytesPerSecond"`
	FetchedPerSecond  float64 `json:"fetchedBytesPerSecond"`
	RequestsPerSecond float64 `json:"requestsPerSecond"`
	Waiting           float64 `json:"waiting"` // share of the time since the last look
}

type topImage struct {
	Ref              string  `json:"ref"`
	State            string  `json:"state"`
	Chunks           int     `json:"chunks"`
	ChunksPresent    int     `json:"chunksPresent"`
	BytesFetched     int64   `json:"bytesFetched"`
	OnDemandWaitMS   int64   `json:"onDemandWaitMs"`
	FetchedPerSecond float64 `json:"fetchedBytesPerSecond"`
}

// topOf compares two looks; last is nil at the first. A worker that started
// meanwhile counts from zero.
func topOf(last, now *sample) nodeTopLine {
	top := nodeTopLine{Time: now.at.UTC(), Cache: now.status.Cache, Containers: []topContainer{}, Images: []topImage{}}
	containers, images := map[string]nodeapi.Container{}, map[string]nodeapi.Layer{}
	seconds := 0.0
	if last != nil {
		seconds = now.at.Sub(last.at).Seconds()
		if now.status.StartedAt.Equal(last.status.StartedAt) {
			for _, c := range last.containers {
				containers[c.Cgroup] = c
			}
			for _, im := range last.images {
				images[im.Ref+im.Manifest] = im.Totals()
			}
		}
	}
	rate := func(before, after int64) float64 {
		if seconds <= 0 {
			return 0
		}
		return float64(max(0, after-before)) / seconds
	}
	for _, c := range now.containers {
		b := containers[c.Cgroup]
		top.Containers = append(top.Containers, topContainer{
			Container: c, ReadPerSecond: rate(b.BytesRead, c.BytesRead), FetchedPerSecond: rate(b.BytesFetched, c.BytesFetched),
			RequestsPerSecond: rate(b.Requests, c.Requests), Waiting: min(1, rate(b.OnDemandWaitMS, c.OnDemandWaitMS)/1000),
		})
	}
	for _, im := range now.images {
		sum := im.Totals()
		top.Images = append(top.Images, topImage{
			Ref: im.Ref, State: imageState(im), Chunks: sum.Chunks, ChunksPresent: sum.ChunksPresent, BytesFetched: sum.BytesFetched,
			OnDemandWaitMS: sum.OnDemandWaitMS, FetchedPerSecond: rate(images[im.Ref+im.Manifest].BytesFetched, sum.BytesFetched),
		})
	}
	slices.SortStableFunc(top.Containers, func(a, b topContainer) int {
		return cmp.Or(cmp.Compare(b.Waiting, a.Waiting), cmp.Compare(b.FetchedPerSecond, a.FetchedPerSecond), cmp.Compare(b.ReadPerSecond, a.ReadPerSecond),
			cmp.Compare(b.OnDemandWaitMS, a.OnDemandWaitMS), cmp.Compare(a.Cgroup, b.Cgroup))
	})
	slices.SortStableFunc(top.Images, func(a, b topImage) int {
		return cmp.Or(cmp.Compare(b.FetchedPerSecond, a.FetchedPerSecond), cmp.Compare(a.Ref, b.Ref))
	})
	return top
}

func printTop(w io.Writer, top nodeTopLine, s nodeapi.Status, rows int) error {
	fmt.Fprintf(w, "%s  snapshotter %s, %s, running for %s, %d worker restarts\ncache: %s\n\n", top.Time.Format(time.TimeOnly), s.Version, s.Mode,
		top.Time.Sub(s.StartedAt).Round(time.Second), s.WorkerRestarts, cacheLine(top.Cache))
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "CONTAINER\tWAITING\tREAD/s\tFETCHED/s\tREQUESTS/s\tWAITED\tREAD")
	for _, c := range top.Containers[:min(rows, len(top.Containers))] {
		fmt.Fprintf(t, "%s\t%.0f %%\t%s\t%s\t%.1f\t%s\t%s\n", printable(c.ID), 100*c.Waiting, bytesOf(int64(c.ReadPerSecond)), bytesOf(int64(c.FetchedPerSecond)),
			c.RequestsPerSecond, milliseconds(c.OnDemandWaitMS), bytesOf(c.BytesRead))
	}
	more(t, len(top.Containers)-rows)
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	fmt.Fprintln(t, "IMAGE\tSTATE\tHERE\tFETCHED/s\tFETCHED\tWAITED")
	for _, im := range top.Images[:min(rows, len(top.Images))] {
		here := 100
		if im.Chunks > 0 {
			here = 100 * im.ChunksPresent / im.Chunks
		}
		fmt.Fprintf(t, "%s\t%s\t%d %%\t%s\t%s\t%s\n", printable(im.Ref), im.State, here, bytesOf(int64(im.FetchedPerSecond)), bytesOf(im.BytesFetched), milliseconds(im.OnDemandWaitMS))
	}
	more(t, len(top.Images)-rows)
	return t.Flush()
}

func more(w io.Writer, n int) {
	if n > 0 {
		fmt.Fprintf(w, "and %d more\n", n)
	}
}
