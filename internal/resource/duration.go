package resource

import (
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
)

const maxDuration = 100 * 365 * 24 * time.Hour

var durationUnits = map[string]time.Duration{
	"w": 7 * 24 * time.Hour, "d": 24 * time.Hour, "h": time.Hour, "m": time.Minute, "s": time.Second,
	"ms": time.Millisecond, "us": time.Microsecond, "µs": time.Microsecond, "ns": time.Nanosecond,
}

// ParseDuration reads a time of at most 100 years, such as "3h", "7d", "1d12h" or
// "1.5s"; units are w, d, h, m, s, ms, us and ns. Nothing and "0" are 0. Error:
// fault.Invalid.
func ParseDuration(s string) (time.Duration, error) {
	total := time.Duration(0)
	for rest := s; rest != "" && s != "0"; {
		unit := strings.TrimLeft(rest, "0123456789.")
		n, err := strconv.ParseFloat(rest[:len(rest)-len(unit)], 64)
		rest = strings.TrimLeftFunc(unit, func(r rune) bool { return r != '.' && (r < '0' || r > '9') })
		size, known := durationUnits[unit[:len(unit)-len(rest)]]
		if err != nil || !known {
			return 0, fault.New(fault.Invalid, "%.80q is not a duration", s)
		}
		n = math.Round(n * float64(size))
		if n > float64(maxDuration-total) {
			return 0, fault.New(fault.Invalid, "duration %.80q is over the limit of 100 years", s)
		}
		total += time.Duration(n)
	}
	return total, nil
}
