// Package training runs jobs: it accepts a specification with pinned inputs,
// makes attempts of it that compute runs, prepares for each a private place,
// and takes from it what it left.
//
// # Map
//
//   - training.go: Spec and its rules, Job and its states, Input. gang.go: what
//     of it concerns several workers. roles.go: workers that differ. params.go:
//     hyper-parameters.
//   - attempt.go: Attempt, its states, and whether the job runs again after it (Job.again).
//     The rules are the tables Ends and After in diagnosis/ends.go.
//   - service.go: Services, one for each kind of caller, and the core that they share.
//     submission.go: Submission, new jobs. jobs.go: Jobs, reading them. control.go: Control,
//     cancel, resize and move. outputs.go: Outputs, logs; redact.go. output/: Files, what running
//     attempts have written. jobsecret/: Secrets of running attempts.
//     source/: SourceArchives, uploaded source. records.go: Records, for other
//     domains. retention.go: Retention.
//   - execution.go: Execution, the loop: jobs that wait for their environment, and leftovers of
//     a crash. elastic.go: more workers where there is room. hung.go: attempts that do
//     nothing.
//   - usage.go: Usage, what the workers use now, and when the job ends. profile.go:
//     what a worker does, seen for a while by profile/, which says it in shares.
//     remaining.go: how long jobs still run.
//   - measure.go: what attempts used and how fast they were. advice.go: what that
//     says of other places, by sizing/, purely. anomalies.go: idle accelerators and
//     slow nodes, by anomaly/, purely.
//   - prepare.go: what an attempt finds when it starts; checkpoint/ chooses the checkpoint
//     (Service.Restore). tokenuse.go: what its token may do.
//   - finish.go: what becomes of what it leaves; diagnosis/ classifies the end.
//   - store.go, events.go; trainingsql/ is the database.
//
// # Guarantees
//
// An attempt is a workload under the attempt's own identifier, so a restart at
// any moment makes no second process. A job carries the zones that all its
// inputs allow and the strictest of their classifications; its workload, run,
// model and logs carry them too. Inputs are pinned at submission: every attempt
// sees the same versions. What an attempt gets (data, token, scratch) is gone
// when it has ended, also after a crash; what it keeps (checkpoints) stays
// until the job has ended.
package training

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/compute/cost"
	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/environment"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/scheduler"
	"github.com/falaj-ml/falaj/internal/training/checkpoint"
	"github.com/falaj-ml/falaj/internal/training/jobsecret"
	"github.com/falaj-ml/falaj/internal/training/source"
	"github.com/falaj-ml/falaj/internal/worker/launch"
)

// The actions that this package asks for.
const (
	ActionRead   policy.Action = "job.read"
	ActionSubmit policy.Action = "job.submit"
	ActionCancel policy.Action = "job.cancel"
	ActionLogs   policy.Action = "job.logs"
)

// JobID names a job: "job_01J…".
type JobID string

// State of a job.
type State string

// The states. TestTransitions holds the diagram against the table.
//
//	stateDiagram-v2
//	    [*] --> queued: submitted
//	    queued --> running: an attempt runs
//	    queued --> failed: it cannot start
//	    queued --> cancelled
//	    running --> queued: the attempt ended and may be repeated
//	    running --> succeeded
//	    running --> failed
//	    running --> cancelled
const (
	Queued    State = "queued"
	Running   State = "running"
	Succeeded State = "succeeded"
	Failed    State = "failed"
	Cancelled State = "cancelled"
)

var transitions = map[State][]State{
	Queued:  {Running, Failed, Cancelled},
	Running: {Queued, Succeeded, Failed, Cancelled},
}

// CanBecome reports whether the transition exists.
func (s State) CanBecome(next State) bool { return slices.Contains(transitions[s], next) }

// Ended reports whether nothing more will happen.
func (s State) Ended() bool { return s == Succeeded || s == Failed || s == Cancelled }

// Spec is the manifest of kind Job.
type Spec struct {
	Environment string                   `json:"environment,omitempty" doc:"Name of an environment, or name@digest; without one the job has no Python packages"`
	Command     []string                 `json:"command,omitempty" doc:"Program and arguments, without a shell. With script, the script's arguments"`
	Script      string                   `json:"script,omitempty" doc:"Python source to run"`
	Source      string                   `json:"source,omitempty" doc:"Digest of an uploaded source archive, unpacked into the working directory; in a manifest also a directory next to it, which the command line packs and uploads"`
	Resources   resource.Amount          `json:"resources,omitzero" doc:"Resources of one worker; default 1 cpu and 1GiB"`
	Disk        engine.Disk              `json:"disk,omitzero" doc:"Disk limits of one attempt: scratch, output, checkpoints and files; default the installation's. An attempt that exceeds them is stopped"`
	Data        map[string]string        `json:"data,omitempty" doc:"Inputs by name: datasets and training sets, with or without @version; models as models:/NAME/VERSION or models:/NAME@ALIAS"`
	Trains      string                   `json:"training_data,omitempty" doc:"Name of the input in data that the model is trained on: monitors use it as the baseline. Required when data has several datasets and a monitor needs a baseline; default the only dataset, or for a model the data it was trained on"`
	Params      Params                   `json:"params,omitempty" doc:"Hyper-parameters by name, each a text, number, true, false or null. The program reads them as JSON from $FALAJ_PARAMS, and its command may contain ${params.NAME}; the run records them as falaj.param.NAME"`
	Tables      []string                 `json:"tables,omitempty" doc:"Open datasets that the job reads and writes as tables, through the catalog at $FALAJ_URL/iceberg with $FALAJ_TOKEN; only on pools of the server's machine"`
	Env         map[string]string        `json:"env,omitempty" doc:"Environment variables; readable by everyone with read access to the job, so use secrets for passwords and keys"`
	Secrets     map[string]jobsecret.Ref `json:"secrets,omitempty" doc:"Secrets of the project by environment variable: {secret, key}, and file: true for a variable with the path of a file. The submitter needs permission to use them; their values are masked in the log"`
	Pools       []string                 `json:"pools,omitempty" doc:"Pools that may run the job; default any that fits"`
	Isolation   scheduler.Isolation      `json:"isolation,omitempty" doc:"Minimum isolation; default the installation's minimum or, with pools, the isolation that they provide"`
	Token       TokenUse                 `json:"token,omitempty" enum:"sandbox,anywhere" doc:"Where the job's token is valid: only inside its sandbox (sandbox, the default, on pools of the server's machine), or anywhere"`
	Network     []string                 `json:"network,omitempty" doc:"Egress allow-list: host:port that the job may reach, a subset of those allowed by the installation"`
	Queue       string                   `json:"queue,omitempty" doc:"Queue whose quota the job uses; default the project's default queue"`
	Priority    int                      `json:"priority,omitempty" doc:"Higher runs first; -1000 to 1000"`
	DelayCost   float64                  `json:"delay_cost,omitempty" doc:"Cost of one hour of waiting, in the installation's currency: elastic pools rent nodes when waiting costs more than renting; default from its queue or its project's budget"`
	Preemptible *bool                    `json:"preemptible,omitempty" doc:"Whether the job may be preempted for another queue: it saves a checkpoint, stops and waits again; default true"`
	Timeout     compute.Duration         `json:"timeout,omitempty" doc:"Maximum duration of an attempt, such as 2h; default 24h. An attempt that saves a checkpoint and exits with 75 resumes in a new attempt with the full timeout"`
	Deadline    string                   `json:"deadline,omitempty" doc:"Time by which the job should end: a time such as 2026-12-01T06:00:00Z, or a duration after submission such as 6h. The job moves to the front of its queue when it must start to meet the deadline"`
	Expected    compute.Duration         `json:"expected,omitempty" doc:"Expected duration, used with the deadline; default the 90th percentile of the last twenty successful jobs of its name"`
	Grace       compute.Duration         `json:"grace,omitempty" doc:"Time between SIGTERM and SIGKILL; default 30s"`
	MaxAttempts int                      `json:"max_attempts,omitempty" doc:"Maximum number of attempts that fail for reasons outside the job; default 3"`
	Framework   launch.Framework         `json:"framework,omitempty" doc:"Launcher of the processes: plain, torchrun, tensorflow, horovod, mpi, xgboost, lightgbm, deepspeed or accelerate"`
	Workers     Workers                  `json:"workers,omitzero" doc:"Number of workers that run together: a number, or {min, max} for an elastic job; default 1. Resources apply to each worker"`
	Roles       []Role                   `json:"roles,omitempty" doc:"Workers that differ, instead of workers: each role has its number, resources and command"`
	Within      string                   `json:"within,omitempty" doc:"Topology domain that all workers share: rack, or node; default as close together as possible"`
	PerNode     int                      `json:"per_node,omitempty" doc:"Maximum number of workers on a node, such as 1 to spread them; default as many as fit"`
	Processes   int                      `json:"processes,omitempty" doc:"Processes per worker, such as one per accelerator; default 1"`
	Parallel    Parallel                 `json:"parallel,omitzero" doc:"Parallelism of the processes; the product of its factors is workers × processes"`
	Precision   Precision                `json:"precision,omitempty" doc:"fp32, tf32, bf16, fp16, fp8 or int8; passed to the program and recorded"`
	Batch       int                      `json:"batch,omitempty" doc:"Global batch: examples per step over all processes, accumulation included; recorded, and used to compare rates"`
	Accumulate  int                      `json:"accumulate,omitempty" doc:"Steps of gradient accumulation; passed to the program and recorded"`
	Steps       int64                    `json:"steps,omitempty" doc:"Total steps of the training, used to estimate the time left"`
	Resume      string                   `json:"resume,omitempty" doc:"Checkpoint of another job to resume from: job_…/NAME, or job_… for its newest"`
	Progress    compute.Duration         `json:"progress_timeout,omitempty" doc:"Stops an attempt without log output, metrics, checkpoints and computation for this long, such as 10m; default never"`
	Family      string                   `json:"family,omitempty" doc:"Group of jobs that do the same work, used for right-sizing; default the name without a trailing number"`
	Experiment  string                   `json:"experiment,omitempty" doc:"Experiment of the run; default the job's name"`
	Checkpoints checkpoint.Rules         `json:"checkpoints,omitzero" doc:"Which checkpoints are kept, and which are restored"`
	Register    string                   `json:"register,omitempty" doc:"Model name under which model/ of the output is registered; to register none, the job writes the reason into no-model.txt"`
	Into        string                   `json:"into,omitempty" doc:"Dataset that gets a new version from the Parquet files in rows/ of the output; the submitter needs permission to write it"`
}

// Limits of a specification.
const (
	maxScript   = 1 << 20
	maxArgs     = 1000
	maxArgBytes = 128 << 10
	maxInputs   = 64
	maxTables   = 16
	maxEnv      = 200
	maxEnvBytes = 64 << 10
	maxHosts    = 50
	maxTries    = 100
	maxTimeout  = 30 * 24 * time.Hour
	maxGrace    = 30 * time.Minute
	maxDisk     = 1 << 60
)

var envRE = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)

// Validate refuses what cannot be a job. Error: fault.Invalid.
func (s Spec) Validate() error {
	if err := s.Token.Validate(); err != nil {
		return err
	}
	switch {
	case len(s.Command) == 0 && s.Script == "" && !s.rolesCommand():
		return fault.New(fault.Invalid, "spec: set a command or a script")
	case s.Script == "" && len(s.Command) > 0 && s.Command[0] == "":
		return fault.New(fault.Invalid, "spec.command: the program is empty")
	case len(s.Script) > maxScript:
		return fault.New(fault.Invalid, "spec.script: %d bytes exceed the limit of %d", len(s.Script), maxScript).
			WithHint("Upload a source archive instead.")
	case strings.ContainsRune(s.Script, 0):
		return fault.New(fault.Invalid, "spec.script: contains a zero byte")
	case s.Script != "" && s.Environment == "":
		return fault.New(fault.Invalid, "spec.script: a script needs an environment").WithHint("Set spec.environment, or use a command.")
	case s.Source != "" && !source.ValidDigest(s.Source):
		return fault.New(fault.Invalid, "spec.source: %.80q is not the digest of an uploaded archive", s.Source).
			WithHint("Upload the archive first; the response contains its digest. `falaj apply` and `falaj job submit` do so for a directory that a manifest names.")
	case s.Isolation != "" && !s.Isolation.Known():
		return fault.New(fault.Invalid, "spec.isolation: unknown isolation %.40q", string(s.Isolation)).
			WithHint("Use none, process, sandbox, container or node.")
	case s.Priority < -compute.MaxPriority || s.Priority > compute.MaxPriority:
		return fault.New(fault.Invalid, "spec.priority: %d is not between -%d and %d", s.Priority, compute.MaxPriority, compute.MaxPriority)
	case cost.Sound("delay_cost", s.DelayCost) != nil:
		return cost.Sound("delay_cost", s.DelayCost)
	case s.Timeout < 0 || time.Duration(s.Timeout) > maxTimeout:
		return fault.New(fault.Invalid, "spec.timeout: %s is not between 0 and %s", time.Duration(s.Timeout), maxTimeout)
	case s.PerNode < 0 || len(s.Within) > 128:
		return fault.New(fault.Invalid, "spec.per_node is negative, or spec.within is longer than 128 bytes")
	case s.Expected < 0 || time.Duration(s.Expected) > maxTimeout:
		return fault.New(fault.Invalid, "spec.expected: %s is not between 0 and %s", time.Duration(s.Expected), maxTimeout)
	case s.Grace < 0 || time.Duration(s.Grace) > maxGrace:
		return fault.New(fault.Invalid, "spec.grace: %s is not between 0 and %s", time.Duration(s.Grace), maxGrace)
	case s.MaxAttempts < 0 || s.MaxAttempts > maxTries:
		return fault.New(fault.Invalid, "spec.max_attempts: %d is not between 1 and %d", s.MaxAttempts, maxTries)
	case len(s.Network) > maxHosts || len(s.Pools) > maxHosts:
		return fault.New(fault.Invalid, "spec: at most %d network hosts and %d pools are allowed", maxHosts, maxHosts)
	case s.Disk.Scratch < 0 || s.Disk.Output < 0 || s.Disk.Checkpoints < 0 || s.Disk.Files < 0 || max(s.Disk.Scratch, s.Disk.Output, s.Disk.Checkpoints, resource.Bytes(s.Disk.Files)) > maxDisk:
		return fault.New(fault.Invalid, "spec.disk: scratch, output, checkpoints and files must be between 0 and 1 EiB").WithHint("Use sizes such as 20GiB, and a number of files.")
	case len(s.Experiment) > 500:
		return fault.New(fault.Invalid, "spec.experiment: %d bytes exceed the limit of 500", len(s.Experiment))
	}
	if s.Register != "" {
		if err := id.CheckModelName(s.Register); err != nil {
			return fault.Wrap(err, "register")
		}
	}
	if s.Into != "" {
		if err := id.CheckName("into", s.Into); err != nil {
			return err
		}
	}
	if s.Family != "" {
		if err := id.CheckName("family", s.Family); err != nil {
			return err
		}
	}
	for _, p := range s.Pools {
		if err := id.CheckName("pool", p); err != nil {
			return err
		}
	}
	if err := s.Resources.Validate(); err != nil {
		return err
	}
	return errorsFirst(validCommand("spec.command", s.Command), s.validData(), s.validParams(), validEnv(s.Env), s.validSecrets(), s.validRoles(), s.validGang(), s.validLaunch(), s.Checkpoints.Validate())
}

func errorsFirst(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func validCommand(what string, command []string) error {
	size := 0
	for _, a := range command {
		size += len(a)
		if strings.ContainsRune(a, 0) {
			return fault.New(fault.Invalid, "%s contains a zero byte", what)
		}
	}
	if len(command) > maxArgs || size > maxArgBytes {
		return fault.New(fault.Invalid, "%s has %d arguments of %d bytes; the limits are %d arguments and %d bytes", what, len(command), size, maxArgs, maxArgBytes)
	}
	return nil
}

func (s Spec) validData() error {
	if len(s.Tables) > maxTables {
		return fault.New(fault.Invalid, "spec.tables: a job has at most %d tables, not %d", maxTables, len(s.Tables))
	}
	for i, name := range s.Tables {
		if err := id.CheckName("table", name); err != nil {
			return err
		}
		if slices.Contains(s.Tables[:i], name) {
			return fault.New(fault.Invalid, "spec.tables: duplicate table %s", name)
		}
	}
	if len(s.Data) > maxInputs {
		return fault.New(fault.Invalid, "spec.data: a job has at most %d inputs, not %d", maxInputs, len(s.Data))
	}
	vars := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(s.Data)) {
		if err := id.CheckName("data name", name); err != nil {
			return err
		}
		if ref := s.Data[name]; ref == "" || len(ref) > 300 {
			return fault.New(fault.Invalid, "spec.data.%s: %.40q is not a reference such as weather@1", name, ref)
		}
		v := dataVariable(name)
		if other, taken := vars[v]; taken {
			return fault.New(fault.Invalid, "spec.data: names %q and %q both become the variable %s", other, name, v)
		}
		vars[v] = name
	}
	if _, there := s.Data[s.Trains]; s.Trains != "" && !there {
		return fault.New(fault.Invalid, "spec.training_data: unknown input %.60q", s.Trains).WithHint("Name an input of spec.data: %s.", strings.Join(slices.Sorted(maps.Keys(s.Data)), ", "))
	}
	return nil
}

// launched are the variables by which the workers of a gang find each other.
var launched = []string{
	"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TF_CONFIG",
	"HOROVOD_CONTROLLER", "HOROVOD_SIZE", "HOROVOD_RANK", "HOROVOD_LOCAL_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_CROSS_SIZE", "HOROVOD_CROSS_RANK",
	"HOROVOD_HOSTNAME", "HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT",
	"DMLC_TRACKER_URI", "DMLC_TRACKER_PORT", "DMLC_NUM_WORKER", "DMLC_TASK_ID", "DMLC_ROLE",
}

// validLaunch refuses variables that the launcher of the gang sets: with others
// its workers would not find each other, and not say why. One process alone may
// have them as it likes.
func (s Spec) validLaunch() error {
	alone := s.Framework == "" || s.Framework == launch.Plain
	if alone && s.Workers.orOne().Max == 1 && s.Processes <= 1 && len(s.Roles) == 0 {
		return nil
	}
	envs := []map[string]string{s.Env}
	for _, r := range s.Roles {
		envs = append(envs, r.Env)
	}
	for _, env := range envs {
		for _, name := range launched {
			if _, ok := env[name]; ok {
				return fault.New(fault.Invalid, "environment variable %s is set by the launcher for each worker", name).WithHint("Remove it from env.")
			}
		}
	}
	return nil
}

func validEnv(env map[string]string) error {
	size := 0
	for _, k := range slices.Sorted(maps.Keys(env)) {
		v := env[k]
		size += len(k) + len(v)
		switch {
		case !envRE.MatchString(k):
			return fault.New(fault.Invalid, "environment variable %.80q has an invalid name", k)
		case strings.ContainsRune(v, 0):
			return fault.New(fault.Invalid, "environment variable %s contains a zero byte", k)
		case strings.HasPrefix(k, "FALAJ_") || strings.HasPrefix(k, "MLFLOW_TRACKING_") || k == "MLFLOW_RUN_ID":
			return fault.New(fault.Invalid, "environment variable %s is reserved for Falaj", k)
		}
	}
	if len(env) > maxEnv || size > maxEnvBytes {
		return fault.New(fault.Invalid, "%d environment variables with %d bytes exceed the limits of %d variables and %d bytes", len(env), size, maxEnv, maxEnvBytes)
	}
	return nil
}

// complete fills in the defaults.
func (s Spec) complete(isolation scheduler.Isolation) Spec {
	if s.Resources.CPU == 0 {
		s.Resources.CPU = resource.Cores(1)
	}
	if s.Resources.Memory == 0 {
		s.Resources.Memory = resource.GiB
	}
	// A spec that names pools takes what these promise; the least that the machine of
	// the server isolates by, its engine holds whatever a job says.
	if s.Isolation == "" && len(s.Pools) > 0 {
		s.Isolation = scheduler.None
	}
	if s.Isolation == "" {
		s.Isolation = isolation
	}
	if s.Timeout == 0 {
		s.Timeout = compute.Duration(24 * time.Hour)
	}
	if s.Grace == 0 {
		s.Grace = compute.Duration(30 * time.Second)
	}
	if s.MaxAttempts == 0 {
		s.MaxAttempts = 3
	}
	if s.Framework == "" {
		s.Framework = launch.Plain
	}
	s.Roles = s.completeRoles()
	return s
}

// dataVariable is the variable that holds an input's directory.
func dataVariable(name string) string { return "FALAJ_DATA_" + variableOf(name) }

// datasetVariable is the variable that holds which dataset version an input is,
// "weather@1", for programs that stream it.
func datasetVariable(name string) string { return "FALAJ_DATASET_" + variableOf(name) }

// modelVariable is the variable that holds which model version an input is, "delay@3".
func modelVariable(name string) string { return "FALAJ_MODEL_" + variableOf(name) }

func variableOf(name string) string { return strings.ToUpper(strings.ReplaceAll(name, "-", "_")) }

// Input is one pinned input.
type Input struct {
	Name           string                 `json:"name"` // the specification's
	Ref            string                 `json:"ref"`  // "dataset weather@1", "model delay@3"
	Digest         string                 `json:"digest"`
	Residency      residency.Label        `json:"residency"`
	Classification project.Classification `json:"classification"`
	Bytes          int64                  `json:"bytes,omitempty"` // stored; 0 is not known
	// Datasets are, of a model, the versions that it was trained on: what is made of its
	// answers is made of them.
	Datasets []string `json:"datasets,omitempty"`
}

// Dataset is the version that the input is, "weather@1"; empty for a model.
func (in Input) Dataset() string { return in.of("dataset ") }

// Model is the model version that the input is, "delay@3"; empty for a dataset.
func (in Input) Model() string { return in.of("model ") }

func (in Input) of(kind string) string {
	if ref, ok := strings.CutPrefix(in.Ref, kind); ok {
		return ref
	}
	return ""
}

// reference is what a specification names the input by, with its version.
func (in Input) reference() string {
	model := in.Model()
	if i := strings.LastIndexByte(model, '@'); i >= 0 {
		return "models:/" + model[:i] + "/" + model[i+1:]
	}
	return in.Dataset()
}

// Step is SQL that a job runs to make a dataset. Falaj records it of a job that it submits
// itself: no specification says it.
type Step struct {
	SQL    string            `json:"sql"`
	Tables map[string]string `json:"tables"` // names of the job's data by those that the SQL has
}

// Actor is who submitted or cancelled.
type Actor struct {
	ID   string `json:"id"`
	Name string `json:"name,omitempty"`
}

// Job is one run of a specification to its end.
type Job struct {
	ID             JobID                  `json:"id"`
	Project        project.Name           `json:"project"`
	Name           string                 `json:"name"`
	Spec           Spec                   `json:"spec"`
	State          State                  `json:"state"`
	Inputs         []Input                `json:"inputs"`
	Tables         []Input                `json:"tables,omitempty"`             // the newest versions of spec.tables when it was submitted
	Step           *Step                  `json:"step,omitempty"`               // that it runs for a dataset; nil of other jobs
	EnvDigest      environment.Digest     `json:"environment_digest,omitempty"` // once an attempt was made
	Residency      residency.Label        `json:"residency"`
	Classification project.Classification `json:"classification"`
	By             Actor                  `json:"submitted_by"`
	From           JobID                  `json:"from,omitempty"` // that it repeats
	// Digest is of the name, the specification, its environment's and the
	// pinned inputs.
	Digest string `json:"digest"`

	Attempt  AttemptID        `json:"attempt,omitempty"` // under way; empty while there is none
	Attempts int              `json:"attempts"`          // made so far
	Failures int              `json:"failures"`          // of them, those that count against max_attempts
	Pool     compute.PoolName `json:"pool,omitempty"`
	Workers  Workers          `json:"workers,omitzero"`  // wanted of the next attempt, where it was resized
	Pools    []string         `json:"pools,omitempty"`   // of the next attempt, where it was moved
	Run      string           `json:"run_id,omitempty"`  // of the last attempt
	Model    string           `json:"model,omitempty"`   // "delay@3", or the logged model
	Dataset  string           `json:"dataset,omitempty"` // "daily@3", that it made
	Class    Class            `json:"class,omitempty"`   // why the last attempt ended
	Reason   string           `json:"reason,omitempty"`  // in words
	Hint     string           `json:"hint,omitempty"`
	// Stop says who wants the job to end; empty while it is wanted.
	Stop string `json:"stop,omitempty"`

	SubmittedAt time.Time        `json:"submitted_at"`
	Due         time.Time        `json:"due_at,omitzero"`
	Expected    compute.Duration `json:"expected,omitempty"` // how long it probably runs; of jobs with a deadline
	StartedAt   time.Time        `json:"started_at,omitzero"`
	EndedAt     time.Time        `json:"ended_at,omitzero"`
	Revision    int64            `json:"revision"`
}

// TrainedOn is the name of the input that the job trains on: the one that it declares, or
// its only dataset. Empty where that is not known.
func (j Job) TrainedOn() string {
	if j.Spec.Trains != "" {
		return j.Spec.Trains
	}
	only := ""
	for _, in := range j.Inputs {
		switch {
		case in.Dataset() == "":
		case only != "":
			return ""
		default:
			only = in.Name
		}
	}
	return only
}

// EnvironmentRef is the environment version that the job ran in, "name@digest"; empty where it
// has none or it is not known yet. The specification may name a version too.
func (j Job) EnvironmentRef() string {
	if j.Spec.Environment == "" || j.EnvDigest == "" {
		return ""
	}
	name, _, _ := strings.Cut(j.Spec.Environment, "@")
	return name + "@" + string(j.EnvDigest)
}

// Pinned is the specification with the versions that the job read and the environment that
// it ran in, as far as that is known.
func (j Job) Pinned() Spec {
	spec := j.Spec
	spec.Data = maps.Clone(spec.Data)
	for _, in := range j.Inputs {
		spec.Data[in.Name] = in.reference()
	}
	if ref := j.EnvironmentRef(); ref != "" {
		spec.Environment = ref
	}
	return spec
}

// digest identifies what a job would do.
func digest(name string, spec Spec, inputs []Input, env string) string {
	inputs = slices.Clone(inputs)
	for i := range inputs {
		inputs[i].Bytes, inputs[i].Datasets = 0, nil // what it reads has a digest
	}
	b, err := json.Marshal(struct {
		Name        string  `json:"name"`
		Spec        Spec    `json:"spec"`
		Inputs      []Input `json:"inputs"`
		Environment string  `json:"environment"`
	}{name, spec, inputs, env})
	if err != nil {
		panic(err) // none of these can fail
	}
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}
