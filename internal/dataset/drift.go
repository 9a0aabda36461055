package dataset

import (
	"context"
	"fmt"
	"slices"

	"github.com/falaj-ml/falaj/internal/drift"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/sketch"
	"github.com/falaj-ml/falaj/internal/store"
)

// defaultDrift is the default drift threshold of a distance: the usual value for a major shift
// by PSI.
const defaultDrift = 0.25

// driftMethod is the method of a drift expectation.
func (e Expectation) driftMethod() drift.Method {
	if e.Method == "" {
		return drift.PSI
	}
	return drift.Method(e.Method)
}

// checkDrift checks the drift expectations: it compares the sketches of the new version with those of
// the newest accepted one.
func (s *core) checkDrift(ctx context.Context, w draft, c *checker, now columnSketches) error {
	var asked []*check
	for _, k := range c.checks {
		switch {
		case k.e.Check != Drift || k.problem != "":
		case w.redacts != nil:
			k.note = notJudgedAgain
		default:
			asked = append(asked, k)
		}
	}
	if len(asked) == 0 {
		return nil
	}
	base, before, err := s.lastAccepted(ctx, w, asked)
	if err != nil {
		return err
	}
	for _, k := range asked {
		if base.ID == "" {
			k.note = "there is no previous version"
			continue
		}
		k.against = base.Ref().String()
		if err := k.checkColumnDrift(before.Columns[k.e.Column], now.Columns[k.e.Column]); err != nil {
			return err
		}
	}
	return nil
}

// lastAccepted is the newest accepted version and its sketches, read as the columns of the
// checks would be; of none, nothing.
func (s *core) lastAccepted(ctx context.Context, w draft, asked []*check) (v Version, p columnSketches, err error) {
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
	if err := w.requireAsProtected(asked[0].e, v); err != nil {
		return v, p, err
	}
	p, err = s.sketchesOf(ctx, v)
	return v, p, err
}

// judgeColumnDrift judges a column against what it was.
func (k *check) checkColumnDrift(was, is *sketch.Column) error {
	m, opts := k.e.driftMethod(), drift.Options{Threshold: defaultDrift}
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
		k.problem = fmt.Sprintf("its type in %s is %s", k.against, was.Kind())
		return nil
	case was.Count() > 0 && is.Count() == 0:
		k.problem = "all its values are null"
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
		k.note = fmt.Sprintf("%s is %.3g, with the drift threshold %.3g", m, r.Statistic, r.Threshold)
	default:
		k.note = fmt.Sprintf("%s has the p-value %.3g, with the drift threshold %.3g", m, r.PValue, r.Threshold)
	}
	if r.Drifted {
		k.problem, k.note = k.note+", against "+k.against, ""
	}
	return nil
}
