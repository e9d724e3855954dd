package fusefs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"
)

var errKilled = errors.New("reading process was killed")

// readContext ends when the process that reads is being killed. An interrupt of
// the request says that it got some signal; only a fatal one may end the read,
// since an error would reach a program as a failed page or mapping. Looking
// begins when something asks for Done, so a read that finds its data pays
// nothing.
type readContext struct {
	context.Context //nolint:containedctx // it is one: this is what has no Done of its own
	interrupt       <-chan struct{}
	pid             uint32

	once sync.Once
	stop chan struct{}
	done chan struct{}

	mu  sync.Mutex
	err error
}

func newReadContext(interrupt <-chan struct{}, pid uint32) *readContext {
	return &readContext{
		Context: context.Background(), interrupt: interrupt, pid: pid,
		stop: make(chan struct{}), done: make(chan struct{}),
	}
}

// Done is closed when the reader is being killed.
func (c *readContext) Done() <-chan struct{} {
	c.once.Do(func() { go c.watch() })
	return c.done
}

// Err says that the reader is being killed.
func (c *readContext) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

func (c *readContext) end() { close(c.stop) }

// lookAgain is how often a process is looked at once it got a signal: the
// kernel announces only the first.
const lookAgain = 500 * time.Millisecond

func (c *readContext) watch() {
	select {
	case <-c.stop:
		return
	case <-c.interrupt:
	}
	t := time.NewTicker(lookAgain)
	defer t.Stop()
	for !dying(c.pid) {
		select {
		case <-c.stop:
			return
		case <-t.C:
		}
	}
	c.mu.Lock()
	c.err = errKilled
	c.mu.Unlock()
	close(c.done)
}

// dying says whether a thread has SIGKILL pending, which is how the kernel
// ends all threads of a process, whatever the signal was; or is gone.
func dying(tid uint32) bool {
	if tid == 0 {
		return false // not of our process namespace: nobody to look at
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", tid))
	if err != nil {
		return errors.Is(err, os.ErrNotExist)
	}
	return killPending(b)
}

const sigkillBit = 1 << (9 - 1)

func killPending(status []byte) bool {
	for line := range bytes.Lines(status) {
		name, value, ok := bytes.Cut(line, []byte(":"))
		if !ok || string(name) != "SigPnd" && string(name) != "ShdPnd" {
			continue
		}
		set, err := strconv.ParseUint(string(bytes.TrimSpace(value)), 16, 64)
		if err == nil && set&sigkillBit != 0 {
			return true
		}
	}
	return false
}
