// Package supply decides, for each image that containerd pulls, where its layers
// come from, and gets them there.
//
// # Vocabulary
//
// A plan is the decision about one pull of one image. It is made when the first
// missing layer is asked for and starts the work for that layer and all above it
// at once. A layer with an index is lazy: its index is loaded and it is opened.
// A layer of the same image without a usable index is pulled and unpacked here.
// An image is ordinary, and containerd's business, when it has no index at all,
// when its registry serves no ranges, when containerd has all its blobs already,
// or when anything about it is in doubt.
//
// Why not leave a layer without index to containerd: its first ordinary layer
// makes containerd download that layer and every one above it, lazy or not.
//
// # Trust
//
// What containerd asks with are labels, which an image's author can write. So
// the manifest is read from containerd's content store, where this very pull has
// put it after checking its digest, and the layer must be in it at that place.
// An index must be for exactly the blob and diffID that manifest and config
// name.
//
// # Failure behaviour
//
// Every error makes containerd pull the layer, as without this program. A
// decision not to supply is forgotten after a while, a failure soon: nothing has
// to be restarted for an index pushed later or a registry that is back.
package supply

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/firstlight-dev/firstlight/indexer/referrer"
	"github.com/firstlight-dev/firstlight/snapshotter"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/image"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/layers"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/profiles"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/registry"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/store"
)

const (
	// decideTimeout bounds a decision. containerd's pull waits meanwhile, and
	// could have begun to download.
	decideTimeout = 20 * time.Second
	// layerTimeout bounds the work for one layer. CRI cancels a pull that shows
	// no progress for five minutes, and what happens here it does not see.
	layerTimeout = 4 * time.Minute
	// ordinaryTTL is how long the answer "no index" counts, failureTTL how long
	// a failure: long enough that the layers of one pull cost one question,
	// short enough that nobody who just pushed an index has to wait.
	ordinaryTTL = 10 * time.Second
	failureTTL  = 5 * time.Second
	// abandonAfter ends a plan that nobody asks about any more: the pull was
	// given up. It is longer than any work it waits for.
	abandonAfter = 10 * time.Minute
	// parallelPulls bounds the layers of the node that are unpacked at a time.
	parallelPulls = 4
)

// Repository is one image's place in a registry.
type Repository interface {
	referrer.Fetcher
}

// Config is what a Service works with. All fields but Disabled and Profiles are
// required.
type Config struct {
	// Disabled, when not nil, is why nothing is supplied on this node.
	Disabled error
	// Content is containerd's content store, for contexts with a namespace.
	Content image.Store
	// Repository finds the registry of an image.
	Repository func(ref string) (Repository, error)
	Layers     *layers.Set
	Store      *store.Store
	// Profiles, when not nil, makes starts record and replay what they read.
	Profiles *profiles.Book
	Dir      string // for layers being unpacked; on the snapshots' file system
	Log      *slog.Logger
}

// Service supplies layers. It is safe for concurrent use.
type Service struct {
	Config
	// background makes the context of a namespace's work, which ends with the
	// Service.
	background func(namespace string) context.Context
	stop       context.CancelFunc
	work       sync.WaitGroup
	pulls      chan struct{} // slots

	mu    sync.Mutex
	plans map[planKey]*plan
	stats Counters
}

// Counters says what became of the images asked for.
type Counters struct {
	Lazy, Ordinary, Failed int64 // images
	Pulled                 int64 // layers unpacked here
}

type planKey struct {
	namespace, ref string
	manifest       digest.Digest
}

var _ snapshotter.Supplier = (*Service)(nil)

// New makes a Service. Unfinished work of an earlier process in Dir is deleted.
// The context bounds the life of the Service's work; Close waits for its end.
func New(ctx context.Context, cfg Config) (*Service, error) {
	if err := os.RemoveAll(cfg.Dir); err != nil {
		return nil, fmt.Errorf("remove unfinished layers: %w", err)
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("create directory for layers: %w", err)
	}
	s := &Service{Config: cfg, pulls: make(chan struct{}, parallelPulls), plans: map[planKey]*plan{}}
	life, stop := context.WithCancel(ctx)
	s.stop = stop
	s.background = func(namespace string) context.Context { return namespaces.WithNamespace(life, namespace) }
	return s, nil
}

// Close ends what is under way.
func (s *Service) Close() error {
	s.stop()
	s.work.Wait()
	return nil
}

// Counters returns what became of the images so far.
func (s *Service) Counters() Counters {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stats
}

// Supply returns the layer once it is ready.
func (s *Service) Supply(ctx context.Context, req snapshotter.Request) (snapshotter.Layer, error) {
	if s.Disabled != nil {
		return nil, fmt.Errorf("%w: %w", snapshotter.ErrOrdinary, s.Disabled)
	}
	p := s.plan(req)
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-p.decided:
	}
	if p.err != nil {
		return nil, p.err
	}
	i := p.image.Find(req.ChainID, req.Layer)
	if i < 0 {
		return nil, fmt.Errorf("%w: manifest %s has no layer %s at chain %s", snapshotter.ErrOrdinary, req.Manifest, req.Layer, req.ChainID)
	}
	return p.wait(ctx, i)
}

// Withdraw takes a snapshot's layer away.
func (s *Service) Withdraw(ctx context.Context, id, dir string) error {
	return s.Layers.Unmount(ctx, id, dir)
}

// plan returns the plan for the image, a new one if need be.
func (s *Service) plan(req snapshotter.Request) *plan {
	key := planKey{req.Namespace, req.Ref, req.Manifest}
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.plans[key]; p != nil {
		return p
	}
	p := &plan{service: s, key: key, started: time.Now(), decided: make(chan struct{}), done: make(chan struct{})}
	s.plans[key] = p
	s.work.Add(1)
	go func() {
		defer s.work.Done()
		s.run(p, req)
	}()
	return p
}

// run makes the decision and keeps the plan for as long as it counts.
func (s *Service) run(p *plan, req snapshotter.Request) {
	ctx := s.background(req.Namespace)
	s.decide(ctx, p, req)
	keep := abandonAfter
	s.mu.Lock()
	switch {
	case errors.Is(p.err, snapshotter.ErrOrdinary):
		keep = ordinaryTTL
		s.stats.Ordinary++
	case p.err != nil:
		keep = failureTTL
		s.stats.Failed++
	default:
		s.stats.Lazy++
	}
	s.mu.Unlock()
	close(p.decided)
	timer := time.NewTimer(keep)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-p.done:
	}
	s.forget(p)
	p.abandon(context.WithoutCancel(ctx))
}

// forget makes the next question about the image lead to a new plan.
func (s *Service) forget(p *plan) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.plans[p.key] == p {
		delete(s.plans, p.key)
	}
}

// decide fills in the plan.
func (s *Service) decide(ctx context.Context, p *plan, req snapshotter.Request) {
	bounded, cancel := context.WithTimeout(ctx, decideTimeout)
	defer cancel()
	im, err := image.Load(bounded, s.Content, req.Manifest)
	switch {
	case errdefs.IsNotFound(err), errors.Is(err, image.ErrInvalid):
		p.err = fmt.Errorf("%w: %w", snapshotter.ErrOrdinary, err)
		return
	case err != nil:
		p.err = fmt.Errorf("look into containerd's content store: %w", err)
		return
	}
	first := im.Find(req.ChainID, req.Layer)
	if first < 0 {
		p.err = fmt.Errorf("%w: manifest %s has no layer %s", snapshotter.ErrOrdinary, req.Manifest, req.Layer)
		return
	}
	if s.isLocal(bounded, im.Layers[first:]) {
		p.err = fmt.Errorf("%w: containerd has every blob", snapshotter.ErrOrdinary)
		return
	}
	repo, err := s.Repository(req.Ref)
	if err != nil {
		p.err = err
		return
	}
	set, err := referrer.Find(bounded, repo, req.Manifest)
	switch {
	case errdefs.IsNotFound(err):
		p.err = fmt.Errorf("%w: %s has no index", snapshotter.ErrOrdinary, req.Ref)
		return
	case err != nil:
		p.err = fmt.Errorf("look for the index of %s: %w", req.Ref, err)
		return
	}
	p.image, p.first = im, first
	p.err = s.start(ctx, p, repo, set)
}

// isLocal reports whether containerd has the blobs: then it needs no network.
func (s *Service) isLocal(ctx context.Context, ls []image.Layer) bool {
	for _, l := range ls {
		if _, err := s.Content.Info(ctx, l.Digest); err != nil {
			return false
		}
	}
	return true
}

// start begins the work for every layer from the first missing one on. It
// returns an error, with nothing left under way, if no layer can be lazy.
func (s *Service) start(ctx context.Context, p *plan, repo Repository, set *referrer.Set) error {
	p.layers = make([]*supplied, len(p.image.Layers))
	candidate := -1
	for i := range p.image.Layers {
		l := &supplied{plan: p, number: i, Layer: p.image.Layers[i], opened: make(chan struct{}), ready: make(chan struct{})}
		_, l.indexed = set.Layer(l.Digest)
		if i < p.first {
			continue
		}
		p.layers[i] = l
		// The largest layer is the one to try ranges on: its registry's answer
		// is of most use, and small blobs come from elsewhere on some.
		if l.indexed && (candidate < 0 || l.Size > p.layers[candidate].Size) {
			candidate = i
		}
	}
	if candidate < 0 {
		return fmt.Errorf("%w: no missing layer of %s has an index", snapshotter.ErrOrdinary, p.key.ref)
	}
	ctx, p.cancel = context.WithCancel(ctx)
	for _, l := range p.layers[p.first:] {
		l.begin(ctx, repo, set)
	}
	s.profile(ctx, p, repo, set)
	if err := s.probe(ctx, p.key.ref, p.image.Layers[candidate]); err != nil {
		p.abandon(context.WithoutCancel(ctx))
		return err
	}
	return nil
}

// probe reads a byte of a layer as a reader would. A registry that cannot serve
// it now is left to containerd's pull, which waits and tries in its own way.
func (s *Service) probe(ctx context.Context, ref string, l image.Layer) error {
	if l.Size == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, decideTimeout)
	defer cancel()
	src, err := s.Layers.Source(ref, blob(l))
	if err != nil {
		return err
	}
	// In the middle: some proxies answer a range at the start by the whole.
	r, err := src.ReadRange(ctx, l.Size/2, 1)
	if err == nil {
		_, err = io.Copy(io.Discard, r)
		err = errors.Join(err, r.Close())
	}
	switch {
	case errors.Is(err, registry.ErrNoRanges):
		return fmt.Errorf("%w: %w", snapshotter.ErrOrdinary, err)
	case err != nil:
		return fmt.Errorf("try to read a part of %s: %w", l.Digest, err)
	}
	return nil
}

// blob is the descriptor to fetch a layer by.
func blob(l image.Layer) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: l.MediaType, Digest: l.Digest, Size: l.Size}
}
