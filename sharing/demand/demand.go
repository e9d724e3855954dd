// Package demand reads what a pod asks of the cards: the resources of its
// containers and the annotations that steer the choice, under HAMi's rules and
// defaults.
//
// What can't be read is an error that names the container, the resource and the
// value. HAMi drops such a request silently, and the pod fails much later.
package demand

import (
	"errors"
	"fmt"
	"math"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/firstlight-dev/firstlight/sharing/fit"
	"github.com/firstlight-dev/firstlight/sharing/wire"
)

// ErrInvalid is wrapped by errors about what the pod's author wrote.
var ErrInvalid = errors.New("invalid vGPU request")

// Demand is what a pod asks for.
type Demand struct {
	Requests   []fit.Request // one per container, init containers first
	NodePolicy string        // as annotated, empty for the scheduler's default
	CardPolicy string
}

// Any reports whether a container asks for a vGPU.
func (d Demand) Any() bool {
	for _, r := range d.Requests {
		if r.Count > 0 {
			return true
		}
	}
	return false
}

// Roles returns the roles of the requests, for fit.Charges.
func (d Demand) Roles() []fit.Role {
	roles := make([]fit.Role, len(d.Requests))
	for i, r := range d.Requests {
		roles[i] = r.Role
	}
	return roles
}

// FromPod reads a pod.
func FromPod(pod *corev1.Pod) (Demand, error) {
	notes := pod.Annotations
	d := Demand{
		NodePolicy: strings.TrimSpace(notes[wire.NodePolicy]),
		CardPolicy: strings.TrimSpace(notes[wire.CardPolicy]),
	}
	steer := fit.Request{
		UseUUIDs: list(notes[wire.UseUUID]), AvoidUUIDs: list(notes[wire.AvoidUUID]),
		UseTypes: list(notes[wire.UseType]), AvoidTypes: list(notes[wire.AvoidType]),
		Modes: notes[wire.Mode], NumaBind: notes[wire.NumaBind] == "true",
	}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		steer.Role = fit.Init
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			steer.Role = fit.Sidecar
		}
		if err := d.add(c, steer); err != nil {
			return Demand{}, err
		}
	}
	steer.Role = fit.App
	for i := range pod.Spec.Containers {
		if err := d.add(&pod.Spec.Containers[i], steer); err != nil {
			return Demand{}, err
		}
	}
	return d, nil
}

func (d *Demand) add(c *corev1.Container, r fit.Request) error {
	if err := read(c, &r); err != nil {
		return fmt.Errorf("%w: container %s: %w", ErrInvalid, c.Name, err)
	}
	d.Requests = append(d.Requests, r)
	return nil
}

// read fills in the amounts. Memory, percent and cores without a count are no
// request: it is the webhook that adds the count.
func read(c *corev1.Container, r *fit.Request) error {
	count, _, err := Amount(c, wire.ResourceCount)
	if err != nil || count == 0 {
		return err
	}
	if count > wire.MaxCards {
		return fmt.Errorf("%s is %d, limit %d", wire.ResourceCount, count, wire.MaxCards)
	}
	r.Count = count
	if r.MemMiB, _, err = Amount(c, wire.ResourceMemory); err != nil {
		return err
	}
	if r.MemPercent, _, err = Amount(c, wire.ResourceMemPercent); err != nil {
		return err
	}
	if r.MemPercent > 100 {
		return fmt.Errorf("%s is %d, want 1 to 100", wire.ResourceMemPercent, r.MemPercent)
	}
	if r.MemMiB == 0 && r.MemPercent == 0 {
		r.MemPercent = 100
	}
	r.Cores, _, err = Amount(c, wire.ResourceCores)
	return err
}

// Amount returns a container's amount of a resource, and whether it is named.
// Limits win over requests. It must be a plain whole number: 15Gi as a number
// of MiB is a mistake, not a request for 16 million GiB.
func Amount(c *corev1.Container, name corev1.ResourceName) (int, bool, error) {
	q, ok := c.Resources.Limits[name]
	if !ok {
		q, ok = c.Resources.Requests[name]
	}
	if !ok {
		return 0, false, nil
	}
	n, whole := q.AsInt64()
	if !whole || n < 0 || n > math.MaxInt32 {
		return 0, true, fmt.Errorf("%s is %s: want a whole number up to %d%s", name, q.String(), math.MaxInt32, unit(name))
	}
	return int(n), true, nil
}

func unit(name corev1.ResourceName) string {
	if name == wire.ResourceMemory {
		return ", in MiB and without a suffix"
	}
	return ""
}

// list splits a comma list and drops blanks.
func list(s string) []string {
	var items []string
	for item := range strings.SplitSeq(s, ",") {
		if item = strings.TrimSpace(item); item != "" {
			items = append(items, item)
		}
	}
	return items
}
