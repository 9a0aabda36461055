package tracking

import (
	"context"

	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// Erasure says what of a project's runs may hold personal data, for the erasure of persons. It
// asks no permission.
type Erasure struct{ *core }

// Holders lists the runs and logged models of a project that have files.
func (s *Erasure) Holders(ctx context.Context, tx *store.Tx, p project.Name) ([]Holder, error) {
	return s.store.Holders(ctx, tx, p)
}

// AnyRun reports whether a project has a run, active or deleted.
func (s *Erasure) AnyRun(ctx context.Context, tx *store.Tx, p project.Name) (bool, error) {
	all, err := s.store.SearchExperiments(ctx, tx, p, Query{View: ViewAll, Limit: 1000})
	if err != nil || len(all) == 0 {
		return false, err
	}
	q := Query{View: ViewAll, Limit: 1}
	for _, e := range all {
		q.Experiments = append(q.Experiments, e.ID)
	}
	runs, err := s.store.SearchRuns(ctx, tx, p, q)
	return len(runs) > 0, err
}
