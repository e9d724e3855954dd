package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/firstlight-dev/firstlight/test/bench/proxy"
	"github.com/firstlight-dev/firstlight/test/bench/report"
	"github.com/firstlight-dev/firstlight/test/lab"
)

// arm is one way to start an image. Another one is one more entry of arms: what
// it publishes beforehand, what runs on the node, and which program's memory
// counts.
type arm struct {
	name        string
	repository  string // suffix of the image's name: what it publishes is no other arm's
	snapshotter string // as containerd calls it
	program     string // prefix of the names of its processes
	lazy        bool   // it must ask for ranges of layers, or the run is void
	publish     func(ctx context.Context, b *bench, ref string) error
	node        []func(*lab.Node, context.Context) error
}

func arms() []arm {
	return []arm{
		{
			name: report.Firstlight, snapshotter: "firstlight", program: "firstlight-", lazy: true,
			publish: publishFirstlight, node: []func(*lab.Node, context.Context) error{(*lab.Node).StartFirstlight},
		},
		{
			name: report.Profiled, repository: "-profiled", snapshotter: "firstlight", program: "firstlight-", lazy: true,
			publish: publishProfile, node: []func(*lab.Node, context.Context) error{(*lab.Node).StartFirstlight},
		},
		{
			name: report.SOCI, snapshotter: "soci", program: "soci-", lazy: true,
			publish: publishSOCI, node: []func(*lab.Node, context.Context) error{startSOCI},
		},
		{name: report.Overlayfs, snapshotter: "overlayfs", program: "containerd"},
	}
}

func armsNamed(names []string) ([]arm, error) {
	var chosen []arm
	for _, name := range names {
		found := false
		for _, a := range arms() {
			if a.name == name {
				chosen, found = append(chosen, a), true
			}
		}
		if !found {
			return nil, fmt.Errorf("there is no arm %q", name)
		}
	}
	return chosen, nil
}

// startLimit bounds one start, so that a hang ends with an error.
const startLimit = 10 * time.Minute

// start pulls the image on a fresh node and runs its program, once.
func (b *bench) start(ctx context.Context, a arm, image string, round int) (r report.Run, err error) {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	node, err := b.lab.NodeWith(ctx, a.node...)
	if err != nil {
		return report.Run{}, err
	}
	defer func() { err = errors.Join(err, b.clear(node, err)) }()
	if err := b.settle(); err != nil {
		return report.Run{}, err
	}
	before, err := usage(node)
	if err != nil {
		return report.Run{}, err
	}
	ref := proxyAddress + "/" + image + a.repository + ":1"
	b.proxy.Reset()
	begin := time.Now()
	if err := pull(ctx, node, a.snapshotter, ref); err != nil {
		return report.Run{}, err
	}
	r = report.Run{Image: image, Arm: a.name, Kinds: map[proxy.Kind]int{}, Pulled: time.Since(begin).Seconds()}
	if err := check(ctx, node, a.snapshotter, ref); err != nil {
		return report.Run{}, err
	}
	r.Usable = time.Since(begin).Seconds()
	after, err := usage(node)
	if err != nil {
		return report.Run{}, err
	}
	r.CPU = after.cpu(a.program) - before.cpu(a.program)
	if a.program != "containerd" {
		r.CPU += after.cpu("containerd") - before.cpu("containerd")
	}
	r.PeakRSS = after.peakRSS(a.program)
	err = b.count(&r, a.lazy, fmt.Sprintf("%s-%s-%d", image, a.name, round+1))
	return r, err
}

func pull(ctx context.Context, n *lab.Node, snapshotter, ref string) error {
	_, err := n.Exec(ctx, "ctr", "image", "pull", "--snapshotter", snapshotter, "--hosts-dir", n.HostsDir(), ref)
	return err
}

// check runs the image's program to its end.
func check(ctx context.Context, n *lab.Node, snapshotter, ref string) error {
	_, err := n.Exec(ctx, "ctr", "run", "--rm", "--snapshotter", snapshotter, ref, "bench", "python3", "/workspace/check.py")
	return err
}

// errNotLazy is returned where a snapshotter fell back to a full pull, which
// happens silently and would make it look slow rather than broken.
var errNotLazy = errors.New("the image was pulled in full; see the snapshotter's log")

// count adds to a run what the proxy saw, and keeps the requests in a file.
func (b *bench) count(r *report.Run, lazy bool, name string) error {
	requests, dropped := b.proxy.Requests()
	if lazy && !slices.ContainsFunc(requests, func(q proxy.Request) bool { return q.Range != "" }) {
		return errNotLazy
	}
	r.Requests = len(requests) + dropped
	for _, q := range requests {
		r.Bytes += q.Bytes
		r.Kinds[q.Kind]++
	}
	text, err := json.MarshalIndent(requests, "", " ")
	if err != nil {
		return fmt.Errorf("encode requests: %w", err)
	}
	if err := os.MkdirAll(b.opts.out, 0o755); err != nil {
		return fmt.Errorf("make report folder: %w", err)
	}
	if err := os.WriteFile(filepath.Join(b.opts.out, name+".requests.json"), text, 0o644); err != nil {
		return fmt.Errorf("keep requests: %w", err)
	}
	return nil
}

// clear ends a node and, if all went well, frees its disk.
func (b *bench) clear(node *lab.Node, failed error) error {
	if err := node.Close(); err != nil || failed != nil || b.opts.keep {
		return err
	}
	return os.RemoveAll(node.Dir)
}

func publishFirstlight(ctx context.Context, b *bench, ref string) error {
	cmd := b.lab.Command(ctx, "firstlight", "index", "create", ref)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := b.lab.Run(cmd); err != nil {
		return fmt.Errorf("firstlight index create: %w: %s", err, out.String())
	}
	return nil
}

// publishProfile publishes an index, and the access profile of one start.
func publishProfile(ctx context.Context, b *bench, ref string) (err error) {
	if err := publishFirstlight(ctx, b, ref); err != nil {
		return err
	}
	node, err := b.lab.Node(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.clear(node, err)) }()
	if err := pull(ctx, node, "firstlight", ref); err != nil {
		return err
	}
	if err := check(ctx, node, "firstlight", ref); err != nil {
		return err
	}
	for _, verb := range []string{"stop", "push"} {
		if _, err := node.Exec(ctx, "firstlight", "profile", verb, ref); err != nil {
			return err
		}
	}
	return nil
}

// publishSOCI makes SOCI's index, version 1: like ours it leaves the image as it
// is, so that all arms start the same digest. SOCI reads the image from a
// containerd.
func publishSOCI(ctx context.Context, b *bench, ref string) (err error) {
	node, err := b.lab.NodeWith(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.clear(node, err)) }()
	for _, argv := range [][]string{
		{"ctr", "content", "fetch", "--hosts-dir", node.HostsDir(), ref},
		{"soci", "create", ref},
		{"soci", "push", "--plain-http", "--existing-index", "allow", ref},
	} {
		if _, err := node.Exec(ctx, argv...); err != nil {
			return err
		}
	}
	return nil
}

const sociSocket = "/run/soci-snapshotter-grpc/soci-snapshotter-grpc.sock"

// startSOCI starts SOCI's snapshotter with its defaults, but for what this lab
// is: an index of version 1, and a registry without TLS.
func startSOCI(n *lab.Node, ctx context.Context) error { //nolint:revive // the order of lab.NodeWith, of method values
	config := filepath.Join(n.Dir, "soci.toml")
	text := fmt.Sprintf(`[pull_modes.soci_v1]
enable = true
[[resolver.host.%[1]q.mirrors]]
host = %[2]q
insecure = true
`, proxyAddress, "http://"+proxyAddress)
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		return fmt.Errorf("write SOCI configuration: %w", err)
	}
	platform := "linux/" + runtime.GOARCH
	err := n.WriteDropIn("soci", fmt.Sprintf(`version = 3
[proxy_plugins.soci]
  type = "snapshot"
  address = %q
  [proxy_plugins.soci.exports]
    root = "/var/lib/soci-snapshotter-grpc"
    enable_remote_snapshot_annotations = "true"
[[plugins.'io.containerd.transfer.v1.local'.unpack_config]]
  platform = %q
  snapshotter = "soci"
`, sociSocket, platform))
	if err != nil {
		return err
	}
	return n.Serve(ctx, "soci", "unix", sociSocket, "soci-snapshotter-grpc", "--config", config)
}

func cpus() int { return runtime.NumCPU() }
