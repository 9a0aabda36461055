package trackingsql

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/store/storetest"
	"github.com/falaj-ml/falaj/internal/tracking"
	"github.com/falaj-ml/falaj/internal/tracking/search"
)

// TestSearchRunsIsSorting: whichever way a search takes, it finds what sorting all runs
// finds, page by page.
func TestSearchRunsIsSorting(t *testing.T) {
	long := strings.Repeat("é", headLength-1)
	texts := []string{"1", "2", "", "%", "_x", "[a]", "Abc", "abc", "abd", "ab\U0010FFFF", long, long + "a", long + "b", long + "ab", long + "ba"}
	for _, engine := range engines {
		t.Run(engine.name, func(t *testing.T) {
			db := engine.open(t, Migrations)
			values := []float64{1, 2, 2, 3, math.NaN(), math.Inf(1), math.Inf(-1), -7.5}
			err := db.Update(t.Context(), "p", func(ctx context.Context, tx *store.Tx) error {
				for n := range 120 {
					r := tracking.Run{
						ID: tracking.RunID(fmt.Sprintf("%032x", n*7919%120)), Project: "p", Experiment: tracking.ExperimentID(n%5/4 + 1), Status: tracking.Finished,
						Start: tracking.Millis(n % 4), Name: texts[n*13%len(texts)], Stage: tracking.Active, Created: time.UnixMilli(1),
					}
					r.Status = []tracking.RunStatus{tracking.Finished, tracking.Finished, tracking.Failed, tracking.Running}[n*3%4]
					if n%11 == 0 {
						r.Stage = tracking.Deleted
					}
					if err := (Store{}).PutRun(ctx, tx, r); err != nil {
						return err
					}
					if err := (Store{}).PutTags(ctx, tx, r, []tracking.Pair{{Key: "t", Value: strconv.Itoa(n % 3)}}); err != nil {
						return err
					}
					if err := (Store{}).PutTags(ctx, tx, r, []tracking.Pair{{Key: "t", Value: texts[n*7%len(texts)]}}); err != nil { // again
						return err
					}
					if n%3 > 0 {
						if err := (Store{}).InsertParams(ctx, tx, r, []tracking.Pair{{Key: "p", Value: texts[n*11%len(texts)]}}); err != nil {
							return err
						}
					}
					var metrics []tracking.Metric
					for i, key := range []string{"a", "b"} {
						if (n+i)%(3+i) > 0 { // some have none
							metrics = append(metrics, tracking.Metric{Key: key, Value: values[(n*(i+3))%len(values)]})
						}
					}
					if err := (Store{}).PutLatestMetrics(ctx, tx, r, metrics); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			defer func(n int) { few = n }(few)
			statuses := []string{"FINISHED", "FAILED", "RUNNING", "KILLED", "FIN%", "%ED"}
			pairs := []search.Comparison{{Entity: search.Tag, Key: "t"}, {Entity: search.Param, Key: "p"}, {Entity: search.Param, Key: "absent"}}
			metric := rapid.SampledFrom([]string{"a", "b", "absent"})
			comparison := rapid.Custom(func(t *rapid.T) search.Comparison {
				switch rapid.IntRange(0, 7).Draw(t, "which") {
				case 6:
					op := rapid.SampledFrom([]search.Op{search.Equal, search.NotEqual, search.Like, search.ILike}).Draw(t, "operator")
					return search.Comparison{Entity: search.Attribute, Key: "status", Op: op, Text: rapid.SampledFrom(statuses).Draw(t, "status")}
				case 7:
					c := search.Comparison{Entity: search.Attribute, Key: "run_name", Text: rapid.SampledFrom(texts).Draw(t, "name")}
					c.Op = rapid.SampledFrom([]search.Op{search.Equal, search.NotEqual, search.Like, search.ILike}).Draw(t, "operator")
					c.Text += rapid.SampledFrom([]string{"", "%", "_"}).Draw(t, "after")
					return c
				case 0, 1, 2:
					c := rapid.SampledFrom(pairs).Draw(t, "pair")
					c.Op = rapid.SampledFrom([]search.Op{search.Equal, search.NotEqual, search.Like, search.ILike, search.IsNull, search.IsNotNull}).Draw(t, "operator")
					c.Text = rapid.SampledFrom(texts).Draw(t, "text")
					if c.Op == search.Like || c.Op == search.ILike {
						c.Text = rapid.SampledFrom([]string{"", "%", "_"}).Draw(t, "before") + c.Text + rapid.SampledFrom([]string{"", "%", "_"}).Draw(t, "after")
					}
					return c
				case 3:
					op := rapid.SampledFrom([]search.Op{search.Equal, search.NotEqual, search.AtLeast, search.Less}).Draw(t, "operator")
					return search.Comparison{Entity: search.Attribute, Key: "start_time", Op: op, Number: rapid.SampledFrom([]float64{0, 1.5, 2, 9}).Draw(t, "number")}
				}
				op := rapid.SampledFrom([]search.Op{search.Equal, search.NotEqual, search.Greater, search.AtLeast, search.Less, search.AtMost}).Draw(t, "operator")
				return search.Comparison{Entity: search.Metric, Key: metric.Draw(t, "key"), Op: op, Number: rapid.SampledFrom([]float64{-8, 1, 2, 2.5, 99}).Draw(t, "number")}
			})
			order := rapid.Custom(func(t *rapid.T) search.Order {
				o := search.Order{Entity: search.Metric, Key: metric.Draw(t, "by"), Desc: rapid.Bool().Draw(t, "descending")}
				switch rapid.IntRange(0, 5).Draw(t, "which") {
				case 0:
					o.Entity, o.Key = search.Attribute, rapid.SampledFrom([]string{"start_time", "run_name", "status"}).Draw(t, "attribute")
				case 1, 2:
					by := rapid.SampledFrom(pairs).Draw(t, "pair")
					o.Entity, o.Key = by.Entity, by.Key
				}
				return o
			})
			most := 0
			rapid.Check(t, func(rt *rapid.T) {
				few = rapid.SampledFrom([]int{0, 10, 2000}).Draw(rt, "few")
				q := tracking.Query{
					Experiments: rapid.SampledFrom([][]tracking.ExperimentID{{1}, {2}, {1, 2}, {3}}).Draw(rt, "experiments"),
					View:        rapid.SampledFrom([]tracking.View{tracking.ViewActive, tracking.ViewAll, tracking.ViewDeleted}).Draw(rt, "view"),
					Where:       rapid.SliceOfN(comparison, 0, 2).Draw(rt, "where"), Order: rapid.SliceOfN(order, 0, 2).Draw(rt, "order"),
					Limit: rapid.IntRange(1, 50).Draw(rt, "limit"), Offset: rapid.IntRange(0, 60).Draw(rt, "offset"),
				}
				err := db.View(t.Context(), func(ctx context.Context, tx *store.Tx) error {
					got, err := (Store{}).SearchRuns(ctx, tx, "p", q)
					if err != nil {
						return err
					}
					plain := runSearch{p: "p", q: q, sqlite: isSQLite(tx)}
					want, err := plain.sorted(ctx, tx, "", nil, q.Limit, q.Offset)
					most = max(most, len(want))
					if diff := cmp.Diff(ids(want), ids(got)); diff != "" {
						rt.Errorf("-sorted +found\n%s", diff)
					}
					return err
				})
				if err != nil {
					rt.Fatal(err)
				}
			})
			if most < 20 {
				t.Errorf("no search found more than %d", most)
			}
		})
	}
}

func ids(runs []tracking.Run) []tracking.RunID {
	out := make([]tracking.RunID, len(runs))
	for i, r := range runs {
		out[i] = r.ID
	}
	return out
}

// TestOfBefore: params and tags that were there before their index are in it, and what
// was there before its table was made anew is there.
func TestOfBefore(t *testing.T) {
	before := fstest.MapFS{}
	names, err := fs.Glob(Migrations.FS, "*.sql")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if name >= "00050" {
			continue
		}
		text, err := fs.ReadFile(Migrations.FS, name)
		if err != nil {
			t.Fatal(err)
		}
		before[name] = &fstest.MapFile{Data: text}
	}
	long := strings.Repeat("é", headLength) + "!"
	for name, url := range map[string]string{"SQLite": "sqlite://" + t.TempDir() + "/falaj.db", "PostgreSQL": storetest.Postgres(t)} {
		t.Run(name, func(t *testing.T) {
			open := func(files fs.FS) *store.DB {
				db, err := store.Open(t.Context(), store.Config{URL: url, Migrations: []store.Migrations{{Name: "tracking", FS: files}}})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = db.Close() })
				return db
			}
			old := open(before)
			r := tracking.Run{ID: "r", Project: "p", Experiment: 7, Name: "n", Status: tracking.Failed, Start: 3, Stage: tracking.Active, Created: time.UnixMilli(1).UTC()}
			points := []tracking.Metric{
				{Key: "a", Value: 1.5, At: 1, Step: math.MinInt64, Run: "r"},
				{Key: "a", Value: math.Inf(-1), At: 2, Step: 2, Run: "r", DatasetName: "d"},
				{Key: "b", Value: math.NaN(), At: 1, Step: math.MaxInt64, Run: "r"},
			}
			err := old.Update(t.Context(), "p", func(ctx context.Context, tx *store.Tx) error {
				for id, stage := range map[string]tracking.Stage{"r": tracking.Active, "gone": tracking.Deleted} {
					_, err := tx.NewRaw(`INSERT INTO tracking_run (id, project, experiment, name, user_name, owner, status, started, ended, stage, created, job, attempt,
						datasets, feature_views, environment, residency, classification) VALUES (?, 'p', 7, 'n', '', '', 'FAILED', 3, 0, ?, 1000, '', '', 'null', 'null', '', 'null', '')`, id, stage).Exec(ctx)
					if err != nil {
						return err
					}
				}
				if err := (Store{}).InsertMetrics(ctx, tx, "r", points); err != nil {
					return err
				}
				for _, m := range points[1:] {
					_, err := tx.NewRaw(`INSERT INTO tracking_metric_latest (project, experiment, run, key, at, step, value, rank, model, dataset_name, dataset_digest)
						VALUES ('p', 7, 'r', ?, ?, ?, ?, ?, '', ?, '')`, m.Key, int64(m.At), m.Step, store.Float(m.Value), rank(m.Value), m.DatasetName).Exec(ctx)
					if err != nil {
						return err
					}
				}
				for _, table := range []string{"tracking_param", "tracking_tag"} {
					if _, err := tx.NewRaw("INSERT INTO "+table+" (run, key, value) VALUES ('r', 'k', ?), ('gone', 'k', 'x')", long).Exec(ctx); err != nil {
						return err
					}
				}
				return nil
			})
			if err := errors.Join(err, old.Close()); err != nil {
				t.Fatal(err)
			}
			err = open(Migrations.FS).View(t.Context(), func(ctx context.Context, tx *store.Tx) error {
				for _, e := range []search.Entity{search.Param, search.Tag} {
					q := tracking.Query{Experiments: []tracking.ExperimentID{7}, Where: []search.Comparison{{Entity: e, Key: "k", Op: search.Equal, Text: long}}, Limit: 2}
					if found, err := (Store{}).SearchRuns(ctx, tx, "p", q); err != nil || len(found) != 1 {
						t.Errorf("%d runs found by a %s of before: %v", len(found), e, err)
					}
				}
				r.Params, r.Tags, r.Metrics = []tracking.Pair{{Key: "k", Value: long}}, []tracking.Pair{{Key: "k", Value: long}}, points[1:]
				got, err := (Store{}).Run(ctx, tx, "p", "r")
				filled := []tracking.Run{got}
				if err := errors.Join(err, (Store{}).FillRuns(ctx, tx, filled)); err != nil {
					return err
				}
				if diff := cmp.Diff(r, filled[0], cmpopts.EquateNaNs()); diff != "" {
					t.Error(diff)
				}
				// When a run was deleted is not known: not before now.
				for age, want := range map[time.Duration]int{time.Hour: 0, -time.Hour: 1} {
					marked, err := (Store{}).MarkedRuns(ctx, tx, "p", time.Now().Add(-age), "", 10)
					if err != nil || len(marked) != want {
						t.Errorf("%d runs were deleted %s ago: %v", len(marked), age, err)
					}
				}
				history, err := (Store{}).History(ctx, tx, "r", "a", 0, 10)
				if diff := cmp.Diff(points[:2], history); diff != "" {
					t.Error(diff)
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}
