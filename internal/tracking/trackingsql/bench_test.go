package trackingsql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"strconv"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/store/storetest"
	"github.com/falaj-ml/falaj/internal/tracking"
	"github.com/falaj-ml/falaj/internal/tracking/search"
)

// many fills an experiment: of a thousand runs one has each value of the param
// "rare", of two each of "half", and so do tags.
func many(b *testing.B, db *store.DB, runs int) {
	b.Helper()
	for from := 0; from < runs; from += 1000 {
		err := db.Update(b.Context(), "p", func(ctx context.Context, tx *store.Tx) error {
			for n := from; n < from+1000; n++ {
				r := tracking.Run{
					ID: tracking.RunID(fmt.Sprintf("%032x", uint64(n)*0x9e3779b97f4a7c15)), Project: "p", Experiment: 1, Name: "run-" + strconv.Itoa(n),
					Status: tracking.Finished, Start: tracking.Millis(n), Stage: tracking.Active, Created: time.UnixMilli(1),
				}
				if n%1000 == 7 {
					r.Status = tracking.Failed
				}
				if err := (Store{}).PutRun(ctx, tx, r); err != nil {
					return err
				}
				pairs := []tracking.Pair{
					{Key: "rare", Value: strconv.Itoa(n * 7 % 1000)},
					{Key: "half", Value: strconv.Itoa(n % 2)},
					{Key: "lr", Value: fmt.Sprint(float64(n*31%97) / 1000)},
					{Key: "path", Value: fmt.Sprintf("/data/%d/part-%d", n*13%1000, n)},
					{Key: "name", Value: "run-" + strconv.Itoa(n)},
				}
				if err := (Store{}).InsertParams(ctx, tx, r, pairs); err != nil {
					return err
				}
				if err := (Store{}).PutTags(ctx, tx, r, pairs); err != nil {
					return err
				}
				metrics := make([]tracking.Metric, 4)
				for m := range metrics {
					metrics[m] = tracking.Metric{Key: "m" + strconv.Itoa(m), Value: math.Sin(float64(n)*7.3+float64(m)) * 10}
				}
				if err := (Store{}).PutLatestMetrics(ctx, tx, r, metrics); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			b.Fatal(err)
		}
	}
}

// tidy does what both databases do in time by themselves.
func tidy(b *testing.B, db *store.DB, url string) {
	b.Helper()
	if url == "" {
		err := db.Update(b.Context(), "", func(ctx context.Context, tx *store.Tx) error {
			_, err := tx.NewRaw("ANALYZE").Exec(ctx)
			return err
		})
		if err != nil {
			b.Fatal(err)
		}
		return
	}
	raw, err := sql.Open("pgx", url)
	if err == nil {
		_, err = raw.ExecContext(b.Context(), "VACUUM ANALYZE")
		err = errors.Join(err, raw.Close())
	}
	if err != nil {
		b.Fatal(err)
	}
}

// BenchmarkSearchRuns finds 100 of 5,000 and of 50,000 runs: what it reads does not grow
// with the runs, but where no index has the words or the order.
func BenchmarkSearchRuns(b *testing.B) {
	pair := func(e search.Entity, key string, op search.Op, text string) search.Comparison {
		return search.Comparison{Entity: e, Key: key, Op: op, Text: text}
	}
	above := func(key string, than float64) search.Comparison {
		return search.Comparison{Entity: search.Metric, Key: key, Op: search.Greater, Number: than}
	}
	by := func(e search.Entity, key string) []search.Order {
		return []search.Order{{Entity: e, Key: key, Desc: true}}
	}
	m1 := by(search.Metric, "m1")
	cases := []struct {
		name  string
		where []search.Comparison
		order []search.Order
	}{
		{"metric/by-metric", []search.Comparison{above("m0", 5)}, m1},
		{"metric/by-it-upwards", []search.Comparison{above("m1", 5)}, []search.Order{{Entity: search.Metric, Key: "m1"}}},
		{"metrics/by-metric", []search.Comparison{above("m0", 5), above("m2", 5)}, m1},
		{"metrics-rare/by-metric", []search.Comparison{above("m0", 5), above("m2", 9.99)}, m1},
		{"param-rare/by-metric", []search.Comparison{pair(search.Param, "rare", search.Equal, "7")}, m1},
		{"param-97th/by-metric", []search.Comparison{pair(search.Param, "lr", search.Equal, "0.01")}, m1},
		{"param-half/by-metric", []search.Comparison{pair(search.Param, "half", search.Equal, "1")}, m1},
		{"param-none/by-metric", []search.Comparison{pair(search.Param, "rare", search.Equal, "x")}, m1},
		{"param-not/by-metric", []search.Comparison{pair(search.Param, "rare", search.NotEqual, "7")}, m1},
		{"param-null/by-metric", []search.Comparison{pair(search.Param, "absent", search.IsNotNull, "")}, m1},
		{"param-prefix/by-metric", []search.Comparison{pair(search.Param, "path", search.Like, "/data/13/%")}, m1},
		{"param-within/by-metric", []search.Comparison{pair(search.Param, "path", search.Like, "%/13/%")}, m1},
		{"tag-rare/by-metric", []search.Comparison{pair(search.Tag, "rare", search.Equal, "7")}, m1},
		{"tag-half/by-metric", []search.Comparison{pair(search.Tag, "half", search.Equal, "1")}, m1},
		{"several/by-metric", []search.Comparison{pair(search.Param, "half", search.Equal, "1"), pair(search.Tag, "lr", search.Equal, "0.01"), above("m0", 5)}, m1},
		{"status-half/by-metric", []search.Comparison{pair(search.Attribute, "status", search.Equal, "FINISHED")}, m1},
		{"status-rare/by-metric", []search.Comparison{pair(search.Attribute, "status", search.Equal, "FAILED")}, m1},
		{"start-rare/by-metric", []search.Comparison{{Entity: search.Attribute, Key: "start_time", Op: search.Greater, Number: 4_900}, {Entity: search.Attribute, Key: "start_time", Op: search.Less, Number: 5_000}}, m1},
		{"name/by-metric", []search.Comparison{pair(search.Attribute, "run_name", search.Equal, "run-77")}, m1},
		{"name-prefix/by-metric", []search.Comparison{pair(search.Attribute, "run_name", search.Like, "run-77%")}, m1},
		{"status-rare/by-start", []search.Comparison{pair(search.Attribute, "status", search.Equal, "FAILED")}, nil},
		{"param-rare/by-start", []search.Comparison{pair(search.Param, "rare", search.Equal, "7")}, nil},
		{"all/by-param-few", nil, by(search.Param, "lr")},
		{"all/by-param-many", nil, by(search.Param, "path")},
		{"all/by-name", nil, by(search.Attribute, "run_name")},
		{"all/by-start", nil, by(search.Attribute, "start_time")},
		{"metric/by-param", []search.Comparison{above("m0", 5)}, by(search.Param, "lr")},
	}
	for _, engine := range engines {
		for _, runs := range []int{5_000, 50_000} {
			url := ""
			var db *store.DB
			if engine.name == "PostgreSQL" {
				url = storetest.Postgres(b)
				var err error
				if db, err = store.Open(b.Context(), store.Config{URL: url, Migrations: []store.Migrations{Migrations}}); err != nil {
					b.Fatal(err)
				}
				defer db.Close()
			} else {
				db = storetest.SQLite(b, Migrations)
			}
			many(b, db, runs)
			tidy(b, db, url)
			for _, c := range cases {
				b.Run(fmt.Sprintf("%s/%d/%s", engine.name, runs, c.name), func(b *testing.B) {
					q := tracking.Query{Experiments: []tracking.ExperimentID{1}, View: tracking.ViewActive, Where: c.where, Order: c.order, Limit: 101}
					for b.Loop() {
						err := db.View(b.Context(), func(ctx context.Context, tx *store.Tx) error {
							_, err := (Store{}).SearchRuns(ctx, tx, "p", q)
							return err
						})
						if err != nil {
							b.Fatal(err)
						}
					}
				})
			}
		}
	}
}

var engines = []struct {
	name string
	open storetest.Open
}{{"SQLite", storetest.SQLite}, {"PostgreSQL", storetest.PostgreSQL}}
