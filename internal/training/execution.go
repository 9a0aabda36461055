package training

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/falaj-ml/falaj/internal/environment"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/lifecycle"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/training/source"
	"github.com/falaj-ml/falaj/internal/worker/archive"
)

// Execution runs jobs: the loop that makes attempts of them, and what compute asks of the owner
// of these. The application starts and stops it and registers it with compute; workers fetch
// their secrets from it.
type Execution struct {
	*core
	archives *source.Archives
	usage    *Usage

	watched atomic.Int64 // running attempts that are checked, at least
	running sync.WaitGroup

	// Guarded by core.mu.
	awaiting map[JobID]bool // jobs whose environment is being awaited
	cancel   context.CancelFunc
}

// Start clears what attempts of an earlier process left, and begins to make
// attempts of jobs whose environment was not ready. Call it once, before
// compute's Start.
func (s *Execution) Start(ctx context.Context) error {
	ctx = identity.With(context.WithoutCancel(ctx), identity.Loop("training"))
	if err := s.sweep(ctx); err != nil {
		return fault.Wrap(err, "removing data of earlier attempts")
	}
	ctx, cancel := context.WithCancel(ctx)
	s.mu.Lock()
	s.cancel = cancel
	s.mu.Unlock()
	s.watched.Store(1) // until the first look has counted
	s.running.Go(func() { s.loop(ctx) })
	s.running.Go(func() { s.watching(ctx) })
	s.running.Go(func() { s.usage.measuring(ctx) })
	return nil
}

// Stop ends the loop and waits for it. Jobs go on. It may be called twice.
func (s *Execution) Stop() {
	s.mu.Lock()
	cancel := s.cancel
	s.mu.Unlock()
	if cancel != nil {
		cancel()
	}
	s.running.Wait()
}

func (s *Execution) loop(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for told := ""; ; {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		case <-timer.C:
		}
		err := s.RunOnce(ctx)
		if ctx.Err() == nil {
			lifecycle.Note("queued jobs", err)
		}
		if err == nil || ctx.Err() != nil {
			told = ""
			continue
		}
		if err.Error() != told { // once, not every second
			told = err.Error()
			s.log.ErrorContext(ctx, "starting queued jobs failed", slog.Any("error", err))
		}
		timer.Reset(time.Second)
	}
}

// RunOnce makes the attempts of queued jobs whose environment is ready, fails
// those whose environment cannot be built, and has the others awaited.
func (s *Execution) RunOnce(ctx context.Context) error {
	var waiting []Job
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		waiting, err = s.jobStore.Unstarted(ctx, tx)
		return err
	})
	if err != nil {
		return err
	}
	// One job that cannot be started does not hold up the others.
	var failed []error
	stuck := map[JobID]string{}
	for _, j := range waiting {
		if err := s.ready(ctx, j); err != nil {
			failed = append(failed, fault.Wrap(err, "job %s", j.ID))
			stuck[j.ID] = err.Error()
		}
	}
	s.mu.Lock()
	s.stuck = stuck
	s.mu.Unlock()
	return errors.Join(failed...)
}

func (s *Execution) ready(ctx context.Context, j Job) error {
	if j.Spec.Environment == "" {
		return s.begin(ctx, j.ID, "", nil)
	}
	env, err := s.cfg.Environments.Use(ctx, j.Project, j.Spec.Environment)
	switch {
	case err == nil:
	case slices.Contains([]fault.Kind{fault.Invalid, fault.NotFound, fault.Gone, fault.Conflict, fault.PermissionDenied}, fault.KindOf(err)):
		return s.begin(ctx, j.ID, "", err)
	default:
		return err
	}
	if env.State != environment.Ready {
		s.await(ctx, j)
		return nil
	}
	return s.begin(ctx, j.ID, env.Digest, nil)
}

// begin makes the first attempt of a job, or fails it.
func (s *Execution) begin(ctx context.Context, jid JobID, env environment.Digest, failure error) error {
	return s.cfg.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error {
		j, err := s.jobStore.Job(ctx, tx, jid)
		if err != nil || j.State != Queued || j.Attempt != "" {
			return err
		}
		if failure != nil {
			return s.endJob(ctx, tx, &j, Failed, end{class: Unprepared, reason: failure.Error(), hint: fault.HintOf(failure)})
		}
		j.EnvDigest = env
		return s.attempt(ctx, tx, &j, 0)
	})
}

// await wakes the loop when a job's environment is built or cannot be.
func (s *Execution) await(ctx context.Context, j Job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.awaiting[j.ID] {
		return
	}
	s.awaiting[j.ID] = true
	s.running.Go(func() {
		err := s.cfg.Environments.Await(ctx, j.Project, j.Spec.Environment)
		s.mu.Lock()
		delete(s.awaiting, j.ID)
		s.mu.Unlock()
		if err != nil && ctx.Err() == nil {
			s.log.WarnContext(ctx, "waiting for an environment failed", slog.String("job", string(j.ID)), slog.Any("error", err))
		}
		if ctx.Err() == nil {
			s.signal()
		}
	})
}

// sweep removes directories of attempts that have ended or never were, and
// gives away the checkpoints of jobs that have ended.
func (s *Execution) sweep(ctx context.Context) error {
	live := func(kind, name string) (alive bool, err error) {
		err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
			if kind == "attempts" {
				a, err := s.attemptStore.Attempt(ctx, tx, AttemptID(name))
				alive = err == nil && a.State != AttemptEnded
				return err
			}
			j, err := s.jobStore.Job(ctx, tx, JobID(name))
			alive = err == nil && !j.State.Ended()
			return err
		})
		if fault.Is(err, fault.NotFound) {
			return false, nil
		}
		return alive, err
	}
	for _, kind := range []string{"attempts", "checkpoints"} {
		dir := filepath.Join(s.cfg.Dir, kind)
		entries, err := os.ReadDir(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		for _, e := range entries {
			alive, err := live(kind, e.Name())
			if err != nil {
				return err
			}
			switch {
			case alive:
			case kind == "checkpoints":
				err = s.cfg.Checkpoints.Release(ctx, e.Name())
			default:
				err = archive.Remove(filepath.Join(dir, e.Name()))
			}
			if err != nil {
				return err
			}
		}
	}
	uploads, err := filepath.Glob(filepath.Join(s.cfg.Dir, ".upload-*"))
	for _, u := range uploads {
		err = errors.Join(err, os.Remove(u))
	}
	return err
}
