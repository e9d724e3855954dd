// Package profile is the format of access profiles: which parts of an image's
// layers one start of it read, in the order of first touch.
//
// # Vocabulary
//
// A part is a range of a layer's tar stream in units of 4 KiB, as the kernel
// reads. Why the tar stream: the layer's digest fixes it, so a profile outlives
// any index, its chunk sizes and its version; and every part lies in headers or
// file bodies, so parts are parts of files. A unit occurs at most once: only its
// first touch counts.
//
// # Trust
//
// A profile steers when bytes are fetched, never what is served. Decode refuses
// whatever is not canonical or beyond the limits; a user must still compare the
// layers with those of the image and take Size as a claim.
package profile

import (
	"errors"
	"slices"

	"github.com/opencontainers/go-digest"
)

// Names in the registry. The artifact of a profile is an OCI manifest with the
// image manifest as its subject.
const (
	ArtifactType = "application/vnd.firstlight.profile.v1"
	MediaType    = "application/vnd.firstlight.access-profile.v1"
	// AnnotationCommand is the key of the command, see Key.
	AnnotationCommand = "dev.firstlight.profile.command"
)

// Unit is the granularity of parts: a page.
const Unit = 4096

// Limits on what Decode makes of hostile bytes.
const (
	// MaxEncoded bounds an encoded profile: MaxParts parts that jump at every
	// step stay below.
	MaxEncoded = 2 << 20
	// MaxParts bounds the parts. A start of a Python program with 20,000 files
	// makes half as many.
	MaxParts = 1 << 17
	// MaxLayers is what overlayfs stacks.
	MaxLayers = 500
	// maxArguments and maxText bound the command; longer ones are no names.
	maxArguments = 256
	maxText      = 16 << 10
	// maxSize bounds a layer's tar stream, so that sums cannot overflow.
	maxSize = 1 << 50
)

// ErrInvalid marks bytes that are no profile.
var ErrInvalid = errors.New("invalid access profile")

// Reason says what ended a recording.
type Reason uint8

// The reasons.
const (
	Usable  Reason = 1 // the launcher said that the environment is usable
	Stopped Reason = 2 // a person did
	Quiet   Reason = 3 // nothing new was read for a while
	Full    Reason = 4 // a limit on time or parts was reached
)

// String returns the word for a reason.
func (r Reason) String() string {
	switch r {
	case Usable:
		return "usable"
	case Stopped:
		return "stopped"
	case Quiet:
		return "quiet"
	case Full:
		return "full"
	}
	return "unknown"
}

// Profile is what one start of an image read.
type Profile struct {
	Manifest digest.Digest // of the image
	Command  []string      // entrypoint and arguments that ran
	Reason   Reason        // what ended the recording
	Layers   []Layer       // those with parts
	Parts    []Part        // in order of first touch
}

// Layer is a layer that was read from.
type Layer struct {
	Digest digest.Digest
	Size   int64 // bytes of the tar stream
}

// Part is a range of a layer's tar stream, in units. The last unit of a layer
// may be cut short by its end.
type Part struct {
	Layer int // index in Profile.Layers
	First int64
	Count int64
}

// Offset is the part's first byte.
func (p Part) Offset() int64 { return p.First * Unit }

// End is the byte after the part's last, in a layer of size bytes.
func (p Part) End(size int64) int64 { return min((p.First+p.Count)*Unit, size) }

// Bytes is how much of the layers the parts are.
func (p *Profile) Bytes() (n int64) {
	for _, x := range p.Parts {
		n += x.End(p.Layers[x.Layer].Size) - x.Offset()
	}
	return n
}

// Key names a command in few characters: profiles of one image differ by it.
func Key(command []string) string {
	h := digest.SHA256.Digester()
	for _, a := range command {
		// The zero byte cannot be in an argument.
		_, _ = h.Hash().Write(append([]byte(a), 0))
	}
	return h.Digest().Encoded()[:16]
}

// check says whether a profile keeps the rules that Decode promises.
func (p *Profile) check() error {
	if err := p.Manifest.Validate(); err != nil {
		return invalid("manifest: %w", err)
	}
	if p.Reason < Usable || p.Reason > Full {
		return invalid("reason %d", p.Reason)
	}
	if len(p.Command) > maxArguments || len(p.Layers) > MaxLayers || len(p.Parts) > MaxParts {
		return invalid("%d arguments, %d layers, %d parts", len(p.Command), len(p.Layers), len(p.Parts))
	}
	text := 0
	for _, a := range p.Command {
		text += len(a)
	}
	if text > maxText {
		return invalid("the command has %d bytes", text)
	}
	seen := make(map[digest.Digest]bool, len(p.Layers))
	for i, l := range p.Layers {
		if err := l.Digest.Validate(); err != nil {
			return invalid("layer %d: %w", i, err)
		}
		if l.Size <= 0 || l.Size > maxSize || seen[l.Digest] {
			return invalid("layer %d of %d bytes", i, l.Size)
		}
		seen[l.Digest] = true
	}
	return p.checkParts()
}

// checkParts refuses parts beyond their layers and those that overlap.
func (p *Profile) checkParts() error {
	used := make([]bool, len(p.Layers))
	for i, x := range p.Parts {
		if x.Layer < 0 || x.Layer >= len(p.Layers) {
			return invalid("part %d is of layer %d", i, x.Layer)
		}
		used[x.Layer] = true
		units := (p.Layers[x.Layer].Size + Unit - 1) / Unit
		if x.First < 0 || x.Count <= 0 || x.Count > units || x.First > units-x.Count {
			return invalid("part %d is beyond its layer", i)
		}
	}
	if i := slices.Index(used, false); i >= 0 {
		return invalid("layer %d has no part", i)
	}
	sorted := slices.Clone(p.Parts)
	slices.SortFunc(sorted, func(a, b Part) int {
		if a.Layer != b.Layer {
			return a.Layer - b.Layer
		}
		switch {
		case a.First < b.First:
			return -1
		case a.First > b.First:
			return 1
		}
		return 0
	})
	for i := 1; i < len(sorted); i++ {
		if a, b := sorted[i-1], sorted[i]; a.Layer == b.Layer && a.First+a.Count > b.First {
			return invalid("unit %d of layer %d occurs twice", b.First, b.Layer)
		}
	}
	return nil
}
