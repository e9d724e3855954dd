package lazy

import (
	"testing"
	"time"

	"github.com/firstlight-dev/firstlight/indexer/index"
)

func TestPace(t *testing.T) {
	const ms = time.Millisecond
	type body struct {
		n    int64
		took time.Duration
	}
	few := []time.Duration{21 * ms, 20 * ms, 300 * ms, 22 * ms}
	for name, c := range map[string]struct {
		waits []time.Duration
		body  body
		want  int64
	}{
		"nothing known":        {nil, body{}, 0},
		"no body yet":          {few, body{}, 0},
		"too few answers":      {few[:3], body{1 << 20, 10 * ms}, 0},
		"a small body":         {few, body{64 << 10, time.Microsecond}, 0},
		"100 MB/s, 20 ms":      {few, body{1_000_000, 10 * ms}, 2_000_000},
		"25 MB/s, 2 ms":        {[]time.Duration{2 * ms, 2 * ms, 2 * ms, 2 * ms}, body{1_000_000, 40 * ms}, 50_000},
		"far away and fast":    {few, body{10_000_000, 10 * ms}, maxReach},
		"a clock that stopped": {few, body{1_000_000, 0}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var p pace
			for _, d := range c.waits {
				p.answered(d)
			}
			p.received(c.body.n, c.body.took)
			if got := p.reach(); got != c.want {
				t.Errorf("reach is %d, want %d", got, c.want)
			}
		})
	}

	var p pace
	for range paceSamples {
		p.answered(ms)
	}
	p.received(1_000_000, 10*ms)
	for range paceSamples {
		p.answered(20 * ms) // another registry
	}
	if got := p.reach(); got != 2_000_000 {
		t.Errorf("old answers count for ever: reach is %d", got)
	}
}

// TestStretch reads a byte over a long link and over a short one.
func TestStretch(t *testing.T) {
	long := NewGate()
	for range paceFew {
		long.pace.answered(20 * time.Millisecond)
	}
	long.pace.received(1_000_000, 10*time.Millisecond)
	for name, c := range map[string]struct {
		gate *Gate
		more bool
	}{"long": {long, true}, "unknown": {NewGate(), false}} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, 8<<20, index.Gzip, WithGate(c.gate))
			if err := f.read(t.Context(), 0, 1); err != nil {
				t.Fatal(err)
			}
			f.layer.runs.Wait() // the request goes on when its reader has what it wants
			st := f.layer.Stats()
			if st.Requests != 1 || (st.ChunksPresent > 1) != c.more || st.BytesFetched > maxReach+(1<<20) {
				t.Errorf("%d requests brought %d chunks, %d bytes", st.Requests, st.ChunksPresent, st.BytesFetched)
			}
		})
	}
}
