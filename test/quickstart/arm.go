package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/firstlight-dev/firstlight/launcher/timeline"
	"github.com/firstlight-dev/firstlight/test/lab"
)

// machine is a fresh node with a launcher on it.
type machine struct {
	node interface { // a lab.Node or a cluster.Cluster
		Command(ctx context.Context, argv ...string) *exec.Cmd
		Run(cmd *exec.Cmd) error
		Close() error
	}
	link *lab.Link
	dir  string // for files, the same path inside and outside
	bin  string // path of the firstlight command
}

const (
	launcherAddress = "127.0.0.1:7070"
	// startLimit bounds one start, so that a hang ends with an error.
	startLimit = 3 * time.Minute
	stateLimit = 5 * time.Second
)

// arm is one of the two ways to start the image.
type arm struct {
	name        string
	snapshotter string
}

// result is what one arm's start came to.
type result struct {
	arm
	timeline *timeline.Timeline
	bytes    int64 // that crossed the link until the environment was usable
}

func (s *scene) compare(ctx context.Context) (lazy, full *result, err error) {
	if lazy, err = s.start(ctx, arm{"lazy", "firstlight"}); err != nil {
		return nil, nil, fmt.Errorf("lazy start: %w", err)
	}
	if full, err = s.start(ctx, arm{"full", "overlayfs"}); err != nil {
		return nil, nil, fmt.Errorf("start by a full pull: %w", err)
	}
	return lazy, full, nil
}

// start runs one arm on a node of its own, so that neither finds anything in a
// store or cache that the other left.
func (s *scene) start(ctx context.Context, a arm) (_ *result, err error) {
	s.tell.say("%s start, on a fresh node with two simulated NVIDIA A100-40GB", a.name)
	newMachine := s.localMachine
	if s.opts.kubernetes {
		newMachine = s.kubernetesMachine
	}
	m, err := newMachine(ctx, a)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.node.Close()) }()
	spec := filepath.Join(m.dir, "spec.yaml")
	if err := os.WriteFile(spec, []byte(specFile), 0o644); err != nil {
		return nil, fmt.Errorf("write spec: %w", err)
	}

	meter := startMeter(m.link)
	defer meter.stop()
	err = s.tell.step("firstlight env create: a quarter of a card, until usable", func() (string, error) {
		ctx, cancel := context.WithTimeout(ctx, startLimit)
		defer cancel()
		_, err := m.firstlight(ctx, "env", "create", a.name, "--wait", "--file", spec)
		return "", m.withState(ctx, a, err)
	})
	if err != nil {
		return nil, err
	}
	r := &result{arm: a}
	if err := m.collect(ctx, r, meter); err != nil {
		return nil, err
	}
	return r, s.useAndRemove(ctx, m, a)
}

// withState adds to an error how the environment stood, which tells what it was
// waiting for.
func (m *machine) withState(ctx context.Context, a arm, err error) error {
	if err == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stateLimit)
	defer cancel()
	state, getErr := m.firstlight(ctx, "env", "get", a.name)
	times, timesErr := m.firstlight(ctx, "env", "timeline", a.name)
	if getErr != nil || timesErr != nil {
		return err
	}
	return fmt.Errorf("%w\n%s\n%s", err, state, times)
}

func (m *machine) collect(ctx context.Context, r *result, meter *meter) error {
	out, err := m.firstlight(ctx, "env", "timeline", r.name, "-o", "json")
	if err != nil {
		return err
	}
	r.timeline = &timeline.Timeline{}
	if err := json.Unmarshal(out, r.timeline); err != nil {
		return fmt.Errorf("decode timeline: %w", err)
	}
	if r.timeline.UsableAt == nil {
		return errors.New("the timeline has no usable time")
	}
	if r.bytes, err = meter.at(*r.timeline.UsableAt); err != nil {
		return err
	}
	return nil
}

// useAndRemove does what a user does next, and then goes.
func (s *scene) useAndRemove(ctx context.Context, m *machine, a arm) error {
	err := s.tell.step("firstlight env ssh: run a program in it", func() (string, error) {
		out, err := m.firstlight(ctx, "env", "ssh", a.name, "--", "python3", "/workspace/check.py")
		return lastLine(out), err
	})
	if err != nil {
		return err
	}
	return s.tell.step("firstlight env rm", func() (string, error) {
		_, err := m.firstlight(ctx, "env", "rm", a.name)
		return "", err
	})
}

// firstlight runs the command on the node as its user would.
func (m *machine) firstlight(ctx context.Context, args ...string) ([]byte, error) {
	cmd := m.node.Command(ctx, append([]string{m.bin}, args...)...)
	cmd.Env = append(cmd.Env, "HOME="+m.dir, "FIRSTLIGHT_SERVER=http://"+launcherAddress)
	return runQuietly(cmd, m.node.Run)
}

// runQuietly runs a command and returns its standard output; the error has the
// end of its standard error.
func runQuietly(cmd *exec.Cmd, run func(*exec.Cmd) error) ([]byte, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	// An interrupt lets the command end in order; see the commands' mains.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	if err := run(cmd); err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.Bytes(), nil
}

func lastLine(out []byte) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1]
}
