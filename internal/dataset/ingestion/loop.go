package ingestion

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/lifecycle"
	"github.com/falaj-ml/falaj/internal/share"
	"github.com/falaj-ml/falaj/internal/store"
)

const (
	lookEvery   = 5 * time.Second    // between looks for what is due
	roundTime   = 7 * 24 * time.Hour // of a round: a run may take days
	leaseTime   = 15 * time.Second   // that others wait for a process that vanished
	openRuns    = 1000               // looked at in one go
	maxFailures = 12                 // attempts without a new chunk that end in a passing error: seven minutes
	maxPause    = time.Minute        // between them
)

// RunOnce makes the runs that schedules ask for and carries on every run that is
// due, until none is; the background loop calls it, and tests do. While another
// process does it, nothing happens.
func (s *Service) RunOnce(ctx context.Context) error {
	ctx = identity.With(ctx, identity.Loop("ingestion"))
	if !s.cfg.Elect && !s.cfg.DB.Shared() {
		return s.round(ctx)
	}
	lease, err := s.cfg.DB.Lease(ctx, "dataset.ingestion", rand.Text()[:8], leaseTime)
	if fault.Is(err, fault.Conflict) {
		return nil
	}
	if err != nil {
		return err
	}
	return lease.Keep(ctx, s.round)
}

// round starts what is due, each run on its own, and looks again when one ends
// and now and then; it returns when nothing is under way.
func (s *Service) round(ctx context.Context) error {
	var group sync.WaitGroup
	defer group.Wait()
	ended := make(chan RunID, s.cfg.Parallel)
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	under := map[RunID]project.Name{}
	for {
		due, err := s.due(ctx)
		if err != nil {
			return err
		}
		for _, r := range fairly(due, under) {
			release, ok := s.slots.Try(share.Owner{Project: string(r.Project)})
			if !ok {
				continue
			}
			under[r.ID] = r.Project
			group.Go(func() {
				s.carry(ctx, r)
				release()
				ended <- r.ID
			})
		}
		if len(under) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case run := <-ended:
			delete(under, run)
		case <-tick.C:
		}
	}
}

// fairly lists the runs that are due and not under way: those first of projects that
// have fewest under way.
func fairly(due []Run, under map[RunID]project.Name) []Run {
	has := map[project.Name]int{}
	for _, p := range under {
		has[p]++
	}
	due = slices.DeleteFunc(slices.Clone(due), func(r Run) bool { return under[r.ID] != "" })
	turn := make(map[RunID]int, len(due))
	for _, r := range due {
		turn[r.ID] = has[r.Project]
		has[r.Project]++
	}
	slices.SortStableFunc(due, func(a, b Run) int { return turn[a.ID] - turn[b.ID] })
	return due
}

// due makes the runs that schedules ask for and lists those to carry on.
func (s *Service) due(ctx context.Context) ([]Run, error) {
	var sources []Source
	var open []Run
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		if sources, err = s.cfg.Store.Scheduled(ctx, tx, 10*maxSources); err != nil {
			return err
		}
		open, err = s.cfg.Store.OpenRuns(ctx, tx, openRuns)
		return err
	})
	if err != nil {
		return nil, err
	}
	now := s.now()
	for _, src := range sources {
		schedule, err := ParseSchedule(src.Spec.Schedule)
		if at := schedule.Next(src.Scheduled); err != nil || at.IsZero() || at.After(now) {
			continue
		}
		// Times that were missed while the server was away are one run.
		err = s.cfg.DB.Update(ctx, string(src.Project), func(ctx context.Context, tx *store.Tx) error {
			src, err := s.cfg.Store.Source(ctx, tx, src.Project, src.Name)
			if err != nil {
				return err
			}
			src.Scheduled = now
			if err := s.cfg.Store.PutSource(ctx, tx, src); err != nil {
				return err
			}
			run, queued, err := s.queue(ctx, tx, src, false)
			if queued {
				open = append(open, run)
			}
			return err
		})
		if err != nil && !fault.Is(err, fault.NotFound) {
			return nil, err
		}
	}
	due := open[:0]
	for _, r := range open {
		if r.State.Ended() || !r.NotBefore.After(now) {
			due = append(due, r)
		}
	}
	return due, nil
}

// errFenced ends an attempt whose run was cancelled or taken over.
var errFenced = errors.New("the run was cancelled or taken over")

// carry makes one attempt at a run and records how it ended, and removes the
// chunks of one that has ended.
func (s *Service) carry(ctx context.Context, r Run) {
	defer s.tell()
	if !r.State.Ended() {
		own, cancel := context.WithCancel(ctx)
		defer cancel()
		s.mu.Lock()
		s.active[r.ID] = cancel
		s.mu.Unlock()
		err := lifecycle.Recover(func() error { return s.attempt(own, &r) })
		s.mu.Lock()
		delete(s.active, r.ID)
		s.mu.Unlock()
		if err != nil {
			s.failed(ctx, r, err)
			return
		}
	}
	if err := s.clean(ctx, &r); err != nil && ctx.Err() == nil {
		s.cfg.Log.WarnContext(ctx, "the chunks of an ingestion were not removed; the next round retries", slog.String("run", string(r.ID)), slog.Any("error", err))
	}
}

// failed records why an attempt ended: a passing reason is tried again, later and
// later.
func (s *Service) failed(ctx context.Context, r Run, why error) {
	if errors.Is(why, errFenced) || ctx.Err() != nil {
		return // somebody else's, or the server ends: the next round goes on
	}
	s.cfg.Log.WarnContext(ctx, "an ingestion failed", slog.String("run", string(r.ID)), slog.String("source", r.Source), slog.Any("error", why))
	passing := fault.Is(why, fault.Unavailable) || fault.Is(why, fault.Timeout) || fault.Is(why, fault.Exhausted)
	r.Failures++
	err := s.cfg.DB.Update(ctx, string(r.Project), func(ctx context.Context, tx *store.Tx) error {
		if !passing || r.Failures >= maxFailures {
			return s.end(ctx, tx, &r, r.Attempts, Failed, why)
		}
		r.State, r.Error, r.Hint = Queued, why.Error(), fault.HintOf(why)
		r.NotBefore = s.now().Add(min(time.Second<<r.Failures, maxPause))
		return s.cfg.Store.UpdateRun(ctx, tx, r, r.Attempts)
	})
	if err != nil && !fault.Is(err, fault.Conflict) && ctx.Err() == nil {
		s.cfg.Log.ErrorContext(ctx, "the end of an ingestion was not recorded; the run is retried", slog.String("run", string(r.ID)), slog.Any("error", err))
	}
}

// clean removes the chunks of a run that has ended.
func (s *Service) clean(ctx context.Context, r *Run) error {
	if !r.State.Ended() {
		return nil
	}
	if err := s.cfg.Files.Remove(ctx, r.prefix()); err != nil {
		return err
	}
	r.Clean, r.Progress.Chunks, r.Progress.Schema = true, nil, nil
	err := s.cfg.DB.Update(ctx, string(r.Project), func(ctx context.Context, tx *store.Tx) error {
		return s.cfg.Store.UpdateRun(ctx, tx, *r, r.Attempts)
	})
	if fault.Is(err, fault.Conflict) {
		return nil
	}
	return err
}
