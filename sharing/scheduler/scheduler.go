package scheduler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/firstlight-dev/firstlight/sharing/demand"
	"github.com/firstlight-dev/firstlight/sharing/fit"
)

// Config is what a Scheduler needs. Client, Recorder and Log are required.
type Config struct {
	Client   kubernetes.Interface
	Recorder record.EventRecorder
	Log      *slog.Logger

	NodePolicy fit.Policy // default binpack
	CardPolicy fit.Policy // default binpack; HAMi's default is spread

	// ReservationTTL is how long Filter's promise holds without a Bind. It must
	// outlast what kube-scheduler does in between. Default one minute.
	ReservationTTL time.Duration
	// LockWait is how long Bind waits for another pod on the node to get
	// through Allocate. It must end before kube-scheduler's timeout for
	// extenders, 30 s in our manifests. Default 20 s.
	LockWait time.Duration
	// PatchLabel sets the node label of bound pods by a request of its own, for
	// API servers before 1.33, which take only annotations from a Binding.
	PatchLabel bool

	Now func() time.Time // default time.Now
}

// Scheduler answers kube-scheduler's extender calls.
type Scheduler struct {
	cfg     Config
	ledger  *Ledger
	locks   *nodeLocks
	factory informers.SharedInformerFactory
	pods    corelisters.PodLister
	nodes   corelisters.NodeLister
	synced  []cache.InformerSynced
	ready   atomic.Bool
}

const (
	defaultTTL      = time.Minute
	defaultLockWait = 20 * time.Second
	// sweepEvery is how often left-behind locks and unconfirmed binds are looked for.
	sweepEvery = 15 * time.Second
)

// ErrNotReady means that the API server has not been read once yet.
var ErrNotReady = errors.New("scheduler has not read the cluster yet")

// New returns a Scheduler that answers after Run has read the cluster.
func New(cfg Config) (*Scheduler, error) {
	if cfg.Client == nil || cfg.Recorder == nil || cfg.Log == nil {
		return nil, errors.New("scheduler needs a client, a recorder and a log")
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.ReservationTTL <= 0 {
		cfg.ReservationTTL = defaultTTL
	}
	if cfg.LockWait <= 0 {
		cfg.LockWait = defaultLockWait
	}
	s := &Scheduler{cfg: cfg, ledger: NewLedger(cfg.Now)}
	s.factory = informers.NewSharedInformerFactoryWithOptions(cfg.Client, 0, informers.WithTransform(trim))
	core := s.factory.Core().V1()
	s.pods, s.nodes = core.Pods().Lister(), core.Nodes().Lister()
	s.locks = &nodeLocks{client: cfg.Client, nodes: s.nodes, pods: s.pods, now: cfg.Now}
	if err := s.watch(core.Pods().Informer(), core.Nodes().Informer()); err != nil {
		return nil, err
	}
	return s, nil
}

// Ledger returns the account, for metrics.
func (s *Scheduler) Ledger() *Ledger { return s.ledger }

// Ready reports whether the cluster has been read once.
func (s *Scheduler) Ready() bool { return s.ready.Load() }

// Run reads the cluster, keeps the account up to date and sweeps until ctx ends.
func (s *Scheduler) Run(ctx context.Context) error {
	s.factory.Start(ctx.Done())
	defer s.factory.Shutdown()
	// The handlers' own HasSynced, not the informers': the account must have
	// been written, not only the cache.
	if !cache.WaitForCacheSync(ctx.Done(), s.synced...) {
		return fmt.Errorf("read the cluster: %w", context.Cause(ctx))
	}
	s.ready.Store(true)
	s.cfg.Log.InfoContext(ctx, "cluster read, answering")
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			s.sweep(ctx)
		}
	}
}

// policies resolves what the pod asks for against the defaults. Policies that
// HAMi knows and we do not fall back to the default: they are preferences.
func (s *Scheduler) policies(ctx context.Context, pod *corev1.Pod, d demand.Demand) Policies {
	p := Policies{Node: s.cfg.NodePolicy, Card: s.cfg.CardPolicy}
	for _, want := range []struct {
		text string
		to   *fit.Policy
	}{{d.NodePolicy, &p.Node}, {d.CardPolicy, &p.Card}} {
		first, _, _ := strings.Cut(want.text, ",")
		if first == "" {
			continue
		}
		known, ok := fit.ParsePolicy(first)
		if !ok {
			s.cfg.Log.WarnContext(ctx, "policy is not known, using the default", "policy", want.text, "pod", podName(pod))
			continue
		}
		*want.to = known
	}
	return p
}

func podName(pod *corev1.Pod) string { return pod.Namespace + "/" + pod.Name }

func keyOf(pod *corev1.Pod) PodKey {
	return PodKey{UID: pod.UID, Namespace: pod.Namespace, Name: pod.Name}
}
