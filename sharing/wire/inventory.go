package wire

import (
	"fmt"
	"strings"

	"github.com/google/uuid"
	"sigs.k8s.io/yaml"
)

const (
	// DefaultSlots is HAMi's default split count.
	DefaultSlots = 10
	// wholeCores is the core percentage of an unscaled card.
	wholeCores = 100
	// maxInventory bounds an inventory file: MaxCards groups fit ten times over.
	maxInventory = 1 << 20
)

// Inventory describes simulated cards, for machines without a GPU. Its file is
// YAML, one item per group of like cards:
//
//	devices:
//	- model: NVIDIA A100-SXM4-40GB
//	  memoryMiB: 40960
//	  count: 2
type Inventory struct {
	Devices []CardGroup `json:"devices"`
}

// CardGroup is Count cards of one model.
type CardGroup struct {
	Model     string `json:"model"`
	MemoryMiB int    `json:"memoryMiB"`
	Count     int    `json:"count,omitempty"` // default 1
	Slots     int    `json:"slots,omitempty"` // vGPUs per card, default DefaultSlots
	Cores     int    `json:"cores,omitempty"` // percent, default 100
	NUMA      int    `json:"numa,omitempty"`
	UUID      string `json:"uuid,omitempty"` // only with a count of 1; default: made from seed and index
}

// ParseInventory reads an inventory file. Unknown keys are errors.
func ParseInventory(b []byte) (*Inventory, error) {
	if len(b) > maxInventory {
		return nil, fmt.Errorf("inventory of %d bytes, limit %d", len(b), maxInventory)
	}
	var inv Inventory
	if err := yaml.UnmarshalStrict(b, &inv); err != nil {
		return nil, fmt.Errorf("parse inventory: %w", err)
	}
	if _, err := inv.Cards(""); err != nil {
		return nil, err
	}
	return &inv, nil
}

// Cards returns the cards, all healthy, numbered from 0. The seed, usually the
// node's name, makes the UUIDs of different nodes differ: the same seed gives
// the same UUIDs on every call, alike but for the card's index at the end.
func (inv *Inventory) Cards(seed string) ([]Device, error) {
	if len(inv.Devices) == 0 {
		return nil, fmt.Errorf("inventory names no devices")
	}
	base := uuid.NewSHA1(uuid.NameSpaceURL, []byte("firstlight/simulated-gpu/"+seed)).String()
	var cards []Device
	for i, g := range inv.Devices {
		if err := g.check(); err != nil {
			return nil, fmt.Errorf("inventory device %d: %w", i, err)
		}
		for range max(g.Count, 1) {
			if len(cards) == MaxCards {
				return nil, fmt.Errorf("inventory has more than %d cards", MaxCards)
			}
			index := len(cards)
			id := fmt.Sprintf("GPU-%s%04x", base[:len(base)-4], index)
			if g.UUID != "" {
				id = g.UUID
			}
			cards = append(cards, Device{
				UUID: id, Index: index, Type: ModelType(g.Model), Mode: ModeCore, Healthy: true,
				Slots: or(g.Slots, DefaultSlots), MemMiB: g.MemoryMiB, Cores: or(g.Cores, wholeCores), NUMA: g.NUMA,
			})
		}
	}
	if err := checkDevices(cards); err != nil {
		return nil, fmt.Errorf("inventory: %w", err)
	}
	return cards, nil
}

func (g CardGroup) check() error {
	switch {
	case strings.TrimSpace(g.Model) == "":
		return fmt.Errorf("model is missing")
	case g.MemoryMiB <= 0:
		return fmt.Errorf("memoryMiB of %s is %d, want more than 0", g.Model, g.MemoryMiB)
	case g.Count < 0 || g.Count > MaxCards:
		return fmt.Errorf("count of %s is %d, want 1 to %d", g.Model, g.Count, MaxCards)
	case g.Slots < 0 || g.Cores < 0:
		return fmt.Errorf("slots or cores of %s are negative", g.Model)
	case g.UUID != "" && g.Count > 1:
		return fmt.Errorf("uuid of %s needs a count of 1, not %d", g.Model, g.Count)
	}
	return nil
}

func or(v, otherwise int) int {
	if v != 0 {
		return v
	}
	return otherwise
}
