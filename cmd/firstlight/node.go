package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/firstlight-dev/firstlight/snapshotter/nodeapi"
)

// nodeFlags say which snapshotter to speak to and how to print its answers.
type nodeFlags struct {
	socket, output string
}

func (f *nodeFlags) client() *nodeapi.Client { return nodeapi.NewClient(f.socket) }
func (f *nodeFlags) json() bool              { return f.output == "json" }

// newNodeCommand looks at the snapshotter of this machine.
func newNodeCommand() *cobra.Command {
	f := &nodeFlags{}
	cmd := &cobra.Command{
		Use:   "node",
		Short: "Look at the snapshotter of this machine, and steer its cache",
		Long: `Look at the snapshotter of this machine, and steer its cache.

All of it goes through a socket that only root can open.`,
		PersistentPreRunE: func(*cobra.Command, []string) error {
			if f.output != "table" && f.output != "json" {
				return usageError{fmt.Errorf("output %q is neither table nor json", f.output)}
			}
			return nil
		},
	}
	cmd.PersistentFlags().StringVar(&f.socket, "node-address", nodeapi.DefaultSocket, "socket of the snapshotter's node API")
	cmd.PersistentFlags().StringVarP(&f.output, "output", "o", "table", "table or json")
	must(cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json"}, cobra.ShellCompDirectiveNoFileComp)))
	cmd.AddCommand(
		newNodeStatusCommand(f), newNodeImagesCommand(f), newNodeContainersCommand(f),
		newNodeTopCommand(f), newNodeWarmCommand(f), newNodeEvictCommand(f),
	)
	return cmd
}

func newNodeStatusCommand(f *nodeFlags) *cobra.Command {
	return &cobra.Command{
		Use:     "status",
		Short:   "Show how the snapshotter runs",
		Example: "  firstlight node status\n  firstlight node status -o json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			status, err := f.client().Status(cmd.Context())
			if err != nil {
				return err
			}
			if f.json() {
				return printJSON(cmd.OutOrStdout(), status)
			}
			return printNodeStatus(cmd.OutOrStdout(), status)
		},
	}
}

func newNodeImagesCommand(f *nodeFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "images",
		Short: "List the images the snapshotter has prepared, and what it read of them",
		Example: `  firstlight node images
  firstlight node images -o json     with every layer`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			images, err := f.client().Images(cmd.Context())
			if err != nil {
				return err
			}
			if f.json() {
				return printJSON(cmd.OutOrStdout(), images)
			}
			return printNodeImages(cmd.OutOrStdout(), images)
		},
	}
}

func newNodeContainersCommand(f *nodeFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "containers",
		Short: "List what the reads of each container have cost",
		Long: `List what the reads of each container have cost since the snapshotter's worker started.

A container is a control group; programs of the node, such as containerd, are listed by the name of theirs.
WAITED is the time in which at least one of its readers waited for a registry. Reads that the kernel's page cache answered are not counted.`,
		Example: "  firstlight node containers\n  firstlight node containers -o json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			containers, err := f.client().Containers(cmd.Context())
			if err != nil {
				return err
			}
			if f.json() {
				return printJSON(cmd.OutOrStdout(), containers)
			}
			return printNodeContainers(cmd.OutOrStdout(), containers)
		},
	}
}

func newNodeEvictCommand(f *nodeFlags) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "evict [IMAGE | LAYER | --all]",
		Short: "Take cached bytes away; reads fetch them again",
		Long: `Take cached bytes away, of an image (its reference or the digest of its manifest), of a layer (its digest), or of all.

Nothing breaks: containers that read what is gone wait while it is fetched again. Layers that the kernel reads by itself, and layers that were unpacked, are kept; they go with their images.`,
		Example: `  firstlight node evict registry.example.com/team/pytorch:2.8
  firstlight node evict sha256:4bcff63911fcb4448bd4fdacec207030997caf25e9bea4045fa6c8c44de311d1
  firstlight node evict --all -o json`,
		Args: func(_ *cobra.Command, args []string) error {
			if all != (len(args) == 0) || len(args) > 1 {
				return usageError{errors.New("evict takes one image or layer, or --all")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			evicted, err := f.evict(cmd, args)
			if errors.Is(err, nodeapi.ErrNotFound) {
				return codeError{err, exitNotFound}
			}
			if err != nil {
				return err
			}
			if f.json() {
				return printJSON(cmd.OutOrStdout(), evicted)
			}
			return printEvicted(cmd.OutOrStdout(), evicted)
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "every layer of every image")
	return cmd
}

// evict evicts what the arguments name. A digest is a layer's or a manifest's.
func (f *nodeFlags) evict(cmd *cobra.Command, args []string) (nodeapi.Evicted, error) {
	c := f.client()
	if len(args) == 0 {
		return c.Evict(cmd.Context(), nodeapi.EvictRequest{All: true})
	}
	if strings.HasPrefix(args[0], "sha256:") {
		evicted, err := c.Evict(cmd.Context(), nodeapi.EvictRequest{Layer: args[0]})
		if !errors.Is(err, nodeapi.ErrNotFound) {
			return evicted, err
		}
	}
	return c.Evict(cmd.Context(), nodeapi.EvictRequest{Image: args[0]})
}

func printNodeStatus(w io.Writer, s nodeapi.Status) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "version\t%s\n", s.Version)
	fmt.Fprintf(t, "mode\t%s\n", s.Mode)
	fmt.Fprintf(t, "running for\t%s\n", time.Since(s.StartedAt).Round(time.Second))
	fmt.Fprintf(t, "worker restarts\t%d\n", s.WorkerRestarts)
	fmt.Fprintf(t, "cache\t%s\n", cacheLine(s.Cache))
	for _, c := range s.Conditions {
		fmt.Fprintf(t, "%s\t%s", c.Name, c.Status)
		if c.Message != "" {
			fmt.Fprintf(t, ": %s", printable(c.Message))
		}
		fmt.Fprintln(t)
	}
	return t.Flush()
}

// cacheLine says in one line how full the cache is.
func cacheLine(c nodeapi.Cache) string {
	var b strings.Builder
	b.WriteString(bytesOf(c.Bytes))
	if c.Limit > 0 {
		fmt.Fprintf(&b, " of %s", bytesOf(c.Limit))
	}
	if c.HeldBytes > 0 {
		fmt.Fprintf(&b, ", %s held for the kernel", bytesOf(c.HeldBytes))
	}
	if c.EvictedChunks > 0 {
		fmt.Fprintf(&b, ", %s evicted", bytesOf(c.EvictedBytes))
	}
	if c.RefusedChunks > 0 {
		fmt.Fprintf(&b, ", no room for %d chunks", c.RefusedChunks)
	}
	return b.String()
}

func bytesOf(n int64) string { return humanize.Bytes(uint64(max(n, 0))) }

func milliseconds(n int64) string { return (time.Duration(n) * time.Millisecond).String() }

func printNodeImages(w io.Writer, images []nodeapi.Image) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "IMAGE\tLAYERS\tSTATE\tSIZE\tFETCHED\tREQUESTS\tWAITED\tPREPARED IN")
	for _, im := range images {
		sum := im.Totals()
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\t%d\t%s\t%s\n", printable(im.Ref), len(im.Layers), imageState(im),
			bytesOf(sum.CompressedSize), bytesOf(sum.BytesFetched), sum.Requests, milliseconds(sum.OnDemandWaitMS), milliseconds(im.PrepareMS))
	}
	return t.Flush()
}

func printNodeContainers(w io.Writer, containers []nodeapi.Container) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "CONTAINER\tREADS\tREAD\tWAITED\tREQUESTS\tFETCHED\tLAST READ")
	for _, c := range containers {
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%d\t%s\t%s\n", printable(c.ID), c.Reads, bytesOf(c.BytesRead), milliseconds(c.OnDemandWaitMS),
			c.Requests, bytesOf(c.BytesFetched), c.LastRead.UTC().Format(time.RFC3339))
	}
	return t.Flush()
}

func printEvicted(w io.Writer, e nodeapi.Evicted) error {
	for _, l := range e.Layers {
		if l.Kept != "" {
			fmt.Fprintf(w, "%s kept: %s\n", printable(l.Digest), printable(l.Kept))
		}
	}
	_, err := fmt.Fprintf(w, "%s freed\n", bytesOf(e.FreedBytes))
	return err
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
