package feature_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
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
		if err != nil || len(keys["weather@1"]) != 1 || len(keys["gates@1"]) != 2 {
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
			if keys, err = w.PersonKeys(w.ctx, ewr(false)); err != nil || len(keys["weather@1"]) != 1 || len(keys["gates@1"]) != 2 {
				t.Fatalf("keys %v, error %v", keys, err)
			}
			delete(keys, "weather@1") // as when its dataset has them no more
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
