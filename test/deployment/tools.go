package deployment

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/firstlight-dev/firstlight/launcher/toolsimage"
)

// ToolsImage holds firstlight-agent, for the launcher to bring into
// environments.
const ToolsImage = "localhost/firstlight-tools:1"

// ImportTools imports ToolsImage into the cluster, which spares the test a
// registry for it.
func (d *Deployment) ImportTools(ctx context.Context) error {
	image, err := toolsimage.Build(filepath.Join(d.cfg.Bin, "firstlight-agent"))
	if err != nil {
		return err
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
