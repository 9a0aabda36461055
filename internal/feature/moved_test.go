package feature_test

import (
	"context"
	"slices"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
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
	views, err := w.StoreChanged(w.ctx, nyc)
	if err != nil || !slices.Equal(views, []string{"long@1", "weather@1"}) {
		t.Errorf("forgotten: %v, %v", views, err)
	}
	if f, err := w.Freshness(w.ctx, nyc, "weather"); err != nil || f.Materialised {
		t.Errorf("%+v, %v", f, err)
	}
	_, err = w.Online(w.ctx, feature.OnlineRequest{Project: nyc, Selection: feature.Selection{Features: []string{"weather:temp"}}, Entities: origin("EWR")})
	refused(t, err, fault.Conflict, "not online")
	if views, err := w.StoreChanged(w.ctx, nyc); err != nil || len(views) > 0 {
		t.Errorf("a second time: %v, %v", views, err)
	}
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
}
