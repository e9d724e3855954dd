package local

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/errdefs"

	"github.com/firstlight-dev/firstlight/launcher/cluster"
	"github.com/firstlight-dev/firstlight/sharing/wire"
)

// Names in an environment's folder.
const (
	logName    = "container.log"
	configName = "agent.json"
	vgpuName   = "vgpu"
)

// Start implements cluster.Cluster.
func (c *Cluster) Start(ctx context.Context, l cluster.Launch) error {
	ctx = c.context(ctx)
	if err := c.check(&l); err != nil {
		return err
	}
	if done, err := c.adopt(ctx, &l); done || err != nil {
		return err
	}
	devices, err := c.schedule(ctx, &l)
	if err != nil {
		return err
	}
	if err := c.deliverTools(&l); err != nil {
		return err
	}
	image, err := c.prepareImage(ctx, &l)
	if err != nil {
		return err
	}
	unlock, err := c.keys.lock(ctx, l.Env)
	if err != nil {
		return err
	}
	defer unlock()
	return c.create(ctx, &l, devices, image)
}

// check refuses what this cluster can't express, before anything is made.
func (c *Cluster) check(l *cluster.Launch) error {
	for _, v := range l.Spec.Volumes {
		if v.Claim != "" {
			return cluster.Fail(cluster.CodeUnsupported, "volume %s: cluster %s has no volume claims; use hostPath", v.Name, c.cfg.Name)
		}
		if !c.allowsHostPath(v.HostPath) {
			return cluster.Fail(cluster.CodeUnsupported, "volume %s: cluster %s does not allow %s", v.Name, c.cfg.Name, v.HostPath)
		}
	}
	if len(l.App()) > 0 && l.App()[0] == "" {
		return cluster.Fail(cluster.CodeUnsupported, "the command's first word is empty")
	}
	return nil
}

func (c *Cluster) allowsHostPath(path string) bool {
	for _, allowed := range c.cfg.HostPaths {
		rel, err := filepath.Rel(allowed, path)
		if err == nil && filepath.IsLocal(rel) {
			return true
		}
	}
	return false
}

// adopt takes over what an earlier Start of the same generation made. It
// reports whether the environment runs now.
func (c *Cluster) adopt(ctx context.Context, l *cluster.Launch) (bool, error) {
	unlock, err := c.keys.lock(ctx, l.Env)
	if err != nil {
		return false, err
	}
	defer unlock()
	container, err := c.client.LoadContainer(ctx, l.Env)
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, c.failed("look for container", err)
	}
	r, err := c.record(l.Env)
	if err != nil || r.generation != l.Generation {
		// An older start, or one that this process never learned about.
		return false, c.stop(ctx, l.Env)
	}
	l.Observer.Place(c.placement(r.devices))
	task, err := container.Task(ctx, nil)
	if errdefs.IsNotFound(err) {
		// The machine or the launcher went down before the task was started.
		return true, c.restart(ctx, l, container)
	}
	if err != nil {
		return false, c.failed("look for task", err)
	}
	st, err := task.Status(ctx)
	if err != nil {
		return false, c.failed("read task status", err)
	}
	if st.Status == containerd.Stopped {
		return false, cluster.Fail(cluster.CodeStartFailed, "container of environment %s ended with %d", l.Env, st.ExitStatus)
	}
	return true, nil
}

// schedule chooses cards, waiting for others to release theirs if it must.
func (c *Cluster) schedule(ctx context.Context, l *cluster.Launch) (wire.PodDevices, error) {
	l.Observer.Begin(cluster.StageSchedule, time.Now())
	var devices wire.PodDevices
	if l.Spec.GPU != nil {
		var err error
		if devices, err = c.reserve(ctx, l); err != nil {
			return nil, err
		}
	}
	l.Observer.Place(c.placement(devices))
	l.Observer.End(cluster.StageSchedule, time.Now(), nil)
	return devices, nil
}

func (c *Cluster) reserve(ctx context.Context, l *cluster.Launch) (wire.PodDevices, error) {
	r := request(l.Spec.GPU)
	if refusal := c.ledger.never(r); refusal != nil {
		return nil, cluster.Fail(cluster.CodeUnsupported, "cluster %s can never serve it: %s", c.cfg.Name, refusal)
	}
	told := ""
	for {
		changed := c.ledger.waitChange()
		devices, refusal := c.ledger.reserve(l.Env, r)
		if refusal == nil {
			return devices, nil
		}
		if text := refusal.String(); text != told {
			told = text
			l.Observer.Note(cluster.Note{At: time.Now(), Warning: true, Source: c.cfg.Name, Reason: "FilteringFailed", Message: text})
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for a share of a card: %w", ctx.Err())
		}
	}
}

// deliverTools makes the folder that the agent's configuration goes into; the
// agent itself is mounted from where it lies.
func (c *Cluster) deliverTools(l *cluster.Launch) error {
	l.Observer.Begin(cluster.StageTools, time.Now())
	if err := c.makeFolder(l.Env); err != nil {
		return c.failed("make the environment's folder", err)
	}
	l.Observer.End(cluster.StageTools, time.Now(), nil)
	return nil
}

// create makes the container and starts it. The environment's key is held.
func (c *Cluster) create(ctx context.Context, l *cluster.Launch, devices wire.PodDevices, image *prepared) error {
	begun := time.Now()
	l.Observer.Begin(cluster.StageCreate, begun)
	r := record{
		env: l.Env, name: l.Name, generation: l.Generation, devices: devices,
		manifest: image.manifest, fetched: image.fetched, base: image.base,
	}
	var err error
	if r.ssh, r.status, err = freeAddresses(c.cfg.Address); err != nil {
		return c.failed("find free ports", err)
	}
	labels, err := r.labels()
	if err != nil {
		return c.failed("describe the environment", err)
	}
	container, err := c.client.NewContainer(ctx, l.Env,
		containerd.WithImage(image.image),
		containerd.WithSnapshotter(c.cfg.Snapshotter),
		containerd.WithNewSnapshot(l.Env, image.image),
		containerd.WithContainerLabels(labels),
		containerd.WithNewSpec(c.specOptions(l, devices, image.image)...),
	)
	if err != nil {
		return c.failed("create container", err)
	}
	c.remember(r)
	if err := c.writeConfig(ctx, l, container, &r); err != nil {
		return c.failed("write the agent's configuration", err)
	}
	return c.runTask(ctx, l, container, begun)
}

// restart starts the task of a container that has none.
func (c *Cluster) restart(ctx context.Context, l *cluster.Launch, container containerd.Container) error {
	begun := time.Now()
	l.Observer.Begin(cluster.StageCreate, begun)
	r, err := c.record(l.Env)
	if err != nil {
		return err
	}
	if err := c.makeFolder(l.Env); err != nil {
		return c.failed("make the environment's folder", err)
	}
	if err := c.renewNetwork(ctx, container); err != nil {
		return c.failed("update container", err)
	}
	if err := c.writeConfig(ctx, l, container, &r); err != nil {
		return c.failed("write the agent's configuration", err)
	}
	return c.runTask(ctx, l, container, begun)
}

func (c *Cluster) runTask(ctx context.Context, l *cluster.Launch, container containerd.Container, begun time.Time) error {
	// The shim writes the file itself, so the log survives this process.
	task, err := container.NewTask(ctx, cio.LogFile(filepath.Join(c.dir(l.Env), logName)))
	if err != nil {
		return c.failed("create task", err)
	}
	created := time.Now()
	if err := task.Start(ctx); err != nil {
		return c.failed("start task", err)
	}
	now := time.Now()
	l.Observer.End(cluster.StageCreate, now, map[string]any{
		"createMs": created.Sub(begun).Milliseconds(),
		"startMs":  now.Sub(created).Milliseconds(),
	})
	return nil
}

func (c *Cluster) makeFolder(env string) error {
	if err := os.MkdirAll(c.dir(env), 0o700); err != nil {
		return err
	}
	// HAMi-core's shared region: any user of the image writes it. Nobody else
	// on the machine can reach it through the folder above.
	vgpu := filepath.Join(c.dir(env), vgpuName)
	if err := os.MkdirAll(vgpu, 0o700); err != nil {
		return err
	}
	return os.Chmod(vgpu, 0o777) //nolint:gosec // see above
}

// writeConfig writes the agent's configuration for the user that the image
// runs as, and nobody else.
func (c *Cluster) writeConfig(ctx context.Context, l *cluster.Launch, container containerd.Container, r *record) error {
	spec, err := container.Spec(ctx)
	if err != nil {
		return err
	}
	cfg := l.Agent
	cfg.SSH.Address, cfg.Status.Address = r.ssh, r.status
	b, err := json.Marshal(cfg)
	if err != nil {
		return err
	}
	path := filepath.Join(c.dir(l.Env), configName)
	temp := path + ".new"
	if err := os.WriteFile(temp, b, 0o400); err != nil {
		return err
	}
	if err := os.Chown(temp, int(spec.Process.User.UID), int(spec.Process.User.GID)); err != nil {
		return err
	}
	return os.Rename(temp, path)
}

// freeAddresses finds two ports that nobody uses now. Another process may take
// one before the agent does; then the agent ends with an error that says so.
func freeAddresses(address string) (ssh, status string, err error) {
	var found [2]string
	for i := range found {
		l, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
		if err != nil {
			return "", "", err
		}
		defer l.Close() //nolint:gocritic // both stay taken until both are found
		addr, ok := l.Addr().(*net.TCPAddr)
		if !ok {
			return "", "", fmt.Errorf("listen on %s: no TCP address", address)
		}
		found[i] = net.JoinHostPort(address, strconv.Itoa(addr.Port))
	}
	return found[0], found[1], nil
}

// failed gives an error of containerd or the machine a code.
func (c *Cluster) failed(what string, err error) error {
	if errdefs.IsUnavailable(err) {
		return unreachable(c.cfg.Containerd, err)
	}
	return &cluster.Error{Code: cluster.CodeStartFailed, Err: fmt.Errorf("%s: %w", what, err)}
}
