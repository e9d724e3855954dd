// Package backend is the adaptation layer between an Instance Spec and the
// device plugin or scheduler of a cluster. A backend translates; it asks nobody
// and decides nothing, so its whole behaviour is in its golden files.
//
// # The rule
//
// What a backend cannot express it refuses with [ErrCannotExpress] and the
// field. It never drops a wish and never rounds a figure: a user who was
// promised 10 GiB with 30 % of the cores and got a card to share freely would
// find out from a neighbour.
package backend

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/firstlight-dev/firstlight/launcher/spec"
)

// ErrCannotExpress means that a backend has no way to say what a spec asks.
var ErrCannotExpress = errors.New("the backend cannot express it")

// Facts are what a translation needs to know about a cluster. Names differ
// between installations, so they are facts, not constants.
type Facts struct {
	SchedulerName string   // of the scheduler that knows about shares
	RuntimeClass  string   // of environments with a GPU; empty leaves the default
	Products      []string // values of the label nvidia.com/gpu.product on the nodes
}

// Ask is what a pod must carry so that it gets the devices. A zero field asks
// for nothing.
type Ask struct {
	Limits        corev1.ResourceList `json:"limits,omitempty"` // of the main container
	Annotations   map[string]string   `json:"annotations,omitempty"`
	SchedulerName string              `json:"schedulerName,omitempty"`
	RuntimeClass  string              `json:"runtimeClass,omitempty"`
	// Node restricts the nodes by their labels: any of the values.
	Node map[string][]string `json:"node,omitempty"`
}

// Backend translates the GPU part of a spec.
type Backend interface {
	// Translate MUST be pure. The spec is valid and has a GPU.
	Translate(s *spec.Spec, f Facts) (*Ask, error)
}

// Refuse returns an ErrCannotExpress about one field.
func Refuse(field, why string) error {
	return fmt.Errorf("%s: %w: %s", field, ErrCannotExpress, why)
}
