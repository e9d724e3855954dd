// Package nodeapi is the snapshotter's window for other programs: HTTP with JSON
// on a unix socket that only root can open.
//
//	GET /v1/status   how the snapshotter runs: mode, restarts, conditions
//	GET /v1/images   every image it has prepared, with its layers
//	GET /metrics     the same sums for Prometheus, without image names
//
// An image is named by the reference it was pulled by and by the digest of its
// manifest. A layer's figures belong to the layer, not to the image: two images
// that share a layer report the same figures for it, so that sums over images
// count it twice while [Image.Totals] of one image never does.
//
// Fields are only ever added. A client must ignore fields it does not know.
package nodeapi

import "time"

// Layer states.
const (
	StateLazy        = "lazy"        // read on demand, not complete yet
	StateComplete    = "complete"    // every byte is local and its digest was checked
	StateLocal       = "local"       // pulled and unpacked at once, never lazy
	StateQuarantined = "quarantined" // the index lied about the layer: reads fail
)

// Condition statuses.
const (
	ConditionOK       = "ok"
	ConditionDegraded = "degraded" // works, but less well: the message says how
	ConditionFailed   = "failed"   // does not work: the message says what to do
)

// Status describes the running snapshotter.
type Status struct {
	Version        string      `json:"version"`
	Mode           string      `json:"mode"` // "erofs", "fuse" or "none" (never lazy)
	FUSE           bool        `json:"fuse"`
	StartedAt      time.Time   `json:"startedAt"` // of the worker
	WorkerRestarts int         `json:"workerRestarts"`
	Conditions     []Condition `json:"conditions"`
}

// Condition is one thing the snapshotter depends on and how it is.
type Condition struct {
	Name    string `json:"name"` // "fuse", "erofs", "containerd"
	Status  string `json:"status"`
	Message string `json:"message,omitempty"`
}

// Image is one image the snapshotter prepared.
type Image struct {
	Ref        string    `json:"ref"`
	Manifest   string    `json:"manifest"`
	PreparedAt time.Time `json:"preparedAt"` // when its last layer was ready
	PrepareMS  int64     `json:"prepareMs"`  // from its first layer asked for to the last ready
	Layers     []Layer   `json:"layers"`     // lowest first
}

// Layer is one layer of an image.
type Layer struct {
	Digest         string `json:"digest"`
	State          string `json:"state"`
	Size           int64  `json:"size"` // uncompressed
	CompressedSize int64  `json:"compressedSize"`
	BytesFetched   int64  `json:"bytesFetched"` // from registries, since the worker started
	Requests       int64  `json:"requests"`
	OnDemandWaitMS int64  `json:"onDemandWaitMs"` // time in which at least one reader waited
	Chunks         int    `json:"chunks"`
	ChunksPresent  int    `json:"chunksPresent"`
}

// Totals sums the layers of one image.
func (im Image) Totals() Layer {
	var sum Layer
	seen := make(map[string]bool, len(im.Layers))
	for _, l := range im.Layers {
		if seen[l.Digest] {
			continue
		}
		seen[l.Digest] = true
		sum.Size += l.Size
		sum.CompressedSize += l.CompressedSize
		sum.BytesFetched += l.BytesFetched
		sum.Requests += l.Requests
		sum.OnDemandWaitMS += l.OnDemandWaitMS
		sum.Chunks += l.Chunks
		sum.ChunksPresent += l.ChunksPresent
	}
	return sum
}
