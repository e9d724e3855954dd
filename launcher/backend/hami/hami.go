// Package hami translates specs for HAMi and for this project's own scheduler
// and device plugin, which speak the same language: extended resources for the
// count, the memory in MiB and the cores in percent of each vGPU, and an
// annotation for the model.
//
// Figures are plain integers. HAMi reads the quantity's value, so "15k" would be
// 15000 MiB, and a suffix such as Gi takes the request out of range, upon which
// it is ignored as a whole.
package hami

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/firstlight-dev/firstlight/launcher/backend"
	"github.com/firstlight-dev/firstlight/launcher/spec"
	"github.com/firstlight-dev/firstlight/sharing/wire"
)

// wholeCard is both all of the memory and all of the cores, in percent. It is
// sent, not left out: what a missing figure means depends on the installation.
const wholeCard = 100

// Backend is the translation.
type Backend struct{}

var _ backend.Backend = Backend{}

// Translate implements backend.Backend.
func (Backend) Translate(s *spec.Spec, f backend.Facts) (*backend.Ask, error) {
	if f.SchedulerName == "" {
		return nil, backend.Refuse("gpu", "the cluster names no scheduler that knows about shares")
	}
	g := s.GPU
	ask := &backend.Ask{
		Limits:        corev1.ResourceList{wire.ResourceCount: plain(g.Count)},
		SchedulerName: f.SchedulerName,
		RuntimeClass:  f.RuntimeClass,
	}
	if g.Whole {
		ask.Limits[wire.ResourceMemPercent] = plain(wholeCard)
		ask.Limits[wire.ResourceCores] = plain(wholeCard)
	} else {
		ask.Limits[wire.ResourceMemory] = plain(g.Share.MemoryMiB)
		// 0 is sent too: with the figure left out, HAMi would put in the
		// installation's default.
		ask.Limits[wire.ResourceCores] = plain(g.Share.Cores)
	}
	if g.Model != "" {
		ask.Annotations = map[string]string{wire.UseType: g.Model}
	}
	return ask, nil
}

func plain(n int) resource.Quantity { return *resource.NewQuantity(int64(n), resource.DecimalSI) }
