package dataset

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/falaj-ml/falaj/internal/dataset/expectation"
	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/store"
)

// ApplyRequest declares a dataset.
type ApplyRequest struct {
	Project project.Name
	Name    string
	Spec    Spec
	// IfRevision refuses the change when the dataset has another revision; 0
	// does not look.
	IfRevision int64
	DryRun     bool // say what would happen, change nothing

	asked time.Time // what was deleted since is not declared again; zero does not look
}

// Apply creates or updates the dataset from its manifest. Existing versions do not change. A
// job's attempt may declare new datasets, and change none. Needs dataset.import, dataset.delete
// to keep fewer versions, and dataset.query on what new expectations read. Errors:
// fault.Invalid; fault.Conflict for another revision; fault.PermissionDenied for a wider
// residency while there are versions.
func (s *Definitions) Apply(ctx context.Context, r ApplyRequest) (Dataset, project.Change, error) {
	was, err := s.allowed(ctx, ActionImport, r.Project, r.Name)
	if err != nil && !fault.Is(err, fault.NotFound) {
		return Dataset{}, "", err
	}
	if r.Spec.Keep.Versions > 0 && r.Spec.Keep != was.Spec.Keep {
		if _, err := s.allowed(ctx, ActionDelete, r.Project, r.Name); err != nil && !fault.Is(err, fault.NotFound) {
			return Dataset{}, "", fault.Wrap(err, "spec.keep removes versions")
		}
	}
	if err := r.Spec.Validate(); err != nil {
		return Dataset{}, "", err
	}
	if len(r.Spec.Residency) > 0 {
		r.Spec.Residency = residency.Of(r.Spec.Residency...)
	}
	r.Spec = r.Spec.withDefaults()
	added := slices.DeleteFunc(slices.Clone(r.Spec.Expectations), func(e expectation.Rule) bool {
		return slices.ContainsFunc(was.Spec.Expectations, func(o expectation.Rule) bool { return sameJSON(e, o) })
	})
	if err := s.mayRunExpectations(ctx, r.Project, r.Name, added); err != nil {
		return Dataset{}, "", err
	}
	def, err := s.defaults(ctx, r.Project)
	if err != nil {
		return Dataset{}, "", err
	}
	var d Dataset
	var change project.Change
	do := func(ctx context.Context, tx *store.Tx) (err error) {
		if s.cfg.Zones != nil {
			if err := s.cfg.Zones.Known(ctx, tx, r.Spec.Residency); err != nil {
				return err
			}
		}
		d, change, err = s.plan(ctx, tx, r, def)
		if err != nil || change == project.Unchanged || r.DryRun {
			return err
		}
		if err := s.cfg.Store.PutDataset(ctx, tx, d); err != nil {
			return err
		}
		if err := audit.Append(ctx, tx, audit.Entry{
			Project: string(d.Project), Action: string(ActionImport), Object: "dataset " + d.Name,
			Detail: map[string]any{"change": change, "revision": d.Revision, "spec": d.Spec.digest(), "classification": d.Spec.Classification, "residency": def.residency(d.Spec).Zones()},
		}); err != nil {
			return err
		}
		return event.Publish(ctx, tx, string(d.Project), EventApplied, Event{Dataset: d.ID, Name: d.Name})
	}
	if r.DryRun {
		err = s.cfg.DB.View(ctx, do)
	} else {
		err = s.cfg.DB.Update(ctx, string(r.Project), do)
	}
	if err != nil {
		return Dataset{}, "", err
	}
	return d, change, nil
}

// plan is what the dataset becomes.
func (s *core) plan(ctx context.Context, tx *store.Tx, r ApplyRequest, def Defaults) (Dataset, project.Change, error) {
	now := s.cfg.Now().UTC()
	d, err := s.cfg.Store.Dataset(ctx, tx, r.Project, r.Name)
	missing := fault.Is(err, fault.NotFound)
	if err != nil && !missing {
		return Dataset{}, "", err
	}
	if r.IfRevision != 0 && (missing || d.Deleted || d.Revision != r.IfRevision) {
		return Dataset{}, "", fault.New(fault.Conflict, "dataset %s is no longer at revision %d", r.Name, r.IfRevision).WithHint("Read the dataset again and repeat the change.")
	}
	if missing {
		return Dataset{
			ID: ID(id.New("ds")), Project: r.Project, Name: r.Name, Spec: r.Spec, Revision: 1,
			Owner: createdBy(identity.From(ctx)), Created: now, Updated: now,
		}, project.Created, nil
	}
	if d.Deleted {
		if !r.asked.IsZero() && d.Updated.After(r.asked) {
			return Dataset{}, "", fault.New(fault.Gone, "dataset %s was deleted while its rows were being produced", d.Name).
				WithHint("If you still need it, apply its manifest and produce the rows again.")
		}
		d.Stale = false
		d.Deleted, d.Spec, d.Owner, d.Created, d.Updated = false, r.Spec, createdBy(identity.From(ctx)), now, now
		d.Revision++
		return d, project.Created, nil
	}
	if sameSpec(d.Spec, r.Spec) {
		return d, project.Unchanged, nil
	}
	if who := identity.From(ctx); who.Kind == identity.Attempt {
		return Dataset{}, "", fault.New(fault.PermissionDenied, "%s may write dataset %s but not change its specification", who, d.Name).
			WithHint("Apply the manifest as a user with the permission dataset.import.")
	}
	was, want := def.residency(d.Spec), def.residency(r.Spec)
	if d.Latest > 0 && !want.Within(was) {
		return Dataset{}, "", fault.New(fault.PermissionDenied, "dataset %s has the residency %s, and the manifest widens it to %s", d.Name, was, want).
			WithHint("Widening a residency needs a second approver and a reason. To keep data in other zones, declare another dataset.")
	}
	declared, lower := def.classification(d.Spec), def.classification(r.Spec)
	if d.Latest > 0 && project.Strictest(declared, lower) != lower {
		return Dataset{}, "", fault.New(fault.PermissionDenied, "dataset %s is classified as %s, and the manifest lowers it to %s", d.Name, declared, lower).
			WithHint("Lowering a classification needs a second approver and a reason: falaj dataset relabel %s --classification %s --reason …", d.Name, lower)
	}
	d.Stale = d.Stale && d.Spec.Fresh == r.Spec.Fresh
	d.Spec, d.Updated = r.Spec, now
	d.Revision++
	return d, project.Updated, nil
}

func sameSpec(a, b Spec) bool { return sameJSON(a, b) }

func sameJSON(a, b any) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && slices.Equal(x, y)
}
