package trackingsql

import (
	"context"

	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/tracking"
)

// number is what stands for the number in the path of an attempt's log.
const number = "REPLACE(REPLACE(a.path, 'logs/attempt-', ''), '.log', '')"

// logged is whether anybody logged something to a run r of a job: all but what Falaj itself
// put there when it made the run and stored the log of each attempt, logs/attempt-1.log. LIKE
// is not used: in SQLite it does not tell small letters from capitals.
const logged = `EXISTS (SELECT 1 FROM tracking_metric_latest m WHERE m.run = r.id)
	OR EXISTS (SELECT 1 FROM tracking_model m WHERE m.run = r.id AND m.run <> '')
	OR EXISTS (SELECT 1 FROM tracking_model_link l WHERE l.run = r.id)
	OR EXISTS (SELECT 1 FROM tracking_param p WHERE p.run = r.id AND SUBSTR(p.key, 1, 6) <> 'falaj.')
	OR EXISTS (SELECT 1 FROM tracking_tag t WHERE t.run = r.id AND SUBSTR(t.key, 1, 6) <> 'falaj.' AND t.key NOT IN ('mlflow.runName', 'mlflow.user'))
	OR EXISTS (SELECT 1 FROM tracking_artifact a WHERE a.owner = r.id AND NOT
		(a.path = 'logs/attempt-' || ` + number + ` || '.log' AND ` + number + ` <> '' AND LTRIM(` + number + `, '0123456789') = ''))`

// OfJobs implements tracking.PruneStore.
func (PruneStore) OfJobs(ctx context.Context, tx *store.Tx, p project.Name, jobs []string) ([]tracking.OfJob, error) {
	var out []tracking.OfJob
	err := chunks(jobs, func(jobs []string) error {
		var rows []struct {
			ID, Job, Name string
			Experiment    int64
			Logged        bool
		}
		err := tx.NewRaw("SELECT r.id, r.job, r.name, r.experiment, ("+logged+") AS logged FROM tracking_run r WHERE r.job <> '' AND r.job IN (?) AND r.project = ? ORDER BY r.id",
			store.Texts(jobs), string(p)).Scan(ctx, &rows)
		for _, r := range rows {
			out = append(out, tracking.OfJob{
				Job: r.Job, Logged: r.Logged,
				Marked: tracking.Marked{Place: tracking.Place{Run: tracking.RunID(r.ID)}, Name: r.Name, Experiment: tracking.ExperimentID(r.Experiment)},
			})
		}
		return err
	})
	return out, err
}

// MarkRun implements tracking.PruneStore.
func (PruneStore) MarkRun(ctx context.Context, tx *store.Tx, run tracking.RunID, at store.Time) error {
	_, err := exists(ctx, tx, "UPDATE tracking_run SET stage = 'deleted', status = CASE WHEN status IN ('RUNNING', 'SCHEDULED') THEN 'KILLED' ELSE status END, deleted = ? WHERE id = ?", at, string(run))
	return err
}
