package anomaly_test

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/training/anomaly"
)

var start = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)

// TestIdle gives a sample every ten seconds: "90%×3m 0%×12m" is two stretches.
func TestIdle(t *testing.T) {
	type stretch struct {
		busy float64
		long time.Duration
	}
	for name, c := range map[string]struct {
		has  []stretch
		want string
	}{
		"it works":                      {[]stretch{{0.9, time.Hour}}, ""},
		"it never did":                  {[]stretch{{0, time.Hour}}, ""},
		"it stopped":                    {[]stretch{{0.9, 3 * time.Minute}, {0, time.Hour}}, "began 13m"},
		"it stopped and came back":      {[]stretch{{0.9, 3 * time.Minute}, {0, time.Hour}, {0.5, 5 * time.Minute}}, "began 13m, ended 64m"},
		"twice":                         {[]stretch{{0.9, 3 * time.Minute}, {0, time.Hour}, {0.5, 5 * time.Minute}, {0, time.Hour}}, "began 13m, ended 64m, began 78m"},
		"not long enough":               {[]stretch{{0.9, 3 * time.Minute}, {0, 9 * time.Minute}, {0.9, time.Minute}, {0, 9 * time.Minute}, {0.5, time.Minute}}, ""},
		"a blip while it is idle":       {[]stretch{{0.9, 3 * time.Minute}, {0, time.Hour}, {0.5, 10 * time.Second}, {0, time.Hour}}, "began 13m"},
		"little is not nothing":         {[]stretch{{0.9, 3 * time.Minute}, {0.05, time.Hour}}, ""},
		"little does not bring it back": {[]stretch{{0.9, 3 * time.Minute}, {0, time.Hour}, {0.05, time.Hour}}, "began 13m"},
		"used for seconds":              {[]stretch{{0.9, 30 * time.Second}, {0, time.Hour}}, ""},
		"it is not a number":            {[]stretch{{0.9, 3 * time.Minute}, {math.NaN(), time.Hour}}, ""},
	} {
		var i anomaly.Idle
		var got []string
		at := start
		for _, s := range c.has {
			for end := at.Add(s.long); at.Before(end); {
				at = at.Add(10 * time.Second)
				if change := i.Sample(at, s.busy); change != anomaly.None {
					got = append(got, string(change)+" "+strings.TrimSuffix(at.Sub(start).Truncate(time.Minute).String(), "0s"))
				}
				i = kept(t, i)
			}
		}
		for k, g := range got {
			got[k] = strings.Replace(strings.Replace(g, "1h4m", "64m", 1), "1h18m", "78m", 1)
		}
		if s := strings.Join(got, ", "); s != c.want {
			t.Errorf("%s: %q, want %q", name, s, c.want)
		}
	}
}

// kept is a detector that was kept and taken up again.
func kept(tb testing.TB, i anomaly.Idle) (again anomaly.Idle) {
	tb.Helper()
	b, err := json.Marshal(i)
	if err == nil {
		err = json.Unmarshal(b, &again)
	}
	if err != nil {
		tb.Fatal(err)
	}
	return again
}

// A gap in the samples is neither work nor idleness, and ends nothing.
func TestIdleGap(t *testing.T) {
	i := anomaly.Idle{Last: start, Used: time.Hour, Since: start}
	if c := i.Sample(start.Add(time.Hour), 0); c != anomaly.None || i.Told {
		t.Errorf("%q after a gap", c)
	}
	told := anomaly.Idle{Last: start, Used: time.Hour, Since: start, Told: true}
	if c := told.Sample(start.Add(time.Hour), 0.9); c != anomaly.None || !told.Told {
		t.Errorf("%q after a gap", c)
	}
	if told.End() != anomaly.Ended || told.End() != anomaly.None {
		t.Error("it does not end once")
	}
}

// What is warned of counts from the warning, or from the last busier moment, and only
// as long as somebody looks.
func TestWarned(t *testing.T) {
	var i anomaly.Idle
	at := start
	look := func(busy float64, long time.Duration) time.Time {
		for end := at.Add(long); at.Before(end); {
			at = at.Add(10 * time.Second)
			i.Sample(at, busy)
			i = kept(t, i)
		}
		return i.Warned(at)
	}
	if got := look(0.9, 3*time.Minute); !got.IsZero() {
		t.Errorf("busy, and warned at %s", got)
	}
	if got := look(0, 9*time.Minute); !got.IsZero() {
		t.Errorf("warned at %s", got.Sub(start))
	}
	if got := look(0, time.Hour).Sub(start); got != 13*time.Minute+10*time.Second {
		t.Errorf("warned at %s", got)
	}
	if got := look(0.05, 10*time.Second); !got.IsZero() {
		t.Errorf("still idle since %s", got)
	}
	back := at
	if got := look(0, time.Minute); got.Sub(back) != 10*time.Second {
		t.Errorf("idle again since %s", got.Sub(back))
	}
	if got := i.Warned(at.Add(3 * time.Minute)); !got.IsZero() {
		t.Errorf("nobody looked, and idle since %s", got)
	}
}

// Whatever the samples: what begins ends before it begins again, and there is no
// more than one beginning in the time that one takes.
func TestNoStorm(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var i anomaly.Idle
		at, began, last := start, 0, anomaly.Ended
		for range rapid.IntRange(0, 400).Draw(t, "samples") {
			at = at.Add(time.Duration(rapid.IntRange(1, 200).Draw(t, "seconds")) * time.Second)
			busy := rapid.SampledFrom([]float64{0, 0.01, 0.05, 0.3, 1}).Draw(t, "busy")
			c := i.Sample(at, busy)
			if c == anomaly.None {
				continue
			}
			if c == last {
				t.Fatalf("%s twice", c)
			}
			last = c
			if c == anomaly.Began {
				began++
			}
		}
		if most := int(at.Sub(start)/anomaly.IdleFor) + 1; began > most {
			t.Fatalf("%d beginnings in %s", began, at.Sub(start))
		}
	})
}

// pairs are attempts, by turns on n1, at a ratio to the others, and on n2.
func pairs(n int, ratio func(i int) float64) (all []anomaly.Ran) {
	for i := range n {
		at := start.Add(time.Duration(i) * time.Hour)
		all = append(all,
			anomaly.Ran{Kind: "k", Node: "n1", Rate: 10 * ratio(i), At: at},
			anomaly.Ran{Kind: "k", Node: "n2", Rate: 10, At: at.Add(time.Minute)})
	}
	return all
}

func TestSlow(t *testing.T) {
	always := func(r float64) func(int) float64 { return func(int) float64 { return r } }
	for name, c := range map[string]struct {
		all  []anomaly.Ran
		slow bool
		want anomaly.Evidence
	}{
		"nothing":               {nil, false, anomaly.Evidence{P: 1}},
		"as fast":               {pairs(20, always(1)), false, anomaly.Evidence{Pairs: 20, Median: 1, P: 1}},
		"slower":                {pairs(8, always(0.8)), true, anomaly.Evidence{Pairs: 8, Slower: 8, Median: 0.8, P: 1.0 / 256}},
		"too few":               {pairs(7, always(0.5)), false, anomaly.Evidence{Pairs: 7, Slower: 7, Median: 0.5, P: 1.0 / 128}},
		"hardly slower":         {pairs(20, always(0.95)), false, anomaly.Evidence{Pairs: 20, Slower: 20, Median: 0.95, P: math.Pow(0.5, 20)}},
		"faster":                {pairs(20, always(2)), false, anomaly.Evidence{Pairs: 20, Median: 2, P: 1}},
		"only the newest":       {pairs(40, func(i int) float64 { return []float64{0.5, 1}[i/20] }), false, anomaly.Evidence{Pairs: 20, Median: 1, P: 1}},
		"as often as not":       {pairs(20, func(i int) float64 { return []float64{0.8, 1.2}[i%2] }), false, anomaly.Evidence{Pairs: 20, Slower: 10, Median: math.Sqrt(0.96), P: 0.5880985260009766}},
		"other work is no pair": {slices.DeleteFunc(pairs(20, always(0.5)), func(r anomaly.Ran) bool { return r.Node == "n2" }), false, anomaly.Evidence{P: 1}},
		"impossible rates":      {pairs(20, func(i int) float64 { return []float64{math.NaN(), math.Inf(1), 0, -1}[i%4] }), false, anomaly.Evidence{P: 1}},
	} {
		got := anomaly.Compare("n1", c.all, time.Time{})
		same := got.Pairs == c.want.Pairs && got.Slower == c.want.Slower && math.Abs(got.Median-c.want.Median) < 1e-9 && math.Abs(got.P-c.want.P) < 1e-9
		if !same || got.Slow(2) != c.slow {
			t.Errorf("%s: %+v, slow %t; want %+v, %t", name, got, got.Slow(2), c.want, c.slow)
		}
	}
	if e := anomaly.Compare("n1", pairs(8, always(0.8)), time.Time{}); e.Slow(3) {
		t.Error("a pool of three nodes takes more")
	}
	mended := append(pairs(8, always(0.8)), pairs(16, always(1))...)
	if e := anomaly.Compare("n1", mended, start.Add(7*time.Hour)); !e.Fast() || e.Pairs != 8 {
		t.Errorf("%+v since it was mended", e)
	}
}

// TestLikeItsPeers: of pools in which all nodes are alike, few are ever told of.
// Seeded.
func TestLikeItsPeers(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	told := 0
	for range 300 {
		var all []anomaly.Ran
		slow := false
		for i := range 60 {
			node := []string{"n1", "n2", "n3", "n4"}[i%4]
			all = append(all, anomaly.Ran{Kind: "k", Node: node, Rate: math.Exp(0.15 * r.NormFloat64()), At: start.Add(time.Duration(i) * time.Minute)})
			slow = slow || anomaly.Compare(node, all, time.Time{}).Slow(4)
		}
		if slow {
			told++
		}
	}
	if told > 9 { // 3 %
		t.Errorf("%d of 300 pools have a slow node", told)
	}
}

// The order in which attempts are listed is no matter.
func TestCompareIsDeterministic(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var all []anomaly.Ran
		for range rapid.IntRange(0, 60).Draw(t, "n") {
			all = append(all, anomaly.Ran{
				Kind: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "kind"), Node: rapid.SampledFrom([]string{"n1", "n2", "n3"}).Draw(t, "node"),
				Rate: rapid.Float64Range(0.1, 10).Draw(t, "rate"), At: start.Add(time.Duration(rapid.IntRange(0, 100).Draw(t, "at")) * time.Hour),
			})
		}
		e := anomaly.Compare("n1", all, start)
		if got := anomaly.Compare("n1", rapid.Permutation(all).Draw(t, "order"), start); got != e {
			t.Fatalf("%+v, then %+v", e, got)
		}
		if e.Slower > e.Pairs || !(e.P >= 0 && e.P <= 1) || e.Slow(3) && e.Fast() {
			t.Fatalf("%+v", e)
		}
	})
}
