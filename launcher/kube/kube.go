package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/firstlight-dev/firstlight/launcher/backend"
	"github.com/firstlight-dev/firstlight/launcher/backend/hami"
	"github.com/firstlight-dev/firstlight/launcher/backend/wholecard"
	"github.com/firstlight-dev/firstlight/launcher/cluster"
	"github.com/firstlight-dev/firstlight/launcher/spec"
	"github.com/firstlight-dev/firstlight/sharing/wire"
	"github.com/firstlight-dev/firstlight/snapshotter/nodeapi"
)

const (
	// qps and burst bound what one launcher asks of an API server: a start is
	// a handful of requests.
	qps, burst = 50, 100
	// requestTimeout bounds one request; watches have none.
	requestTimeout = 30 * time.Second
	// syncTimeout bounds the first listing.
	syncTimeout = time.Minute
)

// Config is what a Kubernetes cluster needs to know.
type Config struct {
	Name          string
	Namespace     string // environments live here; nothing else should
	ToolsImage    string // image with the agent at /bin/firstlight-agent
	ToolsDelivery string // DeliverImageVolume (default) or DeliverInitContainer
	SchedulerName string // of the scheduler that shares cards; default: this project's
	RuntimeClass  string // of environments; empty leaves the cluster's default
	DirectDial    bool   // pod addresses can be reached from here
	HostPaths     []string
	NodeAPI       string // socket of the snapshotter's node API, if the node is this machine
}

func (c *Config) withDefaults() (Config, error) {
	out := *c
	out.Namespace = cmp.Or(out.Namespace, "default")
	out.ToolsDelivery = cmp.Or(out.ToolsDelivery, DeliverImageVolume)
	out.SchedulerName = cmp.Or(out.SchedulerName, wire.SchedulerName)
	switch {
	case out.Name == "":
		return out, errors.New("kubernetes cluster has no name")
	case out.ToolsImage == "":
		return out, errors.New("toolsImage is not set: no agent could be brought into a pod")
	case out.ToolsDelivery != DeliverImageVolume && out.ToolsDelivery != DeliverInitContainer:
		return out, fmt.Errorf("toolsDelivery %q is neither %s nor %s", out.ToolsDelivery, DeliverImageVolume, DeliverInitContainer)
	}
	return out, nil
}

// Cluster is a Kubernetes cluster.
type Cluster struct {
	cfg    Config
	rest   *rest.Config
	client kubernetes.Interface
	node   *nodeapi.Client // nil where the node API cannot be reached
	log    *slog.Logger

	pods cache.SharedIndexInformer
	stop context.CancelFunc
	all  sync.WaitGroup // informers

	mu        sync.Mutex
	followers map[string]*watched // by pod name; guarded by mu
}

// watched is a follower with what its Start waits for.
type watched struct {
	mu       sync.Mutex
	follower *follower     // guarded by mu
	changed  chan struct{} // there may be news
}

func (w *watched) do(fn func(f *follower)) {
	w.mu.Lock()
	fn(w.follower)
	w.mu.Unlock()
	select {
	case w.changed <- struct{}{}:
	default: // news are waiting already
	}
}

var (
	_ cluster.Cluster     = (*Cluster)(nil)
	_ cluster.ImageReader = (*Cluster)(nil)
	_ cluster.StartEnder  = (*Cluster)(nil)
)

// New connects to the cluster and starts watching its own pods. Close ends it.
func New(ctx context.Context, rc *rest.Config, cfg Config, log *slog.Logger) (*Cluster, error) {
	rc = rest.CopyConfig(rc)
	rc.QPS, rc.Burst, rc.UserAgent = qps, burst, managedBy
	client, err := kubernetes.NewForConfig(rc)
	if err != nil {
		return nil, fmt.Errorf("kubernetes cluster %s: %w", cfg.Name, err)
	}
	c, err := newCluster(client, cfg, log)
	if err != nil {
		return nil, err
	}
	c.rest = rc
	c.watch(ctx)
	return c, nil
}

func newCluster(client kubernetes.Interface, cfg Config, log *slog.Logger) (*Cluster, error) {
	full, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("kubernetes cluster %s: %w", cfg.Name, err)
	}
	c := &Cluster{cfg: full, client: client, log: log, followers: map[string]*watched{}}
	if full.NodeAPI != "" {
		c.node = nodeapi.NewClient(full.NodeAPI)
	}
	return c, nil
}

// watch starts the informers. They live until Close, and reconnect by
// themselves: a cluster that is down at the launcher's start is no error.
func (c *Cluster) watch(ctx context.Context) {
	ctx, c.stop = context.WithCancel(context.WithoutCancel(ctx))
	pods := informers.NewSharedInformerFactoryWithOptions(c.client, 0, informers.WithNamespace(c.cfg.Namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.LabelSelector = labels.Set{labelManaged: managedBy}.String()
		}))
	c.pods = pods.Core().V1().Pods().Informer()
	c.handle(c.pods, func(obj any) {
		if p, ok := obj.(*corev1.Pod); ok {
			at := time.Now()
			c.tell(p.Name, func(f *follower) { f.pod(p, at) })
		}
	})
	events := informers.NewSharedInformerFactoryWithOptions(c.client, 0, informers.WithNamespace(c.cfg.Namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.FieldSelector = "involvedObject.kind=Pod" }))
	evs := events.Core().V1().Events().Informer()
	c.handle(evs, func(obj any) {
		if e, ok := obj.(*corev1.Event); ok {
			at := time.Now()
			c.tell(e.InvolvedObject.Name, func(f *follower) { f.event(e, at) })
		}
	})
	for _, inf := range []cache.SharedIndexInformer{c.pods, evs} {
		c.all.Go(func() { inf.Run(ctx.Done()) })
	}
}

func (c *Cluster) handle(inf cache.SharedIndexInformer, fn func(obj any)) {
	_, err := inf.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: fn, UpdateFunc: func(_, obj any) { fn(obj) },
	})
	if err != nil {
		c.log.Error("watch not set up", "cluster", c.cfg.Name, "error", err)
	}
}

func (c *Cluster) tell(pod string, fn func(f *follower)) {
	c.mu.Lock()
	w := c.followers[pod]
	c.mu.Unlock()
	if w != nil {
		w.do(fn)
	}
}

// Close ends the watches. Pods go on.
func (c *Cluster) Close() error {
	if c.stop != nil {
		c.stop()
		c.all.Wait()
	}
	return nil
}

// Name implements cluster.Cluster.
func (c *Cluster) Name() string { return c.cfg.Name }

// ask translates the GPU part of a spec.
func (c *Cluster) ask(ctx context.Context, s *spec.Spec) (*backend.Ask, error) {
	if s.GPU == nil {
		return nil, nil //nolint:nilnil // no GPU, nothing to ask
	}
	facts := backend.Facts{SchedulerName: c.cfg.SchedulerName, RuntimeClass: c.cfg.RuntimeClass}
	var b backend.Backend = hami.Backend{}
	if s.Backend == spec.BackendWhole {
		b = wholecard.Backend{}
		products, err := c.products(ctx)
		if err != nil {
			return nil, err
		}
		facts.Products = products
	}
	ask, err := b.Translate(s, facts)
	if err != nil {
		return nil, cluster.Fail(cluster.CodeUnsupported, "backend %s: %w", s.Backend, err)
	}
	return ask, nil
}

func (c *Cluster) products(ctx context.Context) ([]string, error) {
	nodes, err := c.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, classify("list nodes", err)
	}
	var out []string
	for i := range nodes.Items {
		if p := nodes.Items[i].Labels["nvidia.com/gpu.product"]; p != "" {
			out = append(out, p)
		}
	}
	return out, nil
}

// classify gives an API server's error its code.
func classify(what string, err error) error {
	if errors.Is(err, context.Canceled) {
		return fmt.Errorf("%s: %w", what, err)
	}
	out := &cluster.Error{Code: cluster.CodeUnreachable, Retryable: true, Err: fmt.Errorf("%s: %w", what, err)}
	switch {
	case apierrors.IsNotFound(err):
		out.Code, out.Retryable = cluster.CodeMissingCapability, false
	case apierrors.IsUnauthorized(err):
		out.Code, out.Retryable = cluster.CodeForbidden, false
	case apierrors.IsForbidden(err):
		out.Code, out.Retryable = cluster.CodeForbidden, false
	}
	return out
}
