package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"
)

const (
	// stopGrace is how long an environment has to end by itself.
	stopGrace = 5 * time.Second
	// killWait bounds the wait for the kernel after SIGKILL.
	killWait = 30 * time.Second
)

// Stop implements cluster.Cluster.
func (c *Cluster) Stop(ctx context.Context, env string) error {
	ctx = c.context(ctx)
	unlock, err := c.keys.lock(ctx, env)
	if err != nil {
		return err
	}
	defer unlock()
	return c.stop(ctx, env)
}

// stop removes everything. The environment's key is held. Each step is tried
// whatever became of those before, and the share is given back only when
// nothing can use it any more.
func (c *Cluster) stop(ctx context.Context, env string) error {
	if err := c.removeContainer(ctx, env); err != nil {
		return c.failed("remove container", err)
	}
	// A start that was cut off may have left a snapshot without a container.
	err := c.client.SnapshotService(c.cfg.Snapshotter).Remove(ctx, env)
	if err != nil && !errdefs.IsNotFound(err) {
		return c.failed("remove snapshot", err)
	}
	if err := os.RemoveAll(c.dir(env)); err != nil {
		return c.failed("remove the environment's folder", err)
	}
	c.forget(env)
	c.ledger.release(env)
	return nil
}

func (c *Cluster) removeContainer(ctx context.Context, env string) error {
	container, err := c.client.LoadContainer(ctx, env)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := c.endTask(ctx, container); err != nil {
		return err
	}
	err = container.Delete(ctx, containerd.WithSnapshotCleanup)
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

var errStillRunning = errors.New("process does not end")

func (c *Cluster) endTask(ctx context.Context, container containerd.Container) error {
	task, err := container.Task(ctx, nil)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	exited, err := task.Wait(ctx)
	if err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	for _, step := range []struct {
		signal syscall.Signal
		wait   time.Duration
	}{{syscall.SIGTERM, stopGrace}, {syscall.SIGKILL, killWait}} {
		ended, err := signalAndWait(ctx, task, exited, step.signal, step.wait)
		if err != nil {
			return err
		}
		if ended {
			return deleteTask(ctx, task)
		}
	}
	return fmt.Errorf("end process %d: %w", task.Pid(), errStillRunning)
}

func signalAndWait(ctx context.Context, task containerd.Task, exited <-chan containerd.ExitStatus, sig syscall.Signal, wait time.Duration) (bool, error) {
	if err := task.Kill(ctx, sig); err != nil {
		if errdefs.IsNotFound(err) || errdefs.IsFailedPrecondition(err) {
			return true, nil // it ended, or was made but never started
		}
		return false, err
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-exited:
		return true, nil
	case <-timer.C:
		return false, nil
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

func deleteTask(ctx context.Context, task containerd.Task) error {
	_, err := task.Delete(ctx, containerd.WithProcessKill)
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}
