package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"golang.org/x/sys/unix"

	"github.com/firstlight-dev/firstlight/test/bench/proxy"
	"github.com/firstlight-dev/firstlight/test/bench/report"
	"github.com/firstlight-dev/firstlight/test/images"
	"github.com/firstlight-dev/firstlight/test/lab"
	"github.com/firstlight-dev/firstlight/test/sandbox"
)

const proxyPort = "5001"

// proxyAddress is where nodes find the registry, by way of the proxy.
const proxyAddress = lab.RegistryIP + ":" + proxyPort

// idleConnections is how many connections to the registry the proxy keeps: more
// than any snapshotter opens, so that dialling costs no arm anything.
const idleConnections = 128

// bench is the registry with its proxy and the images in it.
type bench struct {
	opts   options
	dir    string // throw-away
	lab    *lab.Lab
	proxy  *proxy.Proxy
	server *http.Server
	served chan error
}

func run(ctx context.Context, o options) (err error) {
	chosen, err := armsNamed(o.arms)
	if err != nil {
		return err
	}
	b, err := prepare(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close(err != nil)) }()
	for _, image := range o.images {
		if err := b.publish(ctx, image, chosen); err != nil {
			return err
		}
	}
	conditions, err := readConditions(o)
	if err != nil {
		return err
	}
	runs, err := b.measure(ctx, chosen)
	if err != nil {
		return err
	}
	if conditions.LoadLast, err = load(); err != nil {
		return err
	}
	r := report.New(conditions, runs)
	if err := r.WriteFile(filepath.Join(o.out, "bench.json")); err != nil {
		return err
	}
	return r.WriteTables(os.Stdout)
}

// prepare starts the registry and the proxy in front of it.
func prepare(ctx context.Context, o options) (_ *bench, err error) {
	root, err := sandbox.RepositoryRoot()
	if err != nil {
		return nil, err
	}
	// On the disk of the repository: /tmp may be memory.
	runs := filepath.Join(root, ".cache", "run")
	if err := os.MkdirAll(runs, 0o755); err != nil {
		return nil, fmt.Errorf("make run folder: %w", err)
	}
	b := &bench{opts: o, served: make(chan error, 1)}
	if b.dir, err = os.MkdirTemp(runs, "bench-"); err != nil {
		return nil, fmt.Errorf("make run folder: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.close(true))
		}
	}()
	b.lab, err = lab.Start(ctx, lab.Config{
		Dir: b.dir, Bin: filepath.Join(root, "bin"), Mbits: o.mbits, Mirrors: []string{proxyAddress},
	})
	if err != nil {
		return nil, err
	}
	listener, err := b.lab.Listen(proxyPort)
	if err != nil {
		return nil, fmt.Errorf("listen for the proxy: %w", err)
	}
	transport := b.lab.Transport()
	transport.MaxIdleConns, transport.MaxIdleConnsPerHost = idleConnections, idleConnections
	transport.DisableCompression = true
	b.proxy = proxy.New(lab.RegistryAddress, transport, o.latency)
	b.server = &http.Server{Handler: b.proxy, ReadHeaderTimeout: time.Minute, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)}
	go func() { b.served <- b.server.Serve(listener) }()
	return b, nil
}

// publish makes an image, pushes it, and does for each arm what it needs.
func (b *bench) publish(ctx context.Context, image string, chosen []arm) error {
	root, err := sandbox.RepositoryRoot()
	if err != nil {
		return err
	}
	maker := &images.Maker{Dir: filepath.Join(root, ".cache", "images"), Log: slog.Default()}
	makers := map[string]func(context.Context) (v1.Image, error){"py": maker.Py, "scipy": maker.Scipy}
	made, ok := makers[image]
	if !ok {
		return fmt.Errorf("there is no image %q", image)
	}
	slog.Info("making the image, unless it is kept from before", "image", image)
	img, err := made(ctx)
	if err != nil {
		return err
	}
	for _, a := range chosen {
		slog.Info("publishing", "image", image, "arm", a.name)
		ref := lab.RegistryAddress + "/" + image + a.repository + ":1"
		if err := images.Push(ctx, img, ref, remote.WithTransport(b.lab.Transport())); err != nil {
			return err
		}
		if a.publish == nil {
			continue
		}
		if err := a.publish(ctx, b, ref); err != nil {
			return fmt.Errorf("publish %s for %s: %w", image, a.name, err)
		}
	}
	return nil
}

// measure lets the arms take turns. Each round begins with another one, so that
// none always comes after the same neighbour's dirty pages.
func (b *bench) measure(ctx context.Context, chosen []arm) ([]report.Run, error) {
	var runs []report.Run
	for round := range b.opts.runs {
		for _, image := range b.opts.images {
			for i := range chosen {
				a := chosen[(round+i)%len(chosen)]
				r, err := b.start(ctx, a, image, round)
				if err != nil {
					return nil, fmt.Errorf("start %s by %s: %w", image, a.name, err)
				}
				slog.Info("started", "image", image, "arm", a.name, "usable_seconds", r.Usable, "bytes", r.Bytes, "requests", r.Requests)
				runs = append(runs, r)
			}
		}
	}
	return runs, nil
}

// settle lets writes of runs before end, for they would slow the next one down.
func (b *bench) settle() error {
	dir, err := os.Open(b.dir)
	if err != nil {
		return fmt.Errorf("open run folder: %w", err)
	}
	defer dir.Close()
	if err := unix.Syncfs(int(dir.Fd())); err != nil {
		return fmt.Errorf("sync run folder: %w", err)
	}
	return nil
}

// close ends everything. The folder stays when something failed, for its logs.
func (b *bench) close(failed bool) error {
	var errs []error
	if b.server != nil {
		errs = append(errs, b.server.Close())
		if err := <-b.served; !errors.Is(err, http.ErrServerClosed) {
			errs = append(errs, fmt.Errorf("serve proxy: %w", err))
		}
	}
	if b.lab != nil {
		errs = append(errs, b.lab.Close())
	}
	if b.opts.keep || failed {
		slog.Info("logs are kept", "folder", b.dir)
		return errors.Join(errs...)
	}
	return errors.Join(append(errs, os.RemoveAll(b.dir))...)
}

func readConditions(o options) (report.Conditions, error) {
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return report.Conditions{}, fmt.Errorf("read kernel version: %w", err)
	}
	busy, err := load()
	if err != nil {
		return report.Conditions{}, err
	}
	return report.Conditions{
		Date: time.Now().UTC().Truncate(time.Second), CPUs: cpus(), Kernel: unix.ByteSliceToString(uts.Release[:]),
		Mbits: o.mbits, Latency: o.latency.Seconds(), Load: busy,
	}, nil
}

// load is the machine's load average of the last minute.
func load() (average float64, err error) {
	f, err := os.Open("/proc/loadavg")
	if err != nil {
		return 0, fmt.Errorf("read load: %w", err)
	}
	defer f.Close()
	if _, err := fmt.Fscan(io.LimitReader(f, 64), &average); err != nil {
		return 0, fmt.Errorf("read load: %w", err)
	}
	return average, nil
}
