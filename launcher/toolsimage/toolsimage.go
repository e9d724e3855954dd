// Package toolsimage makes the image that carries firstlight-agent into
// environments on Kubernetes, where it is mounted as an image volume or copied
// by an init container.
//
// The image has one layer: the agent, at bin/firstlight-agent, so that the
// image's root mounted at agentapi.InjectedDir puts it at agentapi.BinaryPath.
// Its entrypoint is the agent as well. Nothing in it depends on the time or the
// machine: the same agent gives the same digest, so pushing again is free and
// a cluster can pin it.
package toolsimage

import (
	"archive/tar"
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"path"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// binary is the agent's place in the image.
const binary = "bin/firstlight-agent"

// maxAgentBytes bounds the agent's file. It is under 12 MB; another program
// given by mistake need not be.
const maxAgentBytes = 64 << 20

// ErrNotStatic means that the program would need libraries of the image it is
// mounted into.
var ErrNotStatic = errors.New("not a statically linked program")

// Build makes the image from the agent's file.
func Build(agent string) (v1.Image, error) {
	body, err := read(agent)
	if err != nil {
		return nil, err
	}
	arch, err := architecture(body)
	if err != nil {
		return nil, fmt.Errorf("agent %s: %w", agent, err)
	}
	archive, err := pack(body)
	if err != nil {
		return nil, fmt.Errorf("pack agent: %w", err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(archive)), nil
	}, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, fmt.Errorf("make layer: %w", err)
	}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err := mutate.AppendLayers(base, layer)
	if err != nil {
		return nil, fmt.Errorf("make image: %w", err)
	}
	file, err := image.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	file = file.DeepCopy()
	file.OS, file.Architecture = "linux", arch
	file.Config = v1.Config{Entrypoint: []string{"/" + binary}}
	if image, err = mutate.ConfigFile(image, file); err != nil {
		return nil, fmt.Errorf("write configuration: %w", err)
	}
	return image, nil
}

func read(agent string) ([]byte, error) {
	f, err := os.Open(agent)
	if err != nil {
		return nil, fmt.Errorf("open agent: %w", err)
	}
	defer f.Close()
	body, err := io.ReadAll(io.LimitReader(f, maxAgentBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read agent: %w", err)
	}
	if len(body) > maxAgentBytes {
		return nil, fmt.Errorf("agent %s is larger than %d bytes", agent, maxAgentBytes)
	}
	return body, nil
}

// architecture reads for which machines the program is, and refuses one that
// needs a loader: it must run in any image.
func architecture(body []byte) (string, error) {
	f, err := elf.NewFile(bytes.NewReader(body))
	if err != nil {
		return "", fmt.Errorf("not an ELF program: %w", err)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return "", ErrNotStatic
		}
	}
	switch f.Machine {
	case elf.EM_X86_64:
		return "amd64", nil
	case elf.EM_AARCH64:
		return "arm64", nil
	default:
		return "", fmt.Errorf("no support for machine %s", f.Machine)
	}
}

func pack(body []byte) ([]byte, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	entries := []struct {
		header tar.Header
		body   []byte
	}{
		{tar.Header{Typeflag: tar.TypeDir, Name: path.Dir(binary) + "/", Mode: 0o755}, nil},
		{tar.Header{Typeflag: tar.TypeReg, Name: binary, Mode: 0o755, Size: int64(len(body))}, body},
	}
	for _, e := range entries {
		if err := w.WriteHeader(&e.header); err != nil {
			return nil, err
		}
		if _, err := w.Write(e.body); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

// Push pushes the image and returns its pinned reference.
func Push(ctx context.Context, ref name.Reference, image v1.Image, options ...remote.Option) (string, error) {
	if err := remote.Write(ref, image, append(options, remote.WithContext(ctx))...); err != nil {
		return "", fmt.Errorf("push %s: %w", ref, err)
	}
	digest, err := image.Digest()
	if err != nil {
		return "", fmt.Errorf("read digest: %w", err)
	}
	return ref.Context().Digest(digest.String()).Name(), nil
}

// WriteLayout adds the image to an OCI layout folder, which is made if need be,
// and returns its digest. Adding it again changes nothing.
func WriteLayout(dir string, image v1.Image) (string, error) {
	l, err := layout.FromPath(dir)
	if err != nil {
		if l, err = layout.Write(dir, empty.Index); err != nil {
			return "", fmt.Errorf("make layout %s: %w", dir, err)
		}
	}
	digest, err := image.Digest()
	if err != nil {
		return "", fmt.Errorf("read digest: %w", err)
	}
	same := func(d v1.Descriptor) bool { return d.Digest == digest }
	if err := l.ReplaceImage(image, same); err != nil {
		return "", fmt.Errorf("write layout %s: %w", dir, err)
	}
	return digest.String(), nil
}
