// Command firstlight is the command line of the project: it indexes images,
// looks at nodes and drives the launcher.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// Exit codes. 1 is any error not named here, 2 a wrong command line.
const (
	exitError     = 1
	exitUsage     = 2
	exitNotFound  = 3 // the named thing does not exist
	exitMismatch  = 4 // verification found a difference
	exitTimeout   = 5 // a wait ran past its deadline
	exitCancelled = 130
)

// exitCoder lets an error choose the exit code of the process.
type exitCoder interface{ ExitCode() int }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := newRootCommand().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "firstlight:", err)
		os.Exit(exitCode(err))
	}
}

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "firstlight",
		Short:         "GPU environments that are usable in seconds, and the clock that proves it",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddCommand(newIndexCommand())
	root.AddCommand(newNodeCommand())
	root.AddCommand(newEnvCommand())
	root.AddCommand(newSpecCommand())
	root.AddCommand(newClusterCommand())
	root.AddCommand(newToolsCommand())
	return root
}

// usageError marks a wrong command line.
type usageError struct{ error }

func (usageError) ExitCode() int { return exitUsage }

func exitCode(err error) int {
	var coder exitCoder
	switch {
	case errors.As(err, &coder):
		return coder.ExitCode()
	case errors.Is(err, context.Canceled):
		return exitCancelled
	case errors.Is(err, context.DeadlineExceeded):
		return exitTimeout
	}
	return exitError
}
