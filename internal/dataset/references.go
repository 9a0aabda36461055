package dataset

import (
	"context"
	"fmt"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/zeebo/xxh3"

	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/drift"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/id"
)

// Expectations that need more than the rows of the version: another dataset, the
// version before, the time. A version that failed one may be accepted when the same
// bytes come again.

// notJudgedAgain is the note of expectations that are not evaluated for a version that replaces
// another one.
const notJudgedAgain = "not judged again"

// validateContextual refuses what refers, fresh and drift cannot mean.
func (e Expectation) validateContextual(bad func(format string, args ...any) error) error {
	switch {
	case (e.In != nil) != (e.Check == Refers):
		return bad("the check refers requires in, such as {dataset: customers, column: id}, and other checks take none")
	case (e.Within != "") != (e.Check == Fresh):
		return bad("the check fresh requires within, such as 24h, and other checks take none")
	case e.Method != "" && e.Check != Drift:
		return bad("method is valid only with the check drift")
	case e.Mostly != 0 && (e.Check == Fresh || e.Check == Drift):
		return bad("it checks the column as a whole, so mostly has no effect")
	}
	switch e.Check {
	case Refers:
		if err := id.CheckName("dataset name", e.In.Dataset); err != nil {
			return bad("%v", err)
		}
		if e.In.Column == "" {
			return bad("in.column is required")
		}
	case Fresh:
		if err := checkAge(e.Within); err != nil {
			return bad("within: %v", err)
		}
	case Drift:
		m := e.driftMethod()
		if m == drift.Auto || !slices.Contains(drift.Methods(), m) {
			return bad("there is no method %q; they are %v", e.Method, slices.DeleteFunc(drift.Methods(), func(m drift.Method) bool { return m == drift.Auto }))
		}
		least, hasLeast := number(e.Min)
		most, hasMost := number(e.Max)
		switch {
		case m.Distance() && (e.Min != nil || e.Max != nil && !(hasMost && most > 0)):
			return bad("%s is a distance: set only max, the drift threshold, to a number over 0", m)
		case !m.Distance() && (e.Max != nil || !hasLeast || !(least > 0 && least < 1)):
			return bad("%s is a test: set only min, the least p-value, to a number between 0 and 1, such as 0.001", m)
		}
	case NotNull, Unique, Between, InSet, Matches, Length, HasColumn, RowCount:
	}
	return nil
}

// readsDataset is the dataset whose rows the expectation reads beside those that it judges;
// own is the one that it is of. Empty is none.
func (e Expectation) readsDataset(own string) string {
	switch e.Check {
	case Refers:
		return e.In.Dataset
	case Drift:
		return own
	case NotNull, Unique, Between, InSet, Matches, Length, HasColumn, RowCount, Fresh:
	}
	return ""
}

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

func (s *core) mayRunExpectations(ctx context.Context, p project.Name, name string, es []Expectation) error {
	for _, e := range es {
		read := e.readsDataset(name)
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

// requireAsProtected refuses to judge by a version that is more closed than the one that is
// made: verdicts, and which rows were kept, tell of it.
func (w draft) requireAsProtected(e Expectation, by Version) error {
	if w.residency.Within(by.Residency) && project.Strictest(w.classification, by.Classification) == w.classification {
		return nil
	}
	return fault.New(fault.Conflict, "%s: %s is %s with the residency %s, and %s is %s with the residency %s", e, by.Ref(), by.Classification, by.Residency, w.name, w.classification, w.residency).
		WithHint("A verdict reveals data of the referenced version. Give the dataset at least its classification and residency, or remove the expectation.")
}

// loadReferences reads the values that expectations of the checker refer to. Who imports must
// be allowed to read them, and the version may be only where they may be, and is as
// closed.
func (s *core) loadReferences(ctx context.Context, w draft, v Version, c *checker) error {
	for _, k := range c.checks {
		if k.e.Check != Refers || k.problem != "" {
			continue
		}
		if w.redacts != nil {
			k.note = notJudgedAgain
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
		if err := w.requireAsProtected(k.e, to); err != nil {
			return err
		}
		if k.seen, err = s.referencedValues(ctx, to, k.e, c); err != nil {
			return fault.Wrap(err, "%s", k.e)
		}
		k.holds = func(a arrow.Array, i int) bool {
			_, is := k.seen[valueDigest(a, i)]
			return is
		}
	}
	return nil
}

func valueDigest(a arrow.Array, i int) [2]uint64 {
	var room [64]byte
	h := xxh3.Hash128(appendCell(room[:0], a, i))
	return [2]uint64{h.Hi, h.Lo}
}

// referencedValues is the digests of a column's different values.
func (s *core) referencedValues(ctx context.Context, v Version, e Expectation, c *checker) (map[[2]uint64]struct{}, error) {
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
			key := valueDigest(a, i)
			if _, is := known[key]; is {
				continue
			}
			if c.budget--; c.budget < 0 {
				return nil, fault.New(fault.TooLarge, "%s has too many distinct values for the memory limit", v.Ref()).
					WithHint("Raise dataset.unique_keys (48 bytes of memory per key), or remove the expectation.")
			}
			known[key] = struct{}{}
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
	return known, rows.Err()
}
