package batching

import (
	"math"
	"slices"
	"time"
)

// cost is what runs cost by their rows, as a straight line through the last runs:
// the weight of one halves with every 44 that follow.
type cost struct {
	n, rows, rows2, took, both float64
	count                      int
	paces                      [16]float64 // of the last runs, in parts of what the line said before
}

func (c *cost) add(rows int, took time.Duration) {
	pace := 1.0
	if e := c.expect(1, rows); e > 0 {
		pace = float64(took) / e
	}
	c.paces[c.count%len(c.paces)] = pace
	c.count++
	const kept = 1 - 1.0/64
	r, t := float64(rows), float64(took)
	c.n = kept*c.n + 1
	c.rows = kept*c.rows + r
	c.rows2 = kept*c.rows2 + r*r
	c.took = kept*c.took + t
	c.both = kept*c.both + r*t
}

// line is what a run costs whatever its rows, and each row; false when runs had
// about as many rows each, which tells nothing.
func (c *cost) line() (fixed, row float64, ok bool) {
	mean := c.rows / c.n
	variance := c.rows2/c.n - mean*mean
	if variance < 0.01*mean*mean {
		return 0, 0, false
	}
	row = (c.both/c.n - mean*c.took/c.n) / variance
	switch fixed = c.took/c.n - row*mean; {
	case row <= 0:
		return c.took / c.n, 0, true
	case fixed < 0:
		return 0, c.took / c.rows, true
	}
	return fixed, row, true
}

// expect is how long so many runs of so many rows in all take, in nanoseconds, one
// after the other. Where nothing is known of the line it is the least that any line
// says that has no cost below zero.
func (c *cost) expect(runs, rows int) float64 {
	if c.n == 0 {
		return 0
	}
	if fixed, row, ok := c.line(); ok {
		return float64(runs)*fixed + float64(rows)*row
	}
	return c.took / c.n * min(float64(runs), float64(rows)*c.n/c.rows)
}

// least is how long runs take if all are as quick, for their rows, as the quickest
// of the last was: a few slow ones say nothing about the next. It is 0 before so
// many have run.
func (c *cost) least(runs, rows int) time.Duration {
	if c.count < len(c.paces) {
		return 0
	}
	return time.Duration(c.expect(runs, rows) * min(1, slices.Min(c.paces[:])))
}

// overhead is the part of a run that may be what it costs whatever its rows.
const overhead = 0.1

// size is how many rows a batch should have at most: so many that what a run costs
// whatever its rows is a tenth of it. More would save less than that, and make all
// of the batch wait for the last row. As long as the runs say nothing, because they
// are few or all alike, it is most.
func (c *cost) size(most int) int {
	if c.n < 16 {
		return most
	}
	fixed, row, ok := c.line()
	if !ok || row == 0 {
		return most
	}
	return int(max(1, min(float64(most), math.Ceil(fixed*(1-overhead)/overhead/row))))
}
