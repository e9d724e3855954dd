package images

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Busybox returns the smallest image a container can live in: the machine's
// static busybox, its applets as symbolic links, and three accounts.
func (m *Maker) Busybox(ctx context.Context) (v1.Image, error) {
	r := recipe{
		Name:  "busybox",
		Steps: []step{{By: "busybox-static"}},
		Config: v1.Config{
			Env: []string{"PATH=/bin"},
			Cmd: []string{"sh"},
		},
	}
	return m.make(ctx, r, func(ctx context.Context, work string) ([]v1.Layer, error) {
		path := filepath.Join(work, "layer.tar.gz")
		if err := writeBusybox(ctx, path); err != nil {
			return nil, err
		}
		layer, err := layerFromFile(path)
		if err != nil {
			return nil, err
		}
		return []v1.Layer{layer}, nil
	})
}

func writeBusybox(ctx context.Context, path string) error {
	const program = "/usr/bin/busybox"
	binary, err := os.ReadFile(program)
	if err != nil {
		return fmt.Errorf("read busybox (Debian package busybox-static): %w", err)
	}
	applets, err := output(ctx, program, "--list")
	if err != nil {
		return fmt.Errorf("list busybox applets: %w", err)
	}
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("create layer: %w", err)
	}
	defer f.Close()
	zip := gzip.NewWriter(f)
	w := tarWriter{tar.NewWriter(zip), nil}
	for _, dir := range []string{"bin", "dev", "etc", "proc", "root", "sys", "tmp"} {
		w.add(&tar.Header{Name: dir + "/", Typeflag: tar.TypeDir, Mode: 0o755}, nil)
	}
	w.add(&tar.Header{Name: "bin/busybox", Typeflag: tar.TypeReg, Mode: 0o755}, binary)
	for _, applet := range strings.Fields(applets) {
		if applet != "busybox" {
			w.add(&tar.Header{Name: "bin/" + applet, Typeflag: tar.TypeSymlink, Linkname: "busybox", Mode: 0o777}, nil)
		}
	}
	w.add(&tar.Header{Name: "etc/passwd", Typeflag: tar.TypeReg, Mode: 0o644},
		[]byte("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n"))
	w.add(&tar.Header{Name: "etc/group", Typeflag: tar.TypeReg, Mode: 0o644}, []byte("root:x:0:\nnogroup:x:65534:\n"))
	for _, closer := range []interface{ Close() error }{w.Writer, zip, f} {
		if w.err == nil {
			w.err = closer.Close()
		}
	}
	if w.err != nil {
		return fmt.Errorf("write %s: %w", path, w.err)
	}
	return nil
}

// tarWriter remembers the first error, so that a list of entries reads as one.
type tarWriter struct {
	*tar.Writer
	err error
}

func (w *tarWriter) add(h *tar.Header, content []byte) {
	if w.err != nil {
		return
	}
	h.ModTime, h.Size, h.Format = epoch, int64(len(content)), tar.FormatPAX
	if w.err = w.WriteHeader(h); w.err == nil {
		_, w.err = w.Write(content)
	}
}
