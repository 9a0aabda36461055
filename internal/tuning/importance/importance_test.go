package importance

import (
	"encoding/json"
	"math"
	"os"
	"testing"

	"github.com/falaj-ml/falaj/internal/tuning/space"
	"github.com/falaj-ml/falaj/internal/tuning/trial"
)

// TestOptuna: the shares are those of Optuna 5.0's PedAnovaImportanceEvaluator, one
// parameter conditional; made by search/testdata/reference.py.
func TestOptuna(t *testing.T) {
	text, err := os.ReadFile("testdata/optuna.json")
	if err != nil {
		t.Fatal(err)
	}
	var ref struct {
		Space      map[string]json.RawMessage
		Importance map[string]float64
		Trials     []struct {
			Params space.Params
			Value  float64
		}
	}
	if err := json.Unmarshal(text, &ref); err != nil {
		t.Fatal(err)
	}
	var s space.Space
	for name, text := range ref.Space {
		p, err := space.FromOptuna(name, text)
		if err != nil {
			t.Fatal(err)
		}
		s.Parameters = append(s.Parameters, p)
	}
	var trials []trial.Trial
	for i, r := range ref.Trials {
		trials = append(trials, trial.Trial{Number: i, State: trial.Complete, Params: r.Params, Values: []float64{r.Value}})
	}
	got := Of(s, trials, []trial.Direction{trial.Maximize}, 0)
	if got[0].Share < got[1].Share || len(got) != len(ref.Importance) {
		t.Errorf("%+v", got)
	}
	for _, w := range got {
		if want := ref.Importance[w.Name]; math.Abs(w.Share-want) > 1e-3*want {
			t.Errorf("%s: %v, Optuna says %v", w.Name, w.Share, want)
		}
	}
}

// TestNothingKnown: where nothing can be told each has a share of 0.
func TestNothingKnown(t *testing.T) {
	s := space.Space{Parameters: []space.Parameter{{Name: "x", Type: space.Float, High: 1}, {Name: "one", Type: space.Int, Low: 3, High: 3}}}
	done := func(x, v float64) trial.Trial {
		return trial.Trial{State: trial.Complete, Params: space.Params{"x": x, "one": int64(3)}, Values: []float64{v}}
	}
	for name, trials := range map[string][]trial.Trial{
		"nothing": nil,
		"one":     {done(0.1, 1)},
		"no number": {
			done(0.1, math.NaN()), done(0.2, math.Inf(1)), done(0.3, math.NaN()),
		},
		"not complete": {{State: trial.Running, Params: space.Params{"x": 0.1}}, {State: trial.Failed}},
	} {
		for _, w := range Of(s, trials, []trial.Direction{trial.Minimize}, 0) {
			if w.Share != 0 {
				t.Errorf("%s: %+v", name, w)
			}
		}
	}
	for _, w := range Of(s, []trial.Trial{done(0.1, 1), done(0.9, 2), done(0.8, 3)}, []trial.Direction{trial.Minimize}, 0) {
		if w.Name == "one" && w.Share != 0 || w.Name == "x" && w.Share != 1 {
			t.Errorf("%+v", w)
		}
	}
}
