// Package deviceplugin is the node's half of vGPU sharing: it tells the kubelet
// how many vGPUs there are, tells schedulers what the cards are, and gives each
// container the environment that HAMi-core limits it by.
//
// # Which pod is an Allocate call for?
//
// The kubelet does not say. The scheduler binds one pod per node at a time and
// writes its name into the node's lock; that pod is the one. Without a usable
// lock there must be exactly one pod on the node that waits and fits the call,
// or the call is refused: a pod that fails to start is better than one that
// runs on another's share. The pod's two annotations must agree with each other,
// with the call and with this node's cards.
//
// The containers of the pod are served in the order of the annotation; after the
// last one the pod is marked and the lock given back.
//
// # Failure behaviour
//
// The plugin registers again whenever the kubelet comes back, compares what the
// node's annotation really says with the cards every half minute, and reports
// cards that fail as unhealthy and cards that recover as healthy.
package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"

	"github.com/firstlight-dev/firstlight/sharing/inventory"
	"github.com/firstlight-dev/firstlight/sharing/wire"
)

// Config is what a Plugin needs. Node, Client, Source and Log are required.
type Config struct {
	Node   string
	Client kubernetes.Interface
	Source inventory.Source
	Log    *slog.Logger

	KubeletDir string // default /var/lib/kubelet/device-plugins
	// HookPath is where HAMi-core lies, on the host and in this process's own
	// view, below "vgpu". Default /usr/local.
	HookPath string
	// LockDir is shared by all containers for HAMi-core's lock file. Default
	// /tmp/vgpulock.
	LockDir string
	// Legacy registers in the form that HAMi 2.7 and earlier read, and answers
	// their handshake.
	Legacy bool
	// LogLevel of HAMi-core, its own numbers: 0 error, 1 warning, 3 info, 4 debug.
	LogLevel string
	// RefreshEvery is how often the cards and the node's annotation are looked
	// at. Default 30 s, as HAMi's.
	RefreshEvery time.Duration

	Now func() time.Time // default time.Now
}

const (
	defaultKubeletDir = "/var/lib/kubelet/device-plugins"
	defaultHookPath   = "/usr/local"
	defaultLockDir    = "/tmp/vgpulock"
	defaultLogLevel   = "1"
	refreshEvery      = 30 * time.Second
	// retryEvery spaces attempts after an error.
	retryEvery = 5 * time.Second
	// callTime bounds one exchange with the API server or the kubelet.
	callTime = 10 * time.Second
)

// Plugin serves one node.
type Plugin struct {
	cfg Config

	allocating sync.Mutex // one GetPreferredAllocation or Allocate at a time

	mu      sync.Mutex
	cards   []wire.Device // guarded by mu; never changed in place
	changed chan struct{} // guarded by mu; closed when cards are replaced
}

// New returns a Plugin; Run starts it.
func New(cfg Config) (*Plugin, error) {
	if cfg.Node == "" || cfg.Client == nil || cfg.Source == nil || cfg.Log == nil {
		return nil, errors.New("device plugin needs a node name, a client, a source of cards and a log")
	}
	setDefault(&cfg.KubeletDir, defaultKubeletDir)
	setDefault(&cfg.HookPath, defaultHookPath)
	setDefault(&cfg.LockDir, defaultLockDir)
	setDefault(&cfg.LogLevel, defaultLogLevel)
	if cfg.RefreshEvery <= 0 {
		cfg.RefreshEvery = refreshEvery
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Plugin{cfg: cfg, changed: make(chan struct{})}, nil
}

func setDefault(s *string, otherwise string) {
	if *s == "" {
		*s = otherwise
	}
}

// Run registers with the kubelet and keeps the node's annotation right until ctx
// ends. It fails only if the cards can't be read at the start.
func (p *Plugin) Run(ctx context.Context) error {
	if err := p.refresh(ctx); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { p.keepRegistered(ctx); return nil })
	group.Go(func() error { p.keepAnnotated(ctx); return nil })
	return group.Wait()
}

// Cards returns the cards as last read.
func (p *Plugin) Cards() []wire.Device {
	cards, _ := p.state()
	return cards
}

// state returns the cards and a channel that is closed when they change.
func (p *Plugin) state() ([]wire.Device, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cards, p.changed
}

// refresh reads the cards again. If they can't be read, those known so far stay
// listed as unhealthy.
func (p *Plugin) refresh(ctx context.Context) error {
	cards, err := p.cfg.Source.Cards(ctx)
	if err == nil && len(cards) == 0 {
		err = errors.New("there are none")
	}
	if err != nil {
		err = fmt.Errorf("read cards of node %s: %w", p.cfg.Node, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		cards = append([]wire.Device(nil), p.cards...)
		for i := range cards {
			cards[i].Healthy = false
		}
	}
	if !reflect.DeepEqual(cards, p.cards) {
		p.cards = cards
		close(p.changed)
		p.changed = make(chan struct{})
	}
	return err
}

// keepAnnotated refreshes the cards and the node's annotation.
func (p *Plugin) keepAnnotated(ctx context.Context) {
	for {
		wait := p.cfg.RefreshEvery
		if err := p.annotate(ctx); err != nil && ctx.Err() == nil {
			p.cfg.Log.WarnContext(ctx, "node is not annotated", "node", p.cfg.Node, "error", err)
			wait = min(wait, retryEvery)
		}
		if !sleep(ctx, wait) {
			return
		}
		if err := p.refresh(ctx); err != nil && ctx.Err() == nil {
			p.cfg.Log.ErrorContext(ctx, "cards can't be read, reporting them unhealthy", "error", err)
		}
	}
}

// sleep waits and reports false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
