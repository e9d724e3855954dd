// Command firstlight is the command line of the project: it indexes images,
// looks at nodes and drives the launcher.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
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
	exitFallback  = 6 // a layer has no index: nodes would pull it in full
	exitCancelled = 130
)

// exitCoder lets an error choose the exit code of the process.
type exitCoder interface{ ExitCode() int }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := newRootCommand().ExecuteContext(ctx)
	stop()
	if err != nil {
		complain(os.Stderr, err)
		os.Exit(exitCode(err))
	}
}

// complain writes an error for people. It may quote a registry or an image.
func complain(w io.Writer, err error) {
	lines := strings.Split(err.Error(), "\n")
	for i := range lines {
		lines[i] = printable(lines[i])
	}
	fmt.Fprintln(w, "firstlight:", strings.Join(lines, "\n"))
}

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "firstlight",
		Short:         "GPU environments that are usable in seconds, and the clock that proves it",
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version(),
	}
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddCommand(newIndexCommand())
	root.AddCommand(newNodeCommand())
	root.AddCommand(newProfileCommand())
	root.AddCommand(newEnvCommand())
	root.AddCommand(newSpecCommand())
	root.AddCommand(newClusterCommand())
	root.AddCommand(newToolsCommand())
	beStrict(root)
	return root
}

// version is what the Go toolchain recorded of the source this was built from.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return info.Main.Version
	}
	return "unknown"
}

// beStrict makes wrong arguments of cmd and all below it wrong command lines:
// cobra alone answers an unknown sub-command with help and exit code 0.
func beStrict(cmd *cobra.Command) {
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			err := check(cmd, args)
			if err == nil || isUsage(err) {
				return err
			}
			return usageError{fmt.Errorf("%s: %w; see %[1]s --help", cmd.CommandPath(), err)}
		}
	}
	if cmd.HasSubCommands() && !cmd.Runnable() {
		cmd.Args = cobra.ArbitraryArgs // so that an unknown sub-command comes to RunE
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			return usageError{unknownCommand(cmd, args[0])}
		}
	}
	for _, sub := range cmd.Commands() {
		beStrict(sub)
	}
}

func isUsage(err error) bool {
	var usage usageError
	return errors.As(err, &usage)
}

func unknownCommand(cmd *cobra.Command, name string) error {
	hint := ""
	cmd.SuggestionsMinimumDistance = 2 // as cobra has it
	if near := cmd.SuggestionsFor(name); len(near) > 0 {
		hint = fmt.Sprintf(", did you mean %q", near[0])
	}
	return fmt.Errorf("%s has no command %q%s; see %[1]s --help", cmd.CommandPath(), name, hint)
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
