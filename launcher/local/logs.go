package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	containerd "github.com/containerd/containerd/v2/client"

	"github.com/firstlight-dev/firstlight/launcher/cluster"
)

// followInterval is how often a followed log is looked at when it is quiet.
const followInterval = 250 * time.Millisecond

// Logs implements cluster.Cluster.
func (c *Cluster) Logs(ctx context.Context, env string, follow bool) (io.ReadCloser, error) {
	if _, err := c.record(env); err != nil {
		return nil, err
	}
	f, err := os.Open(filepath.Join(c.dir(env), logName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("log of environment %s: %w", env, cluster.ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	if !follow {
		return f, nil
	}
	return &follower{
		file:    f,
		ctx:     ctx,
		running: func() bool { return c.running(c.context(ctx), env) },
		closed:  make(chan struct{}),
	}, nil
}

func (c *Cluster) running(ctx context.Context, env string) bool {
	container, err := c.client.LoadContainer(ctx, env)
	if err != nil {
		return false
	}
	st, err := c.taskStatus(ctx, container)
	return err == nil && st.Status != containerd.Stopped
}

// follower reads a growing file until its writer has ended.
type follower struct {
	file    *os.File
	ctx     context.Context //nolint:containedctx // io.Reader has no place for it
	running func() bool
	ended   bool // the writer ended before the last look: what is there is all

	closing sync.Once
	closed  chan struct{}
}

// Read implements io.Reader.
func (f *follower) Read(p []byte) (int, error) {
	for {
		n, err := f.file.Read(p)
		if n > 0 || !errors.Is(err, io.EOF) {
			return n, err
		}
		if f.ended {
			return 0, io.EOF
		}
		if f.ended = !f.running(); f.ended {
			continue
		}
		timer := time.NewTimer(followInterval)
		select {
		case <-timer.C:
		case <-f.closed:
			timer.Stop()
			return 0, io.EOF
		case <-f.ctx.Done():
			timer.Stop()
			return 0, io.EOF
		}
	}
}

// Close implements io.Closer. It ends a Read that waits.
func (f *follower) Close() error {
	f.closing.Do(func() { close(f.closed) })
	return f.file.Close()
}
