package table

import (
	"math"
	"time"
	_ "time/tzdata" // so that a zone is known wherever the server runs

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Local says which instants times are that come without a zone: when the clocks of
// Zone show them. The zero Local is UTC.
//
// Twice a year, where there is summer time, clocks do not say which instant it is. A
// time that they skip is as long after the change as it would have been without it:
// 02:30 in New York on 10 March 2013 is 03:30 EDT, as in PostgreSQL. Of the two
// instants of a time that they show twice it is the later, or with Early the earlier.
type Local struct {
	Zone  *time.Location
	Early bool
}

// ParseZone finds a zone by its name in IANA's database, such as America/New_York.
// Error: fault.Invalid.
func ParseZone(name string) (*time.Location, error) {
	zone, err := time.LoadLocation(name)
	if err != nil || name == "" || name == "Local" { // the last two say nothing, or what the machine thinks
		return nil, fault.New(fault.Invalid, "there is no time zone %.80q", name).WithHint("Write a name of the IANA time zone database, such as America/New_York, Europe/Berlin or UTC.")
	}
	return zone, nil
}

// LocalColumns are the columns whose times come without a zone.
func LocalColumns(s *arrow.Schema) (names []string) {
	for _, f := range s.Fields() {
		t := f.Type
		if l, ok := t.(arrow.ListLikeType); ok {
			t = l.Elem()
		}
		if t, ok := t.(*arrow.TimestampType); ok && t.TimeZone == "" {
			names = append(names, f.Name)
		}
	}
	return names
}

// farthest is more than any zone's clocks are from UTC, and than they are ever set by.
const farthest = 26 * time.Hour

// endless reports whether a time is beyond those that a zone's clocks could show: it is
// infinity, as DuckDB writes it, or next to it, and the same in every zone.
func endless(local int64) bool {
	const edge = math.MaxInt64 - 2*int64(farthest/time.Microsecond)
	return local > edge || local < -edge
}

// Instant is a local time, as microseconds since 1970 on the clock, as an instant.
func (l Local) Instant(local int64) int64 {
	if endless(local) {
		return local
	}
	at, _, _ := l.resolve(local)
	return at
}

// instants is Instant for many times: it remembers where clocks are not set.
func (l Local) instants() func(local int64) int64 {
	if l.Zone == nil {
		return func(local int64) int64 { return local }
	}
	from, to, offset := int64(0), int64(0), int64(0)
	return func(local int64) int64 {
		if endless(local) {
			return local
		}
		if local >= from && local < to {
			return local - offset
		}
		at, start, end := l.resolve(local)
		offset = local - at
		from, to = saturated(start, offset+farthest.Microseconds()), saturated(end, offset-farthest.Microseconds())
		return at
	}
}

func saturated(a, b int64) int64 {
	switch sum := a + b; {
	case b > 0 && sum < a:
		return math.MaxInt64
	case b < 0 && sum > a:
		return math.MinInt64
	default:
		return sum
	}
}

// resolve also says between which instants the clocks are not set.
func (l Local) resolve(local int64) (at, from, to int64) {
	if l.Zone == nil {
		return local, math.MinInt64, math.MaxInt64
	}
	shown := time.UnixMicro(local)
	found := false
	for t := shown.Add(-farthest).In(l.Zone); ; {
		_, seconds := t.Zone()
		begin, end := t.ZoneBounds()
		if !end.IsZero() && !end.After(t) { // the last day of leap years from 2040: go.dev/issue/81583
			end = t.Truncate(24 * time.Hour).Add(24 * time.Hour)
		}
		start, stop := int64(math.MinInt64), int64(math.MaxInt64)
		if !begin.IsZero() {
			start = begin.UnixMicro()
		}
		if !end.IsZero() {
			stop = end.UnixMicro()
		}
		switch x := local - int64(seconds)*1_000_000; {
		case x < start:
		case x >= stop:
			if !found { // skipped, unless a later one is right
				at, from, to = x, start, stop
			}
		case !found || !l.Early:
			at, from, to, found = x, start, stop, true
		}
		if end.IsZero() || end.After(shown.Add(farthest)) {
			return at, from, to
		}
		t = end.In(l.Zone)
	}
}
