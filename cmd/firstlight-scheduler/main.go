// Command firstlight-scheduler is the vGPU half of a Kubernetes scheduler: it
// answers the stock kube-scheduler's extender calls, completes pods as an
// admission webhook, and gives metrics.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := newCommand().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "firstlight-scheduler:", err)
		os.Exit(1)
	}
}

func newCommand() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:           "firstlight-scheduler",
		Short:         "Schedule vGPUs beside the stock kube-scheduler",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	o.register(cmd.Flags())
	return cmd
}
