package local

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/transfer"
	transferimage "github.com/containerd/containerd/v2/core/transfer/image"
	"github.com/containerd/containerd/v2/core/transfer/registry"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/firstlight-dev/firstlight/launcher/cluster"
	"github.com/firstlight-dev/firstlight/snapshotter/nodeapi"
)

// prepared is an image that the runtime can use.
type prepared struct {
	image    containerd.Image
	manifest string      // digest
	fetched  int64       // bytes of blobs that containerd fetched for it
	base     lazyFigures // before the pull
}

// prepareImage pulls the image unless it is there. The transfer service does
// it inside containerd: only so does a lazy snapshotter learn what it needs.
func (c *Cluster) prepareImage(ctx context.Context, l *cluster.Launch) (*prepared, error) {
	begun := time.Now()
	l.Observer.Begin(cluster.StageImage, begun)
	before, err := c.lazyImages(ctx)
	if err != nil {
		return nil, err
	}
	attrs := map[string]any{"snapshotter": c.cfg.Snapshotter}
	image, err := c.present(ctx, l.Image.Pinned)
	cached := image != nil
	if err == nil && !cached {
		image, err = c.pull(ctx, l.Image.Pinned, begun, attrs)
	}
	if err != nil {
		return nil, c.imageError(l.Image.Reference, err)
	}
	p := &prepared{image: image}
	if p.manifest, p.fetched, err = c.inspect(ctx, image, begun); err != nil {
		return nil, c.imageError(l.Image.Reference, err)
	}
	p.base = figuresOf(before, p.manifest)
	if cached {
		p.fetched = 0
	}
	after, err := c.lazyImages(ctx)
	if err != nil {
		return nil, err
	}
	attrs["cached"] = cached
	attrs["bytesFetched"] = p.fetched + figuresOf(after, p.manifest).sub(p.base).bytes
	attrs["lazy"] = isLazy(after, p.manifest)
	l.Observer.End(cluster.StageImage, time.Now(), attrs)
	return p, nil
}

// present returns the image if it is there and unpacked, else nil.
func (c *Cluster) present(ctx context.Context, ref string) (containerd.Image, error) {
	image, err := c.client.GetImage(ctx, ref)
	if errdefs.IsNotFound(err) {
		return nil, nil //nolint:nilnil // absence is no error here
	}
	if err != nil {
		return nil, err
	}
	unpacked, err := image.IsUnpacked(ctx, c.cfg.Snapshotter)
	if errdefs.IsNotFound(err) || err == nil && !unpacked {
		return nil, nil //nolint:nilnil // parts are missing: pull again
	}
	if err != nil {
		return nil, err
	}
	return image, nil
}

func (c *Cluster) pull(ctx context.Context, ref string, begun time.Time, attrs map[string]any) (containerd.Image, error) {
	var opts []registry.Opt
	if c.cfg.HostsDir != "" {
		opts = append(opts, registry.WithHostDir(c.cfg.HostsDir))
	}
	source, err := registry.NewOCIRegistry(ctx, ref, opts...)
	if err != nil {
		return nil, fmt.Errorf("name registry: %w", err)
	}
	platform := platforms.DefaultSpec()
	store := transferimage.NewStore(ref, transferimage.WithPlatforms(platform), transferimage.WithUnpack(platform, c.cfg.Snapshotter))
	cut := &resolveCut{}
	if err := c.client.Transfer(ctx, source, store, transfer.WithProgress(cut.progress)); err != nil {
		return nil, err
	}
	done := time.Now()
	if at := cut.time(); !at.IsZero() {
		attrs["resolveMs"] = at.Sub(begun).Milliseconds()
		attrs["pullMs"] = done.Sub(at).Milliseconds()
	}
	return c.client.GetImage(ctx, ref)
}

// resolveCut notes when the transfer service had resolved the reference.
type resolveCut struct {
	mu sync.Mutex
	at time.Time // guarded by mu
}

func (r *resolveCut) progress(p transfer.Progress) {
	if !strings.HasPrefix(p.Event, "Pulling from") {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.at.IsZero() {
		r.at = time.Now()
	}
}

func (r *resolveCut) time() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.at
}

// inspect returns the digest of the platform's manifest, and how many bytes of
// its blobs came into the content store since the given time. A lazy layer's
// blob never does.
func (c *Cluster) inspect(ctx context.Context, image containerd.Image, since time.Time) (string, int64, error) {
	var (
		manifest string
		fetched  int64
		store    = image.ContentStore()
	)
	count := func(ctx context.Context, desc ocispec.Descriptor) ([]ocispec.Descriptor, error) {
		info, err := store.Info(ctx, desc.Digest)
		if errdefs.IsNotFound(err) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		if images.IsManifestType(desc.MediaType) {
			manifest = desc.Digest.String()
		}
		if !info.CreatedAt.Before(since) {
			fetched += info.Size
		}
		return nil, nil
	}
	handler := images.Handlers(images.HandlerFunc(count), childrenOf(store))
	if err := images.Walk(ctx, handler, image.Target()); err != nil {
		return "", 0, fmt.Errorf("read image: %w", err)
	}
	return manifest, fetched, nil
}

// childrenOf finds what belongs to this machine's platform.
func childrenOf(store content.Provider) images.HandlerFunc {
	children := images.FilterPlatforms(images.ChildrenHandler(store), platforms.Default())
	limited := images.LimitManifests(children, platforms.Default(), 1)
	return func(ctx context.Context, desc ocispec.Descriptor) ([]ocispec.Descriptor, error) {
		if images.IsLayerType(desc.MediaType) {
			return nil, nil
		}
		return limited(ctx, desc)
	}
}

// imageError says what is wrong with an image in words that help.
func (c *Cluster) imageError(ref string, err error) error {
	switch {
	case errdefs.IsUnavailable(err):
		return unreachable(c.cfg.Containerd, err)
	case strings.Contains(err.Error(), "no unpack platforms defined"), strings.Contains(err.Error(), "unable to initialize unpacker"):
		return cluster.Fail(cluster.CodeMissingCapability,
			"containerd does not unpack for snapshotter %s: its configuration needs an unpack_config for it (firstlight-snapshotter config containerd prints it): %w", c.cfg.Snapshotter, err)
	case errdefs.IsNotFound(err):
		return cluster.Fail(cluster.CodeImage, "image %s: %w", ref, err)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("pull image %s: %w", ref, err)
	}
	return &cluster.Error{Code: cluster.CodeImage, Retryable: true, Err: fmt.Errorf("pull image %s: %w", ref, err)}
}

// lazyImages asks the snapshotter what it has, if there is one.
func (c *Cluster) lazyImages(ctx context.Context) ([]nodeapi.Image, error) {
	if c.node == nil {
		return nil, nil
	}
	found, err := c.node.Images(ctx)
	if err != nil {
		return nil, &cluster.Error{Code: cluster.CodeUnreachable, Retryable: true, Err: fmt.Errorf("ask the snapshotter at %s: %w", c.cfg.NodeAPI, err)}
	}
	return found, nil
}

func find(all []nodeapi.Image, manifest string) (nodeapi.Image, bool) {
	for _, image := range all {
		if image.Manifest == manifest {
			return image, true
		}
	}
	return nodeapi.Image{}, false
}

func figuresOf(all []nodeapi.Image, manifest string) lazyFigures {
	image, ok := find(all, manifest)
	if !ok {
		return lazyFigures{}
	}
	t := image.Totals()
	return lazyFigures{bytes: t.BytesFetched, requests: t.Requests, wait: time.Duration(t.OnDemandWaitMS) * time.Millisecond}
}

func isLazy(all []nodeapi.Image, manifest string) bool {
	image, ok := find(all, manifest)
	return ok && !allLocal(image)
}

func allLocal(image nodeapi.Image) bool {
	for _, l := range image.Layers {
		if l.State != nodeapi.StateLocal {
			return false
		}
	}
	return true
}

func complete(image nodeapi.Image) bool {
	for _, l := range image.Layers {
		if l.State != nodeapi.StateComplete && l.State != nodeapi.StateLocal {
			return false
		}
	}
	return true
}

// EndStart implements cluster.StartEnder.
func (c *Cluster) EndStart(ctx context.Context, env string, command []string) error {
	if c.node == nil {
		return nil
	}
	r, err := c.record(env)
	if err != nil {
		return err
	}
	_, err = c.node.StopRecording(ctx, nodeapi.ProfileRequest{Image: r.manifest, Command: command, Usable: true})
	if errors.Is(err, nodeapi.ErrNotFound) {
		return nil
	}
	return err
}

// ImageUse implements cluster.ImageReader.
func (c *Cluster) ImageUse(ctx context.Context, env string) (cluster.ImageUse, error) {
	r, err := c.record(env)
	if err != nil {
		return cluster.ImageUse{}, err
	}
	all, err := c.lazyImages(ctx)
	if err != nil {
		return cluster.ImageUse{}, err
	}
	image, ok := find(all, r.manifest)
	if !ok || allLocal(image) {
		return cluster.ImageUse{BytesFetched: r.fetched, Complete: true}, nil
	}
	used := figuresOf(all, r.manifest).sub(r.base)
	return cluster.ImageUse{
		BytesFetched: r.fetched + used.bytes,
		Requests:     used.requests,
		OnDemandWait: used.wait,
		Lazy:         true,
		Complete:     complete(image),
	}, nil
}
