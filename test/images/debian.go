package images

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/v2/pkg/archive"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

const codename = "bookworm"

// Scipy returns a realistic image of a Python user: Debian, python3 with a few
// system programs, numpy and scipy, and a last layer that tidies up. About
// 400 MB in four gzip layers.
func (m *Maker) Scipy(ctx context.Context) (v1.Image, error) {
	return m.python(ctx, recipe{
		Name: "scipy",
		Base: "debian:" + codename,
		Steps: []step{
			{By: "debootstrap --variant=minbase " + codename},
			{
				By: "apt-get install python3",
				// git and ping bring hard links and a file capability.
				Packages: []string{"python3", "git", "iputils-ping", "libcap2-bin"},
			},
			{By: "apt-get install python3-numpy python3-scipy", Packages: []string{"python3-numpy", "python3-scipy"}},
			{
				By: "tidy",
				Script: `rm -rf /usr/share/doc/* /usr/share/man/*
mkdir -p /workspace
printf 'import numpy, scipy.linalg\nprint(scipy.linalg.det(numpy.eye(3)))\n' > /workspace/check.py`,
			},
		},
	})
}

// Py returns what a data scientist's image looks like: Debian, compilers and
// python3 with numpy, scipy and pandas. Its /workspace/check.py uses all three.
// More than 1 GB, unpacked, in four gzip layers: what benchmarks start.
func (m *Maker) Py(ctx context.Context) (v1.Image, error) {
	return m.python(ctx, recipe{
		Name: "py",
		Base: "debian:" + codename,
		Steps: []step{
			{By: "debootstrap --variant=minbase " + codename},
			{
				By:       "apt-get install build-essential gfortran git python3-dev",
				Packages: []string{"build-essential", "gfortran", "git", "python3-dev"},
			},
			{
				By:       "apt-get install python3-numpy python3-scipy python3-pandas",
				Packages: []string{"python3-numpy", "python3-scipy", "python3-pandas", "python3-pip"},
			},
			{
				By: "check.py",
				Script: `mkdir -p /workspace
printf 'import numpy, pandas, scipy.linalg, scipy.stats\nprint(pandas.Series(numpy.arange(4)).sum(), scipy.linalg.det(numpy.eye(3)))\n' > /workspace/check.py`,
			},
		},
	})
}

// python makes an image whose container waits for somebody to run something.
func (m *Maker) python(ctx context.Context, r recipe) (v1.Image, error) {
	r.Config = v1.Config{
		Env:        []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"},
		Cmd:        []string{"sleep", "infinity"},
		WorkingDir: "/workspace",
	}
	return m.make(ctx, r, func(ctx context.Context, work string) ([]v1.Layer, error) {
		return m.debian(ctx, r, work)
	})
}

// debian runs a recipe on top of a debootstrapped root. Each step works on a
// copy of the root before it, so that both sides of the difference exist.
func (m *Maker) debian(ctx context.Context, r recipe, work string) ([]v1.Layer, error) {
	apt, err := readApt(ctx)
	if err != nil {
		return nil, err
	}
	var layers []v1.Layer
	var before string
	for i, s := range r.Steps {
		m.Log.Info("making layer", "image", r.Name, "layer", i+1, "of", len(r.Steps), "by", s.By)
		root := filepath.Join(work, fmt.Sprintf("root-%d", i))
		if before == "" {
			err = apt.bootstrap(ctx, root)
		} else {
			err = run(ctx, nil, "cp", "--archive", "--reflink=auto", before, root)
		}
		if err != nil {
			return nil, err
		}
		if err := apt.apply(ctx, root, s); err != nil {
			return nil, err
		}
		file := filepath.Join(work, fmt.Sprintf("layer-%d.tar.gz", i))
		if err := writeDiff(ctx, before, root, file); err != nil {
			return nil, err
		}
		layer, err := layerFromFile(file)
		if err != nil {
			return nil, err
		}
		layers = append(layers, layer)
		before = root
	}
	return layers, nil
}

// apt is what this machine's apt configuration says about reaching Debian.
type apt struct {
	mirror string
	env    []string // proxy settings
}

// readApt takes the mirror from the machine's own sources, because that one is
// known to be reachable from here.
func readApt(ctx context.Context) (apt, error) {
	out, err := output(ctx, "apt-get", "indextargets", "--format", "$(CREATED_BY) $(COMPONENT) $(RELEASE) $(REPO_URI)")
	if err != nil {
		return apt{}, fmt.Errorf("ask apt for its sources: %w", err)
	}
	var found apt
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) == 4 && f[0] == "Packages" && f[1] == "main" && strings.HasSuffix(strings.TrimSuffix(f[3], "/"), "/debian") {
			found.mirror = f[3]
			break
		}
	}
	if found.mirror == "" {
		return apt{}, errors.New("no Debian mirror in apt's configuration; add one to /etc/apt/sources.list")
	}
	for _, scheme := range []string{"http", "https"} {
		var proxy string
		line, err := output(ctx, "apt-config", "shell", "proxy", "Acquire::"+scheme+"::Proxy")
		if err != nil {
			return apt{}, fmt.Errorf("ask apt for its proxy: %w", err)
		}
		if _, proxy, _ = strings.Cut(strings.TrimSpace(line), "="); proxy != "" {
			found.env = append(found.env, scheme+"_proxy="+strings.Trim(proxy, "'"))
		}
	}
	return found, nil
}

// private runs a command where it can mount, and leave processes behind,
// without any trace after it.
func (a apt) private(ctx context.Context, args ...string) error {
	return run(ctx, a.env, "unshare", append([]string{"--mount", "--pid", "--fork", "--kill-child"}, args...)...)
}

func (a apt) bootstrap(ctx context.Context, root string) error {
	return a.private(ctx, "--mount-proc", "debootstrap", "--variant=minbase", codename, root, a.mirror)
}

// apply changes root as s says. The machine's resolver is there while packages
// are downloaded, and is no part of the image.
func (a apt) apply(ctx context.Context, root string, s step) error {
	script := "set -e\nexport DEBIAN_FRONTEND=noninteractive PYTHONHASHSEED=0\n"
	if len(s.Packages) > 0 {
		resolv, err := os.ReadFile("/etc/resolv.conf")
		if err != nil {
			return fmt.Errorf("read resolver settings: %w", err)
		}
		if err := os.WriteFile(filepath.Join(root, "etc/resolv.conf"), resolv, 0o644); err != nil {
			return fmt.Errorf("write resolver settings: %w", err)
		}
		script += "apt-get update -qq\napt-get install -y -qq --no-install-recommends " + strings.Join(s.Packages, " ") + "\n"
	}
	script += s.Script + `
apt-get clean
rm -rf /var/lib/apt/lists/* /var/cache/ldconfig/* /var/log/*.log /var/log/apt/* /tmp/* /etc/resolv.conf
echo debian > /etc/hostname
`
	// No service may start in the root: policy-rc.d says so to invoke-rc.d.
	policy := filepath.Join(root, "usr/sbin/policy-rc.d")
	if err := os.WriteFile(policy, []byte("#!/bin/sh\nexit 101\n"), 0o755); err != nil {
		return fmt.Errorf("write service policy: %w", err)
	}
	if err := a.private(ctx, "--root="+root, "--mount-proc", "sh", "-c", script); err != nil {
		return err
	}
	return os.Remove(policy)
}

// writeDiff writes, as a gzip layer, what changes the root before into after.
func writeDiff(ctx context.Context, before, after, file string) error {
	f, err := os.Create(file)
	if err != nil {
		return fmt.Errorf("create layer: %w", err)
	}
	defer f.Close()
	zip := gzip.NewWriter(f)
	if err := archive.WriteDiff(ctx, zip, before, after, archive.WithSourceDateEpoch(&epoch)); err != nil {
		return fmt.Errorf("write difference to %s: %w", file, err)
	}
	if err := zip.Close(); err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	return nil
}

// run runs a command and, when it fails, makes the end of what it printed part
// of the error.
func run(ctx context.Context, env []string, name string, args ...string) error {
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("run %s: %w\n%s", name, err, tail(out.Bytes()))
	}
	return nil
}

func output(ctx context.Context, name string, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, name, args...).Output()
	return string(out), err
}

// tail returns the last part of a command's output, where the reason stands.
func tail(b []byte) []byte {
	const keep = 4 << 10
	if len(b) > keep {
		b = b[len(b)-keep:]
	}
	return b
}

func countBytes(r io.ReadCloser) (int64, error) {
	n, err := io.Copy(io.Discard, r)
	return n, errors.Join(err, r.Close())
}
