package search

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/uptrace/bun"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/dataset/datasetsql"
	"github.com/falaj-ml/falaj/internal/dataset/ingestion"
	"github.com/falaj-ml/falaj/internal/dataset/ingestion/ingestionsql"
	"github.com/falaj-ml/falaj/internal/dataset/openlineage"
	"github.com/falaj-ml/falaj/internal/dataset/openlineage/openlineagesql"
	"github.com/falaj-ml/falaj/internal/environment"
	"github.com/falaj-ml/falaj/internal/environment/environmentsql"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/feature/featuresql"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy/policytest"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/monitoring"
	"github.com/falaj-ml/falaj/internal/monitoring/monitoringsql"
	"github.com/falaj-ml/falaj/internal/registry"
	"github.com/falaj-ml/falaj/internal/registry/registrysql"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/servingsql"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/store/storetest"
	"github.com/falaj-ml/falaj/internal/tracking"
	"github.com/falaj-ml/falaj/internal/tracking/trackingsql"
	"github.com/falaj-ml/falaj/internal/training"
	"github.com/falaj-ml/falaj/internal/training/trainingsql"
	"github.com/falaj-ml/falaj/internal/tuning"
	"github.com/falaj-ml/falaj/internal/tuning/space"
	"github.com/falaj-ml/falaj/internal/tuning/sweep"
	"github.com/falaj-ml/falaj/internal/tuning/tuningsql"
)

// world is the search over real governance.
type world struct {
	*policytest.World
	Service
}

func open(tb testing.TB) *world {
	tb.Helper()
	w := &world{World: policytest.OpenOn(tb, storetest.SQLite(tb, policytest.Migrations()...))}
	w.Service = Service{
		Authorizer: w.Authority, Pages: SealPages(nil),
		Names: func(ctx context.Context, _ project.Name, ids ...string) (map[string]string, error) {
			return w.Accounts.Names(ctx, ids...)
		},
	}
	w.Project(tb, "flights")
	return w
}

// byPages are the names that a search of an administrator gives, over all its pages.
func (w *world) byPages(t *testing.T, query string) (names []string) {
	t.Helper()
	for token, pages := "", 0; ; pages++ {
		hits, next, err := w.Find(w.AsAdmin(t.Context()), "flights", query, 2, token)
		if err != nil || pages > 100 {
			t.Fatal(pages, err)
		}
		for _, h := range hits {
			names = append(names, h.Name)
		}
		if token = next; token == "" {
			return names
		}
	}
}

// manyKinds are n objects of each kind that is found by lines, of several names, owners, tags,
// columns and origins; with long, some have more than an index takes. Object 7 of some kinds
// is hidden from everybody.
func (w *world) manyKinds(tb testing.TB, open storetest.Open, n int, long bool, owners ...string) *store.DB {
	tb.Helper()
	db := open(tb, trainingsql.Migrations, datasetsql.Migrations, ingestionsql.Migrations, environmentsql.Migrations, featuresql.Migrations,
		openlineagesql.Migrations, trackingsql.Migrations, registrysql.Migrations, servingsql.Migrations, monitoringsql.Migrations, tuningsql.Migrations)
	authz := without{w.Authority, "object-0007"}
	w.Training = training.New(training.Config{DB: db, Store: trainingsql.Store{}, Authorizer: authz}).Jobs
	w.Datasets = dataset.New(dataset.Config{DB: db, Store: datasetsql.Store{}, Authorizer: authz, Guard: w.Guard, Journal: w.Journal}).Definitions
	w.Ingestion = ingestion.New(ingestion.Config{DB: db, Store: ingestionsql.Store{}, Authorizer: authz})
	w.Lineage = openlineage.New(openlineage.Config{DB: db, Store: openlineagesql.Store{}, Authorizer: authz})
	w.Environments = environment.New(environment.Config{DB: db, Store: environmentsql.Store{}, Authorizer: authz})
	w.Features = feature.New(feature.Config{DB: db, Store: featuresql.Store{}, Authorizer: authz})
	runs := tracking.New(tracking.Config{DB: db, Store: trackingsql.Store{}, Authz: authz})
	w.Experiments = runs.Experiments
	w.Registry = registry.New(registry.Config{DB: db, Store: registrysql.Store{}, Authz: authz, Runs: runs.Runs, LoggedModels: runs.LoggedModels, Artifacts: runs.Artifacts, Origins: runs.Origins}).Models
	w.Serving = serving.New(serving.Config{DB: db, Store: servingsql.Store{}, Authz: authz}).Deployments
	w.Monitoring = monitoring.New(monitoring.Config{DB: db, Store: monitoringsql.Store{}, Authz: authz})
	w.Sweeps = sweep.New(sweep.Config{DB: db, Store: tuningsql.Sweeps{}, Studies: tuning.Studies{Store: tuningsql.Store{}}, Authorizer: authz})
	for from := 0; from < n; from += 500 {
		if err := db.Update(tb.Context(), "flights", func(ctx context.Context, tx *store.Tx) error {
			for i := from; i < min(n, from+500); i++ {
				if err := putKinds(ctx, tx, i, long && i%11 == 6, owners[i%len(owners)]); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			tb.Fatal(err)
		}
	}
	return db
}

// ofEarlierRelease makes all rows such as they are after an upgrade: each has the line of its
// migration.
func ofEarlierRelease(tb testing.TB, db *store.DB) {
	tb.Helper()
	tables := map[string]bool{}
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_line.sql") {
			return err
		}
		b, err := os.ReadFile(path)
		for _, found := range addedLine.FindAllStringSubmatch(string(b), -1) {
			tables[found[1]] = true
		}
		return err
	})
	if err != nil || len(tables) < 8 {
		tb.Fatalf("lines are in %v, %v", tables, err)
	}
	if err := db.Update(tb.Context(), "", func(ctx context.Context, tx *store.Tx) error {
		for table := range tables {
			if _, err := tx.NewRaw("UPDATE ? SET line = '*'", bun.Ident(table)).Exec(ctx); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		tb.Fatal(err)
	}
}

var addedLine = regexp.MustCompile(`ALTER TABLE (\w+) ADD COLUMN line TEXT NOT NULL DEFAULT '\*'`)

func putKinds(ctx context.Context, tx *store.Tx, i int, long bool, owner string) error {
	name, at := fmt.Sprintf("object-%04d", i), time.UnixMilli(int64(i/3))
	about := "of " + []string{"delay", "Weather", "größe"}[i%3]
	if long {
		about += strings.Repeat(" and so on", 200)
	}
	from := fmt.Sprintf("data%d@%d", i%10, i)
	tags := map[string]string{"team": []string{"ops", "Research"}[i%2], "a\x1eb": "odd"}
	if i%5 > 0 {
		delete(tags, "a\x1eb")
	}
	d := dataset.Dataset{ID: dataset.ID("ds_" + name), Project: "flights", Name: name, Spec: dataset.Spec{Description: about}, Owner: owner, Latest: 1, Created: at, Updated: at, Deleted: i%13 == 12}
	d.Fields.IDs = map[string]int{"string temp": 1, fmt.Sprintf("double column%d", i%10): 2}
	v := dataset.Version{ID: dataset.VersionID("dv_" + name), DatasetID: d.ID, Project: "flights", Dataset: name, Number: 1, State: dataset.Accepted, Created: at}
	v.Lineage.Source = &dataset.Source{Filename: from}
	body := func(x any) json.RawMessage {
		b, err := json.Marshal(x)
		if err != nil {
			panic(err)
		}
		return b
	}
	header := feature.Header{Project: "flights", Name: name, Version: 1, CreatedBy: owner, CreatedAt: at}
	job := training.Job{ID: training.JobID("job_" + name), Project: "flights", Name: about[:8], State: training.Succeeded, By: training.Actor{ID: owner}, Inputs: []training.Input{{Ref: "dataset " + from}}}
	for k := 0; long && k < 64; k++ {
		job.Inputs = append(job.Inputs, training.Input{Ref: fmt.Sprintf("dataset a-long-name-of-a-dataset-%d@1", k)})
	}
	src := ingestion.Source{ID: ingestion.ID("src_" + name), Project: "flights", Name: name, Spec: ingestion.Spec{Dataset: from, Description: about}, Owner: owner, Created: at, Updated: at}
	model := registry.Model{ID: registry.ModelID("mod_" + name), Project: "flights", Name: name, Description: about, Owner: owner, Created: at, Updated: at}
	version := registry.Version{Project: "flights", ModelID: model.ID, Model: name, Number: 1, State: registry.Ready, Stage: "None", Owner: owner, Created: at, Updated: at, Origin: tracking.Origin{Datasets: []string{from}, Job: string(job.ID)}}
	experiment := tracking.Experiment{Project: "flights", ID: tracking.ExperimentID(i + 1), Name: name, Stage: tracking.Active, Created: at, Updated: at}
	if i%13 == 12 {
		experiment.Stage = tracking.Deleted
	}
	pairs := []tracking.Pair{{Key: "mlflow.note", Value: "unseen"}}
	for k, value := range tags {
		pairs = append(pairs, tracking.Pair{Key: k, Value: value})
	}
	deployment := serving.Deployment{ID: serving.ID("dep_" + name), Project: "flights", Name: name, Owner: owner, Spec: serving.Spec{Model: from}, Model: from, CreatedAt: at, UpdatedAt: at}
	if i%2 == 0 {
		deployment.Spec.Features, deployment.FeatureSet = &serving.FeaturesSpec{Service: "service-of-" + from}, &serving.FeatureSet{}
	}
	monitor := monitoring.Monitor{ID: monitoring.ID("mon_" + name), Project: "flights", Name: name, Deployment: from, By: identity.Principal{ID: owner}, CreatedAt: at, UpdatedAt: at}
	external := openlineage.Thing{Project: "flights", Kind: openlineage.DatasetKind, Name: openlineage.Name{Namespace: "s3://" + from, Name: name}, Last: at}
	switch i % 3 {
	case 0:
		external.Kind = openlineage.JobKind
	case 1:
		external.Own = from
	}
	if i%3 > 0 {
		external.Fields = []openlineage.Field{{Name: "temp"}, {Name: fmt.Sprintf("column%d", i%10)}}
	}
	for k := 0; long && k < 200; k++ {
		external.Fields = append(external.Fields, openlineage.Field{Name: fmt.Sprintf("a-long-column-%d", k)})
	}
	study := tuning.Study{Project: "flights", ID: tuning.StudyID(i + 1), Name: name, Directions: []tuning.Direction{tuning.Minimize}, Owner: owner, Created: at}
	w := sweep.Sweep{Project: "flights", Name: name, Study: study.ID, By: identity.Principal{ID: owner}, State: sweep.Complete, Revision: 1}
	w.Spec.Parameters, w.Spec.Job.Data = []space.Parameter{{Name: fmt.Sprintf("column%d", i%10)}}, map[string]string{"x": from}
	for _, err := range []error{
		datasetsql.Store{}.PutDataset(ctx, tx, d), datasetsql.Store{}.InsertVersion(ctx, tx, v),
		featuresql.Store{}.InsertDefinition(ctx, tx, feature.Definition{Kind: feature.EntityKind, Header: header, Body: body(feature.EntitySpec{Description: about, JoinKeys: []string{"key"}, Tags: tags})}),
		featuresql.Store{}.InsertDefinition(ctx, tx, feature.Definition{Kind: feature.ViewKind, Header: header, Body: body(feature.ViewSpec{
			Description: about, Source: feature.Source{Dataset: from}, Features: []feature.FieldSpec{{Name: fmt.Sprintf("column%d", i%10), Type: "int64"}}, Tags: tags,
		})}),
		featuresql.Store{}.InsertDefinition(ctx, tx, feature.Definition{Kind: feature.ServiceKind, Header: header, Body: body(map[string]any{"description": about, "selected": []string{from + ":temp"}})}),
		featuresql.Store{}.PutAlias(ctx, tx, "flights", feature.EntityKind, name, "latest", 1),
		featuresql.Store{}.PutAlias(ctx, tx, "flights", feature.ViewKind, name, "latest", 1),
		featuresql.Store{}.PutAlias(ctx, tx, "flights", feature.ServiceKind, name, "latest", 1),
		openlineagesql.Store{}.PutThing(ctx, tx, external),
		trainingsql.Store{}.InsertJob(ctx, tx, job), ingestionsql.Store{}.PutSource(ctx, tx, src),
		registrysql.Store{}.PutModel(ctx, tx, model), registrysql.Store{}.PutModelTags(ctx, tx, model.ID, pairs), registrysql.Store{}.PutVersion(ctx, tx, version),
		environmentsql.Store{}.Insert(ctx, tx, environment.Environment{ID: environment.ID("env_" + name), Project: "flights", Name: name, SBOM: make([]environment.Package, 20)}),
		trackingsql.Store{}.PutExperiment(ctx, tx, experiment), trackingsql.Store{}.PutExperimentTags(ctx, tx, "flights", experiment.ID, pairs),
		servingsql.Store{}.Put(ctx, tx, deployment), monitoringsql.Store{}.Put(ctx, tx, monitor), tuningsql.Store{}.AddStudy(ctx, tx, study),
	} {
		if err != nil {
			return err
		}
	}
	if i%4 == 3 { // a study of Optuna's clients
		return nil
	}
	return tuningsql.Sweeps{}.PutSweep(ctx, tx, w)
}

// foundIn are all objects of a kind with the words, for an administrator. With every it reads
// each object, whatever its line says.
func (w *world) foundIn(tb testing.TB, k kindOfThings, q string, every bool) []Hit {
	tb.Helper()
	words, err := wordsOf(q)
	if err != nil {
		tb.Fatal(err)
	}
	f := finder{s: w.Service, p: "flights", words: words, names: map[string]string{}}
	asking := &f
	if every {
		asking = &finder{s: w.Service, p: "flights", names: f.names}
	}
	ctx := w.AsAdmin(tb.Context())
	for after := ""; ; {
		things, _, next, err := k.list(ctx, asking, after, 100)
		if err != nil {
			tb.Fatal(err)
		}
		for _, t := range things {
			if err := f.look(ctx, k, t); err != nil {
				tb.Fatal(err)
			}
		}
		if after = next; next == "" {
			return f.hits
		}
	}
}

// TestObjectsAreFoundByTheirLines: a search by lines finds what a look at every object finds.
func TestObjectsAreFoundByTheirLines(t *testing.T) {
	// Of 130 objects: those that are deleted and the one that is hidden are not found, and
	// there is always a default experiment.
	all := map[string]int{
		"dataset": 120, "feature_view": 130, "feature_service": 130, "entity": 130, "model": 129, "deployment": 129, "monitor": 130, "source": 130,
		"job": 130, "environment": 130, "experiment": 121, "sweep": 129, "lineage": 130,
	}
	for name, open1 := range map[string]storetest.Open{"SQLite": storetest.SQLite, "PostgreSQL": storetest.PostgreSQL} {
		t.Run(name, func(t *testing.T) {
			w := open(t)
			names, err := w.Accounts.Names(t.Context(), w.Admin.ID)
			name := strings.ToLower(names[w.Admin.ID])
			if err != nil || name == "" {
				t.Fatal(names, err)
			}
			db := w.manyKinds(t, open1, 130, true, w.Admin.ID, "usr_unknown")
			hits := map[string]int{}
			for _, k := range w.kinds() {
				t.Run(k.name, func(t *testing.T) {
					if got := w.foundIn(t, k, "kind:"+k.name, true); len(got) != all[k.name] {
						t.Errorf("%s: %d objects, want %d", k.name, len(got), all[k.name])
					}
					for _, q := range []string{
						"delay", "DELAY", "GRÖSSE", "größe", "object-0011", "name:object-000", "from:data3", "data3@33", "from:service-of", name, "owner:" + name, "owner:unknown", "tag:team=ops", "research",
						"tag:odd", "unseen", "column:temp", "column7", "description:so", "weather from:data4 owner:" + name, "kind:model data", "absent", "from:job_object-0044", "from:long-name-of-a-dataset-63", "12",
					} {
						want, got := w.foundIn(t, k, q, true), w.foundIn(t, k, q, false)
						if hits[q] += len(got); len(got)+len(want) > 0 && !reflect.DeepEqual(got, want) {
							t.Errorf("%s %s: found %d, want %d", k.name, q, len(got), len(want))
						}
					}
				})
			}
			for _, k := range w.kinds() { // environments, experiments and external objects have no owner
				if got := w.foundIn(t, k, "owner:"+name, false); len(got) == 0 && !slices.Contains([]string{"environment", "experiment", "lineage"}, k.name) {
					t.Errorf("no %s is found by its owner", k.name)
				}
			}
			// After an upgrade a search finds the same, and a page reads no more than a page.
			var fresh [][]Hit
			of := func(each func(k kindOfThings, q string)) {
				for _, k := range w.kinds() {
					for _, q := range []string{"delay", "name:object-000", "from:data3", "owner:" + name, "tag:team=ops", "column:temp", "absent"} {
						each(k, q)
					}
				}
			}
			of(func(k kindOfThings, q string) { fresh = append(fresh, w.foundIn(t, k, q, false)) })
			ofEarlierRelease(t, db)
			of(func(k kindOfThings, q string) {
				if got := w.foundIn(t, k, q, false); !reflect.DeepEqual(got, fresh[0]) {
					t.Errorf("%s %s after an upgrade: found %d, want %d", k.name, q, len(got), len(fresh[0]))
				}
				fresh = fresh[1:]
			})
			for _, k := range w.kinds() {
				f := &finder{s: w.Service, p: "flights", words: []word{{text: "absent"}}, names: map[string]string{}}
				if things, seen, _, err := k.list(w.AsAdmin(t.Context()), f, "", 10); err != nil || len(things) > 10 || seen < len(things) {
					t.Errorf("%s: a page of 10 reads %d of %d objects, %v", k.name, len(things), seen, err)
				}
			}
			for q, n := range hits {
				if none := slices.Contains([]string{"unseen", "absent", "GRÖSSE"}, q); none == (n > 0) {
					t.Errorf("%s: found %d", q, n)
				}
			}
			if got := w.byPages(t, "name:object-000 kind:model"); len(got) != 9 || slices.Contains(got, "object-0007") {
				t.Errorf("by pages: %q", got)
			}
		})
	}
}

// BenchmarkSearchKinds looks for one of 5,000 objects of each kind, by their lines and by a look
// at every object.
func BenchmarkSearchKinds(b *testing.B) {
	w := open(b)
	w.manyKinds(b, storetest.SQLite, 5000, false, "usr_a", "usr_b")
	for _, k := range w.kinds() {
		for name, every := range map[string]bool{"lines": false, "every object": true} {
			b.Run(k.name+"/"+name, func(b *testing.B) {
				for b.Loop() {
					w.foundIn(b, k, "4444", every)
				}
			})
		}
	}
}
