package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"golang.org/x/sys/unix"

	"github.com/firstlight-dev/firstlight/indexer/batch"
	"github.com/firstlight-dev/firstlight/launcher/local"
	"github.com/firstlight-dev/firstlight/test/images"
	"github.com/firstlight-dev/firstlight/test/lab"
)

const imageRef = lab.RegistryAddress + "/scipy:1"

// scene is the registry with the indexed image in it, before any node exists.
type scene struct {
	tell *teller
	opts options
	root string // of the repository
	dir  string // throw-away
	lab  *lab.Lab
}

// prepare makes the scene: registry, image, index.
func prepare(ctx context.Context, tell *teller, root string, opts options, image *making) (_ *scene, err error) {
	// Beside the repository's other caches: overlayfs and sparse files are at
	// home on its disk, while /tmp may be memory.
	runs := filepath.Join(root, ".cache", "run")
	if err := os.MkdirAll(runs, 0o755); err != nil {
		return nil, fmt.Errorf("make run folder: %w", err)
	}
	s := &scene{tell: tell, opts: opts, root: root}
	if s.dir, err = os.MkdirTemp(runs, "quickstart-"); err != nil {
		return nil, fmt.Errorf("make run folder: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close(ctx, err))
		}
	}()
	err = tell.step(fmt.Sprintf("start a registry behind a link of %d Mbit/s", opts.mbits), func() (string, error) {
		s.lab, err = lab.Start(ctx, lab.Config{Dir: s.dir, Bin: filepath.Join(root, "bin"), Mbits: opts.mbits})
		return "", err
	})
	if err != nil {
		return nil, err
	}
	err = s.publish(ctx, image)
	return s, err
}

// making is an image that is being made while other things are built: that
// takes a network and a disk, building takes processors.
type making struct {
	done chan struct{}
	img  v1.Image // like err, set when done is closed
	err  error
}

func startImage(ctx context.Context, root string) *making {
	maker := &images.Maker{Dir: filepath.Join(root, ".cache", "images"), Log: slog.New(slog.DiscardHandler)}
	m := &making{done: make(chan struct{})}
	go func() {
		defer close(m.done)
		m.img, m.err = maker.Scipy(ctx)
	}()
	return m
}

func (m *making) wait() (v1.Image, error) {
	<-m.done // ends with its context
	return m.img, m.err
}

// publish does what a CI job does: make the image, push it, index it.
func (s *scene) publish(ctx context.Context, image *making) error {
	var img v1.Image
	err := s.tell.step("make an image (begun before): Debian, python3, numpy, scipy", func() (note string, err error) {
		if img, err = image.wait(); err != nil {
			return "", err
		}
		return imageNote(img)
	})
	if err != nil {
		return err
	}
	err = s.tell.step("push it", func() (string, error) {
		return "", images.Push(ctx, img, imageRef, remote.WithTransport(s.lab.Transport()))
	})
	if err != nil {
		return err
	}
	return s.tell.step("firstlight index create "+imageRef, func() (string, error) {
		out, err := runQuietly(s.lab.Command(ctx, "firstlight", "index", "create", "-o", "json", imageRef), s.lab.Run)
		if err != nil {
			return "", err
		}
		return indexNote(out)
	})
}

func imageNote(img v1.Image) (string, error) {
	manifest, err := img.Manifest()
	if err != nil {
		return "", fmt.Errorf("read manifest: %w", err)
	}
	var total int64
	for _, layer := range manifest.Layers {
		total += layer.Size
	}
	return fmt.Sprintf("%d gzip layers, %s", len(manifest.Layers), megabytes(total)), nil
}

func indexNote(out []byte) (string, error) {
	var created struct{ Images []batch.Image }
	if err := json.Unmarshal(out, &created); err != nil {
		return "", fmt.Errorf("decode the answer of index create: %w", err)
	}
	var size int64
	layers := 0
	for _, image := range created.Images {
		for _, layer := range image.Layers {
			if layer.Refused != "" {
				return "", fmt.Errorf("layer %s has no index: %s", layer.Digest, layer.Refused)
			}
			size += layer.IndexSize
			layers++
		}
	}
	return fmt.Sprintf("%d indexes, %.1f MB", layers, float64(size)/1e6), nil
}

// close ends everything. The folder stays when something failed, for its logs;
// what fails after ctx has ended does so because of that.
func (s *scene) close(ctx context.Context, failed error) error {
	var err error
	if s.lab != nil {
		err = s.lab.Close()
	}
	dropCgroups()
	if s.opts.keep || (failed != nil && ctx.Err() == nil) {
		s.tell.say("logs are in %s", s.dir)
		return err
	}
	return errors.Join(err, os.RemoveAll(s.dir))
}

// dropCgroups removes the containers' cgroups, which nobody else does if they
// were killed with their node, and the parent, which runc leaves. One that is in
// use, by an installed firstlight, cannot be removed.
func dropCgroups() {
	for _, hierarchy := range []string{"/sys/fs/cgroup/", "/sys/fs/cgroup/*/"} { // version 2, version 1
		for _, pattern := range []string{local.DefaultNamespace + "/env-*", local.DefaultNamespace} {
			dirs, _ := filepath.Glob(hierarchy + pattern) // a constant pattern is well-formed
			for _, dir := range dirs {
				_ = unix.Rmdir(dir)
			}
		}
	}
}
