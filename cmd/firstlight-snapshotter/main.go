// Command firstlight-snapshotter is a containerd snapshotter whose layers may
// come lazily. It runs as two processes: a keeper that holds what must not be
// lost, and the worker it starts.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/containerd/log"
)

func main() {
	// containerd's libraries log beside us; their news is not ours.
	if err := log.SetLevel(log.WarnLevel.String()); err != nil {
		panic(err) // the level is a constant
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := newCommand().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "firstlight-snapshotter:", err)
		os.Exit(1)
	}
}
