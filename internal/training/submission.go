package training

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"gonum.org/v1/gonum/stat"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/environment"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/share"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/training/checkpoint"
	"github.com/falaj-ml/falaj/internal/training/source"
)

// Submission accepts jobs: from people and manifests, from pipelines and sweeps (steps and
// trials), and it says what a job would get. The API, and the domains that make jobs, call it.
type Submission struct {
	*core
	archives *source.Archives
}

// Submit queues a new job. Needs job.submit, and leave to read every input.
// Errors: fault.Invalid; fault.NotFound for an input or environment that does
// not exist; fault.Conflict for a rejected dataset version;
// fault.PermissionDenied when no zone may hold all inputs together.
func (s *Submission) Submit(ctx context.Context, p project.Name, name string, spec Spec) (Job, error) {
	j, _, err := s.submit(ctx, p, name, spec, submission{})
	return j, err
}

// Apply is Submit for manifests: when the same job (name, specification and
// pinned inputs) is under way or has succeeded, it is given back unchanged.
func (s *Submission) Apply(ctx context.Context, p project.Name, name string, spec Spec) (Job, project.Change, error) {
	return s.submit(ctx, p, name, spec, submission{once: true})
}

// Plan is Apply that changes nothing: a job that would be queued has no ID yet.
func (s *Submission) Plan(ctx context.Context, p project.Name, name string, spec Spec) (Job, project.Change, error) {
	j, change, err := s.submit(ctx, p, name, spec, submission{once: true, dryRun: true})
	if change != project.Unchanged {
		j.ID = ""
	}
	return j, change, err
}

// SubmitStep is Submit of a job that runs a step for the dataset in spec.Into. Its id and
// its time of submission, which rank it in its queue, are from before its inputs were resolved.
func (s *Submission) SubmitStep(ctx context.Context, p project.Name, name string, spec Spec, step Step, job JobID, asked time.Time) (Job, error) {
	j, _, err := s.submit(ctx, p, name, spec, submission{step: &step, id: job, asked: asked})
	return j, err
}

// SubmitTrial is Submit of a job whose id the caller chose and recorded before.
func (s *Submission) SubmitTrial(ctx context.Context, p project.Name, name string, spec Spec, job JobID) (Job, error) {
	j, _, err := s.submit(ctx, p, name, spec, submission{id: job, asked: s.now()})
	return j, err
}

// Outlook says where a job would run, or why it would wait, and what that costs;
// it changes nothing. Needs job.submit. Errors as of Submit.
func (s *Submission) Outlook(ctx context.Context, p project.Name, name string, spec Spec) (compute.Outlook, error) {
	r, _, err := s.Propose(ctx, p, name, spec)
	if err != nil {
		return compute.Outlook{}, err
	}
	return s.cfg.Compute.DryRun(ctx, r)
}

// Propose is the workload that a job would be, and how long it would run, which has no basis
// where no earlier job of its name succeeded; nothing is submitted. Needs job.submit. Errors as
// of Submit.
func (s *Submission) Propose(ctx context.Context, p project.Name, name string, spec Spec) (r compute.Request, left compute.Left, err error) {
	j, _, err := s.submit(ctx, p, name, spec, submission{dryRun: true})
	if err != nil {
		return r, left, err
	}
	if err := s.cfg.Compute.CheckPools(ctx, j.Spec.Pools, j.Spec.Isolation, j.Residency); err != nil {
		return r, left, fault.Wrap(err, "pools")
	}
	if err := s.cfg.Compute.CheckQueue(ctx, p, j.Spec.Queue); err != nil {
		return r, left, fault.Wrap(err, "queue")
	}
	r = j.request()
	r.ID, r.Label = compute.WorkloadID(j.ID), name
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		if r.Speed, err = s.foreseen(ctx, tx, j); err != nil {
			return err
		}
		took, err := s.usual(ctx, tx, p, name)
		left, _ = usually(took, 0)
		return err
	})
	return r, left, err
}

// Doctor submits a job that looks around on a pool: two workers that measure
// their nodes and what lies between them, and print it (package worker/probe).
// Its program is falaj-worker itself, sent as the job's source, so that nodes
// need nothing. Needs job.submit.
func (s *Submission) Doctor(ctx context.Context, p project.Name, pool string) (Job, error) {
	if err := s.allow(ctx, ActionSubmit, Job{Project: p}); err != nil {
		return Job{}, err
	}
	if s.cfg.Worker == "" {
		return Job{}, fault.New(fault.Unsupported, "the path of falaj-worker is unknown on this server")
	}
	if s.cfg.Measure != nil {
		if err := s.cfg.Measure(ctx); err != nil {
			s.log.WarnContext(ctx, "measuring this machine failed", slog.Any("error", err))
		}
	}
	r, w := io.Pipe()
	go func() { _ = w.CloseWithError(source.PackProgram(w, s.cfg.Worker, programName)) }()
	src, err := s.archives.Upload(ctx, p, r)
	_ = r.Close()
	if err != nil {
		return Job{}, fault.Wrap(err, "packing falaj-worker")
	}
	spec := Spec{
		Command: []string{"./" + programName, "probe"}, Source: src.Digest, Pools: []string{pool}, Workers: Exactly(2),
		Resources: resource.Amount{CPU: resource.Cores(1) / 2, Memory: resource.GiB / 2}, Timeout: compute.Duration(10 * time.Minute), MaxAttempts: 1,
	}
	return s.Submit(ctx, p, "doctor-"+pool, spec)
}

// submission is how a job is submitted.
type submission struct {
	once   bool // not when the same one is under way or has succeeded
	dryRun bool // look, and change nothing
	// from is the job that this one repeats, and inputs what that one read.
	from   JobID
	inputs []Input
	step   *Step
	// id and asked are the job's; empty makes them.
	id    JobID
	asked time.Time
}

// same refuses inputs that are not those of the job that is repeated.
func (how submission) same(inputs []Input) error {
	for _, was := range how.inputs {
		i := slices.IndexFunc(inputs, func(in Input) bool { return in.Name == was.Name })
		if i < 0 || inputs[i].Ref != was.Ref || inputs[i].Digest != was.Digest {
			return fault.New(fault.Conflict, "%s has changed since job %s read it", was.Ref, how.from).
				WithHint("The version was deleted and its number reused. Submit a new job.")
		}
	}
	return nil
}

// Repeat submits a job again: the same specification, inputs, source and
// environment, each by digest. Needs job.submit, and job.read of that job.
// Errors besides those of Submit: fault.Conflict when something of it is no
// longer there.
func (s *Submission) Repeat(ctx context.Context, p project.Name, from JobID) (Job, error) {
	was, err := s.one(ctx, p, from, ActionRead)
	if err != nil {
		return Job{}, err
	}
	j, _, err := s.submit(ctx, p, was.Name, was.Pinned(), submission{from: was.ID, inputs: was.Inputs, step: was.Step})
	return j, fault.Wrap(err, "repeating job %s", from)
}

// mayQueue refuses a job beyond the share of its project, or of its principal. Error:
// fault.Exhausted.
func (s *Submission) mayQueue(ctx context.Context, tx *store.Tx, p project.Name, who identity.Principal) error {
	all, own, err := s.jobStore.CountAlive(ctx, tx, p, who.ID)
	if err != nil {
		return err
	}
	most, hint := s.cfg.MaxAlive, "Wait until jobs end, cancel some, or ask an administrator to raise limits.queued_jobs."
	switch {
	case all >= most:
		return share.Refused("queued_jobs", fmt.Sprintf("project %s has %d active jobs, its limit", p, all), hint, jobRetry)
	case who.Kind != identity.System && own >= max(1, most/2):
		return share.Refused("queued_jobs", fmt.Sprintf("%s has %d active jobs in project %s, the limit per principal", who, own, p), hint, jobRetry)
	}
	return nil
}

// jobRetry is the Retry-After of a job that was refused.
const jobRetry = time.Minute

func (s *Submission) submit(ctx context.Context, p project.Name, name string, spec Spec, how submission) (Job, project.Change, error) {
	who := identity.From(ctx)
	if err := s.allow(ctx, ActionSubmit, Job{Project: p}); err != nil {
		return Job{}, "", err
	}
	if err := id.CheckName("job name", name); err != nil {
		return Job{}, "", err
	}
	if err := spec.Validate(); err != nil {
		return Job{}, "", err
	}
	spec = spec.complete(s.cfg.Isolation)
	if err := s.permitted(spec); err != nil {
		err = audit.Describe(err, audit.Entry{Project: string(p), Action: string(ActionSubmit), Object: "job " + name})
		return Job{}, "", audit.RecordRefusal(ctx, s.cfg.Journal, err)
	}
	if err := s.checkSecrets(ctx, p, spec); err != nil {
		return Job{}, "", err
	}
	var code source.Stored
	if spec.Source != "" && !how.dryRun { // a dry run or a plan uploads none
		var err error
		if code, err = s.archives.Find(ctx, p, spec.Source); err != nil {
			return Job{}, "", err
		}
	}
	j := Job{
		ID: how.id, Project: p, Name: name, Spec: spec, State: Queued,
		By: Actor{ID: who.ID, Name: who.Name}, From: how.from, Step: how.step, SubmittedAt: how.asked.UTC(), Revision: 1,
	}
	if how.id == "" {
		j.ID, j.SubmittedAt = JobID(id.New("job")), s.now().UTC()
	}
	var err error
	if j.Due, err = spec.due(j.SubmittedAt); err != nil {
		return Job{}, "", err
	}
	var resume checkpoint.Record
	if spec.Resume != "" {
		var err error
		if resume, err = s.cfg.Checkpoints.Resolve(ctx, p, spec.Resume); err != nil {
			return Job{}, "", fault.Wrap(err, "resume")
		}
		j.Spec.Resume = resume.Job + "/" + resume.Name
	}
	// What the job can read decides where it may be.
	if err := s.pin(ctx, &j, resume); err != nil {
		return Job{}, "", err
	}
	if err := s.checkInto(ctx, j); err != nil {
		return Job{}, "", err
	}
	if !how.dryRun { // a plan may hold the pool, too
		if err := s.cfg.Compute.CheckPools(ctx, spec.Pools, spec.Isolation, j.Residency); err != nil {
			err = audit.Describe(err, audit.Entry{Project: string(p), Action: string(ActionSubmit), Object: "job " + name})
			return Job{}, "", fault.Wrap(err, "pools")
		}
		if err := s.checkTables(ctx, spec); err != nil {
			return Job{}, "", err
		}
		if err := s.cfg.Compute.CheckQueue(ctx, p, spec.Queue); err != nil {
			return Job{}, "", fault.Wrap(err, "queue")
		}
	}
	if err := how.same(j.Inputs); err != nil {
		return Job{}, "", err
	}
	var env environment.Usable
	if spec.Environment != "" {
		var err error
		if env, err = s.cfg.Environments.Use(ctx, p, spec.Environment); err == nil {
			err = s.cfg.Environments.Admit(ctx, p, spec.Environment, spec.Pools)
		}
		if err != nil {
			return Job{}, "", fault.Wrap(err, "job %s", name)
		}
	}
	j.EnvDigest = env.Digest // empty while it is being built
	j.Digest = digest(name, j.Spec, j.Inputs, env.Spec)

	change, asked := project.Created, j
	submit := func(ctx context.Context, tx *store.Tx) error {
		change, j = project.Created, asked // it may be tried again
		if how.once {
			last, err := s.jobStore.LastJob(ctx, tx, p, j.Digest)
			if err == nil && last.State != Failed && last.State != Cancelled {
				j, change = last, project.Unchanged
				return nil
			}
			if err != nil && !fault.Is(err, fault.NotFound) {
				return err
			}
		}
		if err := s.expect(ctx, tx, &j); err != nil {
			return err
		}
		if how.dryRun {
			return nil
		}
		if err := s.mayQueue(ctx, tx, p, who); err != nil {
			return err
		}
		if err := publish(ctx, tx, JobQueued, j); err != nil {
			return err
		}
		ready := spec.Environment == "" || env.State == environment.Ready
		var first Attempt
		if ready {
			first = s.next(&j)
		}
		if err := s.jobStore.InsertJob(ctx, tx, j); err != nil {
			return err
		}
		if spec.Source != "" {
			if err := s.archives.Use(ctx, tx, p, code); err != nil {
				return err
			}
		}
		err := audit.Append(ctx, tx, audit.Entry{
			Project: string(p), Action: string(ActionSubmit), Object: "job " + string(j.ID),
			Detail: map[string]any{"name": name, "digest": j.Digest, "inputs": refs(j.Inputs), "tables": spec.Tables, "into": spec.Into, "environment": spec.Environment, "residency": j.Residency.String()},
		})
		if err != nil {
			return err
		}
		if spec.Resume != "" {
			err := s.cfg.Checkpoints.Adopt(ctx, tx, resume, checkpoint.Job{
				ID: string(j.ID), Project: p, Owner: j.By.ID, Residency: j.Residency, Classification: j.Classification, Rules: spec.Checkpoints,
			})
			if err != nil {
				return err
			}
		}
		if !ready {
			tx.OnCommit(s.signal) // the loop makes the attempt once it is built
			return nil
		}
		return s.enter(ctx, tx, j, first, "", 0)
	}
	if how.dryRun {
		err = s.cfg.DB.View(ctx, submit)
	} else {
		err = s.cfg.DB.Update(ctx, string(p), submit)
	}
	if err != nil {
		return Job{}, "", fault.Wrap(err, "submitting job %s", name)
	}
	return j, change, nil
}

// permitted holds a specification against what the installation allows.
func (s *Submission) permitted(spec Spec) error {
	if !spec.Isolation.AtLeast(s.cfg.Isolation) && len(spec.Pools) == 0 {
		return fault.New(fault.Invalid, "spec.isolation: %s is weaker than %s, the minimum of this installation", spec.Isolation, s.cfg.Isolation).
			WithHint("Name pools in spec.pools that allow weaker isolation.")
	}
	if all := spec.Disk.Scratch + spec.Disk.Output + spec.Disk.Checkpoints; s.cfg.MostDisk > 0 && all > s.cfg.MostDisk || s.cfg.MostFiles > 0 && spec.Disk.Files > s.cfg.MostFiles {
		return fault.New(fault.Invalid, "spec.disk: %s and %d files exceed the limit of %s and %d files for each project (jobs.disk.project and jobs.disk.project_files)",
			all, spec.Disk.Files, s.cfg.MostDisk, s.cfg.MostFiles).WithHint("Request less, or ask an administrator to raise the limit; 0 is unlimited.")
	}
	for _, host := range spec.Network {
		if !slices.Contains(s.cfg.Network, host) {
			allowed := "none"
			if len(s.cfg.Network) > 0 {
				allowed = strings.Join(s.cfg.Network, ", ")
			}
			return fault.New(fault.PermissionDenied, "spec.network: %.200q is not on the egress allow-list", host).
				WithHint("Allowed by this installation: %s.", allowed)
		}
	}
	return nil
}

// pin resolves the inputs, and derives the job's zones and classification.
func (s *Submission) pin(ctx context.Context, j *Job, resume checkpoint.Record) error {
	parents := make([]residency.Parent, 0, len(j.Spec.Data)+1)
	classes := []project.Classification{project.Internal}
	if j.Spec.Resume != "" {
		parents = append(parents, residency.Parent{Name: "checkpoint " + j.Spec.Resume, Label: resume.Residency})
		classes = append(classes, resume.Classification)
	}
	j.Inputs = []Input{}
	for _, name := range slices.Sorted(maps.Keys(j.Spec.Data)) {
		in, err := s.cfg.Data.Resolve(ctx, j.Project, j.Spec.Data[name])
		if err != nil {
			return fault.Wrap(err, "data %s", name)
		}
		in.Name = name
		j.Inputs = append(j.Inputs, in)
		parents = append(parents, residency.Parent{Name: in.Ref, Label: in.Residency})
		classes = append(classes, in.Classification)
	}
	for _, name := range j.Spec.Tables {
		in, err := s.cfg.Tables.Pin(ctx, j.Project, name)
		if err != nil {
			return fault.Wrap(err, "table %s", name)
		}
		if in.Ref != "" {
			in.Name = name
			j.Tables = append(j.Tables, in)
			parents = append(parents, residency.Parent{Name: in.Ref, Label: in.Residency})
			classes = append(classes, in.Classification)
		}
	}
	label, err := residency.Derive(parents...)
	if err != nil {
		return err
	}
	j.Residency, j.Classification = label, project.Strictest(classes...)
	return nil
}

// checkInto refuses a dataset that cannot get what the job leaves.
func (s *Submission) checkInto(ctx context.Context, j Job) error {
	if j.Spec.Into == "" {
		return nil
	}
	if s.cfg.Rows == nil {
		return fault.New(fault.Unsupported, "writing rows into datasets is not enabled on this server")
	}
	earlier, err := s.earlier(ctx, j)
	if err == nil {
		err = s.cfg.Rows.Check(ctx, RowsSpec{Job: j, Earlier: earlier})
	}
	return fault.Wrap(err, "into %s", j.Spec.Into)
}

// checkTables refuses a job that names tables and may be placed where their files
// are not.
func (s *Submission) checkTables(ctx context.Context, spec Spec) error {
	if len(spec.Tables) == 0 {
		return nil
	}
	pools, _, err := s.cfg.Compute.PricedPools(ctx)
	if err != nil {
		return err
	}
	var here []string
	var away compute.PoolName
	for _, p := range pools {
		switch {
		case !p.Remote:
			here = append(here, string(p.Name))
		case len(spec.Pools) == 0 || slices.Contains(spec.Pools, string(p.Name)):
			away = p.Name
		}
	}
	if away == "" {
		return nil
	}
	return fault.New(fault.Invalid, "spec.tables: tables are only available on pools of the server's machine, and pool %s is remote", away).
		WithHint("Set spec.pools to %s.", cmp.Or(strings.Join(here, ", "), "a pool of the server's machine"))
}

// expect fills in how long a job with a deadline probably runs: what it says, or
// the 0.9 quantile of the last of its name that succeeded. Without those nothing
// is expected.
func (s *Submission) expect(ctx context.Context, tx *store.Tx, j *Job) error {
	if j.Due.IsZero() {
		return nil
	}
	if j.Expected = j.Spec.Expected; j.Expected > 0 {
		return nil
	}
	last, err := s.jobStore.Jobs(ctx, tx, j.Project, Filter{Name: j.Name, State: Succeeded, Limit: likeIt})
	if err != nil || len(last) == 0 {
		return fault.Wrap(err, "reading the durations of earlier jobs")
	}
	took := make([]float64, len(last))
	for i, l := range last {
		took[i] = float64(l.EndedAt.Sub(l.StartedAt))
	}
	slices.Sort(took)
	j.Expected = compute.Duration(stat.Quantile(0.9, stat.Empirical, took, nil))
	return nil
}

// checkSecrets refuses a job whose submitter may not use its secrets, or whose secrets
// do not exist.
func (s *Submission) checkSecrets(ctx context.Context, p project.Name, spec Spec) error {
	if len(spec.Secrets) > 0 && s.cfg.Secrets == nil {
		return fault.New(fault.Unsupported, "spec.secrets: secrets are not enabled in this installation")
	}
	for _, variable := range slices.Sorted(maps.Keys(spec.Secrets)) {
		ref := spec.Secrets[variable]
		if err := s.cfg.Secrets.Use(ctx, string(p), ref.Secret, ref.Key); err != nil {
			return fault.Wrap(err, "spec.secrets.%s", variable)
		}
	}
	return nil
}

func refs(inputs []Input) []string {
	out := make([]string, len(inputs))
	for i, in := range inputs {
		out[i] = in.Ref
	}
	return out
}

// programName of falaj-worker in the job's working directory.
const programName = "falaj-worker"
