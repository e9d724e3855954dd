// Package inventory lists the cards of this machine: real ones from NVIDIA's
// management library, or simulated ones from a file.
//
// NVML is a shared library that is opened at run time, which needs a binary
// built with cgo. Built without, as our release binaries are, [OpenNVML] says so
// and simulated cards still work. To build with it:
//
//	CGO_ENABLED=1 go build ./cmd/firstlight-device-plugin
package inventory

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/firstlight-dev/firstlight/sharing/wire"
)

// ErrNoNVML means that NVML can't be used: not built in, not installed, or no driver.
var ErrNoNVML = errors.New("NVIDIA management library is not available")

// Source lists cards. Implementations must be safe for concurrent use.
type Source interface {
	// Cards returns the cards as they are now, ordered by index. A card that
	// fails must be listed as unhealthy rather than left out.
	Cards(ctx context.Context) ([]wire.Device, error)
}

// Load is how busy a card is now.
type Load struct {
	UUID            string
	UsedBytes       uint64
	UtilizationRate int // percent of time in which a kernel ran
}

// Meter is a Source that can measure.
type Meter interface {
	// Loads returns the cards that answer.
	Loads(ctx context.Context) ([]Load, error)
}

// Scaling turns a physical card into what is registered of it.
type Scaling struct {
	Slots  int     // vGPUs per card, 0 for wire.DefaultSlots
	Memory float64 // 0 for 1; above 1 lends more memory than there is
	Cores  float64 // 0 for 1
}

// simulated is a fixed list.
type simulated struct{ cards []wire.Device }

// OpenSimulated reads an inventory file; see wire.Inventory. The seed, usually
// the node's name, keeps the UUIDs of different machines apart.
func OpenSimulated(path, seed string) (Source, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read inventory: %w", err)
	}
	inv, err := wire.ParseInventory(b)
	if err != nil {
		return nil, fmt.Errorf("read inventory %s: %w", path, err)
	}
	cards, err := inv.Cards(seed)
	if err != nil {
		return nil, err
	}
	return simulated{cards}, nil
}

var _ Source = simulated{}

// Cards implements Source.
func (s simulated) Cards(context.Context) ([]wire.Device, error) { return s.cards, nil }
