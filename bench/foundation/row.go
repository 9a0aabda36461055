package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"
)

// row is a measurement. Ours and Theirs have the same unit; nil is "not
// measured", and Note says why.
type row struct {
	Name   string   `json:"name"`
	Unit   string   `json:"unit"`
	Better string   `json:"better"` // higher or lower
	Ours   *float64 `json:"ours"`
	Theirs *float64 `json:"theirs"`
	Peer   string   `json:"peer"`
	Aim    *aim     `json:"aim,omitempty"`
	Note   string   `json:"note"`
}

// aim is a bound in the unit of the row, or a ratio to the peer; a ratio above 1
// means that ours is better.
type aim struct {
	Ratio *float64 `json:"ratio,omitempty"`
	Value *float64 `json:"value,omitempty"`
}

const (
	lower  = "lower"
	higher = "higher"
)

func value(v float64) *float64 {
	// Four digits are more than the noise of any of these.
	rounded, _ := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 4, 64), 64)
	return &rounded
}

// ratio is how many times better ours is.
func (r row) ratio() (float64, bool) {
	if r.Ours == nil || r.Theirs == nil || *r.Ours == 0 || *r.Theirs == 0 {
		return 0, false
	}
	if r.Better == higher {
		return *r.Ours / *r.Theirs, true
	}
	return *r.Theirs / *r.Ours, true
}

// aimMet says whether the aim is reached; known is false without an aim or a value.
func (r row) aimMet() (met, known bool) {
	if r.Aim == nil || r.Ours == nil {
		return false, false
	}
	if r.Aim.Ratio != nil {
		got, ok := r.ratio()
		return got >= *r.Aim.Ratio, ok
	}
	if r.Better == higher {
		return *r.Ours >= *r.Aim.Value, true
	}
	return *r.Ours <= *r.Aim.Value, true
}

func printTable(out io.Writer, res result) error {
	show := func(v *float64) string {
		if v == nil {
			return "-"
		}
		return strconv.FormatFloat(*v, 'f', -1, 64)
	}
	w := tabwriter.NewWriter(out, 2, 0, 2, ' ', 0)
	fmt.Fprintln(w, "measurement\tours\ttheirs\tunit\tbetter\tratio\taim")
	for _, r := range res.Rows {
		ratio, goal := "-", "-"
		if v, ok := r.ratio(); ok {
			ratio = fmt.Sprintf("%.2f", v)
		}
		if met, known := r.aimMet(); known {
			goal = map[bool]string{true: "met", false: "missed"}[met]
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.Name, show(r.Ours), show(r.Theirs), r.Unit, r.Better, ratio, goal)
	}
	return w.Flush()
}

func median(values []float64) float64 { return quantile(values, 0.5) }

// quantile is the value below which the share q of the values is; it sorts them.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	return values[min(int(q*float64(len(values))), len(values)-1)]
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func inMillis(times []time.Duration) []float64 {
	out := make([]float64, len(times))
	for i, d := range times {
		out[i] = millis(d)
	}
	return out
}
