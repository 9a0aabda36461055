package training

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/environment"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/scheduler"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/training/checkpoint"
	"github.com/falaj-ml/falaj/internal/training/jobsecret"
	"github.com/falaj-ml/falaj/internal/training/output"
	"github.com/falaj-ml/falaj/internal/training/profile"
	"github.com/falaj-ml/falaj/internal/training/source"
	"github.com/falaj-ml/falaj/internal/worker/settled"
)

// Authorizer is the question this package asks before it acts.
type Authorizer interface {
	Allow(ctx context.Context, action policy.Action, object policy.Object) error
}

// Compute runs attempts.
type Compute interface {
	output.Engine
	profile.Engine
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

// Config is what the services need.
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
	Sources      source.Objects
	Secrets      jobsecret.Vault // nil has none
	Checkpoints  Checkpoints     // nil keeps none beyond the job's end
	// Dir holds attempts/ and checkpoints/ and belongs to these services alone.
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

// Services are the ways to jobs, by what their callers do. Safe for concurrent use.
type Services struct {
	Submission     *Submission
	Jobs           *Jobs
	Control        *Control
	Outputs        *Outputs
	Files          *output.Files
	Secrets        *jobsecret.Opener
	Usage          *Usage
	SourceArchives *source.Archives
	Execution      *Execution
	Retention      *Retention
	Records        *Records
}

// core is what all services share: configuration, clock, permission checks, stored jobs and
// their attempts, and what the loop knows of jobs under way.
type core struct {
	cfg  Config
	log  *slog.Logger
	now  func() time.Time
	wake chan struct{} // of the loop; holds one

	jobStore         JobStore
	attemptStore     AttemptStore
	profileStore     ProfileStore
	measurementStore MeasurementStore

	meters meters

	mu       sync.Mutex
	stuck    map[JobID]string     // why those without an attempt got none in the last round
	hopeful  map[JobID]string     // what jobs that may grow wait for
	ended    map[State]int64      // jobs, since the start
	steps    map[AttemptID]string // what attempts that are being prepared are at
	watchers map[JobID]*watchers
}

// New makes the services. Execution must be registered with compute, by
// RegisterOwner(compute.JobAttempt, s.Execution), and started for jobs to run.
func New(cfg Config) Services {
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
	c := &core{
		cfg: cfg, log: cfg.Log, now: cfg.Now, wake: make(chan struct{}, 1),
		jobStore: cfg.Store, attemptStore: cfg.Store, profileStore: cfg.Store, measurementStore: cfg.Store,
		hopeful: map[JobID]string{}, steps: map[AttemptID]string{}, ended: map[State]int64{}, watchers: map[JobID]*watchers{},
	}
	archives := source.New(source.Config{
		DB: cfg.DB, Store: cfg.Store, Objects: cfg.Sources, Dir: cfg.Dir, Now: cfg.Now, UploadAction: string(ActionSubmit),
		MayUpload: func(ctx context.Context, p project.Name) error { return c.allow(ctx, ActionSubmit, Job{Project: p}) },
		Named: func(ctx context.Context, tx *store.Tx, p project.Name, digests []string) ([]string, error) {
			if cfg.Traces == nil {
				return nil, nil
			}
			return cfg.Traces.Sources(ctx, tx, p, digests)
		},
	})
	usage, outputs := &Usage{core: c}, &Outputs{core: c}
	return Services{
		Submission:     &Submission{core: c, archives: archives},
		Jobs:           &Jobs{core: c},
		Control:        &Control{core: c},
		Outputs:        outputs,
		Secrets:        &jobsecret.Opener{DB: cfg.DB, Vault: cfg.Secrets, Job: c.secretsOf},
		Files:          &output.Files{Running: outputs.running, Engine: cfg.Compute},
		Usage:          usage,
		SourceArchives: archives,
		Execution:      &Execution{core: c, archives: archives, usage: usage, awaiting: map[JobID]bool{}},
		Retention:      &Retention{core: c, retentionStore: cfg.Store},
		Records:        &Records{core: c},
	}
}

func (s *core) allow(ctx context.Context, action policy.Action, j Job) error {
	o, err := s.object(ctx, j, action == ActionLogs)
	if err != nil {
		return err
	}
	return s.cfg.Authorizer.Allow(ctx, action, o)
}

// earlier are the jobs from whose checkpoints a job goes on, the last one first.
func (s *core) earlier(ctx context.Context, j Job) (jobs []Job, err error) {
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		jobs = nil
		for at := j; at.Spec.Resume != ""; {
			from, _, _ := strings.Cut(at.Spec.Resume, "/")
			var err error
			if at, err = s.jobStore.Job(ctx, tx, JobID(from)); err != nil {
				return err
			}
			jobs = append(jobs, at)
		}
		return nil
	})
	return jobs, err
}

// attempt makes the next attempt of a job in the caller's transaction.
func (s *core) attempt(ctx context.Context, tx *store.Tx, j *Job, delay time.Duration) error {
	before := j.Attempt
	a := s.next(j)
	if err := s.save(ctx, tx, j); err != nil {
		return err
	}
	return s.enter(ctx, tx, *j, a, before, delay)
}

// next is the next attempt of a job, which becomes the job's.
func (s *core) next(j *Job) Attempt {
	a := Attempt{
		ID: AttemptID(id.New("att")), Job: j.ID, Number: j.Attempts + 1, State: Placing, Made: s.now().UTC(), Revision: 1,
	}
	j.Attempt, j.Attempts = a.ID, a.Number
	return a
}

// enter queues an attempt of a job that has been written.
func (s *core) enter(ctx context.Context, tx *store.Tx, j Job, a Attempt, before AttemptID, delay time.Duration) error {
	if err := s.attemptStore.InsertAttempt(ctx, tx, a); err != nil {
		return err
	}
	r := j.request()
	r.ID, r.After = compute.WorkloadID(a.ID), compute.WorkloadID(before)
	var err error
	if r.Speed, err = s.foreseen(ctx, tx, j); err != nil {
		return err
	}
	if before != "" {
		last, err := s.attemptStore.Attempt(ctx, tx, before)
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
func (s *core) save(ctx context.Context, tx *store.Tx, j *Job) error {
	if err := s.jobStore.UpdateJob(ctx, tx, *j); err != nil {
		return err
	}
	j.Revision++
	jid := j.ID
	tx.OnCommit(func() { s.notify(jid) })
	return nil
}

func (s *core) one(ctx context.Context, p project.Name, jid JobID, action policy.Action) (Job, error) {
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

func (s *core) job(ctx context.Context, jid JobID) (j Job, err error) {
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		j, err = s.jobStore.Job(ctx, tx, jid)
		return err
	})
	return j, err
}

// endJob ends a job in the caller's transaction.
func (s *core) endJob(ctx context.Context, tx *store.Tx, j *Job, state State, e end) error {
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

// watchers wait for the next change of one job.
type watchers struct {
	changed chan struct{} // closed then
	n       int
}

// watch gives a channel that is closed at the next change of a job; leave says
// that it is no longer awaited.
func (s *core) watch(jid JobID) (changed <-chan struct{}, leave func()) {
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

func (s *core) notify(jid JobID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w := s.watchers[jid]; w != nil {
		close(w.changed)
		delete(s.watchers, jid)
	}
}

// signal asks the loop to check waiting jobs soon. It does not block.
func (s *core) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}
