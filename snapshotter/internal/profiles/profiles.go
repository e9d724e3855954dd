// Package profiles records what starts of images read, and keeps it.
//
// # Vocabulary
//
// A recording is on for one image at a time from its first Prepare, or from when
// a person asks, until the launcher or a person says so, until nothing new was
// read for a while, or until a limit. What it then knows is the image's access
// profile for the command that ran.
//
// # Invariants
//
// A recording costs a reader one lock and a bit per 4 KiB while it is on, and
// one load of a pointer after it. It holds no layer: if the image goes, nothing
// more is seen of it.
//
// # Failure behaviour
//
// A recording lives in memory. If the worker ends first it is lost, and the next
// worker says so; a half of a start would be a bad profile. A kept profile that
// cannot be read is as good as none.
package profiles

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/firstlight-dev/firstlight/indexer/profile"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/lazy"
)

const (
	// defaultQuiet is how long nothing new is read before a start counts as
	// over: programs that load models pause for less.
	defaultQuiet = 30 * time.Second
	// maxLength bounds a recording, and maxIdle the wait for its first read.
	maxLength = 10 * time.Minute
	maxIdle   = time.Hour
	// maxRecordings bounds those that are on, and so their memory.
	maxRecordings = 64
	// maxStates bounds what is remembered of images for the node API.
	maxStates = 4096
)

// ErrNotFound marks an image without a recording, or without a profile.
var ErrNotFound = errors.New("no access profile")

// States of an image.
const (
	StateRecording = "recording"
	StateRecorded  = "recorded"
	StateReplaying = "replaying"
	StateReplayed  = "replayed"
)

// Image is what a recording is about.
type Image struct {
	Ref      string
	Manifest digest.Digest
	Command  []string        // as the image's configuration has it
	Layers   []digest.Digest // the lazy ones
}

// Config is what a Book works with. All fields are required but Quiet and Log.
type Config struct {
	Dir string
	// Record says whether images without a profile are recorded unasked.
	Record bool
	// Replay says whether profiles are used.
	Replay bool
	// Quiet replaces the default pause that ends a recording.
	Quiet time.Duration
	// Watch passes the reads of a lazy layer to w until stop is called. It
	// returns the size of the layer's tar stream; ok is false if it is not open.
	Watch func(layer digest.Digest, w *lazy.Watcher) (size int64, stop func(), ok bool)
	Log   *slog.Logger
}

// Book is the access profiles of a node. It is safe for concurrent use.
type Book struct {
	Config
	stop func()
	life <-chan struct{} // closed by stop
	work sync.WaitGroup

	mu     sync.Mutex
	active map[digest.Digest]*Recording // by manifest
	wanted map[string]bool              // images to record at their next Prepare, by reference or manifest
	states map[digest.Digest]string
}

// Open opens the book kept in a directory. The context bounds its recordings.
func Open(ctx context.Context, cfg Config) (*Book, error) {
	if cfg.Quiet <= 0 {
		cfg.Quiet = defaultQuiet
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("create directory of profiles: %w", err)
	}
	life, stop := context.WithCancel(ctx)
	b := &Book{Config: cfg, stop: stop, life: life.Done(), active: map[digest.Digest]*Recording{}, wanted: map[string]bool{}, states: map[digest.Digest]string{}}
	return b, b.reportLost()
}

// Close drops the recordings that are on.
func (b *Book) Close() error {
	b.stop()
	b.work.Wait()
	return nil
}

// Recording is one that is on.
type Recording struct {
	book  *Book
	image Image
	rec   *recorder
	unsee []func() // end the watching of each layer

	once sync.Once
	done chan struct{} // closed when it has ended
}

// Want makes the next Prepare of an image record it, whatever profiles it has.
func (b *Book) Want(image string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.wanted) >= maxRecordings {
		clear(b.wanted)
	}
	b.wanted[image] = true
}

// Wanted reports whether somebody asked to record the image, and forgets it.
func (b *Book) Wanted(ref string, manifest digest.Digest) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	w := b.wanted[ref] || b.wanted[manifest.String()]
	delete(b.wanted, ref)
	delete(b.wanted, manifest.String())
	return w
}

// Begin starts to record an image. One of it that is on is dropped: it may watch
// layers that are gone.
func (b *Book) Begin(im Image) (*Recording, error) {
	b.mu.Lock()
	older := b.active[im.Manifest]
	b.mu.Unlock()
	if older != nil {
		older.Discard("it begins anew")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.active[im.Manifest] != nil {
		return nil, fmt.Errorf("record %s: somebody else has just begun", im.Ref)
	}
	if len(b.active) >= maxRecordings {
		return nil, fmt.Errorf("record %s: %d recordings are on", im.Ref, len(b.active))
	}
	select {
	case <-b.life:
		return nil, fmt.Errorf("record %s: the snapshotter ends", im.Ref)
	default:
	}
	r := &Recording{book: b, image: im, done: make(chan struct{})}
	if !r.watch() {
		return nil, fmt.Errorf("record %s: it has no lazy layer here: %w", im.Ref, ErrNotFound)
	}
	b.active[im.Manifest] = r
	b.setState(im.Manifest, StateRecording)
	if err := b.markActive(im); err != nil {
		b.Log.Warn("recording is not marked", "image", im.Ref, "error", err)
	}
	b.Log.Info("recording what the start of an image reads", "image", im.Ref, "manifest", im.Manifest.String())
	b.work.Go(func() { r.follow() })
	return r, nil
}

// watch begins to see the image's layers.
func (r *Recording) watch() bool {
	var layers []profile.Layer
	seen := map[digest.Digest]bool{}
	ready := make(chan struct{})
	for _, d := range r.image.Layers {
		if seen[d] {
			continue
		}
		seen[d] = true
		number := len(layers)
		size, stop, ok := r.book.Watch(d, &lazy.Watcher{Touched: func(off, n int64) {
			<-ready // closed below, before anybody can wait long
			r.rec.touch(number, off, n)
		}})
		if !ok {
			continue
		}
		r.unsee = append(r.unsee, stop)
		layers = append(layers, profile.Layer{Digest: d, Size: size})
	}
	r.rec = newRecorder(layers)
	close(ready)
	return len(layers) > 0
}

// follow ends the recording when nothing new is read, or at a limit.
func (r *Recording) follow() {
	timer := time.NewTimer(r.book.Quiet)
	defer timer.Stop()
	began := time.Now()
	for {
		select {
		case <-r.done:
			return
		case <-r.book.life:
			r.Discard("the snapshotter ends")
			return
		case <-timer.C:
		}
		first, last, full := r.rec.state()
		switch now := time.Now(); {
		case first.IsZero() && now.Sub(began) > maxIdle:
			r.Discard("nothing was read")
		case first.IsZero():
			timer.Reset(r.book.Quiet)
		case full || now.Sub(first) > maxLength:
			r.finish(profile.Full, nil)
		case now.Sub(last) >= r.book.Quiet:
			r.finish(profile.Quiet, nil)
		default:
			timer.Reset(r.book.Quiet - now.Sub(last))
		}
	}
}

// end stops the watching. It reports whether this call did.
func (r *Recording) end() (ended bool) {
	r.once.Do(func() {
		ended = true
		for _, stop := range r.unsee {
			stop()
		}
		b := r.book
		b.mu.Lock()
		delete(b.active, r.image.Manifest)
		b.setState(r.image.Manifest, "")
		b.unmarkActive(r.image.Manifest)
		b.mu.Unlock()
		close(r.done)
	})
	return ended
}

// Discard ends the recording and keeps nothing.
func (r *Recording) Discard(why string) {
	if r.end() {
		r.book.Log.Info("recording is dropped", "image", r.image.Ref, "reason", why)
	}
}

// finish ends the recording and keeps what it has. A nil command is the image's.
func (r *Recording) finish(reason profile.Reason, command []string) *profile.Profile {
	if command == nil {
		command = r.image.Command
	}
	if !r.end() {
		return nil
	}
	p := r.rec.profile(r.image.Manifest, command, reason)
	if p == nil {
		r.book.Log.Info("recording is dropped", "image", r.image.Ref, "reason", "nothing was read")
		return nil
	}
	if err := r.book.Put(p); err != nil {
		r.book.Log.Warn("profile is not kept", "image", r.image.Ref, "error", err)
		return p
	}
	r.book.SetState(p.Manifest, StateRecorded)
	r.book.Log.Info("profile recorded", "image", r.image.Ref, "manifest", p.Manifest.String(), "reason", reason.String(), "parts", len(p.Parts), "bytes", p.Bytes())
	return p
}

// End ends the recording of an image, named by its reference or its manifest's
// digest, and returns the profile. A nil command is the image's own.
func (b *Book) End(image string, reason profile.Reason, command []string) (*profile.Profile, error) {
	b.mu.Lock()
	var r *Recording
	for m, x := range b.active {
		if x.image.Ref == image || m.String() == image {
			r = x
		}
	}
	b.mu.Unlock()
	if r == nil {
		return nil, fmt.Errorf("no recording of %s is on: %w", image, ErrNotFound)
	}
	p := r.finish(reason, command)
	if p == nil {
		return nil, fmt.Errorf("nothing was read of %s: %w", image, ErrNotFound)
	}
	return p, nil
}

// Recordings lists the images whose recordings are on.
func (b *Book) Recordings() []Image {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []Image
	for _, r := range b.active {
		all = append(all, r.image)
	}
	return all
}

// SetState notes how an image stands, for State.
func (b *Book) SetState(manifest digest.Digest, state string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.setState(manifest, state)
}

func (b *Book) setState(manifest digest.Digest, state string) {
	if len(b.states) >= maxStates {
		clear(b.states)
	}
	b.states[manifest] = state
}

// State is how an image stands since this worker began: one of the states, or
// empty.
func (b *Book) State(manifest digest.Digest) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.states[manifest]
}
