package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/firstlight-dev/firstlight/sharing/deviceplugin"
	"github.com/firstlight-dev/firstlight/sharing/inventory"
	"github.com/firstlight-dev/firstlight/sharing/monitor"
	"github.com/firstlight-dev/firstlight/sharing/wire"
)

// options are the flags.
type options struct {
	kubeconfig string
	logLevel   string
	node       string
	simulate   string
	scaling    inventory.Scaling
	kubeletDir string
	hookPath   string
	legacy     bool
	coreLog    string
	listen     string
}

func (o *options) register(f *pflag.FlagSet) {
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig `file`; default: the pod's own service account")
	f.StringVar(&o.logLevel, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&o.node, "node-name", os.Getenv("NODE_NAME"), "this node's `name`; default: $NODE_NAME")
	f.StringVar(&o.simulate, "simulate", "", "inventory `file` of simulated cards, instead of the driver's")
	f.IntVar(&o.scaling.Slots, "split-count", wire.DefaultSlots, "vGPUs per card")
	f.Float64Var(&o.scaling.Memory, "memory-scaling", 1, "memory to lend per memory there is")
	f.Float64Var(&o.scaling.Cores, "core-scaling", 1, "cores to lend per core there is")
	f.StringVar(&o.kubeletDir, "kubelet-dir", "", "`folder` of the kubelet's device plugin sockets (default /var/lib/kubelet/device-plugins)")
	f.StringVar(&o.hookPath, "hook-path", "", "`folder` that holds HAMi-core below vgpu (default /usr/local)")
	f.BoolVar(&o.legacy, "legacy-register", false, "register cards in the form of HAMi 2.7 and earlier")
	f.StringVar(&o.coreLog, "core-log-level", "", "HAMi-core's log level: 0, 1, 3 or 4 (default 1)")
	f.StringVar(&o.listen, "metrics-listen", ":9394", "`address` for /metrics; empty for none")
}

func (o *options) run(ctx context.Context) error {
	log, err := newLogger(os.Stderr, o.logLevel)
	if err != nil {
		return err
	}
	if o.node == "" {
		return errors.New("this node's name is not known: give --node-name or set NODE_NAME")
	}
	source, err := o.open()
	if err != nil {
		return err
	}
	client, err := newClient(o.kubeconfig)
	if err != nil {
		return err
	}
	plugin, err := deviceplugin.New(deviceplugin.Config{
		Node: o.node, Client: client, Source: source, Log: log,
		KubeletDir: o.kubeletDir, HookPath: o.hookPath, Legacy: o.legacy, LogLevel: o.coreLog,
	})
	if err != nil {
		return err
	}
	pods, err := monitor.WatchPods(client, o.node)
	if err != nil {
		return err
	}
	containers := &monitor.Containers{Dir: plugin.ContainersDir(), Pods: pods, Log: log, Now: time.Now}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return plugin.Run(ctx) })
	group.Go(func() error { return pods.Run(ctx) })
	group.Go(func() error { return containers.Run(ctx) })
	if o.listen != "" {
		registry := prometheus.NewRegistry()
		registry.MustRegister(
			monitor.NewCollector(o.node, plugin.Cards, source, containers),
			collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
		group.Go(func() error { return serveMetrics(ctx, o.listen, registry) })
	}
	return group.Wait()
}

func (o *options) open() (inventory.Source, error) {
	if o.simulate != "" {
		return inventory.OpenSimulated(o.simulate, o.node)
	}
	return inventory.OpenNVML(o.scaling)
}

const (
	// headerTime bounds how long a caller may take to send a header.
	headerTime = 10 * time.Second
	// drainTime is how long calls in flight get at the end.
	drainTime = 5 * time.Second
)

func serveMetrics(ctx context.Context, address string, registry *prometheus.Registry) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	server := &http.Server{Handler: mux, ReadHeaderTimeout: headerTime}
	done := context.AfterFunc(ctx, func() {
		drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTime)
		defer cancel()
		_ = server.Shutdown(drain)
	})
	defer done()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %s: %w", address, err)
	}
	return nil
}

// newClient returns a client without client-go's own rate limit: the kubelet
// waits while we call.
func newClient(kubeconfig string) (kubernetes.Interface, error) {
	var config *rest.Config
	var err error
	if kubeconfig != "" {
		config, err = clientcmd.BuildConfigFromFlags("", kubeconfig)
	} else {
		config, err = rest.InClusterConfig()
	}
	if err != nil {
		return nil, fmt.Errorf("configure client: %w", err)
	}
	config.QPS = -1
	config.UserAgent = "firstlight-device-plugin"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	return client, nil
}

func newLogger(w io.Writer, level string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("log level %q: %w", level, err)
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: l})), nil
}
