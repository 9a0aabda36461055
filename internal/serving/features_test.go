package serving_test

import (
	"context"
	"errors"
	"math"
	"reflect"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"weak"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/prediction"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
)

// weather is features of airports, by name: their temperature and its time.
type weather struct {
	mu   sync.Mutex
	rows map[string]serving.FeatureColumn // of one row
	asks []serving.FeatureRead
	err  error

	request []string // that features are computed from
	label   residency.Label
}

func (w *weather) Describe(_ context.Context, _, service string) (serving.FeatureSet, error) {
	if service != "weather" && service != "weather@2" {
		return serving.FeatureSet{}, fault.New(fault.NotFound, "no feature service %q", service)
	}
	return serving.FeatureSet{Ref: "weather@2", JoinKeys: []string{"origin"}, Request: w.request, Features: []string{"weather@3:wind", "weather@3:temp"}}, nil
}

func (w *weather) Label(context.Context, string, string) (residency.Label, error) {
	return w.label, nil
}

var noon = time.Date(2013, 7, 4, 12, 0, 0, 0, time.UTC)

func (w *weather) Read(_ context.Context, r serving.FeatureRead) (serving.FeatureRows, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asks = append(w.asks, r)
	if w.err != nil {
		return serving.FeatureRows{}, w.err
	}
	wind, temp := serving.FeatureColumn{}, serving.FeatureColumn{}
	for _, origin := range r.Keys[0].Texts {
		c, ok := w.rows[origin]
		if !ok {
			c = serving.FeatureColumn{Values: []float64{math.NaN()}, Statuses: []serving.FeatureStatus{serving.FeatureNotFound}, Events: []time.Time{{}}}
		}
		temp.Values, temp.Statuses, temp.Events = append(temp.Values, c.Values...), append(temp.Statuses, c.Statuses...), append(temp.Events, c.Events...)
		wind.Values, wind.Statuses, wind.Events = append(wind.Values, -1), append(wind.Statuses, serving.FeaturePresent), append(wind.Events, noon)
	}
	return serving.FeatureRows{At: noon, Columns: []serving.FeatureColumn{wind, temp}}, nil
}

// notes keeps the records of answers.
type notes struct {
	mu      sync.Mutex
	records []prediction.Record
	err     error
	told    chan struct{} // not nil: told of each
}

func (n *notes) Append(_ context.Context, r *prediction.Record) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.err != nil {
		return n.err
	}
	n.records = append(n.records, *r)
	if n.told != nil {
		n.told <- struct{}{}
	}
	return nil
}

func (n *notes) last(t *testing.T) prediction.Record {
	t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.records) == 0 {
		t.Fatal("nothing was remembered")
	}
	return n.records[len(n.records)-1]
}

// fed is a pond whose models see the distance of a flight and the temperature at
// its origin.
func fed(t *testing.T) (*pond, *weather, *notes) {
	t.Helper()
	p := newPond(t)
	present := []serving.FeatureStatus{serving.FeaturePresent}
	w := &weather{rows: map[string]serving.FeatureColumn{
		"new":  {Values: []float64{40}, Statuses: present, Events: []time.Time{{}}},
		"JFK":  {Values: []float64{30}, Statuses: present, Events: []time.Time{noon.Add(-time.Hour)}},
		"LGA":  {Values: []float64{20}, Statuses: present, Events: []time.Time{noon.Add(-5 * time.Hour)}},
		"NULL": {Values: []float64{math.NaN()}, Statuses: []serving.FeatureStatus{serving.FeatureNull}, Events: []time.Time{noon}},
	}}
	n := &notes{}
	c := p.config()
	c.Features, c.Predictions = w, n
	p.services = newServices(c)
	return p, w, n
}

func spec(f serving.FeaturesSpec) serving.Spec {
	f.Service, f.Input, f.Columns = "weather", "X", []string{"distance", "weather:temp"}
	return serving.Spec{Model: "m", Features: &f}
}

func keyed(distances []float64, origins ...string) serving.Request {
	n := int64(len(origins))
	return serving.Request{Project: "nyc", Name: "d", Inputs: []runtime.Tensor{
		{Name: "origin", Datatype: runtime.Bytes, Shape: []int64{n}, Data: origins},
		{Name: "distance", Datatype: runtime.FP64, Shape: []int64{n, 1}, Data: distances},
	}}
}

func TestFeatures(t *testing.T) {
	p, w, n := fed(t)
	ctx := t.Context()
	p.apply(t, spec(serving.FeaturesSpec{}))
	r := keyed([]float64{700, 800}, "JFK", "LGA")
	r.ID = "flight 7"
	a, err := p.Infer(ctx, r)
	if err != nil || a.ID != "flight 7" || len(a.Outputs) != 2 {
		t.Fatalf("%+v %v", a, err)
	}
	if got := w.asks[0]; got.Service != "weather@2" || got.Rows != 2 || !slices.Equal(got.Keys[0].Texts, []string{"JFK", "LGA"}) {
		t.Errorf("asked %+v", got)
	}
	rec := n.last(t)
	if rec.ID != "flight 7" || rec.Version != 1 || rec.Rows != 2 || rec.Failure != "" || rec.Rollout != "" || rec.Replay || rec.Latency <= 0 || !rec.At.Equal(rec.Received) {
		t.Errorf("%+v", rec)
	}
	if len(rec.Keys) != 1 || rec.Keys[0].Name != "origin" || rec.Keys[0].Texts[1] != "LGA" {
		t.Errorf("keys %+v", rec.Keys)
	}
	if len(rec.Inputs) != 2 || rec.Inputs[0].Name != "distance" || rec.Inputs[1].Name != "weather:temp" || !slices.Equal(rec.Inputs[1].Numbers, []float64{30, 20}) || !slices.Equal(rec.Inputs[0].Numbers, []float64{700, 800}) {
		t.Errorf("inputs %+v", rec.Inputs)
	}
	if !slices.Equal(rec.Scores, []float64{1, 1}) { // the number of the version
		t.Errorf("scores %v", rec.Scores)
	}

	// The model's own input goes as before, and its columns have the same names.
	x := serving.Request{Project: "nyc", Name: "d", Inputs: []runtime.Tensor{{Name: "X", Datatype: runtime.FP32, Shape: []int64{2, 2}, Data: []float32{1, 2, 3, 4}}}, Outputs: []string{"name"}}
	if a, err = p.Infer(ctx, x); err != nil || !strings.HasPrefix(a.ID, "prd_") || len(a.Outputs) != 1 {
		t.Fatalf("%+v %v", a, err)
	}
	if rec = n.last(t); rec.Inputs[1].Name != "weather:temp" || !slices.Equal(rec.Inputs[1].Numbers, []float64{2, 4}) || len(rec.Scores) != 2 || len(w.asks) != 1 {
		t.Errorf("%+v", rec)
	}

	// A replay.
	r = keyed([]float64{1}, "JFK")
	r.AsOf = noon
	if _, err := p.Infer(ctx, r); err != nil || !w.asks[1].AsOf.Equal(noon) {
		t.Errorf("%v %+v", err, w.asks)
	}
	if rec = n.last(t); !rec.Replay || !rec.At.Equal(noon) || rec.Received.Equal(noon) {
		t.Errorf("%+v", rec)
	}
	r.AsOf = time.Now().Add(time.Hour)
	if _, err := p.Infer(ctx, r); !fault.Is(err, fault.Invalid) {
		t.Errorf("as of the future: %v", err)
	}
	p.world.denied["feature.history"] = true
	for _, q := range []serving.Request{keyed([]float64{1}, "JFK"), x} {
		q.AsOf = noon
		if _, err := p.Infer(ctx, q); !fault.Is(err, fault.PermissionDenied) {
			t.Errorf("the past without permission: %v", err)
		}
	}
}

// What features are computed from comes beside the keys.
func TestValuesOfTheRequest(t *testing.T) {
	p, w, n := fed(t)
	w.request = []string{"delay", "distance"} // of which the model sees the distance, too
	p.apply(t, spec(serving.FeaturesSpec{}))
	r := keyed([]float64{700, 800}, "JFK", "LGA")
	if _, err := p.Infer(t.Context(), r); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), `"delay" is missing: on-demand features need it`) ||
		!strings.Contains(fault.HintOf(err), "the keys origin and the columns distance, delay,") {
		t.Errorf("%v, hint %q", err, fault.HintOf(err))
	}
	for _, data := range []runtime.Tensor{
		{Datatype: runtime.FP32, Data: []float32{1.5, 2}}, {Datatype: runtime.Int64, Data: []int64{1, 2}}, {Datatype: runtime.Bytes, Data: []string{"a", "b"}},
	} {
		ask := r
		data.Name, data.Shape = "delay", []int64{2}
		ask.Inputs = append(slices.Clone(r.Inputs), data)
		if _, err := p.Infer(t.Context(), ask); err != nil {
			t.Fatal(err)
		}
	}
	var got []serving.KeyColumn
	for _, ask := range w.asks {
		got = append(got, ask.Keys[2])
	}
	want := []serving.KeyColumn{{Name: "delay", Floats: []float64{1.5, 2}}, {Name: "delay", Ints: []int64{1, 2}}, {Name: "delay", Texts: []string{"a", "b"}}}
	if !reflect.DeepEqual(got, want) || !slices.Equal(w.asks[0].Keys[1].Floats, []float64{700, 800}) {
		t.Errorf("asked %+v", w.asks)
	}
	if rec := n.last(t); len(rec.Keys) != 1 || len(rec.Inputs) != 2 {
		t.Errorf("remembered %+v", rec)
	}
}

func TestMissingFeatures(t *testing.T) {
	p, _, n := fed(t)
	ctx := t.Context()
	p.apply(t, spec(serving.FeaturesSpec{MaxAge: map[string]string{"weather": "3h"}}))
	_, err := p.Infer(ctx, keyed([]float64{1, 2, 3, 4}, "JFK", "LGA", "NULL", "SFO"))
	missing, ok := errors.AsType[*serving.MissingError](err)
	if !ok || missing.Total != 3 || !fault.Is(err, fault.Invalid) || fault.HintOf(err) == "" {
		t.Fatalf("%v", err)
	}
	for i, want := range []serving.MissingFeature{
		{Feature: "weather:temp", Row: 1, Entity: "origin=LGA", Status: serving.FeatureTooOld, Event: noon.Add(-5 * time.Hour)},
		{Feature: "weather:temp", Row: 2, Entity: "origin=NULL", Status: serving.FeatureNull, Event: noon},
		{Feature: "weather:temp", Row: 3, Entity: "origin=SFO", Status: serving.FeatureNotFound},
	} {
		if missing.Missing[i] != want {
			t.Errorf("%+v, want %+v", missing.Missing[i], want)
		}
	}
	if !strings.Contains(err.Error(), "feature weather:temp of row 3 (origin=SFO) is NOT_FOUND") || !strings.Contains(err.Error(), "its newest value dates from 2013-07-04T07:00:00Z") {
		t.Errorf("%v", err)
	}
	if rec := n.last(t); rec.Failure != "invalid" || len(rec.Scores) != 0 || rec.Rows != 4 {
		t.Errorf("%+v", rec)
	}
	many := make([]string, 50)
	if _, err := p.Infer(ctx, keyed(make([]float64, 50), many...)); !strings.HasSuffix(err.Error(), "and 40 more") {
		t.Errorf("%v", err)
	}

	// What is computed from values of the request has no time, and no age.
	if _, err := p.Infer(ctx, keyed([]float64{1}, "new")); err != nil {
		t.Error(err)
	}

	// Defaults, the exact one before the view's.
	for rule, want := range map[string]float64{"weather:*": 5, "weather:temp": 6} {
		f := serving.FeaturesSpec{MaxAge: map[string]string{"weather": "3h"}, Defaults: map[string]serving.Number{"weather:*": 5}}
		f.Defaults[rule] = serving.Number(want)
		p.apply(t, spec(f))
		if _, err := p.Infer(ctx, keyed([]float64{1, 2, 3, 4}, "JFK", "LGA", "NULL", "SFO")); err != nil {
			t.Fatal(err)
		}
		if got := n.last(t).Inputs[1].Numbers; !slices.Equal(got, []float64{30, want, want, want}) {
			t.Errorf("%s: %v", rule, got)
		}
	}
	p.apply(t, spec(serving.FeaturesSpec{Defaults: map[string]serving.Number{"weather:*": serving.Number(math.NaN())}}))
	if _, err := p.Infer(ctx, keyed([]float64{1}, "SFO")); err != nil || !math.IsNaN(n.last(t).Inputs[1].Numbers[0]) {
		t.Errorf("nan: %v", err)
	}
	p.reopen() // and it is in the database
	if d, err := p.One(ctx, "nyc", "d"); err != nil || !math.IsNaN(float64(d.Spec.Features.Defaults["weather:*"])) || d.FeatureSet.Ref != "weather@2" {
		t.Errorf("%+v %v", d.Spec.Features, err)
	}
}

func TestWrongKeys(t *testing.T) {
	p, w, _ := fed(t)
	ctx := t.Context()
	p.apply(t, spec(serving.FeaturesSpec{}))
	origin := runtime.Tensor{Name: "origin", Datatype: runtime.Bytes, Shape: []int64{1}, Data: []string{"JFK"}}
	distance := runtime.Tensor{Name: "distance", Datatype: runtime.FP32, Shape: []int64{1}, Data: []float32{1}}
	for says, in := range map[string][]runtime.Tensor{
		`input "origin" is missing`:                 {distance},
		`input "distance" is missing`:               {origin},
		`input "distance" has 2 rows`:               {origin, {Name: "distance", Datatype: runtime.FP32, Shape: []int64{2}, Data: []float32{1, 2}}},
		`input "distance" has datatype BYTES`:       {origin, {Name: "distance", Datatype: runtime.Bytes, Shape: []int64{1}, Data: []string{"far"}}},
		`input "origin" is a feature key`:           {distance, {Name: "origin", Datatype: runtime.FP32, Shape: []int64{1}, Data: []float32{1}}},
		`duplicate input "origin"`:                  {origin, origin, distance},
		`input "carrier" is neither a key nor`:      {origin, distance, {Name: "carrier", Datatype: runtime.Bytes, Shape: []int64{1}, Data: []string{"UA"}}},
		`input "origin" has shape [1 2]; it needs `: {{Name: "origin", Datatype: runtime.Bytes, Shape: []int64{1, 2}, Data: []string{"JFK", "LGA"}}, distance},
	} {
		if _, err := p.Infer(ctx, serving.Request{Project: "nyc", Name: "d", Inputs: in}); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %s", err, says)
		}
	}
	w.err = fault.New(fault.Gone, "the key was destroyed")
	if _, err := p.Infer(ctx, keyed([]float64{1}, "JFK")); !fault.Is(err, fault.Gone) {
		t.Errorf("%v", err)
	}
}

// TestWrongSpecs: a manifest that cannot work is refused when it is applied.
func TestWrongSpecs(t *testing.T) {
	p, _, _ := fed(t)
	index, one := 7, 1
	good := spec(serving.FeaturesSpec{})
	with := func(change func(*serving.Spec)) serving.Spec {
		s := good
		f := *good.Features
		s.Features = &f
		change(&s)
		return s
	}
	for says, s := range map[string]serving.Spec{
		"no feature service":            with(func(s *serving.Spec) { s.Features.Service = "nothing" }),
		"spec.features.service":         with(func(s *serving.Spec) { s.Features.Service = "" }),
		`has no feature "weather:rain"`: with(func(s *serving.Spec) { s.Features.Columns = []string{"distance", "weather:rain"} }),
		"duplicate column":              with(func(s *serving.Spec) { s.Features.Columns = []string{"distance", "distance"} }),
		"1 columns do not match":        with(func(s *serving.Spec) { s.Features.Columns = []string{"distance"} }),
		"the model has no input \"Y\"":  with(func(s *serving.Spec) { s.Features.Input = "Y" }),
		"is not a feature among":        with(func(s *serving.Spec) { s.Features.Defaults = map[string]serving.Number{"plane:built": 1} }),
		"no column is a feature of":     with(func(s *serving.Spec) { s.Features.MaxAge = map[string]string{"plane": "3h"} }),
		"is not a duration":             with(func(s *serving.Spec) { s.Features.MaxAge = map[string]string{"weather": "soon"} }),
		"is not an output of the model": with(func(s *serving.Spec) { s.Prediction = &serving.PredictionSpec{Output: "score"} }),
		"is text, not a number":         with(func(s *serving.Spec) { s.Prediction = &serving.PredictionSpec{Output: "name"} }),
		"spec.prediction.index: 7 ":     with(func(s *serving.Spec) { s.Prediction = &serving.PredictionSpec{Index: &index} }),
		"spec.prediction.index: 1 ":     with(func(s *serving.Spec) { s.Prediction = &serving.PredictionSpec{Index: &one} }),
		"spec.rollout.weight":           with(func(s *serving.Spec) { s.Rollout.Weight = 100 }),
	} {
		if _, _, err := p.Apply(t.Context(), "nyc", "d", s, false); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %s", err, says)
		}
	}
	bare := newPond(t)
	if _, _, err := bare.Apply(t.Context(), "nyc", "d", good, false); !fault.Is(err, fault.Unsupported) {
		t.Errorf("no features in this server: %v", err)
	}
}

// TestSticky: the column that the rollout names decides, also for requests whose
// own key says otherwise.
func TestSticky(t *testing.T) {
	p, _, n := fed(t)
	s := spec(serving.FeaturesSpec{Defaults: map[string]serving.Number{"weather:*": 0}})
	s.Rollout.Sticky, s.Rollout.Weight = "origin", 50
	p.apply(t, s)
	r := p.start(t, "2", 0)
	if r.Weight != 50 {
		t.Errorf("%+v", r)
	}
	met := map[int64]bool{}
	for i := range 40 {
		origin := strings.Repeat("x", i+1)
		first := int64(0)
		for _, key := range []string{"", "a", "b", "c"} {
			q := keyed([]float64{1}, origin)
			q.RouteKey = key
			a, err := p.Infer(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			if first == 0 {
				first = a.Version
			}
			if a.Version != first {
				t.Fatalf("%s met versions %d and %d", origin, first, a.Version)
			}
			met[first] = true
			if rec := n.last(t); rec.Rollout != string(r.ID) || rec.Version != first {
				t.Fatalf("%+v", rec)
			}
		}
	}
	if len(met) != 2 {
		t.Errorf("40 keys at 50 %% met only %v", met)
	}
	q := keyed([]float64{1}, "JFK")
	q.Version = "2"
	if _, err := p.Infer(t.Context(), q); err != nil || n.last(t).Rollout != "" {
		t.Errorf("a version that was asked for is no evidence: %+v %v", n.last(t), err)
	}
}

func TestShadow(t *testing.T) {
	p, _, n := fed(t)
	ctx := t.Context()
	p.apply(t, spec(serving.FeaturesSpec{}))
	d, err := p.Shadow(ctx, "nyc", "d", "2")
	if err != nil || len(d.Targets) != 2 || d.Targets[1].Role != serving.Shadow || d.Targets[1].Weight != 0 || d.Targets[0].Weight != 100 {
		t.Fatalf("%+v %v", d, err)
	}
	n.told = make(chan struct{}, 2)
	q := keyed([]float64{1}, "JFK")
	q.ID = "one"
	if a, err := p.Infer(ctx, q); err != nil || a.Version != 1 {
		t.Fatalf("%+v %v", a, err)
	}
	<-n.told
	<-n.told
	p.Drain()
	own, shown := n.records[0], n.records[1]
	if own.Shadow || own.Version != 1 || !shown.Shadow || shown.Version != 2 || shown.ID != "one" || !slices.Equal(shown.Scores, []float64{2}) || shown.Inputs[1].Numbers[0] != 30 {
		t.Errorf("%+v\n%+v", own, shown)
	}
	n.told = nil
	if _, err := p.Shadow(ctx, "nyc", "d", "1"); !fault.Is(err, fault.Conflict) {
		t.Errorf("the stable version as its own shadow: %v", err)
	}
	p.start(t, "2", 50) // shows itself now
	if st := p.status(t); len(st.Versions) != 2 || st.Versions[1].Role != serving.Canary {
		t.Errorf("%+v", st.Versions)
	}
	if _, err := p.Shadow(ctx, "nyc", "d", "2"); !fault.Is(err, fault.Conflict) {
		t.Errorf("the canary as a shadow: %v", err)
	}
}

// TestBusyShadow: a shadow that does not keep up costs nobody an answer.
func TestBusyShadow(t *testing.T) {
	p, _, _ := fed(t)
	ctx := t.Context()
	p.apply(t, spec(serving.FeaturesSpec{}))
	if _, err := p.Shadow(ctx, "nyc", "d", "2"); err != nil {
		t.Fatal(err)
	}
	p.rt.slow, p.rt.hold = 2, make(chan struct{})
	for range 100 {
		if _, err := p.Infer(ctx, keyed([]float64{1}, "JFK")); err != nil {
			t.Fatal(err)
		}
	}
	if st := p.status(t); st.Unshadowed != 100-64 || st.Versions[0].Requests != 100 {
		t.Errorf("%d found no place; %+v", st.Unshadowed, st.Versions)
	}
	close(p.rt.hold)
	if err := p.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if st := p.status(t); st.Versions[1].Requests != 64 {
		t.Errorf("%+v", st.Versions)
	}
}

// TestLargeShadow: what is kept for shadows is bounded in bytes, and is no answer.
func TestLargeShadow(t *testing.T) {
	p, _, _ := fed(t)
	c := p.config()
	p.services = newServices(c)
	ctx := t.Context()
	p.apply(t, serving.Spec{Model: "m", Version: "1"})
	if _, err := p.Shadow(ctx, "nyc", "d", "2"); err != nil {
		t.Fatal(err)
	}
	p.rt.slow, p.rt.hold = 2, make(chan struct{})
	const rows = 1 << 22
	x := runtime.Tensor{Name: "X", Datatype: runtime.FP32, Shape: []int64{rows, 2}, Data: make([]float32, 2*rows)} // 32 MiB
	answer := func() weak.Pointer[float32] {
		a, err := p.Infer(ctx, serving.Request{Project: "nyc", Name: "d", Inputs: []runtime.Tensor{x}})
		if err != nil {
			t.Fatal(err)
		}
		return weak.Make(&a.Outputs[0].Data.([]float32)[0])
	}
	first := answer()
	for range 9 {
		answer()
	}
	if st := p.status(t); st.Unshadowed != 2 {
		t.Errorf("%d of 320 MiB found no place", st.Unshadowed)
	}
	if goruntime.GC(); first.Value() != nil {
		t.Error("an answer is kept for the shadow")
	}
	close(p.rt.hold)
	p.Drain()
	answer()
	if st := p.status(t); st.Unshadowed != 2 {
		t.Errorf("%d found no place", st.Unshadowed)
	}
	p.Drain()
}

// TestUnremembered: an answer that cannot be remembered is counted; that of a
// classified model is not given.
func TestUnremembered(t *testing.T) {
	p, _, n := fed(t)
	ctx := t.Context()
	p.apply(t, spec(serving.FeaturesSpec{}))
	n.err = fault.New(fault.Exhausted, "disk full")
	if _, err := p.Infer(ctx, keyed([]float64{1}, "JFK")); err != nil {
		t.Error(err)
	}
	if st := p.status(t); st.Lost != 1 {
		t.Errorf("%d lost", st.Lost)
	}
	m := p.world.models["m/2"]
	m.Classification = "restricted"
	p.world.models["m/2"] = m
	s := spec(serving.FeaturesSpec{})
	s.Version = "2"
	p.apply(t, s)
	if a, err := p.Infer(ctx, keyed([]float64{1}, "JFK")); !fault.Is(err, fault.Exhausted) || a.Outputs != nil {
		t.Errorf("%+v %v", a, err)
	}
}

// TestForgotten: a deployment may say that its logging predictions failed.
func TestForgotten(t *testing.T) {
	p, _, n := fed(t)
	s := spec(serving.FeaturesSpec{})
	s.Prediction = &serving.PredictionSpec{Log: new(false)}
	p.apply(t, s)
	if _, err := p.Infer(t.Context(), keyed([]float64{1}, "JFK")); err != nil {
		t.Fatal(err)
	}
	if len(n.records) != 0 {
		t.Errorf("remembered: %+v", n.records)
	}
	s.Prediction = &serving.PredictionSpec{Log: new(true)}
	p.apply(t, s)
	if _, err := p.Infer(t.Context(), keyed([]float64{1}, "JFK")); err != nil {
		t.Fatal(err)
	}
	if rec := n.last(t); len(rec.Scores) != 1 {
		t.Errorf("the score was lost: %+v", rec)
	}
}

// TestColumnsOfATensor: the model's own input is remembered by column.
func TestColumnsOfATensor(t *testing.T) {
	p, _, n := fed(t)
	p.apply(t, serving.Spec{Model: "m"})
	for rows, data := range [][]float32{1: {1, 2}, 2: {1, 2, 3, 4}} {
		if rows == 0 {
			continue
		}
		in := []runtime.Tensor{{Name: "X", Datatype: runtime.FP32, Shape: []int64{int64(rows), 2}, Data: data}}
		if _, err := p.Infer(t.Context(), serving.Request{Project: "nyc", Name: "d", Inputs: in}); err != nil {
			t.Fatal(err)
		}
		got := n.last(t).Inputs
		if len(got) != 2 || got[0].Name != "X.0" || got[1].Name != "X.1" || got[0].Numbers[0] != 1 || got[1].Numbers[0] != 2 ||
			len(got[0].Numbers) != rows || len(got[1].Numbers) != rows || rows == 2 && (got[0].Numbers[1] != 3 || got[1].Numbers[1] != 4) {
			t.Errorf("%d rows: %+v", rows, got)
		}
	}
}
