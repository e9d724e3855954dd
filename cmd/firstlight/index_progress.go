package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/cheggaaa/pb/v3"
	"github.com/dustin/go-humanize"
	"github.com/opencontainers/go-digest"
	"golang.org/x/term"

	"github.com/firstlight-dev/firstlight/indexer/batch"
	"github.com/firstlight-dev/firstlight/indexer/image"
)

// barTemplate shows a layer on a terminal.
const barTemplate = `{{string . "layer"}} {{bar . "[" "=" ">" " " "]"}} {{counters .}} {{speed . "%s/s" " "}} {{string . "note"}}`

// indexProgress shows how layers go on: bars on a terminal, else a line for each
// layer when it is done.
type indexProgress struct {
	w    io.Writer
	pool *pb.Pool // nil: no terminal

	mu   sync.Mutex
	bars map[digest.Digest]*pb.ProgressBar // guarded by mu
}

var _ batch.Observer = (*indexProgress)(nil)

func newIndexProgress(w io.Writer, images []image.Image) *indexProgress {
	p := &indexProgress{w: w, bars: make(map[digest.Digest]*pb.ProgressBar)}
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return p
	}
	p.pool = pb.NewPool()
	p.pool.Output = f
	for _, img := range images {
		for _, l := range img.Layers {
			d := l.Descriptor.Digest
			if p.bars[d] != nil {
				continue
			}
			bar := pb.ProgressBarTemplate(barTemplate).New(int(l.Descriptor.Size))
			bar.Set(pb.Bytes, true).Set("layer", fmt.Sprintf("%.12s", d.Encoded()))
			p.bars[d] = bar
			p.pool.Add(bar)
		}
	}
	if err := p.pool.Start(); err != nil {
		p.pool = nil // a terminal that cannot do it
	}
	return p
}

func (p *indexProgress) bar(d digest.Digest) *pb.ProgressBar {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pool == nil {
		return nil
	}
	return p.bars[d]
}

// Start implements batch.Observer.
func (p *indexProgress) Start(l image.Layer) {
	if bar := p.bar(l.Descriptor.Digest); bar != nil {
		bar.SetCurrent(0)
	}
}

// Read implements batch.Observer.
func (p *indexProgress) Read(layer digest.Digest, n int) {
	if bar := p.bar(layer); bar != nil {
		bar.Add(n)
	}
}

// Done implements batch.Observer.
func (p *indexProgress) Done(l batch.Layer) {
	if bar := p.bar(l.Digest); bar != nil {
		if l.Refused != "" {
			bar.Set("note", "no index")
		}
		bar.Finish()
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	seconds := (time.Duration(l.Millis) * time.Millisecond).Seconds()
	fmt.Fprintf(p.w, "layer %.12s: %s in %.1f s\n", l.Digest.Encoded(), humanize.IBytes(uint64(l.Size)), seconds)
}

// stop leaves the terminal as it was.
func (p *indexProgress) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pool != nil {
		_ = p.pool.Stop() // nothing to do about it
		p.pool = nil
	}
}
