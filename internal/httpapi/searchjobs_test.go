package httpapi

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/store/storetest"
	"github.com/falaj-ml/falaj/internal/training"
	"github.com/falaj-ml/falaj/internal/training/trainingsql"
)

// manyJobs are n jobs of several names, owners and inputs, and of some more inputs than the
// index takes.
func (w *world) manyJobs(tb testing.TB, open storetest.Open, n int, long bool, owners ...string) {
	tb.Helper()
	db := open(tb, trainingsql.Migrations)
	w.server.Training = training.New(training.Config{DB: db, Store: trainingsql.Store{}, Authorizer: without{w.Authority, "job_0007"}})
	if err := db.Update(tb.Context(), "flights", func(ctx context.Context, tx *store.Tx) error {
		for i := range n {
			j := training.Job{
				ID: training.JobID(fmt.Sprintf("job_%04d", i)), Project: "flights", Name: "train-" + []string{"delay", "Weather", "größe"}[i%3], State: training.Succeeded,
				By: training.Actor{ID: owners[i%len(owners)]}, Spec: training.Spec{Script: strings.Repeat("print('dataset delay')\n", 100)},
				Inputs: []training.Input{{Ref: fmt.Sprintf("dataset data%d@%d", i%10, i)}, {Ref: "model base@3"}},
			}
			switch {
			case i%11 == 5:
				j.Inputs = nil
			case i%11 == 6 && long:
				for k := range 64 {
					j.Inputs = append(j.Inputs, training.Input{Ref: fmt.Sprintf("dataset a-long-name-of-a-dataset-%d@1", k)})
				}
			}
			if err := (trainingsql.Store{}).InsertJob(ctx, tx, j); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		tb.Fatal(err)
	}
}

// listedJobs is a list that reads every job.
func (s *Server) listedJobs(ctx context.Context, p project.Name, after string, limit int) ([]thing, string, error) {
	all, next, err := s.Training.List(ctx, p, training.Filter{Limit: limit, Before: training.JobID(after)})
	out := make([]thing, len(all))
	for i, j := range all {
		t := thing{hit: hit{Name: string(j.ID), Description: j.Name}, after: string(j.ID), owner: j.By.ID, texts: []match{{"name", j.Name}}}
		for _, in := range j.Inputs {
			t.texts = append(t.texts, froms(in.Dataset()+in.Model())...)
		}
		out[i] = t
	}
	return out, string(next), err
}

// foundJobs are all jobs with the words, for an administrator.
func (w *world) foundJobs(tb testing.TB, q string, list func(context.Context, *finder, string, int) ([]thing, int, string, error)) []hit {
	tb.Helper()
	words, err := wordsOf(q)
	if err != nil {
		tb.Fatal(err)
	}
	f := finder{s: w.server, p: "flights", words: words, names: map[string]string{}}
	ctx := w.AsAdmin(tb.Context())
	for after := ""; ; {
		things, _, next, err := list(ctx, &f, after, 100)
		if err != nil {
			tb.Fatal(err)
		}
		for _, t := range things {
			if err := f.look(ctx, kindOfThings{name: "job", action: "job.read", policy: "job"}, t); err != nil {
				tb.Fatal(err)
			}
		}
		if after = next; next == "" {
			return f.hits
		}
	}
}

// TestJobsAreFoundAsListed: the search out of the index finds what a look at every job finds.
func TestJobsAreFoundAsListed(t *testing.T) {
	for name, open1 := range map[string]storetest.Open{"SQLite": storetest.SQLite, "PostgreSQL": storetest.PostgreSQL} {
		t.Run(name, func(t *testing.T) {
			w := open(t)
			names, err := w.Accounts.Names(t.Context(), w.Admin.ID)
			name := strings.ToLower(names[w.Admin.ID])
			if err != nil || name == "" {
				t.Fatal(names, err)
			}
			w.manyJobs(t, open1, 330, true, w.Admin.ID, "usr_unknown", "")
			for _, q := range []string{
				"delay", "DELAY", "weather", "GRÖSSE", "größe", "name:job_000", "job_0007", "from:data3", "from:base", "from:dataset", "dataset", "from:data3@33", name, "owner:" + name, "owner:unknown",
				"from:long-name-of-a-dataset-63", "a-long", "description:delay", "tag:delay", "column:x", "nothing", "weather from:data4 owner:" + name, "kind:job", "kind:model delay", "print", `"train-w"`,
			} {
				want := w.foundJobs(t, q, whole(w.server.listedJobs))
				got := w.foundJobs(t, q, w.server.searchJobs)
				if len(want) == 0 && slices.Contains([]string{"delay", "größe", name, "owner:" + name, "from:base", "from:long-name-of-a-dataset-63"}, q) {
					t.Errorf("%s: nothing to be found", q)
				}
				if !reflect.DeepEqual(got, want) && len(got)+len(want) > 0 {
					t.Errorf("%s: found %d, want %d", q, len(got), len(want))
				}
			}
			if got := w.hits(t, w.Secret, "kind:job+from:data3"); len(got) != 30 {
				t.Errorf("by pages: %d", len(got))
			}
		})
	}
}

// BenchmarkSearchJobs looks for one of 5,000 jobs.
func BenchmarkSearchJobs(b *testing.B) {
	w := open(b)
	w.manyJobs(b, storetest.SQLite, 5000, false, "usr_a", "usr_b")
	for name, list := range map[string]func(context.Context, *finder, string, int) ([]thing, int, string, error){"index": w.server.searchJobs, "every job": whole(w.server.listedJobs)} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if got := w.foundJobs(b, "from:data4@4444", list); len(got) != 1 {
					b.Fatalf("found %d", len(got))
				}
			}
		})
	}
}
