// Command cluster starts a real single-node Kubernetes in seconds, runs
// commands in it and ends it. It needs root and the programs of `make tools`.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/firstlight-dev/firstlight/test/cluster"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := newRootCommand().ExecuteContext(ctx)
	stop()
	if err == nil {
		return
	}
	// The status of a command run inside is ours.
	if exit := new(exec.ExitError); errors.As(err, &exit) && exit.Exited() {
		os.Exit(exit.ExitCode())
	}
	fmt.Fprintln(os.Stderr, "cluster:", err)
	os.Exit(1)
}

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "cluster",
		Short: "A real single-node Kubernetes in private namespaces",
		Example: `  cluster up                      start it
  cluster run -- kubectl get pods -A
  cluster run -- ctr -n k8s.io images ls
  cluster run -- bash             a shell inside
  cluster down                    end it`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	var dir string
	root.PersistentFlags().StringVar(&dir, "dir", filepath.Join(os.TempDir(), "firstlight-cluster"), "state folder")
	root.AddCommand(newUpCommand(&dir), newServeCommand(&dir), newRunCommand(&dir), newDownCommand(&dir))
	return root
}

func newRunCommand(dir *string) *cobra.Command {
	return &cobra.Command{
		Use:   "run -- COMMAND [ARGUMENT...]",
		Short: "Run a command inside the cluster's namespaces",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := cluster.Attach(*dir)
			if err != nil {
				return fmt.Errorf("%w (is it up?)", err)
			}
			inside := c.Command(cmd.Context(), args...)
			inside.Stdin, inside.Stdout, inside.Stderr = os.Stdin, os.Stdout, os.Stderr
			if err := c.Run(inside); err != nil {
				return fmt.Errorf("run %s: %w", strings.Join(args, " "), err)
			}
			return nil
		},
	}
}
