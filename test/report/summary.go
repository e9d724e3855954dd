package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// event is one line of `go test -json`; see `go doc test2json`.
type event struct {
	Action      string
	Package     string
	ImportPath  string // of build events
	Test        string
	Elapsed     float64
	Output      string
	FailedBuild string
}

type testID struct{ pkg, test string }

type skip struct {
	testID
	reason string
}

// summary counts what a stream of events says. A test counts with its
// sub-tests, as `go test -v` would list them; a package that fails outside any
// test (build, TestMain, timeout, panic) counts as one failure.
type summary struct {
	out      io.Writer
	passes   int
	failures int
	skips    []skip
	failing  []string
	packages map[string]int // failed tests by package
	output   map[testID][]string
}

// maxKeptLines bounds what is remembered of one test's output: the tail tells.
const maxKeptLines = 400

func newSummary(out io.Writer) *summary {
	return &summary{out: out, packages: map[string]int{}, output: map[testID][]string{}}
}

func (s *summary) failed() bool { return s.failures > 0 }

func (s *summary) read(r io.Reader) error {
	dec := json.NewDecoder(r)
	for {
		var e event
		if err := dec.Decode(&e); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			_, _ = io.Copy(io.Discard, r) // let the command end
			return fmt.Errorf("read test events: %w", err)
		}
		s.add(e)
	}
}

func (s *summary) add(e event) {
	id := testID{e.Package, e.Test}
	switch e.Action {
	case "output":
		s.keep(id, e.Output)
	case "build-output":
		s.keep(testID{e.ImportPath, ""}, e.Output)
	case "pass", "fail", "skip":
		if e.Test == "" {
			s.endPackage(e)
		} else {
			s.endTest(id, e)
		}
		delete(s.output, id)
	}
}

func (s *summary) keep(id testID, line string) {
	s.output[id] = append(s.output[id], line)
	if lines := s.output[id]; len(lines) > maxKeptLines {
		s.output[id] = lines[len(lines)-maxKeptLines:]
	}
}

func (s *summary) endTest(id testID, e event) {
	switch e.Action {
	case "pass":
		s.passes++
	case "skip":
		s.skips = append(s.skips, skip{id, skipReason(s.output[id])})
	case "fail":
		s.failures++
		s.packages[id.pkg]++
		s.failing = append(s.failing, id.pkg+" "+id.test)
		fmt.Fprintf(s.out, "FAIL %s %s\n%s", id.pkg, id.test, strings.Join(s.output[id], ""))
	}
}

func (s *summary) endPackage(e event) {
	if e.Action == "fail" {
		if s.packages[e.Package] == 0 {
			s.failures++
			s.failing = append(s.failing, e.Package)
			id := testID{e.Package, ""}
			if e.FailedBuild != "" {
				id.pkg = e.FailedBuild
			}
			fmt.Fprint(s.out, strings.Join(s.output[id], ""))
		}
		fmt.Fprintf(s.out, "FAIL %-70s %6.1f s\n", e.Package, e.Elapsed)
		return
	}
	if e.Action == "pass" { // "skip" is a package without tests
		fmt.Fprintf(s.out, "ok   %-70s %6.1f s\n", e.Package, e.Elapsed)
	}
}

// skipReason finds what t.Skip printed: the last line that is not test2json's
// own framing, without the file and line in front.
func skipReason(lines []string) string {
	for i := len(lines) - 1; i >= 0; i-- {
		line := strings.TrimSpace(lines[i])
		if line == "" || strings.HasPrefix(line, "---") || strings.HasPrefix(line, "===") {
			continue
		}
		if _, after, ok := strings.Cut(line, ".go:"); ok {
			if _, reason, ok := strings.Cut(after, ": "); ok {
				return reason
			}
		}
		return line
	}
	return "no reason given"
}

func (s *summary) print(took time.Duration) {
	fmt.Fprintln(s.out)
	for _, k := range s.skips {
		fmt.Fprintf(s.out, "skipped %s %s: %s\n", k.pkg, k.test, k.reason)
	}
	for _, name := range s.failing {
		fmt.Fprintf(s.out, "failed  %s\n", name)
	}
	fmt.Fprintf(s.out, "took %s\n", took.Round(time.Second))
	fmt.Fprintf(s.out, "%d passed, %d failed, %d skipped\n", s.passes, s.failures, len(s.skips))
}
