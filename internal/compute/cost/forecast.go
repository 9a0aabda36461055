package cost

import (
	"math"

	"gonum.org/v1/gonum/stat/distuv"
)

// Projection is where a sum of daily costs goes: linear in time, with an interval.
type Projection struct {
	PerDay float64  `json:"per_day" doc:"Mean of the evaluated days"`
	Days   int      `json:"days" doc:"Number of evaluated days; without any there is no forecast"`
	Total  float64  `json:"total" doc:"Spent already, and per_day for the days to come"`
	Low    *float64 `json:"low,omitempty" doc:"95 % prediction interval of the total; absent below two days"`
	High   *float64 `json:"high,omitempty"`
}

// Forecast adds to what is spent the cost of left days that are like the given
// ones. The interval is that of a sum of left future observations, independent
// and alike: ± t(n−1) × s × √(left + left²/n), and never below what is spent.
func Forecast(spent float64, days []float64, left float64) Projection {
	p := Projection{Days: len(days), Total: spent}
	n := float64(len(days))
	if n == 0 {
		return p
	}
	for _, d := range days {
		p.PerDay += d / n
	}
	left = max(left, 0)
	p.Total += p.PerDay * left
	if n < 2 {
		return p
	}
	squares := 0.0
	for _, d := range days {
		squares += (d - p.PerDay) * (d - p.PerDay)
	}
	t := distuv.StudentsT{Sigma: 1, Nu: n - 1}.Quantile(0.975)
	half := t * math.Sqrt(squares/(n-1)) * math.Sqrt(left+left*left/n)
	low, high := max(p.Total-half, spent), p.Total+half
	p.Low, p.High = &low, &high
	return p
}
