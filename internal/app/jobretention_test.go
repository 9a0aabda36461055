package app

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/app/schema"
	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/compute/computesql"
	"github.com/falaj-ml/falaj/internal/config"
	"github.com/falaj-ml/falaj/internal/dataset/ingestion"
	"github.com/falaj-ml/falaj/internal/dataset/ingestion/ingestionsql"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/feature/featuresql"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/request"
	"github.com/falaj-ml/falaj/internal/governance/request/requestsql"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/registry"
	"github.com/falaj-ml/falaj/internal/registry/registrysql"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/servingsql"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/store/storetest"
	"github.com/falaj-ml/falaj/internal/tracking"
	"github.com/falaj-ml/falaj/internal/tracking/trackingsql"
	"github.com/falaj-ml/falaj/internal/tracking/trackingtest"
	"github.com/falaj-ml/falaj/internal/training"
	"github.com/falaj-ml/falaj/internal/training/checkpoint"
	"github.com/falaj-ml/falaj/internal/training/trainingsql"
	"github.com/falaj-ml/falaj/internal/tuning/sweep"
	"github.com/falaj-ml/falaj/internal/tuning/tuningsql"
)

// aJob is one that ended some time ago, with what there is beside it.
type aJob struct {
	name   string
	ago    time.Duration
	resume string
	with   func(j *training.Job)
	gone   bool
	held   func(w *compute.Workload) // its engine is not done with it
}

func TestJobsAreForgotten(t *testing.T) { jobsAreForgotten(t, storetest.SQLite) }

func TestJobsAreForgottenByPostgreSQL(t *testing.T) { jobsAreForgotten(t, storetest.PostgreSQL) }

// jobsAreForgotten: a job that ended before the retention goes with all that there is of it,
// unless something names it; then its record stays, and its attempts.
func jobsAreForgotten(t *testing.T, open storetest.Open) {
	t.Helper()
	db := open(t, schema.Migrations...)
	tracks := tracking.New(tracking.Config{DB: db, Store: trackingsql.Store{}, Authz: trackingtest.Policy{"loop": {"p": {"*"}}}})
	ctx := identity.With(t.Context(), identity.Principal{Kind: identity.System, ID: "loop"})
	now := time.Now().UTC().Truncate(time.Microsecond)
	comp := compute.New(compute.Config{DB: db, Store: computesql.Store{}, Now: func() time.Time { return now }}).Records
	jobs := training.New(training.Config{
		DB: db, Store: trainingsql.Store{}, Keep: 30 * 24 * time.Hour, Traces: jobTraces{tracks.Retention, comp}, Now: func() time.Time { return now },
	})
	const old = 31 * 24 * time.Hour
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	write := func(do func(ctx context.Context, tx *store.Tx) error) {
		t.Helper()
		must(db.Update(ctx, "", do))
	}
	log := func(metrics []tracking.Metric, b tracking.Batch) func(j *training.Job) {
		return func(j *training.Job) {
			b.Metrics = metrics
			must(tracks.Logging.Log(ctx, "p", tracking.RunID(j.Run), b))
		}
	}
	file := func(path string) func(j *training.Job) {
		return func(j *training.Job) {
			write(func(ctx context.Context, tx *store.Tx) error {
				return trackingsql.Store{}.PutArtifact(ctx, tx, "p", tracking.Place{Run: tracking.RunID(j.Run)}.ID(), tracking.Stored{File: tracking.File{Path: path}, Object: j.Run + path})
			})
		}
	}
	cases := []aJob{
		{name: "nothing", ago: old, gone: true},
		{name: "its declared parameter", ago: old, gone: true, with: log(nil, tracking.Batch{Params: []tracking.Pair{{Key: "falaj.param.lr", Value: "1"}}})},
		{name: "not old enough", ago: 29 * 24 * time.Hour},
		{name: "not ended", ago: -1},
		{name: "metric", ago: old, with: log([]tracking.Metric{{Key: "loss", Value: 1, At: 1}}, tracking.Batch{})},
		{name: "parameter", ago: old, with: log(nil, tracking.Batch{Params: []tracking.Pair{{Key: "lr", Value: "1"}}})},
		{name: "note", ago: old, with: log(nil, tracking.Batch{Tags: []tracking.Pair{{Key: "mlflow.note.content", Value: "good"}}})},
		{name: "note in capitals", ago: old, with: log(nil, tracking.Batch{Tags: []tracking.Pair{{Key: "FALAJ.note", Value: "good"}}})},
		{name: "its log", ago: old, gone: true, with: file("logs/attempt-12.log")},
		{name: "file", ago: old, with: file("roc.png")},
		{name: "file beside its log", ago: old, with: file("logs/tensorboard.events")},
		{name: "file like its log", ago: old, with: file("logs/attempt-1-mine.log")},
		{name: "file like its log in capitals", ago: old, with: file("LOGS/attempt-1.log")},
		{name: "file without a number", ago: old, with: file("logs/attempt-.log")},
		{name: "file of a suffix", ago: old, with: file("logs/attempt-1.log.gz")},
		{name: "held", ago: old, held: func(w *compute.Workload) { w.Handle = "h" }},
		{name: "unsettled", ago: old, held: func(w *compute.Workload) { w.Settled = false }},
		{name: "held model", ago: old, held: func(w *compute.Workload) { w.Handle = "h" }, with: func(j *training.Job) { j.Model = "delay@2" }},
		{name: "logged model", ago: old, with: func(j *training.Job) {
			_, err := tracks.LoggedModels.CreateLoggedModel(ctx, "p", tracking.LoggedModelSpec{Experiment: 0, Name: "m", Run: tracking.RunID(j.Run)})
			must(err)
		}},
		{name: "registered model", ago: old, with: func(j *training.Job) {
			write(func(ctx context.Context, tx *store.Tx) error {
				return registrysql.Store{}.PutVersion(ctx, tx, registry.Version{Project: "p", ModelID: "mod_1", Model: "delay", Number: 1, State: registry.Ready, Origin: tracking.Origin{Job: string(j.ID)}})
			})
		}},
		{name: "sweep", ago: old, with: func(j *training.Job) {
			write(func(ctx context.Context, tx *store.Tx) error {
				return tuningsql.Sweeps{}.PutTask(ctx, tx, sweep.Task{Project: "p", Study: 1, Number: 1, Job: j.ID, Done: true})
			})
		}},
		{name: "automatic act", ago: old, with: func(j *training.Job) {
			write(func(ctx context.Context, tx *store.Tx) error {
				return servingsql.Store{}.InsertAction(ctx, tx, serving.AutoAction{ID: "act_1", Project: "p", Deployment: "d", Kind: serving.AutoRetrain, Cause: "c", Outcome: serving.AutoActionDone, Result: string(j.ID)})
			})
		}},
		{name: "checkpoint", ago: old, with: func(j *training.Job) {
			write(func(ctx context.Context, tx *store.Tx) error {
				return trainingsql.Checkpoints{}.InsertCheckpoint(ctx, tx, checkpoint.Record{ID: "ckp_1", Job: string(j.ID), Project: "p", Name: "step-1", Number: 1}, checkpoint.Manifest{})
			})
		}},
		{name: "model", ago: old, with: func(j *training.Job) { j.Model = "delay@1" }},
		{name: "dataset", ago: old, with: func(j *training.Job) { j.Dataset = "daily@1" }},
		{name: "tables", ago: old, with: func(j *training.Job) { j.Spec.Tables = []string{"lake"} }},
		{name: "resumed from", ago: old},
		{name: "resumes", ago: old, gone: true, resume: "job_resumed-from/step-1"},
	}
	for i, c := range cases {
		j := training.Job{
			ID: training.JobID("job_" + strings.ReplaceAll(c.name, " ", "-")), Project: "p", Name: "n", Digest: "d", State: training.Succeeded, Attempts: 1,
			SubmittedAt: now.Add(-c.ago - time.Hour), EndedAt: now.Add(-c.ago),
		}
		if c.ago < 0 {
			j.State, j.EndedAt = training.Running, time.Time{}
		}
		attempt := fmt.Sprint("att_", i)
		run, err := tracks.Runs.CreateRun(ctx, "p", tracking.RunSpec{Tags: []tracking.Pair{{Key: tracking.AttemptTag, Value: attempt}, {Key: "falaj.job", Value: string(j.ID)}}},
			tracking.RunOptions{Origin: tracking.Origin{Job: string(j.ID), Attempt: attempt}})
		must(err)
		j.Run = string(run.ID)
		write(func(ctx context.Context, tx *store.Tx) error {
			if err := (trainingsql.Store{}).InsertJob(ctx, tx, training.Job{ID: j.ID, Project: "p", State: training.Queued, Spec: training.Spec{Resume: c.resume}}); err != nil {
				return err
			}
			a := training.Attempt{ID: training.AttemptID(attempt), Job: j.ID, Number: 1, State: training.AttemptEnded, Run: j.Run, Machine: "m"}
			if err := (trainingsql.Store{}).InsertAttempt(ctx, tx, a); err != nil {
				return err
			}
			if err := (trainingsql.Store{}).InsertProfile(ctx, tx, training.Profile{ID: training.ProfileID(fmt.Sprint("prf_", i)), Job: j.ID, Project: "p", Attempt: a.ID}); err != nil {
				return err
			}
			w := compute.Workload{ID: compute.WorkloadID(attempt), Project: "p", Kind: compute.JobAttempt, Label: string(j.ID), State: compute.Ended, Settled: true, EndedAt: j.EndedAt}
			if c.held != nil {
				c.held(&w)
			}
			if err := (computesql.Store{}).InsertWorkload(ctx, tx, w); err != nil {
				return err
			}
			return computesql.Store{}.InsertUsage(ctx, tx, compute.Usage{
				Workload: w.ID, Project: "p", Kind: compute.JobAttempt, Label: string(j.ID), Pool: "home", Currency: "AED", Cost: 1,
				Started: now.Add(-c.ago - time.Hour), Ended: now.Add(-c.ago), Wall: time.Hour,
			})
		})
		if c.with != nil {
			c.with(&j)
		}
		write(func(ctx context.Context, tx *store.Tx) error { return trainingsql.Store{}.UpdateJob(ctx, tx, j) })
	}
	rows := func(query string) (n int) {
		t.Helper()
		must(db.View(ctx, func(ctx context.Context, tx *store.Tx) error { return tx.NewRaw(query).Scan(ctx, &n) }))
		return n
	}
	costs := func() (sum float64) {
		t.Helper()
		must(db.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
			sum, err = computesql.Store{}.Spent(ctx, tx, "p", "AED", time.Time{})
			return err
		}))
		return sum
	}
	check := func(gone func(name string, was bool) bool) {
		t.Helper()
		for i, c := range cases {
			var attempts, workloads int
			job := "job_" + strings.ReplaceAll(c.name, " ", "-")
			attempts = rows("SELECT COUNT(*) FROM training_attempt WHERE job = '" + job + "'")
			workloads = rows(fmt.Sprintf("SELECT COUNT(*) FROM compute_workload WHERE id = 'att_%d'", i))
			profiles := rows("SELECT COUNT(*) FROM training_profile WHERE job = '" + job + "'")
			runs := rows("SELECT COUNT(*) FROM tracking_run WHERE job = '" + job + "'")
			usage := rows("SELECT COUNT(*) FROM compute_usage WHERE label = '" + job + "'")
			there := rows("SELECT COUNT(*) FROM training_job WHERE id = '" + job + "'")
			got := fmt.Sprintf("job %d, attempts %d, run %d, usage %d, workload %d, profiles %d", there, attempts, runs, usage, workloads, profiles)
			want := "job 1, attempts 1, run 1, usage 1, workload 0, profiles 0" // trimmed
			switch {
			case gone(c.name, c.gone):
				want = "job 0, attempts 0, run 0, usage 0, workload 0, profiles 0"
			case c.ago < old || c.held != nil:
				want = "job 1, attempts 1, run 1, usage 1, workload 1, profiles 1"
			}
			if got != want {
				t.Errorf("%s: %s, want %s", c.name, got, want)
			}
		}
		if sum := costs(); sum != float64(len(cases)) {
			t.Errorf("they cost %v in all, want %d", sum, len(cases))
		}
	}
	must(jobs.Retention.Forget(ctx))
	check(func(_ string, gone bool) bool { return gone })
	if n := rows("SELECT COUNT(*) FROM tracking_pruned"); n != 0 {
		t.Errorf("%d runs wait for their points to be removed", n)
	}
	// What was kept is looked at again in a month, when nothing may resume from it any more.
	must(jobs.Retention.Forget(ctx))
	check(func(_ string, gone bool) bool { return gone })
	// What an engine held is looked at again in a day.
	write(func(ctx context.Context, tx *store.Tx) error {
		_, err := tx.NewRaw("UPDATE compute_workload SET settled = ?, handle = ''", true).Exec(ctx)
		return err
	})
	heldLeft := func() string {
		return fmt.Sprint(rows("SELECT COUNT(*) FROM training_job WHERE id IN ('job_held', 'job_unsettled')"), " jobs, ",
			rows("SELECT COUNT(*) FROM compute_workload w JOIN training_attempt a ON a.id = w.id WHERE a.job IN ('job_held', 'job_unsettled', 'job_held-model')"), " workloads")
	}
	must(jobs.Retention.Forget(ctx))
	if got := heldLeft(); got != "2 jobs, 3 workloads" {
		t.Errorf("before the day is over there are %s", got)
	}
	now = now.Add(24*time.Hour + time.Second)
	must(jobs.Retention.Forget(ctx))
	if got := heldLeft(); got != "0 jobs, 0 workloads" {
		t.Errorf("a day after the engine let go there are %s", got)
	}
	now = now.Add(29 * 24 * time.Hour)
	must(jobs.Retention.Forget(ctx))
	if n := rows("SELECT COUNT(*) FROM training_job WHERE id = 'job_resumed-from'"); n != 0 {
		t.Error("nothing resumes from it any more, and it is there")
	}
	if n := rows("SELECT COUNT(*) FROM training_job WHERE id = 'job_metric'"); n != 1 {
		t.Error("the job of a run with results is gone")
	}
}

// unreadable cannot say of one job what cites it.
type unreadable struct {
	jobTraces
	job training.JobID
}

func (u unreadable) Citing(ctx context.Context, tx *store.Tx, p project.Name, jobs []training.JobID) (map[training.JobID]string, error) {
	if u.job == "all" || slices.Contains(jobs, u.job) {
		return nil, errors.New("it cannot be read")
	}
	return u.jobTraces.Citing(ctx, tx, p, jobs)
}

// forgetful is a service of jobs that ended long ago, none of which has attempts.
func forgetful(t *testing.T, n int, clock func() time.Time, bad training.JobID) (forget func() error, left func() int) {
	t.Helper()
	db := storetest.SQLite(t, schema.Migrations...)
	ctx := identity.With(t.Context(), identity.Principal{Kind: identity.System, ID: "loop"})
	tracks := tracking.New(tracking.Config{DB: db, Store: trackingsql.Store{}, Authz: trackingtest.Policy{"loop": {"p": {"*"}}}})
	traces := unreadable{jobTraces{tracks.Retention, compute.New(compute.Config{DB: db, Store: computesql.Store{}}).Records}, bad}
	jobs := training.New(training.Config{DB: db, Store: trainingsql.Store{}, Keep: 30 * 24 * time.Hour, Traces: traces, Now: clock})
	ended := clock().Add(-31 * 24 * time.Hour)
	if err := db.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error {
		for i := range n {
			j := training.Job{ID: training.JobID(fmt.Sprintf("job_%04d", i)), Project: "p", State: training.Succeeded, EndedAt: ended.Add(time.Duration(i))}
			if err := (trainingsql.Store{}).InsertJob(ctx, tx, j); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return func() error { return jobs.Retention.Forget(ctx) }, func() (n int) {
		t.Helper()
		if err := db.View(ctx, func(ctx context.Context, tx *store.Tx) error {
			return tx.NewRaw("SELECT COUNT(*) FROM training_job").Scan(ctx, &n)
		}); err != nil {
			t.Fatal(err)
		}
		return n
	}
}

// TestOneJobThatCannotBeForgotten holds up no other, and is tried again a day later.
func TestOneJobThatCannotBeForgotten(t *testing.T) {
	now := time.Now()
	forget, left := forgetful(t, 120, func() time.Time { return now }, "job_0003")
	if err := forget(); err == nil || !strings.Contains(err.Error(), "job_0003") || left() != 1 {
		t.Fatalf("%v; %d jobs are left", err, left())
	}
	if err := forget(); err != nil || left() != 1 {
		t.Fatalf("at once: %v; %d jobs are left", err, left())
	}
	now = now.Add(25 * time.Hour)
	if err := forget(); err == nil || !strings.Contains(err.Error(), "job_0003") || left() != 1 {
		t.Fatalf("a day later: %v; %d jobs are left", err, left())
	}
}

// TestNoJobCanBeForgotten: it ends with the errors of one batch.
func TestNoJobCanBeForgotten(t *testing.T) {
	now := time.Now()
	forget, left := forgetful(t, 120, func() time.Time { return now }, "all")
	if err := forget(); err == nil || strings.Count(err.Error(), "it cannot be read") != 50 || left() != 120 {
		t.Fatalf("%v; %d jobs are left", err, left())
	}
}

// TestABacklogIsForgottenInParts: housekeeping goes on to its other tasks after some minutes.
func TestABacklogIsForgottenInParts(t *testing.T) {
	now := time.Now()
	forget, left := forgetful(t, 120, func() time.Time {
		now = now.Add(11 * time.Minute)
		return now
	}, "")
	for _, want := range []int{70, 20, 0, 0} {
		if err := forget(); err != nil || left() != want {
			t.Fatalf("%v; %d jobs are left, want %d", err, left(), want)
		}
	}
	db := storetest.SQLite(t, schema.Migrations...)
	var cfg config.Config
	cfg.Retention.Requests, cfg.Retention.Ingestions = "60d", "10d"
	if err := db.Update(t.Context(), "", func(ctx context.Context, tx *store.Tx) error {
		for i := range historyBatch + 10 {
			then := now.AddDate(0, 0, -70).Add(time.Duration(i) * time.Second)
			if err := (requestsql.Store{}).Put(ctx, tx, request.Request{ID: id.First("req", then), State: request.Done}); err != nil {
				return err
			}
			if err := (ingestionsql.Store{}).InsertRun(ctx, tx, ingestion.Run{ID: ingestion.RunID(id.First("ing", then)), Project: "p", Source: "s", State: ingestion.Failed, Clean: true}); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"10 requests, 10 ingestions", "0 requests, 1 ingestions"} { // the newest stays
		if err := forgetHistory(t.Context(), db, cfg, func() time.Time {
			now = now.Add(11 * time.Minute)
			return now
		}); err != nil {
			t.Fatal(err)
		}
		var requests, ingestions int
		if err := db.View(t.Context(), func(ctx context.Context, tx *store.Tx) error {
			return errors.Join(tx.NewRaw("SELECT COUNT(*) FROM request").Scan(ctx, &requests), tx.NewRaw("SELECT COUNT(*) FROM ingestion_run").Scan(ctx, &ingestions))
		}); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprintf("%d requests, %d ingestions", requests, ingestions); got != want {
			t.Errorf("%s are left, want %s", got, want)
		}
	}
}

// TestHistoryIsForgotten: what is decided and has ended goes after its time; what is under
// way stays, and so do the newest and the newest that succeeded.
func TestHistoryIsForgotten(t *testing.T) { historyIsForgotten(t, storetest.SQLite) }

func TestHistoryIsForgottenByPostgreSQL(t *testing.T) { historyIsForgotten(t, storetest.PostgreSQL) }

func historyIsForgotten(t *testing.T, open storetest.Open) {
	t.Helper()
	db := open(t, schema.Migrations...)
	now := time.Now()
	var cfg config.Config
	cfg.Retention.Requests, cfg.Retention.Ingestions, cfg.Retention.Materialisations, cfg.Predictions.Retention = "60d", "10d", "10d", "5d"
	made := func(prefix string, days int, n int) string { // an ID of then
		return id.First(prefix, now.AddDate(0, 0, -days).Add(time.Duration(n)*time.Second))
	}
	want := map[string]bool{}
	err := db.Update(t.Context(), "", func(ctx context.Context, tx *store.Tx) error {
		for i, c := range []struct {
			days  int
			state request.State
			stays bool
		}{
			{61, request.Done, false},
			{61, request.Failed, false},
			{61, request.Rejected, false},
			{70, request.Withdrawn, false},
			{70, request.Expired, false},
			{61, request.Requested, true},
			{61, request.Approved, true},
			{59, request.Done, true},
		} {
			r := request.Request{ID: made("req", c.days, i), State: c.state}
			want[r.ID] = c.stays
			if err := (requestsql.Store{}).Put(ctx, tx, r); err != nil {
				return err
			}
		}
		for i, c := range []struct {
			days   int
			source string
			state  ingestion.State
			clean  bool
			stays  bool
		}{
			{30, "a", ingestion.Succeeded, true, false},
			{20, "a", ingestion.Succeeded, true, true},
			{15, "a", ingestion.Failed, true, false},
			{11, "a", ingestion.Failed, true, true},
			{30, "b", ingestion.Failed, true, false},
			{20, "b", ingestion.Failed, false, true},
			{1, "b", ingestion.Succeeded, true, true},
			{12, "c", ingestion.Queued, false, true},
		} {
			r := ingestion.Run{ID: ingestion.RunID(made("ing", c.days, i)), Project: "p", Source: c.source, State: c.state, Clean: c.clean}
			want[string(r.ID)] = c.stays
			if err := (ingestionsql.Store{}).InsertRun(ctx, tx, r); err != nil {
				return err
			}
		}
		for i, c := range []struct {
			days    int
			version int
			state   feature.State
			stays   bool
		}{
			{30, 1, feature.Succeeded, false},
			{20, 1, feature.Succeeded, true},
			{40, 4, feature.Succeeded, false},
			{30, 4, feature.Succeeded, true}, // it was online when the retention began
			{20, 4, feature.Failed, false},
			{11, 4, feature.Succeeded, true}, // it ended later, a day after it was asked for
			{2, 4, feature.Succeeded, true},
			{15, 1, feature.Failed, false},
			{11, 1, feature.Failed, true},
			{30, 2, feature.Succeeded, true},
			{40, 3, feature.Failed, false},
			{30, 3, feature.Running, true},
			{5, 3, feature.Failed, true},
		} {
			r := feature.Run{ID: feature.RunID(made("fmr", c.days, i)), Project: "p", View: "v", Version: c.version, State: c.state, EndedAt: now.AddDate(0, 0, -c.days).Add(25 * time.Hour)}
			want[string(r.ID)] = c.stays
			if err := (featuresql.Store{}).InsertRun(ctx, tx, r); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := forgetHistory(t.Context(), db, cfg, func() time.Time { return now }); err != nil {
			t.Fatal(err)
		}
		for name, stays := range want {
			err := db.View(t.Context(), func(ctx context.Context, tx *store.Tx) (err error) {
				switch prefix, _, _ := strings.Cut(name, "_"); prefix {
				case "req":
					_, err = requestsql.Store{}.One(ctx, tx, name)
				case "ing":
					_, err = ingestionsql.Store{}.Run(ctx, tx, "p", ingestion.RunID(name))
				case "fmr":
					_, err = featuresql.Store{}.Run(ctx, tx, "p", feature.RunID(name))
				}
				return err
			})
			if stays && err != nil || !stays && !fault.Is(err, fault.NotFound) {
				t.Errorf("%s of %s stays: %v; %v", name, id.Made(name), stays, err)
			}
		}
	}
	if got := materialisations(cfg); got != 10*24*time.Hour {
		t.Errorf("materialisations are kept for %s", got)
	}
	if cfg.Predictions.Retention = "90d"; materialisations(cfg) != 90*24*time.Hour {
		t.Errorf("materialisations are kept for %s, and predictions are verified by them for 90 days", materialisations(cfg))
	}
	if cfg.Predictions.Retention = "0"; materialisations(cfg) != 0 {
		t.Error("materialisations are not kept as long as predictions, which is for ever")
	}
}
