package inventory_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/firstlight-dev/firstlight/sharing/inventory"
)

func TestOpenSimulated(t *testing.T) {
	path := filepath.Join(t.TempDir(), "gpus.yaml")
	if err := os.WriteFile(path, []byte("devices:\n- {model: NVIDIA A100-SXM4-40GB, memoryMiB: 40960, count: 2}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	source, err := inventory.OpenSimulated(path, "node1")
	if err != nil {
		t.Fatal(err)
	}
	cards, err := source.Cards(t.Context())
	if err != nil || len(cards) != 2 || !cards[1].Healthy || cards[1].MemMiB != 40960 {
		t.Errorf("cards = %+v, %v", cards, err)
	}
	if _, err := inventory.OpenSimulated(path+".missing", "node1"); err == nil {
		t.Error("a missing file is no error")
	}
	if err := os.WriteFile(path, []byte("devices: 3"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := inventory.OpenSimulated(path, "node1"); err == nil {
		t.Error("a wrong file is no error")
	}
}
