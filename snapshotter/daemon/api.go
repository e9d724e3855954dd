package daemon

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/firstlight-dev/firstlight/snapshotter/internal/account"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/cache"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/layers"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/profiles"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/store"
	"github.com/firstlight-dev/firstlight/snapshotter/nodeapi"
)

// api answers the node API.
type api struct {
	version  string
	mode     string
	started  time.Time
	restarts int
	store    *store.Store
	cache    *cache.Cache
	layers   *layers.Set
	book     *account.Book
	profiles *profiles.Book
	backend  *containerd

	mu         sync.Mutex
	conditions []nodeapi.Condition // found at the start
}

var _ nodeapi.Source = (*api)(nil)

func (a *api) add(name, status, message string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.conditions = append(a.conditions, nodeapi.Condition{Name: name, Status: status, Message: message})
}

// Status asks containerd anew: it comes and goes.
func (a *api) Status(ctx context.Context) nodeapi.Status {
	a.mu.Lock()
	conditions := append([]nodeapi.Condition(nil), a.conditions...)
	a.mu.Unlock()
	c := nodeapi.Condition{Name: "containerd", Status: nodeapi.ConditionOK}
	if v, err := a.backend.check(ctx); err != nil {
		c.Status, c.Message = nodeapi.ConditionDegraded, err.Error()
	} else {
		c.Message = v
	}
	return nodeapi.Status{
		Version: a.version, Mode: a.mode, FUSE: a.mode != modeNone, StartedAt: a.started, WorkerRestarts: a.restarts,
		Cache: a.cacheStatus(), Conditions: append(conditions, c),
	}
}

func (a *api) cacheStatus() nodeapi.Cache {
	st := a.cache.Stats()
	limit := st.Limit
	if limit == math.MaxInt64 {
		limit = 0
	}
	return nodeapi.Cache{
		Bytes: st.Bytes, Limit: limit, HeldBytes: st.Held,
		EvictedChunks: st.Chunks, EvictedBytes: st.Evicted, RefusedChunks: st.Refused,
	}
}

// Containers lists what the reads of each container have cost.
func (a *api) Containers(context.Context) ([]nodeapi.Container, error) {
	figures := a.book.Figures()
	containers := make([]nodeapi.Container, 0, len(figures))
	for _, f := range figures {
		containers = append(containers, nodeapi.Container{
			ID: f.Container, Cgroup: f.Cgroup, Reads: f.Reads, BytesRead: f.Bytes,
			OnDemandReads: f.OnDemandReads, OnDemandWaitMS: f.OnDemandWait.Milliseconds(),
			Requests: f.Requests, BytesFetched: f.Fetched, FirstRead: f.First.UTC(), LastRead: f.Last.UTC(),
		})
	}
	return containers, nil
}

// Images joins the records of images and snapshots with the figures of layers.
func (a *api) Images(ctx context.Context) ([]nodeapi.Image, error) {
	recs, err := a.store.Images(ctx)
	if err != nil {
		return nil, err
	}
	sns, err := a.store.Snapshots(ctx)
	if err != nil {
		return nil, err
	}
	byID := make(map[string]store.Snapshot, len(sns))
	for _, sn := range sns {
		byID[sn.ID] = sn
	}
	images := make([]nodeapi.Image, 0, len(recs))
	for _, r := range recs {
		im := nodeapi.Image{Ref: r.Ref, Manifest: r.Manifest.String(), PreparedAt: r.PreparedAt, PrepareMS: r.Took.Milliseconds(), Profile: a.profiles.State(r.Manifest)}
		for _, l := range r.Layers {
			im.Layers = append(im.Layers, a.layer(l, byID[l.Snapshot]))
		}
		images = append(images, im)
	}
	return images, nil
}

// layer describes one layer. A layer without a record of ours was there before
// the image was prepared, pulled by containerd.
func (a *api) layer(l store.ImageLayer, sn store.Snapshot) nodeapi.Layer {
	out := nodeapi.Layer{Digest: l.Digest.String(), State: nodeapi.StateLocal, Size: sn.Size, CompressedSize: l.Blob, BytesFetched: sn.Fetched}
	if !sn.Lazy {
		if sn.Fetched > 0 {
			out.Requests = 1
		}
		return out
	}
	return a.lazy(l.Digest, out)
}

func (a *api) lazy(d digest.Digest, out nodeapi.Layer) nodeapi.Layer {
	out.State = nodeapi.StateLazy
	st, state, ok := a.layers.Stats(d)
	if !ok {
		return out
	}
	switch state {
	case cache.Complete:
		out.State = nodeapi.StateComplete
	case cache.Quarantined:
		out.State = nodeapi.StateQuarantined
	case cache.Partial, cache.Proven:
	}
	out.Verified = state == cache.Complete || state == cache.Proven
	out.BytesFetched, out.Requests = st.BytesFetched, st.Requests
	out.OnDemandWaitMS, out.OnDemandReads = st.OnDemandWait.Milliseconds(), st.OnDemandReads
	out.BytesReplayed = st.BytesReplayed
	out.Chunks, out.ChunksPresent = st.Chunks, st.ChunksPresent
	return out
}
