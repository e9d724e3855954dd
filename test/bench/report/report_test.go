package report

import (
	"encoding/json"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/firstlight-dev/firstlight/test/bench/proxy"
)

var update = flag.Bool("update", false, "write the golden files anew")

func sample() Report {
	conditions := Conditions{CPUs: 2, Kernel: "6.18.0", Mbits: 1000, Latency: 0.02, Load: 0.5, LoadLast: 3}
	var runs []Run
	for i := range 3 {
		x := float64(i)
		runs = append(runs,
			Run{Image: "py", Arm: Overlayfs, Pulled: 20 + x, Usable: 21 + x, Bytes: 400e6, Requests: 7, CPU: 18, PeakRSS: 90e6},
			Run{Image: "py", Arm: Firstlight, Pulled: 0.5, Usable: 4 + x, Bytes: 60e6, Requests: 70 + i, CPU: 2, PeakRSS: 70e6, Kinds: map[proxy.Kind]int{proxy.Blob: 60}},
		)
	}
	return New(conditions, runs)
}

func TestTables(t *testing.T) {
	var out strings.Builder
	if err := sample().WriteTables(&out); err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", "tables.txt")
	if *update {
		if err := os.WriteFile(golden, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), out.String()); diff != "" {
		t.Errorf("tables (-want +got):\n%s", diff)
	}
}

// A ratio that nothing was measured for is left out, not zero.
func TestRatios(t *testing.T) {
	r := sample()
	if got := slices.Sorted(maps.Keys(r.Ratios)); !slices.Equal(got, []string{"py_lazy_vs_overlayfs"}) {
		t.Errorf("the ratios are %v", got)
	}
	if got, want := r.Ratios["py_lazy_vs_overlayfs"], 5.0/22; got != want {
		t.Errorf("py_lazy_vs_overlayfs is %v, want %v", got, want)
	}
}

func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out", "bench.json")
	if err := sample().WriteFile(path); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Ratios map[string]float64
		Runs   []Run
	}
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Ratios) != 1 || len(got.Runs) != 6 || got.Runs[1].Kinds[proxy.Blob] != 60 {
		t.Errorf("the file holds %+v", got)
	}
}
