package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/firstlight-dev/firstlight/launcher/client"
	"github.com/firstlight-dev/firstlight/launcher/cluster"
)

func newEnvExplainCommand(f *launcherFlags) *cobra.Command {
	return &cobra.Command{
		Use: "explain NAME", Short: "Say why an environment is where it is, card by card",
		Args: cobra.ExactArgs(1), ValidArgsFunction: f.completeEnvironments,
		Example: "  firstlight env explain train-a\n  firstlight env explain train-a -o json",
		RunE: f.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
			x, err := c.Explain(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if f.json() {
				return printJSON(cmd.OutOrStdout(), x)
			}
			return printExplanation(cmd.OutOrStdout(), args[0], x)
		}),
	}
}

func printExplanation(w io.Writer, name string, x *cluster.Explanation) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s. %s\n", name, x.Verdict, x.Summary)
	fmt.Fprintf(&b, "needs: %s (prediction as of %s)\n", needText(&x.Need), x.AsOf.Format(time.TimeOnly))
	for i := range x.Nodes {
		explainNode(&b, &x.Nodes[i])
	}
	for _, blocker := range x.Blockers {
		fmt.Fprintf(&b, "%s: %s: %s\n", blocker.Kind, blocker.Code, blocker.Message)
	}
	for _, idea := range x.WouldFitIf {
		fmt.Fprintf(&b, "would fit: %s\n", idea)
	}
	for _, n := range x.Notes {
		fmt.Fprintf(&b, "%s %s: %s\n", n.Source, n.Reason, printable(n.Message))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func needText(n *cluster.NeedFigures) string {
	switch {
	case n.Count == 0:
		return "no GPU"
	case n.Whole:
		return fmt.Sprintf("%d whole %s", n.Count, n.Model)
	}
	return fmt.Sprintf("%d × %d MiB and %d %% cores of %s", n.Count, n.MemoryMiB, n.Cores, strings.TrimSpace("a card "+n.Model))
}

func explainNode(b *strings.Builder, n *cluster.NodeVerdict) {
	fmt.Fprintf(b, "node %s: %s\n", n.Name, n.Verdict)
	for _, r := range n.Reasons {
		fmt.Fprintf(b, "  %s: %s\n", r.Code, r.Message)
	}
	for i := range n.Devices {
		d := &n.Devices[i]
		fmt.Fprintf(b, "  card %d %s %s: free %d of %d MiB, %d of %d %% cores\n", d.Index, d.UUID, d.Model,
			d.MemoryMiB-d.MemoryUsedMiB, d.MemoryMiB, d.Cores-d.CoresUsed, d.Cores)
		if d.Fits {
			b.WriteString("    fits\n")
		}
		for _, r := range d.Reasons {
			fmt.Fprintf(b, "    %s: %s\n", r.Code, r.Message)
		}
	}
}
