package scan_test

import (
	"io"
	"os"
	"testing"

	"github.com/firstlight-dev/firstlight/indexer/scan"
)

// BenchmarkScan reads the gzip layer that FIRSTLIGHT_LAYER names.
func BenchmarkScan(b *testing.B) {
	name := os.Getenv("FIRSTLIGHT_LAYER")
	if name == "" {
		b.Skip("FIRSTLIGHT_LAYER names no layer to measure with")
	}
	f, err := os.Open(name)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	for b.Loop() {
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			b.Fatal(err)
		}
		x, err := scan.Scan(b.Context(), scan.Layer{Reader: f, Size: -1})
		if err != nil {
			b.Fatal(err)
		}
		b.SetBytes(x.Size)
		enc, err := x.Encode()
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(100*float64(len(enc))/float64(x.CompressedSize), "%index")
		b.ReportMetric(float64(len(x.Chunks)), "chunks")
	}
}
