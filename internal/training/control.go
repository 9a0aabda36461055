package training

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/scheduler"
	"github.com/falaj-ml/falaj/internal/store"
)

// Control changes jobs under way: it cancels, resizes and moves them. The API calls it, and
// sweeps to end trials.
type Control struct{ *core }

// Resize has a job go on with another number of workers. What runs is asked to
// save (SIGTERM and its grace), and the next attempt, which does not count
// against max_attempts, has the new size. Needs job.submit. Resizing to what it
// has already is no change. Errors: fault.NotFound; fault.Invalid when the work
// cannot be shared out among so many, it has roles, or it runs and no pool could hold so
// many; fault.Conflict when the job has ended or is being stopped.
func (s *Control) Resize(ctx context.Context, p project.Name, jid JobID, to Workers) (j Job, err error) {
	if j, err = s.one(ctx, p, jid, ActionSubmit); err != nil {
		return Job{}, err
	}
	if err := s.holds(ctx, j, to); err != nil {
		return Job{}, fault.Wrap(err, "resizing job %s", jid)
	}
	who := identity.From(ctx)
	err = s.cfg.DB.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
		if j, err = s.jobStore.Job(ctx, tx, jid); err != nil {
			return err
		}
		switch {
		case j.State.Ended():
			return fault.New(fault.Conflict, "job %s has already %s", jid, j.State)
		case j.Stop != "":
			return fault.New(fault.Conflict, "job %s is being stopped: %s", jid, j.Stop)
		}
		if len(j.Spec.Roles) > 0 {
			return fault.New(fault.Invalid, "job %s has roles: its number of workers is fixed", jid).
				WithHint("Submit it again with other numbers of workers.")
		}
		if err := j.Spec.validSize(to); err != nil {
			return err
		}
		was := j.size()
		if was == to {
			return nil
		}
		j.Workers = to
		err := audit.Append(ctx, tx, audit.Entry{
			Project: string(p), Action: string(ActionSubmit), Object: "job " + string(jid),
			Detail: map[string]any{"resize": to.String(), "was": was.String()},
		})
		if err != nil {
			return err
		}
		if err := s.save(ctx, tx, &j); err != nil || j.Attempt == "" {
			return err
		}
		a, err := s.attemptStore.Attempt(ctx, tx, j.Attempt)
		if err != nil {
			return err
		}
		if a.Workers == to.Max { // it has that size, and keeps it
			speed, err := s.foreseen(ctx, tx, j)
			if err != nil {
				return err
			}
			return s.cfg.Compute.Bound(ctx, tx, compute.WorkloadID(a.ID), to.Min, to.Max, speed)
		}
		return s.ask(ctx, tx, a, Resized, fmt.Sprintf("resized from %s to %s workers by %s", sizeOf(a, was), to, who))
	})
	return j, fault.Wrap(err, "resizing job %s", jid)
}

// holds refuses a size for which a running job would be stopped and wait for ever: that
// no pool could hold, as the pools are now and were they empty. Of one that is closed or
// rents its nodes nobody knows. Where another server schedules, it is not known either.
func (s *Control) holds(ctx context.Context, j Job, to Workers) error {
	if j.Attempt == "" || j.State.Ended() || len(j.Spec.Roles) > 0 || j.size() == to {
		return nil
	}
	if err := j.Spec.validSize(to); err != nil {
		return err
	}
	j.Workers = to
	r := j.request()
	r.ID = compute.WorkloadID(j.ID)
	f, err := s.cfg.Compute.DryRun(ctx, r)
	switch {
	case fault.Is(err, fault.Unavailable):
		return nil
	case err != nil, f.Possible, len(f.Reasons) == 0:
		return err
	}
	why := make([]string, len(f.Reasons))
	for i, reason := range f.Reasons {
		if why[i] = reason.Text; reason.Code == scheduler.Closed {
			return nil
		}
	}
	return fault.New(fault.Invalid, "the new size never fits: %s", strings.Join(why, "; ")).
		WithHint("The job continues unchanged. Request fewer workers, or free capacity first.")
}

func sizeOf(a Attempt, wanted Workers) Workers {
	if a.Workers > 0 {
		return Exactly(a.Workers)
	}
	return wanted
}

// ask has an attempt stopped, and remembers what its end will be. An attempt
// that was asked before keeps the first reason.
func (s *core) ask(ctx context.Context, tx *store.Tx, a Attempt, class Class, why string) error {
	if a.State == AttemptEnded || a.Asked != "" {
		return nil
	}
	a.Asked, a.Why = class, why
	if a.State.CanBecome(Checkpointing) {
		a.State = Checkpointing
	}
	if err := s.attemptStore.UpdateAttempt(ctx, tx, a); err != nil {
		return err
	}
	return s.cfg.Compute.Cancel(ctx, tx, compute.WorkloadID(a.ID), why)
}

// Move has a job go on in other pools, which may be of other engines. What runs
// elsewhere is asked to save (SIGTERM and its grace), and the next attempt, which
// does not count against max_attempts, goes on from its checkpoints there. What
// the job demands (isolation, environment, residency) holds there too. Needs
// job.submit. Errors: fault.NotFound; fault.Invalid when a pool is not there, or
// none may have the data, isolates enough or fits the environment; fault.Conflict
// when the job has ended or is being stopped.
func (s *Control) Move(ctx context.Context, p project.Name, jid JobID, pools []string) (j Job, err error) {
	if j, err = s.one(ctx, p, jid, ActionSubmit); err != nil {
		return Job{}, err
	}
	spec := j.Spec
	if spec.Pools = pools; len(pools) == 0 {
		return Job{}, fault.New(fault.Invalid, "a move needs a target pool").WithHint("Name a pool; list them with `falaj pool list`.")
	}
	if err := spec.Validate(); err != nil {
		return Job{}, fault.Wrap(err, "moving job %s", jid)
	}
	if err := s.cfg.Compute.CheckPools(ctx, pools, spec.Isolation, j.Residency); err != nil {
		err = audit.Describe(err, audit.Entry{Project: string(j.Project), Action: string(ActionSubmit), Object: "job " + string(j.ID)})
		return Job{}, fault.Wrap(err, "moving job %s", jid)
	}
	if spec.Environment != "" {
		if err := s.cfg.Environments.Admit(ctx, p, spec.Environment, pools); err != nil {
			return Job{}, fault.Wrap(err, "moving job %s", jid)
		}
	}
	who := identity.From(ctx)
	err = s.cfg.DB.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
		if j, err = s.jobStore.Job(ctx, tx, jid); err != nil {
			return err
		}
		switch {
		case j.State.Ended():
			return fault.New(fault.Conflict, "job %s has already %s", jid, j.State).WithHint("Submit it again on another pool: `falaj job submit --from %s --pool %s`.", jid, pools[0])
		case j.Stop != "":
			return fault.New(fault.Conflict, "job %s is being stopped: %s", jid, j.Stop)
		case slices.Equal(j.pools(), pools):
			return nil
		}
		err := audit.Append(ctx, tx, audit.Entry{
			Project: string(p), Action: string(ActionSubmit), Object: "job " + string(jid),
			Detail: map[string]any{"move": pools, "was": j.pools()},
		})
		if err != nil {
			return err
		}
		j.Pools = pools
		if err := s.save(ctx, tx, &j); err != nil || j.Attempt == "" {
			return err
		}
		a, err := s.attemptStore.Attempt(ctx, tx, j.Attempt)
		if err != nil || slices.Contains(pools, string(a.Pool)) {
			return err // it is there already
		}
		return s.ask(ctx, tx, a, Moved, fmt.Sprintf("moved to %s by %s", strings.Join(pools, ", "), who))
	})
	return j, fault.Wrap(err, "moving job %s", jid)
}

// Cancel asks a job to end: at once where nothing runs, otherwise by SIGTERM,
// its grace period and SIGKILL. Needs job.cancel. Cancelling again is no
// change. Errors: fault.NotFound; fault.Conflict when it has ended otherwise.
func (s *Control) Cancel(ctx context.Context, p project.Name, jid JobID) (j Job, err error) {
	if _, err := s.one(ctx, p, jid, ActionCancel); err != nil {
		return Job{}, err
	}
	who := identity.From(ctx)
	reason := "cancelled by " + who.String()
	err = s.cfg.DB.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
		if j, err = s.jobStore.Job(ctx, tx, jid); err != nil {
			return err
		}
		switch {
		case j.State == Cancelled || !j.State.Ended() && j.Stop != "":
			return nil
		case j.State.Ended():
			return fault.New(fault.Conflict, "job %s has already %s", jid, j.State)
		}
		j.Stop = reason
		err := audit.Append(ctx, tx, audit.Entry{Project: string(p), Action: string(ActionCancel), Object: "job " + string(jid)})
		if err != nil {
			return err
		}
		if j.Attempt == "" {
			return s.endJob(ctx, tx, &j, Cancelled, end{class: Unwanted, reason: reason})
		}
		a, err := s.attemptStore.Attempt(ctx, tx, j.Attempt)
		if err != nil {
			return err
		}
		if a.State.CanBecome(Checkpointing) {
			a.State = Checkpointing
			if err := s.attemptStore.UpdateAttempt(ctx, tx, a); err != nil {
				return err
			}
		}
		if err := s.save(ctx, tx, &j); err != nil {
			return err
		}
		return s.cfg.Compute.Cancel(ctx, tx, compute.WorkloadID(j.Attempt), reason)
	})
	return j, err
}

// pools are where the next attempt may run; empty is anywhere.
func (j Job) pools() []string {
	if len(j.Pools) > 0 {
		return j.Pools
	}
	return j.Spec.Pools
}
