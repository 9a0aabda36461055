package performance

import (
	"math"
	"math/rand/v2"
	"strconv"
	"testing"
)

// The numbers are those of scikit-learn 1.7: accuracy_score, f1_score(average="macro")
// and log_loss.
func TestMulticlass(t *testing.T) {
	of := func(v float64) *float64 { return &v }
	for name, test := range map[string]struct {
		rows                    [][2]string
		p                       []float64
		accuracy, macroF1, loss *float64
	}{
		"nothing": {nil, nil, nil, nil, nil},
		"always right": {
			[][2]string{{"0", "0"}, {"1", "1"}, {"2", "2"}},
			[]float64{1, 1, 1},
			of(1), of(1), of(0),
		},
		// y_true = [a a b b c c], y_pred = [a b b b c a]
		"text labels": {
			[][2]string{{"a", "a"}, {"b", "a"}, {"b", "b"}, {"b", "b"}, {"c", "c"}, {"a", "c"}},
			[]float64{0.7, 0.2, 0.5, 0.9, 0.6, 0.1},
			of(4. / 6), of((0.5 + 0.8 + 2./3) / 3), of(-(math.Log(0.7) + math.Log(0.2) + math.Log(0.5) + math.Log(0.9) + math.Log(0.6) + math.Log(0.1)) / 6),
		},
		// A class that is only predicted counts with F1 = 0, as in scikit-learn.
		"a class that is never true": {
			[][2]string{{"a", "a"}, {"d", "a"}},
			[]float64{0.5, 0.5},
			of(0.5), of((2./3 + 0) / 2), of(-math.Log(0.5)),
		},
		"a probability of zero": {[][2]string{{"a", "b"}}, []float64{0}, of(0), of(0), of(-math.Log(2.220446049250313e-16))},
		"no probability":        {[][2]string{{"a", "a"}, {"b", "b"}}, []float64{0.9, math.NaN()}, of(1), of(1), nil},
	} {
		t.Run(name, func(t *testing.T) {
			var c Multiclass
			for i, r := range test.rows {
				c.Add(r[0], r[1], test.p[i])
			}
			got := byName(c.Metrics())
			near(t, Accuracy, got[Accuracy].Value, test.accuracy, 1e-12)
			near(t, MacroF1, got[MacroF1].Value, test.macroF1, 1e-12)
			near(t, LogLoss, got[LogLoss].Value, test.loss, 1e-12)
			for _, m := range got {
				if math.IsNaN(m.Value) == (m.Note == "") {
					t.Errorf("%s is %v and says %q", m.Name, m.Value, m.Note)
				}
			}
			if c.Rows() != uint64(len(test.rows)) {
				t.Errorf("%d rows", c.Rows())
			}
		})
	}
}

// The accuracy of calibrated probabilities is what Confidence estimates, in 95 % of
// windows within its interval.
func TestConfidence(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	inside := 0
	for range 400 {
		var e Confidence
		var c Multiclass
		for range 300 {
			top := 0.34 + 0.66*r.Float64()
			e.Add(top)
			actual := "0"
			if r.Float64() >= top {
				actual = strconv.Itoa(1 + r.IntN(2))
			}
			c.Add("0", actual, top)
		}
		m, accuracy := e.Metrics()[0], c.Metrics()[0].Value
		if !m.Estimate || m.Name != Accuracy {
			t.Fatalf("%+v", m)
		}
		if accuracy >= m.Low && accuracy <= m.High {
			inside++
		}
	}
	if inside < 365 || inside > 395 {
		t.Errorf("%d of 400 intervals hold the accuracy", inside)
	}
	var none Confidence
	none.Add(math.NaN())
	if m := none.Metrics()[0]; !math.IsNaN(m.Value) || m.Note == "" {
		t.Errorf("%+v", m)
	}
}
