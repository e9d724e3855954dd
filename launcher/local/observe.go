package local

import (
	"context"
	"errors"
	"fmt"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"

	"github.com/firstlight-dev/firstlight/launcher/cluster"
)

// Observe implements cluster.Cluster. A container's start is reported as the
// time it was made: the two are milliseconds apart, and it never changes.
func (c *Cluster) Observe(ctx context.Context) ([]cluster.Observed, error) {
	ctx = c.context(ctx)
	found, err := c.client.Containers(ctx, labelFilter)
	if err != nil {
		return nil, unreachable(c.cfg.Containerd, err)
	}
	all := make([]cluster.Observed, 0, len(found))
	for _, container := range found {
		o, err := c.observe(ctx, container)
		if errdefs.IsNotFound(err) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("observe %s: %w", container.ID(), err)
		}
		all = append(all, o)
	}
	return all, nil
}

func (c *Cluster) observe(ctx context.Context, container containerd.Container) (cluster.Observed, error) {
	info, err := container.Info(ctx)
	if err != nil {
		return cluster.Observed{}, err
	}
	r, err := parseRecord(info.Labels)
	if err != nil {
		return cluster.Observed{}, err
	}
	o := cluster.Observed{
		Env: r.env, Name: r.name, Generation: r.generation,
		State: cluster.StatePending, Placement: c.placement(r.devices),
	}
	st, err := c.taskStatus(ctx, container)
	if errors.Is(err, cluster.ErrNotFound) {
		return o, nil
	}
	if err != nil {
		return o, err
	}
	switch st.Status {
	case containerd.Running, containerd.Paused, containerd.Pausing:
		o.State, o.StartedAt = cluster.StateRunning, info.CreatedAt
	case containerd.Stopped:
		o.State, o.StartedAt, o.ExitCode = cluster.StateExited, info.CreatedAt, int(st.ExitStatus)
		o.Reason = "Exited"
		if o.ExitCode == exitKilled {
			o.Reason, o.Message = "Killed", "ended by SIGKILL, as for want of memory"
		}
	case containerd.Created:
	default:
		o.State = cluster.StateUnknown
	}
	return o, nil
}

// exitKilled is the exit code of a process that SIGKILL ended.
const exitKilled = 137

func (c *Cluster) taskStatus(ctx context.Context, container containerd.Container) (containerd.Status, error) {
	task, err := container.Task(ctx, nil)
	if errdefs.IsNotFound(err) {
		return containerd.Status{}, cluster.ErrNotFound
	}
	if err != nil {
		return containerd.Status{}, err
	}
	st, err := task.Status(ctx)
	if errdefs.IsNotFound(err) {
		return containerd.Status{}, cluster.ErrNotFound
	}
	return st, err
}
