package training

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/environment"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/scheduler"
	"github.com/falaj-ml/falaj/internal/share"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/training/checkpoint"
	"github.com/falaj-ml/falaj/internal/worker/outputdir"
	"github.com/falaj-ml/falaj/internal/worker/profiler"
	"github.com/falaj-ml/falaj/internal/worker/settled"
)

// Authorizer is the question this package asks before it acts.
type Authorizer interface {
	Allow(ctx context.Context, action policy.Action, object policy.Object) error
}

// Compute runs attempts.
type Compute interface {
	Submit(ctx context.Context, tx *store.Tx, r compute.Request) error
	// Growth is how many workers more a running workload could have where it is.
	Growth(id compute.WorkloadID) int
	// CheckPools refuses pools that are not there, or of which none may take it.
	CheckPools(ctx context.Context, names []string, least scheduler.Isolation, label residency.Label) error
	// CheckQueue refuses a queue that is not there, or not for the project.
	CheckQueue(ctx context.Context, p project.Name, name string) error
	// DryRun says what a workload would get now, and takes nothing.
	DryRun(ctx context.Context, r compute.Request) (compute.Outlook, error)
	// Pace is told how fast a workload is with each number of workers, from the least
	// on, and what a restart costs it.
	Pace(id compute.WorkloadID, least int, speed []float64, restart time.Duration)
	// Bound gives a workload that keeps its place other bounds of its size.
	Bound(ctx context.Context, tx *store.Tx, id compute.WorkloadID, least, most int, speed []float64) error
	// Idle receives the time since when a workload's accelerators are idle.
	Idle(id compute.WorkloadID, since time.Time)
	Cancel(ctx context.Context, tx *store.Tx, id compute.WorkloadID, reason string) error
	Why(ctx context.Context, id compute.WorkloadID) ([]string, error)
	// Waits says why it waits, for programs, and whether it can run as things are.
	Waits(id compute.WorkloadID) (of []compute.Reason, possible bool)
	Logs(ctx context.Context, id compute.WorkloadID, offset int64, follow bool) (io.ReadCloser, error)
	// Members says what is known of each worker, in order; nothing where the
	// engine tells nothing.
	Members(ctx context.Context, id compute.WorkloadID) ([]engine.Member, error)
	// Profile looks for a while at what a worker does.
	Profile(ctx context.Context, id compute.WorkloadID, r profiler.Request) (profiler.Result, error)
	// ListOutput lists what the workers have written on the nodes of an engine; OpenOutput
	// opens a file of it that has no more than most bytes.
	ListOutput(ctx context.Context, id compute.WorkloadID, below string) (outputdir.Listing, error)
	OpenOutput(ctx context.Context, id compute.WorkloadID, path string, most int64) (io.ReadCloser, error)
	// PricedPools lists all pools as they are, and the currency of their prices.
	PricedPools(ctx context.Context) ([]compute.Pool, string, error)
	// Blame keeps work away from a node until a time.
	Blame(ctx context.Context, tx *store.Tx, pool compute.PoolName, node, reason string, until time.Time) error
}

// Environments gives built environments.
type Environments interface {
	// Use gives an environment by name or name@digest. Errors: fault.NotFound;
	// fault.Invalid with the reason when its build failed.
	Use(ctx context.Context, p project.Name, ref string) (environment.Usable, error)
	// Await returns when the environment is built or cannot be.
	Await(ctx context.Context, p project.Name, ref string) error
	// Phase says in words how far the environment is.
	Phase(ctx context.Context, p project.Name, ref string) (string, error)
	// Admit refuses an environment that none of the pools can run, of all where
	// none is named, and says why of each.
	Admit(ctx context.Context, p project.Name, ref string, pools []string) error
	// Check refuses a pool that the environment cannot run on.
	Check(u environment.Usable, p compute.Pool) error
	// Fetch returns when the environment is where the pool finds it.
	Fetch(ctx context.Context, u environment.Usable, p compute.Pool) error
}

// Data gives what jobs read.
type Data interface {
	// Resolve pins a reference for the principal of ctx, who must be allowed to
	// read it. Errors: fault.NotFound; fault.Conflict for a rejected version.
	Resolve(ctx context.Context, p project.Name, ref string) (Input, error)
	// Export writes the files of a pinned input into dir, which is empty and on
	// the pool: a door, which refuses what may not be in the pool's zone. The
	// principal of ctx is the training loop, its name says for which attempt.
	Export(ctx context.Context, p project.Name, in Input, pool compute.Pool, dir string) error
	// Permitted refuses an input that a job's submitter may not read now. Error:
	// fault.PermissionDenied.
	Permitted(ctx context.Context, p project.Name, by Actor, in Input) error
}

// Tables are open datasets that jobs read and write by the catalog, their files
// themselves.
type Tables interface {
	// Pin finds a table for the principal of ctx, who must be allowed to read and
	// write it, and gives its newest version, which the job could read. A table
	// that is not there yet, or has no version, has no Ref.
	Pin(ctx context.Context, p project.Name, name string) (Input, error)
	// Place makes the directories of a table that an attempt on this machine needs:
	// those of the versions that it may read, read-only, and those that it writes to.
	Place(ctx context.Context, j Job, attempt AttemptID, name string) ([]engine.Mount, error)
}

// RunSpec describes the run of an attempt.
type RunSpec struct {
	Project        project.Name
	Experiment     string
	Name           string
	Job            JobID
	Attempt        AttemptID
	Number         int
	Continues      string // the run of the job's attempts before it, if they had one
	By             Actor
	Inputs         []Input
	TrainedOn      string // the name of the input that it trains on; empty is not known
	Environment    environment.Digest
	Residency      residency.Label
	Classification project.Classification
	Params         map[string]string // what the job declares of itself
}

// Runs keeps what attempts say about themselves.
type Runs interface {
	// Create makes the run of an attempt, or finds the one it made before: that of the job's
	// attempts before it, which it continues, unless that was deleted or has another label.
	// experiment is the number that MLflow's clients know the run's by.
	Create(ctx context.Context, spec RunSpec) (run, experiment string, err error)
	// Finish ends a run: FINISHED, FAILED or KILLED. Repeating it is no change.
	Finish(ctx context.Context, p project.Name, run, status string, ended time.Time) error
	// Progress tells the first and the last step that a run's metrics have since a time, and
	// when each was told; zero without metrics. The zero time is the run's beginning.
	Progress(ctx context.Context, p project.Name, run string, since time.Time) (Progress, error)
	// Upload stores the files below dir as artifacts of the run below a path;
	// what is there already is replaced.
	Upload(ctx context.Context, p project.Name, run, dir, under string) error
}

// ModelSpec describes a model that an attempt left.
type ModelSpec struct {
	Project        project.Name
	Register       string // model name; empty makes a logged model only
	Run            string
	Job            JobID
	Attempt        AttemptID
	By             Actor
	Dir            string
	Inputs         []Input
	Environment    environment.Digest
	Residency      residency.Label
	Classification project.Classification
}

// Models keeps models.
type Models interface {
	// Save makes a logged model of a directory, and a version of the registered
	// model where one is named. Saving for the same attempt again gives the
	// same answer: "delay@3" or the logged model's identifier.
	Save(ctx context.Context, spec ModelSpec) (ref string, err error)
}

// RowsSpec describes rows that an attempt leaves.
type RowsSpec struct {
	Job     Job
	Earlier []Job  // from whose checkpoints it goes on: what these could read, it could
	Dir     string // of Parquet files
	// Made runs in the transaction in which the version, "daily@3", comes to be.
	Made func(ctx context.Context, tx *store.Tx, ref string) error
}

// Rows keeps rows as versions of datasets.
type Rows interface {
	// Check refuses a dataset that the principal of ctx may not write, and one that could
	// not be made of what the job reads. There are no files yet.
	Check(ctx context.Context, spec RowsSpec) error
	// Save makes a version of the job's dataset: "daily@3". It does not end in errors for
	// ever because of what is in the files.
	Save(ctx context.Context, spec RowsSpec) (ref string, err error)
}

// Tokens makes what attempts authenticate with. The principal is a loop's.
type Tokens interface {
	// IssueIn makes the token of an attempt, which may read the job's inputs; a bound one
	// works only where the attempt's sandbox reaches Falaj.
	IssueIn(ctx context.Context, tx *store.Tx, j Job, attempt AttemptID, bound bool, ttl time.Duration) (secret string, err error)
	// RevokeIn ends all tokens of an attempt.
	RevokeIn(ctx context.Context, tx *store.Tx, p project.Name, attempt AttemptID) error
}

// Sources keeps uploaded source archives.
type Sources interface {
	// Save's error is fault.Invalid for an archive of another digest.
	Save(ctx context.Context, p project.Name, a StoredSource, archive io.Reader) error
	// Open's error is fault.NotFound when there is none.
	Open(ctx context.Context, p project.Name, a StoredSource) (io.ReadCloser, error)
	// List gives those of a project.
	List(ctx context.Context, p project.Name, yield func(StoredSource) error) error
	// Delete removes one; what is not there is no error.
	Delete(ctx context.Context, p project.Name, a StoredSource) error
}

// Checkpoints keeps the checkpoints of jobs, which lie in one directory per job
// while it is under way. It is *checkpoint.Service.
type Checkpoints interface {
	// Restore brings the newest kept checkpoints of a job into its directory,
	// where they are missing, and says in words what it did.
	Restore(ctx context.Context, job string) (checkpoint.Restored, error)
	// Halting says that no program of a job runs any more; Halted follows.
	Halting(job string)
	// Halted keeps what an ended program of a job has left, before its attempt counts as
	// ended. Where the job runs again, what may be half written is set aside.
	Halted(ctx context.Context, job string, end settled.End, again bool) error
	// Release reports the end of a job: its directory goes once all of it is
	// kept.
	Release(ctx context.Context, job string) error
	// Notes says in words what of a job could not be kept yet.
	Notes(job string) []string
	// Resolve finds what a new job is to go on from, "job_…/name" or "job_…",
	// for the principal of ctx, who must be allowed to read that job. The new
	// job carries its zones and classification, too.
	Resolve(ctx context.Context, p project.Name, ref string) (checkpoint.Record, error)
	// Adopt gives a resolved checkpoint to a new job in the transaction that
	// makes it: its first attempt finds it in its directory.
	Adopt(ctx context.Context, tx *store.Tx, r checkpoint.Record, to checkpoint.Job) error
}

// unkept throws the checkpoints of a job away once it has ended.
type unkept string // the directory of directories

func (unkept) Restore(context.Context, string) (r checkpoint.Restored, err error) { return r, nil }
func (unkept) Halting(string)                                                     {}
func (unkept) Halted(context.Context, string, settled.End, bool) error            { return nil }
func (unkept) Notes(string) []string                                              { return nil }

func (u unkept) Release(_ context.Context, job string) error {
	return os.RemoveAll(filepath.Join(string(u), job))
}

func (unkept) Resolve(context.Context, project.Name, string) (checkpoint.Record, error) {
	return checkpoint.Record{}, fault.New(fault.Unsupported, "checkpoints are not enabled on this server")
}

func (unkept) Adopt(context.Context, *store.Tx, checkpoint.Record, checkpoint.Job) error {
	return fault.New(fault.Unsupported, "checkpoints are not enabled on this server")
}

// Config is what the service needs.
type Config struct {
	DB           *store.DB
	Store        Store
	Authorizer   Authorizer
	Journal      audit.Journal
	Compute      Compute
	Environments Environments
	Data         Data
	Tables       Tables
	Runs         Runs
	Models       Models
	Rows         Rows // nil keeps none
	Tokens       Tokens
	Sources      Sources
	Secrets      Secrets     // nil has none
	Checkpoints  Checkpoints // nil keeps none beyond the job's end
	// Dir holds attempts/ and checkpoints/ and belongs to this service alone.
	Dir string
	// Network lists host:port that jobs may ask to reach.
	Network []string
	// Isolation is the least that jobs run under which name no pools; empty is
	// sandbox.
	Isolation scheduler.Isolation
	// MaxAlive bounds the jobs of one project that have not ended; 0 is 10,000. One
	// principal may have half of them.
	MaxAlive int
	// MaxOutput bounds the output directory of an attempt in bytes; 0 is 64 GiB.
	MaxOutput int64
	// Room refuses what the disk of the objects has no room for; nil refuses nothing.
	Room func(bytes, files int64) error
	// MostDisk and MostFiles are the most that spec.disk may ask for; 0 is no limit.
	MostDisk  resource.Bytes
	MostFiles int64
	// WatchEvery is how often running attempts with a progress_timeout are looked
	// at; 0 is two seconds.
	WatchEvery time.Duration
	// MeasureEvery is how often the use of running attempts is sampled; 0 is ten
	// seconds.
	MeasureEvery time.Duration
	// GrowAfter is how long an elastic job has run, and its pool has had room,
	// before it grows; 0 disables growing.
	GrowAfter time.Duration
	// Sizes says that the scheduler chooses the sizes of elastic jobs, and has to be
	// told how fast they are.
	Sizes bool
	// Worker is the falaj-worker that Doctor sends to a pool's nodes, and Measure
	// measures this machine, once; both may be empty.
	Worker   string
	Measure  func(ctx context.Context) error
	LogFiles LogFiles // of attempts; nil: none are redacted
	// Keep is how long jobs are kept once they have ended; 0 is for ever. Traces are what
	// else is kept of them; nil keeps all.
	Keep   time.Duration
	Traces Traces
	Log    *slog.Logger     // nil discards
	Now    func() time.Time // nil is time.Now
}

// Service is the only way to jobs. Safe for concurrent use.
type Service struct {
	cfg  Config
	log  *slog.Logger
	now  func() time.Time
	wake chan struct{} // of the loop; holds one

	watched atomic.Int64 // running attempts that are checked, at least
	meters  meters

	mu       sync.Mutex
	awaiting map[JobID]bool       // jobs whose environment is being awaited
	stuck    map[JobID]string     // why those without an attempt got none in the last round
	hopeful  map[JobID]string     // what jobs that may grow wait for
	ended    map[State]int64      // jobs, since the start
	steps    map[AttemptID]string // what attempts that are being prepared are at
	watchers map[JobID]*watchers
	cancel   context.CancelFunc
	running  sync.WaitGroup
}

// New makes the service. compute learns of it with RegisterOwner(compute.JobAttempt, s).
func New(cfg Config) *Service {
	if cfg.Isolation == "" {
		cfg.Isolation = scheduler.Sandbox
	}
	if cfg.MaxOutput == 0 {
		cfg.MaxOutput = 64 << 30
	}
	if cfg.Room == nil {
		cfg.Room = func(int64, int64) error { return nil }
	}
	if cfg.Checkpoints == nil {
		cfg.Checkpoints = unkept(filepath.Join(cfg.Dir, "checkpoints"))
	}
	if cfg.WatchEvery == 0 {
		cfg.WatchEvery = watchEvery
	}
	if cfg.MeasureEvery == 0 {
		cfg.MeasureEvery = measureEvery
	}
	if cfg.MaxAlive <= 0 {
		cfg.MaxAlive = 10_000
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Service{
		cfg: cfg, log: cfg.Log, now: cfg.Now, wake: make(chan struct{}, 1),
		awaiting: map[JobID]bool{}, hopeful: map[JobID]string{}, steps: map[AttemptID]string{}, ended: map[State]int64{}, watchers: map[JobID]*watchers{},
	}
}

func (s *Service) allow(ctx context.Context, action policy.Action, j Job) error {
	o, err := s.object(ctx, j, action == ActionLogs)
	if err != nil {
		return err
	}
	return s.cfg.Authorizer.Allow(ctx, action, o)
}

// Submit queues a new job. Needs job.submit, and leave to read every input.
// Errors: fault.Invalid; fault.NotFound for an input or environment that does
// not exist; fault.Conflict for a rejected dataset version;
// fault.PermissionDenied when no zone may hold all inputs together.
func (s *Service) Submit(ctx context.Context, p project.Name, name string, spec Spec) (Job, error) {
	j, _, err := s.submit(ctx, p, name, spec, submission{})
	return j, err
}

// Apply is Submit for manifests: when the same job (name, specification and
// pinned inputs) is under way or has succeeded, it is given back unchanged.
func (s *Service) Apply(ctx context.Context, p project.Name, name string, spec Spec) (Job, project.Change, error) {
	return s.submit(ctx, p, name, spec, submission{once: true})
}

// Plan is Apply that changes nothing: a job that would be queued has no ID yet.
func (s *Service) Plan(ctx context.Context, p project.Name, name string, spec Spec) (Job, project.Change, error) {
	j, change, err := s.submit(ctx, p, name, spec, submission{once: true, dryRun: true})
	if change != project.Unchanged {
		j.ID = ""
	}
	return j, change, err
}

// SubmitStep is Submit of a job that runs a step for the dataset in spec.Into. Its id and
// when it was asked for are of before its inputs were decided: by them it has its turn.
func (s *Service) SubmitStep(ctx context.Context, p project.Name, name string, spec Spec, step Step, job JobID, asked time.Time) (Job, error) {
	j, _, err := s.submit(ctx, p, name, spec, submission{step: &step, id: job, asked: asked})
	return j, err
}

// SubmitTrial is Submit of a job whose id the caller chose and recorded before.
func (s *Service) SubmitTrial(ctx context.Context, p project.Name, name string, spec Spec, job JobID) (Job, error) {
	j, _, err := s.submit(ctx, p, name, spec, submission{id: job, asked: s.now()})
	return j, err
}

// Outlook says where a job would run, or why it would wait, and what that costs;
// it changes nothing. Needs job.submit. Errors as of Submit.
func (s *Service) Outlook(ctx context.Context, p project.Name, name string, spec Spec) (compute.Outlook, error) {
	r, _, err := s.Propose(ctx, p, name, spec)
	if err != nil {
		return compute.Outlook{}, err
	}
	return s.cfg.Compute.DryRun(ctx, r)
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
func (s *Service) Repeat(ctx context.Context, p project.Name, from JobID) (Job, error) {
	was, err := s.One(ctx, p, from)
	if err != nil {
		return Job{}, err
	}
	j, _, err := s.submit(ctx, p, was.Name, was.Pinned(), submission{from: was.ID, inputs: was.Inputs, step: was.Step})
	return j, fault.Wrap(err, "repeating job %s", from)
}

// mayQueue refuses a job beyond the share of its project, or of its principal. Error:
// fault.Exhausted.
func (s *Service) mayQueue(ctx context.Context, tx *store.Tx, p project.Name, who identity.Principal) error {
	all, own, err := s.cfg.Store.CountAlive(ctx, tx, p, who.ID)
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

func (s *Service) submit(ctx context.Context, p project.Name, name string, spec Spec, how submission) (Job, project.Change, error) {
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
	var source StoredSource
	if spec.Source != "" && !how.dryRun { // a dry run or a plan uploads none
		var err error
		if source, err = s.findSource(ctx, p, spec.Source); err != nil {
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
			last, err := s.cfg.Store.LastJob(ctx, tx, p, j.Digest)
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
		if err := s.cfg.Store.InsertJob(ctx, tx, j); err != nil {
			return err
		}
		if spec.Source != "" {
			if err := s.useSource(ctx, tx, p, source); err != nil {
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
			tx.OnCommit(s.Wake) // the loop makes the attempt once it is built
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
func (s *Service) permitted(spec Spec) error {
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
func (s *Service) pin(ctx context.Context, j *Job, resume checkpoint.Record) error {
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
func (s *Service) checkInto(ctx context.Context, j Job) error {
	if j.Spec.Into == "" {
		return nil
	}
	if s.cfg.Rows == nil {
		return fault.New(fault.Unsupported, "writing rows into datasets is not enabled on this server")
	}
	earlier, err := s.Earlier(ctx, j)
	if err == nil {
		err = s.cfg.Rows.Check(ctx, RowsSpec{Job: j, Earlier: earlier})
	}
	return fault.Wrap(err, "into %s", j.Spec.Into)
}

// Submitter is the account that submitted a job; empty when the job is gone. It asks no
// permission.
func (s *Service) Submitter(ctx context.Context, tx *store.Tx, id JobID) (string, error) {
	j, err := s.cfg.Store.Job(ctx, tx, id)
	if fault.Is(err, fault.NotFound) {
		return "", nil
	}
	return j.By.ID, err
}

// JobsIn lists jobs as List does, in a transaction. It asks no permission.
func (s *Service) JobsIn(ctx context.Context, tx *store.Tx, p project.Name, f Filter) ([]Job, error) {
	return s.cfg.Store.Jobs(ctx, tx, p, f)
}

// ResumingFrom names the other jobs whose specification resumes from a checkpoint JOB/NAME, as
// "job ID". It asks no permission.
func (s *Service) ResumingFrom(ctx context.Context, tx *store.Tx, p project.Name, checkpoint string) (by []string, err error) {
	own, _, _ := strings.Cut(checkpoint, "/")
	word := fmt.Sprintf("%q:%q", "resume", checkpoint)
	err = s.cfg.Store.Mentions(ctx, tx, p, strings.TrimSuffix(word, `"`), func(who, text string) {
		if who != "job "+own && strings.Contains(text, word) {
			by = append(by, who)
		}
	})
	return by, err
}

// JobOf is the job of an attempt. It asks no permission.
func (s *Service) JobOf(ctx context.Context, attempt AttemptID) (Job, error) {
	j, _, err := s.both(ctx, compute.WorkloadID(attempt))
	return j, err
}

// Earlier are the jobs from whose checkpoints a job goes on, the last one first. It asks
// no permission.
func (s *Service) Earlier(ctx context.Context, j Job) (jobs []Job, err error) {
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		jobs = nil
		for at := j; at.Spec.Resume != ""; {
			from, _, _ := strings.Cut(at.Spec.Resume, "/")
			var err error
			if at, err = s.cfg.Store.Job(ctx, tx, JobID(from)); err != nil {
				return err
			}
			jobs = append(jobs, at)
		}
		return nil
	})
	return jobs, err
}

// checkTables refuses a job that names tables and may be placed where their files
// are not.
func (s *Service) checkTables(ctx context.Context, spec Spec) error {
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

func refs(inputs []Input) []string {
	out := make([]string, len(inputs))
	for i, in := range inputs {
		out[i] = in.Ref
	}
	return out
}

// attempt makes the next attempt of a job in the caller's transaction.
func (s *Service) attempt(ctx context.Context, tx *store.Tx, j *Job, delay time.Duration) error {
	before := j.Attempt
	a := s.next(j)
	if err := s.save(ctx, tx, j); err != nil {
		return err
	}
	return s.enter(ctx, tx, *j, a, before, delay)
}

// next is the next attempt of a job, which becomes the job's.
func (s *Service) next(j *Job) Attempt {
	a := Attempt{
		ID: AttemptID(id.New("att")), Job: j.ID, Number: j.Attempts + 1, State: Placing, Made: s.now().UTC(), Revision: 1,
	}
	j.Attempt, j.Attempts = a.ID, a.Number
	return a
}

// enter queues an attempt of a job that has been written.
func (s *Service) enter(ctx context.Context, tx *store.Tx, j Job, a Attempt, before AttemptID, delay time.Duration) error {
	if err := s.cfg.Store.InsertAttempt(ctx, tx, a); err != nil {
		return err
	}
	r := j.request()
	r.ID, r.After = compute.WorkloadID(a.ID), compute.WorkloadID(before)
	var err error
	if r.Speed, err = s.foreseen(ctx, tx, j); err != nil {
		return err
	}
	if before != "" {
		last, err := s.cfg.Store.Attempt(ctx, tx, before)
		if err != nil {
			return err
		}
		if last.Class == Resized && last.Target > 0 {
			r.Target, r.InLine = last.Target, true
		}
	}
	if delay > 0 {
		r.NotBefore = s.now().Add(delay).UTC()
	}
	return s.cfg.Compute.Submit(ctx, tx, r)
}

// request is what an attempt asks of compute.
func (j Job) request() compute.Request {
	data := resource.Bytes(0)
	for _, in := range j.Inputs {
		data += resource.Bytes(in.Bytes)
	}
	workers, amount := j.size(), j.Spec.Resources
	if len(j.Spec.Roles) > 0 {
		workers, amount = Workers{}, resource.Amount{}
	}
	return compute.Request{
		Project: j.Project, Kind: compute.JobAttempt, Label: string(j.ID),
		Amount: amount, Roles: j.Spec.asked(), Isolation: j.Spec.Isolation, Residency: j.Residency, Classification: j.Classification,
		Workers: workers.Min, MaxWorkers: workers.Max,
		Pools: j.pools(), Queue: j.Spec.Queue, User: cmp.Or(j.By.Name, j.By.ID), Model: j.Spec.Register, Preemptible: j.Spec.Preemptible == nil || *j.Spec.Preemptible, Priority: j.Spec.Priority, Timeout: time.Duration(j.Spec.Timeout), Grace: time.Duration(j.Spec.Grace),
		Within: j.Spec.Within, PerNode: j.Spec.PerNode, Due: j.Due, Expected: time.Duration(j.Expected), DelayCost: j.Spec.DelayCost, Data: data,
	}
}

// save writes a job and wakes those who watch it once it is durable.
func (s *Service) save(ctx context.Context, tx *store.Tx, j *Job) error {
	if err := s.cfg.Store.UpdateJob(ctx, tx, *j); err != nil {
		return err
	}
	j.Revision++
	jid := j.ID
	tx.OnCommit(func() { s.notify(jid) })
	return nil
}

// One gives a job. Needs job.read. Error: fault.NotFound.
func (s *Service) One(ctx context.Context, p project.Name, jid JobID) (Job, error) {
	return s.one(ctx, p, jid, ActionRead)
}

func (s *Service) one(ctx context.Context, p project.Name, jid JobID, action policy.Action) (Job, error) {
	if err := s.allow(ctx, action, Job{Project: p}); err != nil {
		return Job{}, err
	}
	j, err := s.job(ctx, jid)
	if err == nil && j.Project != p {
		err = fault.New(fault.NotFound, "job %.64q not found", string(jid)).WithHint("List jobs with `falaj get jobs`. For expired jobs, `falaj audit list` has the submission and the end.")
	}
	if err != nil {
		return Job{}, err
	}
	if err := s.allow(ctx, action, j); err != nil {
		return Job{}, err
	}
	return s.shown(ctx, j)
}

func (s *Service) job(ctx context.Context, jid JobID) (j Job, err error) {
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		j, err = s.cfg.Store.Job(ctx, tx, jid)
		return err
	})
	return j, err
}

// List gives a page of a project's jobs, newest first, and the filter's Before
// for the next page, empty at the end. Needs job.read.
func (s *Service) List(ctx context.Context, p project.Name, f Filter) (jobs []Job, next JobID, err error) {
	if err := s.allow(ctx, ActionRead, Job{Project: p}); err != nil {
		return nil, "", err
	}
	if f.Limit <= 0 {
		f.Limit = 100
	}
	limit := min(f.Limit, 1000)
	f.Limit = limit + 1
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		jobs, err = s.cfg.Store.Jobs(ctx, tx, p, f)
		return err
	})
	if err != nil {
		return nil, "", err
	}
	if len(jobs) > limit {
		jobs = jobs[:limit]
		next = jobs[limit-1].ID
	}
	jobs, err = s.listed(ctx, jobs)
	return jobs, next, err
}

// Find reads those jobs of a project, newest first, of which may says that they may be what is
// looked for: limit of them at most. Needs job.read.
func (s *Service) Find(ctx context.Context, p project.Name, before string, limit int, may func(store.Line) (bool, error)) (found store.Found[Job], err error) {
	if err := s.allow(ctx, ActionRead, Job{Project: p}); err != nil {
		return found, err
	}
	found, err = store.Find(ctx, s.cfg.DB, store.Lookup[Job]{
		Lines: func(ctx context.Context, tx *store.Tx, before string, limit int) ([]store.Line, error) {
			return s.cfg.Store.Lines(ctx, tx, p, JobID(before), limit)
		},
		Read: func(ctx context.Context, tx *store.Tx, ids []string) ([]Job, error) {
			return s.cfg.Store.JobsAt(ctx, tx, ids)
		},
		Key: func(j Job) string { return string(j.ID) },
	}, before, limit, may)
	if err != nil {
		return found, err
	}
	found.Objects, err = s.listed(ctx, found.Objects)
	return found, err
}

// listed are those of jobs that the caller may see, as the caller may see them.
func (s *Service) listed(ctx context.Context, jobs []Job) (_ []Job, err error) {
	for i := range jobs {
		if jobs[i], err = s.shown(ctx, jobs[i]); err != nil {
			return nil, err
		}
	}
	// Listed is what One would show.
	return slices.DeleteFunc(jobs, func(j Job) bool {
		e := s.allow(ctx, ActionRead, j)
		if e != nil && !fault.Is(e, fault.PermissionDenied) && !fault.Is(e, fault.NotFound) {
			err = e
		}
		return e != nil
	}), err
}

// Wait gives a job once it has ended, or as it is when the time is up. Needs
// job.read.
func (s *Service) Wait(ctx context.Context, p project.Name, jid JobID, atMost time.Duration) (Job, error) {
	timer := time.NewTimer(atMost)
	defer timer.Stop()
	for {
		changed, leave := s.watch(jid)
		defer leave() // as often as the job changes, which is not often
		j, err := s.One(ctx, p, jid)
		if err != nil || j.State.Ended() {
			return j, err
		}
		select {
		case <-changed:
		case <-timer.C:
			return j, nil
		case <-ctx.Done():
			return j, ctx.Err()
		}
	}
}

// Counts are the jobs of all projects that have not ended, and how many ended in each state
// since the server started. It asks no permission: it is for the metrics.
func (s *Service) Counts(ctx context.Context) (alive []Count, ended map[State]int64, err error) {
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		alive, err = s.cfg.Store.Counts(ctx, tx)
		return err
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	return alive, maps.Clone(s.ended), err
}

// Cancel asks a job to end: at once where nothing runs, otherwise by SIGTERM,
// its grace period and SIGKILL. Needs job.cancel. Cancelling again is no
// change. Errors: fault.NotFound; fault.Conflict when it has ended otherwise.
func (s *Service) Cancel(ctx context.Context, p project.Name, jid JobID) (j Job, err error) {
	if _, err := s.one(ctx, p, jid, ActionCancel); err != nil {
		return Job{}, err
	}
	who := identity.From(ctx)
	reason := "cancelled by " + who.String()
	err = s.cfg.DB.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
		if j, err = s.cfg.Store.Job(ctx, tx, jid); err != nil {
			return err
		}
		switch {
		case j.State == Cancelled || !j.State.Ended() && j.Stop != "":
			return nil
		case j.State.Ended():
			return fault.New(fault.Conflict, "job %s has already %s", jid, j.State)
		}
		j.Stop = reason
		err := audit.Append(ctx, tx, audit.Entry{Project: string(p), Action: string(ActionCancel), Object: "job " + string(jid)})
		if err != nil {
			return err
		}
		if j.Attempt == "" {
			return s.endJob(ctx, tx, &j, Cancelled, end{class: Unwanted, reason: reason})
		}
		a, err := s.cfg.Store.Attempt(ctx, tx, j.Attempt)
		if err != nil {
			return err
		}
		if a.State.CanBecome(Checkpointing) {
			a.State = Checkpointing
			if err := s.cfg.Store.UpdateAttempt(ctx, tx, a); err != nil {
				return err
			}
		}
		if err := s.save(ctx, tx, &j); err != nil {
			return err
		}
		return s.cfg.Compute.Cancel(ctx, tx, compute.WorkloadID(j.Attempt), reason)
	})
	return j, err
}

// endJob ends a job in the caller's transaction.
func (s *Service) endJob(ctx context.Context, tx *store.Tx, j *Job, state State, e end) error {
	if !j.State.CanBecome(state) {
		return fault.New(fault.Internal, "job %s cannot change to %s from %s", j.ID, state, j.State)
	}
	j.State, j.Class, j.Reason, j.Hint, j.EndedAt, j.Attempt = state, e.class, e.reason, e.hint, e.at.UTC(), ""
	if e.at.IsZero() {
		j.EndedAt = s.now().UTC()
	}
	tx.OnCommit(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.ended[state]++
	})
	err := audit.Append(ctx, tx, audit.Entry{
		Project: string(j.Project), Action: "job.end", Object: "job " + string(j.ID),
		Detail: map[string]any{"state": state, "class": e.class, "run": j.Run, "model": j.Model},
	})
	if err != nil {
		return err
	}
	if err := publish(ctx, tx, JobFinished, *j); err != nil {
		return err
	}
	return s.save(ctx, tx, j)
}

// Why says in words why a job is where it is. Needs job.read.
func (s *Service) Why(ctx context.Context, p project.Name, jid JobID) ([]string, error) {
	j, err := s.One(ctx, p, jid)
	if err != nil {
		return nil, err
	}
	var attempts []Attempt
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		attempts, err = s.cfg.Store.Attempts(ctx, tx, jid)
		return err
	})
	if err != nil {
		return nil, err
	}
	whole, err := s.shows(ctx, j)
	if err != nil {
		return nil, err
	}
	if !whole {
		withhold(attempts)
	}
	var why []string
	why = append(why, s.cfg.Checkpoints.Notes(string(jid))...)
	switch {
	case j.State.Ended():
		why = append(why, strings.TrimSuffix(fmt.Sprintf("%s: %s", j.State, j.Reason), ": "))
		if j.Hint != "" {
			why = append(why, j.Hint)
		}
	case j.Attempt == "":
		why = append(why, s.whyNotBegun(ctx, j))
	}
	for _, a := range attempts {
		switch {
		case a.State != AttemptEnded:
			now, err := s.cfg.Compute.Why(ctx, compute.WorkloadID(a.ID))
			if err != nil {
				return nil, err
			}
			if step := s.stepOf(a.ID); step != "" && len(now) > 0 {
				now[0] += ": " + step
			}
			if whole {
				now = append(now, s.inTheWay(ctx, a)...)
			}
			why = slices.Concat(now, s.hopesOf(j.ID), why)
		case a.Reason != "" && a.Reason != j.Reason:
			why = append(why, fmt.Sprintf("attempt %d %s", a.Number, a.Reason))
		}
	}
	if len(attempts) > 0 && j.State.Ended() { // where it ran, and where it might not
		now, err := s.cfg.Compute.Why(ctx, compute.WorkloadID(attempts[len(attempts)-1].ID))
		if err == nil && len(now) > 1 {
			why = append(why, now[1:]...)
		}
	}
	return why, nil
}

// Waits says why a queued job waits, by code; nothing when it does not. It is
// possible unless no pool could ever take it as things are. Needs job.read. Error:
// fault.NotFound.
func (s *Service) Waits(ctx context.Context, p project.Name, jid JobID) (of []compute.Reason, possible bool, err error) {
	j, err := s.One(ctx, p, jid)
	if err != nil || j.State != Queued || j.Attempt == "" {
		return []compute.Reason{}, true, err
	}
	of, possible = s.cfg.Compute.Waits(compute.WorkloadID(j.Attempt))
	return of, possible, nil
}

// inTheWay is what the workers of an attempt say is in their way.
func (s *Service) inTheWay(ctx context.Context, a Attempt) []string {
	members, err := s.cfg.Compute.Members(ctx, compute.WorkloadID(a.ID))
	if err != nil {
		return nil // why it does not answer, the rest says
	}
	var words []string
	for _, m := range members {
		for _, note := range m.Notes {
			words = append(words, fmt.Sprintf("worker %d on %s: %s", m.Index, m.Node, note))
		}
	}
	return words
}

// whyNotBegun says why a queued job has no attempt yet.
func (s *Service) whyNotBegun(ctx context.Context, j Job) string {
	s.mu.Lock()
	trouble := s.stuck[j.ID]
	s.mu.Unlock()
	switch {
	case trouble != "":
		return "the last start failed: " + trouble + "; it is retried every second"
	case j.Spec.Environment == "":
		return "the first attempt is being created"
	}
	words := "environment " + j.Spec.Environment + " is being built"
	ctx = identity.With(ctx, identity.Loop("training")) // whoever may see the job may know why it waits
	if phase, err := s.cfg.Environments.Phase(ctx, j.Project, j.Spec.Environment); err == nil && phase != string(environment.Ready) && phase != string(environment.Failed) {
		words = "environment " + j.Spec.Environment + " is " + phase
	}
	return words
}

// Phase says in words how far a job is: the first of Why, or its state once it has
// ended. Needs job.read.
func (s *Service) Phase(ctx context.Context, p project.Name, jid JobID) (Job, string, error) {
	j, err := s.One(ctx, p, jid)
	if err != nil || j.State.Ended() {
		return j, string(j.State), err
	}
	why, err := s.Why(ctx, p, jid)
	if err != nil || len(why) == 0 {
		return j, string(j.State), err
	}
	return j, why[0], nil
}

// PhaseAfter returns when the phase is another than seen, when the job has ended, or
// after a time. Needs job.read.
func (s *Service) PhaseAfter(ctx context.Context, p project.Name, jid JobID, seen string, atMost time.Duration) (Job, string, error) {
	timer, tick := time.NewTimer(atMost), time.NewTicker(phaseEvery)
	defer timer.Stop()
	defer tick.Stop()
	for {
		changed, leave := s.watch(jid)
		j, phase, err := s.Phase(ctx, p, jid)
		if err != nil || j.State.Ended() || phase != seen {
			leave()
			return j, phase, err
		}
		select {
		case <-changed:
		case <-tick.C: // the scheduler's reasons change without an event of the job
		case <-timer.C:
			leave()
			return j, phase, nil
		case <-ctx.Done():
			leave()
			return j, phase, ctx.Err()
		}
		leave()
	}
}

// phaseEvery is how often the reasons of the scheduler are read again for a caller that waits.
const phaseEvery = 2 * time.Second

// Logs reads the output of a job's attempt from a byte offset; number 0 is the
// last attempt. With follow it continues until the attempt ends. Needs job.logs;
// for a job on confidential or restricted data the read is journalled first.
// Errors: fault.NotFound; fault.Gone when only the run's artifact is left.
func (s *Service) Logs(ctx context.Context, p project.Name, jid JobID, number int, offset int64, follow bool) (io.ReadCloser, error) {
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
			if j, err = s.cfg.Store.Job(ctx, tx, jid); err != nil {
				return err
			}
			attempts, err = s.cfg.Store.Attempts(ctx, tx, jid)
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
				return nil, fault.New(fault.Gone, "the output of job %s is no longer kept by its pool", jid).
					WithHint("Read it from the artifacts of run %s, below logs/.", attempts[i].Run)
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

// Description is a job with its attempts and why it is where it is.
type Description struct {
	Job
	Tries    []Attempt `json:"tries"`
	Profiles []Profile `json:"profiles"` // the last ten, oldest first
	Why      []string  `json:"why"`
}

// MayReadLogs reports with an error that the caller may not read a job's output,
// or no longer. Needs job.logs.
func (s *Service) MayReadLogs(ctx context.Context, p project.Name, jid JobID) error {
	_, err := s.one(ctx, p, jid, ActionLogs)
	return err
}

// Describe gives a job with its attempts and profiles. Needs job.read.
func (s *Service) Describe(ctx context.Context, p project.Name, jid JobID) (Description, error) {
	j, err := s.One(ctx, p, jid)
	if err != nil {
		return Description{}, err
	}
	d := Description{Job: j}
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		if d.Tries, err = s.cfg.Store.Attempts(ctx, tx, jid); err != nil {
			return err
		}
		d.Profiles, err = s.cfg.Store.Profiles(ctx, tx, jid, shownProfiles)
		return err
	})
	if err != nil {
		return d, err
	}
	whole, err := s.shows(ctx, j)
	if err != nil {
		return d, err
	}
	if !whole {
		withhold(d.Tries)
	}
	d.Why, err = s.Why(ctx, p, jid)
	return d, err
}

// watchers wait for the next change of one job.
type watchers struct {
	changed chan struct{} // closed then
	n       int
}

// watch gives a channel that is closed at the next change of a job; leave says
// that it is no longer awaited.
func (s *Service) watch(jid JobID) (changed <-chan struct{}, leave func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.watchers[jid]
	if w == nil {
		w = &watchers{changed: make(chan struct{})}
		s.watchers[jid] = w
	}
	w.n++
	return w.changed, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if w.n--; w.n == 0 && s.watchers[jid] == w {
			delete(s.watchers, jid)
		}
	}
}

func (s *Service) notify(jid JobID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w := s.watchers[jid]; w != nil {
		close(w.changed)
		delete(s.watchers, jid)
	}
}
