package main

import (
	"cmp"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/firstlight-dev/firstlight/launcher/client"
)

// newClusterCommand looks at the launcher's clusters.
func newClusterCommand() *cobra.Command {
	f := &launcherFlags{}
	cmd := &cobra.Command{Use: "cluster", Short: "Look at the clusters of the launcher"}
	f.register(cmd)
	cmd.AddCommand(newClusterLsCommand(f), newClusterGetCommand(f))
	return cmd
}

func newClusterLsCommand(f *launcherFlags) *cobra.Command {
	return &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List clusters with their health", Args: cobra.NoArgs,
		Example: "  firstlight cluster ls",
		RunE: f.withClient(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			all, err := c.Clusters(cmd.Context())
			if err != nil {
				return err
			}
			if f.json() {
				return printJSON(cmd.OutOrStdout(), all)
			}
			t := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintln(t, "NAME\tUP\tLAST SEEN\tORPHANS\tMESSAGE")
			for _, h := range all.Items {
				seen := "never"
				if !h.LastSeen.IsZero() {
					seen = time.Since(h.LastSeen).Round(time.Second).String() + " ago"
				}
				fmt.Fprintf(t, "%s\t%t\t%s\t%d\t%s\n", h.Name, h.Up, seen, len(h.Orphans), cmp.Or(h.Message, "-"))
			}
			return t.Flush()
		}),
	}
}

func newClusterGetCommand(f *launcherFlags) *cobra.Command {
	return &cobra.Command{
		Use: "get NAME", Short: "Show a cluster's nodes and cards with what is used", Args: cobra.ExactArgs(1),
		Example: "  firstlight cluster get local",
		RunE: f.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
			all, err := c.Capacity(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if f.json() {
				return printJSON(cmd.OutOrStdout(), all)
			}
			t := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintln(t, "NODE\tCARD\tMODEL\tMEMORY USED\tCORES USED\tSHARES\tHEALTHY")
			for _, n := range all.Nodes {
				for _, d := range n.Devices {
					fmt.Fprintf(t, "%s\t%d %s\t%s\t%d of %d MiB\t%d of %d %%\t%d of %d\t%t\n", n.Name, d.Index, d.UUID, d.Model,
						d.MemoryUsedMiB, d.MemoryMiB, d.CoresUsed, d.Cores, d.SlotsUsed, d.Slots, d.Healthy)
				}
			}
			return t.Flush()
		}),
	}
}
