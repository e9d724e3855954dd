package image_test

import (
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/firstlight-dev/firstlight/indexer/image"
)

func TestRefusal(t *testing.T) {
	for media, says := range map[string]string{
		"application/vnd.oci.image.layer.nondistributable.v1.tar+zstd":     "foreign",
		"application/vnd.docker.image.rootfs.foreign.diff.tar.gzip":        "foreign",
		"application/vnd.oci.image.layer.v1.tar+gzip+encrypted":            "encrypted",
		"application/vnd.docker.image.rootfs.diff.tar.gzip+enc":            "encrypted",
		ocispec.MediaTypeImageLayer:                                        "",
		ocispec.MediaTypeImageLayerGzip:                                    "",
		ocispec.MediaTypeImageLayerZstd:                                    "",
		"application/vnd.docker.image.rootfs.diff.tar":                     "",
		"application/vnd.docker.image.rootfs.diff.tar.gzip":                "",
		"application/vnd.docker.image.rootfs.diff.tar.zstd":                "",
		"application/vnd.docker.image.rootfs.diff.tar.something.not.known": "",
	} {
		got := image.Layer{Descriptor: ocispec.Descriptor{MediaType: media}}.Refusal()
		if (got == "") != (says == "") || !strings.Contains(got, says) {
			t.Errorf("%s: %q, want %q", media, got, says)
		}
	}
}
