package training

import (
	"context"
	"slices"
	"time"

	"gonum.org/v1/gonum/stat"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// Remaining says how long attempts probably still run: by their pace where they tell
// their steps, else as long as the last of their name that succeeded. Others are left
// out. The caller has asked whether it may.
func (s *Usage) Remaining(ctx context.Context, ids []compute.WorkloadID) (map[compute.WorkloadID]compute.Left, error) {
	ctx = identity.With(ctx, identity.Loop("training"))
	out := map[compute.WorkloadID]compute.Left{}
	type family struct {
		p    project.Name
		name string
	}
	families := map[family][]float64{}
	runs := map[compute.WorkloadID]Attempt{}
	jobs := map[compute.WorkloadID]Job{}
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		for _, wid := range ids {
			a, err := s.attemptStore.Attempt(ctx, tx, AttemptID(wid))
			if fault.Is(err, fault.NotFound) {
				continue // a build, or a query
			}
			if err != nil {
				return err
			}
			j, err := s.jobStore.Job(ctx, tx, a.Job)
			if err != nil {
				return err
			}
			f := family{j.Project, j.Name}
			took, known := families[f]
			if !known {
				if took, err = s.usual(ctx, tx, j.Project, j.Name); err != nil {
					return err
				}
				families[f] = took
			}
			ran := time.Duration(0)
			if !j.StartedAt.IsZero() {
				ran = s.now().Sub(j.StartedAt)
			}
			if l, known := usually(took, ran); known {
				out[wid] = l
			}
			if a.Run != "" && j.Spec.Steps > 0 {
				runs[wid], jobs[wid] = a, j
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for wid, a := range runs {
		j := jobs[wid]
		run, err := s.cfg.Runs.Progress(ctx, j.Project, a.Run, a.since())
		if err != nil {
			continue // a run that cannot be read tells nothing
		}
		if pace := run.pace(); pace > 0 && j.Spec.Steps >= run.Last.Step {
			left := time.Duration(float64(j.Spec.Steps-run.Last.Step) / pace * float64(time.Second))
			out[wid] = compute.AtPace(max(left-s.now().Sub(run.Last.At), 0))
		}
	}
	return out, nil
}

// usual is how many seconds the last jobs of a name that succeeded took, sorted.
func (s *core) usual(ctx context.Context, tx *store.Tx, p project.Name, name string) ([]float64, error) {
	last, err := s.jobStore.Jobs(ctx, tx, p, Filter{Name: name, State: Succeeded, Limit: likeIt})
	if err != nil {
		return nil, fault.Wrap(err, "reading the durations of earlier jobs")
	}
	var took []float64
	for _, j := range last {
		if !j.StartedAt.IsZero() && j.EndedAt.After(j.StartedAt) {
			took = append(took, j.EndedAt.Sub(j.StartedAt).Seconds())
		}
	}
	slices.Sort(took)
	return took, nil
}

// usually is how much longer a job runs that ran for a while: until the median of
// those that took longer. Of one that took longer than all, nothing is known.
func usually(took []float64, ran time.Duration) (compute.Left, bool) {
	longer := took[slices.IndexFunc(append(took, ran.Seconds()+1), func(t float64) bool { return t > ran.Seconds() }):]
	if len(longer) == 0 {
		return compute.Left{}, false
	}
	m := stat.Quantile(0.5, stat.Empirical, longer, nil)
	return compute.AsBefore(time.Duration(m*float64(time.Second)) - ran), true
}
