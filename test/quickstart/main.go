// Command quickstart is the main job of the project, end to end, on this
// machine: a realistic image, indexed and pushed to a registry; an environment
// with a quarter of a (simulated) GPU on it; and the time until a user can really
// work, once started lazily and once by a full pull, over a link of a known rate.
//
// It uses the same commands that a user would. Everything runs in private
// namespaces and a throw-away folder, both of which end with it.
//
//	make quickstart
//	go run ./test/quickstart [-kubernetes] [-mbits 200] [-svg FILE] [-keep]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/firstlight-dev/firstlight/test/sandbox"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	opts := options{}
	flag.BoolVar(&opts.kubernetes, "kubernetes", false, "run on a real Kubernetes instead of containerd alone")
	flag.IntVar(&opts.mbits, "mbits", 200, "rate of the link between registry and node, in Mbit/s")
	flag.StringVar(&opts.svg, "svg", "", "also draw both timelines into this file")
	flag.BoolVar(&opts.keep, "keep", false, "leave the folder with the logs")
	flag.Parse()
	err := run(ctx, opts)
	interrupted := ctx.Err() != nil
	stop()
	switch {
	case interrupted:
		fmt.Fprintln(os.Stderr, "quickstart: interrupted, everything is cleaned up")
		os.Exit(130)
	case err != nil:
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1)
	}
}

type options struct {
	kubernetes bool
	mbits      int
	svg        string
	keep       bool
}

// errSlow is returned when the lazy start does not keep its promise.
var errSlow = errors.New("the lazy start took more than half the time or half the bytes of the full pull")

func run(ctx context.Context, opts options) error {
	tell := newTeller(os.Stdout)
	tell.say("firstlight quickstart: one image, started lazily and by a full pull, side by side")
	if err := checkMachine(); err != nil {
		return err
	}
	root, err := sandbox.RepositoryRoot()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	image := startImage(ctx, root)
	defer func() { _, _ = image.wait() }()
	defer cancel()
	if err := build(ctx, tell, root, opts); err != nil {
		return err
	}
	scene, err := prepare(ctx, tell, root, opts, image)
	if err != nil {
		return err
	}
	lazy, full, err := scene.compare(ctx)
	if err := errors.Join(err, scene.close(ctx, err)); err != nil {
		return err
	}
	return report(tell, opts, lazy, full)
}
