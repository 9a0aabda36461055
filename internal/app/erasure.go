package app

import (
	"context"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/privacy"
	"github.com/falaj-ml/falaj/internal/governance/privacy/privacysql"
	"github.com/falaj-ml/falaj/internal/usecase/erasure"
)

// openErasures opens what erases persons, with every place that keeps rows of them,
// and erases again whom a restored backup brought back, before anybody is answered.
func (a *App) openErasures(ctx context.Context) error {
	ledger, err := privacy.OpenLedger(a.cfg.LedgerPath(), a.keys.Lasting("erasure ledger"))
	if err != nil {
		return err
	}
	a.erasures = privacy.New(privacy.Config{
		DB: a.db, Store: privacysql.Store{}, Authorizer: a.authorizer, TwoPeople: a.requests, Sealer: a.keys, Ledger: ledger, Key: a.keys.Lasting("erased persons"), Log: a.log,
		Canonical: a.erasure.Canonical, Where: a.erasure.Where, Trained: a.erasure.Trained, Beyond: a.erasure.Remaining,
	})
	*a.erasure = erasure.Service{
		DB: a.db, Datasets: a.datasets, Ingestion: a.ingestion, Features: a.features, Predictions: a.predictions, Registry: a.registry.Erasure, Training: a.training.Records,
		Checkpoints: a.checkpoints, Tracking: a.tracking.Erasure, Monitoring: a.monitoring, Backups: a.cfg.Backup.Dir, Erasures: a.erasures, Log: a.log,
	}
	a.erasures.Register(a.erasure.Participants()...)
	if err := a.erasures.Recover(ctx); err != nil {
		return fault.Wrap(err, "erasures")
	}
	a.group.Add(a.erasures.Background())
	return nil
}
