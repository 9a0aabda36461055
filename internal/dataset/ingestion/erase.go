package ingestion

import (
	"context"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// What a run has read lies in chunks until it is in a version, for days perhaps. Who
// was erased from the source and from Falaj meanwhile is in these still, so the source
// is read again.

// ReadBefore lists the runs of a project whose chunks have rows that were read before a time. It
// requires no permission, because an eraser may lack access to sources.
func (s *Service) ReadBefore(ctx context.Context, p project.Name, before time.Time) ([]Run, error) {
	var found []Run
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		found = nil
		open, err := s.cfg.Store.OpenRuns(ctx, tx, openRuns)
		for _, r := range open {
			if r.Project == p && (r.Progress.Drop || len(r.Progress.Chunks) > 0 && r.Progress.Since.Before(before)) {
				found = append(found, r)
			}
		}
		return err
	})
	return found, err
}

// settling is how long no attempt starts at a run whose chunks are being removed.
const settling = time.Minute

// Reread removes what a run has read; the run goes on, from where it began. Errors:
// fault.Conflict when it went on meanwhile; fault.Unavailable while an attempt at it
// does not end.
func (s *Service) Reread(ctx context.Context, r Run, purpose string) error {
	if r.State.Ended() {
		return s.clean(ctx, &r)
	}
	before := r.Attempts
	r.Attempts++ // whoever carries it on is kept out
	s.restart(&r)
	r.State, r.Progress.Drop, r.NotBefore = Queued, true, s.now().Add(settling)
	err := s.cfg.DB.Update(ctx, string(r.Project), func(ctx context.Context, tx *store.Tx) error {
		if err := s.cfg.Store.UpdateRun(ctx, tx, r, before); err != nil {
			return err
		}
		return audit.Append(ctx, tx, audit.Entry{
			Project: string(r.Project), Action: string(ActionRun), Object: "source " + r.Source, Reason: purpose,
			Detail: map[string]any{"run": r.ID, "phase": "rows read so far were removed", "dataset": r.Dataset},
		})
	})
	if err != nil {
		return err
	}
	if err := s.stopped(ctx, r.ID); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, settling/2)
	defer cancel()
	if err := s.drop(ctx, &r); err != nil {
		return err
	}
	s.loop.Wake()
	return nil
}

// stopped ends this process's attempt at a run and waits for that.
func (s *Service) stopped(ctx context.Context, run RunID) error {
	late := time.NewTimer(settling / 4)
	defer late.Stop()
	for {
		s.mu.Lock()
		cancel, changed := s.active[run], s.changed
		s.mu.Unlock()
		if cancel == nil {
			return nil
		}
		cancel()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-late.C:
			return fault.New(fault.Unavailable, "run %s is still stopping", run).WithHint("The operation is retried automatically.")
		case <-changed:
		}
	}
}

// drop removes all files of a run that has read nothing that counts.
func (s *Service) drop(ctx context.Context, r *Run) error {
	if err := s.cfg.Files.Remove(ctx, r.prefix()); err != nil {
		return err
	}
	r.Progress.Drop, r.NotBefore = false, time.Time{}
	return s.keep(ctx, r)
}
