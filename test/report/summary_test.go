package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSummary(t *testing.T) {
	tests := []struct {
		name                     string
		events                   string
		passes, failures, skips  int
		failing, output, reasons []string
	}{
		{
			name: "pass, skip with a reason, fail with its output",
			events: `{"Action":"start","Package":"p"}
{"Action":"output","Package":"p","Test":"TestSkip","Output":"=== RUN   TestSkip\n"}
{"Action":"output","Package":"p","Test":"TestSkip","Output":"    a_test.go:7: needs root: run as root\n"}
{"Action":"output","Package":"p","Test":"TestSkip","Output":"--- SKIP: TestSkip (0.00s)\n"}
{"Action":"skip","Package":"p","Test":"TestSkip"}
{"Action":"pass","Package":"p","Test":"TestPass"}
{"Action":"output","Package":"p","Test":"TestFail","Output":"    a_test.go:9: broken thing\n"}
{"Action":"fail","Package":"p","Test":"TestFail"}
{"Action":"fail","Package":"p","Elapsed":1.5}
`,
			passes: 1, failures: 1, skips: 1,
			failing: []string{"p TestFail"}, output: []string{"broken thing"}, reasons: []string{"needs root: run as root"},
		},
		{
			name: "a build that fails is one failure and shows the compiler's words",
			events: `{"ImportPath":"p [p.test]","Action":"build-output","Output":"p.go:1: undefined: x\n"}
{"ImportPath":"p [p.test]","Action":"build-fail"}
{"Action":"fail","Package":"p","FailedBuild":"p [p.test]"}
`,
			failures: 1, failing: []string{"p"}, output: []string{"undefined: x"},
		},
		{
			name: "a package that dies outside its tests is one failure",
			events: `{"Action":"pass","Package":"p","Test":"TestPass"}
{"Action":"output","Package":"p","Output":"panic: in TestMain\n"}
{"Action":"fail","Package":"p"}
`,
			passes: 1, failures: 1, failing: []string{"p"}, output: []string{"panic: in TestMain"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var out bytes.Buffer
			sum := newSummary(&out)
			if err := sum.read(strings.NewReader(tt.events)); err != nil {
				t.Fatal(err)
			}
			sum.print(0)
			if sum.passes != tt.passes || sum.failures != tt.failures || len(sum.skips) != tt.skips {
				t.Errorf("counts: %d passed, %d failed, %d skipped", sum.passes, sum.failures, len(sum.skips))
			}
			if diff := cmp.Diff(tt.failing, sum.failing); diff != "" {
				t.Errorf("failing (-want +got):\n%s", diff)
			}
			for _, want := range append(tt.output, tt.reasons...) {
				if !strings.Contains(out.String(), want) {
					t.Errorf("output lacks %q:\n%s", want, out.String())
				}
			}
		})
	}
}

func TestSummaryRefusesWhatIsNoEvent(t *testing.T) {
	if err := newSummary(&bytes.Buffer{}).read(strings.NewReader("{]")); err == nil {
		t.Error("no error for broken JSON")
	}
}
