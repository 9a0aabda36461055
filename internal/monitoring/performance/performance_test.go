package performance

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
)

func near(t *testing.T, what string, got float64, want *float64, tolerance float64) {
	t.Helper()
	if want == nil {
		if !math.IsNaN(got) {
			t.Errorf("%s = %v, want none", what, got)
		}
		return
	}
	if !(math.Abs(got-*want) <= tolerance*math.Max(1, math.Abs(*want))) {
		t.Errorf("%s = %.12g, want %.12g", what, got, *want)
	}
}

func byName(metrics []Metric) map[string]Metric {
	out := map[string]Metric{}
	for _, m := range metrics {
		out[m.Name] = m
	}
	return out
}

// TestAgainstScikitLearn compares with scikit-learn, and intervals with scipy and
// definitions; testdata/gen.py made the numbers.
func TestAgainstScikitLearn(t *testing.T) {
	var file struct {
		Classification []struct {
			Name      string
			Threshold float64
			Scores    []float64
			Labels    []int
			Confusion [4]uint64
			Want      map[string][3]*float64
			Isotonic  [][2]float64
		}
		Regression []struct {
			Name        string
			Predictions []float64
			Labels      []float64
			Want        map[string][3]*float64
			Bootstrap   [2]float64 `json:"r2_bootstrap"`
		}
	}
	b, err := os.ReadFile("testdata/sklearn.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &file); err != nil {
		t.Fatal(err)
	}
	for _, c := range file.Classification {
		got := NewClassification(c.Threshold)
		for i, s := range c.Scores {
			got.Add(s, c.Labels[i] == 1)
		}
		metrics := byName(got.Metrics())
		for name, want := range c.Want {
			near(t, c.Name+" "+name, metrics[name].Value, want[0], 1e-10)
			near(t, c.Name+" "+name+" low", metrics[name].Low, want[1], 1e-9)
			near(t, c.Name+" "+name+" high", metrics[name].High, want[2], 1e-9)
		}
		m := got.Confusion()
		if [4]uint64{m.TruePositive, m.FalsePositive, m.FalseNegative, m.TrueNegative} != c.Confusion {
			t.Errorf("%s: confusion %+v, want %v", c.Name, m, c.Confusion)
		}
		calibrator := got.Calibrator()
		for _, at := range c.Isotonic {
			// scikit-learn keeps both ends of a block, we its middle.
			if p := calibrator.Map(at[0]); math.Abs(p-at[1]) > 0.15 {
				t.Errorf("%s: isotonic at %v = %v, want about %v", c.Name, at[0], p, at[1])
			}
		}
	}
	for _, c := range file.Regression {
		var got Regression
		for i, p := range c.Predictions {
			got.Add(p, c.Labels[i])
		}
		metrics := byName(got.Metrics())
		for name, want := range c.Want {
			near(t, c.Name+" "+name, metrics[name].Value, want[0], 1e-9)
			if name != R2 {
				near(t, c.Name+" "+name+" low", metrics[name].Low, want[1], 1e-8)
				near(t, c.Name+" "+name+" high", metrics[name].High, want[2], 1e-8)
			}
		}
		// The delta method and the bootstrap agree as well as two methods do.
		r2, width := metrics[R2], c.Bootstrap[1]-c.Bootstrap[0]
		if math.Abs(r2.Low-c.Bootstrap[0]) > width/4 || math.Abs(r2.High-c.Bootstrap[1]) > width/4 {
			t.Errorf("%s: R² in [%v, %v], by bootstrap [%v, %v]", c.Name, r2.Low, r2.High, c.Bootstrap[0], c.Bootstrap[1])
		}
	}
}

// TestIntervalsCover: of many samples, 95 % of the intervals hold the truth.
func TestIntervalsCover(t *testing.T) {
	const replays, rows = 300, 400
	// Scores are uniform and calibrated. Then P(y) = 1/2, the Brier score is 1/6,
	// the log loss 1/2, accuracy, precision, recall and F1 at 0.5 are 3/4, and the
	// AUC is 5/6.
	truth := map[string]float64{AUC: 5.0 / 6, LogLoss: 0.5, Brier: 1.0 / 6, Accuracy: 0.75, Precision: 0.75, Recall: 0.75, F1: 0.75}
	missed, estimated, chance, ece := map[string]int{}, map[string]int{}, 0.0, 0.0
	for seed := range uint64(replays) {
		rng := rand.New(rand.NewPCG(seed, 1))
		c, e := NewClassification(0), NewEstimate(0)
		for range rows {
			s := rng.Float64()
			c.Add(s, rng.Float64() < s)
			e.Add(s)
		}
		actual := byName(c.Metrics())
		for name, want := range truth {
			if m := actual[name]; want < m.Low || want > m.High {
				missed[name]++
			}
		}
		for _, m := range e.Metrics() {
			if !m.Estimate {
				t.Fatalf("%s is not marked as an estimate", m.Name)
			}
			if v := actual[m.Name].Value; v < m.Low || v > m.High {
				estimated[m.Name]++
			}
		}
		k := c.Calibration()
		chance, ece = chance+k.Chance/replays, ece+k.ECE/replays
	}
	// 15 of 300 are expected; 3 standard deviations are 11.
	for name, n := range missed {
		if n > 26 {
			t.Errorf("%d of %d intervals of %s miss the truth", n, replays, name)
		}
	}
	for name, n := range estimated {
		if n > 26 {
			t.Errorf("%d of %d estimates of %s miss what it was", n, replays, name)
		}
	}
	if math.Abs(ece/chance-1) > 0.1 {
		t.Errorf("calibrated scores show an ECE of %v, chance says %v", ece, chance)
	}
}

// TestEstimateFollowsAShift: when inputs shift and the scores stay calibrated, the
// estimate moves as the metric does.
func TestEstimateFollowsAShift(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	c, e := NewClassification(0.5), NewEstimate(0.5)
	for range 20_000 {
		s := 0.35 + 0.3*rng.Float64() // less sure than before
		c.Add(s, rng.Float64() < s)
		e.Add(s)
	}
	actual, estimate := byName(c.Metrics()), byName(e.Metrics())
	for _, name := range []string{AUC, LogLoss, Brier, Accuracy, Precision, Recall, F1} {
		if math.Abs(actual[name].Value-estimate[name].Value) > 0.02 {
			t.Errorf("%s is %v, estimated %v", name, actual[name].Value, estimate[name].Value)
		}
	}
	if a := estimate[Accuracy].Value; a > 0.6 {
		t.Errorf("an accuracy of %v is estimated of scores that know little", a)
	}
}

func TestCalibratorMakesScoresFitForAnEstimate(t *testing.T) {
	rng := rand.New(rand.NewPCG(6, 6))
	draw := func() (score float64, label bool) { // the score is the root of the truth
		p := rng.Float64()
		return math.Sqrt(p), rng.Float64() < p
	}
	reference := NewClassification(0.5)
	for range 30_000 {
		reference.Add(draw())
	}
	k := reference.Calibrator()
	b, err := json.Marshal(k)
	if err != nil {
		t.Fatal(err)
	}
	var again Calibrator
	if err := json.Unmarshal(b, &again); err != nil {
		t.Fatal(err)
	}
	c, raw, calibrated := NewClassification(0.5), NewEstimate(0.5), NewEstimate(0.5)
	for range 20_000 {
		s, y := draw()
		c.Add(s, y)
		raw.Add(s)
		calibrated.AddCalibrated(s, again.Map(s))
	}
	actual, with, without := byName(c.Metrics()), byName(calibrated.Metrics()), byName(raw.Metrics())
	for _, name := range []string{AUC, LogLoss, Brier, Accuracy, Precision, Recall, F1} {
		if d := math.Abs(actual[name].Value - with[name].Value); d > 0.02 {
			t.Errorf("%s is %v, estimated %v", name, actual[name].Value, with[name].Value)
		}
	}
	if math.Abs(actual[Accuracy].Value-without[Accuracy].Value) < 0.03 {
		t.Error("scores that are not calibrated give the same estimate, so this test shows nothing")
	}
	if got := (Calibrator{}).Map(0.3); got != 0.3 {
		t.Errorf("no calibration maps 0.3 to %v", got)
	}
	few := NewClassification(0.5)
	few.Add(0.9, false)
	if got := few.Calibrator().Map(0.3); got != 0.3 {
		t.Errorf("a calibration by one row maps 0.3 to %v", got)
	}
}

func TestManyRowsStayBounded(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 2))
	small, large := NewClassification(0.5), NewClassification(0.5)
	for i := range 200_000 {
		s := rng.Float64()
		y := rng.Float64() < s
		large.Add(s, y)
		if i < MaxExact {
			small.Add(s, y)
		}
	}
	if large.ranking.rows != nil || len(large.ranking.pos) != steps+1 || small.ranking.pos != nil {
		t.Error("rows are kept, or rounded too early")
	}
	m := byName(large.Metrics())
	if math.Abs(m[AUC].Value-5.0/6) > 0.004 || m[AUC].High-m[AUC].Low > 0.006 {
		t.Errorf("AUC %+v", m[AUC])
	}
	if large.Rows() != 200_000 {
		t.Errorf("%d rows", large.Rows())
	}
}

func TestWhatIsNotDefinedSaysWhy(t *testing.T) {
	for name, fill := range map[string]func(c *Classification){
		"nothing":      func(*Classification) {},
		"one":          func(c *Classification) { c.Add(0.3, true) },
		"one class":    func(c *Classification) { c.Add(0.3, false); c.Add(0.2, false) },
		"separated":    func(c *Classification) { c.Add(0.9, true); c.Add(0.8, true); c.Add(0.1, false); c.Add(0.2, false) },
		"sure of it":   func(c *Classification) { c.Add(0, true); c.Add(1, false) },
		"not a chance": func(c *Classification) { c.Add(math.NaN(), true); c.Add(-1, true); c.Add(2, false) },
	} {
		c := NewClassification(0.5)
		fill(c)
		check(t, name, c.Metrics())
	}
	for name, rows := range map[string][][2]float64{
		"nothing": nil, "one": {{1, 2}}, "constant": {{1, 5}, {2, 5}, {3, 5}},
		"not numbers": {{math.NaN(), 1}, {math.Inf(1), 1}, {1, 1e300}},
		"exact":       {{1, 1}, {2, 2}, {3, 3}},
		"huge":        {{1e69, -1e69}, {-1e69, 1e69}, {0, 5}, {1e69, 1}, {3, 2}, {1, 1}, {2, 2}, {3, 3}, {4, 4}, {5, 5}},
	} {
		var r Regression
		for _, row := range rows {
			r.Add(row[0], row[1])
		}
		check(t, name, r.Metrics())
	}
	check(t, "estimate of nothing", NewEstimate(7).Metrics())
	c := NewClassification(0.5)
	c.Add(0.9, true)
	c.Add(0.8, true)
	c.Add(0.1, false)
	c.Add(0.2, false)
	if auc := c.Metrics()[0]; auc.Value != 1 || auc.High != 1 || auc.Low > 0.5 {
		t.Errorf("four separated rows give %+v", auc)
	}
	c.Add(math.NaN(), true)
	if c.Unusable() != 1 || c.Rows() != 4 {
		t.Errorf("%d unusable, %d rows", c.Unusable(), c.Rows())
	}
}

// check: a value or a reason, never infinite, and JSON that comes back.
func check(t *testing.T, name string, metrics []Metric) {
	t.Helper()
	for _, m := range metrics {
		if math.IsNaN(m.Value) != (m.Note != "" && math.IsNaN(m.Value)) || math.IsInf(m.Value, 0) || math.IsInf(m.Low, 0) || math.IsInf(m.High, 0) {
			t.Errorf("%s: %+v", name, m)
		}
		if m.Low > m.Value || m.High < m.Value {
			t.Errorf("%s: the interval of %+v does not hold it", name, m)
		}
		b, err := json.Marshal(m)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		var again Metric
		if err := json.Unmarshal(b, &again); err != nil || again.Name != m.Name || math.IsNaN(again.Value) != math.IsNaN(m.Value) {
			t.Errorf("%s: %+v came back as %+v, %v", name, m, again, err)
		}
	}
}

func FuzzCalibrator(f *testing.F) {
	f.Add([]byte(`{"scores":[0.1,0.5],"values":[0.2,0.2]}`), 0.3)
	f.Add([]byte(`{"scores":[],"values":[]}`), -1.0)
	f.Fuzz(func(t *testing.T, b []byte, score float64) {
		var c Calibrator
		if err := json.Unmarshal(b, &c); err != nil {
			return
		}
		if p := c.Map(score); len(c.scores) > 0 && !math.IsNaN(score) && !(p >= 0 && p <= 1) {
			t.Fatalf("%v maps to %v", score, p)
		}
	})
}

func FuzzMetric(f *testing.F) {
	f.Add([]byte(`{"name":"auc","value":null}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var m Metric
		if json.Unmarshal(b, &m) != nil {
			return
		}
		if _, err := json.Marshal(m); err != nil {
			t.Fatal(err)
		}
	})
}

func TestCalibrationsThatAreNone(t *testing.T) {
	for _, bad := range []string{
		`[]`, `{"scores":[0.1],"values":[]}`, `{"scores":[0.5,0.1],"values":[0.1,0.2]}`,
		`{"scores":[0.1,0.5],"values":[0.2,0.1]}`, `{"scores":[2],"values":[0.1]}`,
	} {
		if err := json.Unmarshal([]byte(bad), new(Calibrator)); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func BenchmarkAdd(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 1))
	scores := make([]float64, 4096)
	for i := range scores {
		scores[i] = rng.Float64()
	}
	b.Run("classification", func(b *testing.B) {
		b.ReportAllocs()
		c := NewClassification(0.5)
		for i := 0; b.Loop(); i++ {
			c.Add(scores[i%len(scores)], i%3 == 0)
		}
	})
	b.Run("regression", func(b *testing.B) {
		b.ReportAllocs()
		var r Regression
		for i := 0; b.Loop(); i++ {
			r.Add(scores[i%len(scores)], scores[(i+1)%len(scores)])
		}
	})
	b.Run("metrics", func(b *testing.B) {
		c := NewClassification(0.5)
		for i := range 100_000 {
			c.Add(scores[i%len(scores)], i%3 == 0)
		}
		for b.Loop() {
			c.Metrics()
		}
	})
}
