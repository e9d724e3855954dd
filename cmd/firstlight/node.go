package main

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/firstlight-dev/firstlight/snapshotter/nodeapi"
)

// newNodeCommand looks at the snapshotter of this machine.
func newNodeCommand() *cobra.Command {
	var socket, output string
	cmd := &cobra.Command{
		Use:   "node",
		Short: "Look at the snapshotter of this machine",
		PersistentPreRunE: func(*cobra.Command, []string) error {
			if output != "table" && output != "json" {
				return usageError{fmt.Errorf("output %q is neither table nor json", output)}
			}
			return nil
		},
	}
	cmd.PersistentFlags().StringVar(&socket, "node-address", nodeapi.DefaultSocket, "socket of the snapshotter's node API")
	cmd.PersistentFlags().StringVarP(&output, "output", "o", "table", "table or json")
	cmd.AddCommand(
		&cobra.Command{
			Use:   "status",
			Short: "Show how the snapshotter runs",
			Args:  cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				status, err := nodeapi.NewClient(socket).Status(cmd.Context())
				if err != nil {
					return err
				}
				if output == "json" {
					return printJSON(cmd.OutOrStdout(), status)
				}
				return printNodeStatus(cmd.OutOrStdout(), status)
			},
		},
		&cobra.Command{
			Use:   "images",
			Short: "List the images the snapshotter has prepared, and what it read of them",
			Args:  cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				images, err := nodeapi.NewClient(socket).Images(cmd.Context())
				if err != nil {
					return err
				}
				if output == "json" {
					return printJSON(cmd.OutOrStdout(), images)
				}
				return printNodeImages(cmd.OutOrStdout(), images)
			},
		},
	)
	return cmd
}

func printNodeStatus(w io.Writer, s nodeapi.Status) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "version\t%s\n", s.Version)
	fmt.Fprintf(t, "mode\t%s\n", s.Mode)
	fmt.Fprintf(t, "running for\t%s\n", time.Since(s.StartedAt).Round(time.Second))
	fmt.Fprintf(t, "worker restarts\t%d\n", s.WorkerRestarts)
	for _, c := range s.Conditions {
		fmt.Fprintf(t, "%s\t%s", c.Name, c.Status)
		if c.Message != "" {
			fmt.Fprintf(t, ": %s", c.Message)
		}
		fmt.Fprintln(t)
	}
	return t.Flush()
}

func printNodeImages(w io.Writer, images []nodeapi.Image) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "IMAGE\tLAYERS\tSTATE\tSIZE\tFETCHED\tREQUESTS\tWAITED\tPREPARED IN")
	for _, im := range images {
		sum := im.Totals()
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\t%d\t%s\t%s\n", im.Ref, len(im.Layers), imageState(im),
			humanize.Bytes(uint64(max(sum.CompressedSize, 0))), humanize.Bytes(uint64(max(sum.BytesFetched, 0))), sum.Requests,
			(time.Duration(sum.OnDemandWaitMS) * time.Millisecond).String(),
			(time.Duration(im.PrepareMS) * time.Millisecond).String())
	}
	return t.Flush()
}

// imageState is the state of the image's layer that is furthest from complete.
func imageState(im nodeapi.Image) string {
	rank := map[string]int{nodeapi.StateLocal: 0, nodeapi.StateComplete: 1, nodeapi.StateLazy: 2, nodeapi.StateQuarantined: 3}
	state := nodeapi.StateLocal
	for _, l := range im.Layers {
		if rank[l.State] > rank[state] {
			state = l.State
		}
	}
	return state
}

// printJSON writes v for programs.
func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}
