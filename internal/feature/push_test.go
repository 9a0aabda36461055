package feature_test

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
)

func pushed(hours float64, origin, temp any) map[string][]any {
	return map[string][]any{"origin": {origin}, "time": {at(hours)}, "temp": {temp}, "humid": {nil}}
}

func (w *world) push(columns map[string][]any) error {
	_, err := w.Push(w.ctx, feature.PushRequest{Project: nyc, View: "weather", Columns: columns})
	return err
}

// temps asks for the temperature of EWR as of hours after the start.
func (w *world) temps(hours ...float64) (out []string) {
	w.t.Helper()
	for _, h := range hours {
		out = append(out, w.ask(at(h), []string{"weather:temp"}, origin("EWR")...)...)
	}
	return out
}

// TestPush: what is pushed is read at once, by the rule of every row: at its time,
// for as long as the TTL, and never before a later event, whichever came first and
// from wherever. A materialisation of other data replaces the rest and leaves it.
func TestPush(t *testing.T) {
	w := weather(t)
	if err := w.push(pushed(2, "EWR", 12)); err != nil { // before anything is materialised
		t.Fatal(err)
	}
	check := func(what string, want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, w.temps(1, 2, 5, 5.1, 8, 9)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	check("first", "NULL/NOT_FOUND", "12/PRESENT", "12/PRESENT", "NULL/OUTSIDE_MAX_AGE", "NULL/OUTSIDE_MAX_AGE", "NULL/OUTSIDE_MAX_AGE")
	w.mustMaterialise("weather", at(24))
	all := []string{"11/PRESENT", "12/PRESENT", "12/PRESENT", "NULL/OUTSIDE_MAX_AGE", "18/PRESENT", "18/PRESENT"}
	check("materialised", all...)
	for _, late := range []float64{8.5, 8.25, 8.75} { // not in their order
		if err := w.push(pushed(late, "EWR", late)); err != nil {
			t.Fatal(err)
		}
	}
	all[5] = "8.75/PRESENT"
	check("pushed", all...)
	if err := w.push(pushed(8.75, "EWR", -1.5)); err != nil {
		t.Fatal(err)
	}
	all[5] = "-1.5/PRESENT"
	check("pushed again", all...)
	if err := w.push(pushed(8, "EWR", -8)); err != nil {
		t.Fatal(err)
	}
	all[4] = "-8/PRESENT"
	check("instead of a materialised row", all...)

	rows := weatherRows()
	rows.rows = rows.rows[3:] // EWR is gone
	w.data.put("weather", rows)
	before := w.table("weather")
	w.mustMaterialise("weather", at(25))
	if w.table("weather") == before {
		t.Fatal("nothing was replaced")
	}
	all[0] = "NULL/NOT_FOUND"
	check("materialised anew", all...)

	if err := w.Clear(w.ctx, nyc, "weather"); err != nil {
		t.Fatal(err)
	}
	w.mustMaterialise("weather", at(25))
	if got := w.temps(9); got[0] != "NULL/NOT_FOUND" {
		t.Errorf("cleared: %s", got)
	}
}

// TestPushIntoAnotherStore: rows that are written while the records of the former store
// go are not acknowledged; nobody would read them.
func TestPushIntoAnotherStore(t *testing.T) {
	w := weather(t)
	w.driver.write = func() error {
		_, err := w.SetOnlineStore(w.ctx, "second", "first", false)
		return err
	}
	refused(t, w.push(pushed(2, "EWR", 12)), fault.Conflict, "Push the rows again")
	w.driver.write = nil
	if err := w.push(pushed(2, "EWR", 12)); err != nil {
		t.Fatal(err)
	}
	if got := w.temps(2); got[0] != "12/PRESENT" {
		t.Errorf("pushed again: %v", got)
	}
}

// TestPushRefused: what does not fit is refused before anything is written or on
// record, and so is who may not.
func TestPushRefused(t *testing.T) {
	w := weather(t)
	good := func() map[string][]any { return pushed(2, "EWR", 12.5) }
	wrong := map[string]func(c map[string][]any){
		"a type":            func(c map[string][]any) { c["temp"] = []any{"12"} },
		"a null key":        func(c map[string][]any) { c["origin"] = []any{nil} },
		"a key's type":      func(c map[string][]any) { c["origin"] = []any{1} },
		"a null time":       func(c map[string][]any) { c["time"] = []any{nil} },
		"no time":           func(c map[string][]any) { c["time"] = []any{"yesterday"} },
		"the future":        func(c map[string][]any) { c["time"] = []any{w.now.Add(time.Hour)} },
		"a column too many": func(c map[string][]any) { c["tmp"] = []any{1} },
		"a column too few":  func(c map[string][]any) { delete(c, "humid") },
		"a short column":    func(c map[string][]any) { c["temp"] = nil },
		"a long column":     func(c map[string][]any) { c["temp"] = []any{1, 2} },
	}
	for _, name := range slices.Sorted(maps.Keys(wrong)) {
		c := good()
		wrong[name](c)
		if err := w.push(c); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	second := good() // of two rows, the second is wrong
	for k, v := range second {
		second[k] = append(v, v[0])
	}
	second["temp"][1] = true
	if err := w.push(second); !fault.Is(err, fault.Invalid) {
		t.Errorf("the second row: %v", err)
	}
	w.gates.refuse[feature.ActionPush] = true
	if err := w.push(good()); !fault.Is(err, fault.PermissionDenied) {
		t.Errorf("without permission: %v", err)
	}
	delete(w.gates.refuse, feature.ActionPush)
	if w.driver.rows != 0 {
		t.Errorf("%d rows were written", w.driver.rows)
	}
	if f, err := w.Freshness(w.ctx, nyc, "weather"); err != nil || f.Materialised {
		t.Errorf("it is online: %v", err)
	}
	if err := w.push(good()); err != nil {
		t.Error(err)
	}
}
