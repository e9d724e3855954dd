// Command image packs firstlight's programs into one OCI image: what the
// manifests in deploy run, and what the launcher mounts into environments.
//
//	go run ./deploy/image --layout DIR | --archive FILE --tag REF | --push REF
//
// Programs are in /bin, certificate authorities of this machine in
// /etc/ssl/certs; there is nothing else. The same programs give the same digest.
package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/firstlight-dev/firstlight/launcher/toolsimage"
)

// certificates is where Go looks for authorities first, here and in the image.
const certificates = "/etc/ssl/certs/ca-certificates.crt"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	bin := flags.String("bin", "bin", "folder of the programs, as make build leaves them")
	arch := flags.String("arch", "amd64", "what they were built for")
	dir := flags.String("layout", "", "OCI layout folder to add the image to")
	archive := flags.String("archive", "", "file to write the image to, as docker save does")
	tag := flags.String("tag", "firstlight:latest", "its name in the archive")
	push := flags.String("push", "", "reference to push the image to")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *dir == "" && *archive == "" && *push == "" {
		return errors.New("give --layout DIR, --archive FILE or --push REF")
	}
	img, err := pack(*bin, *arch)
	if err != nil {
		return err
	}
	var said string
	if *dir != "" {
		if said, err = toolsimage.WriteLayout(*dir, img); err != nil {
			return err
		}
	}
	if *archive != "" {
		if err := writeArchive(*archive, *tag, img); err != nil {
			return err
		}
		said = *archive
	}
	if *push != "" {
		ref, err := name.ParseReference(*push)
		if err != nil {
			return fmt.Errorf("reference %q: %w", *push, err)
		}
		if said, err = toolsimage.Push(ctx, ref, img, remote.WithAuthFromKeychain(authn.DefaultKeychain)); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintln(out, said)
	return err
}

func writeArchive(file, tag string, img v1.Image) error {
	ref, err := name.NewTag(tag)
	if err != nil {
		return fmt.Errorf("tag %q: %w", tag, err)
	}
	if err := tarball.WriteToFile(file, ref, img); err != nil {
		return fmt.Errorf("write archive: %w", err)
	}
	return nil
}

// pack makes the image: one layer for each program, so that a new version of
// one does not move the others.
func pack(bin, arch string) (v1.Image, error) {
	programs, err := filepath.Glob(filepath.Join(bin, "firstlight*"))
	if err != nil {
		return nil, fmt.Errorf("look for programs: %w", err)
	}
	if len(programs) == 0 {
		return nil, fmt.Errorf("no programs in %s: run make build", bin)
	}
	slices.Sort(programs)
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	add := func(source, target string, mode int64) error {
		layer, err := layerOf(source, target, mode)
		if err != nil {
			return fmt.Errorf("pack %s: %w", source, err)
		}
		img, err = mutate.AppendLayers(img, layer)
		return err
	}
	if err := add(certificates, certificates, 0o644); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, p := range programs {
		if err := add(p, "/bin/"+filepath.Base(p), 0o755); err != nil {
			return nil, err
		}
	}
	file, err := img.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	file = file.DeepCopy()
	file.OS, file.Architecture = "linux", arch
	file.Config = v1.Config{
		Env: []string{"PATH=/bin"}, Cmd: []string{"firstlight", "--help"},
		Labels: map[string]string{"org.opencontainers.image.source": "https://github.com/firstlight-dev/firstlight"},
	}
	return mutate.ConfigFile(img, file)
}

// layerOf is a layer of one file and the folders above it.
func layerOf(source, target string, mode int64) (v1.Layer, error) {
	body, err := os.ReadFile(source)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	var folders []tar.Header
	for dir := filepath.Dir(target); dir != "/"; dir = filepath.Dir(dir) {
		folders = append(folders, tar.Header{Typeflag: tar.TypeDir, Name: dir[1:] + "/", Mode: 0o755})
	}
	slices.Reverse(folders)
	for i := range folders {
		if err := w.WriteHeader(&folders[i]); err != nil {
			return nil, err
		}
	}
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: target[1:], Mode: mode, Size: int64(len(body))}); err != nil {
		return nil, err
	}
	if _, err := w.Write(body); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil },
		tarball.WithMediaType(types.OCILayer))
}
