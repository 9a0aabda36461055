package loop

import (
	"net/http"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/test/live"
)

var delay = live.WeatherView("5h") + `
---
api_version: falaj/v1
kind: Deployment
name: delay
project: PROJECT
spec:
  model: delay
  features: {service: weather, input: X, columns: [hours, "weather:temp"], max_age: {weather: 3h}}
`

// wrongRequests are refused with the name of what is missing, stale or of another
// type, and are nothing that a version answered for.
func wrongRequests(p *pond) {
	t := p.T
	p.Apply(live.Weather)
	p.Import("weather", "origin,observed_at,temp\nJFK,2013-07-04T10:00:00Z,3\nLGA,2013-07-04T10:00:00Z,\n")
	p.Register("delay", linear(0, 1, 1))
	p.Apply(delay)
	p.Materialise("weather")

	at := func(text string) map[string]any { return map[string]any{"as_of": text} }
	noon := at("2013-07-04T12:00:00Z")
	jfk, hours := live.Tensor("origin", "BYTES", []string{"JFK"}, 1), live.Tensor("hours", "FP64", []float64{4}, 1)
	if a, err := p.Infer(p.C, "delay", noon, jfk, hours); err != nil || a.Score() != 7 {
		t.Fatalf("%+v, %v", a, err)
	}
	for _, x := range []struct {
		what       string
		parameters map[string]any
		inputs     []any
		status     int
		says       []string
	}{
		{"no such entity", noon, []any{live.Tensor("origin", "BYTES", []string{"SFO"}, 1), hours}, 422, []string{"weather:temp", "origin=SFO", "NOT_FOUND"}},
		{"NULL", noon, []any{live.Tensor("origin", "BYTES", []string{"LGA"}, 1), hours}, 422, []string{"weather:temp", "origin=LGA", "NULL"}},
		{"older than max_age", at("2013-07-04T13:00:01Z"), []any{jfk, hours}, 422, []string{"weather:temp", "OUTSIDE_MAX_AGE", "2013-07-04T10:00:00Z"}},
		{"older than the TTL", at("2013-07-04T16:00:00Z"), []any{jfk, hours}, 422, []string{"weather:temp", "OUTSIDE_MAX_AGE"}},
		{"now", nil, []any{jfk, hours}, 422, []string{"weather:temp", "OUTSIDE_MAX_AGE"}},
		{"before it was known", at("2013-07-04T09:00:00Z"), []any{jfk, hours}, 422, []string{"weather:temp", "NOT_FOUND"}},
		{"one row of two", noon, []any{live.Tensor("origin", "BYTES", []string{"JFK", "SFO"}, 2), live.Tensor("hours", "FP64", []float64{1, 2}, 2)}, 422, []string{"row 1"}},
		{"no key", noon, []any{hours}, 400, []string{`"origin" is missing`, "hours"}},
		{"no column", noon, []any{jfk}, 400, []string{`"hours" is missing`}},
		{"a key that is a float", noon, []any{live.Tensor("origin", "FP64", []float64{1}, 1), hours}, 400, []string{`"origin"`, "FP64"}},
		{"a key that is a number", noon, []any{live.Tensor("origin", "INT64", []int64{1}, 1), hours}, 400, []string{"origin"}},
		{"a column that is text", noon, []any{jfk, live.Tensor("hours", "BYTES", []string{"4"}, 1)}, 400, []string{`"hours"`, "BYTES"}},
		{"text in numbers", noon, []any{jfk, live.Tensor("hours", "FP64", []string{"four"}, 1)}, 400, []string{`"hours"`}},
		{"other numbers of rows", noon, []any{jfk, live.Tensor("hours", "FP64", []float64{4, 5}, 2)}, 400, []string{"rows"}},
		{"two columns in one", noon, []any{jfk, live.Tensor("hours", "FP64", []float64{4, 5}, 1, 2)}, 400, []string{`"hours"`, "shape"}},
		{"less data than shape", noon, []any{jfk, live.Tensor("hours", "FP64", []float64{4}, 1000)}, 400, []string{"hours"}},
		{"a negative shape", noon, []any{jfk, live.Tensor("hours", "FP64", []float64{4}, -1)}, 400, []string{"hours"}},
		{"a shape without end", noon, []any{jfk, live.Tensor("hours", "FP64", []float64{4}, 1<<40, 1<<40)}, 413, []string{"hours"}},
		{"what nobody knows", noon, []any{jfk, hours, live.Tensor("altitude", "FP64", []float64{4}, 1)}, 400, []string{"altitude"}},
		{"twice", noon, []any{jfk, hours, hours}, 400, []string{`"hours"`, "duplicate"}},
		{"the future", at("2999-01-01T00:00:00Z"), []any{jfk, hours}, 400, []string{"future"}},
		{"no time", at("yesterday"), []any{jfk, hours}, 400, []string{"as_of"}},
		{"a wide model input", noon, []any{live.Tensor("X", "FP32", []float64{1, 2, 3}, 1, 3)}, 400, []string{"X"}},
		{"a model input of text", noon, []any{live.Tensor("X", "BYTES", []string{"a", "b"}, 1, 2)}, 400, []string{"X"}},
		{"a key of a megabyte", noon, []any{live.Tensor("origin", "BYTES", []string{strings.Repeat("J", 1<<20)}, 1), hours}, 0, nil},
	} {
		_, err := p.Infer(p.C, "delay", x.parameters, x.inputs...)
		if x.status == 0 { // what matters is that it is refused, and in few words
			if err == nil || len(err.Error()) > 2000 {
				t.Errorf("%s: %.300v", x.what, err)
			}
			continue
		}
		p.refused(x.what, err, x.status, x.says...)
	}
	// No rows are answered by none.
	if a, err := p.Infer(p.C, "delay", noon, live.Tensor("origin", "BYTES", []string{}, 0), live.Tensor("hours", "FP64", []float64{}, 0)); err != nil || len(a.Outputs[0].Data) != 0 {
		t.Errorf("no rows: %+v, %v", a, err)
	}
	// What the asker did wrong is no failure of the version in a trial.
	o2 := p.status("delay")
	if o2.Text("deployment.state") != "ready" || o2.Text("lost") != "0" {
		t.Errorf("%v", o2)
	}
	if a, err := p.Infer(p.C, "delay", noon, jfk, hours); err != nil || a.Score() != 7 {
		t.Errorf("%+v, %v", a, err)
	}
}

// wrongLabels wait, are counted, and change nothing that was known.
func wrongLabels(p *pond) {
	t := p.T
	p.Register("m", linear(0, 1, 0))
	p.Apply(`{api_version: falaj/v1, kind: Deployment, name: m, project: PROJECT, spec: {model: m}}`)
	one := func(x float64, parameters map[string]any) string {
		t.Helper()
		a, err := p.Infer(p.C, "m", parameters, live.Tensor("X", "FP32", []float64{x, 0}, 1, 2))
		p.Must(err)
		return a.ID
	}
	id := one(0.5, nil)
	value := func(v float64) *float64 { return &v }
	label := func(labels ...client.Label) client.Labelled {
		t.Helper()
		a, err := p.C.Label(t.Context(), p.Name, "m", labels)
		p.Must(err)
		return a
	}
	// One of an answer that comes later: the client has the id before.
	if a := label(client.Label{ID: "later", Value: value(1)}, client.Label{ID: "never", Value: value(1)}); a.Unknown != 2 {
		t.Errorf("%+v", a)
	}
	if a := label(client.Label{ID: id, Value: value(1)}, client.Label{ID: id, Value: value(0)}, client.Label{ID: id, Value: value(1)}); a.Accepted != 1 || a.Contradicts != 1 || a.Duplicates != 1 {
		t.Errorf("%+v", a)
	}
	if a := label(client.Label{ID: id, Value: value(0)}); a.Contradicts != 1 || a.Results[0].Status != "contradicts" {
		t.Errorf("%+v", a)
	}
	if a := label(client.Label{ID: one(0.1, nil), Values: []float64{1, 1}}); a.WrongRows != 1 {
		t.Errorf("%+v", a)
	}
	// Older than labels may be late, on the clock of the records.
	old := one(0.1, map[string]any{"as_of": "2013-01-01T00:00:00Z"})
	one(0.1, map[string]any{"as_of": "2013-06-01T00:00:00Z"})
	if a := label(client.Label{ID: old, Value: value(1)}); a.TooLate != 1 {
		t.Errorf("%+v", a)
	}
	var body struct{ ID string }
	p.Must(p.Foreign(p.C, http.MethodPost, "/v2/models/m/infer", map[string]any{"id": "later", "inputs": []any{live.Tensor("X", "FP32", []float64{1, 0}, 1, 2)}}, &body))
	if body.ID != "later" {
		t.Errorf("the answer's id is %q", body.ID)
	}
	var counts client.Object
	p.Eventually("the label does not find its prediction", func() (bool, error) {
		err := p.C.Do(t.Context(), http.MethodGet, p.Path("deployments/m/labels"), nil, &counts)
		return counts.Text("joined") == "2", err
	})
	for field, want := range map[string]string{"waiting": "1", "contradicts": "2", "duplicates": "1", "wrong_rows": "1", "too_late": "1"} {
		if counts.Text(field) != want {
			t.Errorf("%s: %s, want %s", field, counts.Text(field), want)
		}
	}
	for what, labels := range map[string]any{
		"none":             []any{},
		"no id":            []any{map[string]any{"value": 1}},
		"no value":         []any{map[string]any{"id": id}},
		"both":             []any{map[string]any{"id": id, "value": 1, "values": []int{1}}},
		"an object":        []any{map[string]any{"id": id, "value": map[string]any{"is": 1}}},
		"a list in a list": []any{map[string]any{"id": id, "values": []any{[]int{1}}}},
		"no time":          []any{map[string]any{"id": id, "value": 1, "at": "soon"}},
		"a long id":        []any{map[string]any{"id": strings.Repeat("x", 1000), "value": 1}},
		"too many":         make([]map[string]any, 10_001),
	} {
		err := p.C.Do(t.Context(), http.MethodPost, p.Path("deployments/m/labels"), map[string]any{"labels": labels}, nil)
		p.refused("labels: "+what, err, http.StatusBadRequest)
	}
	_, err := p.C.Label(t.Context(), p.Name, "nothing", []client.Label{{ID: id, Value: value(1)}})
	p.refused("a deployment that is not there", err, http.StatusNotFound)
	// The same id again is another prediction; its label is the first one's.
	if a := label(client.Label{ID: "later", Value: value(1), At: new(time.Time)}); a.Duplicates != 1 {
		t.Errorf("%+v", a)
	}
}

// sameNameAgain is a deployment that is deleted and made again at once: what was
// asked of the old one is not the new one's.
func sameNameAgain(p *pond) {
	t := p.T
	p.Register("m", linear(0, 1, 0))
	const manifest = `{api_version: falaj/v1, kind: Deployment, name: m, project: PROJECT, spec: {model: m}}`
	value := 1.0
	for range 3 {
		p.Apply(manifest)
		var old []string
		for range 20 {
			a, err := p.Infer(p.C, "m", nil, live.Tensor("X", "FP32", []float64{1, 0}, 1, 2))
			p.Must(err)
			old = append(old, a.ID)
		}
		if a, err := p.C.Label(t.Context(), p.Name, "m", []client.Label{{ID: old[0], Value: &value}}); err != nil || a.Accepted != 1 {
			t.Errorf("%+v %v", a, err)
		}
		p.Must(p.C.Do(t.Context(), http.MethodDelete, p.Path("deployments/m"), nil, nil))
		p.Apply(manifest)
		a, err := p.Infer(p.C, "m", nil, live.Tensor("X", "FP32", []float64{1, 0}, 1, 2))
		p.Must(err)
		labelled, err := p.C.Label(t.Context(), p.Name, "m", []client.Label{{ID: a.ID, Value: &value}, {ID: old[1], Value: &value}})
		p.Must(err)
		if labelled.Results[0].Status != "accepted" || labelled.Results[1].Status != "unknown" {
			t.Errorf("%+v", labelled)
		}
		p.Must(p.C.Do(t.Context(), http.MethodDelete, p.Path("deployments/m"), nil, nil))
	}
}
