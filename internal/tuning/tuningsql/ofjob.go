package tuningsql

import (
	"context"

	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// OfJobs gives those of a project's jobs that are trials of sweeps.
func (Sweeps) OfJobs(ctx context.Context, tx *store.Tx, p project.Name, jobs []string) (of []string, err error) {
	err = tx.NewSelect().Table("tuning_task").ColumnExpr("DISTINCT job").Where("job <> '' AND job IN (?)", store.Texts(jobs)).Where("project = ?", string(p)).Scan(ctx, &of)
	return of, err
}
