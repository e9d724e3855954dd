package deployment

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// ToolsImage holds firstlight-agent, as /bin/firstlight-agent, for the launcher to
// bring into environments.
const ToolsImage = "localhost/firstlight-tools:1"

// ImportTools imports ToolsImage into the cluster.
func (d *Deployment) ImportTools(ctx context.Context) error {
	agent, err := os.ReadFile(filepath.Join(d.cfg.Bin, "firstlight-agent"))
	if err != nil {
		return fmt.Errorf("read agent: %w", err)
	}
	image, err := toolsImage(agent)
	if err != nil {
		return fmt.Errorf("make tools image: %w", err)
	}
	tag, err := name.NewTag(ToolsImage)
	if err != nil {
		return fmt.Errorf("name tools image: %w", err)
	}
	archive := filepath.Join(d.cluster.Dir(), "tools.tar")
	if err := tarball.WriteToFile(archive, tag, image); err != nil {
		return fmt.Errorf("write tools image: %w", err)
	}
	return d.cluster.ImportImage(ctx, archive)
}

func toolsImage(agent []byte) (v1.Image, error) {
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	header := &tar.Header{Name: "bin/firstlight-agent", Mode: 0o755, Size: int64(len(agent))}
	if err := w.WriteHeader(header); err != nil {
		return nil, err
	}
	if _, err := w.Write(agent); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(layer.Bytes())), nil
	}, tarball.WithCompressionLevel(1)) // it never leaves the machine
	if err != nil {
		return nil, err
	}
	image, err := mutate.AppendLayers(empty.Image, l)
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", runtime.GOARCH
	config.Config.Entrypoint = []string{"/firstlight-agent"}
	return mutate.ConfigFile(image, config)
}
