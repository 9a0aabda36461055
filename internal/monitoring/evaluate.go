package monitoring

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/feature/naming"
	"github.com/falaj-ml/falaj/internal/monitoring/change"
	"github.com/falaj-ml/falaj/internal/sketch"
)

// against is what a window is compared with.
type against struct {
	*baseline        // nil when there is none
	why       string // there is none, or not the one that the manifest asks for
	itself    string // why it is not compared with it: it is this very window, or has rows of it
	hide      bool   // nothing in words may be a value of the data
}

// evaluate compares a closed window with its baseline. It is pure.
func evaluate(m Monitor, c closed, a against) Window {
	b := a.baseline
	all := c.all
	w := Window{
		ID: c.Key.String(), WindowKey: c.Key, From: at(c.From), To: at(c.To), Requests: all.Requests, Rows: all.Rows, Answered: all.Answered,
		Failed: all.Failed, Failures: all.Failures, Features: []Feature{}, Streams: all.Detections,
	}
	if all.Latency.Count() > 0 {
		w.Latency.P50 = milliseconds(all.Latency, 0.5)
		w.Latency.P99 = milliseconds(all.Latency, 0.99)
	}
	var notes []string
	note := func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) }
	if all.Skipped > 0 {
		note("%d values are not summarised: more than %d inputs, or a type that differs from the window's first value", all.Skipped, maxColumns)
	}
	few := all.Rows < m.Spec.Drift.MinRows
	switch {
	case few:
		note("%d rows, and %d are required to evaluate a window", all.Rows, m.Spec.Drift.MinRows)
	case a.itself != "":
		note("%s", a.itself)
	case b == nil:
		w.Unjudged = true
		note("there is no baseline: %s", a.why)
	}
	if b != nil {
		if a.itself == "" {
			w.Baseline = b.name()
		}
		if b.facts.Note != "" {
			note("%s", b.facts.Note)
		}
		judge := !few && a.itself == ""
		for _, text := range compare(m.Spec.Drift, &w, all, b, judge, a.hide) {
			note("%s", text)
		}
		w.Unjudged = judge && !w.Judged
	}
	w.Note = strings.Join(notes, "; ")
	return w
}

// name is what the baseline is called: "training set delays@1".
func (b *baseline) name() string {
	if b.facts.Ref != "" {
		return b.facts.Source + " " + b.facts.Ref
	}
	if b.facts.From != nil {
		return b.facts.Source + ", from " + day(*b.facts.From) + " to " + day(*b.facts.To)
	}
	return b.facts.Source
}

// compared is an input on its way to be judged with the others.
type compared struct {
	Feature
	result change.Result
	based  bool // there is a baseline
}

// compare compares the window's inputs and scores with the baseline's, and decides which have
// drifted. A window is evaluated when something of it could be compared. notes
// say what could not.
func compare(spec DriftSpec, w *Window, all *pane, b *baseline, judge, hide bool) (notes []string) {
	names := inputNames(spec, all, b)
	columns := make([]compared, 0, len(names)+1)
	alpha := spec.Alpha / float64(len(names)+1)
	for _, name := range names {
		columns = append(columns, compareOne(spec, name, b.columns[name], all.named(name), alpha, hide))
	}
	columns = append(columns, compareOne(spec, "score", b.score, all.Score, alpha, hide))
	results := make([]change.Result, len(columns))
	for i := range columns {
		results[i] = columns[i].result
	}
	results = change.Correct(results, spec.Correction)
	drifted, based, decided := 0, 0, 0
	var without []string
	for i := range columns {
		c := &columns[i]
		if c.result.Tested {
			c.fill(results[i])
		}
		c.Drifted = judge && (c.result.Failed || c.result.Tested && results[i].Drifted)
		if i == len(columns)-1 {
			if all.Score.Rows() == 0 {
				break
			}
			if !c.based {
				c.Note = "scores have no baseline: " + cmp.Or(b.facts.ScoreNote, "that of "+b.facts.Source+" has none")
				notes = append(notes, c.Note)
			}
			w.Score = &c.Feature
			if c.result.Failed || c.result.Tested {
				decided++
			}
			break
		}
		w.Features = append(w.Features, c.Feature)
		if c.based {
			based++
		} else {
			without = append(without, c.Name)
		}
		if c.result.Failed || c.result.Tested {
			decided++
		}
		if c.Drifted {
			drifted++
		}
	}
	if based > 0 {
		w.Share = float64(drifted) / float64(based)
	}
	w.Judged = judge && decided > 0
	if n := len(without); n > 0 {
		notes = append(notes, fmt.Sprintf("%d of %d inputs have no baseline: %s", n, len(w.Features), strings.Join(without[:min(n, maxTop)], ", ")))
	}
	switch {
	case !judge || decided > 0:
	case len(w.Features) == 0 && w.Score == nil:
		notes = append(notes, "the window has no recorded inputs or scores")
	default:
		notes = append(notes, "no input or score of the window could be compared with the baseline")
	}
	w.Drifted = w.Judged && (drifted > 0 && w.Share >= spec.Share || w.Score != nil && w.Score.Drifted)
	return notes
}

// inputNames are the inputs that are told of: the baseline's, in its order, and
// what else the records have.
func inputNames(spec DriftSpec, all *pane, b *baseline) []string {
	if len(all.Names) == 0 {
		return nil // the records hold no inputs
	}
	var names []string
	for _, name := range b.names {
		if b.facts.Declared || all.named(name) != nil {
			names = append(names, name)
		}
	}
	for _, name := range all.Names {
		if b.columns[name] == nil {
			names = append(names, name)
		}
	}
	if len(spec.Features) == 0 {
		return names
	}
	var wanted []string
	for _, name := range spec.Features {
		if at, err := naming.Find(names, name); err == nil && at >= 0 {
			name = names[at]
		}
		if !slices.Contains(wanted, name) {
			wanted = append(wanted, name)
		}
	}
	slices.SortStableFunc(wanted, func(a, b string) int { return cmp.Compare(placeIn(names, a), placeIn(names, b)) })
	return wanted
}

// placeIn is where a name is among names; behind them when it is not.
func placeIn(names []string, name string) int {
	if at := slices.Index(names, name); at >= 0 {
		return at
	}
	return len(names)
}

func (p *pane) named(name string) *sketch.Column {
	if i, ok := p.index[name]; ok {
		return p.Columns[i]
	}
	return nil
}

func compareOne(spec DriftSpec, name string, ref, cur *sketch.Column, alpha float64, hide bool) compared {
	c := compared{Feature: Feature{Name: name, Kind: string(sketch.Numeric)}, result: change.Untested(), based: ref != nil}
	if ref != nil {
		c.Kind, c.BaselineMean, c.BaseMissing = string(ref.Kind()), number(ref.Mean()), fraction(ref.Missing(), ref.Rows())
	}
	if cur != nil {
		c.Kind, c.Mean, c.Missing, c.Rows = string(cur.Kind()), number(cur.Mean()), fraction(cur.Missing(), cur.Rows()), int64(cur.Rows()) //nolint:gosec // G115: counts of rows
	}
	switch {
	case ref == nil && cur == nil:
		c.Note = "it is in neither the window nor the baseline"
		return c
	case ref == nil:
		c.Note = "it is not in the baseline"
		return c
	case cur == nil:
		c.Note, c.result.Failed, c.Missing = "it is not in the window", true, 1
		return c
	}
	c.result = change.Compare(ref, cur, change.Settings{Method: spec.Method, Alpha: spec.Alpha, Threshold: spec.Threshold, CheckAlpha: alpha, Hide: hide})
	c.Method, c.Note = string(c.result.Method), strings.Join(c.result.Notes, "; ")
	return c
}

// fill takes the numbers of a comparison; the p-value is the corrected one, which
// is what the threshold is for.
func (c *compared) fill(r change.Result) {
	c.Statistic, c.Threshold, c.PValue = number(r.Statistic), number(r.Threshold), number(r.Adjusted)
	if c.PValue == nil {
		c.PValue = number(r.PValue)
	}
}

// milliseconds is a quantile of the latency, to the microsecond.
func milliseconds(l *sketch.Latency, q float64) *float64 {
	return number(math.Round(float64(l.Quantile(q))/float64(time.Microsecond)) / 1000)
}

func fraction(part, of uint64) float64 {
	if of == 0 {
		return 0
	}
	return float64(part) / float64(of)
}
