package feature

import (
	"context"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/offline"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
)

// HistoryRequest asks for features as they were known at the time of each row, as
// a training set has them, without keeping the result.
type HistoryRequest struct {
	Project project.Name
	// Rows are the caller's own spine, which History releases. When it is nil, SQL
	// selects the spine from datasets.
	Rows array.RecordReader
	SQL  string
	// Timestamp is the spine's column with the time of each row. When it is empty,
	// that is event_timestamp or, without one, the only column of timestamps.
	Timestamp string
	Selection
}

// History is the spine with features, as it is read. Release it.
type History struct {
	array.RecordReader
	s       *access
	project project.Name
	inputs  []string // datasets that it reads, by version
	objects []policy.Object
	clear   []policy.Object // protected features that are shown as they are
}

// History joins features to the caller's rows. Needs feature.history on each view,
// and what reading the sources needs, which are journaled before the first row.
// Errors: as MakeTrainingSet; the result's Err has those of the spine.
func (s *OfflineReads) History(ctx context.Context, r HistoryRequest) (*History, error) {
	taken := r.Rows == nil // by the join, which then releases them
	defer func() {
		if !taken {
			r.Rows.Release()
		}
	}()
	pl, err := s.resolve(ctx, r.Project, r.Selection)
	if err != nil {
		return nil, err
	}
	used, views, objects, err := s.planViews(ctx, r.Project, pl)
	if err != nil {
		return nil, err
	}
	purpose, err := s.forPurpose(ctx, ActionHistory, r.Project, pl, r.Purpose)
	if err != nil {
		return nil, err
	}
	sees, err := s.show(ctx, pl, objects)
	if err != nil {
		return nil, err
	}
	h := &History{s: s.access, project: r.Project, objects: objects, clear: sees.clear}
	for _, u := range used {
		h.read(u.Inputs)
	}
	var schema *arrow.Schema
	spine := offline.Spine{Timestamp: r.Timestamp}
	if r.Rows != nil {
		schema = r.Rows.Schema()
		spine.Open = func(context.Context) (array.RecordReader, error) {
			taken = true
			return r.Rows, nil
		}
	} else {
		src := Source{SQL: r.SQL, TimeZone: "UTC"} // which Feast takes times without a zone for
		if err := src.validate("spine"); err != nil {
			return nil, err
		}
		if schema, err = s.look(ctx, r.Project, &src); err != nil {
			return nil, fault.Wrap(err, "inspecting the spine")
		}
		inputs, err := s.streams.pin(ctx, r.Project, src)
		if err != nil {
			return nil, fault.Wrap(err, "the spine")
		}
		h.read(refsOf(inputs))
		spine.Open = s.spine(r.Project, src, refsOf(inputs))
	}
	if spine.Timestamp == "" {
		if spine.Timestamp, err = TimeOf(schema); err != nil {
			return nil, err
		}
	}
	if err := checkSpine(schema, TrainingSetRequest{Timestamp: spine.Timestamp}, pl); err != nil {
		return nil, err
	}
	if err := s.journalHistory(ctx, r.Project, pl, purpose, sees); err != nil {
		return nil, err
	}
	joined, err := offline.Join(ctx, spine, views, s.cfg.Join)
	if err != nil {
		return nil, fault.Wrap(err, "joining features")
	}
	rows, _ := pl.finish(ctx, joined)
	if h.RecordReader, err = s.hiding(ctx, r.Project, rows, pl.hides(sees)); err != nil {
		return nil, err
	}
	return h, nil
}

// CheckHistory refuses what cannot be joined to rows with that schema, as History and
// MakeTrainingSet do, before anything is made of them.
func (s *OfflineReads) CheckHistory(ctx context.Context, r HistoryRequest, schema *arrow.Schema) error {
	pl, err := s.resolve(ctx, r.Project, r.Selection)
	if err != nil {
		return err
	}
	if _, _, _, err := s.planViews(ctx, r.Project, pl); err != nil {
		return err
	}
	if _, err := s.forPurpose(ctx, ActionHistory, r.Project, pl, r.Purpose); err != nil {
		return err
	}
	return checkSpine(schema, TrainingSetRequest{Timestamp: r.Timestamp}, pl)
}

// read notes versions that the result is made of.
func (h *History) read(inputs []InputRef) {
	for _, in := range inputs {
		if !slices.Contains(h.inputs, in.Dataset) {
			h.inputs = append(h.inputs, in.Dataset)
		}
	}
}

// Reauthorize asks whether the caller may go on reading the result: the features, and the
// data that they are made of.
func (h *History) Reauthorize(ctx context.Context) error {
	for _, o := range h.objects {
		if err := h.s.cfg.Authorizer.Allow(ctx, ActionHistory, o); err != nil {
			return err
		}
	}
	for _, ref := range h.inputs {
		if err := h.s.cfg.Data.Reauthorize(ctx, h.project, ref); err != nil {
			return err
		}
	}
	for _, o := range h.clear {
		ok, err := h.s.permits(ctx, o)
		if err != nil {
			return err
		}
		if !ok {
			return fault.New(fault.PermissionDenied, "feature %s may no longer be read unprotected", o.Name).WithHint("Read again.")
		}
	}
	return nil
}

// TimeOf finds the column with the time of each row.
func TimeOf(schema *arrow.Schema) (string, error) {
	const usual = "event_timestamp"
	var all, times []string
	for _, f := range schema.Fields() {
		if f.Name == usual {
			return usual, nil
		}
		all = append(all, f.Name)
		if f.Type.ID() == arrow.TIMESTAMP {
			times = append(times, f.Name)
		}
	}
	if len(times) == 1 {
		return times[0], nil
	}
	why := "no timestamp column"
	if len(times) > 1 {
		why = "several timestamp columns: " + strings.Join(times, ", ")
	}
	return "", fault.New(fault.Invalid, "the rows have no column %s and %s", usual, why).
		WithHint("Name the column with the event timestamp of each row %s. The columns are %s.", usual, clipList(all))
}
