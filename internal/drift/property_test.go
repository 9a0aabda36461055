package drift

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/sketch"
)

func normal(rng *rand.Rand, n int, mean, std float64) *sketch.Column {
	c := sketch.NewNumeric(rng.Uint64())
	for range n {
		c.Add(mean + std*rng.NormFloat64())
	}
	return c
}

// categories draws from k categories with falling shares.
func categories(rng *rand.Rand, n, k int, shift float64) *sketch.Column {
	c := sketch.NewCategorical(0)
	for range n {
		c.AddText(fmt.Sprintf("c%d", int(float64(k)*math.Pow(rng.Float64(), 2+shift))))
	}
	return c
}

// TestFalseAlarmsOfTests: without drift a test rejects in at most α of many
// replays; α + 3 standard deviations of the count is allowed.
func TestFalseAlarmsOfTests(t *testing.T) {
	const replays, alpha = 200, 0.05
	limit := int(replays*alpha + 3*math.Sqrt(replays*alpha*(1-alpha)))
	slow := map[Method]bool{TVD: true, CramerVonMises: true, AndersonDarling: true, EppsSingleton: true}
	shapes := map[string]func(rng *rand.Rand) (ref, cur *sketch.Column){
		"small": func(rng *rand.Rand) (*sketch.Column, *sketch.Column) {
			return normal(rng, 40, 5, 2), normal(rng, 25, 5, 2)
		},
		"large": func(rng *rand.Rand) (*sketch.Column, *sketch.Column) {
			return normal(rng, 1100, 5, 2), normal(rng, 150, 5, 2)
		},
		"few values": func(rng *rand.Rand) (*sketch.Column, *sketch.Column) {
			a, b := sketch.NewNumeric(rng.Uint64()), sketch.NewNumeric(rng.Uint64())
			for i := range 300 {
				a.Add(float64(rng.IntN(4)))
				if i%3 == 0 {
					b.Add(float64(rng.IntN(4)))
				}
			}
			return a, b
		},
		"categories": func(rng *rand.Rand) (*sketch.Column, *sketch.Column) {
			return categories(rng, 500, 30, 0), categories(rng, 200, 30, 0)
		},
		"rare": func(rng *rand.Rand) (*sketch.Column, *sketch.Column) {
			a, b := sketch.NewCategorical(0), sketch.NewCategorical(0)
			for i := range 200 {
				a.AddText(strconv.FormatBool(rng.Float64() < 0.01))
				if i%2 == 0 {
					b.AddText(strconv.FormatBool(rng.Float64() < 0.01))
				}
			}
			return a, b
		},
	}
	for name, shape := range shapes {
		t.Run(name, func(t *testing.T) {
			rejected := map[Method]int{}
			for seed := range uint64(replays) {
				rng := rand.New(rand.NewPCG(seed, 11))
				ref, cur := shape(rng)
				for m, trait := range traits {
					// The two that take the baseline as known without error are
					// not valid here, and say so.
					if trait.distance || m == ChiSquareFit || m == G || slow[m] && seed >= 40 {
						continue
					}
					r, err := Test(m, ref, cur, Options{Alpha: alpha, Seed: seed})
					if err != nil && !fault.Is(err, fault.Invalid) {
						t.Fatal(err)
					}
					if r.Drifted {
						rejected[m]++
					}
				}
			}
			for m, n := range rejected {
				most := limit
				if slow[m] {
					most = 2 + 5
				}
				if n > most {
					t.Errorf("%s rejects %d of %d times, at most %d are allowed", m, n, replays, most)
				}
			}
		})
	}
}

// TestFalseAlarmsOfDistances: without drift a distance is over its threshold
// hardly ever, on windows of each size and of many categories.
func TestFalseAlarmsOfDistances(t *testing.T) {
	const replays = 40
	for _, rows := range []int{20, 200, 2000} {
		alarms := map[string]int{}
		for seed := range uint64(replays) {
			rng := rand.New(rand.NewPCG(seed, uint64(rows)))
			for name, pair := range map[string][2]*sketch.Column{
				"normal":     {normal(rng, 2000, 10, 3), normal(rng, rows, 10, 3)},
				"categories": {categories(rng, 2000, 12, 0), categories(rng, rows, 12, 0)},
				"many":       {categories(rng, 2000, 700, 0), categories(rng, rows, 700, 0)},
			} {
				for m, trait := range traits {
					if !trait.distance {
						continue
					}
					r, err := Test(m, pair[0], pair[1], Options{})
					if err == nil && r.Drifted {
						alarms[name+" "+string(m)]++
					}
				}
			}
		}
		for what, n := range alarms {
			if n > 1 {
				t.Errorf("%d rows, %s: %d of %d replays", rows, what, n, replays)
			}
		}
	}
}

// TestDriftIsFound: what Choose chooses, and every method, finds what is there.
func TestDriftIsFound(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	for name, pair := range map[string][2]*sketch.Column{
		"small shift":      {normal(rng, 300, 0, 1), normal(rng, 300, 0.6, 1)},
		"large shift":      {normal(rng, 20_000, 0, 1), normal(rng, 5000, 0.6, 1)},
		"small categories": {categories(rng, 500, 5, 0), categories(rng, 500, 5, 2.5)},
		"large categories": {categories(rng, 20_000, 5, 0), categories(rng, 5000, 5, 2.5)},
	} {
		methods := append(Methods(), "")
		for _, m := range methods {
			r, err := Test(m, pair[0], pair[1], Options{})
			if err != nil || r.Outcome != Compared {
				continue // does not fit
			}
			if !r.Drifted {
				t.Errorf("%s: %s finds nothing: %+v", name, m, r)
			}
		}
	}
	wider := test(t, KS, normal(rng, 900, 0, 1), normal(rng, 900, 0, 1.6), Options{})
	if !wider.Drifted {
		t.Errorf("a greater variance is not found: %+v", wider)
	}
}

func TestChoose(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 9))
	few := func(n, k int) *sketch.Column {
		c := sketch.NewNumeric(1)
		for i := range n {
			c.Add(float64(i % k))
		}
		return c
	}
	for _, c := range []struct {
		ref, cur *sketch.Column
		want     Method
	}{
		{normal(rng, 1000, 0, 1), normal(rng, 50, 0, 1), KS},
		{normal(rng, 1001, 0, 1), normal(rng, 50, 0, 1), WassersteinNormed},
		{few(1000, 6), few(50, 6), KS},
		{few(1000, 5), few(50, 5), ChiSquare},
		{few(1000, 2), few(50, 2), Z},
		{few(1000, 2), few(50, 3), ChiSquare},
		{few(1000, 2), normal(rng, 50, 0, 1), KS},
		{few(1001, 5), few(50, 5), JensenShannon},
		{few(1001, 6), few(50, 6), WassersteinNormed},
		{texts(10, 10), texts(5, 5), Z},
		{texts(10, 10, 5), texts(5, 5), ChiSquare},
		{texts(1000, 10), texts(5, 5), JensenShannon},
		{categories(rng, 3000, 5000, 0), categories(rng, 3000, 5000, 0), JensenShannon},
	} {
		if got := Choose(c.ref, c.cur); got != c.want {
			t.Errorf("%d %s rows: %s, want %s", c.ref.Count(), c.ref.Kind(), got, c.want)
		}
	}
}

func TestBadInputHasAnOutcomeInWords(t *testing.T) {
	missing, wrong := sketch.NewNumeric(1), sketch.NewNumeric(1)
	for range 50 {
		missing.Add(math.NaN())
		wrong.AddText("x")
	}
	few := numbers(1, 2, 3, 4, 5, 6)
	for _, c := range []struct {
		ref, cur *sketch.Column
		words    string
	}{
		{numbers(), few, "the baseline has no rows"},
		{few, numbers(), "the window has no rows"},
		{few, missing, "all 50 rows of the window are missing"},
		{missing, few, "all 50 rows of the baseline are missing"},
		{few, wrong, "none of the 50 rows of the window has a value"},
		{numbers(1), few, "the baseline has only one row"},
		{few, numbers(1), "the window has only one row"},
		{few, texts(3, 4), "the baseline is numeric and the window categorical"},
		{texts(3, 4), few, "the baseline is categorical and the window numeric"},
	} {
		for m := range traits {
			r, err := Test(m, c.ref, c.cur, Options{})
			if err != nil || r.Outcome != Undecided || r.Drifted || !strings.Contains(r.Note, c.words) {
				t.Errorf("%s: %+v, %v; want %q", m, r, err, c.words)
			}
		}
	}
	constant, other := numbers(slices.Repeat([]float64{7}, 60)...), numbers(slices.Repeat([]float64{8}, 60)...)
	for m := range traits {
		same, err := Test(m, constant, constant, Options{})
		if err != nil || same.Drifted {
			t.Errorf("%s of a constant with itself: %+v, %v", m, same, err)
		}
		r, err := Test(m, constant, other, Options{})
		if err != nil || r.Outcome == Compared && !r.Drifted {
			t.Errorf("%s of two constants: %+v, %v", m, r, err)
		}
	}
	for _, opts := range []Options{{Alpha: 1}, {Alpha: -1}, {Alpha: math.NaN()}, {Threshold: -1}, {Threshold: math.NaN()}} {
		if _, err := Test(KS, few, few, opts); !fault.Is(err, fault.Invalid) {
			t.Errorf("%+v: %v", opts, err)
		}
	}
	for _, m := range []Method{"kolmogorov", KS, WassersteinNormed} {
		if _, err := Test(m, texts(3, 4), texts(3, 4), Options{}); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s of categories: %v", m, err)
		}
	}
	if _, err := Test(KS, nil, few, Options{}); !fault.Is(err, fault.Invalid) {
		t.Errorf("no baseline: %v", err)
	}
	if _, err := Samples(KS, make([]float64, 1001), nil, Options{}); !fault.Is(err, fault.TooLarge) {
		t.Errorf("too many: %v", err)
	}
	if r, err := Samples(Auto, []float64{1, 2, 3, 4, 5, 6, 7}, []float64{11, 12, 13, 14, 15, math.NaN()}, Options{}); err != nil || !r.Drifted || r.Method != KS {
		t.Errorf("samples: %+v, %v", r, err)
	}
}

// TestNothingIsNaN: whatever the columns are, every method answers with numbers.
func TestNothingIsNaN(t *testing.T) {
	column := func(t *rapid.T, name string) *sketch.Column {
		n := rapid.IntRange(0, 60).Draw(t, name+" rows")
		if rapid.Bool().Draw(t, name+" categorical") {
			c := sketch.NewCategorical(1)
			for range n {
				c.AddText(rapid.SampledFrom([]string{"", "a", "b", "c", "d"}).Draw(t, name))
			}
			return c
		}
		c := sketch.NewNumeric(1)
		g := rapid.OneOf(rapid.Float64(), rapid.SampledFrom([]float64{0, 1, 1e150, -1e150, 1e-300, math.NaN(), math.Inf(1)}), rapid.Float64Range(0, 1))
		for range n {
			c.Add(g.Draw(t, name))
		}
		return c
	}
	rapid.Check(t, func(t *rapid.T) {
		ref, cur := column(t, "ref"), column(t, "cur")
		var all []Result
		for _, m := range Methods() {
			r, err := Test(m, ref, cur, Options{})
			if err != nil {
				continue
			}
			if math.IsNaN(r.Statistic) || math.IsInf(r.Statistic, 0) || math.IsNaN(r.Threshold) || math.IsInf(r.Threshold, 0) {
				t.Fatalf("%s: %+v", m, r)
			}
			tested := r.Outcome == Compared && !r.Method.Distance()
			if tested != (r.PValue >= 0 && r.PValue <= 1) || r.Outcome == Undecided && (r.Note == "" || r.Drifted) {
				t.Fatalf("%s: %+v", m, r)
			}
			b, err := json.Marshal(r)
			if err != nil {
				t.Fatal(err)
			}
			var again Result
			if err := json.Unmarshal(b, &again); err != nil || fmt.Sprint(again) != fmt.Sprint(r) {
				t.Fatalf("%+v came back as %+v, %v", r, again, err)
			}
			all = append(all, r)
		}
		for _, c := range Corrections() {
			if _, err := Correct(all, c); err != nil {
				t.Fatal(err)
			}
		}
		for _, c := range Checks(ref, cur, CheckOptions{}) {
			if math.IsNaN(c.Value) || math.IsNaN(c.Limit) || c.Detail == "" {
				t.Fatalf("%+v", c)
			}
		}
	})
}

func TestCorrect(t *testing.T) {
	results := func() []Result {
		var out []Result
		for _, p := range []float64{0.04, 0.005, 0.02, 0.8} {
			out = append(out, Result{Method: KS, Outcome: Compared, PValue: p, Adjusted: math.NaN(), Threshold: 0.05, Drifted: p < 0.05})
		}
		return append(out,
			Result{Method: PSI, Outcome: Compared, PValue: math.NaN(), Threshold: 0.1, Statistic: 0.2, Drifted: true},
			Result{Method: KS, Outcome: Undecided, PValue: math.NaN(), Note: "no rows"})
	}
	for correction, want := range map[Correction][]float64{
		None:              {0.04, 0.005, 0.02, 0.8},
		Bonferroni:        {0.16, 0.02, 0.08, 1},
		Holm:              {0.08, 0.02, 0.06, 0.8},
		BenjaminiHochberg: {0.16 / 3, 0.02, 0.04, 0.8},
	} {
		got, err := Correct(results(), correction)
		if err != nil {
			t.Fatal(err)
		}
		for i, p := range want {
			near(t, fmt.Sprintf("%s %d", correction, i), got[i].Adjusted, p, 1e-12)
			if got[i].Drifted != (p < 0.05) {
				t.Errorf("%s %d: p = %v, drifted %v", correction, i, p, got[i].Drifted)
			}
		}
		if !got[4].Drifted || got[5].Drifted {
			t.Errorf("%s changed what is no test", correction)
		}
	}
	if _, err := Correct(nil, "sidak"); !fault.Is(err, fault.Invalid) {
		t.Errorf("an unknown correction: %v", err)
	}
}

func TestChecks(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 2))
	failed := func(ref, cur *sketch.Column) string {
		var names []string
		for _, c := range Checks(ref, cur, CheckOptions{}) {
			if c.Failed {
				names = append(names, string(c.Name))
			}
		}
		return strings.Join(names, " ")
	}
	holes := normal(rng, 900, 0, 1)
	for range 100 {
		holes.Add(math.NaN())
	}
	mixed := normal(rng, 900, 0, 1)
	mixed.AddText("oops")
	mixed.Add(math.Inf(1))
	for _, c := range []struct {
		what     string
		ref, cur *sketch.Column
		want     string
	}{
		{"the same", normal(rng, 2000, 0, 1), normal(rng, 500, 0, 1), ""},
		{"a tiny baseline", normal(rng, 5, 0, 1), normal(rng, 500, 0, 1), ""},
		{"holes", normal(rng, 2000, 0, 1), holes, "missing"},
		{"fewer holes", holes, normal(rng, 2000, 0, 1), "missing"},
		{"a shift", normal(rng, 2000, 0, 1), normal(rng, 500, 3, 1), "range"},
		{"another type", normal(rng, 2000, 0, 1), texts(30, 40), "type"},
		{"text and infinity", normal(rng, 2000, 0, 1), mixed, "type infinite"},
		{"a new category", texts(50, 50), texts(40, 40, 10), "new_categories"},
		{"a missing category", texts(50, 50, 50), texts(50, 50), ""},
		{"no rows", texts(50), texts(), ""},
	} {
		if got := failed(c.ref, c.cur); got != c.want {
			t.Errorf("%s: %q failed, want %q", c.what, got, c.want)
		}
	}
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 3))
		if got := failed(normal(rng, 30+int(seed)*5, 0, 1), normal(rng, 300, 0, 1)); got != "" {
			t.Errorf("seed %d: %s failed without a change", seed, got)
		}
	}
}

func TestManyCategoriesStayComparable(t *testing.T) {
	ref, cur := sketch.NewCategorical(0), sketch.NewCategorical(0)
	for i := range 40_000 {
		ref.AddText(fmt.Sprintf("id-%d", i))
		cur.AddText(fmt.Sprintf("id-%d", i+40_000))
		if i%4 == 0 {
			ref.AddText("web")
			cur.AddText("web")
		}
	}
	for _, m := range []Method{ChiSquare, JensenShannon, PSI, TVD} {
		if r := test(t, m, ref, cur, Options{}); r.Drifted || !strings.Contains(r.Note, "more than 1000 categories") {
			t.Errorf("%s: %+v", m, r)
		}
	}
}

func FuzzDetectors(f *testing.F) {
	a, p := NewADWIN(0), NewPageHinkley(0, 0)
	for i := range 200 {
		a.Update(float64(i % 7))
		p.Update(float64(i % 7))
	}
	ab, _ := a.MarshalBinary()
	pb, _ := p.MarshalBinary()
	f.Add(ab)
	f.Add(pb)
	f.Add([]byte(`{"delta":0.1,"rows":[[]]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		type detector interface {
			Update(v float64) bool
			MarshalBinary() ([]byte, error)
			UnmarshalBinary(b []byte) error
		}
		for _, d := range []detector{new(ADWIN), new(PageHinkley)} {
			if d.UnmarshalBinary(b) != nil {
				continue
			}
			for i := range 100 {
				d.Update(float64(i))
			}
			if out, err := d.MarshalBinary(); err == nil && d.UnmarshalBinary(out) != nil {
				t.Fatalf("%T writes what it does not read: %s", d, out)
			}
		}
	})
}

func FuzzResult(f *testing.F) {
	f.Add([]byte(`{"method":"ks","outcome":"compared","statistic":0.2,"p_value":null}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var r Result
		if json.Unmarshal(b, &r) != nil {
			return
		}
		if _, err := json.Marshal(r); err != nil {
			t.Fatal(err)
		}
	})
}

func TestDetectorsGoOnAfterARestart(t *testing.T) {
	rng := rand.New(rand.NewPCG(8, 8))
	a, p := NewADWIN(0), NewPageHinkley(0, 0)
	a2, p2 := NewADWIN(0), NewPageHinkley(0, 0)
	for i := range 3000 {
		v := rng.NormFloat64() + float64(i/1000)
		if i%100 == 99 {
			b, _ := a2.MarshalBinary()
			c, _ := p2.MarshalBinary()
			a2, p2 = new(ADWIN), new(PageHinkley)
			if err := a2.UnmarshalBinary(b); err != nil {
				t.Fatal(err)
			}
			if err := p2.UnmarshalBinary(c); err != nil {
				t.Fatal(err)
			}
		}
		if a.Update(v) != a2.Update(v) || p.Update(v) != p2.Update(v) {
			t.Fatalf("at %d they differ", i)
		}
	}
	if a.Detections() < 2 || p.Detections() < 2 || a.Mean() < 1.5 {
		t.Errorf("%d and %d changes, mean %v", a.Detections(), p.Detections(), a.Mean())
	}
	a.Update(math.NaN())
	p.Update(math.Inf(1))
}

func BenchmarkTest(b *testing.B) {
	rng := rand.New(rand.NewPCG(4, 4))
	ref, cur := normal(rng, 50_000, 0, 1), normal(rng, 10_000, 0, 1)
	refText, curText := categories(rng, 50_000, 100, 0), categories(rng, 10_000, 100, 0)
	for _, m := range Methods() {
		r, c := ref, cur
		if t := traits[m].takes; t == counts || t == pairs {
			r, c = refText, curText
		}
		b.Run(string(m), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Test(m, r, c, Options{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
