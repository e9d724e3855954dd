// Command report runs the tests of the named module folders and tells the
// outcome in one place: a line per package as it ends, the output of what
// failed, every skip with its reason, and last `N passed, N failed, N skipped`.
//
// It exits 1 when a test, a build or a package failed, and, where CI=true, when
// a test skipped: a machine that runs CI has everything the tests need, so a
// skip there means that something is silently not tested.
//
//	go run ./test/report [-run REGEXP] [-p 2] . test/e2e
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code, err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
	}
	os.Exit(code)
}

func run(ctx context.Context, args []string) (int, error) {
	flags := flag.NewFlagSet("report", flag.ContinueOnError)
	pattern := flags.String("run", "", "run only the tests that match")
	parallel := flags.Int("p", 2, "packages built and tested at once")
	timeout := flags.Duration("timeout", 20*time.Minute, "time limit of one package")
	if err := flags.Parse(args); err != nil {
		return 2, nil //nolint:nilerr // flag has printed it
	}
	tests := []string{"test", "-json", "-count=1", "-p", strconv.Itoa(*parallel), "-timeout", timeout.String()}
	if *pattern != "" {
		tests = append(tests, "-run", *pattern)
	}
	tests = append(tests, "./...")

	start := time.Now()
	sum := newSummary(os.Stdout)
	for _, module := range flags.Args() {
		if err := testModule(ctx, module, tests, sum); err != nil {
			return 1, err
		}
	}
	sum.print(time.Since(start))
	if sum.failed() || (os.Getenv("CI") == "true" && len(sum.skips) > 0) {
		return 1, nil
	}
	return 0, nil
}

// testModule feeds the events of one `go test` to sum. A non-zero exit of the
// command that no event explains (a broken go.mod, say) counts as a failure.
func testModule(ctx context.Context, dir string, args []string, sum *summary) error {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Stderr = os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute
	events, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("pipe from go test: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start go test in %s: %w", dir, err)
	}
	before := sum.failures
	readErr := sum.read(events)
	if err := cmd.Wait(); err != nil && sum.failures == before {
		return fmt.Errorf("go test in %s: %w", dir, err)
	}
	return readErr
}
