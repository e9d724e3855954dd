package main

import (
	"context"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/firstlight-dev/firstlight/launcher/client"
	"github.com/firstlight-dev/firstlight/launcher/spec"
	"github.com/firstlight-dev/firstlight/launcher/store"
)

// newSpecCommand keeps Instance Specs.
func newSpecCommand() *cobra.Command {
	f := &launcherFlags{}
	cmd := &cobra.Command{Use: "spec", Short: "Store and look at Instance Specs"}
	f.register(cmd)
	cmd.AddCommand(newSpecPushCommand(f), newSpecLsCommand(f), newSpecGetCommand(f))
	return cmd
}

func specNames(ctx context.Context, c *client.Client) ([]string, error) {
	all, err := c.Specs(ctx)
	var names []string
	for i := range all {
		names = append(names, all[i].Name)
	}
	return names, err
}

func newSpecPushCommand(f *launcherFlags) *cobra.Command {
	return &cobra.Command{
		Use: "push FILE", Short: "Store a spec as a new revision of its name", Args: cobra.ExactArgs(1),
		Long: `Store a spec as a new revision of its name. A revision never changes; pushing
what the newest one already says makes none.`,
		Example: "  firstlight spec push a100-quarter.yaml\n  cat spec.yaml | firstlight spec push -",
		RunE: f.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
			s, err := readSpec(cmd.InOrStdin(), args[0])
			if err != nil {
				return err
			}
			rev, err := c.PushSpec(cmd.Context(), s)
			if err != nil {
				return err
			}
			if f.json() {
				return printJSON(cmd.OutOrStdout(), rev)
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), rev.Ref())
			return err
		}),
	}
}

func newSpecLsCommand(f *launcherFlags) *cobra.Command {
	return &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List specs", Args: cobra.NoArgs,
		Example: "  firstlight spec ls",
		RunE: f.withClient(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			all, err := c.Specs(cmd.Context())
			if err != nil {
				return err
			}
			if f.json() {
				return printJSON(cmd.OutOrStdout(), all)
			}
			t := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintln(t, "SPEC\tIMAGE\tGPU\tBACKEND\tAGE")
			for i := range all {
				fmt.Fprintln(t, specRow(&all[i]))
			}
			return t.Flush()
		}),
	}
}

func specRow(r *store.Revision) string {
	gpu, backend := gpuText(&r.Spec), r.Spec.Backend
	if gpu == "" {
		gpu, backend = "-", "-"
	}
	return fmt.Sprintf("%s\t%s\t%s\t%s\t%s", r.Ref(), r.Spec.Image, gpu, backend, time.Since(r.CreatedAt).Round(time.Second))
}

func newSpecGetCommand(f *launcherFlags) *cobra.Command {
	return &cobra.Command{
		Use: "get NAME[@REVISION]", Short: "Print a revision as YAML", Args: cobra.ExactArgs(1),
		Example: "  firstlight spec get a100-quarter\n  firstlight spec get a100-quarter@2 -o json",
		RunE: f.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
			ref, err := spec.ParseRef(args[0])
			if err != nil {
				return usageError{err}
			}
			rev, err := c.Spec(cmd.Context(), ref)
			if err != nil {
				return err
			}
			if f.json() {
				return printJSON(cmd.OutOrStdout(), rev)
			}
			text, err := yaml.Marshal(rev.Spec)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "# %s\n%s", rev.Ref(), text)
			return err
		}),
	}
}
