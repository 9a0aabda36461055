package sizing_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/scheduler/goodput"
	"github.com/falaj-ml/falaj/internal/training/sizing"
)

const (
	a100 = "NVIDIA A100-SXM4-80GB"
	t4   = "Tesla T4"
	gib  = float64(resource.GiB)
)

func kind(family string) sizing.Kind { return sizing.Kind{Family: family, Unit: sizing.Steps} }

func ran(family, device string, rates ...float64) (all []sizing.Profile) {
	for _, r := range rates {
		all = append(all, sizing.Profile{Kind: kind(family), Pool: "p", Device: device, Workers: 1, Rate: r})
	}
	return all
}

func join(all ...[]sizing.Profile) (out []sizing.Profile) {
	for _, a := range all {
		out = append(out, a...)
	}
	return out
}

// asked is of a family on an A100 at 30 an hour that might go to a T4 at 9.
func asked(profiles []sizing.Profile) sizing.Question {
	return sizing.Question{
		Kind: kind("mine"), Now: sizing.Place{Pool: "big", Device: a100, Workers: 1, Hourly: 30, Memory: 80 * gib},
		Memory: 6 * gib, Busy: 0.22, Seconds: 3600, Next: 10, Profiles: profiles,
		Places: []sizing.Place{{Pool: "small", Device: t4, Workers: 1, Hourly: 9, Memory: 16 * gib}},
	}
}

func TestAdvise(t *testing.T) {
	five := join(ran("a", a100, 10), ran("a", t4, 5), ran("b", a100, 30), ran("b", t4, 14), ran("c", a100, 1), ran("c", t4, 0.52),
		ran("d", a100, 7), ran("d", t4, 3.5), ran("e", a100, 8), ran("e", t4, 4.2))
	for _, c := range []struct {
		name string
		q    sizing.Question
		want string // of the option and the sentence's end; empty is silence
	}{
		{"nothing is known", asked(nil), ""},
		{"only here", asked(ran("mine", a100, 10, 11)), ""},
		{"one attempt each", asked(join(ran("mine", a100, 11), ran("mine", t4, 10))), "a T4 would take 1.1x the time at 0.3x the price (measured in 1 attempt)"},
		{"four there", asked(join(ran("mine", a100, 11, 11.1), ran("mine", t4, 10, 10.1, 9.9, 10))), "a T4 would take 1.1x the time at 0.3x the price (measured in 4 attempts)"},
		{"measured is better than like", asked(join(five, ran("mine", a100, 11), ran("mine", t4, 10))), "(measured in 1 attempt)"},
		{"like jobs", func() sizing.Question {
			q := asked(join(five, ran("mine", a100, 11)))
			q.Places[0].Hourly = 6
			return q
		}(), "a T4 would take 2x the time at 0.4x the price (from 5 like jobs)"},
		{"like jobs that leave it open", asked(join(five, ran("mine", a100, 11))), "10 minutes on a T4 would show whether it is cheaper (from 5 like jobs)"},
		{"one like job is too little to say it is cheaper", asked(join(ran("a", a100, 10), ran("a", t4, 5), ran("mine", a100, 11))), "10 minutes on a T4 would show whether it is cheaper (from 1 like job)"},
		{"another setting is other work", func() sizing.Question {
			q := asked(join(ran("mine", a100, 11), ran("mine", t4, 10)))
			q.Setting = "batch 64"
			return q
		}(), ""},
		{"too little memory", func() sizing.Question {
			q := asked(join(ran("mine", a100, 11), ran("mine", t4, 10)))
			q.Memory = 17 * gib
			return q
		}(), ""},
		{"a bound", func() sizing.Question {
			q := asked(ran("mine", a100, 11))
			q.Precision, q.Busy = "fp16", 0.1
			return q
		}(), "a T4 would take at most 1.5x the time and 0.5x the price (a bound from published peaks)"},
		{"no bound for a precision that is not there", func() sizing.Question {
			q := asked(ran("mine", a100, 11))
			q.Precision, q.Busy = "bf16", 0.1
			return q
		}(), ""},
		{"no bound without a precision", asked(ran("mine", a100, 11)), ""},
		{"no memory known, none like", func() sizing.Question {
			q := asked(join(five, ran("mine", a100, 11)))
			q.Places[0].Memory = 0
			return q
		}(), ""},
		{"faster", func() sizing.Question {
			q := asked(join(ran("mine", a100, 11), ran("mine", "NVIDIA H100 80GB HBM3", 22)))
			q.Places = []sizing.Place{{Pool: "new", Device: "NVIDIA H100 80GB HBM3", Workers: 1, Hourly: 60, Memory: 80 * gib}}
			return q
		}(), "an H100 would take 0.5x the time at 1x the price (measured in 1 attempt)"},
		{"no price", func() sizing.Question {
			q := asked(join(ran("mine", a100, 11), ran("mine", t4, 22)))
			q.Now.Hourly = 0
			return q
		}(), "a T4 would take 0.5x the time (measured in 1 attempt)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, err := sizing.Advise(c.q)
			if err != nil {
				t.Fatal(err)
			}
			got := sizing.Sentence(sizing.Use{}, sizing.Ask{}, a)
			if c.want == "" && got != "" || !strings.HasSuffix(got, c.want) {
				t.Errorf("%q, want %q\n%+v", got, c.want, a.Options)
			}
		})
	}
}

// The sentence of the issue, word for word.
func TestSentence(t *testing.T) {
	gpu := &sizing.Accelerators{Device: a100, Count: 1, Busy: 0.22, Memory: 6 * resource.GiB, Has: 80 * resource.GiB}
	there := sizing.Answer{Options: []sizing.Option{{
		Place: sizing.Place{Device: t4}, Time: sizing.Ratio{Is: 1.1}, Price: &sizing.Ratio{Is: 0.33}, Known: sizing.Measured, Attempts: 4,
	}}}
	for _, c := range []struct {
		use  sizing.Use
		ask  sizing.Ask
		a    sizing.Answer
		want string
	}{
		{sizing.Use{Accelerators: gpu}, sizing.Ask{}, there, "used 22 % of an A100 and 6 of 80 GiB; a T4 would take 1.1x the time at 0.3x the price (measured in 4 attempts)"},
		{
			sizing.Use{Cores: 2, AskedCores: 16, Memory: 5 * resource.GiB, Asked: 64 * resource.GiB},
			sizing.Ask{Cores: 3, Memory: 7 * resource.GiB},
			sizing.Answer{},
			"used 2 of 16 cores and 5 of 64 GiB; 3 cores and 7 GiB would do",
		},
		{sizing.Use{Accelerators: &sizing.Accelerators{Device: "NVIDIA L4", Count: 2, Busy: 0.5, Memory: resource.GiB}}, sizing.Ask{}, sizing.Answer{}, "used 50 % of 2 L4 and 1 GiB of each"},
		{sizing.Use{}, sizing.Ask{}, sizing.Answer{}, ""},
	} {
		if got := sizing.Sentence(c.use, c.ask, c.a); got != c.want {
			t.Errorf("%q\nwant %q", got, c.want)
		}
	}
	for device, want := range map[string]string{a100: "an A100", t4: "a T4", "NVIDIA H100 PCIe": "an H100", "NVIDIA L40S": "an L40S", "AMD Instinct MI300X": "an MI300X", "AMD EPYC 9654": "an AMD EPYC 9654", "Xeon": "a Xeon", "": "a "} {
		if got := sizing.Article(device); got != want {
			t.Errorf("%s is %q, want %q", device, got, want)
		}
	}
}

func TestLess(t *testing.T) {
	use := func(peak float64, memory resource.Bytes) sizing.Use {
		return sizing.Use{PeakCores: peak, AskedCores: 16, Memory: memory, Asked: 64 * resource.GiB}
	}
	for _, c := range []struct {
		all  []sizing.Use
		want sizing.Ask
	}{
		{nil, sizing.Ask{}},
		{[]sizing.Use{use(2, 5*resource.GiB)}, sizing.Ask{Cores: 3, Memory: 7 * resource.GiB}},
		{[]sizing.Use{use(9, 5*resource.GiB), use(2, 2*resource.GiB)}, sizing.Ask{Cores: 10, Memory: 7 * resource.GiB}}, // of all, the highest
		{[]sizing.Use{use(15, 60*resource.GiB)}, sizing.Ask{}},
		{[]sizing.Use{use(0, 100*resource.MiB)}, sizing.Ask{Memory: 256 * resource.MiB}}, // cores were not sampled
	} {
		if got := sizing.Less(c.all); got != c.want {
			t.Errorf("%+v is %+v, want %+v", c.all, got, c.want)
		}
	}
}

func TestRefusesWhatCannotBe(t *testing.T) {
	for name, edit := range map[string]func(*sizing.Question){
		"NaN rate":         func(q *sizing.Question) { q.Profiles[0].Rate = math.NaN() },
		"infinite rate":    func(q *sizing.Question) { q.Profiles[0].Rate = math.Inf(1) },
		"negative rate":    func(q *sizing.Question) { q.Profiles[0].Rate = -1 },
		"negative price":   func(q *sizing.Question) { q.Places[0].Hourly = -1 },
		"NaN price":        func(q *sizing.Question) { q.Now.Hourly = math.NaN() },
		"busy over 1":      func(q *sizing.Question) { q.Busy = 22 },
		"infinite seconds": func(q *sizing.Question) { q.Seconds = math.Inf(1) },
		"negative workers": func(q *sizing.Question) { q.Places[0].Workers = -3 },
		"communication":    func(q *sizing.Question) { q.Profiles[0].Communication = 1.5 },
	} {
		q := asked(ran("mine", a100, 10))
		edit(&q)
		if _, err := sizing.Advise(q); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := (sizing.Use{Cores: math.NaN()}).Check(); !fault.Is(err, fault.Invalid) {
		t.Errorf("use: %v", err)
	}
}

// With two attempts on each side the interval is the textbook's: x̄ − ȳ ± t₂ s √1.
func TestInterval(t *testing.T) {
	a, err := sizing.Advise(asked(join(ran("mine", a100, math.Exp(3.1), math.Exp(2.9)), ran("mine", t4, math.Exp(1.2), math.Exp(0.8)))))
	if err != nil || len(a.Options) != 1 {
		t.Fatalf("%+v, %v", a, err)
	}
	half := 4.302652729911275 * math.Sqrt((0.02+0.08)/2)
	if got := a.Options[0].Time; !near(got.Is, math.Exp(2)) || !near(got.Low, math.Exp(2-half)) || !near(got.High, math.Exp(2+half)) {
		t.Errorf("%+v, want e^(2 ± %g)", got, half)
	}
}

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-9*max(math.Abs(a), math.Abs(b)) }

// TestCoverage: of families whose rates follow the model, the intervals from like
// jobs hold the true ratio as often as they promise. Seeded.
func TestCoverage(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 1))
	held, asks := 0, 0
	for range 400 {
		devices := []float64{r.NormFloat64(), r.NormFloat64(), r.NormFloat64()}
		var all []sizing.Profile
		for f := range 4 {
			base := r.NormFloat64()
			for d, effect := range devices {
				if f == d { // not every family ran everywhere
					continue
				}
				all = append(all, ran(fmt.Sprint("f", f), fmt.Sprint("d", d), math.Exp(base+effect+0.3*r.NormFloat64()))...)
			}
		}
		here, there := 0.3*r.NormFloat64(), devices[1]-devices[0]+0.3*r.NormFloat64()
		all = append(all, ran("mine", "d0", math.Exp(here))...)
		a, err := sizing.Advise(sizing.Question{
			Kind: kind("mine"), Now: sizing.Place{Device: "d0", Workers: 1}, Places: []sizing.Place{{Device: "d1", Workers: 1}}, Profiles: all,
		})
		if err != nil || len(a.Options) != 1 {
			t.Fatalf("%+v, %v", a, err)
		}
		asks++
		if o := a.Options[0]; o.Time.Low <= math.Exp(here-there) && math.Exp(here-there) <= o.Time.High {
			held++
		}
	}
	if share := float64(held) / float64(asks); share < 0.92 || share > 0.995 {
		t.Errorf("%.1f %% of the intervals hold the truth", 100*share)
	}
}

// Twice the workers of a model that scales with a known synchronisation.
func TestScaled(t *testing.T) {
	k := sizing.Kind{Family: "mine", Unit: sizing.Examples, Setting: "batch 64"}
	step := func(workers int) (seconds, sync float64) {
		if workers == 1 {
			return 0.01 + 0.001*64, 0
		}
		return 0.01 + 0.001*float64(64/workers) + 0.02, 0.02
	}
	var all []sizing.Profile
	for _, n := range []int{1, 2} {
		s, sync := step(n)
		all = append(all, sizing.Profile{Kind: k, Device: a100, Workers: n, Batch: 64, Rate: 64 / s, Communication: sync / s, Seen: true})
	}
	q := sizing.Question{Kind: k, Now: sizing.Place{Device: a100, Workers: 2, Hourly: 2}, Batch: 64, Profiles: all, Places: []sizing.Place{{Device: a100, Workers: 4, Hourly: 4}}}
	a, err := sizing.Advise(q)
	if err != nil || len(a.Options) != 1 {
		t.Fatalf("%+v, %v", a, err)
	}
	now, _ := step(2)
	then := 0.01 + 0.001*16 + 1.1*0.02 // the two nodes that it takes synchronise a tenth slower, until they are seen
	if o := a.Options[0]; o.Known != sizing.Fitted || math.Abs(o.Time.Is-then/now) > 1e-6 || o.Attempts != 2 {
		t.Errorf("%+v, want %g", o, then/now)
	}
	q.Profiles[1].Seen = false // nobody knows what part of its step was communication
	if a, err = sizing.Advise(q); err != nil || len(a.Options) != 0 {
		t.Errorf("%+v, %v", a, err)
	}
	q.Profiles[1].Seen, q.Profiles[1].Communication = true, 1 // a step of nothing else is none
	if a, err = sizing.Advise(q); err != nil || len(a.Options) != 0 {
		t.Errorf("%+v, %v", a, err)
	}
}

func TestExplore(t *testing.T) {
	five := ran("mine", a100, 10)
	for f := range 5 {
		five = append(five, join(ran(fmt.Sprint("f", f), a100, 10), ran(fmt.Sprint("f", f), t4, 5))...)
	}
	q := asked(five)
	a, err := sizing.Advise(q)
	if err != nil || len(a.Explore) != 1 {
		t.Fatalf("%+v, %v", a, err)
	}
	// Ten runs at 30 for an hour each, at about 0.6 of the price: about 120 saved.
	if e := a.Explore[0]; e.Minutes != 10 || !near(e.Cost, 9.0/6) || e.Saving < 90 || e.Saving > 150 || e.Runs != 10 {
		t.Errorf("%+v", e)
	}
	for name, edit := range map[string]func(*sizing.Question){
		"no run to come":            func(q *sizing.Question) { q.Next = 0 },
		"hardly a run to come":      func(q *sizing.Question) { q.Next = 0.01 },
		"no price":                  func(q *sizing.Question) { q.Now.Hourly = 0 },
		"measured already":          func(q *sizing.Question) { q.Profiles = append(q.Profiles, ran("mine", t4, 5)...) },
		"ten times as dear as here": func(q *sizing.Question) { q.Places[0].Hourly = 3000 },
	} {
		q := asked(append([]sizing.Profile{}, five...))
		edit(&q)
		if a, err := sizing.Advise(q); err != nil || len(a.Explore) != 0 {
			t.Errorf("%s: %+v, %v", name, a.Explore, err)
		}
	}
}

// possible says whether the model of steps takes one of 64 examples.
func possible(rate float64) bool {
	return goodput.Observation{Nodes: 1, Replicas: 1, Local: 64, Step: 64 / rate}.Possible()
}

// Whatever is measured: no number is impossible, intervals hold their estimate, the
// order of profiles is no matter, and twice all rates or twice all prices change no
// ratio.
func TestProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		devices := []string{a100, t4, "NVIDIA L4", "x"}
		var all []sizing.Profile
		for range rapid.IntRange(0, 30).Draw(t, "profiles") {
			all = append(all, sizing.Profile{
				Kind:   sizing.Kind{Family: rapid.SampledFrom([]string{"mine", "a", "b", "c"}).Draw(t, "family"), Unit: sizing.Examples},
				Device: rapid.SampledFrom(devices).Draw(t, "device"), Workers: rapid.IntRange(1, 4).Draw(t, "workers"), Batch: 64, Seen: rapid.Bool().Draw(t, "seen"),
				Rate: rapid.Float64Range(1e-9, 1e9).Draw(t, "rate"), Communication: rapid.Float64Range(0, 1).Draw(t, "communication"),
			})
		}
		q := sizing.Question{
			Kind: sizing.Kind{Family: "mine", Unit: sizing.Examples}, Batch: 64, Precision: "fp16", Busy: rapid.Float64Range(0, 1).Draw(t, "busy"),
			Now:     sizing.Place{Pool: "now", Device: a100, Workers: rapid.IntRange(1, 4).Draw(t, "now"), Hourly: rapid.Float64Range(0, 100).Draw(t, "price")},
			Seconds: rapid.Float64Range(0, 1e6).Draw(t, "seconds"), Next: rapid.Float64Range(0, 1000).Draw(t, "next"), Profiles: all,
		}
		for i, d := range devices {
			for n := 1; n <= 4; n++ {
				q.Places = append(q.Places, sizing.Place{Pool: fmt.Sprint("p", i), Device: d, Workers: n, Hourly: rapid.Float64Range(0, 100).Draw(t, "hourly"), Memory: 16 * gib})
			}
		}
		first, err := sizing.Advise(q)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range first.Options {
			for _, r := range []*sizing.Ratio{&o.Time, o.Price} {
				if r == nil {
					continue
				}
				if !(r.Is >= 0) || math.IsInf(r.Is, 0) || r.High != 0 && (r.Low > r.Is*(1+1e-9) || r.High < r.Is*(1-1e-9)) {
					t.Fatalf("%+v: %+v", o, *r)
				}
			}
		}
		for _, e := range first.Explore {
			if !(e.Saving > e.Cost) || math.IsInf(e.Saving, 0) {
				t.Fatalf("%+v", e)
			}
		}
		for _, p := range all {
			if possible(p.Rate) != possible(2*p.Rate) {
				return // twice as fast it counts, and as it is it does not
			}
		}
		other := q
		other.Profiles = rapid.Permutation(all).Draw(t, "order")
		for i := range other.Profiles {
			other.Profiles[i].Rate *= 2
		}
		other.Places = append([]sizing.Place{}, q.Places...)
		for i := range other.Places {
			other.Places[i].Hourly *= 2
		}
		other.Now.Hourly *= 2
		second, err := sizing.Advise(other)
		if err != nil || len(first.Options) != len(second.Options) {
			t.Fatalf("%d options, then %d, %v", len(first.Options), len(second.Options), err)
		}
		of := map[string]sizing.Option{}
		for _, o := range second.Options {
			of[fmt.Sprint(o.Pool, o.Workers)] = o
		}
		for _, x := range first.Options {
			y := of[fmt.Sprint(x.Pool, x.Workers)]
			if x.Known != y.Known || x.Known != sizing.Fitted && math.Abs(math.Log(x.Time.Is/y.Time.Is)) > 1e-6 {
				t.Fatalf("%+v\nthen %+v", x, y)
			}
		}
	})
}
