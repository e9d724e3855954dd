package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/firstlight-dev/firstlight/launcher/api"
	"github.com/firstlight-dev/firstlight/launcher/client"
	"github.com/firstlight-dev/firstlight/launcher/spec"
)

type createFlags struct {
	file, specRef, cluster, identity string
	keys                             []string
	wait                             bool
	timeout                          time.Duration
}

func newEnvCreateCommand(f *launcherFlags) *cobra.Command {
	o := &createFlags{}
	cmd := &cobra.Command{
		Use:   "create NAME (--spec NAME[@REVISION] | --file FILE)",
		Short: "Create an environment",
		Long: `Create an environment from a stored spec or from a file.

With --wait it returns when the environment is usable: every probe of its spec
has succeeded, and then succeeded once more. Progress goes to standard error,
the result to standard output. A key of its own is made for you on first use
and may log in; --ssh-key adds others.`,
		Example: `  firstlight env create train-a --spec a100-quarter --wait
  firstlight env create train-b --file quarter.yaml --wait --timeout 10m
  firstlight env create train-c --spec a100-quarter@3 --cluster bj-1 -o json`,
		Args: cobra.ExactArgs(1),
	}
	flags := cmd.Flags()
	flags.StringVarP(&o.file, "file", "f", "", "spec as YAML or JSON; - is standard input")
	flags.StringVar(&o.specRef, "spec", "", "stored spec, as name or name@revision")
	flags.StringVar(&o.cluster, "cluster", "", "cluster to run on; default: the launcher's first")
	flags.StringArrayVar(&o.keys, "ssh-key", nil, "file with public keys that may log in")
	flags.StringVarP(&o.identity, "identity", "i", "", "private key to log in with; default: one of the command's own")
	flags.BoolVarP(&o.wait, "wait", "w", false, "wait until the environment is usable")
	flags.DurationVar(&o.timeout, "timeout", 0, "give up waiting after this long (exit code 5); the environment stays")
	cmd.MarkFlagsOneRequired("file", "spec")
	cmd.MarkFlagsMutuallyExclusive("file", "spec")
	must(cmd.RegisterFlagCompletionFunc("spec", func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return f.complete(cmd.Context(), specNames)
	}))
	cmd.RunE = f.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
		req, err := o.request(cmd.InOrStdin(), args[0])
		if err != nil {
			return err
		}
		env, err := c.Create(cmd.Context(), req)
		if err != nil {
			return err
		}
		if !o.wait {
			return printEnvironment(cmd.OutOrStdout(), f, env)
		}
		return waitUsable(cmd, c, f, env, o.timeout)
	})
	return cmd
}

func (o *createFlags) request(stdin io.Reader, name string) (*api.CreateEnvironment, error) {
	req := &api.CreateEnvironment{Name: name, Cluster: o.cluster, SpecRef: o.specRef}
	if o.file != "" {
		s, err := readSpec(stdin, o.file)
		if err != nil {
			return nil, err
		}
		req.Spec = s
	}
	own, err := loadIdentity(o.identity)
	if err != nil {
		return nil, err
	}
	req.SSHKeys = append(req.SSHKeys, own.public)
	for _, file := range o.keys {
		lines, err := publicKeys(file)
		if err != nil {
			return nil, err
		}
		req.SSHKeys = append(req.SSHKeys, lines...)
	}
	return req, nil
}

// maxSpecFile bounds a spec file; the spec package accepts less.
const maxSpecFile = 1 << 20

func readSpec(stdin io.Reader, file string) (*spec.Spec, error) {
	in := stdin
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, maxSpecFile))
	if err != nil {
		return nil, fmt.Errorf("read spec: %w", err)
	}
	s, err := spec.Parse(text)
	if err != nil {
		return nil, usageError{fmt.Errorf("%s: %w", file, err)}
	}
	return s, nil
}

// waitUsable shows progress until the environment is usable, and then the
// waterfall.
func waitUsable(cmd *cobra.Command, c *client.Client, f *launcherFlags, env *api.Environment, timeout time.Duration) error {
	ctx := cmd.Context()
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	show := newProgress(cmd.ErrOrStderr(), env)
	err := c.Events(ctx, env.ID, 0, show.event)
	show.end()
	if err != nil {
		if ctx.Err() != nil {
			show.pending()
			fmt.Fprintf(cmd.ErrOrStderr(), "%s is still %s; see: firstlight env explain %s\n", env.Name, show.phase, env.Name)
		}
		return fmt.Errorf("wait for %s: %w", env.Name, err)
	}
	if show.failure != nil {
		return fmt.Errorf("%s: %w", env.Name, show.failure)
	}
	if f.json() {
		now, err := c.Environment(ctx, env.ID)
		if err != nil {
			return err
		}
		return printJSON(cmd.OutOrStdout(), now)
	}
	t, err := c.Timeline(ctx, env.ID)
	if err != nil {
		return err
	}
	return t.Text(cmd.OutOrStdout(), styleOf(cmd.OutOrStdout()))
}
