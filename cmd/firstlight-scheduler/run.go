package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/record"

	"github.com/firstlight-dev/firstlight/sharing/fit"
	"github.com/firstlight-dev/firstlight/sharing/scheduler"
	"github.com/firstlight-dev/firstlight/sharing/webhook"
	"github.com/firstlight-dev/firstlight/sharing/wire"
)

// options are the flags.
type options struct {
	kubeconfig string
	logLevel   string

	listen, webhookListen, metricsListen string
	certFile, keyFile                    string
	selfSigned                           []string
	webhookConfig                        string
	extenderTLS                          bool

	name, nodePolicy, cardPolicy string
	alsoFrom                     []string
	runtimeClass                 string
	hideCards                    bool
	reservationTTL, lockWait     time.Duration
}

func (o *options) register(f *pflag.FlagSet) {
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig `file`; default: the pod's own service account")
	f.StringVar(&o.logLevel, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&o.listen, "listen", "127.0.0.1:9396", "`address` for kube-scheduler's extender calls")
	f.BoolVar(&o.extenderTLS, "extender-tls", false, "serve the extender calls over TLS too")
	f.StringVar(&o.webhookListen, "webhook-listen", "", "`address` for admission reviews over TLS; empty for no webhook")
	f.StringVar(&o.metricsListen, "metrics-listen", ":9395", "`address` for /metrics; empty for none")
	f.StringVar(&o.certFile, "tls-cert", "", "certificate `file`")
	f.StringVar(&o.keyFile, "tls-key", "", "key `file`")
	f.StringSliceVar(&o.selfSigned, "self-signed", nil, "make a certificate for these `hosts` instead of reading files")
	f.StringVar(&o.webhookConfig, "webhook-configuration", "", "write the self-signed certificate into the MutatingWebhookConfiguration of this `name`")
	f.StringVar(&o.name, "scheduler-name", wire.SchedulerName, "pods with vGPUs are sent to the scheduler of this `name`")
	f.StringSliceVar(&o.alsoFrom, "also-from", []string{wire.HAMiSchedulerName}, "take pods from schedulers of these `names`")
	f.StringVar(&o.nodePolicy, "node-scheduler-policy", "binpack", "binpack or spread over nodes")
	f.StringVar(&o.cardPolicy, "gpu-scheduler-policy", "spread", "binpack, spread or mutex over the cards of a node")
	f.StringVar(&o.runtimeClass, "runtime-class", "", "runtime class `name` for pods with vGPUs that name none")
	f.BoolVar(&o.hideCards, "hide-cards", false, "set NVIDIA_VISIBLE_DEVICES=none on containers without vGPUs beside those with")
	f.DurationVar(&o.reservationTTL, "reservation-ttl", 0, "how long a filter call's promise holds (default 1m)")
	f.DurationVar(&o.lockWait, "lock-wait", 0, "how long a bind waits for the node's lock (default 20s)")
}

func (o *options) run(ctx context.Context) error {
	log, err := newLogger(os.Stderr, o.logLevel)
	if err != nil {
		return err
	}
	client, err := newClient(o.kubeconfig)
	if err != nil {
		return err
	}
	s, stopEvents, err := o.newScheduler(client, log)
	if err != nil {
		return err
	}
	defer stopEvents()
	certificate, err := o.certificate(ctx, client)
	if err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(scheduler.NewCollector(s.Ledger()), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.Run(ctx) })
	extenderTLS := certificate
	if !o.extenderTLS {
		extenderTLS = nil
	}
	group.Go(func() error { return serve(ctx, o.listen, s.Handler(), extenderTLS) })
	if o.webhookListen != "" {
		mux := http.NewServeMux()
		config := webhook.Config{SchedulerName: o.name, AlsoFrom: o.alsoFrom, RuntimeClass: o.runtimeClass, HideCards: o.hideCards}
		mux.Handle("POST /webhook", config.Handler(log))
		mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
		group.Go(func() error { return serve(ctx, o.webhookListen, mux, certificate) })
	}
	if o.metricsListen != "" {
		mux := http.NewServeMux()
		mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError}))
		group.Go(func() error { return serve(ctx, o.metricsListen, mux, nil) })
	}
	return group.Wait()
}

func (o *options) newScheduler(client kubernetes.Interface, log *slog.Logger) (*scheduler.Scheduler, func(), error) {
	nodePolicy, ok := fit.ParsePolicy(o.nodePolicy)
	if !ok || nodePolicy.IdleOnly {
		return nil, nil, fmt.Errorf("unknown node policy %q, want binpack or spread", o.nodePolicy)
	}
	cardPolicy, ok := fit.ParsePolicy(o.cardPolicy)
	if !ok {
		return nil, nil, fmt.Errorf("unknown card policy %q, want binpack, spread or mutex", o.cardPolicy)
	}
	broadcaster := record.NewBroadcaster()
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	s, err := scheduler.New(scheduler.Config{
		Client: client, Log: log,
		Recorder:   broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: o.name}),
		NodePolicy: nodePolicy, CardPolicy: cardPolicy,
		ReservationTTL: o.reservationTTL, LockWait: o.lockWait,
		PatchLabel: bindsOnlyAnnotations(client),
	})
	if err != nil {
		broadcaster.Shutdown()
		return nil, nil, err
	}
	return s, broadcaster.Shutdown, nil
}

// bindingLabelsMinor is the first Kubernetes 1.x that takes labels from a Binding.
const bindingLabelsMinor = 33

// bindsOnlyAnnotations reports whether the API server ignores a Binding's
// labels. Unknown counts as yes: patching a label that is there costs little.
func bindsOnlyAnnotations(client kubernetes.Interface) bool {
	version, err := client.Discovery().ServerVersion()
	if err != nil {
		return true
	}
	minor, err := strconv.Atoi(strings.TrimRight(version.Minor, "+"))
	return err != nil || minor < bindingLabelsMinor
}

// certificate returns the server's certificate, or nil if none is asked for.
func (o *options) certificate(ctx context.Context, client kubernetes.Interface) (*tls.Certificate, error) {
	switch {
	case len(o.selfSigned) > 0:
		certificate, authority, err := webhook.SelfSigned(o.selfSigned, time.Now())
		if err != nil {
			return nil, err
		}
		if o.webhookConfig != "" {
			if err := webhook.Trust(ctx, client, o.webhookConfig, authority); err != nil {
				return nil, err
			}
		}
		return &certificate, nil
	case o.certFile != "" || o.keyFile != "":
		certificate, err := tls.LoadX509KeyPair(o.certFile, o.keyFile)
		if err != nil {
			return nil, fmt.Errorf("load certificate: %w", err)
		}
		return &certificate, nil
	case o.extenderTLS || o.webhookListen != "":
		return nil, errors.New("TLS needs --tls-cert and --tls-key, or --self-signed")
	}
	return nil, nil
}

const (
	// headerTime bounds how long a caller may take to send a header.
	headerTime = 10 * time.Second
	// drainTime is how long calls in flight get at the end.
	drainTime = 5 * time.Second
)

// serve serves until ctx ends.
func serve(ctx context.Context, address string, handler http.Handler, certificate *tls.Certificate) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	if certificate != nil {
		listener = tls.NewListener(listener, &tls.Config{Certificates: []tls.Certificate{*certificate}, MinVersion: tls.VersionTLS12})
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: headerTime}
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

// newClient returns a client without client-go's own rate limit, which is meant
// for controllers: here every waiting call is a pod that does not start. The API
// server has its own fairness.
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
	config.UserAgent = "firstlight-scheduler"
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
