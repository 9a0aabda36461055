package erasure

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/app/schema"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/monitoring"
	"github.com/falaj-ml/falaj/internal/monitoring/monitoringsql"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/store/storetest"
	"github.com/falaj-ml/falaj/internal/tracking"
	"github.com/falaj-ml/falaj/internal/tracking/trackingsql"
	"github.com/falaj-ml/falaj/internal/training"
	"github.com/falaj-ml/falaj/internal/training/checkpoint"
	"github.com/falaj-ml/falaj/internal/training/trainingsql"
)

// covered says of every table which kind of place of an erasure it is in, and of one that
// holds nothing of persons' rows, why: "-" and the reason.
var covered = map[string]string{
	"alert_delivery": "- what alerts say: counts and scores", "alert_secret": "- secrets",
	"audit_checkpoint": "- hashes", "audit_erasure": "- requests", "audit_hash": "- hashes", "audit_journal": "- where it is", "audit_key": "- keys", "audit_segment": "- where archived entries are, and whose acts and projects: as audit_leaf",
	"audit_leaf":     "- who did what; keys that were read are salted digests; users go by falaj audit erase",
	"compute_budget": "- money", "compute_pool": "- machines", "compute_price": "- money", "compute_quarantine": "- machines", "compute_queue": "- quotas",
	"compute_queue_default": "- quotas", "compute_queue_past": "- quotas", "compute_rental": "- machines", "compute_usage": "- hours", "compute_usage_day": "- hours", "compute_wish": "- machines",
	"compute_workload": "- sizes and states; a job's script is in training_job",
	"dataset_dataset":  inNotes, "dataset_parent": "- lineage", "dataset_persons": "datasets", "dataset_staging": "datasets", "dataset_version": "datasets",
	"environment_environment": "- packages",
	"feature_alias":           "- names", "feature_definition": inNotes, "feature_online": "online features", "feature_run": "- counts", "feature_stale": "- names",
	"feature_store": "- where it is", "feature_stream": "streams", "feature_stream_dead": "streams", "feature_stream_record": "streams", "feature_stream_seen": "streams",
	"feature_training_set": "- names of columns and versions; its rows are a dataset", "feature_training_view": "- names",
	"gateway": inNotes, "gateway_position": "- how far it is", "mirror_fact": "- what is served", "mirror_version": "- what is served",
	"identity_account": "- users of Falaj", "identity_session": "- users of Falaj", "identity_code": "- users of Falaj", "identity_state": "- users of Falaj", "identity_token": "- users of Falaj",
	"ingestion_run": "ingestions", "ingestion_source": inNotes,
	"keys_check": "- keys", "keys_key": "- keys",
	"label_count": "- counts", "label_judgement": "- counts", "label_label": inLabels,
	"monitoring_baseline": inWindows, "monitoring_classifier": inWindows, "monitoring_monitor": inNotes, "monitoring_pairs": inWindows, "monitoring_progress": inWindows, "monitoring_window": inWindows,
	"openlineage_link": "- names", "openlineage_run": inNotes, "openlineage_thing": inNotes,
	"policy_policy": "- rules", "privacy_erasure": "- erasures: pseudonyms, and the key sealed until it is over",
	"project_buried": "- names", "project_former": "- names", "project_grant": "- rights", "project_group_member": "- rights", "project_project": "- names",
	"registry_alias": "- names", "registry_approval": inNotes, "registry_file": "models: versions that were trained on the rows are flagged", "registry_key": "- keys", "registry_model": inNotes,
	"registry_imported": "- names and digests", "registry_model_tag": inNotes, "registry_policy": "- rules", "registry_version": inNotes, "registry_version_tag": inNotes,
	"request":            inNotes,
	"residency_widening": "- labels", "residency_zone": "- labels",
	"secrets_secret": "- secrets",
	"serving_act":    inNotes, "serving_deployment": inNotes, "serving_rollout": inNotes, "serving_switch": "- why automation is off", "serving_usage": "- counts of callers",
	"sqlite_sequence": "- numbers",
	"store_cursor":    "- how far it is", "store_idempotency": "- digests of requests", "store_lease": "- locks", "store_origin": "- where it is", "store_stream": "- events and audit entries on their way",
	"tracking_artifact": inArtifacts, "tracking_dataset": inNotes, "tracking_experiment": inNotes, "tracking_experiment_tag": inNotes, "tracking_experiment_used": "- times",
	"tracking_imported": "- digests", "tracking_input": "- names", "tracking_metric": "- numbers of runs", "tracking_metric_latest": "- numbers of runs", "tracking_model": inNotes,
	"tracking_model_link": "- names", "tracking_model_metric": "- numbers of runs", "tracking_model_param": inParams, "tracking_model_tag": inNotes, "tracking_param": inParams,
	"tracking_pruned": "- names", "tracking_run": inNotes, "tracking_tag": inNotes, "tracking_upload": inArtifacts, "tracking_upload_part": inArtifacts,
	"training_attempt": inLogs, "training_checkpoint": inCheckpoints, "training_checkpoint_chunk": inCheckpoints, "training_checkpoint_seen": inCheckpoints, "training_job": inScripts,
	"training_measurement": "- times", "training_profile": "- names of functions", "training_slow_node": "- machines", "training_source": "- digests of archives",
	"tuning_distribution": inParams, "tuning_intermediate": "- numbers of runs", "tuning_param": "- numbers; what may be tried is in tuning_distribution", "tuning_sequence": "- numbers",
	"tuning_study": inNotes, "tuning_study_attribute": inNotes, "tuning_sweep": inParams, "tuning_task": "- names", "tuning_trial": "- numbers of runs", "tuning_trial_attribute": inNotes,
	"webhook": "- addresses",
}

// TestEveryPlaceIsKnown: each table of the schema is in a place that an erasure searches or
// names, or holds nothing of persons' rows, with the reason. Whoever adds a table decides
// here which it is.
func TestEveryPlaceIsKnown(t *testing.T) {
	db := everyTable(t)
	kinds := []string{inScripts, inSources, inLogs, inParams, inNotes, inArtifacts, inCheckpoints, inWindows, inLabels, inBackups}
	for _, p := range (&Service{}).Participants() {
		kinds = append(kinds, p.Kind())
	}
	var tables []string
	if err := db.View(t.Context(), func(ctx context.Context, tx *store.Tx) error {
		return tx.NewRaw("SELECT name FROM sqlite_master WHERE type = 'table'").Scan(ctx, &tables)
	}); err != nil {
		t.Fatal(err)
	}
	if len(tables) < 100 {
		t.Fatalf("the schema has %d tables", len(tables))
	}
	for _, table := range tables {
		if strings.HasPrefix(table, "store_version_") {
			continue // numbers of migrations
		}
		what, known := covered[table]
		why, none := strings.CutPrefix(what, "- ")
		kind, _, _ := strings.Cut(what, ":")
		switch {
		case !known:
			t.Errorf("table %s: say in covered which place of an erasure it is in, or why it holds nothing of persons' rows", table)
		case none && why == "":
			t.Errorf("table %s holds nothing of persons, and the reason is missing", table)
		case !none && kind != "models" && !slices.Contains(kinds, kind):
			t.Errorf("table %s is in %q, which no erasure searches or names", table, kind)
		}
	}
	for table := range covered {
		if !slices.Contains(tables, table) && table != "store_origin" && table != "sqlite_sequence" {
			t.Errorf("there is no table %s", table)
		}
	}
	// Each text that is searched is there, in its table.
	if err := db.View(t.Context(), func(ctx context.Context, tx *store.Tx) error {
		for _, x := range texts {
			if err := store.Mentions(ctx, tx, x.at, "nyc", "nobody", func(string, string) {}); err != nil {
				return fault.Wrap(err, "%s.%s", x.at.Table, x.at.Column)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// TestEveryObjectIsKnown: so it is with each kind of stored object, by its prefix below the
// project's.
func TestEveryObjectIsKnown(t *testing.T) {
	t.Parallel()
	covered := map[string]string{
		"artifacts": inArtifacts, "checkpoints": inCheckpoints, "sources": inSources, "datasets": "datasets", "models": "models, which are flagged",
	}
	prefix := regexp.MustCompile(`"projects/(?:%s|" \+ string\([a-z.A-Z]+\) \+ ")/([a-z]+)/`)
	found := map[string]bool{}
	if err := filepath.WalkDir("../..", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		b, err := os.ReadFile(path)
		for _, m := range prefix.FindAllSubmatch(b, -1) {
			kind := string(m[1])
			if found[kind] = true; covered[kind] == "" {
				t.Errorf("%s stores objects of the kind %s: say which place of an erasure they are in", path, kind)
			}
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	for kind := range covered {
		if !found[kind] {
			t.Errorf("no objects of the kind %s were found", kind)
		}
	}
}

func everyTable(t *testing.T) *store.DB {
	t.Helper()
	db := storetest.SQLite(t, schema.Migrations...)
	return db
}

func TestWords(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"4711": true, "customer=4711": true, `{"id":"4711"}`: true, "x 4711.": true, "14711": false, "47110": false, "a4711": false, "4711_1": false, "47 11": false,
		"14711 4711": true, "": false, "é4711": false, "-4711": true,
	} {
		if got := says(text, "4711"); got != want {
			t.Errorf("%q says 4711: %v", text, got)
		}
	}
	for doc, want := range map[string]bool{`{"rows":4711,"note":"x"}`: false, `{"a":[{"note":"of 4711"}]}`: true, `{"note":"\u003c4711>"}`: true, `{4711`: true, `[4711]`: false} {
		if got := says(plainText(doc), "4711"); got != want {
			t.Errorf("%s says 4711: %v", doc, got)
		}
	}
	if saysAll("a of berlin", []string{"berlin", "lena"}) || !saysAll("lena of berlin", []string{"berlin", "lena"}) || saysAll("x", nil) {
		t.Error("a person of two keys is in a text that has both")
	}
}

// TestWhatIsNotSearched: what could have the person's rows, or has its key, is named with
// the tool for it; a project without such things has nothing to name.
func TestWhatIsNotSearched(t *testing.T) {
	db := everyTable(t)
	a := &Service{
		DB: db, Training: training.New(training.Config{DB: db, Store: trainingsql.Store{}}).Records, Checkpoints: checkpoint.New(checkpoint.Config{DB: db, Store: trainingsql.Checkpoints{}}),
		Tracking: tracking.New(tracking.Config{DB: db, Store: trackingsql.Store{}}).Erasure, Monitoring: monitoring.New(monitoring.Config{DB: db, Store: monitoringsql.Store{}}),
	}
	insert := func(rows ...string) {
		t.Helper()
		if err := db.Update(t.Context(), "nyc", func(ctx context.Context, tx *store.Tx) error {
			for _, r := range rows {
				if _, err := tx.NewRaw(r).Exec(ctx); err != nil {
					return fault.Wrap(err, "%s", r)
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	look := func(had ...string) (out []string) {
		t.Helper()
		l := leftovers{s: a, p: "nyc", had: map[string]bool{}, named: map[string]int{}}
		for _, ref := range had {
			l.had[ref] = true
		}
		if err := db.View(t.Context(), func(ctx context.Context, tx *store.Tx) error {
			jobs, err := l.jobs(ctx, tx)
			if err != nil {
				return err
			}
			if err := l.texts(ctx, tx, []string{"4711"}, jobs); err != nil {
				return err
			}
			if err := l.made(ctx, tx, jobs); err != nil {
				return err
			}
			return l.watched(ctx, tx)
		}); err != nil {
			t.Fatal(err)
		}
		for _, u := range l.out {
			if u.Reason == "" || u.Tool == "" {
				t.Errorf("%+v has no reason or no tool", u)
			}
			seen := ""
			if u.Seen {
				seen = " (seen)"
			}
			out = append(out, u.Kind+": "+u.Name+seen)
		}
		slices.Sort(out)
		return out
	}
	if got := look("orders@1"); len(got) != 0 {
		t.Errorf("an empty project has %v", got)
	}
	insert(
		`INSERT INTO training_job (id, project, name, digest, state, waiting, body, revision) VALUES ('job_1', 'nyc', 'train', 'd', 'succeeded', FALSE, '{"id":"job_1","project":"nyc","attempts":1,"spec":{"script":"print(4711)"},"inputs":[{"ref":"dataset orders@1"}]}', 1)`,
		`INSERT INTO training_job (id, project, name, digest, state, waiting, body, revision) VALUES ('job_2', 'nyc', 'more', 'd', 'succeeded', FALSE, '{"id":"job_2","project":"nyc","attempts":1,"spec":{"resume":"job_1/last"}}', 1)`,
		`INSERT INTO training_job (id, project, name, digest, state, waiting, body, revision) VALUES ('job_3', 'nyc', 'else', 'd', 'succeeded', FALSE, '{"id":"job_3","project":"nyc","attempts":1,"spec":{"command":["x","147110"]},"inputs":[{"ref":"dataset weather@1"}]}', 1)`,
		`INSERT INTO training_job (id, project, name, digest, state, waiting, body, revision) VALUES ('job_4', 'nyc', 'table', 'd', 'succeeded', FALSE, '{"id":"job_4","project":"nyc","attempts":1,"spec":{},"tables":[{"ref":"dataset orders@7"}]}', 1)`,
		`INSERT INTO training_job (id, project, name, digest, state, waiting, body, revision) VALUES ('job_5', 'other', 'train', 'd', 'succeeded', FALSE, '{"id":"job_5","project":"other","attempts":1,"spec":{"script":"print(4711)"},"inputs":[{"ref":"dataset orders@1"}]}', 1)`,
		`INSERT INTO training_checkpoint (id, job, project, number, damaged, body, manifest, revision) VALUES ('ckp_1', 'job_1', 'nyc', 1, FALSE, '{"id":"ckp_1","job":"job_1","name":"last"}', '{}', 1)`,
		`INSERT INTO tracking_param (project, experiment, run, key, value, head) VALUES ('nyc', 0, 'run_1', 'customer', '4711', '4711')`,
		`INSERT INTO registry_model VALUES ('mdl_1', 'nyc', 'churn', 'works for "4711", too', '', 0, 0)`,
	)
	want := []string{
		"checkpoints: job_1/last", "job logs: job_1", "job logs: job_2", "job logs: job_4", "job scripts: job job_1 (seen)",
		"notes: model churn (seen)", "parameters: run run_1 (seen)",
	}
	if got := look("orders@1"); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if got := look(); !slices.Equal(got, []string{"job scripts: job job_1 (seen)", "notes: model churn (seen)", "parameters: run run_1 (seen)"}) {
		t.Errorf("of nobody's rows nothing was made: %q", got)
	}
}
