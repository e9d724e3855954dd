// Package monitor gives the node's vGPU metrics: what containers really use,
// read from the regions that HAMi-core shares between a container's processes,
// and how busy the cards are.
//
// Each container with vGPUs has a folder "<pod UID>_<container>" below the hook
// path; HAMi-core makes one "*.cache" file in it at the first CUDA call, so a
// container without a file has used nothing yet. The folder is the container's
// to write: nothing in it is trusted, see package region.
//
// HAMi's monitor also writes into regions, to let tasks of high priority go
// first. This one only reads.
package monitor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/firstlight-dev/firstlight/sharing/monitor/region"
)

const (
	// maxContainers bounds the folders looked at: a node runs some hundred pods.
	maxContainers = 8192
	// maxFiles bounds the files looked at in a folder that anybody can fill.
	maxFiles = 64
	// keepFolder is how long the folder of an unknown pod stays. It is HAMi's
	// time, and covers a pod that the watch does not show yet.
	keepFolder = 5 * time.Minute
	// sweepEvery is how often folders of gone pods are looked for.
	sweepEvery = time.Minute
)

// PodNames tells pods by UID.
type PodNames interface {
	// Name returns a pod of this node. It must return ok false for a pod that
	// is gone, and only then.
	Name(uid string) (namespace, name string, ok bool)
	// Synced reports whether all pods of the node are known.
	Synced() bool
}

// Containers are the folders of the node's containers.
type Containers struct {
	Dir  string // "<hook path>/vgpu/containers"
	Pods PodNames
	Log  *slog.Logger
	Now  func() time.Time
}

// ContainerRegion is a container and what it shares.
type ContainerRegion struct {
	Namespace, Pod, Container string
	Region                    *region.Region
}

// Regions returns the regions of the containers that have one. A folder that
// can't be read is left out.
func (c *Containers) Regions() ([]ContainerRegion, error) {
	var regions []ContainerRegion
	err := c.each(func(path, uid, container string) {
		namespace, pod, ok := c.Pods.Name(uid)
		if !ok {
			return
		}
		file := newestCache(path)
		if file == "" {
			return
		}
		shared, err := region.Read(file)
		if err != nil {
			c.Log.Debug("region is not read", "namespace", namespace, "pod", pod, "container", container, "error", err)
			return
		}
		regions = append(regions, ContainerRegion{Namespace: namespace, Pod: pod, Container: container, Region: shared})
	})
	return regions, err
}

// each calls do for every container's folder.
func (c *Containers) each(do func(path, uid, container string)) error {
	dir, err := os.Open(c.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // HAMi-core is not on this node, or served nobody yet
	}
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	defer dir.Close()
	entries, err := dir.ReadDir(maxContainers)
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("list containers: %w", err)
	}
	for _, e := range entries {
		uid, container, ok := strings.Cut(e.Name(), "_")
		if ok && e.IsDir() {
			do(filepath.Join(c.Dir, e.Name()), uid, container)
		}
	}
	return nil
}

// newestCache returns the region's file: the last one made, if the container
// was given devices more than once.
func newestCache(path string) string {
	dir, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer dir.Close()
	entries, err := dir.ReadDir(maxFiles)
	if err != nil {
		return ""
	}
	var newest string
	var made time.Time
	for _, e := range entries {
		if !e.Type().IsRegular() || !strings.HasSuffix(e.Name(), ".cache") {
			continue
		}
		if info, err := e.Info(); err == nil && (newest == "" || info.ModTime().After(made)) {
			newest, made = filepath.Join(path, e.Name()), info.ModTime()
		}
	}
	return newest
}

// Run removes the folders of gone pods until ctx ends.
func (c *Containers) Run(ctx context.Context) error {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if err := c.Sweep(); err != nil {
				c.Log.WarnContext(ctx, "folders of gone pods stay", "error", err)
			}
		}
	}
}

// Sweep removes the folders of pods that are gone. It does nothing before all
// pods are known.
func (c *Containers) Sweep() error {
	if !c.Pods.Synced() {
		return nil
	}
	var errs []error
	err := c.each(func(path, uid, _ string) {
		if _, _, ok := c.Pods.Name(uid); ok {
			return
		}
		info, err := os.Lstat(path)
		if err != nil || c.Now().Sub(info.ModTime()) < keepFolder {
			return
		}
		errs = append(errs, os.RemoveAll(path))
	})
	return errors.Join(append(errs, err)...)
}
