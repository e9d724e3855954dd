package images

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

func newMaker(t *testing.T) *Maker {
	return &Maker{Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler)}
}

func TestBusyboxIsAnImageThatIsMadeOnce(t *testing.T) {
	m := newMaker(t)
	img, err := m.Busybox(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Image(img); err != nil {
		t.Error(err)
	}
	names := map[string]*tar.Header{}
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	content, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	for r := tar.NewReader(content); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names[h.Name] = h
	}
	if h := names["bin/sh"]; h == nil || h.Linkname != "busybox" {
		t.Errorf("bin/sh is %+v", h)
	}

	first, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	again, err := m.Busybox(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if second, err := again.Digest(); err != nil || first != second {
		t.Errorf("second time %s (%v), first %s", second, err, first)
	}
}

func TestAFailedRecipeLeavesNothing(t *testing.T) {
	m := newMaker(t)
	broken := errors.New("broken")
	_, err := m.make(t.Context(), recipe{Name: "x"}, func(_ context.Context, work string) ([]v1.Layer, error) {
		return nil, errors.Join(broken, os.WriteFile(filepath.Join(work, "rest"), nil, 0o644))
	})
	if !errors.Is(err, broken) {
		t.Errorf("error is %v", err)
	}
	left, err := os.ReadDir(m.Dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(left) != 1 || left[0].Name() != "x.lock" {
		t.Errorf("left behind: %v", left)
	}
}

func TestDiffHasWhiteoutsAndBoundedTimes(t *testing.T) {
	dir := t.TempDir()
	before, after := filepath.Join(dir, "before"), filepath.Join(dir, "after")
	for path, content := range map[string]string{"before/gone": "1", "before/kept": "2", "after/new": "3"} {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := run(t.Context(), nil, "cp", "--archive", filepath.Join(before, "kept"), after); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "layer.tar.gz")
	if err := writeDiff(t.Context(), before, after, file); err != nil {
		t.Fatal(err)
	}
	layer, err := layerFromFile(file)
	if err != nil {
		t.Fatal(err)
	}
	content, err := layer.Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	got := map[string]bool{}
	for r := tar.NewReader(content); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got[h.Name] = true
		if h.ModTime.After(epoch) {
			t.Errorf("%s is from %s", h.Name, h.ModTime)
		}
	}
	if !got[".wh.gone"] || !got["new"] || got["kept"] {
		t.Errorf("layer holds %v", got)
	}
}
