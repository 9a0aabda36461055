package feature_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/feature/online"
	"github.com/falaj-ml/falaj/internal/feature/value"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/store"
)

// look makes the checks that are due, and gives the only one there is.
func (w *world) look() feature.Check {
	w.t.Helper()
	if err := w.WatchOnce(identity.With(context.Background(), identity.Loop("feature"))); err != nil {
		w.t.Fatal(err)
	}
	all := w.Checks()
	if len(all) != 1 {
		w.t.Fatalf("%+v", all)
	}
	return all[0]
}

// published are the events about checks, before the view was cleared.
func (w *world) published() (out []string) {
	w.t.Helper()
	for all := event.Watch(w.db, string(nyc), store.Position{}); ; {
		e, err := all.Next(w.ctx)
		if err != nil {
			w.t.Fatal(err)
		}
		switch e.Name {
		case feature.EventSkewed, feature.EventAgreed:
			out = append(out, e.Name)
		case feature.EventCleared:
			return out
		}
	}
}

func TestWatch(t *testing.T) {
	w := weather(t)
	w.configure(func(c *feature.Config) { c.Watch = feature.Watch{Every: time.Hour} })
	if err := w.WatchOnce(w.ctx); err != nil || len(w.Checks()) > 0 {
		t.Fatal("nothing is online:", w.Checks(), err)
	}
	w.mustMaterialise("weather", at(9))
	first := w.look()
	if first.View != "weather@1" || first.Keys != 2 || first.Values < 4 || first.Mismatches != 0 || first.Skipped != "" || !first.AsOf.Equal(at(9)) {
		t.Fatalf("%+v", first)
	}
	w.now = w.now.Add(59 * time.Minute)
	if again := w.look(); !again.At.Equal(first.At) {
		t.Error("its turn had not come")
	}

	// A row that nothing was materialised from is found, and told once.
	packed, err := value.AppendRow(nil, []value.Value{num(12), num(58)})
	if err != nil {
		t.Fatal(err)
	}
	forged := online.Row{Key: value.AppendKey(nil, str("EWR")), Event: at(8).UnixMicro(), Created: at(8).UnixMicro(), Packed: packed}
	if err := w.online.Write(w.ctx, w.table("weather"), []online.Row{forged}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		w.now = w.now.Add(time.Hour)
		if c := w.look(); c.Mismatches == 0 || !slices.Equal(c.Features, []string{"temp"}) {
			t.Fatalf("%+v", c)
		}
	}
	f, err := w.Freshness(w.ctx, nyc, "weather")
	if err != nil || f.Check == nil || f.Check.Mismatches == 0 {
		t.Errorf("%+v %v", f, err)
	}

	// What cannot be compared once is not taken for right.
	was := w.Checks()[0]
	w.data.interrupt = func(int) error { return fault.New(fault.Unavailable, "the source is away") }
	w.now = w.now.Add(time.Hour)
	c := w.look()
	if c.Skipped == "" || c.Mismatches != was.Mismatches || !c.Compared.Equal(was.Compared) || !c.AsOf.Equal(was.AsOf) || !c.At.Equal(w.now) {
		t.Fatalf("%+v", c)
	}
	w.data.interrupt = nil
	w.now = w.now.Add(time.Hour)
	if c := w.look(); c.Skipped != "" || c.Mismatches == 0 || !c.Compared.Equal(w.now) {
		t.Fatalf("%+v", c)
	}

	// Made anew, it is right again.
	w.data.put("weather", weatherRows(), func(v *version) { v.Digest = "sha256:other" })
	w.mustMaterialise("weather", at(9))
	w.now = w.now.Add(time.Hour)
	if c := w.look(); c.Mismatches != 0 || c.Values == 0 {
		t.Fatalf("%+v", c)
	}
	if err := w.Clear(w.ctx, nyc, "weather"); err != nil {
		t.Fatal(err)
	}
	if err := w.WatchOnce(w.ctx); err != nil || len(w.Checks()) > 0 {
		t.Error("what is gone is not checked:", w.Checks(), err)
	}
	if got := w.published(); !slices.Equal(got, []string{feature.EventSkewed, feature.EventAgreed}) {
		t.Error(got)
	}
}

// A check holds and reads no more than it may, and says when it could not be made.
func TestWatchIsBounded(t *testing.T) {
	w := weather(t)
	w.mustMaterialise("weather", at(9))
	for name, c := range map[string]struct {
		watch feature.Watch
		want  func(feature.Check) bool
	}{
		"one key":  {feature.Watch{Keys: 1}, func(c feature.Check) bool { return c.Keys <= 1 && c.Mismatches == 0 }},
		"3 rows":   {feature.Watch{Rows: 3}, func(c feature.Check) bool { return strings.Contains(c.Skipped, "more than 3 rows") && c.Values == 0 }},
		"all rows": {feature.Watch{Rows: 4}, func(c feature.Check) bool { return c.Skipped == "" && c.Keys == 2 }},
		"no time":  {feature.Watch{Time: 1}, func(c feature.Check) bool { return strings.Contains(c.Skipped, "longer than 1ns") }},
	} {
		w.configure(func(cfg *feature.Config) { c.watch.Every = time.Hour; cfg.Watch = c.watch })
		if got := w.look(); !c.want(got) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// The rows that are held are counted in bytes: keys go until they fit.
func TestWatchHoldsLittle(t *testing.T) {
	w := newWorld(t)
	rows := table{[]col{{"origin", value.String}, {"time", value.Timestamp}, {"sky", value.String}}, nil}
	for i := range 500 {
		rows.rows = append(rows.rows, []value.Value{str(fmt.Sprint("o", i%50)), ts(float64(i / 50)), str(strings.Repeat("x", 1000))})
	}
	w.data.put("obs", rows)
	w.entity("origin", "string")
	w.view("obs", feature.ViewSpec{
		Source: feature.Source{Dataset: "obs"}, Entities: []string{"origin"}, Timestamp: "time", Features: []feature.FieldSpec{{Name: "sky", Type: "string"}},
	})
	w.mustMaterialise("obs", at(24))
	found := 0
	for range 20 { // the choice is by chance
		w.configure(func(c *feature.Config) { c.Watch = feature.Watch{Every: time.Hour, Held: 110_000} }) // ten keys of ten rows
		c := w.look()
		if c.Keys > 10 || c.Mismatches != 0 || c.Keys == 0 && c.Skipped != "each of its keys has too many rows" {
			t.Fatalf("%+v", c)
		}
		found += c.Keys
	}
	if found < 20 {
		t.Errorf("%d keys were compared in 20 checks, of 10 that fit", found)
	}
	w.configure(func(c *feature.Config) { c.Watch = feature.Watch{Every: time.Hour, Held: 5000} })
	if c := w.look(); c.Skipped != "each of its keys has too many rows" {
		t.Errorf("%+v", c)
	}
}

// After an erasure a view is compared with what stands for its source; what differs
// then is no skew, and is to be made anew.
func TestWatchAfterAnErasure(t *testing.T) {
	w := weather(t)
	w.configure(func(c *feature.Config) { c.Watch = feature.Watch{Every: time.Hour} })
	w.mustMaterialise("weather", at(9))
	rows := weatherRows()
	rows.rows = slices.DeleteFunc(rows.rows, func(r []value.Value) bool { return r[0].Str() == "EWR" })
	w.data.redacted["weather@1"] = w.data.put("weather", rows)
	if c := w.look(); c.Keys != 1 || c.Values == 0 || c.Mismatches != 0 || c.Skipped != "" {
		t.Errorf("%+v", c)
	}
	for _, r := range rows.rows {
		r[slices.IndexFunc(rows.cols, func(c col) bool { return c.name == "temp" })] = num(-40)
	}
	w.data.redacted["weather@2"] = w.data.put("weather", rows)
	w.now = w.now.Add(time.Hour)
	if c := w.look(); !strings.HasPrefix(c.Skipped, "persons were erased") || c.Mismatches != 0 || c.Keys != 1 {
		t.Errorf("%+v", c)
	}
	w.data.redacted["weather@3"] = "weather@99" // deleted
	w.now = w.now.Add(time.Hour)
	if c := w.look(); c.Skipped != "the inputs of its rows no longer exist: materialise it again" {
		t.Errorf("%+v", c)
	}
}

// Whatever rows there are, with ties, corrections, nulls and old age, what is online
// is what the join makes of them.
func TestWatchAgrees(t *testing.T) {
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		w := newWorld(t)
		rows := table{[]col{{"origin", value.String}, {"n", value.Int64}, {"time", value.Timestamp}, {"known", value.Timestamp}, {"temp", value.Float64}, {"sky", value.String}}, nil}
		for i := range 300 {
			row := []value.Value{str(fmt.Sprint("o", rnd.IntN(20))), value.OfInt(int64(rnd.IntN(3))), ts(float64(rnd.IntN(10))), ts(float64(rnd.IntN(12))), num(float64(i)), str(fmt.Sprint("s", i))}
			for _, c := range []int{0, 1, 3, 4, 5} {
				if rnd.IntN(15) == 0 {
					row[c] = null
				}
			}
			rows.rows = append(rows.rows, row)
		}
		w.data.put("obs", rows)
		w.entity("origin", "string")
		w.entity("n", "int64")
		w.view("obs", feature.ViewSpec{
			Source: feature.Source{Dataset: "obs"}, Entities: []string{"origin", "n"}, Timestamp: "time", CreatedTimestamp: "known", TTL: "3h",
			Features: []feature.FieldSpec{{Name: "temp", Type: "float64"}, {Name: "sky", Type: "string"}},
		})
		w.configure(func(c *feature.Config) { c.Watch = feature.Watch{Every: time.Hour, Keys: 25} })
		w.mustMaterialise("obs", at(9.5))
		if c := w.look(); c.Keys == 0 || c.Keys > 25 || c.Values < 2*c.Keys || c.Mismatches != 0 || c.Skipped != "" {
			t.Fatalf("seed %d: %+v", seed, c)
		}
	}
}
