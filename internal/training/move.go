package training

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// Move has a job go on in other pools, which may be of other engines. What runs
// elsewhere is asked to save (SIGTERM and its grace), and the next attempt, which
// does not count against max_attempts, goes on from its checkpoints there. What
// the job demands (isolation, environment, residency) holds there too. Needs
// job.submit. Errors: fault.NotFound; fault.Invalid when a pool is not there, or
// none may have the data, isolates enough or fits the environment; fault.Conflict
// when the job has ended or is being stopped.
func (s *Service) Move(ctx context.Context, p project.Name, jid JobID, pools []string) (j Job, err error) {
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
		if j, err = s.cfg.Store.Job(ctx, tx, jid); err != nil {
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
		a, err := s.cfg.Store.Attempt(ctx, tx, j.Attempt)
		if err != nil || slices.Contains(pools, string(a.Pool)) {
			return err // it is there already
		}
		return s.ask(ctx, tx, a, Moved, fmt.Sprintf("moved to %s by %s", strings.Join(pools, ", "), who))
	})
	return j, fault.Wrap(err, "moving job %s", jid)
}

// pools are where the next attempt may run; empty is anywhere.
func (j Job) pools() []string {
	if len(j.Pools) > 0 {
		return j.Pools
	}
	return j.Spec.Pools
}
