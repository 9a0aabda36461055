package training

import (
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/resource"
)

// likeIt is how many earlier jobs of a name say how long one runs.
const likeIt = 20

// due reads the deadline of a job that is submitted now; zero is none.
func (s Spec) due(now time.Time) (time.Time, error) {
	if s.Deadline == "" {
		return time.Time{}, nil
	}
	if after, err := resource.ParseDuration(s.Deadline); err == nil && after > 0 {
		return now.Add(after).UTC(), nil
	}
	at, err := time.Parse(time.RFC3339, s.Deadline)
	if err != nil {
		return time.Time{}, fault.New(fault.Invalid, "spec.deadline: %.40q is neither a time nor a duration", s.Deadline).
			WithHint("Set a time such as 2026-12-01T06:00:00Z, or a duration after submission such as 6h.")
	}
	if !at.After(now) {
		return time.Time{}, fault.New(fault.Invalid, "spec.deadline: %s is in the past", s.Deadline)
	}
	return at.UTC(), nil
}
