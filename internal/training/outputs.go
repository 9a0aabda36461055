package training

import (
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
	"github.com/falaj-ml/falaj/internal/worker/outputdir"
)

// Outputs reads what attempts wrote: logs and files. It redacts the logs. The API calls it.
type Outputs struct{ *core }

// Output is what an attempt has written below its output directory so far.
type Output struct {
	Attempt AttemptID              `json:"attempt"`
	Number  int                    `json:"number"`
	Files   []outputdir.OutputFile `json:"items"`
	More    bool                   `json:"more"` // there are more than the limits allow to list
}

// OutputFiles lists what the attempt that runs has written below its output directory, at and
// below a path. It takes what reading the job's log takes. Only plain files are listed, sorted by
// path. Of several workers on other machines the first one's is listed where two have a file of
// one path. Errors: fault.NotFound; fault.Gone when the job has ended, and what it left are the run's
// artifacts; fault.Timeout where an agent does not answer.
func (s *Outputs) OutputFiles(ctx context.Context, p project.Name, jid JobID, below string) (Output, error) {
	a, _, from, err := s.outputOf(ctx, p, jid)
	if err != nil {
		return Output{}, err
	}
	out := Output{Attempt: a.ID, Number: a.Number, Files: []outputdir.OutputFile{}}
	below, err = outputdir.Clean(below)
	if err != nil {
		return out, err
	}
	l, err := from.list(ctx, below)
	if fault.Is(err, fault.NotFound) {
		return out, fault.New(fault.NotFound, "attempt %d of job %s has not written %q yet", a.Number, jid, below).WithHint("List its files with `falaj job files %s`.", jid)
	}
	if err != nil {
		return out, err
	}
	out.Files, out.More = append(out.Files, l.Files...), l.More
	return out, nil
}

// OpenOutput opens a file below the output directory of the attempt that runs: as many bytes as
// it has now, whatever the job goes on to write. Errors as of OutputFiles; fault.TooLarge of
// one that is larger than an output may be, as a sparse file can be.
func (s *Outputs) OpenOutput(ctx context.Context, p project.Name, jid JobID, file string) (io.ReadCloser, error) {
	a, j, from, err := s.outputOf(ctx, p, jid)
	if err != nil {
		return nil, err
	}
	name, err := outputdir.Clean(file)
	if err != nil {
		return nil, err
	}
	most := int64(j.Spec.Disk.Output)
	if most == 0 {
		most = s.cfg.MaxOutput
	}
	r, err := from.open(ctx, name, most)
	if fault.Is(err, fault.NotFound) {
		return nil, fault.New(fault.NotFound, "attempt %d of job %s has no regular file %q", a.Number, jid, name).WithHint("List its files with `falaj job files %s`; links that leave the output are not followed.", jid)
	}
	return r, err
}

// written is the output of an attempt, wherever its files are.
type written interface {
	list(ctx context.Context, below string) (outputdir.Listing, error)
	open(ctx context.Context, name string, most int64) (io.ReadCloser, error)
}

// here is an output directory of this machine.
type here struct{ dir string }

func (h here) list(ctx context.Context, below string) (outputdir.Listing, error) {
	root, err := outputdir.OpenDir(h.dir)
	if err != nil {
		return outputdir.Listing{}, err
	}
	defer func() { _ = root.Close() }()
	return outputdir.List(ctx, root, below)
}

func (h here) open(_ context.Context, name string, most int64) (io.ReadCloser, error) {
	root, err := outputdir.OpenDir(h.dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	return outputdir.Open(root, name, most)
}

// elsewhere is the output of workers on the nodes of an engine.
type elsewhere struct {
	Compute
	workload compute.WorkloadID
}

func (e elsewhere) list(ctx context.Context, below string) (outputdir.Listing, error) {
	return e.ListOutput(ctx, e.workload, below)
}

func (e elsewhere) open(ctx context.Context, name string, most int64) (io.ReadCloser, error) {
	return e.OpenOutput(ctx, e.workload, name, most)
}

// outputOf is the output directory of the running attempt, for callers who may read the job's log.
func (s *Outputs) outputOf(ctx context.Context, p project.Name, jid JobID) (a Attempt, j Job, from written, err error) {
	j, err = s.one(ctx, p, jid, ActionLogs)
	if err != nil {
		return a, j, nil, err
	}
	if j.Classification.Journalled() {
		err := s.cfg.Journal.Record(ctx, audit.Entry{
			Actor: identity.From(ctx), Project: string(p), Action: string(ActionLogs), Object: "job " + string(jid), Outcome: audit.Done,
		})
		if err != nil {
			return a, j, nil, fault.Wrap(err, "recording the read")
		}
	}
	if j.Attempt == "" {
		if j.State.Ended() {
			return a, j, nil, fault.New(fault.Gone, "job %s has ended; its output is stored as artifacts of run %s", jid, j.Run).WithHint("Use `falaj run files %s` and `falaj run download`.", j.Run)
		}
		return a, j, nil, fault.New(fault.NotFound, "job %s has not written any files yet: no attempt is running", jid).WithHint("`falaj job why %s` shows the wait reason.", jid)
	}
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		a, err = s.attemptStore.Attempt(ctx, tx, j.Attempt)
		return err
	})
	if err != nil {
		return a, j, nil, err
	}
	pools, _, err := s.cfg.Compute.PricedPools(ctx)
	if err != nil {
		return a, j, nil, err
	}
	for _, pool := range pools {
		if pool.Name == a.Pool && pool.Remote {
			return a, j, elsewhere{s.cfg.Compute, compute.WorkloadID(a.ID)}, nil
		}
	}
	dir := s.dirs(jid, a.ID).output
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return a, j, nil, fault.New(fault.NotFound, "job %s has not written any files yet", jid).WithHint("`falaj job why %s` shows its progress.", jid)
	}
	return a, j, here{dir}, nil
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
