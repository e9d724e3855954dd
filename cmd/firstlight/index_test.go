package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/firstlight-dev/firstlight/indexer/batch"
)

// tarGzip makes a layer of one file, or one that is refused.
func tarGzip(t *testing.T, text string, refused bool) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	h := &tar.Header{Typeflag: tar.TypeReg, Name: "file", Mode: 0o644, Size: int64(len(text))}
	if refused {
		h.Typeflag, h.Size, h.Linkname, text = tar.TypeLink, 0, "elsewhere", ""
	}
	if err := w.WriteHeader(h); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func testImage(t *testing.T, arch string, blobs ...[]byte) v1.Image {
	t.Helper()
	img := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	img = mutate.ConfigMediaType(img, types.OCIConfigJSON)
	img, err := mutate.ConfigFile(img, &v1.ConfigFile{OS: "linux", Architecture: arch})
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range blobs {
		l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b)), nil }, tarball.WithMediaType(types.OCILayer))
		if err != nil {
			t.Fatal(err)
		}
		if img, err = mutate.AppendLayers(img, l); err != nil {
			t.Fatal(err)
		}
	}
	return img
}

// run is the command line, without a process.
func runIndex(t *testing.T, args ...string) (out string, code int, err error) {
	t.Helper()
	var b bytes.Buffer
	root := newRootCommand()
	root.SetOut(&b)
	root.SetErr(&bytes.Buffer{})
	root.SetArgs(append([]string{"index"}, args...))
	if err = root.ExecuteContext(t.Context()); err != nil {
		code = exitCode(err)
	}
	return b.String(), code, err
}

func mustIndex(t *testing.T, args ...string) []batch.Image {
	t.Helper()
	out, _, err := runIndex(t, append(args, "-o", "json")...)
	if err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	var r struct{ Images []batch.Image }
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%v: %v in %s", args, err, out)
	}
	return r.Images
}

// The whole life of indexes, in a registry and in a layout folder, for an image of two platforms that
// share a layer.
func TestIndexCommand(t *testing.T) {
	shared, own, refused := tarGzip(t, "shared", false), tarGzip(t, strings.Repeat("own", 99999), false), tarGzip(t, "", true)
	idx := mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.OCIImageIndex),
		mutate.IndexAddendum{Add: testImage(t, "amd64", shared, own), Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "amd64"}}},
		mutate.IndexAddendum{Add: testImage(t, "arm64", shared, refused), Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "arm64"}}})
	s := httptest.NewServer(registry.New(registry.Logger(slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo))))
	defer s.Close()
	ref := strings.TrimPrefix(s.URL, "http://") + "/team/image:v1"
	tag, err := name.ParseReference(ref)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(tag, idx); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	p, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.AppendIndex(idx, layout.WithAnnotations(map[string]string{ocispec.AnnotationRefName: "v1"})); err != nil {
		t.Fatal(err)
	}
	for name, image := range map[string][]string{"registry": {ref}, "oci:": {"oci:" + dir + ":v1"}, "--layout": {"--layout", dir, "v1"}, "only image": {"oci:" + dir}} {
		t.Run(name, func(t *testing.T) {
			do := func(verb string) []string { return append([]string{verb}, image...) }
			if _, code, err := runIndex(t, do("ls")...); code != exitNotFound {
				t.Fatalf("ls before create: code %d, %v", code, err)
			}
			made := mustIndex(t, do("create")...)
			if len(made) != 2 || made[0].Layers[1].IndexSize == 0 || !strings.Contains(made[1].Layers[1].Refused, "hard link") {
				t.Fatalf("created %+v", made)
			}
			again := mustIndex(t, do("create")...)
			if !again[0].Layers[0].Reused || again[0].Artifact != made[0].Artifact || len(again[0].Removed) > 0 {
				t.Errorf("created again: %+v", again)
			}
			if one := mustIndex(t, append(do("inspect"), "--platform", "linux/arm64")...); len(one) != 1 || one[0].Layers[0].Entries != 1 {
				t.Errorf("inspect: %+v", one)
			}
			if ok := mustIndex(t, do("verify")...); len(ok) != 2 || ok[0].Layers[0].Problem != "" {
				t.Errorf("verify: %+v", ok)
			}
			if out, _, err := runIndex(t, do("ls")...); err != nil || !strings.Contains(out, "linux/amd64") || !strings.Contains(out, "no index") {
				t.Errorf("ls: %v, %s", err, out)
			}
			if gone := mustIndex(t, do("rm")...); len(gone) != 2 {
				t.Errorf("rm: %+v", gone)
			}
			if _, code, _ := runIndex(t, do("rm")...); code != exitNotFound {
				t.Errorf("rm again: code %d", code)
			}
		})
	}
	if d, err := remote.Get(tag); err != nil {
		t.Error(err)
	} else if want, err := idx.Digest(); err != nil || d.Digest != want {
		t.Errorf("the image changed: %s, was %s, %v", d.Digest, want, err)
	}
}

func TestIndexCommandErrors(t *testing.T) {
	dir := t.TempDir()
	p, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	good := tarGzip(t, strings.Repeat("text", 1000), false)
	if err := p.AppendImage(testImage(t, "amd64", good), layout.WithAnnotations(map[string]string{ocispec.AnnotationRefName: "good"})); err != nil {
		t.Fatal(err)
	}
	if err := p.AppendImage(testImage(t, "amd64", tarGzip(t, "", true)), layout.WithAnnotations(map[string]string{ocispec.AnnotationRefName: "refused"})); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args []string
		code int
		says string
	}{
		"no image":        {[]string{"create"}, exitUsage, "takes one image"},
		"bad format":      {[]string{"ls", "-o", "xml", "x"}, exitUsage, "text or json"},
		"bad flag":        {[]string{"ls", "--what", "x"}, exitUsage, "unknown flag"},
		"bad name":        {[]string{"ls", "UPPER CASE"}, exitUsage, "parse reference"},
		"no folder":       {[]string{"ls", "oci:" + dir + "/nowhere"}, exitError, "not an OCI image layout"},
		"no such image":   {[]string{"ls", "oci:" + dir + ":other"}, exitNotFound, `image "other"`},
		"several images":  {[]string{"ls", "oci:" + dir}, exitError, "2 images"},
		"other platform":  {[]string{"create", "--platform", "linux/s390x", "oci:" + dir + ":good"}, exitNotFound, "linux/s390x"},
		"nothing to do":   {[]string{"create", "oci:" + dir + ":refused"}, exitError, "no layer can be indexed"},
		"verify no index": {[]string{"verify", "oci:" + dir + ":good"}, exitNotFound, "no index"},
		"unreachable":     {[]string{"ls", "127.0.0.1:1/team/image"}, exitError, "registry 127.0.0.1:1 is not reachable"},
	} {
		t.Run(name, func(t *testing.T) {
			_, code, err := runIndex(t, c.args...)
			if code != c.code || err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("code %d, %v; want %d and %q", code, err, c.code, c.says)
			}
		})
	}
}

// A layer that is not what was indexed is found by verify, a damaged one also by create.
func TestIndexMismatch(t *testing.T) {
	dir := t.TempDir()
	p, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	blob := tarGzip(t, strings.Repeat("some text ", 10000), false)
	if err := p.AppendImage(testImage(t, "amd64", blob)); err != nil {
		t.Fatal(err)
	}
	mustIndex(t, "create", "oci:"+dir)
	d, err := static.NewLayer(blob, types.OCILayer).Digest()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "blobs", "sha256", d.Hex)
	for name, bad := range map[string][]byte{"cut short": blob[:len(blob)/2], "damaged": bytes.Replace(blob, blob[100:104], []byte("\x00\x00\x00\x00"), 1)} {
		if err := os.WriteFile(path, bad, 0o644); err != nil {
			t.Fatal(err)
		}
		out, code, err := runIndex(t, "verify", "oci:"+dir)
		if code != exitMismatch || !strings.Contains(out, "BAD: layer does not match") {
			t.Errorf("verify of a layer %s: code %d, %v, %s", name, code, err, out)
		}
		if _, code, err := runIndex(t, "create", "--force", "oci:"+dir); code == 0 {
			t.Errorf("create of a layer %s: %v", name, fmt.Sprint(err))
		}
	}
}
