package cost

import (
	"slices"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Rate is what a node costs while something runs on it, and what it costs while
// nothing does. Both are a fixed amount for an hour and a factor times a price that
// may change with the time. The zero Rate costs nothing.
type Rate struct {
	fixed, factor float64
	idle          float64 // fixed, while nothing runs
	idleFactor    float64
	times         schedule
	overhead      float64 // energy of the building over that of the node; 0 is 1
}

// Flat is the same price at all times.
func Flat(perHour float64) Rate { return Rate{fixed: perHour, idle: perHour} }

// Rate is a valid price made ready; watts is the power of a busy node.
//
// Rented, a node costs its price, used or not. Owned, a busy node costs
//
//	fixed / utilisation + watts / 1000 × PUE × tariff(t)
//
// in an hour, where fixed = (purchase − residual) / lifetime + cooling + staff + rack:
// the hours that are expected to be used carry those that are not. An idle one
// costs fixed.
func (p Price) Rate(watts float64) (Rate, error) {
	switch {
	case p.Rented != nil:
		t, err := times(p.Rented.paid(), p.Rented.Zone, p.Rented.Times)
		return Rate{factor: 1, idleFactor: 1, times: t}, err
	case p.Owned != nil:
		o := *p.Owned
		t, err := times(o.Tariff.PerKWh, o.Tariff.Zone, o.Tariff.Times)
		return Rate{fixed: o.Fixed() / o.utilisation(), idle: o.Fixed(), factor: watts / 1000 * o.pue(), times: t, overhead: o.pue()}, err
	}
	return Rate{}, nil
}

// At is the price of an hour at an instant.
func (r Rate) At(t time.Time) float64 {
	price, _ := r.times.at(t)
	return r.fixed + r.factor*price
}

// Over is what an interval costs, through all changes of the price. An interval
// that ends before it begins is empty: clocks go back.
func (r Rate) Over(from, to time.Time) float64 { return r.times.over(from, to, r.fixed, r.factor) }

// Idle is what an interval costs in which nothing runs.
func (r Rate) Idle(from, to time.Time) float64 {
	return r.times.over(from, to, r.idle, r.idleFactor)
}

// Energy is the energy in kWh that a busy node takes from the building's supply in
// an interval: an estimate from its power.
func (r Rate) Energy(watts float64, d time.Duration) float64 {
	return watts / 1000 * max(r.overhead, 1) * max(d, 0).Hours()
}

// mean is the mean price of an hour over the week from t.
func (r Rate) mean(t time.Time) float64 {
	const week = 7 * 24 * time.Hour
	return r.Over(t, t.Add(week)) / week.Hours()
}

// Dated is the rate from an instant on.
type Dated struct {
	Since time.Time
	Rate  Rate
}

// Over is what an interval costs by the rates that held: each until the next. The
// first held before, too.
func Over(history []Dated, from, to time.Time) float64 {
	sum := 0.0
	for i, d := range history {
		a, b := from, to
		if i > 0 && d.Since.After(a) {
			a = d.Since
		}
		if i+1 < len(history) && history[i+1].Since.Before(b) {
			b = history[i+1].Since
		}
		sum += d.Rate.Over(a, b)
	}
	return sum
}

// schedule is a price by the clock on the wall of a place.
type schedule struct {
	base  float64
	loc   *time.Location
	slots []slot
	edges []int // minutes of the day at which the price may change, ending with 1440
}

type slot struct {
	days     [7]bool // by time.Weekday
	from, to int     // minutes of the day
	price    float64
}

var weekdays = []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"}

func times(base float64, zone string, periods []Period) (schedule, error) {
	s := schedule{base: base}
	if zone == "Local" {
		zone = "" // not of a machine
	}
	var err error
	if s.loc, err = time.LoadLocation(zone); err != nil {
		return s, fault.New(fault.Invalid, "time_zone %.80q is not in the IANA database", zone).WithHint("Write one such as Asia/Dubai.")
	}
	if len(periods) > maxPeriods {
		return s, fault.New(fault.Invalid, "%d times, at most %d are allowed", len(periods), maxPeriods)
	}
	for i, p := range periods {
		slots, err := p.slots()
		if err != nil {
			return s, fault.Wrap(err, "times[%d]", i)
		}
		for _, sl := range slots {
			s.edges = append(s.edges, sl.from, sl.to)
		}
		s.slots = append(s.slots, slots...)
	}
	s.edges = append(s.edges, minutesOfDay)
	slices.Sort(s.edges)
	s.edges = slices.Compact(s.edges)
	return s, nil
}

const minutesOfDay = 24 * 60

// slots are the period within days: two when it goes on over midnight.
func (p Period) slots() ([]slot, error) {
	if err := Sound("price", p.Price); err != nil {
		return nil, err
	}
	from, err := clock(p.From, 0)
	if err != nil {
		return nil, err
	}
	to, err := clock(p.To, minutesOfDay)
	if err != nil {
		return nil, err
	}
	if from == to {
		return nil, fault.New(fault.Invalid, "from and to are both %s", p.From).WithHint("Leave both out for the whole day.")
	}
	var days [7]bool
	for _, d := range p.Days {
		i := slices.Index(weekdays, strings.ToLower(d))
		if i < 0 {
			return nil, fault.New(fault.Invalid, "%.40q is not a day", d).WithHint("Days are mon, tue, wed, thu, fri, sat, sun.")
		}
		days[i] = true
	}
	if len(p.Days) == 0 {
		days = [7]bool{true, true, true, true, true, true, true}
	}
	if from < to {
		return []slot{{days, from, to, p.Price}}, nil
	}
	var after [7]bool // the part after midnight is on the days after
	for i, on := range days {
		after[(i+1)%7] = on
	}
	return []slot{{days, from, minutesOfDay, p.Price}, {after, 0, to, p.Price}}, nil
}

// clock reads 08:30 as minutes of the day; 24:00 is its end.
func clock(text string, none int) (int, error) {
	if text == "" {
		return none, nil
	}
	if text == "24:00" {
		return minutesOfDay, nil
	}
	t, err := time.Parse("15:04", text)
	if err != nil {
		return 0, fault.New(fault.Invalid, "%.40q is not a time of day", text).WithHint("Write it as 08:30.")
	}
	return 60*t.Hour() + t.Minute(), nil
}

// at is the price at t, and until when it certainly holds; never is the zero time.
func (s schedule) at(t time.Time) (price float64, until time.Time) {
	if len(s.slots) == 0 {
		return s.base, time.Time{}
	}
	local := t.In(s.loc)
	now := 60*local.Hour() + local.Minute()
	price = s.base
	for _, sl := range s.slots {
		if sl.days[local.Weekday()] && sl.from <= now && now < sl.to {
			price = sl.price
			break
		}
	}
	next := s.edges[slices.IndexFunc(s.edges, func(e int) bool { return e > now })]
	until = local.Add(time.Duration(next-now)*time.Minute - time.Duration(local.Second())*time.Second - time.Duration(local.Nanosecond()))
	// The clock on the wall may be put forward or back before that. On the last day of
	// leap years from 2040 the end is not after t: go.dev/issue/81583.
	if _, end := local.ZoneBounds(); end.After(t) && end.Before(until) {
		until = end
	}
	return price, until
}

// over adds fixed + factor × price through an interval.
func (s schedule) over(from, to time.Time, fixed, factor float64) float64 {
	if !to.After(from) {
		return 0
	}
	sum := fixed * to.Sub(from).Hours()
	for t := from; factor != 0 && t.Before(to); {
		price, until := s.at(t)
		if until.IsZero() || until.After(to) {
			until = to
		}
		sum += factor * price * until.Sub(t).Hours()
		t = until
	}
	return sum
}
