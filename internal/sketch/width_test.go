package sketch

import (
	"math/rand/v2"
	"testing"
)

func TestAlike(t *testing.T) {
	column := func(values ...float64) *Column {
		c := NewNumeric(1)
		for _, v := range values {
			c.Add(v)
		}
		return c
	}
	for _, c := range []struct {
		name        string
		a, b        []float64
		same, apart bool // one value, or two
	}{
		{"64 bits beside 32", []float64{0.1}, []float64{float64(float32(0.1))}, true, false},
		{"32 bits beside 64", []float64{float64(float32(0.1))}, []float64{0.1}, true, false},
		{"seconds since 1970", []float64{1_700_000_001, 1_700_000_002}, []float64{1_700_000_003, 1_700_000_005}, false, true},
		{"whole numbers", []float64{1, 2}, []float64{3, 4}, false, true},
		{"beyond 32 bits", []float64{1e100}, []float64{2e100}, false, true},
	} {
		a, b := Alike(column(c.a...), column(c.b...))
		if same := a.Min() == b.Min(); same != c.same {
			t.Errorf("%s: %v and %v", c.name, a.Min(), b.Min())
		}
		if na, _ := a.Distinct(); c.apart && int(na) != len(c.a) {
			t.Errorf("%s: %d different values", c.name, na)
		}
	}
	text := NewCategorical(1)
	if a, b := Alike(text, column(0.1)); a != text || b.Min() != 0.1 {
		t.Error("a column of texts was changed")
	}
	if a, b := Alike(nil, text); a != nil || b != text {
		t.Error("a column that is not there was changed")
	}
}

// A column that is rounded afterwards keeps what one of rounded numbers keeps.
func TestRounding(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{10, 1000, 50_000} {
		wide, narrow := NewNumeric(7), NewNumeric(7)
		for range n {
			v := random.NormFloat64()
			wide.Add(v)
			narrow.Add(single(v))
		}
		got, like := Alike(wide, narrow)
		if like != narrow {
			t.Fatal("the narrow column was changed")
		}
		for _, q := range []float64{0, 0.01, 0.5, 0.99, 1} {
			if a, b := got.KLL().Quantile(q), narrow.KLL().Quantile(q); a != b {
				t.Errorf("%d values: quantile %v is %v, want %v", n, q, a, b)
			}
		}
		if got.KLL().Count() != narrow.KLL().Count() || wide.Min() == got.Min() {
			t.Error("counts differ, or the wide column was changed")
		}
	}
}
