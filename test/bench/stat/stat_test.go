package stat

import "testing"

func TestOf(t *testing.T) {
	for name, tc := range map[string]struct {
		values []float64
		want   Summary
	}{
		"none": {nil, Summary{}},
		"one":  {[]float64{3}, Summary{1, 3, 3, 3}},
		"odd":  {[]float64{9, 1, 2}, Summary{3, 1, 2, 9}},
		"even": {[]float64{4, 1, 2, 100}, Summary{4, 1, 3, 100}},
	} {
		if got := Of(tc.values); got != tc.want {
			t.Errorf("%s: %+v, want %+v", name, got, tc.want)
		}
	}
}

func TestOfLeavesItsInputAlone(t *testing.T) {
	values := []float64{2, 1}
	Of(values)
	if values[0] != 2 {
		t.Error("the values were sorted in place")
	}
}

func TestRatio(t *testing.T) {
	if got, ok := Ratio(Of([]float64{1}), Of([]float64{4})); !ok || got != 0.25 {
		t.Errorf("1 by 4 is %v, %v", got, ok)
	}
	for name, pair := range map[string][2]Summary{
		"nothing above": {{}, Of([]float64{1})},
		"nothing below": {Of([]float64{1}), {}},
		"by zero":       {Of([]float64{1}), Of([]float64{0})},
	} {
		if _, ok := Ratio(pair[0], pair[1]); ok {
			t.Errorf("%s: there is a ratio", name)
		}
	}
}
