// Command fuzz runs every fuzz target of the main module for a short while,
// one after the other (`go test -fuzz` takes one target of one package).
package main

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	span := flag.Duration("time", 10*time.Second, "how long each target runs")
	flag.Parse()
	err := run(ctx, *span)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "fuzz:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, span time.Duration) error {
	// `go test -list` builds every test binary; its output is the names of a
	// package's targets, then `ok <package> <time>`.
	list := exec.CommandContext(ctx, "go", "test", "-list", "^Fuzz", "./...")
	list.Stderr = os.Stderr
	out, err := list.Output()
	if err != nil {
		return fmt.Errorf("list fuzz targets: %w", err)
	}
	ran := 0
	var names []string
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		line := lines.Text()
		if strings.HasPrefix(line, "Fuzz") {
			names = append(names, line)
			continue
		}
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "ok" {
			for _, name := range names {
				if err := fuzz(ctx, fields[1], name, span); err != nil {
					return err
				}
				ran++
			}
		}
		names = nil
	}
	fmt.Printf("%d fuzz targets, nothing found\n", ran)
	return nil
}

func fuzz(ctx context.Context, pkg, name string, span time.Duration) error {
	fmt.Printf("%s %s\n", pkg, name)
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-fuzz", "^"+name+"$", "-fuzztime", span.String(), pkg)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("fuzz %s %s: %w", pkg, name, err)
	}
	return nil
}
