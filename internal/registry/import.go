package registry

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/tracking"
)

// ImportSpec is a version of another MLflow server, with its model. Number 0 is the
// model alone.
type ImportSpec struct {
	Model            Model  // its name, description, times and tags
	Number           int    // the version's
	Source           string // where its files are here, see ParseSource
	Run              tracking.RunID
	RunLink          string
	Description      string
	Stage            string
	Created, Updated time.Time
	Tags             []tracking.Pair
	Aliases          []string
}

// Import keeps a version of another MLflow server under its number and with its
// times, and makes its model if there is none. It is copied and signed as any other.
// made is false where it was there; then only what has no value here gets one, so
// that an import that was cut off is completed, and nothing that was changed here
// since is changed back. Aliases and stages are moved by the rules for them; lost
// says which were not. No webhook is told. Errors, beside those of CreateVersion:
// fault.Conflict when another version has the number.
func (s *Versions) Import(ctx context.Context, p project.Name, spec ImportSpec) (made bool, lost []string, err error) {
	if err := s.allow(ctx, tracking.ActionImport, p, spec.Model.Name); err != nil {
		return false, nil, err
	}
	stage := StageNone
	if spec.Stage != "" {
		if stage, err = ParseStage(spec.Stage); err != nil {
			return false, nil, err
		}
	}
	m, made, err := s.importModel(ctx, p, spec.Model)
	if err != nil || spec.Number == 0 {
		return made, nil, err
	}
	s.anew.Lock() // until what failed on the way has no files any more
	defer s.anew.Unlock()
	v, err := s.recorded(ctx, p, m.Name, spec.Number)
	switch {
	case err == nil && v.State != Failed && v.Created.UnixMilli() != spec.Created.UnixMilli():
		return false, nil, fault.New(fault.Conflict, "model %s already has a different version %d", m.Name, spec.Number).
			WithHint("Import into a project that has no model of this name.")
	case err == nil && v.State == Ready:
		made = false
	case err == nil && v.State == Deleted:
		return false, []string{"version " + itoa(spec.Number) + " was deleted here"}, nil
	case err == nil && v.State == Pending:
		return false, nil, v.stillPending()
	case err == nil || fault.Is(err, fault.NotFound): // of what failed, the number is used again
		v, err = s.CreateVersion(ctx, p, m.Name, VersionSpec{
			Source: spec.Source, Run: spec.Run, RunLink: spec.RunLink, Description: spec.Description, Tags: spec.Tags, imported: &spec,
		})
		made = true
	}
	if err != nil {
		return false, nil, err
	}
	missing := slices.DeleteFunc(slices.Clone(spec.Aliases), func(alias string) bool { return m.aliased(alias) != 0 })
	if v.Stage != StageNone {
		stage = StageNone
	}
	if !made && stage == StageNone && len(missing) == 0 {
		return false, nil, nil
	}
	lost, err = s.settle(ctx, p, v, stage, missing, spec)
	return made, lost, err
}

// settle gives an imported version its stage, unless it is StageNone, its aliases, and
// with its model the times they had, all at once: where an import is cut off before it,
// the next one finds the same to do. What was changed here later stays of then.
func (s *Versions) settle(ctx context.Context, p project.Name, v Version, stage Stage, aliases []string, spec ImportSpec) (lost []string, err error) {
	may := s.allow(ctx, ActionPromote, p, v.Model)
	if may == nil {
		may = s.authz.Allow(ctx, ActionPromote, v.object())
	}
	err = s.db.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
		lost = nil
		m, err := s.store.Model(ctx, tx, p, v.Model)
		if err != nil {
			return err
		}
		v, err := s.liveVersion(ctx, tx, p, m.Name, v.Number)
		if err != nil {
			return err
		}
		// promote does what the rules for stages and aliases may forbid.
		promote := func(what, alias string, stage Stage, object string, detail map[string]any, do func() error) error {
			err := may
			if err == nil && alias != "" {
				err = checkAlias(alias)
			}
			if err == nil {
				err = s.approvals.Cleared(ctx, tx, p, m.Name, v.Number, alias, stage, false)
			}
			if fault.Is(err, fault.PermissionDenied) || fault.Is(err, fault.Invalid) || fault.Is(err, fault.Conflict) {
				lost = append(lost, what+": "+err.Error())
				return nil
			}
			if err == nil {
				err = do()
			}
			if err != nil {
				return err
			}
			return s.audit(ctx, tx, ActionPromote, p, "model "+object, detail)
		}
		if stage != StageNone {
			err := promote("stage "+string(stage), "", stage, v.String(), map[string]any{"act": "stage", "stage": string(stage)}, func() error {
				v.Stage = stage
				return nil
			})
			if err != nil {
				return err
			}
		}
		for _, alias := range aliases {
			if m.aliased(alias) != 0 {
				continue
			}
			err := promote("alias "+clip(alias), alias, "", m.Name, map[string]any{"act": "alias", "alias": alias, "version": v.Number}, func() error {
				return s.point(ctx, tx, p, &m, alias, v.Number, false)
			})
			if err != nil {
				return err
			}
		}
		m.Updated, v.Updated = later(m.Updated, spec.Model.Updated), later(v.Updated, spec.Updated)
		if err := s.store.PutModel(ctx, tx, m); err != nil {
			return err
		}
		if err := s.store.PutVersion(ctx, tx, v); err != nil {
			return err
		}
		return s.audit(ctx, tx, tracking.ActionImport, p, "model "+v.String(), map[string]any{"act": "import", "source": spec.Source})
	})
	return lost, err
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// importModel finds a model or makes it.
func (s *Versions) importModel(ctx context.Context, p project.Name, m Model) (Model, bool, error) {
	for _, err := range []error{CheckName(m.Name), checkText("description", m.Description, MaxDescription), checkTags(m.Tags)} {
		if err != nil {
			return Model{}, false, err
		}
	}
	made := false
	err := s.db.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
		there, err := s.store.Model(ctx, tx, p, m.Name)
		if made = fault.Is(err, fault.NotFound); err == nil || !made {
			m = there
			return err
		}
		m.Project, m.ID, m.Owner = p, ModelID(id.New("mdl")), identity.From(ctx).Owner()
		if err := s.store.PutModel(ctx, tx, m); err != nil {
			return err
		}
		if err := s.store.PutModelTags(ctx, tx, m.ID, m.Tags); err != nil {
			return err
		}
		return s.audit(ctx, tx, tracking.ActionImport, p, "model "+m.Name, map[string]any{"act": "import", "id": string(m.ID)})
	})
	return m, made, err
}

// recorded is a version in whatever state.
func (s *Versions) recorded(ctx context.Context, p project.Name, name string, number int) (Version, error) {
	var v Version
	err := s.db.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		var err error
		v, err = s.store.Version(ctx, tx, p, name, number)
		return err
	})
	return v, err
}

// number is that of a version to be made: the next one, or that of its server, unless
// something has it by now. One that failed is made anew.
func (s *Versions) number(ctx context.Context, tx *store.Tx, m Model, imported *ImportSpec) (int, error) {
	if imported == nil {
		return s.store.NextVersion(ctx, tx, m.ID)
	}
	state, err := s.store.State(ctx, tx, m.Project, m.ID, imported.Number)
	if fault.Is(err, fault.NotFound) || err == nil && state == Failed {
		return imported.Number, nil
	}
	return 0, cmp.Or[error](err, fault.New(fault.Conflict, "the model already has a version %d", imported.Number))
}

// times are when a version was made and last changed.
func (spec VersionSpec) times(now time.Time) (created, updated time.Time) {
	if spec.imported == nil {
		return now, now
	}
	return spec.imported.Created, spec.imported.Updated
}
