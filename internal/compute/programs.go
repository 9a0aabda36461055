package compute

import (
	"context"
	"io"
	"strings"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/fault"
)

// Programs reaches the programs of workloads: their logs and members. The domains that own
// workloads call it; package inspect profiles them and reads their files.
type Programs struct{ *core }

// Started is a workload as its engine knows it.
type Started struct {
	Driver engine.Driver
	Handle engine.Handle
	Pool   PoolName
}

// Started gives the driver and handle of a workload that has started, for the optional powers
// of its engine. Errors: fault.NotFound; fault.Conflict before the start; fault.Unavailable when
// the engine is not configured.
func (s *Programs) Started(ctx context.Context, wid WorkloadID) (Started, error) {
	w, err := s.workload(ctx, wid)
	if err != nil {
		return Started{}, err
	}
	if w.Handle == "" {
		return Started{}, fault.New(fault.Conflict, "workload %s has not started", wid)
	}
	e, err := s.engineOf(ctx, w.Pool)
	return Started{e.Driver, w.Handle, w.Pool}, err
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
