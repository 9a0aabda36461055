package feature_test

import (
	"context"
	"slices"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/feature/featuresql"
	"github.com/falaj-ml/falaj/internal/feature/online/onlinetest"
)

// In another store a view is as if it had never been materialised, and a run that was
// under way writes all of its rows there, not only those that were missing.
func TestAnotherStore(t *testing.T) {
	w := weather(t)
	w.mustMaterialise("weather", w.now)
	w.data.put("long", longRows(55))
	spec := weatherSpec
	spec.Source.Dataset = "long"
	w.view("long", spec)
	r, err := w.Materialise(w.ctx, feature.MaterialiseRequest{Project: nyc, View: "long", Until: w.now})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(w.ctx)
	chunks := 0
	w.driver.write = func() error {
		if chunks++; chunks == 4 {
			cancel()
			return ctx.Err()
		}
		return nil
	}
	_ = w.RunOnce(ctx) // interrupted
	if got, err := w.Run(w.ctx, nyc, r.ID); err != nil || got.Rows != 30 {
		t.Fatalf("%+v, %v", got, err)
	}

	w.driver.write, w.driver.rows, w.driver.Driver = nil, 0, &onlinetest.Memory{}
	is := func(id, former string, forget bool) []string {
		t.Helper()
		views, err := w.SetOnlineStore(w.ctx, id, former, forget)
		if err != nil {
			t.Fatal(err)
		}
		return views[nyc]
	}
	if views := is("first", "first", false); len(views) > 0 {
		t.Errorf("the one of an older release: %v", views)
	}
	if views := is("second", "first", false); !slices.Equal(views, []string{"long@1", "weather@1"}) {
		t.Errorf("forgotten: %v", views)
	}
	if f, err := w.Freshness(w.ctx, nyc, "weather"); err != nil || f.Materialised {
		t.Errorf("%+v, %v", f, err)
	}
	_, err = w.Online(w.ctx, feature.OnlineRequest{Project: nyc, Selection: feature.Selection{Features: []string{"weather:temp"}}, Entities: origin("EWR")})
	refused(t, err, fault.Conflict, "not online")
	if err := w.RunOnce(w.ctx); err != nil {
		t.Fatal(err)
	}
	if done, err := w.WaitRun(w.ctx, nyc, r.ID); err != nil || done.State != feature.Succeeded || done.Rows != 55 || w.driver.rows != 55 {
		t.Errorf("%s, %d rows, %d of them in the new store, %v", done.State, done.Rows, w.driver.rows, err)
	}
	w.mustMaterialise("weather", w.now)
	if got := w.ask(at(1), []string{"weather:temp"}, origin("EWR")...); got[0] != "11/PRESENT" {
		t.Errorf("materialised again: %v", got)
	}
	// Another server over the same database comes later, with whatever its directory says.
	for _, former := range []string{"embedded", "first"} {
		if views := is("second", former, false); len(views) > 0 {
			t.Errorf("known already: %v", views)
		}
	}
	if views := is("second", "second", true); !slices.Equal(views, []string{"long@1", "weather@1"}) {
		t.Errorf("the records are of another time: %v", views)
	}
}

// The name is that of the database, until another database is made of it.
func TestOwnStore(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct {
		given string
		renew bool
		want  string
	}{{"a", false, "a"}, {"b", false, "a"}, {"c", true, "c"}, {"c", true, "c"}, {"d", false, "c"}} {
		if got, err := feature.ClaimOnlineStore(w.ctx, w.db, featuresql.Store{}, c.given, c.renew); err != nil || got != c.want {
			t.Errorf("%+v: %s, %v", c, got, err)
		}
		if _, err := w.SetOnlineStore(w.ctx, c.given, "", false); err != nil {
			t.Error(err)
		}
	}
}
