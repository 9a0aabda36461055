package training

import (
	"context"
	"fmt"
	"time"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/store"
)

// elastic reports that a job's number of workers is Falaj's to choose.
func (j Job) elastic() bool { return !j.size().Fixed() }

// looksAt reports that a running job is checked periodically.
func (s *Service) looksAt(j Job) bool {
	return j.Spec.Progress > 0 || j.elastic() && s.cfg.GrowAfter > 0
}

// grow has a job that has fewer workers than it may have go on with more, when
// its pool has had room for them, and it has run, for GrowAfter: it is stopped as
// for a resize, when a new checkpoint is there. Who takes the room meanwhile has
// it: the next attempt starts with what there is, as any.
func (s *Service) grow(ctx context.Context, j Job, l *life) error {
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
		a, err = s.cfg.Store.Attempt(ctx, tx, l.attempt)
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
		j, err := s.cfg.Store.Job(ctx, tx, j.ID)
		if err != nil || j.Attempt != a.ID || j.Stop != "" || !j.elastic() || j.size().Max <= a.Workers {
			return err
		}
		a, err := s.cfg.Store.Attempt(ctx, tx, a.ID)
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
func (s *Service) hopes(id JobID, words string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if words == "" {
		delete(s.hopeful, id)
		return
	}
	s.hopeful[id] = words
}

func (s *Service) hopesOf(id JobID) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if words := s.hopeful[id]; words != "" {
		return []string{words}
	}
	return nil
}
