package feature_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/feature/online"
	"github.com/falaj-ml/falaj/internal/feature/value"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/policy"
)

// sees permits feature.clear on the objects that it lists.
type sees struct{ objects []string }

func (s *sees) Permits(_ context.Context, a policy.Action, o policy.Object) (bool, error) {
	return a == feature.ActionClear && slices.Contains(s.objects, o.Name), nil
}

// patients is a world with a view that says what it is read for, and protects a
// text and a number.
func patients(t *testing.T) (*world, *sees) {
	t.Helper()
	w := newWorld(t)
	cols := []col{{"patient", value.String}, {"time", value.Timestamp}, {"ward", value.String}, {"illness", value.String}, {"age", value.Int64}}
	w.data.put("stays", table{cols, [][]value.Value{
		{str("a"), ts(0), str("east"), str("flu"), value.OfInt(30)},
		{str("b"), ts(0), str("west"), str("flu"), value.OfInt(40)},
		{str("c"), ts(0), str("west"), null, null},
	}})
	w.data.put("spine", table{[]col{{"patient", value.String}, {"at", value.Timestamp}}, [][]value.Value{{str("a"), ts(1)}, {str("b"), ts(1)}, {str("c"), ts(1)}, {str("d"), ts(1)}}})
	w.entity("patient", "string")
	w.view("patients", feature.ViewSpec{
		Source: feature.Source{Dataset: "stays"}, Entities: []string{"patient"}, Timestamp: "time", Purpose: []string{"care", "research"},
		Features: []feature.FieldSpec{
			{Name: "ward", Type: "string"}, {Name: "illness", Type: "string", Protect: feature.Pseudonym}, {Name: "age", Type: "int64", Protect: feature.Mask},
		},
	})
	w.mustMaterialise("patients", w.now)
	s := &sees{}
	w.configure(func(c *feature.Config) { c.Permits = s })
	return w, s
}

func people(names ...string) (out []map[string]any) {
	for _, n := range names {
		out = append(out, map[string]any{"patient": n})
	}
	return out
}

func (w *world) cells(ctx context.Context, sel feature.Selection, entities ...map[string]any) ([]string, error) {
	a, err := w.Online(ctx, feature.OnlineRequest{Project: nyc, Selection: sel, Entities: entities, AsOf: at(1)})
	if err != nil {
		return nil, err
	}
	var out []string
	for n := range entities {
		var cells []string
		for _, c := range a.Columns {
			text := c.Values[n].String()
			if strings.HasPrefix(text, "psn_") {
				text = "psn_"
			}
			cells = append(cells, fmt.Sprintf("%s/%s", text, c.Statuses[n]))
		}
		out = append(out, strings.Join(cells, " "))
	}
	return out, nil
}

func TestPurposeIsAskedOnEachRead(t *testing.T) {
	w, _ := patients(t)
	ward := []string{"patients:ward"}
	read := map[string]func(ctx context.Context, purpose string) error{
		"online": func(ctx context.Context, purpose string) error {
			_, err := w.cells(ctx, feature.Selection{Features: ward, Purpose: purpose}, people("a")...)
			return err
		},
		"training set": func(ctx context.Context, purpose string) error {
			_, err := w.MakeTrainingSet(ctx, feature.TrainingSetRequest{
				Project: nyc, Name: "set", Spine: feature.Source{Dataset: "spine"}, Timestamp: "at", Selection: feature.Selection{Features: ward, Purpose: purpose},
			})
			return err
		},
		"history": func(ctx context.Context, purpose string) error {
			h, err := w.History(ctx, feature.HistoryRequest{Project: nyc, Rows: w.data.versions["spine"][0].table.reader(), Timestamp: "at", Selection: feature.Selection{Features: ward, Purpose: purpose}})
			if err == nil {
				h.Release()
			}
			return err
		},
	}
	for name, ask := range read {
		w.gates.entries = nil
		refused(t, ask(w.ctx, ""), fault.PermissionDenied, "patients@1 allows only the purposes care, research", "names none", "--purpose", "Falaj-Purpose")
		refused(t, ask(w.ctx, "marketing"), fault.PermissionDenied, "not marketing")
		refused(t, ask(feature.WithPurpose(w.ctx, "marketing"), ""), fault.PermissionDenied, "not marketing")
		if len(w.gates.entries) != 3 || w.gates.entries[1].Outcome != audit.Refused || w.gates.entries[1].Detail["purpose"] != "marketing" {
			t.Errorf("%s: refusals in the journal: %+v", name, w.gates.entries)
		}
		w.gates.entries = nil
		for _, err := range []error{ask(w.ctx, "care"), ask(feature.WithPurpose(w.ctx, "research"), "")} {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if name != "training set" && (len(w.gates.entries) != 2 || w.gates.entries[0].Detail["purpose"] != "care" || w.gates.entries[1].Detail["purpose"] != "research") {
			t.Errorf("%s: reads in the journal: %+v", name, w.gates.entries)
		}
		w.gates.broken = fault.New(fault.Unavailable, "the disk is full")
		refused(t, ask(w.ctx, "marketing"), fault.Unavailable)
		if name != "training set" { // which is audited in its transaction
			refused(t, ask(w.ctx, "care"), fault.Unavailable)
		}
		w.gates.broken = nil
	}
	set, err := w.TrainingSet(w.ctx, nyc, "set@1")
	if err != nil || set.Purpose != "care" {
		t.Errorf("the training set is for %q, %v", set.Purpose, err)
	}
	// It is verified for what it was made.
	if report, err := w.Verify(w.ctx, feature.VerifyRequest{Project: nyc, TrainingSet: "set@1"}); err != nil || report.Mismatches != 0 {
		t.Errorf("report %+v, %v", report, err)
	}
	// A purpose is kept for ever: it is a word of the project's, not anybody's text.
	w.gates.entries = nil
	for _, ask := range read {
		refused(t, ask(feature.WithPurpose(w.ctx, strings.Repeat("care ", 2000)), ""), fault.Invalid, "is not a name")
	}
	if len(w.gates.entries) != 0 {
		t.Errorf("kept: %+v", w.gates.entries)
	}
	// Who may not read is not told what a view is for.
	w.gates.refuse[feature.ActionHistory] = true
	refused(t, read["online"](w.ctx, ""), fault.PermissionDenied, "feature.history is refused")
}

func TestPurposeOfAService(t *testing.T) {
	w, _ := patients(t)
	spec := feature.ServiceSpec{Features: []string{"patients:ward"}, Purpose: "marketing"}
	apply := func() error {
		_, _, err := w.ApplyServiceDefinition(w.ctx, feature.ApplyRequest{Project: nyc, Name: "stay"}, spec)
		return err
	}
	refused(t, apply(), fault.Invalid, "spec.purpose: feature view patients@1 allows only the purposes care, research")
	spec.Purpose = "Care!"
	refused(t, apply(), fault.Invalid, "spec.purpose")
	spec.Purpose = ""
	if err := apply(); err != nil {
		t.Fatal(err)
	}
	_, err := w.cells(w.ctx, feature.Selection{Service: "stay"}, people("a")...)
	refused(t, err, fault.PermissionDenied, "names none")
	if shape, err := w.Shape(w.ctx, nyc, "stay"); err != nil || len(shape.Purposes) != 2 {
		t.Errorf("shape %+v, %v", shape, err)
	}
	spec.Purpose = "care"
	if err := apply(); err != nil {
		t.Fatal(err)
	}
	got, err := w.cells(w.ctx, feature.Selection{Service: "stay"}, people("a")...)
	if err != nil {
		t.Fatal(err)
	}
	expect(t, got, []string{"east/PRESENT"})
	_, err = w.cells(feature.WithPurpose(w.ctx, "research"), feature.Selection{Service: "stay"}, people("a")...)
	refused(t, err, fault.PermissionDenied, "feature service stay@2 has the purpose care, and this read has the purpose research")
	lookup := feature.LookupRequest{Project: nyc, Service: "stay", Rows: 0}
	if _, err = w.Lookup(w.ctx, feature.LookupRequest{Project: nyc, Service: "stay@1", Rows: 0}); !fault.Is(err, fault.PermissionDenied) {
		t.Errorf("a prediction without a purpose: %v", err)
	}
	lookup.Keys = []feature.KeyColumn{{Name: "patient"}}
	for _, ctx := range []context.Context{w.ctx, feature.WithPurpose(w.ctx, "triage")} { // a model reads for what its service is for
		if _, err = w.Lookup(ctx, lookup); err != nil {
			t.Error(err)
		}
		if last := w.gates.entries[len(w.gates.entries)-1]; last.Detail["purpose"] != "care" {
			t.Errorf("in the journal: %+v", last)
		}
	}
}

func TestProtectionRefuses(t *testing.T) {
	w, _ := patients(t)
	for words, change := range map[string]func(*feature.ViewSpec){
		"spec.features[2].protect: a pseudonym must be a string, and this feature is int64": func(s *feature.ViewSpec) { s.Features[2].Protect = feature.Pseudonym },
		`spec.features[0].protect: there is no protection "hide"`:                           func(s *feature.ViewSpec) { s.Features[0].Protect = "hide" },
		`spec.purpose: duplicate "care"`:                                                    func(s *feature.ViewSpec) { s.Purpose = []string{"care", "care"} },
		"spec.purpose":                                                                      func(s *feature.ViewSpec) { s.Purpose = []string{""} },
		"spec.aggregations[0].protect": func(s *feature.ViewSpec) {
			s.Features = nil
			s.Aggregations = []feature.AggregationSpec{{Name: "n", Function: "count", Window: "1h", Protect: feature.Pseudonym}}
		},
	} {
		s := feature.ViewSpec{
			Source: feature.Source{Dataset: "stays"}, Entities: []string{"patient"}, Timestamp: "time",
			Features: []feature.FieldSpec{{Name: "ward", Type: "string"}, {Name: "illness", Type: "string"}, {Name: "age", Type: "int64"}},
		}
		change(&s)
		_, _, err := w.ApplyView(w.ctx, feature.ApplyRequest{Project: nyc, Name: "other"}, s)
		refused(t, err, fault.Invalid, words)
	}
}

// TestProtected: a reader sees in clear what he may, the same online, in training
// sets and in rows that are joined for him.
func TestProtected(t *testing.T) {
	w, s := patients(t)
	w.service("stay", feature.ServiceSpec{
		Features: []string{"patients:ward", "patients:illness", "patients:age"}, Purpose: "care",
		Computed: []feature.ComputedSpec{
			{Name: "old", Type: "bool", Expression: "age > 35"}, {Name: "older", Type: "bool", Expression: "old || false"}, {Name: "east", Type: "bool", Expression: "ward == 'east'"},
		},
	})
	sel := feature.Selection{Service: "stay"}
	illness, age := "patients@1:illness", "patients@1:age"
	for _, c := range []struct {
		sees []string
		want []string // online
		set  []string
		name string
	}{
		{nil, []string{
			"east/PRESENT psn_/PRESENT NULL/MASKED NULL/MASKED NULL/MASKED true/PRESENT",
			"west/PRESENT NULL/NULL_VALUE NULL/MASKED NULL/MASKED NULL/MASKED false/PRESENT",
			"NULL/NOT_FOUND NULL/NOT_FOUND NULL/NOT_FOUND NULL/NOT_FOUND NULL/NOT_FOUND false/PRESENT",
		}, []string{"east, psn_, NULL, NULL, NULL, true", "west, psn_, NULL, NULL, NULL, false", "west, NULL, NULL, NULL, NULL, false", "NULL, NULL, NULL, NULL, NULL, false"}, "masked"},
		{[]string{age}, []string{
			"east/PRESENT psn_/PRESENT 30/PRESENT false/PRESENT false/PRESENT true/PRESENT",
			"west/PRESENT NULL/NULL_VALUE NULL/NULL_VALUE NULL/NULL_VALUE NULL/NULL_VALUE false/PRESENT",
			"NULL/NOT_FOUND NULL/NOT_FOUND NULL/NOT_FOUND NULL/NOT_FOUND NULL/NOT_FOUND false/PRESENT",
		}, []string{"east, psn_, 30, false, false, true", "west, psn_, 40, true, true, false", "west, NULL, NULL, NULL, NULL, false", "NULL, NULL, NULL, NULL, NULL, false"}, "partly"},
		{[]string{age, illness}, []string{
			"east/PRESENT flu/PRESENT 30/PRESENT false/PRESENT false/PRESENT true/PRESENT",
			"west/PRESENT NULL/NULL_VALUE NULL/NULL_VALUE NULL/NULL_VALUE NULL/NULL_VALUE false/PRESENT",
			"NULL/NOT_FOUND NULL/NOT_FOUND NULL/NOT_FOUND NULL/NOT_FOUND NULL/NOT_FOUND false/PRESENT",
		}, []string{"east, flu, 30, false, false, true", "west, flu, 40, true, true, false", "west, NULL, NULL, NULL, NULL, false", "NULL, NULL, NULL, NULL, NULL, false"}, "clear"},
	} {
		s.objects = c.sees
		w.gates.entries = nil
		got, err := w.cells(w.ctx, sel, people("a", "c", "d")...)
		if err != nil {
			t.Fatal(err, fault.HintOf(err))
		}
		expect(t, got, c.want)
		if seen, _ := w.gates.entries[0].Detail["clear"].([]string); len(w.gates.entries) != 1 || len(seen) != len(c.sees) {
			t.Errorf("%s: the journal has %+v", c.name, w.gates.entries)
		}
		set, err := w.MakeTrainingSet(w.ctx, feature.TrainingSetRequest{Project: nyc, Name: c.name, Spine: feature.Source{Dataset: "spine"}, Timestamp: "at", Selection: sel})
		if err != nil {
			t.Fatal(err)
		}
		expect(t, mine(w.data.show(t, set.Dataset)), c.set)
		expect(t, len(set.Clear), len(c.sees))
		if report, err := w.Verify(w.ctx, feature.VerifyRequest{Project: nyc, TrainingSet: set.Dataset}); err != nil || report.Mismatches != 0 || report.Values != 12 {
			t.Errorf("%s: report %+v, %v", c.name, report, err)
		}
		h, err := w.History(w.ctx, feature.HistoryRequest{Project: nyc, Rows: w.data.versions["spine"][0].table.reader(), Timestamp: "at", Selection: sel})
		if err != nil {
			t.Fatal(err)
		}
		w.data.put("history", readAll(t, h))
		expect(t, mine(w.data.show(t, "history")), c.set)
		if err := h.Reauthorize(w.ctx); err != nil {
			t.Error(err)
		}
		if len(c.sees) > 0 { // the right is taken away while it is read
			s.objects = nil
			refused(t, h.Reauthorize(w.ctx), fault.PermissionDenied, "may no longer be read unprotected")
		}
		h.Release()
	}

	// Equal texts have equal pseudonyms, others have others, another project has others.
	s.objects = nil
	one, err := w.Online(w.ctx, feature.OnlineRequest{Project: nyc, Selection: feature.Selection{Features: []string{"patients:illness"}, Purpose: "care"}, Entities: people("a", "b"), AsOf: at(1)})
	if err != nil {
		t.Fatal(err)
	}
	values := one.Columns[0].Values
	v, err := w.data.find("masked")
	if err != nil || !values[0].Equal(values[1]) || !values[0].Equal(v.table.rows[0][3]) || strings.Contains(values[0].Str(), "flu") {
		t.Errorf("pseudonyms %s and %s, in the training set %s, %v", values[0], values[1], v.table.rows[0][3], err)
	}
}

// TestVerifyIsARead: who verifies a training set that was made in clear sees of what is
// online by now what he may see, and that is on record.
func TestVerifyIsARead(t *testing.T) {
	w, s := patients(t)
	ward, illness, age := "patients@1:ward", "patients@1:illness", "patients@1:age"
	s.objects = []string{illness, age}
	set, err := w.MakeTrainingSet(w.ctx, feature.TrainingSetRequest{
		Project: nyc, Name: "set", Spine: feature.Source{Dataset: "spine"}, Timestamp: "at",
		Selection: feature.Selection{Features: []string{"patients:ward", "patients:illness", "patients:age"}, Purpose: "care"},
	})
	if err != nil {
		t.Fatal(err)
	}
	stays, err := w.data.find("stays")
	if err != nil {
		t.Fatal(err)
	}
	stays.table.rows = append([][]value.Value{{str("a"), ts(0), str("south"), str("cold"), value.OfInt(31)}}, stays.table.rows[1:]...)
	w.data.put("stays", stays.table)
	w.mustMaterialise("patients", w.now)
	for _, c := range []struct{ sees, want, clear []string }{
		{nil, []string{ward + " east south PRESENT", illness + " NULL NULL MASKED", age + " NULL NULL MASKED"}, nil},
		{[]string{age}, []string{ward + " east south PRESENT", illness + " NULL NULL MASKED", age + " 30 31 PRESENT"}, []string{age}},
	} {
		s.objects = c.sees
		w.gates.entries = nil
		report, err := w.Verify(w.ctx, feature.VerifyRequest{Project: nyc, TrainingSet: set.Dataset})
		if err != nil || report.Mismatches != 3 {
			t.Fatalf("report %+v, %v", report, err)
		}
		var got []string
		for _, m := range report.Examples {
			got = append(got, fmt.Sprintf("%s %s %s %s", m.Feature, m.Offline, m.Online, m.Status))
		}
		expect(t, got, c.want)
		if len(w.gates.entries) != 1 {
			t.Fatalf("the journal has %+v", w.gates.entries)
		}
		if shown, _ := w.gates.entries[0].Detail["clear"].([]string); !slices.Equal(shown, c.clear) {
			t.Errorf("the journal has %+v", w.gates.entries)
		}
	}

	// So is a comparison of what a model was given.
	w.service("stay", feature.ServiceSpec{Features: []string{"patients:age"}, Purpose: "care"})
	for _, sees := range [][]string{nil, {age}} {
		s.objects = sees
		w.gates.entries = nil
		report, err := w.VerifyAnswers(w.ctx, feature.VerifyAnswersRequest{
			Project: nyc, Service: "stay@1", Columns: []feature.AnswerColumn{{Feature: "patients:age"}},
			Answers: []feature.LoggedAnswer{{At: at(1), Received: at(1), Keys: map[string]any{"patient": "a"}, Values: []float64{17}}},
		})
		if err != nil || report.Mismatches != 1 || (report.Examples[0].Logged != nil) != (len(sees) > 0) {
			t.Fatalf("report %+v, %v", report, err)
		}
		if len(w.gates.entries) != 1 {
			t.Fatalf("the journal has %+v", w.gates.entries)
		}
		detail := w.gates.entries[0].Detail
		if shown, _ := detail["clear"].([]string); detail["purpose"] != "care" || !slices.Equal(shown, sees) {
			t.Errorf("the journal has %+v", w.gates.entries)
		}
	}
}

// Who may write rows finds out what he can guess: the guide says so (ADR 28).
func TestPseudonymsAreFoundByWhoWrites(t *testing.T) {
	w, _ := patients(t)
	w.data.put("words", table{
		[]col{{"patient", value.String}, {"time", value.Timestamp}, {"word", value.String}},
		[][]value.Value{{str("1"), ts(0), str("cold")}, {str("2"), ts(0), str("flu")}},
	})
	w.view("words", feature.ViewSpec{
		Source: feature.Source{Dataset: "words"}, Entities: []string{"patient"}, Timestamp: "time",
		Features: []feature.FieldSpec{{Name: "word", Type: "string", Protect: feature.Pseudonym}},
	})
	w.mustMaterialise("words", w.now)
	read := func(name string, who ...string) []value.Value {
		a, err := w.Online(w.ctx, feature.OnlineRequest{Project: nyc, Selection: feature.Selection{Features: []string{name}, Purpose: "care"}, Entities: people(who...), AsOf: at(1)})
		if err != nil {
			t.Fatal(err)
		}
		return a.Columns[0].Values
	}
	guesses := read("words:word", "1", "2")
	if of := read("patients:illness", "a")[0]; of.Equal(guesses[0]) || !of.Equal(guesses[1]) {
		t.Errorf("%s, guesses %s", of, guesses)
	}
}

func readAll(t *testing.T, rows array.RecordReader) table {
	t.Helper()
	tb := read(rows)
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return tb
}

// mine are rows as text without the spine, and pseudonyms by their prefix only.
func mine(lines []string) (out []string) {
	for _, line := range lines[1:] {
		cells := strings.Split(line, ", ")[2:]
		for i, c := range cells {
			if strings.HasPrefix(c, "psn_") {
				cells[i] = "psn_"
			}
		}
		out = append(out, strings.Join(cells, ", "))
	}
	return out
}

// A model sees what it was deployed to see; who deploys it is asked.
func TestModelsSeeInClear(t *testing.T) {
	w, _ := patients(t)
	w.service("stay", feature.ServiceSpec{Features: []string{"patients:age"}, Purpose: "care"})
	got, err := w.Lookup(w.ctx, feature.LookupRequest{Project: nyc, Service: "stay", Rows: 1, AsOf: at(1), Keys: []feature.KeyColumn{{Name: "patient", Texts: []string{"a"}}}})
	if err != nil || got.Columns[0].Values[0] != 30 || got.Columns[0].Statuses[0] != online.Present {
		t.Errorf("answer %+v, %v", got, err)
	}
	last := w.gates.entries[len(w.gates.entries)-1]
	expect(t, last.Detail["clear"], any([]string{"patients@1:age"}))
	w.gates.asked = nil
	if err := w.AllowClear(w.ctx, nyc, "stay"); err != nil {
		t.Error(err)
	}
	expect(t, w.gates.asked, []string{"feature.clear patients@1:age internal"})
	w.gates.refuse[feature.ActionClear] = true
	refused(t, w.AllowClear(w.ctx, nyc, "stay"), fault.PermissionDenied)
}

// Dead letters are shown as they came.
func TestDeadLettersAreInClear(t *testing.T) {
	w := newWorld(t)
	w.data.declared["purchases"] = purchaseCols
	w.entity("origin", "string")
	spec := spending
	spec.Aggregations = slices.Clone(spec.Aggregations)
	spec.Aggregations[0].Protect, spec.Purpose = feature.Mask, []string{"care"}
	w.view("spending", spec)
	if a, err := w.PushEvents(w.ctx, feature.EventsRequest{Project: nyc, View: "spending", Keep: true, Events: []feature.Event{{"origin": "EWR", "time": at(1), "amount": "much"}}}); err != nil || a.Dead != 1 {
		t.Fatalf("%+v %v", a, err)
	}
	w.gates.entries = nil
	_, err := w.DeadLetters(w.ctx, nyc, "spending", "", 0)
	refused(t, err, fault.PermissionDenied, "names none")
	w.gates.entries = nil
	care := feature.WithPurpose(w.ctx, "care")
	if dead, err := w.DeadLetters(care, nyc, "spending", "", 0); err != nil || len(dead) != 1 {
		t.Errorf("%d letters, %v", len(dead), err)
	}
	if len(w.gates.entries) != 1 || w.gates.entries[0].Detail["purpose"] != "care" {
		t.Fatalf("the journal has %+v", w.gates.entries)
	}
	expect(t, w.gates.entries[0].Detail["clear"], any([]string{"spending@1:" + spec.Aggregations[0].Name}))
	w.gates.refuse[feature.ActionClear] = true
	_, err = w.DeadLetters(care, nyc, "spending", "", 0)
	refused(t, err, fault.PermissionDenied, "feature.clear")
}
