package dataset

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/zeebo/xxh3"

	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/drift"
	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/sketch"
	"github.com/falaj-ml/falaj/internal/store"
)

// Expectations that need more than the rows of the version: another dataset, the
// version before, the time. A version that failed one may be accepted when the same
// bytes come again.

// defaultDrift is the distance from which on a column drifted, when the expectation
// does not say: what is commonly called a major shift by PSI.
const defaultDrift = 0.25

// notAgain is the note of what is not asked of a version that stands for another one.
const notAgain = "not judged again"

// drift is the method of a drift expectation.
func (e Expectation) drift() drift.Method {
	if e.Method == "" {
		return drift.PSI
	}
	return drift.Method(e.Method)
}

// validateBeyond refuses what refers, fresh and drift cannot mean.
func (e Expectation) validateBeyond(bad func(format string, args ...any) error) error {
	switch {
	case (e.In != nil) != (e.Check == Refers):
		return bad("in is for refers, which needs it: {dataset: customers, column: id}")
	case (e.Within != "") != (e.Check == Fresh):
		return bad("within is for fresh, which needs it, such as 24h")
	case e.Method != "" && e.Check != Drift:
		return bad("method is for drift")
	case e.Mostly != 0 && (e.Check == Fresh || e.Check == Drift):
		return bad("it is about the column, so mostly says nothing")
	}
	switch e.Check {
	case Refers:
		if err := id.CheckName("dataset name", e.In.Dataset); err != nil {
			return bad("%v", err)
		}
		if e.In.Column == "" {
			return bad("in names no column")
		}
	case Fresh:
		if err := within(e.Within); err != nil {
			return bad("within: %v", err)
		}
	case Drift:
		m := e.drift()
		if m == drift.Auto || !slices.Contains(drift.Methods(), m) {
			return bad("there is no method %q; they are %v", e.Method, slices.DeleteFunc(drift.Methods(), func(m drift.Method) bool { return m == drift.Auto }))
		}
		least, hasLeast := number(e.Min)
		most, hasMost := number(e.Max)
		switch {
		case m.Distance() && (e.Min != nil || e.Max != nil && !(hasMost && most > 0)):
			return bad("%s is a distance, so max says how far is too far, over 0", m)
		case !m.Distance() && (e.Max != nil || !hasLeast || !(least > 0 && least < 1)):
			return bad("%s is a test, so min says the least p-value, between 0 and 1, such as 0.001", m)
		}
	case NotNull, Unique, Between, InSet, Matches, Length, HasColumn, RowCount:
	}
	return nil
}

// within reads a time that may pass; empty is none.
func within(text string) error {
	d, err := resource.ParseDuration(text)
	if err == nil && text != "" && d < time.Minute {
		err = fault.New(fault.Invalid, "%q is less than a minute", text)
	}
	return err
}

// reads is the dataset whose rows the expectation reads beside those that it judges;
// own is the one that it is of. Empty is none.
func (e Expectation) reads(own string) string {
	switch e.Check {
	case Refers:
		return e.In.Dataset
	case Drift:
		return own
	case NotNull, Unique, Between, InSet, Matches, Length, HasColumn, RowCount, Fresh:
	}
	return ""
}

// MayJudge asks whether the caller may have new versions of a dataset judged: who
// reads what its expectations read learns of it by the verdicts. A loop may read
// everything, so this is asked of whoever bids it make versions. Needs dataset.query
// on what is read.
func (s *Service) MayJudge(ctx context.Context, p project.Name, name string) error {
	d, err := s.load(ctx, p, name)
	if err != nil {
		return err
	}
	return s.mayJudge(ctx, p, name, d.Spec.Expectations)
}

func (s *Service) mayJudge(ctx context.Context, p project.Name, name string, es []Expectation) error {
	for _, e := range es {
		read := e.reads(name)
		if read == "" {
			continue
		}
		switch _, err := s.find(ctx, ActionQuery, p, Ref{Name: read}); {
		case fault.Is(err, fault.PermissionDenied):
			return fault.Wrap(err, "%s reads dataset %s", e, read)
		case fault.Is(err, fault.NotFound), fault.Is(err, fault.Conflict), fault.Is(err, fault.Gone): // there are no rows yet
		case err != nil:
			return err
		}
	}
	return nil
}

// asClosed refuses to judge by a version that is more closed than the one that is
// made: verdicts, and which rows were kept, tell of it.
func (w draft) asClosed(e Expectation, by Version) error {
	if w.residency.Within(by.Residency) && project.Strictest(w.classification, by.Classification) == w.classification {
		return nil
	}
	return fault.New(fault.Conflict, "%s: %s is %s and may be in %s, and %s is %s and may be in %s", e, by.Ref(), by.Classification, by.Residency, w.name, w.classification, w.residency).
		WithHint("The verdict tells of the data that it is found by: declare the dataset as closed as that, or leave the expectation out.")
}

// refer reads the values that expectations of the checker refer to. Who imports must
// be allowed to read them, and the version may be only where they may be, and is as
// closed.
func (s *Service) refer(ctx context.Context, w draft, v Version, c *checker) error {
	for _, k := range c.checks {
		if k.e.Check != Refers || k.problem != "" {
			continue
		}
		if w.redacts != nil {
			k.note = notAgain
			continue
		}
		to, err := s.admit(ctx, OpenRequest{Project: w.project, Ref: Ref{Name: k.e.In.Dataset}, Columns: []string{k.e.In.Column}, Purpose: "reference of " + w.name}, false)
		if err != nil {
			return fault.Wrap(err, "%s", k.e)
		}
		k.against = to.Ref().String()
		f, _ := to.Schema.Column(k.e.In.Column)
		own := v.Schema[k.cols[0]].Type
		if _, ok := table.Wider(own, f.Type); !ok {
			k.problem = fmt.Sprintf("the column is %s, and %s of %s is %s", own, f.Name, to.Ref(), f.Type)
			continue
		}
		if err := w.asClosed(k.e, to); err != nil {
			return err
		}
		if k.seen, err = s.valuesOf(ctx, to, k.e, c); err != nil {
			return fault.Wrap(err, "%s", k.e)
		}
		k.holds = func(a arrow.Array, i int) bool {
			_, is := k.seen[cellKey(a, i)]
			return is
		}
	}
	return nil
}

func cellKey(a arrow.Array, i int) [2]uint64 {
	var room [64]byte
	h := xxh3.Hash128(appendCell(room[:0], a, i))
	return [2]uint64{h.Hi, h.Lo}
}

// valuesOf is the digests of a column's different values.
func (s *Service) valuesOf(ctx context.Context, v Version, e Expectation, c *checker) (map[[2]uint64]struct{}, error) {
	rows, err := s.read(ctx, v, OpenRequest{Columns: []string{e.In.Column}})
	if err != nil {
		return nil, err
	}
	defer rows.Release()
	known := map[[2]uint64]struct{}{}
	for rows.Next() {
		a := rows.RecordBatch().Column(0)
		for i := range a.Len() {
			if a.IsNull(i) {
				continue
			}
			key := cellKey(a, i)
			if _, is := known[key]; is {
				continue
			}
			if c.budget--; c.budget < 0 {
				return nil, fault.New(fault.TooLarge, "%s has more distinct values than can be checked at once", v.Ref()).
					WithHint("Raise dataset.unique_keys (48 bytes of memory for each), or leave the expectation out.")
			}
			known[key] = struct{}{}
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
	return known, rows.Err()
}

// nowOf is a time in the unit of a column.
func nowOf(t Type, now time.Time) (int64, error) {
	switch t {
	case table.Timestamp:
		return now.UnixMicro(), nil
	case table.Date:
		return int64(math.Floor(float64(now.Unix()) / 86400)), nil
	default:
	}
	return 0, fmt.Errorf("a column of %s has no times", t)
}

// fresh looks for the newest time that has come.
func (k *check) fresh(rec arrow.RecordBatch, row func(i int) int64) {
	a := rec.Column(k.cols[0])
	for i := range a.Len() {
		if a.IsNull(i) {
			continue
		}
		k.checked++
		if at := cellInt(a, i); at > k.newest && at <= k.now {
			k.newest, k.newestAt = at, row(i)
		}
	}
}

// judgeFresh says whether the newest time is too long ago. The reason names no value.
func (k *check) judgeFresh() {
	if k.problem != "" {
		return
	}
	if k.newest == math.MinInt64 {
		k.problem = "no time in it has come yet"
		return
	}
	most, _ := resource.ParseDuration(k.e.Within) // validated
	unit, text := time.Microsecond, timestampText(k.newest)
	if k.days {
		unit, text = 24*time.Hour, dateText(k.newest)
	}
	if age := k.now - k.newest; age > int64(most/unit) {
		k.problem = "the newest time is longer ago"
		x := Example{Row: k.newestAt, Column: k.e.Column, Hidden: k.hide}
		if !k.hide {
			x.Value = text
		}
		k.examples = []Example{x}
	}
}

// drifted judges the drift expectations by the pictures of the new version and of
// the newest accepted one.
func (s *Service) drifted(ctx context.Context, w draft, c *checker, now picture) error {
	var asked []*check
	for _, k := range c.checks {
		switch {
		case k.e.Check != Drift || k.problem != "":
		case w.redacts != nil:
			k.note = notAgain
		default:
			asked = append(asked, k)
		}
	}
	if len(asked) == 0 {
		return nil
	}
	base, before, err := s.lastGood(ctx, w, asked)
	if err != nil {
		return err
	}
	for _, k := range asked {
		if base.ID == "" {
			k.note = "there is no version before it"
			continue
		}
		k.against = base.Ref().String()
		if err := k.compare(before.Columns[k.e.Column], now.Columns[k.e.Column]); err != nil {
			return err
		}
	}
	return nil
}

// lastGood is the newest accepted version and its picture, read as the columns of the
// checks would be; of none, nothing.
func (s *Service) lastGood(ctx context.Context, w draft, asked []*check) (v Version, p picture, err error) {
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		d, err := s.live(ctx, tx, w.project, w.name)
		if err != nil || d.Accepted == 0 {
			return err
		}
		v, err = s.cfg.Store.Version(ctx, tx, d.ID, d.Accepted)
		return err
	})
	if err != nil || v.ID == "" {
		return v, p, err
	}
	var columns []string
	for _, k := range asked {
		if _, there := v.Schema.Column(k.e.Column); there && !slices.Contains(columns, k.e.Column) {
			columns = append(columns, k.e.Column)
		}
	}
	if len(columns) == 0 {
		return v, p, nil
	}
	if v, err = s.admit(ctx, OpenRequest{Project: w.project, Ref: v.Ref(), Columns: columns, Purpose: "drift of " + w.name}, false); err != nil {
		return v, p, fault.Wrap(err, "%s", asked[0].e)
	}
	if err := w.asClosed(asked[0].e, v); err != nil {
		return v, p, err
	}
	p, err = s.pictureOf(ctx, v)
	return v, p, err
}

// compare judges a column against what it was.
func (k *check) compare(was, is *sketch.Column) error {
	m, opts := k.e.drift(), drift.Options{Threshold: defaultDrift}
	if v, ok := number(k.e.Max); ok {
		opts.Threshold = v
	}
	if v, ok := number(k.e.Min); ok {
		opts.Alpha = v
	}
	switch {
	case was == nil:
		k.note = k.against + " has no such column"
		return nil
	case was.Kind() != is.Kind():
		k.problem = fmt.Sprintf("%s has it as %s", k.against, was.Kind())
		return nil
	case was.Count() > 0 && is.Count() == 0:
		k.problem = "it has no values any more"
		return nil
	}
	r, err := drift.Test(m, was, is, opts)
	if err != nil {
		k.problem = err.Error()
		return nil //nolint:nilerr // the method does not fit the column: the version fails
	}
	switch {
	case r.Outcome != drift.Compared:
		k.note = r.Note
		return nil
	case m.Distance():
		k.note = fmt.Sprintf("%s is %.3g, drift from %.3g on", m, r.Statistic, r.Threshold)
	default:
		k.note = fmt.Sprintf("%s has p = %.3g, drift below %.3g", m, r.PValue, r.Threshold)
	}
	if r.Drifted {
		k.problem, k.note = k.note+", against "+k.against, ""
	}
	return nil
}

// TellStale tells, by an event, of each dataset of a project that had no new version
// for longer than it says. It is a loop's to call, and asks no permission. It gives
// how many it told of.
func (s *Service) TellStale(ctx context.Context, p project.Name) (told int, err error) {
	err = s.eachDataset(ctx, p, func(d Dataset) error {
		late := false
		if err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
			_, late, err = s.late(ctx, tx, d)
			return err
		}); err != nil || !late {
			return err
		}
		return s.cfg.DB.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
			now, err := s.live(ctx, tx, p, d.Name)
			if fault.Is(err, fault.NotFound) {
				return nil // deleted meanwhile
			}
			if err != nil {
				return err
			}
			since, late, err := s.late(ctx, tx, now)
			if err != nil || !late {
				return err
			}
			now.Stale = true
			if err := s.cfg.Store.PutDataset(ctx, tx, now); err != nil {
				return err
			}
			if err := audit.Append(ctx, tx, audit.Entry{
				Project: string(p), Action: string(ActionImport), Object: "dataset " + d.Name, Reason: "no new version for " + now.Spec.Fresh, Detail: map[string]any{"change": "stale", "since": since},
			}); err != nil {
				return err
			}
			tx.OnCommit(func() { told++ })
			return event.Publish(ctx, tx, string(p), EventStale, Event{Dataset: now.ID, Name: now.Name, Number: now.Accepted})
		})
	})
	return told, err
}

// late reports whether a dataset had no new version for longer than it says, and was
// not told of; since is when the newest came.
func (s *Service) late(ctx context.Context, tx *store.Tx, d Dataset) (since time.Time, late bool, err error) {
	if d.Spec.Fresh == "" || d.Stale {
		return since, false, nil
	}
	most, _ := resource.ParseDuration(d.Spec.Fresh) // validated
	since, err = s.cameAt(ctx, tx, d)
	return since, err == nil && s.cfg.Now().Sub(since) > most, err
}

// cameAt is when the newest accepted version came, and not when it was redacted;
// without one, when the dataset was declared.
func (s *Service) cameAt(ctx context.Context, tx *store.Tx, d Dataset) (time.Time, error) {
	at := d.Created
	for n := d.Accepted; n > 0; {
		v, err := s.cfg.Store.Version(ctx, tx, d.ID, n)
		if err != nil {
			return at, err
		}
		at, n = v.Created, v.Redacts
	}
	return at, nil
}
