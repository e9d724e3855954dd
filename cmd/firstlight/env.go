package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/firstlight-dev/firstlight/launcher/api"
	"github.com/firstlight-dev/firstlight/launcher/client"
)

// defaultServer is where a launcher listens unless told otherwise.
const defaultServer = "http://127.0.0.1:7070"

// launcherFlags say which launcher to speak to and how to print its answers.
type launcherFlags struct {
	server, token, output string
}

func (f *launcherFlags) register(cmd *cobra.Command) {
	flags := cmd.PersistentFlags()
	flags.StringVar(&f.server, "server", envOr("FIRSTLIGHT_SERVER", defaultServer), "URL of the launcher (FIRSTLIGHT_SERVER)")
	flags.StringVar(&f.token, "token-file", os.Getenv("FIRSTLIGHT_TOKEN_FILE"), "file that holds the token (FIRSTLIGHT_TOKEN holds the token itself)")
	flags.StringVarP(&f.output, "output", "o", "table", "table or json")
	must(cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json"}, cobra.ShellCompDirectiveNoFileComp)))
	cmd.PersistentPreRunE = func(*cobra.Command, []string) error {
		if f.output != "table" && f.output != "json" {
			return usageError{fmt.Errorf("output %q is neither table nor json", f.output)}
		}
		return nil
	}
}

// must is for errors that only a mistake in this program can cause.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

func envOr(name, otherwise string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return otherwise
}

func (f *launcherFlags) json() bool { return f.output == "json" }

func (f *launcherFlags) client() (*client.Client, error) {
	token := os.Getenv("FIRSTLIGHT_TOKEN")
	if f.token != "" {
		b, err := os.ReadFile(f.token)
		if err != nil {
			return nil, fmt.Errorf("read token: %w", err)
		}
		token = strings.TrimSpace(string(b))
	}
	c, err := client.New(f.server, token)
	if err != nil {
		return nil, usageError{err}
	}
	return c, nil
}

// notFoundError gives the exit code for things that do not exist.
type notFoundError struct{ error }

func (notFoundError) ExitCode() int   { return exitNotFound }
func (e notFoundError) Unwrap() error { return e.error }

// explained gives a launcher's problem its exit code.
func explained(err error) error {
	var p *api.Problem
	if errors.As(err, &p) {
		for _, f := range p.Errors {
			err = fmt.Errorf("%w\n  %s: %s", err, f.Location, f.Message)
		}
		if p.Status == http.StatusNotFound {
			return notFoundError{err}
		}
	}
	return err
}

// withClient makes a RunE of a function that needs a launcher.
func (f *launcherFlags) withClient(run func(cmd *cobra.Command, c *client.Client, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		c, err := f.client()
		if err != nil {
			return err
		}
		return explained(run(cmd, c, args))
	}
}

// completeEnvironments completes names of environments.
func (f *launcherFlags) completeEnvironments(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return f.complete(cmd.Context(), func(ctx context.Context, c *client.Client) ([]string, error) {
		all, err := c.Environments(ctx)
		var names []string
		for i := range all {
			names = append(names, all[i].Name)
		}
		return names, err
	})
}

func (f *launcherFlags) complete(ctx context.Context, list func(context.Context, *client.Client) ([]string, error)) ([]string, cobra.ShellCompDirective) {
	c, err := f.client()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	names, err := list(ctx, c)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// configDir is where the command line keeps its own files.
func configDir() (string, error) {
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("find configuration folder: %w", err)
	}
	return filepath.Join(dir, "firstlight"), nil
}

// newEnvCommand drives environments.
func newEnvCommand() *cobra.Command {
	f := &launcherFlags{}
	cmd := &cobra.Command{
		Use:     "env",
		Aliases: []string{"environment"},
		Short:   "Create, watch, enter and remove environments",
	}
	f.register(cmd)
	cmd.AddCommand(
		newEnvCreateCommand(f), newEnvLsCommand(f), newEnvGetCommand(f), newEnvTimelineCommand(f),
		newEnvExplainCommand(f), newEnvSSHCommand(f), newEnvLogsCommand(f), newEnvRmCommand(f),
	)
	return cmd
}
