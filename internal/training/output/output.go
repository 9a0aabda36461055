// Package output reads the files that a running attempt has written below its output directory,
// wherever that is: on this machine, or on the nodes of an engine. Package training says which
// attempt runs, and whether the caller may read of it.
package output

import (
	"context"
	"io"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/worker/outputdir"
)

// Attempt is the attempt of a job that runs, and where its output is.
type Attempt struct {
	ID     string
	Number int
	Dir    string // on this machine; empty where the output is on the nodes of an engine
	Most   int64  // bytes of a file
}

// Engine reaches the output of workloads on nodes.
type Engine interface {
	// ListOutput lists what the workers have written on the nodes of an engine; OpenOutput
	// opens a file of it that has no more than most bytes.
	ListOutput(ctx context.Context, id compute.WorkloadID, below string) (outputdir.Listing, error)
	OpenOutput(ctx context.Context, id compute.WorkloadID, path string, most int64) (io.ReadCloser, error)
}

// Output is what an attempt has written below its output directory so far.
type Output struct {
	Attempt string                 `json:"attempt"`
	Number  int                    `json:"number"`
	Files   []outputdir.OutputFile `json:"items"`
	More    bool                   `json:"more"` // there are more than the limits allow to list
}

// Files reads the output of running attempts. The API calls it. Safe for concurrent use.
type Files struct {
	// Running gives the running attempt of a job to callers who may read the job's log.
	// Errors: fault.NotFound; fault.Gone when the job has ended, and what it left are the
	// run's artifacts.
	Running func(ctx context.Context, p project.Name, job string) (Attempt, error)
	Engine  Engine
}

// List lists what the attempt that runs has written below its output directory, at and
// below a path. It takes what reading the job's log takes. Only plain files are listed, sorted by
// path. Of several workers on other machines the first one's is listed where two have a file of
// one path. Errors: those of Running; fault.Timeout where an agent does not answer.
func (s *Files) List(ctx context.Context, p project.Name, job, below string) (Output, error) {
	a, err := s.Running(ctx, p, job)
	if err != nil {
		return Output{}, err
	}
	out := Output{Attempt: a.ID, Number: a.Number, Files: []outputdir.OutputFile{}}
	below, err = outputdir.Clean(below)
	if err != nil {
		return out, err
	}
	l, err := s.of(a).list(ctx, below)
	if fault.Is(err, fault.NotFound) {
		return out, fault.New(fault.NotFound, "attempt %d of job %s has not written %q yet", a.Number, job, below).WithHint("List its files with `falaj job files %s`.", job)
	}
	if err != nil {
		return out, err
	}
	out.Files, out.More = append(out.Files, l.Files...), l.More
	return out, nil
}

// Open opens a file below the output directory of the attempt that runs: as many bytes as
// it has now, whatever the job goes on to write. Errors as of List; fault.TooLarge of
// one that is larger than an output may be, as a sparse file can be.
func (s *Files) Open(ctx context.Context, p project.Name, job, file string) (io.ReadCloser, error) {
	a, err := s.Running(ctx, p, job)
	if err != nil {
		return nil, err
	}
	name, err := outputdir.Clean(file)
	if err != nil {
		return nil, err
	}
	r, err := s.of(a).open(ctx, name, a.Most)
	if fault.Is(err, fault.NotFound) {
		return nil, fault.New(fault.NotFound, "attempt %d of job %s has no regular file %q", a.Number, job, name).WithHint("List its files with `falaj job files %s`; links that leave the output are not followed.", job)
	}
	return r, err
}

// written is the output of an attempt, wherever its files are.
type written interface {
	list(ctx context.Context, below string) (outputdir.Listing, error)
	open(ctx context.Context, name string, most int64) (io.ReadCloser, error)
}

func (s *Files) of(a Attempt) written {
	if a.Dir == "" {
		return remote{s.Engine, compute.WorkloadID(a.ID)}
	}
	return local{a.Dir}
}

// local is an output directory of this machine.
type local struct{ dir string }

func (h local) list(ctx context.Context, below string) (outputdir.Listing, error) {
	root, err := outputdir.OpenDir(h.dir)
	if err != nil {
		return outputdir.Listing{}, err
	}
	defer func() { _ = root.Close() }()
	return outputdir.List(ctx, root, below)
}

func (h local) open(_ context.Context, name string, most int64) (io.ReadCloser, error) {
	root, err := outputdir.OpenDir(h.dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	return outputdir.Open(root, name, most)
}

// remote is the output of workers on the nodes of an engine.
type remote struct {
	engine   Engine
	workload compute.WorkloadID
}

func (e remote) list(ctx context.Context, below string) (outputdir.Listing, error) {
	return e.engine.ListOutput(ctx, e.workload, below)
}

func (e remote) open(ctx context.Context, name string, most int64) (io.ReadCloser, error) {
	return e.engine.OpenOutput(ctx, e.workload, name, most)
}
