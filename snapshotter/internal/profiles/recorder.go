package profiles

import (
	"slices"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/firstlight-dev/firstlight/indexer/profile"
)

// recorder notes the first touch of every unit of an image's layers: a bit for
// each 4 KiB, 32 KiB for a layer of 1 GiB.
type recorder struct {
	layers []profile.Layer

	mu      sync.Mutex
	touched [][]uint64 // by layer, a bit a unit
	parts   []profile.Part
	first   time.Time // of the first touch
	last    time.Time // of the last that was new
	full    bool
}

func newRecorder(layers []profile.Layer) *recorder {
	r := &recorder{layers: layers, touched: make([][]uint64, len(layers))}
	for i, l := range layers {
		r.touched[i] = make([]uint64, ((l.Size+profile.Unit-1)/profile.Unit+63)/64)
	}
	return r
}

// touch notes a read of n bytes at off, which lie in the layer.
func (r *recorder) touch(layer int, off, n int64) {
	if n <= 0 || off < 0 || off >= r.layers[layer].Size {
		return
	}
	end := (min(off+n, r.layers[layer].Size) + profile.Unit - 1) / profile.Unit
	r.mu.Lock()
	defer r.mu.Unlock()
	for unit := off / profile.Unit; unit < end; unit++ {
		w, bit := &r.touched[layer][unit/64], uint64(1)<<(unit%64)
		if *w&bit != 0 {
			continue
		}
		if !r.add(layer, unit) {
			return
		}
		*w |= bit
	}
}

// add appends a unit to the order. The caller holds r.mu.
func (r *recorder) add(layer int, unit int64) bool {
	if n := len(r.parts); n > 0 {
		if p := &r.parts[n-1]; p.Layer == layer && p.First+p.Count == unit {
			p.Count++
			r.last = time.Now()
			return true
		}
	}
	if len(r.parts) == profile.MaxParts {
		r.full = true
		return false
	}
	r.parts = append(r.parts, profile.Part{Layer: layer, First: unit, Count: 1})
	r.last = time.Now()
	if len(r.parts) == 1 {
		r.first = r.last
	}
	return true
}

// state returns when the recording was touched first and last, and whether it
// can take no more.
func (r *recorder) state() (first, last time.Time, full bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.first, r.last, r.full
}

// profile is what was recorded so far, nil if nothing was read.
func (r *recorder) profile(manifest digest.Digest, command []string, reason profile.Reason) *profile.Profile {
	r.mu.Lock()
	parts := slices.Clone(r.parts)
	r.mu.Unlock()
	if len(parts) == 0 {
		return nil
	}
	p := &profile.Profile{Manifest: manifest, Command: command, Reason: reason}
	number := make(map[int]int, len(r.layers)) // a profile has only layers with parts
	for i := range parts {
		n, ok := number[parts[i].Layer]
		if !ok {
			n = len(p.Layers)
			number[parts[i].Layer] = n
			p.Layers = append(p.Layers, r.layers[parts[i].Layer])
		}
		parts[i].Layer = n
	}
	p.Parts = parts
	return p
}
