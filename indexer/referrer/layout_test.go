package referrer_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/firstlight-dev/firstlight/indexer/index"
	"github.com/firstlight-dev/firstlight/indexer/referrer"
)

// folder is an OCI layout on disk with some blobs, and manifests listed.
type folder struct {
	*testing.T
	dir string
}

func newFolder(t *testing.T) folder {
	t.Helper()
	f := folder{t, t.TempDir()}
	f.write(ocispec.ImageLayoutFile, []byte(`{"imageLayoutVersion":"1.0.0"}`))
	f.list()
	return f
}

func (f folder) write(name string, b []byte) {
	f.Helper()
	path := filepath.Join(f.dir, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, b, 0o644)); err != nil {
		f.Fatal(err)
	}
}

func (f folder) list(ds ...ocispec.Descriptor) {
	f.Helper()
	b, err := json.Marshal(ocispec.Index{Manifests: ds})
	if err != nil {
		f.Fatal(err)
	}
	f.write(ocispec.ImageIndexFile, b)
}

func (f folder) path(d digest.Digest) string {
	return filepath.Join(f.dir, ocispec.ImageBlobsDir, d.Algorithm().String(), d.Encoded())
}

func (f folder) blob(mediaType string, v any) ocispec.Descriptor {
	f.Helper()
	b, ok := v.([]byte)
	if !ok {
		var err error
		if b, err = json.Marshal(v); err != nil {
			f.Fatal(err)
		}
	}
	d := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(b), Size: int64(len(b))}
	f.write(filepath.Join(ocispec.ImageBlobsDir, "sha256", d.Digest.Encoded()), b)
	return d
}

func (f folder) open() *referrer.Layout {
	f.Helper()
	l, err := referrer.OpenLayout(f.dir)
	if err != nil {
		f.Fatal(err)
	}
	return l
}

// An artifact can call anything an index, the image's own layer too. Removing it, which also create does
// to artifacts it replaces, must not take away what others need.
func TestRemoveSparesWhatOthersName(t *testing.T) {
	f := newFolder(t)
	layer := f.blob(ocispec.MediaTypeImageLayer, emptyTar(0))
	config := f.blob(ocispec.MediaTypeImageConfig, ocispec.Image{})
	image := f.blob(ocispec.MediaTypeImageManifest, ocispec.Manifest{Config: config, Layers: []ocispec.Descriptor{layer}})
	nested := f.blob(ocispec.MediaTypeImageIndex, ocispec.Index{Manifests: []ocispec.Descriptor{image}})
	names := func(d ocispec.Descriptor) ocispec.Descriptor {
		d.MediaType = index.LayerMediaType
		d.Annotations = map[string]string{index.AnnotationLayer: layer.Digest.String()}
		return d
	}
	own := f.blob(index.LayerMediaType, encoded(t, emptyTar(0)))
	artifact := f.blob(ocispec.MediaTypeImageManifest, ocispec.Manifest{
		MediaType: ocispec.MediaTypeImageManifest, ArtifactType: index.ArtifactType, Subject: &image,
		Layers: []ocispec.Descriptor{names(layer), names(config), names(image), names(nested), names(own)},
	})
	artifact.ArtifactType = index.ArtifactType
	f.list(nested, artifact)
	if err := f.open().Remove(t.Context(), image.Digest, artifact); err != nil {
		t.Fatal(err)
	}
	for name, d := range map[string]ocispec.Descriptor{"layer": layer, "configuration": config, "manifest": image, "image index": nested} {
		if _, err := os.Stat(f.path(d.Digest)); err != nil {
			t.Errorf("the image's %s went with the artifact: %v", name, err)
		}
	}
	for name, d := range map[string]ocispec.Descriptor{"artifact": artifact, "index": own} {
		if _, err := os.Stat(f.path(d.Digest)); !os.IsNotExist(err) {
			t.Errorf("the %s is still there: %v", name, err)
		}
	}
}

// What is no file is refused, not waited for: opening a FIFO would last for ever.
func TestLayoutOfOtherThanFiles(t *testing.T) {
	f := newFolder(t)
	fifo, dir := digest.FromString("fifo"), digest.FromString("directory")
	if err := errors.Join(os.MkdirAll(f.path(dir), 0o755), unix.Mkfifo(f.path(fifo), 0o644)); err != nil {
		t.Fatal(err)
	}
	for name, d := range map[string]digest.Digest{"FIFO": fifo, "directory": dir} {
		failed := make(chan [2]error, 1)
		go func() {
			_, _, err := f.open().Manifest(t.Context(), d.String())
			_, berr := f.open().Blob(t.Context(), ocispec.Descriptor{Digest: d, Size: 1})
			failed <- [2]error{err, berr}
		}()
		select {
		case errs := <-failed:
			if errs[0] == nil || errs[1] == nil {
				t.Errorf("a %s: manifest %v, blob %v", name, errs[0], errs[1])
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("a %s is waited for", name)
		}
	}
}

// Several commands may work in one folder; each adds to what the others listed.
func TestLayoutIsEditedByMany(t *testing.T) {
	f := newFolder(t)
	const writers = 16
	raw := encoded(t, emptyTar(0))
	var wg sync.WaitGroup
	for i := range writers {
		wg.Go(func() {
			a, err := referrer.NewArtifact(subject(fmt.Sprint(i)), map[digest.Digest][]byte{digest.FromBytes(emptyTar(0)): raw})
			if err == nil {
				err = f.open().Push(t.Context(), a)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for i := range writers {
		if _, err := referrer.Find(t.Context(), f.open(), subject(fmt.Sprint(i)).Digest); err != nil {
			t.Errorf("artifact %d was lost: %v", i, err)
		}
	}
	// A folder that somebody keeps locked is given up when the command is.
	lock, err := os.Open(f.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := f.open().Remove(ctx, subject("0").Digest, subject("0")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a locked folder: %v", err)
	}
}
