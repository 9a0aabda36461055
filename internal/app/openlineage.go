package app

import (
	"context"

	"github.com/falaj-ml/falaj/internal/dataset/openlineage"
	"github.com/falaj-ml/falaj/internal/dataset/openlineage/openlineagesql"
	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/usecase/lineage"
)

// reportLineage is the subscription whose position says up to where lineage was reported.
const reportLineage = "openlineage"

// openLineage receives lineage from others and reports Falaj's own. The outbox is that of
// events: reports are in order, and survive a crash of the server.
func (a *App) openLineage(ctx context.Context) error {
	walks := &lineage.Service{
		Authorizer: a.authorizer, Datasets: a.datasets.Definitions, Features: a.features, Training: a.training.Jobs, Registry: a.registry.Versions, Serving: a.serving.Deployments,
		Guard: a.guard, Tables: a.cfg.TablesDir(), Log: a.log,
	}
	a.lineage = openlineage.New(openlineage.Config{
		DB: a.db, Store: openlineagesql.Store{}, Authorizer: a.authorizer, Datasets: a.datasets, Tables: a.cfg.TablesDir(), Objects: walks.Objects,
	})
	a.projects.Register(projectLineage{a.lineage})
	to := a.cfg.Lineage.OpenLineage
	if to.URL == "" {
		return fault.Wrap(event.Unsubscribe(ctx, a.db, reportLineage), "lineage")
	}
	reporter := lineage.Reporter{Service: walks, Sender: openlineage.NewSender(to.URL, to.TokenFile, nil), Zone: residency.Zone(to.Zone)}
	a.group.Add(event.Subscribe(a.db, event.Config{Name: reportLineage, Logger: a.log, Handle: reporter.Report, Names: lineage.Reported}).Service())
	return nil
}

// projectLineage goes with its project.
type projectLineage struct{ lineage *openlineage.Service }

// Contents implements tenancy.Contents.
func (c projectLineage) Contents(ctx context.Context, tx *store.Tx, p project.Name) (string, error) {
	return "", c.lineage.Forget(ctx, tx, p)
}
