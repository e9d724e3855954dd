package local

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/firstlight-dev/firstlight/launcher/cluster"
	"github.com/firstlight-dev/firstlight/sharing/wire"
)

// Labels of a container: all the adapter knows about an environment. containerd
// allows 4096 bytes for one label and its value.
const (
	labelPrefix     = "dev.firstlight."
	labelEnv        = labelPrefix + "env"
	labelName       = labelPrefix + "name"
	labelGeneration = labelPrefix + "generation"
	labelSSH        = labelPrefix + "ssh"     // address
	labelStatus     = labelPrefix + "status"  // address
	labelDevices    = labelPrefix + "devices" // wire.EncodePodDevices
	labelManifest   = labelPrefix + "manifest"
	labelFetched    = labelPrefix + "fetched" // bytes of blobs that containerd fetched for this start
	labelBase       = labelPrefix + "lazybase"
)

// labelFilter selects the environments' containers.
const labelFilter = `labels."` + labelEnv + `"`

// record is one environment as its container's labels describe it.
type record struct {
	env, name   string
	generation  int
	ssh, status string
	devices     wire.PodDevices
	manifest    string
	fetched     int64
	base        lazyFigures
}

// lazyFigures are the snapshotter's figures of an image. What an environment
// used is the difference to those before it was started.
type lazyFigures struct {
	bytes, requests int64
	wait            time.Duration
}

func (f lazyFigures) sub(b lazyFigures) lazyFigures {
	return lazyFigures{bytes: f.bytes - b.bytes, requests: f.requests - b.requests, wait: f.wait - b.wait}
}

var errLabels = errors.New("labels are not this launcher's")

func (r *record) labels() (map[string]string, error) {
	devices, err := wire.EncodePodDevices(r.devices)
	if err != nil {
		return nil, fmt.Errorf("encode devices: %w", err)
	}
	return map[string]string{
		labelEnv:        r.env,
		labelName:       r.name,
		labelGeneration: strconv.Itoa(r.generation),
		labelSSH:        r.ssh,
		labelStatus:     r.status,
		labelDevices:    devices,
		labelManifest:   r.manifest,
		labelFetched:    strconv.FormatInt(r.fetched, 10),
		labelBase:       fmt.Sprintf("%d/%d/%d", r.base.bytes, r.base.requests, r.base.wait.Milliseconds()),
	}, nil
}

func parseRecord(labels map[string]string) (record, error) {
	r := record{
		env: labels[labelEnv], name: labels[labelName],
		ssh: labels[labelSSH], status: labels[labelStatus], manifest: labels[labelManifest],
	}
	if r.env == "" || r.ssh == "" || r.status == "" {
		return record{}, errLabels
	}
	var err error
	if r.generation, err = strconv.Atoi(labels[labelGeneration]); err != nil {
		return record{}, fmt.Errorf("%w: %s", errLabels, labelGeneration)
	}
	if r.devices, err = wire.DecodePodDevices(labels[labelDevices]); err != nil {
		return record{}, fmt.Errorf("%w: %s: %w", errLabels, labelDevices, err)
	}
	if r.fetched, err = strconv.ParseInt(labels[labelFetched], 10, 64); err != nil {
		return record{}, fmt.Errorf("%w: %s", errLabels, labelFetched)
	}
	var ms int64
	if _, err := fmt.Sscanf(labels[labelBase], "%d/%d/%d", &r.base.bytes, &r.base.requests, &ms); err != nil {
		return record{}, fmt.Errorf("%w: %s", errLabels, labelBase)
	}
	r.base.wait = time.Duration(ms) * time.Millisecond
	return r, nil
}

// placement turns the shares into the launcher's words.
func (c *Cluster) placement(devices wire.PodDevices) cluster.Placement {
	p := cluster.Placement{Node: c.cfg.Node}
	models := make(map[string]string, len(c.cfg.Cards))
	for _, card := range c.cfg.Cards {
		models[card.UUID] = card.Type
	}
	for _, container := range devices {
		for _, d := range container {
			p.Devices = append(p.Devices, cluster.Device{UUID: d.Card(), Model: models[d.Card()], MemoryMiB: d.MemMiB, Cores: d.Cores})
		}
	}
	return p
}
