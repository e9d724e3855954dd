// Package wholecard translates specs for the vendor's own device plugin, which
// hands out whole cards by count and knows nothing of shares. The model becomes
// a condition on the node's product label; the label's values are facts of the
// cluster, since a node selector compares whole words and a spec names a part.
package wholecard

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/firstlight-dev/firstlight/launcher/backend"
	"github.com/firstlight-dev/firstlight/launcher/spec"
	"github.com/firstlight-dev/firstlight/sharing/wire"
)

// productLabel is set by the vendor's feature discovery.
const productLabel = "nvidia.com/gpu.product"

// Backend is the translation.
type Backend struct{}

var _ backend.Backend = Backend{}

// Translate implements backend.Backend.
func (Backend) Translate(s *spec.Spec, f backend.Facts) (*backend.Ask, error) {
	g := s.GPU
	if !g.Whole || g.Share != nil {
		return nil, backend.Refuse("gpu.share", "the device plugin hands out whole cards only")
	}
	ask := &backend.Ask{
		Limits:       corev1.ResourceList{wire.ResourceCount: *resource.NewQuantity(int64(g.Count), resource.DecimalSI)},
		RuntimeClass: f.RuntimeClass,
	}
	if g.Model == "" {
		return ask, nil
	}
	var products []string
	for _, p := range f.Products {
		if g.MatchesModel(p) {
			products = append(products, p)
		}
	}
	if len(products) == 0 {
		return nil, backend.Refuse("gpu.model", "no node has a "+productLabel+" label that contains "+g.Model)
	}
	slices.Sort(products)
	ask.Node = map[string][]string{productLabel: slices.Compact(products)}
	return ask, nil
}
