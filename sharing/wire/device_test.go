package wire_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/firstlight-dev/firstlight/sharing/wire"
)

// The register annotation of a node with two cards, in HAMi 2.10's form.
const goldenJSON = `[{"id":"GPU-12345678-1234-1234-1234-123456780000","count":10,"devmem":40960,"devcore":100,` +
	`"type":"NVIDIA A100-SXM4-40GB","mode":"hami-core","health":true},` +
	`{"id":"GPU-12345678-1234-1234-1234-123456780001","index":1,"count":10,"devmem":40960,"devcore":100,` +
	`"type":"NVIDIA A100-SXM4-40GB","numa":1,"mode":"hami-core","health":true}]`

func a100(uuid string, index, numa int) wire.Device {
	return wire.Device{
		UUID: uuid, Index: index, Slots: 10, MemMiB: 40960, Cores: 100,
		Type: "NVIDIA A100-SXM4-40GB", NUMA: numa, Mode: wire.ModeCore, Healthy: true,
	}
}

func goldenDevices() []wire.Device {
	return []wire.Device{
		a100("GPU-12345678-1234-1234-1234-123456780000", 0, 0),
		a100("GPU-12345678-1234-1234-1234-123456780001", 1, 1),
	}
}

func TestEncodeDevicesIsHAMis(t *testing.T) {
	cards := goldenDevices()
	cards[0], cards[1] = cards[1], cards[0] // the order must not matter
	got, err := wire.EncodeDevices(cards)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(goldenJSON, got); diff != "" {
		t.Errorf("register annotation (-want +got):\n%s", diff)
	}
}

func TestDecodeDevices(t *testing.T) {
	unhealthy := a100("GPU-a", 0, 0)
	unhealthy.Healthy = false
	mig := a100("GPU-m", 0, 0)
	mig.Mode = wire.ModeMIG
	mig.MIG = []wire.MIGProfile{{
		Name: "1g.5gb", MemoryMiB: 4864, Cores: 14, SliceCount: 1,
		Placements: []wire.MIGPlacement{{Start: 0, Size: 1}, {Start: 6, Size: 1}},
	}}
	for name, tc := range map[string]struct {
		in   string
		want []wire.Device
	}{
		"json":         {goldenJSON, goldenDevices()},
		"empty json":   {"[]", nil},
		"empty legacy": {"", nil},
		"absent health is unhealthy": {
			`[{"id":"GPU-a","count":10,"devmem":40960,"devcore":100,"type":"NVIDIA A100-SXM4-40GB","mode":"hami-core"}]`,
			[]wire.Device{unhealthy},
		},
		"fields of 2.9 are ignored": {
			`[{"id":"GPU-a","count":10,"devmem":40960,"devcore":100,"type":"NVIDIA A100-SXM4-40GB","mode":"hami-core","migtemplate":[],"devicepairscore":{}}]`,
			[]wire.Device{unhealthy},
		},
		"mig": {
			`[{"id":"GPU-m","count":10,"devmem":40960,"devcore":100,"type":"NVIDIA A100-SXM4-40GB","mode":"mig","health":true,` +
				`"migProfiles":[{"name":"1g.5gb","memoryMB":4864,"core":14,"sliceCount":1,"placements":[{"start":0,"size":1},{"start":6,"size":1}]}]}]`,
			[]wire.Device{mig},
		},
		"legacy of seven fields": {
			"GPU-8fcee07d,4,81920,100,NVIDIA-NVIDIA A100-SXM4-80GB,0,true:",
			[]wire.Device{{UUID: "GPU-8fcee07d", Slots: 4, MemMiB: 81920, Cores: 100, Type: "NVIDIA-NVIDIA A100-SXM4-80GB", Mode: wire.ModeCore, Healthy: true}},
		},
		"legacy of nine fields": {
			"GPU-b,10,40960,100,NVIDIA A100-SXM4-40GB,1,false,3,mig:GPU-a,10,40960,100,NVIDIA A100-SXM4-40GB,0,false,0,hami-core:",
			[]wire.Device{unhealthy, {UUID: "GPU-b", Index: 3, Slots: 10, MemMiB: 40960, Cores: 100, Type: "NVIDIA A100-SXM4-40GB", NUMA: 1, Mode: wire.ModeMIG}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := wire.DecodeDevices(tc.in)
			if err != nil {
				t.Fatal(err)
			}
			if len(got) == 0 && len(tc.want) == 0 {
				return
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("cards (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDecodeDevicesRefuses(t *testing.T) {
	for name, in := range map[string]string{
		"not json":        `[{"id":`,
		"no uuid":         `[{"count":1}]`,
		"negative memory": `[{"id":"GPU-a","devmem":-1}]`,
		"memory too big":  `[{"id":"GPU-a","devmem":4294967296}]`,
		"too many slots":  `[{"id":"GPU-a","count":40000}]`,
		"twice":           `[{"id":"GPU-a"},{"id":"GPU-a"}]`,
		"separator":       `[{"id":"GPU-a,b"}]`,
		"six fields":      "GPU-a,4,81920,100,NVIDIA,0:",
		"wrong number":    "GPU-a,four,81920,100,NVIDIA,0,true:",
		"wrong health":    "GPU-a,4,81920,100,NVIDIA,0,perhaps:",
		"too long":        "[" + strings.Repeat(" ", 300<<10) + "]",
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := wire.DecodeDevices(in); !errors.Is(err, wire.ErrFormat) {
				t.Errorf("DecodeDevices = %v, %v; want ErrFormat", got, err)
			}
		})
	}
}

func TestModelType(t *testing.T) {
	for model, want := range map[string]string{
		"NVIDIA A100-SXM4-40GB": "NVIDIA A100-SXM4-40GB",
		"Tesla T4":              "NVIDIA-Tesla T4",
	} {
		if got := wire.ModelType(model); got != want {
			t.Errorf("ModelType(%q) = %q, want %q", model, got, want)
		}
	}
}

func TestReplicaCard(t *testing.T) {
	const card = "GPU-12345678-1234-1234-1234-123456780000"
	for id, want := range map[string]string{
		wire.ReplicaID(card, 0): card,
		wire.ReplicaID(card, 9): card,
		card + "::3":            card,
	} {
		if got, err := wire.ReplicaCard(id); err != nil || got != want {
			t.Errorf("ReplicaCard(%q) = %q, %v; want %q", id, got, err, want)
		}
	}
	for _, id := range []string{"", "GPU", "-1", "GPU-", "GPU-x", "::1", "GPU-a::", "GPU-a-01"} {
		if got, err := wire.ReplicaCard(id); err == nil {
			t.Errorf("ReplicaCard(%q) = %q, want an error", id, got)
		}
	}
}

func FuzzDecodeDevices(f *testing.F) {
	f.Add(goldenJSON)
	f.Add("GPU-8fcee07d,4,81920,100,NVIDIA-NVIDIA A100-SXM4-80GB,0,true:")
	f.Add("GPU-b,10,40960,100,NVIDIA A100,1,false,3,mig:")
	f.Fuzz(func(t *testing.T, s string) {
		cards, err := wire.DecodeDevices(s)
		if err != nil {
			return
		}
		text, err := wire.EncodeDevices(cards)
		if err != nil {
			t.Fatalf("decoded cards do not encode: %v", err)
		}
		again, err := wire.DecodeDevices(text)
		if err != nil {
			// Escapes can make the text longer than an annotation may be.
			if len(text) > 256<<10 {
				return
			}
			t.Fatalf("encoded cards do not decode: %v\n%s", err, text)
		}
		if next, _ := wire.EncodeDevices(again); next != text {
			t.Errorf("round trip changed the cards:\n%s\n%s", text, next)
		}
	})
}

func FuzzLegacyRoundTrip(f *testing.F) {
	f.Add("GPU-a", 10, 40960, 100, "NVIDIA A100", 0, true)
	f.Fuzz(func(t *testing.T, uuid string, slots, mem, cores int, model string, numa int, healthy bool) {
		want := []wire.Device{{UUID: uuid, Slots: slots, MemMiB: mem, Cores: cores, Type: model, NUMA: numa, Mode: wire.ModeCore, Healthy: healthy}}
		text, err := wire.EncodeDevicesLegacy(want)
		if err != nil || len(text) > 256<<10 || strings.TrimSpace(text) != text || strings.HasPrefix(text, "[") {
			return
		}
		got, err := wire.DecodeDevices(text)
		if err != nil {
			t.Fatalf("decode %q: %v", text, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("round trip (-want +got):\n%s", diff)
		}
	})
}
