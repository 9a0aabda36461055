// Package cost is the arithmetic of money: what a node costs at an instant and
// over an interval, what owning it costs, when owning pays against renting, and
// how much a month will cost. It has no state and no dependencies.
//
// # Map
//
//   - cost.go: Price, the manifest of what a pool's nodes cost, and its check.
//   - rate.go: Rate, a Price made ready, and Over, the price of an interval.
//   - compare.go: own hardware against rented. forecast.go: where a month ends.
//
// # Units
//
// Money is in the installation's one currency, as a float64: it is rounded only
// where it is shown. Energy is in kWh, time in hours; a year has 8,760 hours and a
// month 730.
package cost

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	_ "time/tzdata" // machines without a zone database meter the same

	"golang.org/x/text/currency"

	"github.com/falaj-ml/falaj/internal/fault"
)

// The hours that fixed costs are spread over.
const (
	HoursPerYear  = 8760.0
	HoursPerMonth = HoursPerYear / 12
)

// Limits of a price.
const (
	maxAmount  = 1e12
	maxPeriods = 50
	maxYears   = 50
	maxPUE     = 10
)

// Currency refuses codes that are not in ISO 4217. Error: fault.Invalid.
func Currency(code string) error {
	if _, err := currency.ParseISO(code); err != nil || code != strings.ToUpper(code) {
		return fault.New(fault.Invalid, "%.40q is not a currency", code).WithHint("Write its code of ISO 4217, such as AED.")
	}
	return nil
}

// Price is what the nodes of a pool cost: rented or owned.
type Price struct {
	Currency string  `json:"currency,omitempty" doc:"Currency of the amounts: the installation's; amounts are not converted"`
	Rented   *Rented `json:"rented,omitempty" doc:"Prices of a provider"`
	Owned    *Owned  `json:"owned,omitempty" doc:"Costs of owned hardware"`
}

// Rented is what a provider asks for a node.
type Rented struct {
	OnDemand float64  `json:"on_demand,omitempty" doc:"Price of a node for an hour"`
	Spot     float64  `json:"spot,omitempty" doc:"Price for an hour of a node that the provider may reclaim"`
	Billing  string   `json:"billing,omitempty" doc:"Price that is paid: on_demand or spot; default on_demand"`
	Egress   float64  `json:"egress,omitempty" doc:"Price of a GiB of egress; used by comparisons, not metered"`
	Zone     string   `json:"time_zone,omitempty" doc:"IANA time zone of the times, such as Asia/Dubai; default UTC"`
	Times    []Period `json:"times,omitempty" doc:"Prices at other times; the first match applies"`
}

// Owned is what a node of one's own costs.
type Owned struct {
	Purchase    float64 `json:"purchase" doc:"Purchase price of a node, with its share of network and storage"`
	Residual    float64 `json:"residual,omitempty" doc:"Residual value at the end of its life"`
	Lifetime    float64 `json:"lifetime_years" doc:"Years of straight-line depreciation"`
	PUE         float64 `json:"pue,omitempty" doc:"Energy of the building over energy of its machines (ISO/IEC 30134-2); default 1"`
	Tariff      Tariff  `json:"tariff,omitzero" doc:"Price of energy"`
	Cooling     float64 `json:"cooling_per_year,omitempty" doc:"Cooling cost of a node beyond the energy in the PUE"`
	Staff       float64 `json:"staff_per_year,omitempty" doc:"Staff cost of a node"`
	Rack        float64 `json:"rack_per_year,omitempty" doc:"Cost of a node for space, network and maintenance"`
	Utilisation float64 `json:"utilisation,omitempty" doc:"Expected share of busy hours, over 0 to 1; the fixed costs are spread over these hours; default 1"`
}

// Tariff is a price of energy.
type Tariff struct {
	PerKWh float64  `json:"per_kwh" doc:"Price of a kWh"`
	Zone   string   `json:"time_zone,omitempty" doc:"IANA time zone of the times; default UTC"`
	Times  []Period `json:"times,omitempty" doc:"Prices at other times; the first match applies"`
}

// Period is when another price holds, by the clock on the wall.
type Period struct {
	Days  []string `json:"days,omitempty" doc:"Days on which the period begins: mon, tue, wed, thu, fri, sat, sun; default all"`
	From  string   `json:"from,omitempty" doc:"Such as 22:00; default 00:00"`
	To    string   `json:"to,omitempty" doc:"End of the period, such as 06:00; on the next day if it is not after from; default 24:00"`
	Price float64  `json:"price" doc:"For an hour, or a kWh"`
}

// Validate refuses what is no price, or is in another currency than that of the
// installation. Error: fault.Invalid.
func (p Price) Validate(installation string) error {
	if p.Currency != "" && p.Currency != installation {
		if err := Currency(p.Currency); err != nil {
			return err
		}
		return fault.New(fault.Invalid, "cost is in %s, but this installation uses %s", p.Currency, installation).
			WithHint("Write the amounts in %s: rates of exchange change, so nothing is converted.", installation)
	}
	if (p.Rented == nil) == (p.Owned == nil) {
		return fault.New(fault.Invalid, "cost is either rented or owned")
	}
	if p.Rented != nil {
		return fault.Wrap(p.Rented.validate(), "rented")
	}
	return fault.Wrap(p.Owned.validate(), "owned")
}

func (r Rented) validate() error {
	if err := amounts(map[string]float64{"on_demand": r.OnDemand, "spot": r.Spot, "egress": r.Egress}); err != nil {
		return err
	}
	switch r.Billing {
	case "", "on_demand", "spot":
	default:
		return fault.New(fault.Invalid, "billing %.40q does not exist", r.Billing).WithHint("Use on_demand or spot.")
	}
	_, err := times(r.paid(), r.Zone, r.Times)
	return err
}

// paid is the price outside of special times.
func (r Rented) paid() float64 {
	if r.Billing == "spot" {
		return r.Spot
	}
	return r.OnDemand
}

func (o Owned) validate() error {
	err := amounts(map[string]float64{
		"purchase": o.Purchase, "residual": o.Residual, "cooling_per_year": o.Cooling, "staff_per_year": o.Staff, "rack_per_year": o.Rack, "per_kwh": o.Tariff.PerKWh,
	})
	switch {
	case err != nil:
		return err
	case !(o.Lifetime > 0 && o.Lifetime <= maxYears):
		return fault.New(fault.Invalid, "lifetime_years is %g, and must be over 0 and at most %d", o.Lifetime, maxYears)
	case o.Residual > o.Purchase:
		return fault.New(fault.Invalid, "residual is more than purchase")
	case o.PUE != 0 && !(o.PUE >= 1 && o.PUE <= maxPUE):
		return fault.New(fault.Invalid, "pue is %g, and must be 1 to %d", o.PUE, maxPUE)
	case o.Utilisation != 0 && !(o.Utilisation > 0 && o.Utilisation <= 1):
		return fault.New(fault.Invalid, "utilisation is %g, and must be over 0 and at most 1", o.Utilisation).WithHint("Write 0.7 for 70 %%.")
	}
	_, err = times(o.Tariff.PerKWh, o.Tariff.Zone, o.Tariff.Times)
	return fault.Wrap(err, "tariff")
}

// Fixed is what a node costs in an hour whether it works or not: written off in a
// straight line, and what is paid by the year.
func (o Owned) Fixed() float64 {
	return (o.Purchase-o.Residual)/(o.Lifetime*HoursPerYear) + o.running()
}

// running is the part of Fixed that is paid as the hours go by.
func (o Owned) running() float64 { return (o.Cooling + o.Staff + o.Rack) / HoursPerYear }

func (o Owned) pue() float64 {
	if o.PUE == 0 {
		return 1
	}
	return o.PUE
}

func (o Owned) utilisation() float64 {
	if o.Utilisation == 0 {
		return 1
	}
	return o.Utilisation
}

// amounts refuses what is negative, not a number, or too large.
func amounts(named map[string]float64) error {
	var bad []string
	for name, v := range named {
		if !(v >= 0 && v <= maxAmount) {
			bad = append(bad, name+" is "+strconv.FormatFloat(v, 'g', -1, 64))
		}
	}
	if len(bad) == 0 {
		return nil
	}
	slices.Sort(bad)
	return fault.New(fault.Invalid, "%s: amounts are 0 to %g", strings.Join(bad, ", "), maxAmount)
}

// Sound refuses an amount of money that cannot be one. Error: fault.Invalid.
func Sound(name string, v float64) error {
	if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 || v > maxAmount {
		return amounts(map[string]float64{name: v})
	}
	return nil
}

// Format writes an amount for people: 1,000 or 1,234.50.
func Format(v float64) string {
	text := strconv.FormatFloat(v, 'f', 2, 64)
	whole, cents, _ := strings.Cut(text, ".")
	sign := ""
	if whole[0] == '-' {
		sign, whole = "-", whole[1:]
	}
	for i := len(whole) - 3; i > 0; i -= 3 {
		whole = whole[:i] + "," + whole[i:]
	}
	if cents == "" || cents == "00" {
		return sign + whole
	}
	return sign + whole + "." + cents
}

// Month is the calendar month of t in UTC: budgets are by it.
func Month(t time.Time) (from, until time.Time) {
	t = t.UTC()
	from = time.Date(t.Year(), t.Month(), 1, 0, 0, 0, 0, time.UTC)
	return from, from.AddDate(0, 1, 0)
}
