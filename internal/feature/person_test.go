package feature_test

import (
	"context"
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/feature/online"
	"github.com/falaj-ml/falaj/internal/feature/value"
)

// ewr is EWR as a person, who is known by the key or, after a restore, by Is only.
func ewr(known bool) feature.Person {
	p := feature.Person{Project: nyc, Entity: "origin", Is: func(v []string) bool { return slices.Equal(v, []string{"EWR"}) }, Purpose: "erasure ers_1"}
	if known {
		p.Values = []string{"EWR"}
	}
	return p
}

// Rows go from all tables of all views of the entity, materialised and pushed, also
// where the entity is one of several; those of others stay.
func TestForgetOnline(t *testing.T) {
	for _, known := range []bool{true, false} {
		w := weather(t)
		w.entity("gate", "int64")
		w.data.put("gates", table{[]col{{"origin", value.String}, {"gate", value.Int64}, {"time", value.Timestamp}, {"load", value.Float64}}, [][]value.Value{
			{str("EWR"), value.OfInt(1), ts(1), num(1)}, {str("EWR"), value.OfInt(2), ts(1), num(2)}, {str("JFK"), value.OfInt(1), ts(1), num(3)},
		}})
		w.view("gates", feature.ViewSpec{
			Source: feature.Source{Dataset: "gates"}, Entities: []string{"gate", "origin"}, Timestamp: "time",
			Features: []feature.FieldSpec{{Name: "load", Type: "float64"}},
		})
		w.mustMaterialise("weather", at(24))
		w.mustMaterialise("gates", at(24))
		for _, who := range []string{"EWR", "JFK"} {
			if err := w.push(pushed(2, who, 12)); err != nil {
				t.Fatal(err)
			}
		}
		keys, err := w.PersonKeys(w.ctx, ewr(true))
		if err != nil || len(keys["weather@1"].Keys) != 1 || len(keys["gates@1"].Keys) != 2 {
			t.Fatalf("keys %v, error %v", keys, err)
		}
		rows, err := w.PersonRows(w.ctx, ewr(true), keys, nil)
		if err != nil || len(rows) != 2 || rows[0].Rows+rows[1].Rows != 6 || rows[0].Unknown || rows[1].Unknown {
			t.Fatalf("found %+v, error %v", rows, err)
		}
		tokens := slices.Concat(rows[0].Tokens(), rows[1].Tokens())
		if b, err := json.Marshal(keys); err != nil || json.Unmarshal(b, &keys) != nil { // as it is kept
			t.Fatal(err)
		}
		if !known { // by the tokens, and by what is online
			if keys, err = w.PersonKeys(w.ctx, ewr(false)); err != nil || len(keys["weather@1"].Keys) != 1 || len(keys["gates@1"].Keys) != 2 {
				t.Fatalf("keys %v, error %v", keys, err)
			}
			keys["weather@1"] = feature.ViewKeys{} // as when its dataset has them no more
		}
		told := map[string]int64{}
		for range 2 {
			if err := w.ForgetOnline(w.ctx, ewr(known), keys, tokens, func(r feature.PersonRows) error {
				told[r.View] += r.Rows
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		}
		if told["weather@1"] != 4 || told["gates@1"] != 2 {
			t.Errorf("told of %v", told)
		}
		expect(t, w.ask(at(2), []string{"weather:temp"}, origin("EWR", "JFK")...), []string{"NULL/NOT_FOUND", "12/PRESENT"})
		pair := func(origin string, gate int) map[string]any { return map[string]any{"origin": origin, "gate": gate} }
		expect(t, w.ask(at(2), []string{"gates:load"}, pair("EWR", 1), pair("EWR", 2), pair("JFK", 1)), []string{"NULL/NOT_FOUND", "NULL/NOT_FOUND", "3/PRESENT"})

		// Nothing is lost for good: a later push is known.
		if err := w.push(pushed(3, "EWR", 13)); err != nil {
			t.Fatal(err)
		}
		expect(t, w.ask(at(3), []string{"weather:temp"}, origin("EWR")...), []string{"13/PRESENT"})
		if _, err := w.PersonKeys(w.ctx, feature.Person{Project: nyc, Entity: "nobody"}); !fault.Is(err, fault.NotFound) {
			t.Errorf("an unknown entity: %v", err)
		}
	}
}

// A key is what rows have, or refused without being repeated.
func TestIdentify(t *testing.T) {
	w := newWorld(t)
	w.entity("customer", "int64")
	w.entity("flag", "bool")
	w.entity("word", "string")
	for _, c := range []struct{ entity, text, want string }{
		{"customer", "4711", "4711"}, {"customer", "+4711", "4711"}, {"customer", "-1", "-1"}, {"flag", "true", "true"}, {"word", "a b", "a b"},
	} {
		got, err := w.Identify(w.ctx, nyc, c.entity, []string{c.text})
		if err != nil || !slices.Equal(got, []string{c.want}) {
			t.Errorf("%s %q is %q, error %v", c.entity, c.text, got, err)
		}
	}
	for entity, values := range map[string][]string{"customer": {"canary"}, "flag": {"canary"}, "word": {"canary", "two"}} {
		_, err := w.Identify(w.ctx, nyc, entity, values)
		refused(t, err, fault.Invalid)
		if err != nil && strings.Contains(err.Error()+fault.HintOf(err), "canary") {
			t.Errorf("the key is repeated: %v", err)
		}
	}
	_, err := w.Identify(w.ctx, nyc, "planet", []string{"x"})
	refused(t, err, fault.NotFound)
}

// boarding is a world with a view of two entities.
func boarding(t *testing.T) *world {
	t.Helper()
	w := weather(t)
	w.entity("gate", "int64")
	w.data.put("gates", gatesOf("EWR", "JFK", "LGA"))
	w.view("gates", feature.ViewSpec{
		Source: feature.Source{Dataset: "gates"}, Entities: []string{"gate", "origin"}, Timestamp: "time",
		Features: []feature.FieldSpec{{Name: "load", Type: "float64"}},
	})
	w.mustMaterialise("gates", at(24))
	return w
}

func gatesOf(origins ...string) table {
	tb := table{cols: []col{{"origin", value.String}, {"gate", value.Int64}, {"time", value.Timestamp}, {"load", value.Float64}}}
	for i, o := range origins {
		tb.rows = append(tb.rows, []value.Value{str(o), value.OfInt(int64(i)), ts(1), num(float64(i))})
	}
	return tb
}

func (w *world) gate(p feature.Person, keys feature.PersonKeys) feature.PersonRows {
	w.t.Helper()
	rows, err := w.PersonRows(w.ctx, p, keys, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, r := range rows {
		if r.View == "gates@1" {
			return r
		}
	}
	w.t.Fatalf("gates@1 is not among %v", rows)
	return feature.PersonRows{}
}

// Somebody else was erased before, and what the rows online were made of is gone: the
// keys are in what stands for it.
func TestKeysAfterAnErasure(t *testing.T) {
	w := boarding(t)
	w.data.redacted["gates@1"] = w.data.put("gates", gatesOf("EWR", "JFK")) // without LGA
	keys, err := w.PersonKeys(w.ctx, ewr(true))
	if err != nil || len(keys["gates@1"].Keys) != 1 || !keys["gates@1"].All {
		t.Fatalf("keys %+v, error %v", keys, err)
	}
	if r := w.gate(ewr(true), keys); r.Rows != 1 || r.Unknown {
		t.Errorf("%+v", r)
	}
	// Views of any entity are outdated, until they are made again.
	if got, err := w.Outdated(w.ctx, nyc); err != nil || !slices.Equal(got, []feature.Outdated{{View: "gates@1", Of: "gates@1"}}) {
		t.Errorf("outdated: %v, error %v", got, err)
	}
	w.mustMaterialise("gates", at(24))
	if got, err := w.Outdated(w.ctx, nyc); err != nil || len(got) != 0 {
		t.Errorf("outdated: %v, error %v", got, err)
	}
	// Nothing can be read: that is said.
	w.data.redacted["gates@2"] = "gates@99"
	if keys, err = w.PersonKeys(w.ctx, ewr(true)); err != nil || keys["gates@1"].All {
		t.Fatalf("keys %+v, error %v", keys, err)
	}
	if r := w.gate(ewr(true), keys); !r.Unknown {
		t.Errorf("%+v", r)
	}
}

// What is materialised after the keys were taken is not taken for what was looked at.
func TestKeysOfAnotherGeneration(t *testing.T) {
	w := boarding(t)
	keys, err := w.PersonKeys(w.ctx, ewr(true))
	if err != nil {
		t.Fatal(err)
	}
	late := w.data.put("gates", gatesOf("JFK", "EWR")) // under another gate
	w.mustMaterialise("gates", at(24))
	if r := w.gate(ewr(true), keys); r.Unknown { // its dataset says whether the person is there
		t.Errorf("%+v", r)
	}
	w.data.redacted[late] = w.data.put("gates", gatesOf("JFK"))
	if r := w.gate(ewr(true), keys); !r.Unknown {
		t.Errorf("%+v", r)
	}
	w.mustMaterialise("gates", at(24))
	if r := w.gate(ewr(true), keys); r.Unknown || r.Rows != 0 {
		t.Errorf("%+v", r)
	}
}

// Rows that a stream folded are in no input; the log and the newest version tell.
func TestKeysOfAStream(t *testing.T) {
	w := newWorld(t)
	w.data.declared["visits"] = gatesOf().cols
	w.entity("origin", "string")
	w.entity("gate", "int64")
	w.view("visits", feature.ViewSpec{
		Source: feature.Source{Dataset: "visits", Stream: &feature.StreamSpec{Push: &struct{}{}}}, Entities: []string{"gate", "origin"}, Timestamp: "time",
		Features: []feature.FieldSpec{{Name: "load", Type: "float64"}},
	})
	w.mustMaterialise("visits", time.Time{})
	push := func(origin string, gate int) {
		t.Helper()
		e := feature.Event{"origin": origin, "gate": gate, "time": at(1).Format(time.RFC3339Nano), "load": 1.5}
		if _, err := w.PushEvents(w.ctx, feature.EventsRequest{Project: nyc, View: "visits", Events: []feature.Event{e}}); err != nil {
			t.Fatal(err)
		}
	}
	push("EWR", 1)
	push("JFK", 1)
	w.now = w.now.Add(2 * time.Hour)
	w.follow() // cuts
	push("EWR", 2)
	w.follow()
	if n := len(w.data.show(t, "visits")) - 1; n != 2 {
		t.Fatalf("%d events are in the dataset, not those of the first hour", n)
	}
	for _, known := range []bool{true, false} {
		keys, err := w.PersonKeys(w.ctx, ewr(known))
		if err != nil || len(keys["visits@1"].Keys) != 2 || !keys["visits@1"].All {
			t.Fatalf("keys %+v, error %v", keys, err)
		}
		rows, err := w.PersonRows(w.ctx, ewr(known), keys, nil)
		if err != nil || len(rows) != 1 || rows[0].Rows != 2 || rows[0].Unknown {
			t.Errorf("%+v, error %v", rows, err)
		}
	}
}

// What a fold has read is written before a person's rows go, or not at all.
func TestForgetWhileFolding(t *testing.T) {
	w := till(t)
	w.mustMaterialise("spending", time.Time{})
	w.mustPush(purchase("EWR", 1, 1))
	keys, err := w.PersonKeys(w.ctx, ewr(true))
	if err != nil {
		t.Fatal(err)
	}
	forget := func() error {
		return w.ForgetOnline(w.ctx, ewr(true), keys, nil, func(feature.PersonRows) error { return nil })
	}
	tried := 0
	w.driver.write = func() error {
		tried++
		if err := forget(); !fault.Is(err, fault.Unavailable) {
			t.Errorf("in the middle of a fold: %v", err)
		}
		return nil
	}
	w.follow()
	w.driver.write = nil
	if tried == 0 {
		t.Error("nothing was folded")
	}
	if err := forget(); err != nil {
		t.Fatal(err)
	}
	expect(t, w.spent(1), "NULL/NOT_FOUND | NULL/NOT_FOUND")
}

// kept remembers the rows that it was ever given.
type kept struct {
	online.Driver
	rows []online.RowKey
}

func (k *kept) Write(ctx context.Context, versions []online.Version) error {
	for _, v := range versions {
		k.rows = append(k.rows, v.Row)
	}
	return k.Driver.Write(ctx, versions)
}

// there is how many of them have something still.
func (k *kept) there(t *testing.T) (n int) {
	t.Helper()
	slices.SortFunc(k.rows, func(a, b online.RowKey) int { return slices.Compare(a[:], b[:]) })
	k.rows = slices.Compact(k.rows)
	has := map[int]bool{}
	if err := k.Scan(t.Context(), k.rows, online.Stamp{Event: math.MaxInt64, Created: math.MaxInt64}, func(i int, _ online.Stamp, _ []byte) bool {
		has[i] = true
		return false
	}); err != nil {
		t.Fatal(err)
	}
	return len(has)
}

// What an unfinished run has written answers nobody, and has rows of the person all the
// same: it goes, where the version that it is made of was redacted. The run makes its
// rows anew, if it still can.
func TestForgetWhatARunHasBegun(t *testing.T) {
	for _, redacted := range []bool{true, false} {
		w := newWorld(t)
		all := &kept{Driver: w.driver.Driver}
		w.driver.Driver = all
		w.entity("origin", "string")
		w.data.put("weather", longRows(20))
		w.view("weather", weatherSpec)
		w.mustMaterialise("weather", at(60))
		before := all.there(t)
		w.data.put("weather", longRows(55))
		r, err := w.Materialise(w.ctx, feature.MaterialiseRequest{Project: nyc, View: "weather", Until: at(60)})
		if err != nil {
			t.Fatal(err)
		}
		chunks := 0
		w.driver.write = func() error {
			if chunks++; chunks == 4 {
				return fault.New(fault.Unavailable, "disk away")
			}
			return nil
		}
		if err := w.RunOnce(w.ctx); err != nil {
			t.Fatal(err)
		}
		w.driver.write = nil
		if n := all.there(t); n <= before {
			t.Fatalf("%d rows are there, as many as before the run", n)
		}
		if redacted {
			w.data.redacted["weather@2"] = w.data.put("weather", longRows(54))
		}
		nobody := ewr(true)
		if err := w.ForgetOnline(w.ctx, nobody, feature.PersonKeys{}, nil, func(feature.PersonRows) error { return nil }); err != nil {
			t.Fatal(err)
		}
		if n := all.there(t); (n == before) != redacted {
			t.Errorf("redacted %v: of %d rows before the run, %d are there", redacted, before, n)
		}
		w.now = w.now.Add(time.Hour)
		if err := w.RunOnce(w.ctx); err != nil {
			t.Fatal(err)
		}
		want := feature.Succeeded
		if redacted {
			want = feature.Failed // it was asked for over what is gone
		}
		if r, err = w.Run(w.ctx, nyc, r.ID); err != nil || r.State != want {
			t.Errorf("redacted %v: the run is %+v, error %v", redacted, r, err)
		}
		if redacted {
			w.mustMaterialise("weather", at(60))
		}
		expect(t, w.ask(at(53), []string{"weather:temp"}, origin("A04")...), []string{"53/PRESENT"})
	}
}
