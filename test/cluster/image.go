package cluster

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// writeImages makes the archives of the two images every cluster has. Both are
// the machine's static busybox; no registry takes part.
func writeImages(dir string) ([]string, error) {
	path, err := exec.LookPath("busybox")
	if err != nil {
		return nil, fmt.Errorf("find busybox: %w", err)
	}
	busybox, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read busybox: %w", err)
	}
	layer, err := busyboxLayer(busybox)
	if err != nil {
		return nil, fmt.Errorf("make busybox layer: %w", err)
	}
	var archives []string
	for ref, command := range map[string][]string{
		PauseImage:   {"/bin/busybox", "sleep", "infinity"},
		BusyboxImage: {"/bin/sh"},
	} {
		archive := filepath.Join(dir, filepath.Base(ref)+".tar")
		if err := writeImage(archive, ref, command, layer); err != nil {
			return nil, fmt.Errorf("write image %s: %w", ref, err)
		}
		archives = append(archives, archive)
	}
	return archives, nil
}

func writeImage(archive, ref string, command []string, layer v1.Layer) error {
	tag, err := name.NewTag(ref)
	if err != nil {
		return err
	}
	image, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", runtime.GOARCH
	config.Config.Cmd = command
	config.Config.Env = []string{"PATH=/usr/bin:/bin"}
	if image, err = mutate.ConfigFile(image, config); err != nil {
		return err
	}
	return tarball.WriteToFile(archive, tag, image)
}

func busyboxLayer(busybox []byte) (v1.Layer, error) {
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	headers := []*tar.Header{
		{Name: "bin/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "etc/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "root/", Typeflag: tar.TypeDir, Mode: 0o700},
		{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777},
		{Name: "bin/busybox", Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(busybox))},
	}
	for _, applet := range []string{
		"cat", "cp", "date", "dd", "df", "echo", "env", "false", "find", "head", "hostname", "httpd", "id", "ip", "kill",
		"ls", "md5sum", "mkdir", "mount", "nc", "ps", "pwd", "rm", "sh", "sha256sum", "sleep", "stat", "tail", "test",
		"touch", "true", "uname", "wc", "which",
	} {
		headers = append(headers, &tar.Header{Name: "bin/" + applet, Typeflag: tar.TypeSymlink, Linkname: "busybox", Mode: 0o777})
	}
	for _, h := range headers {
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if h.Size > 0 {
			if _, err := w.Write(busybox); err != nil {
				return nil, err
			}
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(layer.Bytes())), nil
	})
}
