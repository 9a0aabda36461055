package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/environment"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/training"
	"github.com/falaj-ml/falaj/internal/training/optimize"
	"github.com/falaj-ml/falaj/internal/training/output"
	"github.com/falaj-ml/falaj/internal/training/profile"
)

// maxWait is how long a request may be held for a job to end.
const maxWait = time.Minute

func (s *Server) trainingRoutes(p string) {
	route(s, "GET", p+"/environments", "environment.read", "List environments", s.listEnvironments)
	route(s, "GET", p+"/environments/{name}", "environment.read", "Get an environment; with wait, when its build has finished", s.oneEnvironment)
	s.raw("GET", p+"/environments/{name}/logs", "environment.read", "Get an environment's build log", media{gives: "text/plain"}, s.environmentLogs)
	s.environmentRoutes(p)

	s.raw("POST", "/api/v1/jobs/read", "", "Parse manifests of jobs as apply does, and return them as JSON", media{takes: "application/yaml", gives: "application/json"}, s.readJobs).takes(yamlBody).keepsNothing()
	route(s, "GET", p+"/jobs", "job.read", "List jobs, newest first", s.listJobs)
	route(s, "POST", p+"/jobs", "job.submit", "Submit a job", s.submitJob)
	route(s, "POST", p+"/jobs/plan", "job.submit", "Plan a job without submitting it: placement or wait reasons", s.planJob)
	route(s, "POST", p+"/jobs/simulate", "job.submit", "Get the scheduler's view of a job and its estimated run time, without submitting it", s.proposeJob).keepsNothing()
	route(s, "GET", p+"/jobs/{job}", "job.read", "Get a job; with wait, when it has finished", s.oneJob)
	route(s, "POST", p+"/jobs/{job}/cancel", "job.cancel", "Cancel a job", s.cancelJob).keepsNothing()
	route(s, "POST", p+"/jobs/{job}/redact", "erasure.apply", "Redact texts in a job's script, attempts and logs, or find them", s.redactJob)
	route(s, "POST", p+"/jobs/{job}/resize", "job.submit", "Change the number of workers of a job", s.resizeJob)
	route(s, "POST", p+"/jobs/{job}/move", "job.submit", "Move a job to other pools", s.moveJob)
	route(s, "GET", p+"/jobs/{job}/top", "job.read", "Get the current resource use of a job's workers, its progress and the time left", s.topJob)
	route(s, "GET", p+"/jobs/{job}/advice", "job.read", "Get a job's resource use and right-sizing recommendations", s.jobAdvice)
	route(s, "GET", p+"/jobs/{job}/optimization", "job.read", "Get the measurements of each candidate of a model optimisation job", s.jobOptimization)
	route(s, "GET", p+"/jobs/{job}/profiles", "job.read", "List profiles of a job's workers, oldest first", s.listProfiles)
	route(s, "POST", p+"/jobs/{job}/profiles", "job.profile", "Profile a worker of a running job; returns when the profile is complete", s.profileJob)
	route(s, "GET", p+"/jobs/{job}/why", "job.read", "Explain a job's state: wait reasons or placement", s.whyJob)
	s.raw("GET", p+"/jobs/{job}/logs", "job.logs", "Get a job's logs", media{gives: "text/plain"}, s.jobLogs,
		query("attempt", "Number of the attempt; the newest by default"), query("offset", "Number of bytes to skip"), query("follow", "true: stream until the attempt ends"))
	route(s, "GET", p+"/jobs/{job}/files", "job.logs", "List the output files of a running job", s.jobFiles)
	s.raw("GET", p+"/jobs/{job}/files/content", "job.logs", "Get an output file of a running job, as it is now", media{gives: "application/octet-stream"}, s.jobFile,
		query("path", "Path below the output directory"))
	s.raw("POST", p+"/sources", "job.submit", "Upload a source archive (tar.gz) for jobs", media{takes: "application/gzip", gives: "application/json"}, s.uploadSource).takes(fileBody)
}

func (s *Server) trainingKinds() map[string]applier {
	return map[string]applier{
		"Environment": {gate: "environment.apply", apply: decoded(func(ctx context.Context, p, name string, spec environment.Spec, dry bool) (applied, error) {
			apply := s.Environments.Apply
			if dry {
				apply = s.Environments.Plan
			}
			e, change, err := apply(ctx, project.Name(p), name, spec)
			return applied{Result: string(change), ID: string(e.ID)}, err
		}), show: func(ctx context.Context, p, name string) (string, any, error) {
			e, err := s.Environments.One(ctx, project.Name(p), name)
			return e.Name, e.Spec, err
		}},
		"Job": {gate: "job.submit", apply: decoded(func(ctx context.Context, p, name string, spec training.Spec, dry bool) (applied, error) {
			apply := s.Training.Submission.Apply
			if dry {
				apply = s.Training.Submission.Plan
			}
			j, change, err := apply(ctx, project.Name(p), name, spec)
			if err != nil {
				return applied{}, err
			}
			asks := []resource.Amount{spec.Resources}
			for _, r := range spec.Roles {
				asks = append(asks, r.Resources)
			}
			return applied{Result: string(change), ID: string(j.ID), Warnings: s.Compute.Pools.WarnUnknownAccelerators(ctx, asks...)}, nil
		}), show: func(ctx context.Context, p, id string) (string, any, error) {
			j, err := s.Training.Jobs.One(ctx, project.Name(p), training.JobID(id))
			return j.Name, j.Spec, err
		}},
	}
}

// InJob is the path of a job.
type InJob struct {
	InProject
	Job string `path:"job" maxLength:"64" doc:"Job"`
}

func (s *Server) listJobs(ctx context.Context, in *struct {
	InProject
	Page
	State string `query:"state" doc:"Only jobs in this state"`
	Name  string `query:"name" maxLength:"63" doc:"Only jobs of this name"`
},
) (*body[items[training.Job]], error) {
	jobs, next, err := s.Training.Jobs.List(ctx, project.Name(in.Project), training.Filter{
		State: training.State(in.State), Name: in.Name, Limit: in.Size, Before: training.JobID(in.Token),
	})
	return listed(jobs, string(next), err)
}

func (s *Server) submitJob(ctx context.Context, in *struct {
	InProject
	Body struct {
		Name string         `json:"name,omitempty" doc:"Display name"`
		Spec *training.Spec `json:"spec,omitempty"`
		From string         `json:"from,omitempty" maxLength:"64" doc:"Repeat this job instead: the same specification, inputs, source and environment"`
	}
},
) (*body[training.Job], error) {
	switch {
	case in.Body.From != "" && (in.Body.Name != "" || in.Body.Spec != nil):
		return nil, fault.New(fault.Invalid, "name and spec cannot be set with from, which repeats a job unchanged")
	case in.Body.From != "":
		return one(s.Training.Submission.Repeat(ctx, project.Name(in.Project), training.JobID(in.Body.From)))
	case in.Body.Spec == nil:
		return nil, fault.New(fault.Invalid, "a job needs a spec").WithHint("Set spec, or from with the job to repeat.")
	}
	return one(s.Training.Submission.Submit(ctx, project.Name(in.Project), in.Body.Name, *in.Body.Spec))
}

// readJob is a job as its manifest has it.
type readJob struct {
	Name    string          `json:"name"`
	Project string          `json:"project,omitempty"`
	Spec    json.RawMessage `json:"spec"`
}

// readJobs reads manifests for who submits them, plans or simulates: what apply
// refuses, they refuse, with the same words.
func (s *Server) readJobs(w http.ResponseWriter, r *http.Request) {
	docs, err := manifests(r, s.appliers())
	if err != nil {
		s.fail(w, r, err)
		return
	}
	jobs := make([]readJob, len(docs))
	for i, d := range docs {
		if d.Kind != "Job" {
			s.fail(w, r, fault.New(fault.Invalid, "line %d: %s is of kind %s, not Job", d.Line, d.Name, d.Kind).WithHint("Use `falaj apply` for other kinds."))
			return
		}
		jobs[i] = readJob{Name: d.Name, Project: d.Project}
		if jobs[i].Spec, err = d.JSON(new(training.Spec)); err != nil {
			s.fail(w, r, fault.Wrap(err, "%s %s (line %d)", d.Kind, d.Name, d.Line))
			return
		}
	}
	answer(w, http.StatusOK, items[readJob]{Items: jobs})
}

func (s *Server) planJob(ctx context.Context, in *struct {
	InProject
	Body struct {
		Name string        `json:"name,omitempty" doc:"Display name"`
		Spec training.Spec `json:"spec"`
	}
},
) (*body[compute.Outlook], error) {
	return one(s.Training.Submission.Outlook(ctx, project.Name(in.Project), in.Body.Name, in.Body.Spec))
}

func (s *Server) oneJob(ctx context.Context, in *struct {
	InJob
	Wait  string `query:"wait" doc:"Wait until the job has ended, at most this time, such as 30s; at most 1m"`
	Phase string `query:"phase" maxLength:"4096" doc:"With wait and the basic view: return when the phase differs from this one; - means no phase"`
	View  string `query:"view" enum:"basic,full" default:"basic" doc:"full adds the attempts and wait reasons"`
},
) (*body[any], error) {
	p, id := project.Name(in.Project), training.JobID(in.Job)
	if in.Wait != "" {
		d, err := time.ParseDuration(in.Wait)
		if err != nil || d < 0 {
			return nil, fault.New(fault.Invalid, "wait: %q is not a duration such as 30s", in.Wait)
		}
		if in.Phase != "" && in.View != "full" {
			j, phase, err := s.Training.Jobs.PhaseAfter(ctx, p, id, in.Phase, min(d, maxWait))
			return one[any](struct {
				training.Job
				Phase string `json:"phase"`
			}{j, phase}, err)
		}
		if _, err := s.Training.Jobs.Wait(ctx, p, id, min(d, maxWait)); err != nil {
			return nil, err
		}
	}
	if in.View == "full" {
		d, err := s.Training.Jobs.Describe(ctx, p, id)
		return one[any](d, err)
	}
	j, err := s.Training.Jobs.One(ctx, p, id)
	return one[any](j, err)
}

func (s *Server) cancelJob(ctx context.Context, in *InJob) (*body[training.Job], error) {
	return one(s.Training.Control.Cancel(ctx, project.Name(in.Project), training.JobID(in.Job)))
}

func (s *Server) redactJob(ctx context.Context, in *struct {
	InJob
	Body struct {
		Texts  []string `json:"texts" minItems:"1" maxItems:"100" doc:"Texts to replace by asterisks; never logged or returned"`
		Reason string   `json:"reason,omitempty" maxLength:"2000" doc:"Reason; kept permanently, so it must not contain the texts"`
		DryRun bool     `json:"dry_run,omitempty" doc:"Only report where the texts occur"`
	}
},
) (*body[items[training.Redacted]], error) {
	found, err := s.Training.Outputs.Redact(ctx, project.Name(in.Project), training.JobID(in.Job), training.RedactRequest{Texts: in.Body.Texts, Reason: in.Body.Reason, Dry: in.Body.DryRun})
	return listed(found, "", err)
}

func (s *Server) resizeJob(ctx context.Context, in *struct {
	InJob
	Body struct {
		Workers training.Workers `json:"workers" doc:"A number, or {min, max}"`
	}
},
) (*body[training.Job], error) {
	return one(s.Training.Control.Resize(ctx, project.Name(in.Project), training.JobID(in.Job), in.Body.Workers))
}

func (s *Server) moveJob(ctx context.Context, in *struct {
	InJob
	Body struct {
		Pools []string `json:"pools" doc:"Pools to move the job to, on any engine"`
	}
},
) (*body[training.Job], error) {
	return one(s.Training.Control.Move(ctx, project.Name(in.Project), training.JobID(in.Job), in.Body.Pools))
}

func (s *Server) topJob(ctx context.Context, in *InJob) (*body[training.Top], error) {
	return one(s.Training.Usage.Top(ctx, project.Name(in.Project), training.JobID(in.Job)))
}

func (s *Server) jobAdvice(ctx context.Context, in *InJob) (*body[training.Advice], error) {
	return one(s.Training.Usage.Advice(ctx, project.Name(in.Project), training.JobID(in.Job)))
}

func (s *Server) jobOptimization(ctx context.Context, in *InJob) (*body[optimize.Report], error) {
	return one(s.Optimize.Report(ctx, project.Name(in.Project), training.JobID(in.Job)))
}

func (s *Server) listProfiles(ctx context.Context, in *InJob) (*body[items[training.Profile]], error) {
	all, err := s.Training.Usage.Profiles(ctx, project.Name(in.Project), training.JobID(in.Job))
	return listed(all, "", err)
}

func (s *Server) profileJob(ctx context.Context, in *struct {
	InJob
	Body profile.Look
},
) (*body[training.Profile], error) {
	return one(s.Training.Usage.Profile(ctx, project.Name(in.Project), training.JobID(in.Job), in.Body))
}

type reasons struct {
	Reasons  []string         `json:"reasons"`
	Possible bool             `json:"possible" doc:"False for a pending job that no pool can run in the current configuration"`
	Waits    []compute.Reason `json:"waits" doc:"Wait reasons of a pending job, by code"`
}

func (s *Server) whyJob(ctx context.Context, in *InJob) (*body[reasons], error) {
	p, id := project.Name(in.Project), training.JobID(in.Job)
	why, err := s.Training.Jobs.Why(ctx, p, id)
	if err != nil {
		return nil, err
	}
	waits, possible, err := s.Training.Jobs.Waits(ctx, p, id)
	return one(reasons{why, possible, waits}, err)
}

func (s *Server) jobLogs(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	offset, err := number(q.Get("offset"))
	attempt, err2 := number(q.Get("attempt"))
	if err != nil || err2 != nil {
		s.fail(w, r, fault.New(fault.Invalid, "offset and attempt must be integers from 0"))
		return
	}
	p, id := project.Name(r.PathValue("project")), training.JobID(r.PathValue("job"))
	open := func(ctx context.Context, follow bool) (io.ReadCloser, error) {
		return s.Training.Outputs.Logs(ctx, p, id, int(attempt), offset, follow)
	}
	if q.Get("follow") == "true" {
		s.follow(w, r, func(ctx context.Context) error { return s.Training.Outputs.MayReadLogs(ctx, p, id) }, open)
		return
	}
	logs, err := open(r.Context(), false)
	s.stream(w, r, logs, err)
}

type jobFilesInput struct {
	Project string `path:"project"`
	Job     string `path:"job"`
	Path    string `query:"path" maxLength:"4096" doc:"A file or directory below the output directory; default: all"`
}

func (s *Server) jobFiles(ctx context.Context, in *jobFilesInput) (*body[output.Output], error) {
	out, err := s.Training.Files.List(ctx, project.Name(in.Project), in.Job, in.Path)
	return &body[output.Output]{Body: out}, err
}

func (s *Server) jobFile(w http.ResponseWriter, r *http.Request) {
	from, err := s.Training.Files.Open(r.Context(), project.Name(r.PathValue("project")), r.PathValue("job"), r.URL.Query().Get("path"))
	if err != nil {
		s.fail(w, r, err)
		return
	}
	defer func() { _ = from.Close() }()
	w.Header().Set("Content-Type", "application/octet-stream")
	counted := &firstByte{ResponseWriter: w}
	if _, err := io.Copy(counted, from); err != nil {
		if !counted.written {
			s.fail(w, r, err)
			return
		}
		s.logInternal(r.Context(), r.URL.Path, err)
		panic(http.ErrAbortHandler)
	}
}

// follow streams text until it ends, or the caller may no longer read it: that is
// asked again at each heartbeat.
func (s *Server) follow(w http.ResponseWriter, r *http.Request, may func(context.Context) error, open func(ctx context.Context, follow bool) (io.ReadCloser, error)) {
	leave, err := s.follows.Take(r.Context(), identity.Share(r.Context(), project.Name(r.PathValue("project"))))
	if err != nil {
		s.fail(w, r, err)
		return
	}
	defer leave()
	ctx, cancel := context.WithCancelCause(r.Context())
	asking := make(chan struct{})
	go func() {
		defer close(asking)
		beat := time.NewTicker(s.cfg.Heartbeat)
		defer beat.Stop()
		for {
			select {
			case <-beat.C:
			case <-ctx.Done():
				return
			}
			now, err := s.principal(r)
			if err == nil {
				err = may(identity.With(ctx, now))
			}
			if err != nil {
				cancel(err)
				return
			}
		}
	}()
	defer func() {
		cancel(nil)
		<-asking // the request is the server's again
	}()
	text, err := open(ctx, true)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	s.stream(w, r.WithContext(ctx), text, err)
}

func number(s string) (int64, error) {
	if s == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(s, 10, 62)
	return int64(n), err
}

// stream copies text as it comes. What ends before its end is broken off, so that
// nobody takes a part for the whole.
func (s *Server) stream(w http.ResponseWriter, r *http.Request, from io.ReadCloser, err error) {
	if err != nil {
		s.fail(w, r, err)
		return
	}
	defer func() { _ = from.Close() }()
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	control := http.NewResponseController(w)
	buf := make([]byte, 32<<10)
	for begun := false; ; {
		n, err := from.Read(buf)
		if cut := context.Cause(r.Context()); cut != nil {
			n, err = 0, cut // however much there still is to read
		}
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return // the reader went away
			}
			begun = true
			_ = control.Flush()
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF):
			return
		case !begun:
			s.fail(w, r, err)
			return
		default:
			s.logInternal(r.Context(), r.URL.Path, err)
			panic(http.ErrAbortHandler)
		}
	}
}

func (s *Server) uploadSource(w http.ResponseWriter, r *http.Request) {
	src, err := s.Training.SourceArchives.Upload(r.Context(), project.Name(r.PathValue("project")), r.Body)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	answer(w, http.StatusCreated, src)
}

func (s *Server) listEnvironments(ctx context.Context, in *struct {
	InProject
	Page
},
) (*body[items[environment.Environment]], error) {
	return listed(s.Environments.List(ctx, project.Name(in.Project), in.Token, in.Size))
}

func (s *Server) oneEnvironment(ctx context.Context, in *struct {
	InEnvironment
	Wait  string `query:"wait" doc:"Wait until the build has ended, at most this time, such as 30s; at most 1m"`
	Phase string `query:"phase" maxLength:"4096" doc:"With wait: return when the phase differs from this one; - means no phase"`
},
) (*tagged[phasedEnvironment], error) {
	p, phase := project.Name(in.Project), ""
	if in.Wait != "" {
		d, err := time.ParseDuration(in.Wait)
		if err != nil || d < 0 {
			return nil, fault.New(fault.Invalid, "wait: %q is not a duration such as 30s", in.Wait)
		}
		waiting, cancel := context.WithTimeout(ctx, min(d, maxWait))
		defer cancel()
		if in.Phase != "" {
			phase, err = s.Environments.PhaseAfter(waiting, p, in.Name, in.Phase)
		} else {
			err = s.Environments.Await(waiting, p, in.Name)
		}
		if err != nil && waiting.Err() == nil && !fault.Is(err, fault.Invalid) {
			return nil, err
		}
	}
	e, err := s.Environments.One(ctx, p, in.Name)
	return revised(phasedEnvironment{e, phase}, e.Revision, err)
}

// phasedEnvironment is an environment and, for who waits for it, its phase.
type phasedEnvironment struct {
	environment.Environment
	Phase string `json:"phase,omitempty" doc:"Progress of the build and its wait reason; only in responses to requests with phase"`
}

func (s *Server) environmentLogs(w http.ResponseWriter, r *http.Request) {
	logs, err := s.Environments.Logs(r.Context(), project.Name(r.PathValue("project")), r.PathValue("name"))
	s.stream(w, r, logs, err)
}
