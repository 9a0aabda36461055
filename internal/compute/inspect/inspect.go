// Package inspect looks into running workloads: it profiles one of their workers, and lists and
// reads the output files that workers have written on the nodes. Both are optional powers of an
// engine. Nothing is stored and nothing stops.
//
// The caller has asked whether its own caller may.
package inspect

import (
	"context"
	"io"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/worker/outputdir"
	"github.com/falaj-ml/falaj/internal/worker/profiler"
)

// Inspector reaches workloads through the engines that run them. Safe for concurrent use.
type Inspector struct{ Programs *compute.Programs }

// Profile records for a while how a worker of a running workload spends its time. Errors:
// fault.NotFound; fault.Conflict when it does not run, or there is nothing to see;
// fault.Unsupported when its engine cannot, or its node.
func (s Inspector) Profile(ctx context.Context, wid compute.WorkloadID, r profiler.Request) (profiler.Result, error) {
	w, err := s.Programs.Started(ctx, wid)
	if err != nil {
		return profiler.Result{}, err
	}
	power, ok := w.Driver.(engine.Profiler)
	if !ok {
		return profiler.Result{}, fault.New(fault.Unsupported, "the engine of pool %s does not support profiling", w.Pool)
	}
	return power.Profile(ctx, w.Handle, r)
}

// ListOutput lists what the workers of a running workload have written below their output
// directories on the nodes of its engine, at and below a path. Errors: fault.NotFound;
// fault.Conflict when it does not run; fault.Timeout; fault.Unsupported.
func (s Inspector) ListOutput(ctx context.Context, wid compute.WorkloadID, below string) (outputdir.Listing, error) {
	power, h, err := s.outputs(ctx, wid)
	if err != nil {
		return outputdir.Listing{}, err
	}
	return power.ListOutput(ctx, h, below)
}

// OpenOutput opens a file that ListOutput lists, if it has no more than most bytes: as long
// as it is now. It must be closed. Errors as of ListOutput; fault.TooLarge.
func (s Inspector) OpenOutput(ctx context.Context, wid compute.WorkloadID, path string, most int64) (io.ReadCloser, error) {
	power, h, err := s.outputs(ctx, wid)
	if err != nil {
		return nil, err
	}
	return power.OpenOutput(ctx, h, path, most)
}

// outputs is the power of a workload's engine to read what its workers have written.
func (s Inspector) outputs(ctx context.Context, wid compute.WorkloadID) (engine.OutputFiles, engine.Handle, error) {
	w, err := s.Programs.Started(ctx, wid)
	if err != nil {
		return nil, "", err
	}
	power, ok := w.Driver.(engine.OutputFiles)
	if !ok {
		return nil, "", fault.New(fault.Unsupported, "the files of workload %s stay on the nodes of pool %s until it ends", wid, w.Pool).
			WithHint("To see a file earlier, log it with mlflow.log_artifact: it becomes an artifact of the run at once.")
	}
	return power, w.Handle, nil
}
