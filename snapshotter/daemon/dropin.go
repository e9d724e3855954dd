package daemon

import (
	"fmt"
	"io"
	"runtime"
)

// PluginName is what containerd calls the snapshotter.
const PluginName = "firstlight"

// WriteDropIn writes the part of containerd's configuration that makes it use
// the snapshotter. Naming one unpack_config replaces containerd's default list,
// so overlayfs is named again.
func WriteDropIn(w io.Writer, c Config) error {
	platform := "linux/" + runtime.GOARCH
	_, err := fmt.Fprintf(w, `# Save as /etc/containerd/conf.d/firstlight.toml (or merge into config.toml) and
# restart containerd. Made by: firstlight-snapshotter config containerd
version = 3

[proxy_plugins.%[1]s]
  type = "snapshot"
  address = %[2]q
  [proxy_plugins.%[1]s.exports]
    root = %[3]q
    enable_remote_snapshot_annotations = "true"

# ctr, nerdctl and CRI pull through the transfer service.
[[plugins.'io.containerd.transfer.v1.local'.unpack_config]]
  platform = %[4]q
  snapshotter = %[1]q
[[plugins.'io.containerd.transfer.v1.local'.unpack_config]]
  platform = %[4]q
  snapshotter = "overlayfs"

# Kubernetes: pods use the snapshotter.
[plugins.'io.containerd.cri.v1.images']
  snapshotter = %[1]q
`, PluginName, c.Address, c.Root, platform)
	return err
}
