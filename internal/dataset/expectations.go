package dataset

import (
	"context"
	"slices"

	"github.com/falaj-ml/falaj/internal/dataset/expectation"
	"github.com/falaj-ml/falaj/internal/dataset/statistics"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// Expectations that need more than the rows of the version: another dataset, the version before,
// the time. A version that failed one may be accepted when the same bytes come again.

// MayRunExpectations checks that the caller may read the datasets that the expectations of a dataset
// read, because their results reveal something of them. A background loop may read everything, so
// this is checked for the user who sets it up. It needs dataset.query on those datasets.
func (s *Definitions) MayRunExpectations(ctx context.Context, p project.Name, name string) error {
	d, err := s.load(ctx, p, name)
	if err != nil {
		return err
	}
	return s.mayRunExpectations(ctx, p, name, d.Spec.Expectations)
}

func (s *core) mayRunExpectations(ctx context.Context, p project.Name, name string, es []expectation.Rule) error {
	for _, e := range es {
		read := e.ReadsDataset(name)
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

// requireAsProtected refuses to check against a version that is more closed than the one that is
// made: results, and which rows were kept, tell of it.
func (w draft) requireAsProtected(e expectation.Rule, by Version) error {
	if w.residency.Within(by.Residency) && project.Strictest(w.classification, by.Classification) == w.classification {
		return nil
	}
	return fault.New(fault.Conflict, "%s: %s is %s with the residency %s, and %s is %s with the residency %s", e, by.Ref(), by.Classification, by.Residency, w.name, w.classification, w.residency).
		WithHint("A result reveals data of the referenced version. Give the dataset at least its classification and residency, or remove the expectation.")
}

// loadReferences reads the values that expectations of the checker refer to. Who imports must
// be allowed to read them, and the version may be only where they may be, and is as
// closed.
func (s *core) loadReferences(ctx context.Context, w draft, c *expectation.Checker) error {
	for _, k := range c.References() {
		to, err := s.admit(ctx, OpenRequest{Project: w.project, Ref: Ref{Name: k.In.Dataset}, Columns: []string{k.In.Column}, Purpose: "reference of " + w.name}, false)
		if err != nil {
			return fault.Wrap(err, "%s", k)
		}
		f, _ := to.Schema.Column(k.In.Column)
		if !k.Begin(to.Ref().String(), f.Name, f.Type) {
			continue
		}
		if err := w.requireAsProtected(k.Rule, to); err != nil {
			return err
		}
		if err := s.readReferences(ctx, to, k); err != nil {
			return fault.Wrap(err, "%s", k)
		}
	}
	return nil
}

// readReferences reads the values of a column that rows may refer to.
func (s *core) readReferences(ctx context.Context, v Version, k expectation.Reference) error {
	rows, err := s.read(ctx, v, OpenRequest{Columns: []string{k.In.Column}})
	if err != nil {
		return err
	}
	defer rows.Release()
	for rows.Next() {
		if err := k.Add(rows.RecordBatch().Column(0)); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return rows.Err()
}

// checkDrift checks the drift expectations: it compares the sketches of the new version with those of
// the newest accepted one.
func (s *core) checkDrift(ctx context.Context, w draft, c *expectation.Checker, now statistics.Sketches) error {
	asked := c.Comparisons()
	if len(asked) == 0 {
		return nil
	}
	base, before, err := s.lastAccepted(ctx, w, asked)
	if err != nil {
		return err
	}
	for _, k := range asked {
		if base.ID == "" {
			k.Skip()
			continue
		}
		k.Compare(base.Ref().String(), before.Columns[k.Column], now.Columns[k.Column])
	}
	return nil
}

// lastAccepted is the newest accepted version and its sketches, read as the columns of the
// checks would be; of none, nothing.
func (s *core) lastAccepted(ctx context.Context, w draft, asked []expectation.Comparison) (v Version, p statistics.Sketches, err error) {
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
		if _, there := v.Schema.Column(k.Column); there && !slices.Contains(columns, k.Column) {
			columns = append(columns, k.Column)
		}
	}
	if len(columns) == 0 {
		return v, p, nil
	}
	if v, err = s.admit(ctx, OpenRequest{Project: w.project, Ref: v.Ref(), Columns: columns, Purpose: "drift of " + w.name}, false); err != nil {
		return v, p, fault.Wrap(err, "%s", asked[0].Rule)
	}
	if err := w.requireAsProtected(asked[0].Rule, v); err != nil {
		return v, p, err
	}
	p, err = s.sketchesOf(ctx, v)
	return v, p, err
}
