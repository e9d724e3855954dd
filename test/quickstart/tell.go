package main

import (
	"fmt"
	"io"
	"time"
)

// teller says what happens as it happens, one short line per step.
type teller struct {
	out   io.Writer
	start time.Time
}

func newTeller(out io.Writer) *teller { return &teller{out: out, start: time.Now()} }

func (t *teller) say(format string, args ...any) {
	fmt.Fprintf(t.out, format+"\n", args...)
}

// step announces what f does and then how long it took. What f returns as text
// is shown behind the duration.
func (t *teller) step(what string, f func() (string, error)) error {
	fmt.Fprintf(t.out, "  %-64s", what+" ...")
	start := time.Now()
	note, err := f()
	if err != nil {
		fmt.Fprintln(t.out, " failed")
		return err
	}
	fmt.Fprintf(t.out, " %6.1f s", time.Since(start).Seconds())
	if note != "" {
		fmt.Fprintf(t.out, "  %s", note)
	}
	fmt.Fprintln(t.out)
	return nil
}

func megabytes(n int64) string { return fmt.Sprintf("%.0f MB", float64(n)/1e6) }
