// Package stat sums up repeated measurements: the median, which one bad run
// does not move, and the range, which shows how much to believe it.
package stat

import "slices"

// Summary is what a list of measurements comes to.
type Summary struct {
	N                int
	Min, Median, Max float64
}

// Of sums up. Nothing measured is the zero Summary.
func Of(values []float64) Summary {
	if len(values) == 0 {
		return Summary{}
	}
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	median := sorted[middle]
	if len(sorted)%2 == 0 {
		median = (sorted[middle-1] + sorted[middle]) / 2
	}
	return Summary{N: len(sorted), Min: sorted[0], Median: median, Max: sorted[len(sorted)-1]}
}

// Ratio is a's median by b's; ok is false where there is none.
func Ratio(a, b Summary) (ratio float64, ok bool) {
	if a.N == 0 || b.N == 0 || b.Median == 0 {
		return 0, false
	}
	return a.Median / b.Median, true
}
