package tuningsql

import (
	"context"

	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// Naming gives those of texts, such as digests of source archives, that a sweep of a project
// names in its specification.
func (Sweeps) Naming(ctx context.Context, tx *store.Tx, p project.Name, texts []string) (named []string, err error) {
	for _, text := range texts {
		n, err := tx.NewSelect().Table("tuning_sweep").Where("project = ? AND body LIKE ?", string(p), "%"+text+"%").Limit(1).Count(ctx)
		if err != nil {
			return nil, err
		}
		if n > 0 {
			named = append(named, text)
		}
	}
	return named, nil
}

// OfJobs gives those of a project's jobs that are trials of sweeps.
func (Sweeps) OfJobs(ctx context.Context, tx *store.Tx, p project.Name, jobs []string) (of []string, err error) {
	err = tx.NewSelect().Table("tuning_task").ColumnExpr("DISTINCT job").Where("job <> '' AND job IN (?)", store.Texts(jobs)).Where("project = ?", string(p)).Scan(ctx, &of)
	return of, err
}
