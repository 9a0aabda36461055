package drift

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/sketch"
)

func load(t *testing.T, file string, into any) {
	t.Helper()
	b, err := os.ReadFile("testdata/" + file)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, into); err != nil {
		t.Fatal(err)
	}
}

func near(t *testing.T, what string, got, want, tolerance float64) {
	t.Helper()
	if !(math.Abs(got-want) <= tolerance*math.Max(1e-3, math.Abs(want))) {
		t.Errorf("%s = %.12g, want %.12g", what, got, want)
	}
}

func numbers(values ...float64) *sketch.Column {
	c := sketch.NewNumeric(1)
	for _, v := range values {
		c.Add(v)
	}
	return c
}

// texts counts the categories a, b and so on.
func texts(counts ...float64) *sketch.Column {
	c := sketch.NewCategorical(1)
	for i, n := range counts {
		for range int(n) {
			c.AddText(string(rune('a' + i)))
		}
	}
	return c
}

func repeat(counts ...int) []float64 {
	var out []float64
	for i, n := range counts {
		out = append(out, slices.Repeat([]float64{float64(i + 1)}, n)...)
	}
	return out
}

func test(t *testing.T, m Method, ref, cur *sketch.Column, opts Options) Result {
	t.Helper()
	r, err := Test(m, ref, cur, opts)
	if err != nil {
		t.Fatalf("%s: %v", m, err)
	}
	if r.Outcome != Compared {
		t.Fatalf("%s: %s: %s", m, r.Outcome, r.Note)
	}
	return r
}

// TestReferenceValues are the published ones: of Evidently's tests, recomputed
// with scipy 1.10.1.
func TestReferenceValues(t *testing.T) {
	var file struct {
		Cases []struct {
			Name            string
			Ref, Cur        []float64
			Stat, P, V, Std float64
			Normed          float64 `json:"normed_by_ref_std"`
			Plus5           float64
		}
	}
	load(t, "reference.json", &file)
	find := func(prefix string) (stat, p float64) {
		for _, c := range file.Cases {
			if strings.HasPrefix(c.Name, prefix) {
				return c.Stat + c.V, c.P
			}
		}
		t.Fatalf("no case %q", prefix)
		return 0, 0
	}
	a, b := numbers(file.Cases[0].Ref...), numbers(file.Cases[0].Cur...)
	ra, rb := numbers(repeat(16, 18, 16, 14, 12, 12)...), numbers(repeat(16, 16, 16, 16, 16, 8)...)
	ca, cb := texts(16, 18, 16, 14, 12, 12), texts(16, 16, 16, 16, 16, 8)
	for _, c := range []struct {
		name     string
		method   Method
		ref, cur *sketch.Column
	}{
		{"ks_2samp exact", KS, a, b},
		{"ks_2samp asymp", KSAsymptotic, a, b},
		{"anderson_ksamp", AndersonDarling, a, b},
		{"cvm_2samp exact", CramerVonMises, a, b},
		{"t_test", TTest, a, b},
		{"mannwhitney", MannWhitney, ra, rb},
		{"wasserstein", Wasserstein, a, b},
		{"energy", Energy, a, b},
		{"epps_singleton", EppsSingleton, ra, rb},
		{"chisquare (", ChiSquareFit, ca, cb},
		{"chi2_contingency", ChiSquare, ca, cb},
		{"hellinger", Hellinger, ca, cb},
		{"jensenshannon base 2", JensenShannon, ca, cb},
		{"psi", PSI, ca, cb},
		{"kl(", KL, ca, cb},
		{"tvd", TVD, ca, cb},
		{"linf", LInfinity, ca, cb},
		{"g_test", G, texts(5, 5, 8), texts(4, 6, 8)},
	} {
		r := test(t, c.method, c.ref, c.cur, Options{})
		stat, p := find(c.name)
		near(t, c.name, r.Statistic, stat, 1e-9)
		if p > 0 {
			near(t, c.name+" p", r.PValue, p, 1e-9)
		}
	}
	near(t, "wasserstein normed", test(t, WassersteinNormed, a, b, Options{}).Statistic, 0.781236105789365, 1e-9)
	shifted := make([]float64, 0, 8)
	for _, v := range file.Cases[0].Ref {
		shifted = append(shifted, v+5)
	}
	near(t, "energy of +5", test(t, Energy, a, numbers(shifted...), Options{}).Statistic, 1.9332614929181204, 1e-9)
	near(t, "energy of the same", test(t, Energy, a, a, Options{}).Statistic, 0, 0)
	r := test(t, Fisher, texts(60, 30), texts(45, 45), Options{})
	near(t, "fisher p", r.PValue, 0.033972274322700745, 1e-9)

	// The published p-values that are rounded or depend on a seed.
	// Evidently counts the permutations that are further apart; a valid p-value
	// also counts those that are as far.
	v, _ := align(ca, cb)
	further, draw := 0, v.shuffleDraw(rand.New(rand.NewPCG(1, 1)))
	for range permutations {
		if draw() > variation(v)+1e-12 {
			further++
		}
	}
	near(t, "TVD p of Evidently", float64(further)/permutations, 0.928, 0.03)
	near(t, "TVD p", test(t, TVD, ca, cb, Options{Seed: 1}).PValue, 0.972, 0.02)
	near(t, "Mann-Whitney of Evidently", test(t, MannWhitney, ra, rb, Options{}).PValue/2, 0.481, 0.001)

	// The two p-values of KS fall on different sides of 0.05: which one is said.
	exact, limit := test(t, KS, a, b, Options{}), test(t, KSAsymptotic, a, b, Options{})
	if exact.Variant != "exact" || exact.Drifted || limit.Variant != "asymptotic" || !limit.Drifted {
		t.Errorf("exact %+v, asymptotic %+v", exact, limit)
	}
	if got := jensenShannon(table{ref: []float64{1, 1}, cur: []float64{1, 1}}); got != 0 {
		t.Errorf("Jensen–Shannon of the same = %v", got)
	}
	near(t, "base e", test(t, JensenShannon, ca, cb, Options{}).Statistic*math.Sqrt(math.Ln2), 0.06804819617703867, 1e-9)
}

func TestAgainstScipy(t *testing.T) {
	type one struct {
		Name     string
		Ref, Cur []float64
		Want     map[Method][2]*float64
	}
	var file struct {
		Samples, Counts []one
		Laws            struct {
			Kolmogorov [][3]float64
			Fisher     [][2]json.RawMessage
		}
	}
	load(t, "scipy.json", &file)
	check := func(c one, m Method, want [2]*float64, ref, cur *sketch.Column) {
		r := test(t, m, ref, cur, Options{})
		if want[0] != nil {
			near(t, c.Name+" "+string(m), math.Abs(r.Statistic), math.Abs(*want[0]), 1e-7)
		}
		if want[1] != nil {
			tolerance := 1e-6
			if m == CramerVonMises {
				tolerance = 1e-4 // scipy stops its series at 1e-7
			}
			near(t, c.Name+" "+string(m)+" p", r.PValue, *want[1], tolerance)
		}
	}
	for _, c := range file.Samples {
		for m, want := range c.Want {
			check(c, m, want, numbers(c.Ref...), numbers(c.Cur...))
		}
	}
	published := file.Samples[0] // Evidently's own test has this value
	near(t, "published Cramér–von Mises p", test(t, CramerVonMises, numbers(published.Ref...), numbers(published.Cur...), Options{}).PValue, 0.8076839, 1e-5)
	for _, c := range file.Counts {
		for m, want := range c.Want {
			check(c, m, want, texts(c.Ref...), texts(c.Cur...))
		}
	}
	for _, l := range file.Laws.Kolmogorov {
		tolerance := 1e-8
		if l[0] > 140 {
			tolerance = 5e-6 // from here on scipy has a series
		}
		near(t, "Kolmogorov", kolmogorovSF(l[1], int(l[0])), l[2], tolerance)
	}
	for _, l := range file.Laws.Fisher {
		var x []float64
		var p float64
		if json.Unmarshal(l[0], &x) != nil || json.Unmarshal(l[1], &p) != nil {
			t.Fatal("bad file")
		}
		near(t, "Fisher", fisher(x[0], x[1], x[2], x[3]), p, 1e-7)
	}
}

func TestStreamsOfRiver(t *testing.T) {
	var file struct {
		Streams map[string]struct {
			Values []float64
			ADWIN  []int `json:"adwin"`
			Widths []int
			Page   []int `json:"page_hinkley"`
		}
	}
	load(t, "river.json", &file)
	for name, s := range file.Streams {
		a, p := NewADWIN(0), NewPageHinkley(0, 0)
		var at, widths, pt []int
		for i, v := range s.Values {
			if a.Update(v) {
				at, widths = append(at, i), append(widths, a.Width())
			}
			if p.Update(v) {
				pt = append(pt, i)
			}
		}
		if !slices.Equal(at, s.ADWIN) || !slices.Equal(widths, s.Widths) || !slices.Equal(pt, s.Page) {
			t.Errorf("%s: ADWIN at %v (want %v) with %v (want %v), Page-Hinkley at %v (want %v)",
				name, at, s.ADWIN, widths, s.Widths, pt, s.Page)
		}
	}
	published := file.Streams["published"]
	if !slices.Equal(published.ADWIN, []int{1023}) || published.Page[0] != 1006 ||
		published.Values[1023] != 4 || published.Values[1006] != 5 {
		t.Errorf("the published indices are 1023 and 1006: %v, %v", published.ADWIN, published.Page)
	}
}
