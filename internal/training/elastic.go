package training

import (
	"context"
	"fmt"
	"time"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/governance/audit"
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
func (s *core) foreseen(ctx context.Context, tx *store.Tx, j Job) ([]float64, error) {
	if !s.cfg.Sizes || !j.elastic() {
		return nil, nil
	}
	family, err := s.measurementStore.Measured(ctx, tx, j.Project, j.family(), familyRuns)
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
func (s *Usage) pace(ctx context.Context, j Job, m Measurement) error {
	var a Attempt
	var family []Measurement
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		if a, err = s.attemptStore.Attempt(ctx, tx, m.Attempt); err != nil {
			return err
		}
		family, err = s.measurementStore.Measured(ctx, tx, j.Project, m.Family, familyRuns)
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

var _ compute.Resizer = (*Execution)(nil)

// Resized is told that an attempt goes on with another number of workers. It is
// compute's to call.
func (s *Execution) Resized(ctx context.Context, tx *store.Tx, w compute.Workload, workers int, why string) error {
	a, err := s.attemptStore.Attempt(ctx, tx, AttemptID(w.ID))
	if err != nil || a.State == AttemptEnded || a.Asked != "" {
		return err
	}
	a.Target = workers
	return s.ask(ctx, tx, a, Resized, why)
}

// elastic reports that a job's number of workers is Falaj's to choose.
func (j Job) elastic() bool { return !j.size().Fixed() }

// looksAt reports that a running job is checked periodically.
func (s *Execution) looksAt(j Job) bool {
	return j.Spec.Progress > 0 || j.elastic() && s.cfg.GrowAfter > 0
}

// grow has a job that has fewer workers than it may have go on with more, when
// its pool has had room for them, and it has run, for GrowAfter: it is stopped as
// for a resize, when a new checkpoint is there. Who takes the room meanwhile has
// it: the next attempt starts with what there is, as any.
func (s *Execution) grow(ctx context.Context, j Job, l *life) error {
	more := s.cfg.Compute.Growth(compute.WorkloadID(l.attempt))
	found, err := checkpoints(s.dirs(j.ID, l.attempt).checkpoints)
	if err != nil {
		return err
	}
	fresh := l.kept != nil && newer(found, l.kept)
	l.kept = found
	if more == 0 {
		l.room = time.Time{}
		s.hopes(j.ID, "")
		return nil
	}
	now := s.now()
	if l.room.IsZero() {
		l.room = now
	}
	var a Attempt
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		a, err = s.attemptStore.Attempt(ctx, tx, l.attempt)
		return err
	})
	if err != nil || a.State != Executing || a.Asked != "" {
		return err
	}
	since := l.room
	if a.Started.After(since) {
		since = a.Started
	}
	words := fmt.Sprintf("pool %s has capacity for %d workers instead of %d", a.Pool, a.Workers+more, a.Workers)
	if due := since.Add(s.cfg.GrowAfter); now.Before(due) {
		s.hopes(j.ID, words+": the job grows after its first checkpoint from "+due.UTC().Format(time.TimeOnly)+" on")
		return nil
	}
	if !fresh {
		s.hopes(j.ID, words+": the job grows after its next checkpoint")
		return nil
	}
	s.hopes(j.ID, "")
	return s.cfg.DB.Update(ctx, string(j.Project), func(ctx context.Context, tx *store.Tx) error {
		j, err := s.jobStore.Job(ctx, tx, j.ID)
		if err != nil || j.Attempt != a.ID || j.Stop != "" || !j.elastic() || j.size().Max <= a.Workers {
			return err
		}
		a, err := s.attemptStore.Attempt(ctx, tx, a.ID)
		if err != nil || a.State != Executing || a.Asked != "" {
			return err
		}
		err = audit.Append(ctx, tx, audit.Entry{
			Project: string(j.Project), Action: "job.grow", Object: "job " + string(j.ID),
			Detail: map[string]any{"attempt": a.ID, "workers": a.Workers, "room": a.Workers + more},
		})
		if err != nil {
			return err
		}
		return s.ask(ctx, tx, a, Resized, fmt.Sprintf("grows from %d workers: %s since %s", a.Workers, words, l.room.UTC().Format(time.TimeOnly)))
	})
}

// hopes notes what a job waits for in order to grow; empty is nothing.
func (s *Execution) hopes(id JobID, words string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if words == "" {
		delete(s.hopeful, id)
		return
	}
	s.hopeful[id] = words
}

func (s *core) hopesOf(id JobID) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if words := s.hopeful[id]; words != "" {
		return []string{words}
	}
	return nil
}
