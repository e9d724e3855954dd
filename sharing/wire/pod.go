package wire

import (
	"errors"
	"fmt"
	"math"
	"strings"
)

// ErrMissingFields means a vGPU without all of its fields. Its text is the one
// HAMi's users know: the usual cause is a pod that set spec.nodeName itself and
// so never passed the scheduler.
var ErrMissingFields = fmt.Errorf("%w: pod annotation format error, missing fields, do not use nodeName in task spec", ErrFormat)

const (
	// maxContainers bounds the containers of a decoded pod; the API server's
	// object limit keeps real pods far below.
	maxContainers = 4096
	// maxContainerCards bounds the vGPUs of one container: at most one per card.
	maxContainerCards = MaxCards
)

// ContainerDevice is one vGPU of a container.
type ContainerDevice struct {
	UUID   string // the card
	Type   string // Vendor
	MemMiB int
	Cores  int // percent
}

// Card returns the UUID of the physical card: HAMi 2.5 to 2.9 appended
// "[template-slot]" for MIG.
func (d ContainerDevice) Card() string {
	card, _, _ := strings.Cut(d.UUID, "[")
	return card
}

// ContainerDevices are the vGPUs of one container, in the order in which the
// container numbers its cards. Empty for a container without any.
type ContainerDevices []ContainerDevice

// PodDevices are the vGPUs of a pod: one element per container, init
// containers first, then the others, both in the order of the pod's spec.
type PodDevices []ContainerDevices

// EncodePodDevices returns the form of the Allocated and ToAllocate
// annotations: "UUID,type,MiB,percent:" per vGPU, ";" after each container.
func EncodePodDevices(p PodDevices) (string, error) {
	var b strings.Builder
	for i, c := range p {
		for _, d := range c {
			if err := d.check(); err != nil {
				return "", fmt.Errorf("container %d: %w", i, err)
			}
			fmt.Fprintf(&b, "%s,%s,%d,%d:", d.UUID, d.Type, d.MemMiB, d.Cores)
		}
		b.WriteByte(';')
	}
	return b.String(), nil
}

// DecodePodDevices reads what EncodePodDevices writes. A last container
// without its ";" is accepted, an empty string is a pod without containers.
func DecodePodDevices(s string) (PodDevices, error) {
	if len(s) > maxAnnotation {
		return nil, fmt.Errorf("%w: %d bytes of vGPUs, limit %d", ErrFormat, len(s), maxAnnotation)
	}
	if s == "" {
		return nil, nil
	}
	parts := strings.Split(strings.TrimSuffix(s, ";"), ";")
	if len(parts) > maxContainers {
		return nil, fmt.Errorf("%w: %d containers, limit %d", ErrFormat, len(parts), maxContainers)
	}
	pod := make(PodDevices, 0, len(parts))
	for i, part := range parts {
		c, err := decodeContainer(part)
		if err != nil {
			return nil, fmt.Errorf("container %d: %w", i, err)
		}
		pod = append(pod, c)
	}
	return pod, nil
}

func decodeContainer(s string) (ContainerDevices, error) {
	var c ContainerDevices
	for part := range strings.SplitSeq(s, ":") {
		if part == "" {
			continue
		}
		if len(c) == maxContainerCards {
			return nil, fmt.Errorf("%w: more than %d vGPUs", ErrFormat, maxContainerCards)
		}
		f := strings.Split(part, ",")
		if len(f) < 4 {
			return nil, ErrMissingFields
		}
		d := ContainerDevice{UUID: f[0], Type: f[1]}
		for _, n := range []field{{"memory", f[2], &d.MemMiB}, {"cores", f[3], &d.Cores}} {
			if err := n.parse(); err != nil {
				return nil, err
			}
		}
		if err := d.check(); err != nil {
			return nil, err
		}
		c = append(c, d)
	}
	return c, nil
}

func (d ContainerDevice) check() error {
	if d.UUID == "" || !plain(d.UUID) || !plain(d.Type) {
		return fmt.Errorf("%w: vGPU on card %q of type %q", ErrFormat, d.UUID, d.Type)
	}
	if d.MemMiB < 0 || d.MemMiB > math.MaxInt32 || d.Cores < 0 || d.Cores > math.MaxInt32 {
		return fmt.Errorf("%w: vGPU on card %s has a number out of range", ErrFormat, d.UUID)
	}
	return nil
}

// ErrNoneLeft means that every container of a pod has been served.
var ErrNoneLeft = errors.New("no container is left to allocate")

// Next returns the index of the first container that has vGPUs.
func (p PodDevices) Next() (int, error) {
	for i, c := range p {
		if len(c) > 0 {
			return i, nil
		}
	}
	return 0, ErrNoneLeft
}

// Without returns a copy of p whose containers i have no vGPUs: the ToAllocate
// annotation after they were served.
func (p PodDevices) Without(containers ...int) PodDevices {
	rest := append(PodDevices(nil), p...)
	for _, i := range containers {
		rest[i] = nil
	}
	return rest
}

// Empty reports whether no container has vGPUs.
func (p PodDevices) Empty() bool {
	_, err := p.Next()
	return err != nil
}
