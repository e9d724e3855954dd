//go:build !cgo || !linux

package inventory

import "fmt"

// OpenNVML reports that this binary can't open NVML.
func OpenNVML(Scaling) (Source, error) {
	return nil, fmt.Errorf("%w: this binary was built without cgo; rebuild with CGO_ENABLED=1, or give an inventory file for simulated cards", ErrNoNVML)
}
