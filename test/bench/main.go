// Command bench starts the same images in several ways, side by side, and says
// how long each takes until the image's program has run, and what it cost.
//
// One registry serves all; each start happens on a fresh node (test/lab) behind
// a link of a known rate, and each request waits at a proxy that also counts.
// The arms take turns, so that what else the machine does falls on all of them.
//
//	make bench [BENCH=quick]
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/firstlight-dev/firstlight/test/bench/report"
)

type options struct {
	images  []string
	arms    []string
	runs    int
	mbits   int
	latency time.Duration
	out     string
	keep    bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, parse())
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func parse() options {
	var o options
	images := flag.String("images", "py", "images to start, separated by commas: py, scipy")
	names := flag.String("arms", strings.Join([]string{report.Profiled, report.Firstlight, report.SOCI, report.Overlayfs}, ","), "ways to start them")
	flag.IntVar(&o.runs, "runs", 5, "starts of each image by each arm")
	flag.IntVar(&o.mbits, "mbits", 1000, "rate of each link, in Mbit/s")
	flag.DurationVar(&o.latency, "latency", 20*time.Millisecond, "wait of each request to the registry")
	flag.StringVar(&o.out, "out", "out", "folder for bench.json and the requests of each run")
	flag.BoolVar(&o.keep, "keep", false, "leave the folder with the logs")
	flag.Parse()
	o.images, o.arms = strings.Split(*images, ","), strings.Split(*names, ",")
	return o
}
