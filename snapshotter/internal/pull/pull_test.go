package pull_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/pkg/archive"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/firstlight-dev/firstlight/snapshotter/internal/pull"
	"github.com/firstlight-dev/firstlight/test/trees"
)

func needsRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("owners and devices need root")
	}
}

func compress(t *testing.T, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func unpack(ctx context.Context, dir string, blob, tar []byte, bottom bool) (*pull.Tree, error) {
	desc := ocispec.Descriptor{Digest: digest.FromBytes(blob), Size: int64(len(blob))}
	return pull.Unpack(ctx, dir, bytes.NewReader(blob), desc, digest.FromBytes(tar), bottom)
}

// TestSideBySide unpacks the layers without each other, topmost first, and
// compares each with what containerd makes of it on top of those below.
func TestSideBySide(t *testing.T) {
	needsRoot(t)
	layers, implied := trees.Layers(1 << 20)
	root := t.TempDir()
	ours := make([]*pull.Tree, len(layers))
	var lowers []string
	for i := len(layers) - 1; i >= 0; i-- {
		dir := mkdir(t, root, "ours", string(rune('0'+i)))
		var err error
		if ours[i], err = unpack(t.Context(), dir, compress(t, layers[i]), layers[i], i == 0); err != nil {
			t.Fatal(err)
		}
	}
	for i, tar := range layers {
		want := mkdir(t, root, "want", string(rune('0'+i)))
		opts := []archive.ApplyOpt{archive.WithParents(lowers)}
		if i > 0 {
			opts = append(opts, archive.WithConvertWhiteout(archive.OverlayConvertWhiteout))
		}
		if _, err := archive.Apply(t.Context(), want, bytes.NewReader(tar), opts...); err != nil {
			t.Fatal(err)
		}
		if err := ours[i].Settle(lowers); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(read(t, want, implied), read(t, ours[i].Dir, implied)); d != "" {
			t.Errorf("layer %d (-containerd +ours):\n%s", i, d)
		}
		lowers = append([]string{want}, lowers...)
	}
}

func mkdir(t *testing.T, elem ...string) string {
	t.Helper()
	dir := filepath.Join(elem...)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func read(t *testing.T, dir string, implied map[string]bool) trees.Tree {
	t.Helper()
	tree, err := trees.Read(dir, trees.Options{IgnoreMtime: implied})
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

func TestBadBlobs(t *testing.T) {
	needsRoot(t)
	layers, _ := trees.Layers(1 << 16)
	tar := layers[0]
	blob := compress(t, tar)
	flipped := bytes.Clone(blob)
	flipped[len(flipped)/2] ^= 1
	for _, tc := range []struct {
		name   string
		blob   []byte
		diffID digest.Digest
		is     error
	}{
		{name: "cut short", blob: blob[:len(blob)/2], diffID: digest.FromBytes(tar)},
		{name: "too long", blob: append(bytes.Clone(blob), 0), diffID: digest.FromBytes(tar)},
		{name: "a bit flipped", blob: flipped, diffID: digest.FromBytes(tar)},
		{name: "another diffID", blob: blob, diffID: digest.FromString("other"), is: pull.ErrMismatch},
		{name: "another layer", blob: compress(t, layers[1]), diffID: digest.FromBytes(tar), is: pull.ErrMismatch},
	} {
		t.Run(tc.name, func(t *testing.T) {
			desc := ocispec.Descriptor{Digest: digest.FromBytes(blob), Size: int64(len(blob))}
			_, err := pull.Unpack(t.Context(), t.TempDir(), bytes.NewReader(tc.blob), desc, tc.diffID, true)
			if err == nil {
				t.Fatal("unpacked")
			}
			if tc.is != nil && !errors.Is(err, tc.is) {
				t.Errorf("got %v, want %v", err, tc.is)
			}
			if !strings.Contains(err.Error(), desc.Digest.String()) {
				t.Errorf("error %q does not name the layer", err)
			}
		})
	}
}
