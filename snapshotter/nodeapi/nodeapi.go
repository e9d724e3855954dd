// Package nodeapi is the snapshotter's window for other programs: HTTP with JSON
// on a unix socket that only root can open.
//
//	GET  /v1/status      how the snapshotter runs: mode, restarts, cache, conditions
//	GET  /v1/images      every image it has prepared, with its layers
//	GET  /v1/containers  what the reads of each container have cost
//	POST /v1/evict       take cached bytes away: of a layer, an image, or all
//	POST /v1/warm        complete an image's layers now; answers a Progress a line
//	GET  /v1/profiles    access profiles that are kept, and recordings that are on
//	GET  /v1/profiles/{manifest}  a profile of an image, encoded; DELETE removes all
//	POST /v1/profiles/record      begin to record an image's start
//	POST /v1/profiles/stop        end it, and keep the profile
//	GET  /metrics        sums for Prometheus, without image names
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
	Cache          Cache       `json:"cache"`
	Conditions     []Condition `json:"conditions"`
}

// Cache says how full the cache of fetched layers is.
type Cache struct {
	Bytes         int64 `json:"bytes"`         // occupied on disk
	Limit         int64 `json:"limit"`         // that it may occupy now, 0 for no limit
	HeldBytes     int64 `json:"heldBytes"`     // of layers that the kernel reads by itself, which stay
	EvictedChunks int64 `json:"evictedChunks"` // since the worker started
	EvictedBytes  int64 `json:"evictedBytes"`
	RefusedChunks int64 `json:"refusedChunks"` // served, but not kept for want of room
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
	PreparedAt time.Time `json:"preparedAt"`        // when its last layer was ready
	PrepareMS  int64     `json:"prepareMs"`         // from its first layer asked for to the last ready
	Profile    string    `json:"profile,omitempty"` // since the worker started: recording, recorded, replaying or replayed
	Layers     []Layer   `json:"layers"`            // lowest first
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
	OnDemandReads  int64  `json:"onDemandReads"`  // reads that had to wait
	BytesReplayed  int64  `json:"bytesReplayed"`  // the part of BytesFetched that an access profile asked for
	Chunks         int    `json:"chunks"`
	ChunksPresent  int    `json:"chunksPresent"`
	Verified       bool   `json:"verified"` // checked as a whole once, so the index is right; also after an eviction
}

// Container is what the reads of one container have cost since the worker
// started. Reads that the kernel's page cache answered are not seen.
type Container struct {
	ID             string    `json:"id"`     // or the name of a program's control group
	Cgroup         string    `json:"cgroup"` // its path
	Reads          int64     `json:"reads"`
	BytesRead      int64     `json:"bytesRead"`
	OnDemandReads  int64     `json:"onDemandReads"`  // that had to wait
	OnDemandWaitMS int64     `json:"onDemandWaitMs"` // time in which at least one of its readers waited
	Requests       int64     `json:"requests"`       // to registries, made for it
	BytesFetched   int64     `json:"bytesFetched"`
	FirstRead      time.Time `json:"firstRead"`
	LastRead       time.Time `json:"lastRead"`
}

// EvictRequest names what to evict: one of the three.
type EvictRequest struct {
	Image string `json:"image,omitempty"` // reference, or digest of its manifest
	Layer string `json:"layer,omitempty"` // digest
	All   bool   `json:"all,omitempty"`
}

// Evicted says what became of a request to evict.
type Evicted struct {
	Layers     []EvictedLayer `json:"layers"`
	FreedBytes int64          `json:"freedBytes"`
}

// EvictedLayer is one layer of it.
type EvictedLayer struct {
	Digest     string `json:"digest"`
	FreedBytes int64  `json:"freedBytes"`
	Kept       string `json:"kept,omitempty"` // why nothing was evicted
}

// WarmRequest names what to complete.
type WarmRequest struct {
	Image string `json:"image"` // reference, or digest of its manifest
}

// Progress is how far an image is from complete.
type Progress struct {
	Image         string `json:"image"`
	Layers        int    `json:"layers"`
	LayersDone    int    `json:"layersDone"` // complete, or never lazy
	Chunks        int    `json:"chunks"`
	ChunksPresent int    `json:"chunksPresent"`
	BytesFetched  int64  `json:"bytesFetched"` // by this request and readers beside it
	Done          bool   `json:"done"`         // this is the last line
	Error         string `json:"error,omitempty"`
}

// Profile is what one start of an image read, or is reading.
type Profile struct {
	Ref      string   `json:"ref,omitempty"` // while a recording is on, or the image is here
	Manifest string   `json:"manifest"`
	Command  []string `json:"command,omitempty"`
	State    string   `json:"state"`            // recording or recorded
	Reason   string   `json:"reason,omitempty"` // what ended the recording: usable, stopped, quiet or full
	Layers   int      `json:"layers"`
	Parts    int      `json:"parts"`
	Bytes    int64    `json:"bytes"` // unpacked
}

// States of a Profile.
const (
	ProfileRecording = "recording"
	ProfileRecorded  = "recorded"
	// ProfileWanted answers a request to record an image that is not here: its
	// next start is recorded.
	ProfileWanted = "wanted"
)

// ProfileRequest asks to begin or to end a recording.
type ProfileRequest struct {
	Image   string   `json:"image"`             // its reference, or its manifest's digest
	Command []string `json:"command,omitempty"` // what runs, if not what the image says
	Usable  bool     `json:"usable,omitempty"`  // the end: the start has reached its goal
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
		sum.OnDemandReads += l.OnDemandReads
		sum.BytesReplayed += l.BytesReplayed
		sum.Chunks += l.Chunks
		sum.ChunksPresent += l.ChunksPresent
	}
	return sum
}
