package deletions

import (
	"context"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/app/schema"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/deletion"
	"github.com/falaj-ml/falaj/internal/monitoring"
	"github.com/falaj-ml/falaj/internal/monitoring/monitoringsql"
	"github.com/falaj-ml/falaj/internal/registry/registrysql"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/gateway"
	"github.com/falaj-ml/falaj/internal/serving/gateway/gatewaysql"
	"github.com/falaj-ml/falaj/internal/serving/servingsql"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/store/storetest"
	"github.com/falaj-ml/falaj/internal/training"
	"github.com/falaj-ml/falaj/internal/training/trainingsql"
)

// TestWhatCitesWhat: what cites an object is named before it goes.
func TestWhatCitesWhat(t *testing.T) {
	db := storetest.SQLite(t, schema.Migrations...)
	s := Service{
		DB: db, Training: training.New(training.Config{DB: db, Store: trainingsql.Store{}}).Records, Monitoring: monitoring.New(monitoring.Config{DB: db, Store: monitoringsql.Store{}}),
		Serving: serving.New(serving.Config{DB: db, Store: servingsql.Store{}}).Deployments, Gateways: gateway.New(gateway.Config{DB: db, Store: gatewaysql.Store{}}),
	}
	if err := db.Update(t.Context(), "nyc", func(ctx context.Context, tx *store.Tx) error {
		for _, r := range []string{
			`INSERT INTO training_job (id, project, name, digest, state, waiting, body, revision) VALUES ('job_2', 'nyc', 'more', 'd', 'succeeded', FALSE, '{"spec":{"resume":"job_1/last"}}', 1)`,
			`INSERT INTO monitoring_monitor VALUES ('nyc', 'm', 'mon_1', 'd', '{}', FALSE, '{}', 0, 0, 1)`,
			`INSERT INTO monitoring_monitor VALUES ('nyc', 'd', 'mon_2', 'd', '{}', TRUE, '{}', 0, 0, 1)`,
			`INSERT INTO monitoring_progress VALUES ('mon_1', 0, '', '', '{}', ''), ('mon_2', 0, '', '', '{}', '')`,
			`INSERT INTO gateway (project, name, spec, created_at, updated_at, revision) VALUES ('nyc', 'edge', '{"deployments":["d"]}', 0, 0, 1)`,
			`INSERT INTO registry_version (model, number, project, model_name, state, message, stage, description, source, run, logged_model, run_link, owner, created, updated, job, attempt, datasets, feature_views, environment, residency, classification, digest, key_id)
				VALUES ('mdl_1', 1, 'nyc', 'churn', 'ready', '', '', '', '', 'run_1', '', '', '', 0, 0, '', '', '[]', '[]', '', '["home"]', '', '', '')`,
		} {
			if _, err := tx.NewRaw(r).Exec(ctx); err != nil {
				return fault.Wrap(err, "%s", r)
			}
		}
		for _, c := range []struct{ kind, name, by string }{
			{"checkpoint", "job_1/last", "job job_2"},
			{"checkpoint", "job_1/first", ""},
			{"checkpoint", "job_2/last", ""},
			{"deployment", "d", "monitor m, gateway edge"},
			{"deployment", "e", ""},
			{"monitor", "m", ""},
		} {
			by, err := s.citing(c.kind).find(ctx, tx, "nyc", c.name)
			if err != nil || strings.Join(by, ", ") != c.by {
				t.Errorf("%s %s is cited by %q, %v", c.kind, c.name, by, err)
			}
		}
		for run, want := range map[string]bool{"run_1": true, "run_2": false} {
			if got, err := (registrysql.Store{}).FromRun(ctx, tx, "nyc", run); err != nil || got != want {
				t.Errorf("%s is cited: %v, %v", run, got, err)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := (deletion.Request{}).Allow("monitor m", []deletion.Citation{{By: "deployment d"}}); !fault.Is(err, fault.Conflict) {
		t.Error(err)
	}
}
