package wire_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/firstlight-dev/firstlight/sharing/wire"
)

const twoA100 = `
devices:
- model: NVIDIA A100-SXM4-40GB
  memoryMiB: 40960
  count: 2
- model: Tesla T4
  memoryMiB: 15360
  numa: 1
  slots: 4
  uuid: GPU-mine
`

func TestInventory(t *testing.T) {
	inv, err := wire.ParseInventory([]byte(twoA100))
	if err != nil {
		t.Fatal(err)
	}
	cards, err := inv.Cards("node1")
	if err != nil {
		t.Fatal(err)
	}
	want := []wire.Device{
		a100("", 0, 0), a100("", 1, 0),
		{UUID: "GPU-mine", Index: 2, Slots: 4, MemMiB: 15360, Cores: 100, Type: "NVIDIA-Tesla T4", NUMA: 1, Mode: wire.ModeCore, Healthy: true},
	}
	ignoreMade := cmp.FilterPath(func(p cmp.Path) bool { return p.String() == "UUID" },
		cmp.Comparer(func(a, b string) bool { return a == b || a == "" || b == "" }))
	if diff := cmp.Diff(want, cards, ignoreMade, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("cards (-want +got):\n%s", diff)
	}
	again, _ := inv.Cards("node1")
	if diff := cmp.Diff(cards, again); diff != "" {
		t.Errorf("second call (-want +got):\n%s", diff)
	}
	other, _ := inv.Cards("node2")
	if cards[0].UUID == other[0].UUID || cards[0].UUID == cards[1].UUID {
		t.Errorf("UUIDs repeat: %s %s %s", cards[0].UUID, cards[1].UUID, other[0].UUID)
	}
	if u := cards[1].UUID; !strings.HasPrefix(u, "GPU-") || !strings.HasSuffix(u, "0001") || len(u) != len("GPU-12345678-1234-1234-1234-123456780000") {
		t.Errorf("UUID %q has not the shape of a real one", u)
	}
}

func TestParseInventoryRefuses(t *testing.T) {
	for name, in := range map[string]string{
		"empty":         "",
		"unknown key":   "devices:\n- {model: A, memoryMiB: 1, memory: 2}\n",
		"no model":      "devices:\n- {memoryMiB: 1}\n",
		"no memory":     "devices:\n- {model: A}\n",
		"too many":      "devices:\n- {model: A, memoryMiB: 1, count: 2000}\n",
		"many groups":   "devices:\n" + strings.Repeat("- {model: A, memoryMiB: 1, count: 1000}\n", 2),
		"uuid of many":  "devices:\n- {model: A, memoryMiB: 1, count: 2, uuid: GPU-a}\n",
		"uuid twice":    "devices:\n" + strings.Repeat("- {model: A, memoryMiB: 1, uuid: GPU-a}\n", 2),
		"memory range":  "devices:\n- {model: A, memoryMiB: 3000000000}\n",
		"model is list": "devices:\n- {model: 'A,B', memoryMiB: 1}\n",
	} {
		t.Run(name, func(t *testing.T) {
			if inv, err := wire.ParseInventory([]byte(in)); err == nil {
				t.Errorf("ParseInventory = %+v, want an error", inv)
			}
		})
	}
}

func FuzzParseInventory(f *testing.F) {
	f.Add([]byte(twoA100))
	f.Fuzz(func(t *testing.T, b []byte) {
		inv, err := wire.ParseInventory(b)
		if err != nil {
			return
		}
		cards, err := inv.Cards("node")
		if err != nil || len(cards) == 0 {
			t.Errorf("accepted inventory gives %d cards, %v", len(cards), err)
		}
	})
}
