package tracking

import (
	"context"

	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// Contents implements tenancy.Contents: a project with runs or experiments is not deleted.
type Contents struct {
	Store interface {
		SearchExperiments(ctx context.Context, tx *store.Tx, p project.Name, q Query) ([]Experiment, error)
		SearchRuns(ctx context.Context, tx *store.Tx, p project.Name, q Query) ([]Run, error)
		SearchLoggedModels(ctx context.Context, tx *store.Tx, p project.Name, q Query) ([]LoggedModel, error)
	}
}

// Contents implements tenancy.Contents.
func (c Contents) Contents(ctx context.Context, tx *store.Tx, p project.Name) (string, error) {
	const what = "runs and experiments"
	// Deleted ones stay for a while to be restored; they go with the project.
	live, err := c.Store.SearchExperiments(ctx, tx, p, Query{View: ViewActive, Limit: 2})
	if err != nil {
		return "", err
	}
	for _, e := range live {
		if e.ID != 0 {
			return what, nil
		}
		// Every project has the experiment Default: what counts is in it.
		q := Query{View: ViewActive, Experiments: []ExperimentID{e.ID}, Limit: 1}
		runs, err := c.Store.SearchRuns(ctx, tx, p, q)
		if err != nil || len(runs) > 0 {
			return what, err
		}
		logged, err := c.Store.SearchLoggedModels(ctx, tx, p, q)
		if err != nil || len(logged) > 0 {
			return what, err
		}
	}
	return "", nil
}
