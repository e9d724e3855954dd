package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/firstlight-dev/firstlight/launcher/api"
	"github.com/firstlight-dev/firstlight/launcher/client"
	"github.com/firstlight-dev/firstlight/launcher/spec"
	"github.com/firstlight-dev/firstlight/launcher/timeline"
)

func newEnvLsCommand(f *launcherFlags) *cobra.Command {
	return &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List environments", Args: cobra.NoArgs,
		Example: "  firstlight env ls\n  firstlight env ls -o json",
		RunE: f.withClient(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			all, err := c.Environments(cmd.Context())
			if err != nil {
				return err
			}
			if f.json() {
				return printJSON(cmd.OutOrStdout(), all)
			}
			t := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintln(t, "NAME\tPHASE\tUSABLE AFTER\tCLUSTER\tNODE\tSPEC\tAGE\tREASON")
			for i := range all {
				fmt.Fprintln(t, strings.Join(environmentRow(&all[i]), "\t"))
			}
			return t.Flush()
		}),
	}
}

func environmentRow(e *api.Environment) []string {
	usable, node := "-", "-"
	if ms := e.Status.TimeToUsableMs; ms != nil {
		usable = fmt.Sprintf("%.3f s", float64(*ms)/1000)
	}
	if p := e.Status.Placement; p != nil {
		node = p.Node
	}
	return []string{
		e.Name, string(e.Status.Phase), usable, e.Cluster, node, cmp.Or(e.SpecRef, e.Spec.Name),
		time.Since(e.Status.AcceptedAt).Round(time.Second).String(), cmp.Or(e.Status.Reason, "-"),
	}
}

func newEnvGetCommand(f *launcherFlags) *cobra.Command {
	return &cobra.Command{
		Use: "get NAME", Short: "Show one environment", Args: cobra.ExactArgs(1), ValidArgsFunction: f.completeEnvironments,
		Example: "  firstlight env get train-a\n  firstlight env get train-a -o json",
		RunE: f.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
			e, err := c.Environment(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return printEnvironment(cmd.OutOrStdout(), f, e)
		}),
	}
}

func printEnvironment(w io.Writer, f *launcherFlags, e *api.Environment) error {
	if f.json() {
		return printJSON(w, e)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(name, value string) {
		if value != "" {
			fmt.Fprintf(t, "%s\t%s\n", name, value)
		}
	}
	row("name", e.Name)
	row("id", e.ID)
	row("phase", string(e.Status.Phase))
	row("stage", string(e.Status.Stage))
	row("reason", strings.TrimSpace(e.Status.Reason+" "+e.Status.Message))
	row("spec", cmp.Or(e.SpecRef, e.Spec.Name+" (inline)"))
	row("image", e.Spec.Image)
	if e.Image != nil {
		row("pinned", e.Image.Pinned)
	}
	row("gpu", gpuText(&e.Spec))
	row("cluster", e.Cluster)
	if p := e.Status.Placement; p != nil {
		row("node", p.Node)
		for _, d := range p.Devices {
			row("device", fmt.Sprintf("%s %s, %d MiB, %d %% cores", d.UUID, d.Model, d.MemoryMiB, d.Cores))
		}
	}
	row("accepted", e.Status.AcceptedAt.Format(time.RFC3339))
	if ms := e.Status.TimeToUsableMs; ms != nil {
		row("usable", fmt.Sprintf("after %.3f s", float64(*ms)/1000))
	}
	return t.Flush()
}

func gpuText(s *spec.Spec) string {
	g := s.GPU
	switch {
	case g == nil:
		return ""
	case g.Share == nil:
		return fmt.Sprintf("%d whole %s", g.Count, g.Model)
	}
	return fmt.Sprintf("%d share of %s: %d MiB, %d %% cores", g.Count, cmp.Or(g.Model, "any card"), g.Share.MemoryMiB, g.Share.Cores)
}

func newEnvTimelineCommand(f *launcherFlags) *cobra.Command {
	var svg, against string
	cmd := &cobra.Command{
		Use: "timeline NAME", Short: "Show how the start went, as a waterfall",
		Args: cobra.ExactArgs(1), ValidArgsFunction: f.completeEnvironments,
		Example: `  firstlight env timeline train-a
  firstlight env timeline lazy --against full
  firstlight env timeline train-a --svg start.svg`,
	}
	cmd.Flags().StringVar(&svg, "svg", "", "write a picture to this file instead")
	cmd.Flags().StringVar(&against, "against", "", "show another environment's start beside it")
	cmd.MarkFlagsMutuallyExclusive("svg", "against")
	cmd.RunE = f.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
		t, err := c.Timeline(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		out := cmd.OutOrStdout()
		switch {
		case svg != "":
			return writeSVG(t, svg)
		case against != "":
			other, err := c.Timeline(cmd.Context(), against)
			if err != nil {
				return err
			}
			if f.json() {
				return printJSON(out, []*timeline.Timeline{t, other})
			}
			return timeline.Compare(out, timeline.Run{Label: t.Name, Timeline: t}, timeline.Run{Label: other.Name, Timeline: other}, styleOf(out))
		case f.json():
			return printJSON(out, t)
		}
		return t.Text(out, styleOf(out))
	})
	return cmd
}

func writeSVG(t *timeline.Timeline, path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(t.SVG(f), f.Close())
}

func newEnvLogsCommand(f *launcherFlags) *cobra.Command {
	var follow bool
	cmd := &cobra.Command{
		Use: "logs NAME", Short: "Print the output of the environment's command",
		Args: cobra.ExactArgs(1), ValidArgsFunction: f.completeEnvironments,
		Example: "  firstlight env logs train-a --follow",
		RunE: f.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
			logs, err := c.Logs(cmd.Context(), args[0], follow)
			if err != nil {
				return err
			}
			defer logs.Close()
			_, err = io.Copy(cmd.OutOrStdout(), logs)
			return err
		}),
	}
	cmd.Flags().BoolVarP(&follow, "follow", "F", false, "go on until the environment ends")
	return cmd
}

func newEnvRmCommand(f *launcherFlags) *cobra.Command {
	var wait bool
	cmd := &cobra.Command{
		Use: "rm NAME...", Aliases: []string{"delete"}, Short: "Stop and forget environments",
		Args: cobra.MinimumNArgs(1), ValidArgsFunction: f.completeEnvironments,
		Example: "  firstlight env rm train-a train-b",
		RunE: f.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
			for _, name := range args {
				e, err := c.Delete(cmd.Context(), name)
				if err != nil {
					return err
				}
				if wait {
					if err := awaitGone(cmd, c, e.ID); err != nil {
						return err
					}
				}
			}
			return nil
		}),
	}
	cmd.Flags().BoolVarP(&wait, "wait", "w", true, "return when they are gone")
	return cmd
}

// awaitGone follows the events to their end.
func awaitGone(cmd *cobra.Command, c *client.Client, id string) error {
	err := c.Events(cmd.Context(), id, 0, func(ev client.Event) error {
		if ev.Kind == "end" {
			return client.ErrStop
		}
		return nil
	})
	var p *api.Problem
	if errors.As(err, &p) && p.Status == http.StatusNotFound {
		return nil
	}
	return err
}
