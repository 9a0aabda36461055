package cost_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/compute/cost"
	"github.com/falaj-ml/falaj/internal/fault"
)

func TestValidate(t *testing.T) {
	rented := func(r cost.Rented) cost.Price { return cost.Price{Rented: &r} }
	owned := func(edit func(*cost.Owned)) cost.Price {
		o := cost.Owned{Purchase: 100, Lifetime: 5}
		edit(&o)
		return cost.Price{Owned: &o}
	}
	for _, c := range []struct {
		name  string
		price cost.Price
		want  string // of the error; empty is none
	}{
		{"rented", rented(cost.Rented{OnDemand: 2}), ""},
		{"owned", owned(func(*cost.Owned) {}), ""},
		{"its currency", cost.Price{Currency: "AED", Rented: &cost.Rented{}}, ""},
		{"another currency", cost.Price{Currency: "EUR", Rented: &cost.Rented{}}, "cost is in EUR, but this installation uses AED"},
		{"unknown currency", cost.Price{Currency: "ZZZ", Rented: &cost.Rented{}}, `"ZZZ" is not a currency`},
		{"neither", cost.Price{}, "either rented or owned"},
		{"both", cost.Price{Rented: &cost.Rented{}, Owned: &cost.Owned{}}, "either rented or owned"},
		{"negative", rented(cost.Rented{OnDemand: -1}), "on_demand is -1"},
		{"not a number", rented(cost.Rented{Spot: math.NaN()}), "spot is NaN"},
		{"infinite", owned(func(o *cost.Owned) { o.Purchase = math.Inf(1) }), "purchase is +Inf"},
		{"billing", rented(cost.Rented{Billing: "later"}), `billing "later" does not exist`},
		{"no lifetime", owned(func(o *cost.Owned) { o.Lifetime = 0 }), "lifetime_years is 0"},
		{"lifetime not a number", owned(func(o *cost.Owned) { o.Lifetime = math.NaN() }), "lifetime_years is NaN"},
		{"residual", owned(func(o *cost.Owned) { o.Residual = 101 }), "residual is more than purchase"},
		{"pue", owned(func(o *cost.Owned) { o.PUE = 0.5 }), "pue is 0.5"},
		{"utilisation", owned(func(o *cost.Owned) { o.Utilisation = 70 }), "utilisation is 70"},
		{"zone", rented(cost.Rented{Zone: "Mars/Base"}), "time_zone"},
		{"the machine's zone", rented(cost.Rented{Zone: "../../etc/passwd"}), "time_zone"},
		{"time", rented(cost.Rented{Times: []cost.Period{{From: "25:00"}}}), `times[0]: "25:00" is not a time of day`},
		{"no time", rented(cost.Rented{Times: []cost.Period{{From: "08:00", To: "08:00"}}}), "both 08:00"},
		{"day", rented(cost.Rented{Times: []cost.Period{{Days: []string{"someday"}}}}), `"someday" is not a day`},
		{"price of a time", owned(func(o *cost.Owned) { o.Tariff.Times = []cost.Period{{Price: math.NaN()}} }), "price is NaN"},
		{"many times", rented(cost.Rented{Times: make([]cost.Period, 51)}), "at most 50"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := c.price.Validate("AED")
			if c.want == "" && err != nil {
				t.Fatal(err)
			}
			if c.want != "" && (!fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), c.want)) {
				t.Fatalf("error %v, want %q", err, c.want)
			}
		})
	}
}

func rate(t *testing.T, p cost.Price, watts float64) cost.Rate {
	t.Helper()
	if err := p.Validate("AED"); err != nil {
		t.Fatal(err)
	}
	r, err := p.Rate(watts)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func instant(t *testing.T, text string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-9*max(1, math.Abs(a), math.Abs(b)) }

// 1 by night, 3 on weekdays from 8 to 20, in a zone with summer time.
var berlin = cost.Price{Rented: &cost.Rented{OnDemand: 1, Zone: "Europe/Berlin", Times: []cost.Period{
	{Days: []string{"mon", "tue", "wed", "thu", "fri"}, From: "08:00", To: "20:00", Price: 3},
	{Days: []string{"sat"}, From: "22:00", To: "06:00", Price: 0.5},
	{Days: []string{"sun"}, From: "02:30", To: "03:30", Price: 10},
}}}

func TestPriceOfTheTime(t *testing.T) {
	r := rate(t, berlin, 0)
	for _, c := range []struct {
		at   string
		want float64
	}{
		{"2026-11-23T07:00:00Z", 3}, // Monday 08:00
		{"2026-11-23T06:59:59Z", 1},
		{"2026-11-23T18:59:59Z", 3},
		{"2026-11-23T19:00:00Z", 1},
		{"2026-11-21T22:00:00Z", 0.5}, // Saturday 23:00
		{"2026-11-22T04:00:00Z", 0.5}, // Sunday 05:00, begun on Saturday
		{"2026-11-22T05:00:00Z", 1},
		{"2026-07-20T06:00:00Z", 3}, // Monday 08:00 in summer
	} {
		if got := r.At(instant(t, c.at)); got != c.want {
			t.Errorf("%s costs %g, want %g", c.at, got, c.want)
		}
	}
}

func TestClocksPutForwardAndBack(t *testing.T) {
	tariff := cost.Price{Rented: &cost.Rented{OnDemand: 1, Zone: "Europe/Berlin", Times: []cost.Period{{From: "02:30", To: "03:30", Price: 10}}}}
	r := rate(t, tariff, 0)
	for _, c := range []struct {
		name, from, to string
		want           float64
	}{
		// 02:00 becomes 03:00: the dear time is 03:00 to 03:30 only.
		{"forward", "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z", 23 + 9*0.5},
		// 03:00 becomes 02:00: 02:30 to 03:00 comes twice.
		{"back", "2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z", 25 + 9*1.5},
		{"where Go's year has 365 days", "2040-12-30T23:00:00Z", "2041-01-01T23:00:00Z", 48 + 2*9},
		{"an ordinary day", "2026-10-23T22:00:00Z", "2026-10-24T22:00:00Z", 24 + 9},
		{"empty", "2026-10-24T22:00:00Z", "2026-10-24T22:00:00Z", 0},
		{"clock went back", "2026-10-24T22:00:00Z", "2026-10-24T21:00:00Z", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := r.Over(instant(t, c.from), instant(t, c.to)); !near(got, c.want) {
				t.Errorf("costs %g, want %g", got, c.want)
			}
		})
	}
}

func TestOwned(t *testing.T) {
	// A node of 876,000 over 5 years is 20 an hour, with 8,760 a year for the rest 1
	// more; at 70 % use a busy hour carries 30. 10 kW with a PUE of 1.5 at 0.4 are 6.
	p := cost.Price{Owned: &cost.Owned{
		Purchase: 900_000, Residual: 24_000, Lifetime: 5, Cooling: 760, Staff: 5000, Rack: 3000, PUE: 1.5, Utilisation: 0.7, Tariff: cost.Tariff{PerKWh: 0.4},
	}}
	r := rate(t, p, 10_000)
	from := instant(t, "2026-11-22T00:00:00Z")
	if got := r.At(from); !near(got, 36) {
		t.Errorf("a busy hour costs %g, want 36", got)
	}
	if got := r.Idle(from, from.Add(2*time.Hour)); !near(got, 42) {
		t.Errorf("two idle hours cost %g, want 42", got)
	}
	if got := r.Energy(10_000, 2*time.Hour); !near(got, 30) {
		t.Errorf("energy %g kWh, want 30", got)
	}
	// Used as expected for its life, what is charged is what it cost.
	hours := 5 * cost.HoursPerYear
	charged := 0.7 * hours * r.At(from)
	if paid := 900_000 - 24_000 + 5*8760.0 + 0.7*hours*6; !near(charged, paid) {
		t.Errorf("charged %g, paid %g", charged, paid)
	}
}

func TestHistory(t *testing.T) {
	day := instant(t, "2026-11-22T00:00:00Z")
	h := []cost.Dated{{Since: day, Rate: cost.Flat(1)}, {Since: day.Add(10 * time.Hour), Rate: cost.Flat(2)}, {Since: day.Add(20 * time.Hour), Rate: cost.Flat(0)}}
	for _, c := range []struct{ from, to, want float64 }{
		{0, 24, 30}, {-5, 5, 10}, {9, 11, 3}, {21, 30, 0}, {12, 12, 0}, {12, 3, 0},
	} {
		at := func(hours float64) time.Time { return day.Add(time.Duration(hours * float64(time.Hour))) }
		if got := cost.Over(h, at(c.from), at(c.to)); !near(got, c.want) {
			t.Errorf("%g to %g costs %g, want %g", c.from, c.to, got, c.want)
		}
	}
	if got := cost.Over(nil, day, day.Add(time.Hour)); got != 0 {
		t.Errorf("without prices it costs %g", got)
	}
}

// An interval costs what its parts cost, never less than nothing, and nothing when
// it is empty: whatever the times, the zone and its summer time.
func TestIntervalsAdd(t *testing.T) {
	zones := []string{"", "UTC", "Asia/Dubai", "Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe", "Asia/Kathmandu", "Pacific/Apia"}
	rapid.Check(t, func(t *rapid.T) {
		var periods []cost.Period
		for range rapid.IntRange(0, 5).Draw(t, "periods") {
			from, to := rapid.IntRange(0, 1439).Draw(t, "from"), rapid.IntRange(0, 1439).Draw(t, "to")
			if from == to {
				continue
			}
			clock := func(m int) string { return time.Date(1, 1, 1, 0, m, 0, 0, time.UTC).Format("15:04") }
			periods = append(periods, cost.Period{
				Days: rapid.SliceOfN(rapid.SampledFrom([]string{"mon", "tue", "wed", "thu", "fri", "sat", "sun"}), 0, 3).Draw(t, "days"),
				From: clock(from), To: clock(to), Price: rapid.Float64Range(0, 100).Draw(t, "price"),
			})
		}
		zone := rapid.SampledFrom(zones).Draw(t, "zone")
		base := rapid.Float64Range(0, 100).Draw(t, "base")
		p := cost.Price{Rented: &cost.Rented{OnDemand: base, Zone: zone, Times: periods}}
		if rapid.Bool().Draw(t, "owned") {
			p = cost.Price{Owned: &cost.Owned{Purchase: 1e6, Lifetime: 5, PUE: 1.3, Tariff: cost.Tariff{PerKWh: base, Zone: zone, Times: periods}}}
		}
		if err := p.Validate("AED"); err != nil {
			t.Fatal(err)
		}
		r, err := p.Rate(700)
		if err != nil {
			t.Fatal(err)
		}
		a := time.Unix(rapid.Int64Range(0, 4e9).Draw(t, "a"), rapid.Int64Range(0, 999_999_999).Draw(t, "ns"))
		b := a.Add(time.Duration(rapid.Int64Range(0, int64(400*24*time.Hour)).Draw(t, "length")))
		m := a.Add(time.Duration(rapid.Int64Range(0, int64(b.Sub(a))).Draw(t, "split")))
		for name, over := range map[string]func(from, to time.Time) float64{"busy": r.Over, "idle": r.Idle} {
			whole, first, second := over(a, b), over(a, m), over(m, b)
			if !(whole >= 0) || first < 0 || second < 0 {
				t.Fatalf("%s: %g, %g, %g", name, whole, first, second)
			}
			if math.Abs(whole-first-second) > 1e-6*max(1, whole) {
				t.Fatalf("%s: %g and %g are not %g", name, first, second, whole)
			}
			if over(m, m) != 0 || m.Before(b) && over(b, m) != 0 {
				t.Fatalf("%s: what is empty costs", name)
			}
		}
		// A slow, simple reference: the price at each minute.
		short := a.Add(6 * time.Hour).Truncate(time.Minute)
		sum := 0.0
		for at := short; at.Before(short.Add(30 * time.Hour)); at = at.Add(time.Minute) {
			sum += r.At(at) / 60
		}
		if got := r.Over(short, short.Add(30*time.Hour)); math.Abs(got-sum) > 1e-6*max(1, sum) {
			t.Fatalf("30 hours cost %g, minute by minute %g", got, sum)
		}
	})
}

func TestForecast(t *testing.T) {
	p := cost.Forecast(100, []float64{10, 10, 10, 10}, 5)
	if p.Total != 150 || *p.Low != 150 || *p.High != 150 || p.PerDay != 10 || p.Days != 4 {
		t.Fatalf("constant: %+v", p)
	}
	// s = 2, t(2) = 4.3027 at 97.5 %: half = 4.3027 × 2 × √(3 + 9/3).
	p = cost.Forecast(100, []float64{8, 10, 12}, 3)
	if half := 4.302652729911275 * 2 * math.Sqrt(6); p.Total != 130 || math.Abs(*p.High-130-half) > 1e-6 || math.Abs(*p.Low-130+half) > 1e-6 {
		t.Fatalf("%+v: %g, %g", p, *p.Low, *p.High)
	}
	if p = cost.Forecast(100, []float64{0, 50}, 10); *p.Low != 100 {
		t.Fatalf("less than what is spent: %g", *p.Low)
	}
	if p = cost.Forecast(7, nil, 10); p.Total != 7 || p.Low != nil {
		t.Fatalf("nothing known: %+v", p)
	}
	if p = cost.Forecast(7, []float64{3}, -1); p.Total != 7 || p.Low != nil {
		t.Fatalf("a day, none left: %+v", p)
	}
}

func TestCompare(t *testing.T) {
	// Fixed 21 an hour, energy 6; rented 36: owning pays from 21 / 30 = 70 %.
	c := cost.Case{
		Own:    cost.Owned{Purchase: 900_000, Residual: 24_000, Lifetime: 5, Cooling: 760, Staff: 5000, Rack: 3000, PUE: 1.5, Tariff: cost.Tariff{PerKWh: 0.4}},
		Watts:  10_000,
		Rented: cost.Rented{OnDemand: 36}, Nodes: 2, NodeHours: 2 * 0.9 * cost.HoursPerMonth, Now: time.Unix(1e9, 0),
	}
	got, err := cost.Compare(c)
	if err != nil {
		t.Fatal(err)
	}
	if !near(*got.BreakEven, 0.7) || !near(got.Utilisation, 0.9) || !near(got.Own, 2*730*(21+0.9*6)) || !near(got.Rented, 2*730*0.9*36) {
		t.Errorf("%+v, break-even %g", got, *got.BreakEven)
	}
	// Each month 2 × 730 × (0.9 × 30 − 1) are saved, and 2 × 900,000 were paid.
	if want := 900_000 / (730 * 26.0); !near(*got.Months, want) || !strings.HasPrefix(got.Answer, "owning is cheaper") {
		t.Errorf("%g months, want %g: %s", *got.Months, want, got.Answer)
	}
	c.NodeHours = 2 * 0.5 * cost.HoursPerMonth
	if got, err = cost.Compare(c); err != nil || got.Answer != "renting is cheaper: the break-even utilisation is 70 %, and the workload reaches 50 %" {
		t.Errorf("%s, %v", got.Answer, err)
	}
	c.Speed = 2 // a rented node does the work of two, so its price counts half
	if got, err = cost.Compare(c); err != nil || got.BreakEven != nil || got.Answer != "renting is cheaper at every utilisation" {
		t.Errorf("%+v, %v", got, err)
	}
	c.Egress, c.Rented.Egress = 7300, 0.4 // 4 for each node-hour
	if got, err = cost.Compare(c); err != nil || !near(got.RentedHour, 22) {
		t.Errorf("%+v, %v", got, err)
	}
	for name, edit := range map[string]func(*cost.Case){
		"nothing":  func(c *cost.Case) { c.NodeHours = 0 },
		"NaN":      func(c *cost.Case) { c.Speed = math.NaN() },
		"negative": func(c *cost.Case) { c.Egress = -1 },
		"nodes":    func(c *cost.Case) { c.Nodes = 0 },
	} {
		bad := c
		if edit(&bad); !fault.Is(second(cost.Compare(bad)), fault.Invalid) {
			t.Errorf("%s is taken", name)
		}
	}
}

func second(_ cost.Comparison, err error) error { return err }

// Where the lines cross, both cost the same; before it renting is cheaper and after
// it owning.
func TestBreakEvenIsWhereTheLinesCross(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := cost.Case{
			Own:   cost.Owned{Purchase: rapid.Float64Range(0, 1e7).Draw(t, "purchase"), Lifetime: rapid.Float64Range(0.5, 20).Draw(t, "life"), Staff: rapid.Float64Range(0, 1e5).Draw(t, "staff"), Tariff: cost.Tariff{PerKWh: rapid.Float64Range(0, 2).Draw(t, "tariff")}},
			Watts: rapid.Float64Range(0, 20_000).Draw(t, "watts"), Rented: cost.Rented{OnDemand: rapid.Float64Range(0, 500).Draw(t, "rent")},
			Nodes: rapid.IntRange(1, 100).Draw(t, "nodes"), Now: time.Unix(1e9, 0),
		}
		u := rapid.Float64Range(0.001, 1).Draw(t, "u")
		c.NodeHours = float64(c.Nodes) * cost.HoursPerMonth * u
		got, err := cost.Compare(c)
		if err != nil {
			t.Fatal(err)
		}
		slack := 1e-6 * max(1, got.Own, got.Rented)
		if got.BreakEven == nil {
			if got.Own < got.Rented-slack {
				t.Fatalf("owning is cheaper and never pays: %+v", got)
			}
			return
		}
		if u < *got.BreakEven && got.Own < got.Rented-slack || u > *got.BreakEven && got.Own > got.Rented+slack {
			t.Fatalf("on the wrong side of %g: %+v", *got.BreakEven, got)
		}
	})
}

func TestFormat(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 999: "999", 1000: "1,000", 1234567.891: "1,234,567.89", -12345.5: "-12,345.50", 0.004: "0"} {
		if got := cost.Format(v); got != want {
			t.Errorf("%g is %s, want %s", v, got, want)
		}
	}
}
