package training

import (
	"context"
	"time"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// Usage says what jobs use and how long they take: measurements, profiles, right-sizing
// recommendations. The API calls it; Execution runs its loop.
type Usage struct{ *core }

// Top is what a running job does now.
type Top struct {
	Job      JobID           `json:"job"`
	Name     string          `json:"name"`
	State    State           `json:"state"`
	Attempt  AttemptID       `json:"attempt,omitempty"`
	Number   int             `json:"number,omitempty"`
	Pool     string          `json:"pool,omitempty"`
	Started  time.Time       `json:"started_at,omitzero"`
	Workers  []engine.Member `json:"workers"`
	Step     int64           `json:"step,omitempty"` // of its newest metric
	Steps    int64           `json:"steps,omitempty"`
	PerStep  float64         `json:"steps_per_second,omitempty"`
	Left     time.Duration   `json:"left_ns,omitempty"` // until the last step, at this pace
	LastSeen time.Time       `json:"metric_at,omitzero"`
}

// Top gives what the workers of a job use now, its pace, and when it will be
// done. Needs job.read. Error: fault.NotFound.
func (s *Usage) Top(ctx context.Context, p project.Name, jid JobID) (Top, error) {
	j, err := s.one(ctx, p, jid, ActionRead)
	if err != nil {
		return Top{}, err
	}
	t := Top{Job: j.ID, Name: j.Name, State: j.State, Pool: string(j.Pool), Steps: j.Spec.Steps, Workers: []engine.Member{}}
	var attempts []Attempt
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		attempts, err = s.attemptStore.Attempts(ctx, tx, jid)
		return err
	})
	if err != nil || len(attempts) == 0 {
		return t, err
	}
	a := attempts[len(attempts)-1]
	t.Attempt, t.Number, t.Started = a.ID, a.Number, a.Started
	t.Workers = append(t.Workers, a.Members...)
	if a.State != AttemptEnded {
		members, err := s.cfg.Compute.Members(ctx, compute.WorkloadID(a.ID))
		if err != nil {
			return t, err
		}
		t.Workers = append(t.Workers[:0], members...)
	}
	if a.Run == "" {
		return t, nil
	}
	run, err := s.cfg.Runs.Progress(ctx, p, a.Run, a.since())
	if fault.Is(err, fault.PermissionDenied) {
		return t, nil // who may read jobs and no runs sees no pace
	}
	if err != nil {
		return t, err
	}
	t.Step, t.LastSeen, t.PerStep = run.Last.Step, run.Last.At, run.pace()
	if t.PerStep > 0 && t.Steps > t.Step && a.State != AttemptEnded {
		t.Left = time.Duration(float64(t.Steps-t.Step) / t.PerStep * float64(time.Second))
	}
	return t, nil
}

// pace is steps a second, from the first to the last that the run tells.
func (p Progress) pace() float64 {
	passed := p.Last.At.Sub(p.First.At).Seconds()
	if passed <= 0 || p.Last.Step <= p.First.Step {
		return 0
	}
	return float64(p.Last.Step-p.First.Step) / passed
}
