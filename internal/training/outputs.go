package training

import (
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/training/output"
)

// Outputs reads the logs of attempts, and redacts them; output/ reads their files. The API calls
// it.
type Outputs struct{ *core }

// running is the running attempt of a job with its output, for callers who may read the job's
// log.
func (s *Outputs) running(ctx context.Context, p project.Name, job string) (output.Attempt, error) {
	jid := JobID(job)
	none := output.Attempt{}
	j, err := s.one(ctx, p, jid, ActionLogs)
	if err != nil {
		return none, err
	}
	if j.Classification.Journalled() {
		err := s.cfg.Journal.Record(ctx, audit.Entry{
			Actor: identity.From(ctx), Project: string(p), Action: string(ActionLogs), Object: "job " + string(jid), Outcome: audit.Done,
		})
		if err != nil {
			return none, fault.Wrap(err, "recording the read")
		}
	}
	if j.Attempt == "" {
		if j.State.Ended() {
			return none, fault.New(fault.Gone, "job %s has ended; its output is stored as artifacts of run %s", jid, j.Run).WithHint("Use `falaj run files %s` and `falaj run download`.", j.Run)
		}
		return none, fault.New(fault.NotFound, "job %s has not written any files yet: no attempt is running", jid).WithHint("`falaj job why %s` shows the wait reason.", jid)
	}
	var a Attempt
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		a, err = s.attemptStore.Attempt(ctx, tx, j.Attempt)
		return err
	})
	if err != nil {
		return none, err
	}
	out := output.Attempt{ID: string(a.ID), Number: a.Number, Most: cmp.Or(int64(j.Spec.Disk.Output), s.cfg.MaxOutput)}
	pools, _, err := s.cfg.Compute.PricedPools(ctx)
	if err != nil {
		return none, err
	}
	for _, pool := range pools {
		if pool.Name == a.Pool && pool.Remote {
			return out, nil
		}
	}
	out.Dir = s.dirs(jid, a.ID).output
	if _, err := os.Lstat(out.Dir); errors.Is(err, fs.ErrNotExist) {
		return none, fault.New(fault.NotFound, "job %s has not written any files yet", jid).WithHint("`falaj job why %s` shows its progress.", jid)
	}
	return out, nil
}

// Logs reads the output of a job's attempt from a byte offset; number 0 is the
// last attempt. With follow it continues until the attempt ends. Needs job.logs;
// for a job on confidential or restricted data the read is journalled first.
// Errors: fault.NotFound; fault.Gone when only the run's artifact is left.
func (s *Outputs) Logs(ctx context.Context, p project.Name, jid JobID, number int, offset int64, follow bool) (io.ReadCloser, error) {
	j, err := s.one(ctx, p, jid, ActionLogs)
	if err != nil {
		return nil, err
	}
	if offset < 0 {
		return nil, fault.New(fault.Invalid, "offset %d is negative", offset)
	}
	if j.Classification.Journalled() {
		err := s.cfg.Journal.Record(ctx, audit.Entry{
			Actor: identity.From(ctx), Project: string(p), Action: string(ActionLogs), Object: "job " + string(jid), Outcome: audit.Done,
		})
		if err != nil {
			return nil, fault.Wrap(err, "recording the read")
		}
	}
	for {
		changed, leave := s.watch(jid)
		defer leave()
		var attempts []Attempt
		err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
			if j, err = s.jobStore.Job(ctx, tx, jid); err != nil {
				return err
			}
			attempts, err = s.attemptStore.Attempts(ctx, tx, jid)
			return err
		})
		if err != nil {
			return nil, err
		}
		i := len(attempts) - 1
		if number > 0 {
			i = slices.IndexFunc(attempts, func(a Attempt) bool { return a.Number == number })
		}
		switch {
		case i >= 0:
			r, err := s.cfg.Compute.Logs(ctx, compute.WorkloadID(attempts[i].ID), offset, follow)
			if fault.Is(err, fault.Gone) || fault.Is(err, fault.NotFound) { // the record of the workload goes before the attempt's
				return nil, fault.New(fault.Gone, "the log of job %s is no longer available in its pool", jid).
					WithHint("Read the log from the artifacts of run %s, below logs/.", attempts[i].Run)
			}
			return r, err
		case number > 0:
			return nil, fault.New(fault.NotFound, "job %s has no attempt %d", jid, number)
		case !follow || j.State.Ended():
			return io.NopCloser(strings.NewReader("")), nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// MayReadLogs reports with an error that the caller may not read a job's output,
// or no longer. Needs job.logs.
func (s *Outputs) MayReadLogs(ctx context.Context, p project.Name, jid JobID) error {
	_, err := s.one(ctx, p, jid, ActionLogs)
	return err
}
