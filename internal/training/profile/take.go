package profile

import (
	"context"
	"os"
	"path/filepath"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/share"
	"github.com/falaj-ml/falaj/internal/worker/profiler"
)

// Look is what is asked for.
type Look struct {
	Worker  int           `json:"worker,omitempty" minimum:"0" doc:"Index of the worker, from 0"`
	Seconds int           `json:"seconds,omitempty" minimum:"0" maximum:"300" doc:"Duration in seconds; default 30"`
	Tool    profiler.Tool `json:"tool,omitempty" doc:"Profiler: py-spy (default), from the job's environment or its node; torch, where the program calls falaj.step(); nsys, where the program was started under nsys launch"`
}

const defaultLook = 30 // seconds

// WithDefaults fills in what is not said.
func (l Look) WithDefaults() Look {
	if l.Seconds == 0 {
		l.Seconds = defaultLook
	}
	if l.Tool == "" {
		l.Tool = profiler.PySpy
	}
	return l
}

// Check refuses what no profiler does. Error: fault.Invalid.
func (l Look) Check(id string) error {
	r := l.request(id)
	return r.Check()
}

func (l Look) request(id string) profiler.Request {
	return profiler.Request{ID: id, Tool: l.Tool, Seconds: l.Seconds, Worker: l.Worker}
}

// Seen is what a profiler saw of a worker, and how that spent its time.
type Seen struct {
	Worker  int           `json:"worker"`
	Tool    profiler.Tool `json:"tool"`
	Version string        `json:"version,omitempty"` // of the tool
	Seconds int           `json:"seconds"`
	Summary
}

// Files are what the tool wrote.
type Files []profiler.File

// Write writes them into a directory, and gives their names.
func (f Files) Write(dir string) (names []string, err error) {
	for _, one := range f {
		if err := os.WriteFile(filepath.Join(dir, one.Name), one.Data, 0o600); err != nil {
			return nil, err
		}
		names = append(names, one.Name)
	}
	return names, nil
}

// Engine runs a profiler beside a worker of a workload.
type Engine interface {
	// Profile looks for a while at what a worker does.
	Profile(ctx context.Context, id compute.WorkloadID, r profiler.Request) (profiler.Result, error)
}

// Order is a profile to be taken.
type Order struct {
	ID       string
	Job      string // for messages
	Workload compute.WorkloadID
	Look     Look
	Whose    share.Owner // is charged for the reading
	Several  bool        // other processes take part in the work
}

// Take has a worker of a workload profiled, and reads the result. Errors: those of the engine,
// and of Read.
func Take(ctx context.Context, e Engine, o Order) (Seen, Files, error) {
	l := o.Look
	r, err := e.Profile(ctx, o.Workload, l.request(o.ID))
	if err != nil {
		return Seen{}, nil, fault.Wrap(err, "profiling worker %d of %s", l.Worker, o.Job)
	}
	seen := Seen{Worker: l.Worker, Tool: l.Tool, Version: r.Version, Seconds: l.Seconds}
	if seen.Summary, err = Read(ctx, o.Whose, l.Tool, r, o.Several); err != nil {
		return Seen{}, nil, fault.Wrap(err, "reading the profile")
	}
	return seen, r.Files, nil
}
