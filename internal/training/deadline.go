package training

import (
	"context"
	"slices"
	"time"

	"gonum.org/v1/gonum/stat"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/store"
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

// expect fills in how long a job with a deadline probably runs: what it says, or
// the 0.9 quantile of the last of its name that succeeded. Without those nothing
// is expected.
func (s *Service) expect(ctx context.Context, tx *store.Tx, j *Job) error {
	if j.Due.IsZero() {
		return nil
	}
	if j.Expected = j.Spec.Expected; j.Expected > 0 {
		return nil
	}
	last, err := s.cfg.Store.Jobs(ctx, tx, j.Project, Filter{Name: j.Name, State: Succeeded, Limit: likeIt})
	if err != nil || len(last) == 0 {
		return fault.Wrap(err, "reading the durations of earlier jobs")
	}
	took := make([]float64, len(last))
	for i, l := range last {
		took[i] = float64(l.EndedAt.Sub(l.StartedAt))
	}
	slices.Sort(took)
	j.Expected = compute.Duration(stat.Quantile(0.9, stat.Empirical, took, nil))
	return nil
}
