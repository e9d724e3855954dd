package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/firstlight-dev/firstlight/indexer/profile"
	"github.com/firstlight-dev/firstlight/indexer/referrer"
	"github.com/firstlight-dev/firstlight/snapshotter/nodeapi"
	"github.com/firstlight-dev/firstlight/test/trees"
)

// profiled is a machine and an image whose start reads a large file.
type profiled struct {
	*machine
	image *testImage
}

func newProfiled(t *testing.T, args ...string) profiled {
	t.Helper()
	m := newMachine(t)
	m.startSnapshotter(append([]string{"--fill-after", "-1s", "--profiles-quiet", "1h"}, args...)...)
	m.startContainerd()
	layers, _ := trees.Layers(24 << 20)
	image := m.push("image:1", [][]byte{busybox(t), layers[0], layers[1]}, gzipped, plain)
	m.index(image, nil)
	return profiled{m, image}
}

// start is what the profile is about.
func (p profiled) start(id string) {
	p.Helper()
	if _, err := p.container(id, p.image, "/bin/sha256sum", "/usr/lib/big.so"); err != nil {
		p.Fatal(err)
	}
}

// await waits until the image stands as wanted and returns its figures.
func (p profiled) await(state string) nodeapi.Layer {
	p.Helper()
	var sum nodeapi.Layer
	p.waitFor(p.snapshotter, func(ctx context.Context) error {
		images, err := p.node().Images(ctx)
		if err != nil || len(images) != 1 {
			return fmt.Errorf("%d images, %w", len(images), err)
		}
		sum = images[0].Totals()
		if images[0].Profile != state {
			return fmt.Errorf("profile is %q, waiting for %q", images[0].Profile, state)
		}
		return nil
	})
	return sum
}

// record makes a profile and returns it with the figures of the start.
func (p profiled) record() (*profile.Profile, nodeapi.Layer) {
	p.Helper()
	p.pull("firstlight", p.image.ref)
	p.await(nodeapi.ProfileRecording)
	p.start("first")
	if _, err := p.node().StopRecording(p.Context(), nodeapi.ProfileRequest{Image: p.image.ref, Usable: true}); err != nil {
		p.Fatal(err)
	}
	sum := p.await(nodeapi.ProfileRecorded)
	b, err := p.node().ProfileBytes(p.Context(), p.image.manifest.String())
	if err != nil {
		p.Fatal(err)
	}
	pr, err := profile.Decode(b)
	if err != nil {
		p.Fatal(err)
	}
	return pr, sum
}

// publish pushes a profile as firstlight profile push does.
func (p profiled) publish(pr *profile.Profile) {
	p.Helper()
	subject := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.Digest(p.image.manifest.String()), Size: p.manifestSize(p.image)}
	a, err := referrer.NewProfileArtifact(subject, pr)
	if err != nil {
		p.Fatal(err)
	}
	var blobs [][]byte
	for _, b := range a.Blobs {
		blobs = append(blobs, b)
	}
	p.uploadArtifact(p.image.ref, a.Manifest, blobs)
}

// replayed checks a start after a replay against the one that was recorded.
func (p profiled) replayed(recorded nodeapi.Layer) {
	p.Helper()
	before := p.await("replayed")
	p.start("again")
	after := p.await("replayed")
	if after.BytesReplayed < recorded.BytesFetched*9/10 {
		p.Errorf("%d bytes were replayed, the recorded start fetched %d", after.BytesReplayed, recorded.BytesFetched)
	}
	// The kernel reads ahead as it likes, so a start may touch a chunk that the
	// recorded one did not.
	if recorded.OnDemandReads < 3 || after.OnDemandReads > 1 {
		p.Errorf("%d reads waited, %d of the recorded start", after.OnDemandReads, recorded.OnDemandReads)
	}
	if d := after.BytesFetched - before.BytesFetched; d > recorded.BytesFetched/10 {
		p.Errorf("%d bytes were fetched on demand, %d by the recorded start", d, recorded.BytesFetched)
	}
	if before.Requests >= recorded.Requests {
		p.Errorf("the replay took %d requests, the recorded start %d", before.Requests, recorded.Requests)
	}
}

// TestProfile records a start on one node; the next start there, and one on a
// node that has the profile from the registry, read what was fetched ahead.
func TestProfile(t *testing.T) {
	for _, mode := range []string{"erofs", "fuse"} {
		t.Run(mode, func(t *testing.T) {
			one := newProfiled(t, "--mode", mode)
			pr, recorded := one.record()
			if pr.Reason != profile.Usable || pr.Bytes() < 24<<20 || strings.Join(pr.Command, " ") != "/bin/sh" {
				t.Errorf("recorded %d bytes of %q, %s", pr.Bytes(), pr.Command, pr.Reason)
			}
			one.removeImage(one.image.ref)
			one.pull("firstlight", one.image.ref)
			one.replayed(recorded)

			two := newProfiled(t, "--mode", mode)
			two.publish(pr)
			asked := two.count()
			two.pull("firstlight", two.image.ref)
			two.replayed(recorded)
			if full, _ := asked.of(two.image.layers[1]); full > 0 {
				t.Errorf("a layer was fetched in full %d times", full)
			}
		})
	}
}

// TestHostileProfiles: whatever a profile in the registry says, the image starts
// as without it, and nothing of other images is asked for.
func TestHostileProfiles(t *testing.T) {
	p := newProfiled(t, "--profiles-record=false")
	manifest := digest.Digest(p.image.manifest.String())
	big := p.image.layers[1]
	valid := profile.Profile{Manifest: manifest, Reason: profile.Usable,
		Layers: []profile.Layer{{Digest: digest.Digest(big.digest.String()), Size: int64(len(big.tar))}}, Parts: []profile.Part{{Count: 1}}}
	other := valid
	other.Layers = []profile.Layer{{Digest: digest.FromString("a layer of somebody else"), Size: 1 << 40}}
	other.Parts = []profile.Part{{Count: 1 << 28}}
	long := valid
	long.Layers = []profile.Layer{{Digest: valid.Layers[0].Digest, Size: 1 << 40}}
	long.Parts = []profile.Part{{Count: 1 << 28}}
	for _, pr := range []profile.Profile{other, long} {
		pr.Command = []string{fmt.Sprint(len(pr.Layers[0].Digest), pr.Layers[0].Size)}
		p.publish(&pr)
	}
	asked := p.count()
	p.pull("firstlight", p.image.ref)
	p.await("replayed")
	for i, l := range p.image.layers {
		if full, ranged := asked.of(l); full > 0 || ranged > 1 { // the probe for ranges is one
			t.Errorf("layer %d was asked for %d times, by range %d times", i, full, ranged)
		}
	}
	p.start("first")
	p.wantLog("left_out=1")
	p.removeImage(p.image.ref)
	if _, err := p.node().StopRecording(t.Context(), nodeapi.ProfileRequest{Image: p.image.ref}); !errors.Is(err, nodeapi.ErrNotFound) {
		t.Errorf("end of no recording: %v", err)
	}
}

// TestUselessProfiles: what does not decode, or is of another image, is a line
// in the log.
func TestUselessProfiles(t *testing.T) {
	for name, change := range map[string]func(*profiled, *referrer.Artifact) ([]byte, [][]byte){
		"damaged": func(_ *profiled, a *referrer.Artifact) ([]byte, [][]byte) {
			var blobs [][]byte
			manifest := string(a.Manifest)
			for d, b := range a.Blobs {
				if d != ocispec.DescriptorEmptyJSON.Digest {
					b = append([]byte("loop"), b[4:]...)
					manifest = strings.ReplaceAll(manifest, d.String(), digest.FromBytes(b).String())
				}
				blobs = append(blobs, b)
			}
			return []byte(manifest), blobs
		},
		"of another image": func(p *profiled, a *referrer.Artifact) ([]byte, [][]byte) {
			subject := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromString("other"), Size: 1}
			o, err := referrer.NewProfileArtifact(subject, &profile.Profile{Manifest: subject.Digest, Reason: profile.Usable,
				Layers: []profile.Layer{{Digest: digest.FromString("l"), Size: 1}}, Parts: []profile.Part{{Count: 1}}})
			if err != nil {
				p.Fatal(err)
			}
			var blobs [][]byte
			for _, b := range o.Blobs {
				blobs = append(blobs, b)
			}
			var was ocispec.Descriptor
			for d, b := range a.Blobs {
				if d != ocispec.DescriptorEmptyJSON.Digest {
					was = ocispec.Descriptor{Digest: d, Size: int64(len(b))}
				}
			}
			manifest := string(a.Manifest)
			for d, b := range o.Blobs {
				if d != ocispec.DescriptorEmptyJSON.Digest {
					manifest = strings.ReplaceAll(manifest, was.Digest.String(), d.String())
					manifest = strings.ReplaceAll(manifest, fmt.Sprintf(`"size":%d}`, was.Size), fmt.Sprintf(`"size":%d}`, len(b)))
				}
			}
			return []byte(manifest), blobs
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProfiled(t)
			subject := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.Digest(p.image.manifest.String()), Size: p.manifestSize(p.image)}
			a, err := referrer.NewProfileArtifact(subject, &profile.Profile{Manifest: subject.Digest, Reason: profile.Usable,
				Layers: []profile.Layer{{Digest: digest.FromString("l"), Size: 1}}, Parts: []profile.Part{{Count: 1}}})
			if err != nil {
				t.Fatal(err)
			}
			manifest, blobs := change(&p, a)
			p.uploadArtifact(p.image.ref, manifest, blobs)
			p.pull("firstlight", p.image.ref)
			p.start("first")
			if _, err := p.node().StopRecording(t.Context(), nodeapi.ProfileRequest{Image: p.image.ref}); err != nil {
				t.Errorf("the start was not recorded instead: %v", err)
			}
			p.wantLog("profile in the registry is of no use")
		})
	}
}
