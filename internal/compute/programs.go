package compute

import (
	"context"
	"io"
	"strings"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/worker/outputdir"
	"github.com/falaj-ml/falaj/internal/worker/profiler"
)

// Programs reaches the programs of workloads: their logs, output files, members and profiles.
// The domains that own workloads call it.
type Programs struct{ *core }

// Profile looks for a while at what a worker of a running workload does. Errors:
// fault.NotFound; fault.Conflict when it does not run, or there is nothing to see;
// fault.Unsupported when its engine cannot, or its node.
func (s *Programs) Profile(ctx context.Context, wid WorkloadID, r profiler.Request) (profiler.Result, error) {
	w, err := s.workload(ctx, wid)
	if err != nil {
		return profiler.Result{}, err
	}
	if w.Handle == "" {
		return profiler.Result{}, fault.New(fault.Conflict, "workload %s has not started", wid)
	}
	e, err := s.engineOf(ctx, w.Pool)
	if err != nil {
		return profiler.Result{}, err
	}
	power, ok := e.Driver.(engine.Profiler)
	if !ok {
		return profiler.Result{}, fault.New(fault.Unsupported, "the engine of pool %s does not support profiling", w.Pool)
	}
	return power.Profile(ctx, w.Handle, r)
}

// outputs is the power of a workload's engine to read what its workers have written.
func (s *Programs) outputs(ctx context.Context, wid WorkloadID) (engine.OutputFiles, engine.Handle, error) {
	w, err := s.workload(ctx, wid)
	if err != nil {
		return nil, "", err
	}
	if w.Handle == "" {
		return nil, "", fault.New(fault.Conflict, "workload %s has not started", wid)
	}
	e, err := s.engineOf(ctx, w.Pool)
	if err != nil {
		return nil, "", err
	}
	power, ok := e.Driver.(engine.OutputFiles)
	if !ok {
		return nil, "", fault.New(fault.Unsupported, "the files of workload %s stay on the nodes of pool %s until it ends", wid, w.Pool).
			WithHint("To see a file earlier, log it with mlflow.log_artifact: it becomes an artifact of the run at once.")
	}
	return power, w.Handle, nil
}

// ListOutput lists what the workers of a running workload have written below their output
// directories on the nodes of its engine, at and below a path. Errors: fault.NotFound;
// fault.Conflict when it does not run; fault.Timeout; fault.Unsupported.
func (s *Programs) ListOutput(ctx context.Context, wid WorkloadID, below string) (outputdir.Listing, error) {
	power, h, err := s.outputs(ctx, wid)
	if err != nil {
		return outputdir.Listing{}, err
	}
	return power.ListOutput(ctx, h, below)
}

// OpenOutput opens a file that ListOutput lists, if it has no more than most bytes: as long
// as it is now. It must be closed. Errors as of ListOutput; fault.TooLarge.
func (s *Programs) OpenOutput(ctx context.Context, wid WorkloadID, path string, most int64) (io.ReadCloser, error) {
	power, h, err := s.outputs(ctx, wid)
	if err != nil {
		return nil, err
	}
	return power.OpenOutput(ctx, h, path, most)
}

// Members gives what is known of each worker of a workload, in order; nothing
// before it was started. Errors: fault.NotFound; fault.Unavailable when its
// engine does not answer.
func (s *Programs) Members(ctx context.Context, wid WorkloadID) ([]engine.Member, error) {
	w, err := s.workload(ctx, wid)
	if err != nil || w.Handle == "" {
		return nil, err
	}
	e, err := s.engineFor(ctx, w)
	if err != nil {
		return nil, err
	}
	if power, ok := e.Driver.(engine.Members); ok {
		members, err := power.Members(ctx, w.Handle)
		for i := range members {
			members[i].Role = w.role(members[i].Index)
		}
		return members, err
	}
	st, err := e.Driver.Status(ctx, w.Handle)
	if err != nil {
		return nil, err
	}
	m := engine.Member{
		Role: w.role(0), State: st.State, Reason: st.Reason, ExitCode: st.ExitCode, Signal: st.Signal, Message: st.Message,
		Started: st.Started, Ended: st.Ended, CPU: st.CPU, PeakRSS: st.PeakRSS,
	}
	if len(w.Nodes) > 0 {
		m.Node = w.Nodes[0]
	}
	return []engine.Member{m}, nil
}

// Driver returns the engine of a workload, for requests of the agents on its
// nodes. Errors: fault.NotFound; fault.Conflict before the workload is
// placed; fault.Unavailable when the engine is not configured.
func (s *Programs) Driver(ctx context.Context, wid WorkloadID) (engine.Driver, error) {
	w, err := s.workload(ctx, wid)
	if err != nil {
		return nil, err
	}
	if w.Pool == "" {
		return nil, fault.New(fault.Conflict, "workload %s is not placed", wid)
	}
	e, err := s.engineOf(ctx, w.Pool)
	return e.Driver, err
}

// Logs reads a workload's combined output from a byte offset. With follow it
// waits for the start and reads until the workload ends or ctx is done. Without
// output the reader is empty. Errors: fault.NotFound; fault.Gone when the
// output was forgotten, or is with an engine that is no longer configured.
func (s *Programs) Logs(ctx context.Context, wid WorkloadID, offset int64, follow bool) (io.ReadCloser, error) {
	w, err := s.workload(ctx, wid)
	if err != nil {
		return nil, err
	}
	if follow && w.State != Running && w.State != Ended {
		w, err = s.await(ctx, wid, func(w Workload) bool { return w.State == Running || w.State == Ended })
		if err != nil {
			return nil, err
		}
	}
	if w.Handle == "" {
		if w.Settled && w.Status.Reason != engine.NotStarted && !w.StartedAt.IsZero() {
			kept := s.cfg.Retention
			if w.Kind == Replica {
				kept = min(briefly, kept)
			}
			return nil, fault.New(fault.Gone, "the output of %s was removed after %s", w.Label, kept)
		}
		return io.NopCloser(strings.NewReader("")), nil
	}
	e, err := s.engineFor(ctx, w)
	if err != nil {
		return nil, err
	}
	return e.Driver.Logs(ctx, w.Handle, offset, follow)
}
