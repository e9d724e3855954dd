package wire_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/firstlight-dev/firstlight/sharing/wire"
)

func share(uuid string, mem, cores int) wire.ContainerDevice {
	return wire.ContainerDevice{UUID: uuid, Type: wire.Vendor, MemMiB: mem, Cores: cores}
}

func TestPodDevicesAreHAMis(t *testing.T) {
	for text, pod := range map[string]wire.PodDevices{
		"":                          nil,
		";":                         {nil},
		";;":                        {nil, nil},
		"GPU-..0,NVIDIA,15000,30:;": {{share("GPU-..0", 15000, 30)}},
		";GPU-a,NVIDIA,3000,10:GPU-b,NVIDIA,3000,10:;": {
			nil, {share("GPU-a", 3000, 10), share("GPU-b", 3000, 10)},
		},
	} {
		got, err := wire.EncodePodDevices(pod)
		if err != nil || got != text {
			t.Errorf("encode = %q, %v; want %q", got, err, text)
		}
		back, err := wire.DecodePodDevices(text)
		if err != nil {
			t.Errorf("decode %q: %v", text, err)
		}
		if diff := cmp.Diff(pod, back, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("decode %q (-want +got):\n%s", text, diff)
		}
	}
}

func TestDecodePodDevicesRefuses(t *testing.T) {
	for _, s := range []string{
		"GPU-a,NVIDIA,3000:;", "GPU-a:;", "x", ",NVIDIA,1,1:;",
		"GPU-a,NVIDIA,-1,1:;", "GPU-a,NVIDIA,1,9999999999:;", "GPU-a,NVIDIA,many,1:;",
	} {
		if got, err := wire.DecodePodDevices(s); !errors.Is(err, wire.ErrFormat) {
			t.Errorf("DecodePodDevices(%q) = %v, %v; want ErrFormat", s, got, err)
		}
	}
	if _, err := wire.DecodePodDevices("GPU-a,NVIDIA,3000:;"); !errors.Is(err, wire.ErrMissingFields) {
		t.Errorf("missing field: %v", err)
	}
}

func TestPopInOrder(t *testing.T) {
	pod := wire.PodDevices{nil, {share("GPU-a", 1, 1)}, nil, {share("GPU-b", 1, 1)}}
	var order []int
	rest := pod
	for !rest.Empty() {
		i, err := rest.Next()
		if err != nil {
			t.Fatal(err)
		}
		order = append(order, i)
		rest = rest.Without(i)
	}
	if diff := cmp.Diff([]int{1, 3}, order); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	if text, _ := wire.EncodePodDevices(rest); text != ";;;;" {
		t.Errorf("blanked = %q", text)
	}
	if pod.Empty() {
		t.Error("Without changed its receiver")
	}
	if _, err := rest.Next(); !errors.Is(err, wire.ErrNoneLeft) {
		t.Errorf("Next of an empty pod: %v", err)
	}
}

func TestCardOfMIGInstance(t *testing.T) {
	if got := share("GPU-x[1g.5gb-0]", 1, 1).Card(); got != "GPU-x" {
		t.Errorf("Card = %q", got)
	}
}

func FuzzDecodePodDevices(f *testing.F) {
	f.Add(";GPU-a,NVIDIA,3000,10:GPU-b,NVIDIA,3000,10:;")
	f.Add("GPU-x[tmpl-1],NVIDIA,3000,10,extra")
	f.Fuzz(func(t *testing.T, s string) {
		pod, err := wire.DecodePodDevices(s)
		if err != nil {
			return
		}
		text, err := wire.EncodePodDevices(pod)
		if err != nil {
			t.Fatalf("decoded pod does not encode: %v", err)
		}
		again, err := wire.DecodePodDevices(text)
		if err != nil {
			t.Fatalf("encoded pod %q does not decode: %v", text, err)
		}
		if diff := cmp.Diff(pod, again, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("round trip (-want +got):\n%s", diff)
		}
	})
}
