package monitoring

import (
	"bytes"
	"cmp"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/naming"
	"github.com/falaj-ml/falaj/internal/monitoring/label"
	"github.com/falaj-ml/falaj/internal/serving/prediction"
	"github.com/falaj-ml/falaj/internal/store"
)

// Labels hands out predictions with their labels, in an order that never changes.
// label.Service is one.
type Labels interface {
	Pairs(ctx context.Context, project, deployment string, after int64, visit func(label.Pair) error) (int64, error)
}

// Bounds of what is kept of labels.
const (
	maxPairs    = 10_000 // rows of a bucket; a uniform sample when there are more
	pairBatch   = 10_000 // predictions taken at a time
	maxBuckets  = 400    // of a window
	maxSegments = 20     // values of a column, the commonest
	segmentText = 64     // bytes of a value
	hourly      = int64(time.Hour / time.Microsecond)
)

// labelled are the rows of one version whose time is in a bucket: a slide of the
// windows, or an hour where windows are by rows.
type labelled struct {
	Seen int64
	Rows []labelledRow
}

// labelledRow is a score with what came true.
type labelledRow struct {
	At           int64
	Score, Label float64  // NaN where there is none
	Segments     []string // beside spec.performance.segments
	Without      []bool   // beside Segments: the request has no such column

	Task             string // as which the row was taken; empty is not known
	Predicted, Class string // of several classes: what the model says, and what is true
	P                float64
	ID               string // of the prediction, of a row that its task cannot take
	Row              int
}

// add keeps the row, or not, so that each of those seen is as likely to be there.
func (l *labelled) add(k WindowKey, r labelledRow) {
	l.Seen++
	if len(l.Rows) < maxPairs {
		l.Rows = append(l.Rows, r)
		return
	}
	if j := scramble(seed(k, "pairs")+uint64(l.Seen)) % uint64(l.Seen); j < maxPairs { //nolint:gosec // G115: Seen is positive
		l.Rows[j] = r
	}
}

func (l layout) bucket() layout {
	if l.ByRows {
		return layout{Slide: hourly}
	}
	return l
}

// label takes the labels that came since, and judges the windows anew that they
// are of. It reports whether there are more.
func (s *Service) label(ctx context.Context, w *watch, watched Watched) (again bool, err error) {
	if s.Labels == nil {
		return false, nil
	}
	var after int64
	if w.labels != "" {
		if after, err = strconv.ParseInt(w.labels, 10, 64); err != nil {
			return false, fault.Wrap(err, "position among the labels")
		}
	}
	owner := prediction.OwnerOf(watched.ID)
	buckets := map[WindowKey]*labelled{}
	n := 0
	next, err := s.Labels.Pairs(ctx, w.m.Project, w.m.Deployment, after, func(p label.Pair) error {
		if n++; n > pairBatch {
			return errPause
		}
		if !p.Record.By(owner) {
			return nil
		}
		return s.take(ctx, w, watched, buckets, p)
	})
	again = errors.Is(err, errPause)
	if err != nil && !again || next == after {
		return again, err
	}
	add := &writing{}
	for _, k := range sortedKeys(buckets) {
		sealed, err := s.sealPairs(ctx, w.m, k, buckets[k])
		if err != nil {
			return false, err
		}
		add.pairs = append(add.pairs, sealedPairs{k, sealed})
	}
	windows, err := s.touched(ctx, w, buckets)
	if err != nil {
		return false, err
	}
	var tell []told
	for _, one := range windows {
		rows, seen, err := s.rowsOf(ctx, w, one, buckets)
		if err != nil {
			return false, err
		}
		one.Performance = perform(w.m.Spec, one, rows, seen)
		add.windows = append(add.windows, recorded{window: one})
		if one.Version == watched.Version {
			tell = append(tell, w.progress.perform(w.m, one)...)
		}
	}
	w.labels = strconv.FormatInt(next, 10)
	return again, s.commit(ctx, w, add, tell)
}

// take puts the rows of a pair into its bucket, also those that no metric can take: they
// are counted.
func (s *Service) take(ctx context.Context, w *watch, watched Watched, buckets map[WindowKey]*labelled, p label.Pair) error {
	r := p.Record
	if r.Failure != "" {
		return nil // there is no answer to judge
	}
	k := w.panes.layout.bucket().paneOf(r.Version, r.Replay, r.At)
	b := buckets[k]
	if b == nil {
		var err error
		if b, err = s.readPairs(ctx, w.m, k); err != nil {
			return err
		}
		buckets[k] = b
	}
	columns := make([]*prediction.Column, len(w.m.Spec.Performance.Segments))
	for i, name := range w.m.Spec.Performance.Segments {
		columns[i] = columnOf(r, name)
	}
	for i := range max(len(p.Labels), len(p.Texts)) {
		row, ok := rowOf(w.m.Spec.Performance, watched, p, i)
		if !ok {
			continue
		}
		for _, c := range columns {
			value, there := segmentOf(c, i)
			row.Segments, row.Without = append(row.Segments, value), append(row.Without, !there)
		}
		b.add(k, row)
	}
	return nil
}

// columnOf is a column of the record by its name, a feature's by its full or short one;
// nil when there is none.
func columnOf(r *prediction.Record, name string) *prediction.Column {
	for _, columns := range [][]prediction.Column{r.Keys, r.Inputs} {
		names := make([]string, len(columns))
		for i, c := range columns {
			names[i] = c.Name
		}
		if at, err := naming.Find(names, name); err == nil && at >= 0 {
			return &columns[at]
		}
	}
	return nil
}

// segmentOf is the value that a row has in a column, if it has one.
func segmentOf(c *prediction.Column, row int) (value string, there bool) {
	switch {
	case c == nil:
		return "", false
	case row < len(c.Texts):
		value = c.Texts[row]
	case row < len(c.Numbers):
		value = strconv.FormatFloat(c.Numbers[row], 'g', -1, 64)
	default:
		return "", false
	}
	return value[:min(len(value), segmentText)], true
}

// touched are the closed windows that have rows of the buckets, oldest end first.
func (s *Service) touched(ctx context.Context, w *watch, buckets map[WindowKey]*labelled) ([]Window, error) {
	found := map[WindowKey]Window{}
	l := w.panes.layout
	err := s.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		for _, k := range sortedKeys(buckets) {
			if l.ByRows {
				some, err := s.Store.Windows(ctx, tx, w.m.ID, WindowFilter{Version: k.Version, From: at(k.Start - 1), Limit: 1000})
				if err != nil {
					return err
				}
				for _, one := range some {
					if one.Replay == k.Replay && one.From.UnixMicro() < k.Start+hourly {
						found[one.WindowKey] = one
					}
				}
				continue
			}
			for start := k.Start; start > k.Start-l.Size; start -= l.Slide {
				key := WindowKey{k.Version, k.Replay, start}
				one, _, err := s.Store.Window(ctx, tx, w.m.ID, key)
				if fault.Is(err, fault.NotFound) {
					continue // it is open
				}
				if err != nil {
					return err
				}
				found[key] = one
			}
		}
		return nil
	})
	out := make([]Window, 0, len(found))
	for _, one := range found {
		out = append(out, one)
	}
	slices.SortFunc(out, func(a, b Window) int {
		return cmp.Or(a.To.Compare(b.To), cmp.Compare(a.Version, b.Version), cmp.Compare(a.Start, b.Start))
	})
	return out, err
}

// rowsOf are the labelled rows of a window, from memory or the database; seen is
// how many there are of which rows may be a sample.
func (s *Service) rowsOf(ctx context.Context, w *watch, one Window, buckets map[WindowKey]*labelled) (rows []labelledRow, seen int64, err error) {
	l := w.panes.layout.bucket()
	from, to := one.From.UnixMicro(), one.To.UnixMicro()
	if w.panes.layout.ByRows {
		to++ // its newest record is in it
	}
	for start := from - mod(from-monday, l.Slide); start < to && start < from+maxBuckets*l.Slide; start += l.Slide {
		k := WindowKey{one.Version, one.Replay, start}
		b := buckets[k]
		if b == nil {
			if b, err = s.readPairs(ctx, w.m, k); err != nil {
				return nil, 0, err
			}
		}
		had := len(rows)
		for _, r := range b.Rows {
			if r.At >= from && r.At < to {
				rows = append(rows, r)
			}
		}
		if len(b.Rows) > 0 {
			seen += b.Seen * int64(len(rows)-had) / int64(len(b.Rows))
		}
	}
	return rows, seen, nil
}

// performanceOf judges a window that has just been closed by the labels that are
// there already.
func (s *Service) performanceOf(ctx context.Context, w *watch, one *Window, c closed) error {
	one.Performance.Metrics = estimate(w.m.Spec.Performance, c.all)
	var rows []labelledRow
	var seen int64
	if w.labels != "" {
		var err error
		if rows, seen, err = s.rowsOf(ctx, w, *one, nil); err != nil {
			return err
		}
	}
	one.Performance = perform(w.m.Spec, *one, rows, seen)
	return nil
}

// perform is the performance of a window by its labelled rows; estimates that the
// window has stay. A metric with a limit that cannot be computed is told of: it is not
// within its limit.
func perform(spec Spec, w Window, rows []labelledRow, seen int64) Performance {
	p := Performance{Rows: seen, Metrics: []Metric{}}
	if w.Answered > 0 {
		p.Labelled = min(1, float64(seen)/float64(w.Answered))
	}
	if int64(len(rows)) < seen {
		p.Sampled = int64(len(rows))
	}
	limited := slices.Sorted(maps.Keys(spec.Performance.Alert))
	switch {
	case w.Answered == 0 && w.Rows > 0 && w.Failed < w.Requests:
		p.State = "no prediction has a score"
		p.Note = "set spec.prediction.output of the Deployment to the output with the score"
	case w.Answered == 0:
		p.State = "no answers"
	case seen == 0:
		p.State = "no labels yet"
	default:
		p.State = fmt.Sprintf("labels %.0f %%", math.Floor(100*p.Labelled))
	}
	var usable int64 // of those seen, as far as the sample tells
	if len(rows) > 0 {
		m := measure(spec.Performance, taskOfRows(spec.Performance, rows), rows)
		p.Task, p.Metrics = m.task, m.metrics
		p.Segments = segments(spec.Performance, p.Task, m.usable)
		usable = seen * int64(len(m.usable)) / int64(len(rows))
		p.Unusable = seen - usable
		p.Judged = seen >= spec.Drift.MinRows && p.Labelled >= spec.Performance.MinLabelled && len(limited) > 0
		p.Note = noteOf(spec.Performance, m, rows)
	}
	if waits := spec.waits(seen, p.Labelled); waits != "" && w.Answered > 0 {
		p.Note = strings.Join(append(slices.DeleteFunc([]string{p.Note}, func(s string) bool { return s == "" }), waits), "; ")
	}
	for i := range p.Metrics {
		one := &p.Metrics[i]
		limit, ok := spec.Performance.Alert[one.Name]
		if !ok || one.Value == nil {
			continue
		}
		switch {
		case limit.Above != nil && *one.Value > *limit.Above:
			one.Limit, one.Breached = limit.Above, true
		case limit.Below != nil && *one.Value < *limit.Below:
			one.Limit, one.Breached = limit.Below, true
		case limit.Above != nil:
			one.Limit = limit.Above
		default:
			one.Limit = limit.Below
		}
		p.Degraded = p.Degraded || one.Breached && p.Judged && p.missing(one.Name, usable, spec.Drift.MinRows) == ""
	}
	for _, name := range limited {
		if why := p.missing(name, usable, spec.Drift.MinRows); p.Judged && why != "" {
			p.NotComputed = append(p.NotComputed, name+": "+why)
		}
	}
	for _, one := range w.Performance.Metrics {
		if one.Estimate {
			p.Metrics = append(p.Metrics, one)
		}
	}
	return p
}

// waits says from how many labels on limits are judged, where there are limits and fewer
// labels.
func (s Spec) waits(seen int64, share float64) string {
	switch {
	case len(s.Performance.Alert) == 0:
		return ""
	case seen < s.Drift.MinRows:
		return fmt.Sprintf("limits are evaluated from %d labelled rows on", s.Drift.MinRows)
	case share < s.Performance.MinLabelled:
		return fmt.Sprintf("limits are evaluated when %.0f %% of the rows have a label", 100*s.Performance.MinLabelled)
	}
	return ""
}

// missing is why a metric with a limit is not there to be judged; empty when it is.
func (p *Performance) missing(name string, usable, needed int64) string {
	at := slices.IndexFunc(p.Metrics, func(m Metric) bool { return m.Name == name })
	switch {
	case p.Task == "":
		return "the task is unknown"
	case at < 0:
		return "it is not a metric of task " + p.Task
	case p.Unusable > 0 && usable < needed:
		return fmt.Sprintf("%d of %d labelled rows are usable, and %d are required", usable, p.Rows, needed)
	case p.Metrics[at].Value == nil:
		return cmp.Or(p.Metrics[at].Note, "it has no value")
	}
	return ""
}

// noteOf says what is odd about labelled rows, and which segments nothing is known of.
func noteOf(spec PerformanceSpec, m measured, rows []labelledRow) string {
	var notes []string
	if m.task == "" {
		notes = append(notes, unknownTask)
	}
	if m.odd > 0 {
		notes = append(notes, fmt.Sprintf("%d of %d labelled rows are unusable; first %s", m.odd, len(rows), m.why))
	}
	for i, column := range spec.Segments {
		if !slices.ContainsFunc(rows, func(r labelledRow) bool { return r.segment(i) }) {
			notes = append(notes, "spec.performance.segments: no request has a column or key "+column+", which spec.performance.segments names")
		}
	}
	return strings.Join(notes, "; ")
}

// taskOfRows is what rows are judged as: the newest one's answer counts.
func taskOfRows(spec PerformanceSpec, rows []labelledRow) string {
	newest := labelledRow{At: math.MinInt64}
	for _, r := range rows {
		if r.Task != "" && r.At >= newest.At {
			newest = r
		}
	}
	return taskOf(spec, newest.Task)
}

// segment reports whether the row's request has the i-th column of the segments.
func (r *labelledRow) segment(i int) bool {
	if i >= len(r.Segments) {
		return false
	}
	if i < len(r.Without) {
		return !r.Without[i]
	}
	return r.Segments[i] != "" // a row of before it was known
}

// segments are the metrics by the commonest values of the columns that the manifest
// names. A row whose request does not have the column is in none.
func segments(spec PerformanceSpec, task string, rows []labelledRow) []SegmentScore {
	var out []SegmentScore
	for i, column := range spec.Segments {
		by := map[string][]labelledRow{}
		for _, r := range rows {
			if r.segment(i) {
				by[r.Segments[i]] = append(by[r.Segments[i]], r)
			}
		}
		values := make([]string, 0, len(by))
		for v := range by {
			values = append(values, v)
		}
		slices.SortFunc(values, func(a, b string) int { return cmp.Or(cmp.Compare(len(by[b]), len(by[a])), cmp.Compare(a, b)) })
		for _, v := range values[:min(len(values), maxSegments)] {
			out = append(out, SegmentScore{Column: column, Value: v, Rows: int64(len(by[v])), Metrics: measure(spec, task, by[v]).metrics})
		}
	}
	return out
}

// sealedPairs is a bucket as it is stored.
type sealedPairs struct {
	key    WindowKey
	sealed []byte
}

func pairsBound(m ID, k WindowKey) string { return "pairs/" + string(m) + "/" + k.String() }

func (s *Service) sealPairs(ctx context.Context, m Monitor, k WindowKey, l *labelled) ([]byte, error) {
	var b bytes.Buffer
	if err := gob.NewEncoder(&b).Encode(l); err != nil {
		return nil, err
	}
	return s.seal(ctx, m.Project, pairsBound(m.ID, k), b.Bytes())
}

// readPairs is a bucket, an empty one when there is none.
func (s *Service) readPairs(ctx context.Context, m Monitor, k WindowKey) (*labelled, error) {
	var sealed []byte
	err := s.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		sealed, err = s.Store.Pairs(ctx, tx, m.ID, k)
		return err
	})
	l := &labelled{}
	if fault.Is(err, fault.NotFound) {
		return l, nil
	}
	if err != nil {
		return nil, err
	}
	plain, err := s.open(ctx, m.Project, pairsBound(m.ID, k), sealed)
	if err != nil {
		return nil, err
	}
	return l, fault.Wrap(gob.NewDecoder(bytes.NewReader(plain)).Decode(l), "read labels")
}

func sortedKeys[V any](m map[WindowKey]V) []WindowKey {
	keys := make([]WindowKey, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b WindowKey) int {
		return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(a.Version, b.Version))
	})
	return keys
}
