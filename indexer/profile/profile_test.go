package profile_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/firstlight-dev/firstlight/indexer/profile"
)

// random makes a profile of disjoint parts in random order.
func random(rnd *rand.Rand) *profile.Profile {
	p := &profile.Profile{Manifest: digest.FromString("image"), Command: []string{"/bin/sh", "-c", "", "x y"}, Reason: profile.Reason(1 + rnd.IntN(4))}
	for i := range 1 + rnd.IntN(5) {
		units := 1 + rnd.Int64N(5000)
		p.Layers = append(p.Layers, profile.Layer{Digest: digest.FromString(fmt.Sprint("layer", i)), Size: units*profile.Unit - rnd.Int64N(profile.Unit)})
		for first := rnd.Int64N(units); first < units; {
			count := 1 + rnd.Int64N(units-first)
			p.Parts = append(p.Parts, profile.Part{Layer: i, First: first, Count: count})
			first += count + rnd.Int64N(10)
		}
	}
	rnd.Shuffle(len(p.Parts), func(i, j int) { p.Parts[i], p.Parts[j] = p.Parts[j], p.Parts[i] })
	return p
}

func TestRoundTrip(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		want := random(rnd)
		b, err := want.Encode()
		if err != nil {
			t.Fatal(err)
		}
		again, err := want.Encode()
		if err != nil || !bytes.Equal(b, again) {
			t.Fatalf("the same profile made other bytes, %v", err)
		}
		got, err := profile.Decode(b)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Fatalf("profile (-want +got):\n%s", d)
		}
		b[rnd.IntN(len(b))] ^= 1 << rnd.IntN(8)
		if _, err := profile.Decode(b); !errors.Is(err, profile.ErrInvalid) {
			t.Fatalf("a flipped bit gives %v", err)
		}
	}
}

// TestInvalid has what a hostile profile may try. Encode refuses it by the same
// check that Decode ends with.
func TestInvalid(t *testing.T) {
	for name, change := range map[string]func(*profile.Profile){
		"no manifest":       func(p *profile.Profile) { p.Manifest = "sha256:x" },
		"unknown reason":    func(p *profile.Profile) { p.Reason = 9 },
		"layer twice":       func(p *profile.Profile) { p.Layers[1].Digest = p.Layers[0].Digest },
		"layer unused":      func(p *profile.Profile) { p.Parts = p.Parts[:1] },
		"unknown layer":     func(p *profile.Profile) { p.Parts[0].Layer = 2 },
		"beyond the end":    func(p *profile.Profile) { p.Parts[0].First = 10 },
		"longer than layer": func(p *profile.Profile) { p.Parts[0].Count = 1 << 40 },
		"empty part":        func(p *profile.Profile) { p.Parts[0].Count = 0 },
		"negative":          func(p *profile.Profile) { p.Parts[0].First = -1 },
		"loop":              func(p *profile.Profile) { p.Parts = append(p.Parts, p.Parts[0]) },
		"overlap":           func(p *profile.Profile) { p.Parts = append(p.Parts, profile.Part{Layer: 0, First: 2, Count: 4}) },
		"huge layer":        func(p *profile.Profile) { p.Layers[0].Size = 1 << 60 },
		"long command":      func(p *profile.Profile) { p.Command = make([]string, 1000) },
	} {
		p := &profile.Profile{Manifest: digest.FromString("m"), Reason: profile.Usable,
			Layers: []profile.Layer{{Digest: digest.FromString("a"), Size: 10 * profile.Unit}, {Digest: digest.FromString("b"), Size: 1}},
			Parts:  []profile.Part{{Layer: 0, First: 1, Count: 2}, {Layer: 1, First: 0, Count: 1}}}
		if _, err := p.Encode(); err != nil {
			t.Fatal(err)
		}
		change(p)
		if _, err := p.Encode(); !errors.Is(err, profile.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestKeyTellsCommandsApart(t *testing.T) {
	keys := map[string][]string{}
	for _, c := range [][]string{nil, {""}, {"a", "b"}, {"ab"}, {"a b"}, {"a", "b", ""}} {
		k := profile.Key(c)
		if other, ok := keys[k]; ok {
			t.Errorf("%q and %q have key %s", c, other, k)
		}
		keys[k] = c
	}
}

// FuzzDecode adds the checksum itself, or nothing but it would be tested.
func FuzzDecode(f *testing.F) {
	rnd := rand.New(rand.NewPCG(3, 4))
	for range 3 {
		b, err := random(rnd).Encode()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b[:len(b)-sha256.Size])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		sum := sha256.Sum256(b)
		b = append(bytes.Clone(b), sum[:]...)
		p, err := profile.Decode(b)
		if err != nil {
			if !errors.Is(err, profile.ErrInvalid) {
				t.Errorf("unexpected error %v", err)
			}
			return
		}
		again, err := p.Encode()
		if err != nil || !bytes.Equal(b, again) {
			t.Errorf("accepted bytes are not what Encode writes: %v", err)
		}
		for _, x := range p.Parts {
			if l := p.Layers[x.Layer]; x.Offset() < 0 || x.Offset() >= x.End(l.Size) || x.End(l.Size) > l.Size {
				t.Errorf("part %+v of a layer of %d bytes", x, l.Size)
			}
		}
	})
}
