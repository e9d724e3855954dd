package inventory_test

import (
	"errors"
	"testing"

	"github.com/firstlight-dev/firstlight/sharing/inventory"
)

// On a machine with a card and a binary built with cgo, every card must be
// complete; elsewhere the error must say why there is none.
func TestOpenNVML(t *testing.T) {
	source, err := inventory.OpenNVML(inventory.Scaling{})
	if err != nil {
		if !errors.Is(err, inventory.ErrNoNVML) {
			t.Errorf("error is not ErrNoNVML: %v", err)
		}
		return
	}
	cards, err := source.Cards(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range cards {
		t.Logf("%+v", c)
		if c.UUID == "" || c.MemMiB <= 0 || !c.Healthy || c.Slots != 10 {
			t.Errorf("card is incomplete: %+v", c)
		}
	}
	if meter, ok := source.(inventory.Meter); ok {
		loads, err := meter.Loads(t.Context())
		if err != nil || len(loads) != len(cards) {
			t.Errorf("loads of %d cards: %v, %v", len(cards), loads, err)
		}
	}
}
