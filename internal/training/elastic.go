package training

import (
	"context"
	"time"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/training/sizing"
)

// pacedEvery is how often it is found out how fast an elastic job is.
const pacedEvery = time.Minute

// Bounds of what a restart is taken to cost, by when the first metric came.
const (
	leastRestart = 10 * time.Second
	mostRestart  = time.Hour
)

// speeds is how fast a job would be with each number of workers, by what it and its
// family showed.
func (j Job) speeds(m Measurement, family []Measurement) []float64 {
	size := j.size()
	var all []sizing.Profile
	for i := range family {
		if family[i].Attempt != m.Attempt {
			all = append(all, family[i].profile())
		}
	}
	if m.Attempt != "" {
		all = append(all, m.profile())
	}
	return sizing.Speeds(m.kind(), m.Device, j.Spec.Processes, size.Min, size.Max, all)
}

// foreseen is what a new attempt of an elastic job is told to be like: as the newest
// of its family that told its pace.
func (s *Service) foreseen(ctx context.Context, tx *store.Tx, j Job) ([]float64, error) {
	if !s.cfg.Sizes || !j.elastic() {
		return nil, nil
	}
	family, err := s.cfg.Store.Measured(ctx, tx, j.Project, j.family(), familyRuns)
	if err != nil {
		return nil, err
	}
	like := Measurement{Project: j.Project, Family: j.family()}
	for i := range family {
		if family[i].Unit == sizing.Runs || family[i].Rate == 0 {
			continue
		}
		if family[i].Setting == j.Spec.setting(family[i].Unit) {
			like.Unit, like.Setting, like.Device = family[i].Unit, family[i].Setting, family[i].Device
			break
		}
	}
	return j.speeds(like, family), nil
}

// pace tells compute how fast a running elastic job is, by its own metrics too.
func (s *Service) pace(ctx context.Context, j Job, m Measurement) error {
	var a Attempt
	var family []Measurement
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		if a, err = s.cfg.Store.Attempt(ctx, tx, m.Attempt); err != nil {
			return err
		}
		family, err = s.cfg.Store.Measured(ctx, tx, j.Project, m.Family, familyRuns)
		return err
	})
	if err != nil || a.State != Executing {
		return err
	}
	restart := time.Duration(0)
	if a.Run != "" {
		p, err := s.cfg.Runs.Progress(asLoop(ctx, j, a.ID), j.Project, a.Run, a.since())
		if err != nil {
			return err
		}
		if first := p.First.At; first.After(a.Started) {
			restart = min(max(first.Sub(a.Started), leastRestart), mostRestart)
		}
	}
	s.complete(asLoop(ctx, j, a.ID), j, a, &m)
	s.cfg.Compute.Pace(compute.WorkloadID(a.ID), j.size().Min, j.speeds(m, family), restart)
	return nil
}

var _ compute.Resizer = (*Service)(nil)

// Resized is told that an attempt goes on with another number of workers. It is
// compute's to call.
func (s *Service) Resized(ctx context.Context, tx *store.Tx, w compute.Workload, workers int, why string) error {
	a, err := s.cfg.Store.Attempt(ctx, tx, AttemptID(w.ID))
	if err != nil || a.State == AttemptEnded || a.Asked != "" {
		return err
	}
	a.Target = workers
	return s.ask(ctx, tx, a, Resized, why)
}
