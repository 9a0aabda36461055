package ingestion

import (
	"strconv"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Schedule says when a run is due. The zero Schedule never is.
type Schedule struct {
	every  time.Duration
	fields [5]uint64 // bits of minutes, hours, days of a month, months, days of a week
	days   bool      // both days are restricted: one of them is enough, as cron has it
}

// Bounds of the fields of cron.
var bounds = [5]struct{ low, high int }{{0, 59}, {0, 23}, {1, 31}, {1, 12}, {0, 7}}

// shortest is the least time between runs.
const shortest = 10 * time.Second

// ParseSchedule reads "every 15m", five fields of cron, or "" and "none" for
// never. Error: fault.Invalid.
func ParseSchedule(text string) (Schedule, error) {
	var s Schedule
	if text == "" || text == "none" {
		return s, nil
	}
	bad := func() (Schedule, error) {
		return Schedule{}, fault.New(fault.Invalid, "%.80q is not a valid schedule", text).WithHint("Write every 15m, or five fields of cron in UTC such as 0 3 * * *.")
	}
	if d, ok := strings.CutPrefix(text, "every "); ok {
		every, err := time.ParseDuration(strings.TrimSpace(d))
		if err != nil || every < shortest || every > 366*24*time.Hour {
			return bad()
		}
		s.every = every
		return s, nil
	}
	fields := strings.Fields(text)
	if len(fields) != len(bounds) {
		return bad()
	}
	for i, f := range fields {
		bits, ok := parseField(f, bounds[i].low, bounds[i].high)
		if !ok {
			return bad()
		}
		s.fields[i] = bits
	}
	if s.fields[4]&(1<<7) != 0 { // Sunday is 0 and 7
		s.fields[4] |= 1
	}
	s.days = !strings.HasPrefix(fields[2], "*") && !strings.HasPrefix(fields[4], "*")
	if s.Next(time.Unix(0, 0).UTC()).IsZero() { // 30 February
		return bad()
	}
	return s, nil
}

// parseField reads a list of *, n, n-m, each with /step.
func parseField(text string, low, high int) (bits uint64, ok bool) {
	for part := range strings.SplitSeq(text, ",") {
		span, stepText, stepped := strings.Cut(part, "/")
		step := 1
		if stepped {
			n, err := strconv.Atoi(stepText)
			if err != nil || n < 1 {
				return 0, false
			}
			step = n
		}
		from, to := low, high
		if span != "*" {
			a, b, ranged := strings.Cut(span, "-")
			n, err := strconv.Atoi(a)
			if err != nil {
				return 0, false
			}
			from, to = n, n
			if ranged {
				if to, err = strconv.Atoi(b); err != nil {
					return 0, false
				}
			} else if stepped {
				to = high
			}
		}
		if from < low || to > high || from > to {
			return 0, false
		}
		for n := from; n <= to; n += step {
			bits |= 1 << n
		}
	}
	return bits, true
}

// Never reports whether nothing is ever due.
func (s Schedule) Never() bool { return s.every == 0 && s.fields[0] == 0 }

// Next is when a run is due after a time; zero for never.
func (s Schedule) Next(after time.Time) time.Time {
	if s.every > 0 {
		return after.Add(s.every)
	}
	if s.Never() {
		return time.Time{}
	}
	t := after.UTC().Truncate(time.Minute).Add(time.Minute)
	last := t.AddDate(9, 0, 0) // there is a 29 February in any nine years
	for t.Before(last) {
		switch {
		case s.fields[3]&(1<<int(t.Month())) == 0:
			t = time.Date(t.Year(), t.Month()+1, 1, 0, 0, 0, 0, time.UTC)
		case !s.onDay(t):
			t = time.Date(t.Year(), t.Month(), t.Day()+1, 0, 0, 0, 0, time.UTC)
		case s.fields[1]&(1<<t.Hour()) == 0:
			t = t.Truncate(time.Hour).Add(time.Hour)
		case s.fields[0]&(1<<t.Minute()) == 0:
			t = t.Add(time.Minute)
		default:
			return t
		}
	}
	return time.Time{}
}

func (s Schedule) onDay(t time.Time) bool {
	month, week := s.fields[2]&(1<<t.Day()) != 0, s.fields[4]&(1<<int(t.Weekday())) != 0
	if s.days {
		return month || week
	}
	return month && week
}
