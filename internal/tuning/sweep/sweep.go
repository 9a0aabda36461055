// Package sweep searches for good hyper-parameters with jobs: each trial is a job of
// training, which reads its parameters and logs metrics to its run.
//
// # Map
//
//   - sweep.go: Spec and its rules, Sweep and its states.
//   - plan.go: what is to be done next, purely: which trials end, which begin, and
//     whether the sweep is over.
//   - service.go: Apply, Stop, Resume, Delete, One, List, Trials, Report.
//   - loop.go: doing it; what jobs report and how they end.
//   - store.go; tuningsql/ is the database.
//
// # Guarantees
//
// A sweep is also a study of package tuning, under its name: Optuna's clients can read
// it, and the trials that they add are learnt from. The job of a trial is decided in the
// transaction that makes the trial, so a crash at any moment makes no second one. What
// is suggested depends on the trials alone: a sweep that was interrupted goes on as it
// would have. Jobs are submitted with the rights that whoever applied the sweep has
// then; they carry the zones and the classification of what they read, and the sweep
// those of its jobs.
package sweep

import (
	"cmp"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/training"
	"github.com/falaj-ml/falaj/internal/tuning"
	"github.com/falaj-ml/falaj/internal/tuning/search"
	"github.com/falaj-ml/falaj/internal/tuning/space"
	"github.com/falaj-ml/falaj/internal/tuning/stop"
	"github.com/falaj-ml/falaj/internal/tuning/trial"
)

// The actions that this package asks for.
const (
	ActionRead   policy.Action = "sweep.read"
	ActionApply  policy.Action = "sweep.apply"
	ActionDelete policy.Action = "sweep.delete"
)

// State of a sweep.
type State string

// The states. TestTransitions holds the diagram against the table.
//
//	stateDiagram-v2
//	    [*] --> running: applied
//	    running --> complete: nothing is left to try, or the budget is spent
//	    running --> stopped: somebody stopped it
//	    running --> failed: no trial can begin, or all fail
//	    complete --> running: its budget was raised
//	    stopped --> running: resumed
//	    failed --> running: resumed
const (
	Running  State = "running"
	Complete State = "complete"
	Stopped  State = "stopped"
	Failed   State = "failed"
	// Client is of a study that a client of Optuna's made and drives.
	Client State = "client"
)

var transitions = map[State][]State{
	Running:  {Complete, Stopped, Failed},
	Complete: {Running},
	Stopped:  {Running},
	Failed:   {Running},
}

// CanBecome reports whether the transition exists.
func (s State) CanBecome(next State) bool { return slices.Contains(transitions[s], next) }

// Objective is a metric that is to become better.
type Objective struct {
	Metric    string          `json:"metric" doc:"Name of the metric that trials log to their run"`
	Direction trial.Direction `json:"direction,omitempty" enum:"minimize,maximize" doc:"Direction: minimize or maximize; default minimize"`
	Value     Of              `json:"value,omitempty" enum:"last,best" doc:"Value of a trial: last (at the highest step) or best; default last"`
}

// Of is which value of a metric counts.
type Of string

// The values.
const (
	Last Of = "last"
	Best Of = "best"
)

// Spec is the manifest of kind Sweep.
type Spec struct {
	Job        training.Spec     `json:"job" doc:"Job of a trial, as the spec of kind Job. Its parameters are in $FALAJ_PARAMS (JSON) and replace ${params.NAME} in its command; it logs the objectives to its run with any MLflow client"`
	Parameters []space.Parameter `json:"parameters" doc:"Parameters of the search space, at most 128; a parameter follows those in its when"`
	Objectives []Objective       `json:"objectives" doc:"Objectives: one, or several for a search of the Pareto front"`
	Search     search.Config     `json:"search,omitzero" doc:"Search algorithm; default tpe"`
	Stop       stop.Rule         `json:"stop,omitzero" doc:"Early stopping of trials by their logged values; default none"`
	Watch      string            `json:"watch,omitempty" doc:"Metric for early stopping; default: that of the first objective"`
	Budget     stop.Budget       `json:"budget,omitzero" doc:"Limits of the sweep; a search other than grid requires a number of trials, a time or a cost"`
	Parallel   int               `json:"parallel,omitempty" doc:"Number of trials that are queued or running at once, at most 1000; default 1"`
	WarmStart  []string          `json:"warm_start,omitempty" doc:"Other sweeps whose trials the search also uses, as far as their parameters are within this search space"`
}

// Limits of a specification.
const (
	maxParallel = 1000
	maxWarm     = 16
	maxMetric   = 250
	maxName     = 50 // the jobs' names have the trials' numbers behind it
)

// patience is how many trials may fail when none has succeeded.
const patience = 5

// gratis is how many trials that cost nothing a sweep starts which only money bounds: a
// pool may have lost its price.
const gratis = 1000

// grace is what a trial has to end in, where its job does not say.
const grace = 5 * time.Second

// Problem is what is searched.
func (s Spec) Problem() search.Problem {
	p := search.Problem{Space: space.Space{Parameters: s.Parameters}}
	for _, o := range s.Objectives {
		p.Directions = append(p.Directions, o.Direction)
	}
	return p
}

// moneyOnly reports whether nothing but money ends the search.
func (s Spec) moneyOnly() bool {
	return s.Budget.Money > 0 && s.Budget.Trials == 0 && s.Budget.Time == 0 && s.Search.Algorithm != search.Grid
}

// complete fills in the defaults.
func (s Spec) complete() Spec {
	s.Objectives = slices.Clone(s.Objectives)
	for i, o := range s.Objectives {
		s.Objectives[i].Direction, s.Objectives[i].Value = cmp.Or(o.Direction, trial.Minimize), cmp.Or(o.Value, Last)
	}
	s.Search.Algorithm = cmp.Or(s.Search.Algorithm, search.TPE)
	s.Parallel = max(s.Parallel, 1)
	if len(s.Objectives) > 0 {
		s.Watch = cmp.Or(s.Watch, s.Objectives[0].Metric)
		if i := slices.IndexFunc(s.Objectives, func(o Objective) bool { return o.Metric == s.Watch }); i >= 0 {
			s.Stop.Direction = cmp.Or(s.Stop.Direction, s.Objectives[i].Direction)
		}
	}
	s.Stop.Kind = cmp.Or(s.Stop.Kind, stop.None)
	s.Job.Grace = cmp.Or(s.Job.Grace, compute.Duration(grace))
	return s
}

// Validate refuses what cannot be a sweep. Error: fault.Invalid.
func (s Spec) Validate() error {
	c := s.complete()
	switch {
	case s.Parallel < 0 || s.Parallel > maxParallel:
		return fault.New(fault.Invalid, "parallel is %d, and must be 1 to %d", s.Parallel, maxParallel)
	case len(s.Objectives) == 0:
		return fault.New(fault.Invalid, "an objective is required").WithHint("Write objectives: [{metric: val_loss, direction: minimize}].")
	case len(s.WarmStart) > maxWarm:
		return fault.New(fault.Invalid, "warm_start names %d sweeps, over the limit of %d", len(s.WarmStart), maxWarm)
	case len(s.Job.Params) > 0:
		return fault.New(fault.Invalid, "job.params is not allowed in a sweep").WithHint("Declare each as a parameter of the sweep; a single choice makes a constant.")
	case len(s.Watch) > maxMetric:
		return fault.New(fault.Invalid, "watch exceeds %d bytes", maxMetric)
	case c.Stop.Kind != stop.None && c.Stop.Direction == "":
		return fault.New(fault.Invalid, "stop.direction is required, because its metric %.80q is not an objective", c.Watch).WithHint("Write stop.direction: minimize or maximize.")
	case c.Search.Algorithm != search.Grid && s.Budget.Trials == 0 && s.Budget.Time == 0 && s.Budget.Money == 0:
		return fault.New(fault.Invalid, "the sweep has no end").WithHint("Set budget: {trials: 50}, or a time or money.")
	}
	for i, o := range s.Objectives {
		if o.Metric == "" || len(o.Metric) > maxMetric {
			return fault.New(fault.Invalid, "objectives[%d]: the metric name must have 1 to %d bytes", i, maxMetric)
		}
		if slices.ContainsFunc(s.Objectives[:i], func(other Objective) bool { return other.Metric == o.Metric }) {
			return fault.New(fault.Invalid, "objectives: duplicate %s", o.Metric)
		}
		if o.Value != "" && o.Value != Last && o.Value != Best {
			return fault.New(fault.Invalid, "objectives[%d]: value %.40q does not exist", i, string(o.Value)).WithHint("Use last or best.")
		}
	}
	for _, w := range s.WarmStart {
		if err := id.CheckName("warm_start", w); err != nil {
			return err
		}
	}
	if err := c.Search.Validate(c.Problem()); err != nil {
		return err
	}
	if err := c.Stop.Validate(); err != nil {
		return err
	}
	if err := s.Budget.Validate(); err != nil {
		return err
	}
	// Whether the commands name parameters that there are.
	some, err := search.Suggest(c.Problem(), search.Config{Algorithm: search.Random}, nil, 0)
	if err != nil {
		return err
	}
	job := c.Job
	job.Params = training.Params{}
	for _, p := range s.Parameters {
		job.Params[p.Name] = some[p.Name] // nil of one that is not always there
	}
	return fault.Wrap(job.Validate(), "job")
}

// Sweep is a search under way or at its end.
type Sweep struct {
	Project project.Name       `json:"project"`
	Name    string             `json:"name"`
	Study   tuning.StudyID     `json:"study" doc:"Number of the study in the project; Optuna clients use its name"`
	Spec    Spec               `json:"spec"`
	By      identity.Principal `json:"by" doc:"User who applied it last; its jobs are submitted with this user's permissions"`
	State   State              `json:"state" enum:"running,complete,stopped,failed,client" doc:"client: an Optuna study, whose clients manage the trials"`
	Reason  string             `json:"reason,omitempty" doc:"Reason of the state"`
	Hint    string             `json:"hint,omitempty" doc:"Remedy"`
	// Stop says who or what ends it, and Ends as what, once its trials have ended.
	Stop string `json:"stop,omitempty" doc:"Who or what stopped it; empty: not stopped"`
	Ends State  `json:"ends,omitempty" doc:"State after it stops"`

	// What the jobs of all trials read and run in, as it was when the sweep was applied. An
	// environment that was being built then is pinned by the first trial that gets it.
	Data        map[string]string `json:"data,omitempty" doc:"Inputs of the trials' jobs by name, with their versions"`
	Environment string            `json:"environment,omitempty" doc:"Environment of the trials' jobs, with its digest after it is built"`

	Residency      residency.Label        `json:"residency"`
	Classification project.Classification `json:"classification"`

	Attributes map[string]any `json:"attributes,omitempty" doc:"User attributes of a study"`

	CreatedAt time.Time `json:"created_at"`
	ResumedAt time.Time `json:"resumed_at" doc:"Time of the last apply or resume"`
	EndedAt   time.Time `json:"ended_at,omitzero"`
	Revision  int64     `json:"revision"`

	// Before it was resumed last: for how long it was under way, and its trials, of which
	// those that failed are forgiven.
	Used     time.Duration `json:"-"`
	Forgiven int           `json:"-"`
}

// under is for how long a sweep has been under way.
func (s Sweep) under(now time.Time) time.Duration {
	if !s.EndedAt.IsZero() {
		now = s.EndedAt
	}
	return s.Used + max(now.Sub(s.ResumedAt), 0)
}

// moved is the sweep in another state.
func (s Sweep) moved(to State, now time.Time) (Sweep, error) {
	if !s.State.CanBecome(to) {
		return s, fault.New(fault.Internal, "sweep %s cannot become %s from %s", s.Name, to, s.State)
	}
	if to == Running {
		s.Used, s.ResumedAt, s.EndedAt = s.under(now), now, time.Time{}
		s.Reason, s.Hint, s.Stop, s.Ends = "", "", "", ""
	} else {
		s.EndedAt = now
	}
	s.State = to
	return s, nil
}

// same compares what was read from the database with what was written by somebody.
func same(a, b any) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && string(x) == string(y)
}

// follows refuses a specification that is another search: what its trials say would be
// taken for what they say of this one. Error: fault.Conflict.
func (s Sweep) follows(next Spec) error {
	for _, part := range []struct {
		name string
		same bool
	}{
		{"parameters", same(s.Spec.Parameters, next.Parameters)},
		{"objectives", same(s.Spec.Objectives, next.Objectives)},
		{"job", same(s.Spec.Job, next.Job)},
		{"watch", s.Spec.Watch == next.Watch},
	} {
		if !part.same {
			return fault.New(fault.Conflict, "sweep %s already exists with a different spec.%s", s.Name, part.name).
				WithHint("Apply it under another name, with warm_start: [%s] to learn from its trials. Its search, stop, budget and parallel may change.", s.Name)
		}
	}
	return nil
}

// unpinned reports whether trials could still get different builds of their environment.
func (s Sweep) unpinned() bool {
	environment := cmp.Or(s.Environment, s.Spec.Job.Environment)
	return environment != "" && !strings.Contains(environment, "@")
}

// job is what a trial's job is called and does.
func (s Sweep) job(number int, params space.Params) (string, training.Spec) {
	spec := s.Spec.Job
	if s.Data != nil {
		spec.Data = s.Data
	}
	spec.Environment = cmp.Or(s.Environment, spec.Environment)
	spec.Params = training.Params{}
	var absent []string
	for _, p := range s.Spec.Parameters {
		if v, ok := params[p.Name]; ok {
			spec.Params[p.Name] = told(v)
		} else {
			absent = append(absent, "${params."+p.Name+"}", "null")
		}
	}
	fill := func(command []string) (out []string) {
		for _, arg := range command {
			out = append(out, strings.NewReplacer(absent...).Replace(arg))
		}
		return out
	}
	if len(absent) > 0 {
		spec.Command, spec.Roles = fill(spec.Command), slices.Clone(spec.Roles)
		for i, r := range spec.Roles {
			spec.Roles[i].Command = fill(r.Command)
		}
	}
	spec.Experiment, spec.Family = cmp.Or(spec.Experiment, s.Name), cmp.Or(spec.Family, s.Name)
	return s.Name + "-" + strconv.Itoa(number), spec
}

// told is a value as programs read it: a float is one also where it is whole.
func told(v any) any {
	if f, ok := v.(float64); ok {
		return json.Number(float(f))
	}
	return v
}

func float(v float64) string {
	text := strconv.FormatFloat(v, 'g', -1, 64)
	if !strings.ContainsAny(text, ".e") {
		text += ".0"
	}
	return text
}

// Task is the job of a trial.
type Task struct {
	Project project.Name
	Study   tuning.StudyID
	Number  int
	Trial   tuning.TrialID
	Job     training.JobID
	Reason  string // why it ended, or was stopped
	Done    bool   // nothing of it is to be looked at again
}

// Shown is a trial as people see it.
type Shown struct {
	Number  int          `json:"number" doc:"Number in the sweep, from 0"`
	State   trial.State  `json:"state" enum:"waiting,queued,running,complete,stopped,failed" doc:"waiting: for an Optuna client; queued: its job waits; stopped: by a rule (pruned in Optuna); failed: without a result"`
	Params  space.Params `json:"params"`
	Values  []Number     `json:"values,omitempty" doc:"Values of a complete trial, one for each objective"`
	Job     string       `json:"job,omitempty" doc:"Job of the trial; empty for trials that an Optuna client added"`
	Reason  string       `json:"reason,omitempty" doc:"Why it ended"`
	Started time.Time    `json:"started_at,omitzero"`
	Ended   time.Time    `json:"ended_at,omitzero"`
	Reports []Report     `json:"reports,omitempty" doc:"Logged values of the watched metric"`

	Attributes map[string]any `json:"attributes,omitempty" doc:"Attributes that an Optuna client set"`
	Infeasible bool           `json:"infeasible,omitempty" doc:"It violates a constraint and is never the best trial"`
}

// States that are shown and are none of a trial's own: Waiting of one that a client has put
// in the queue for others, Queued of one whose job waits.
const (
	Waiting trial.State = "waiting"
	Queued  trial.State = "queued"
)

// Report is a value on the way.
type Report struct {
	Step  int64  `json:"step"`
	Value Number `json:"value"`
}

// foreign is a study that no sweep drives, as one, with the parameters that its trials have.
func foreign(study tuning.Study, parameters map[string]tuning.Distribution) Sweep {
	w := Sweep{
		Project: study.Project, Name: study.Name, Study: study.ID, By: identity.Principal{ID: study.Owner}, State: Client,
		Residency: study.Residency, Classification: cmp.Or(project.Classification(study.Classification), project.Internal), Attributes: said(study.User),
		CreatedAt: study.Created, ResumedAt: study.Created,
	}
	names := metricNames(study)
	for i, d := range study.Directions {
		o := Objective{Metric: "value", Direction: trial.Direction(d), Value: Last}
		switch {
		case names != nil:
			o.Metric = names[i]
		case len(study.Directions) > 1:
			o.Metric += " " + strconv.Itoa(i)
		}
		w.Spec.Objectives = append(w.Spec.Objectives, o)
	}
	w.Spec.Watch = "intermediate value"
	for _, name := range slices.Sorted(maps.Keys(parameters)) {
		p, err := space.FromOptuna(name, []byte(parameters[name]))
		if err == nil && len(w.Spec.Parameters) < space.MaxParameters { // what no sweep can have is not shown
			w.Spec.Parameters = append(w.Spec.Parameters, p)
		}
	}
	return w
}

// metricNames are the names that study.set_metric_names of Optuna gave the objectives; nil
// where there are none.
func metricNames(study tuning.Study) (names []string) {
	const attribute = "study:metric_names" // as Optuna calls it
	if err := json.Unmarshal([]byte(study.System[attribute]), &names); err != nil || len(names) != len(study.Directions) {
		return nil
	}
	return names
}

// Number is a float64 whose NaN and infinities are texts in JSON.
type Number float64

// MarshalJSON writes what JSON has no number for as MLflow does.
func (n Number) MarshalJSON() ([]byte, error) {
	switch v := float64(n); {
	case math.IsNaN(v):
		return []byte(`"NaN"`), nil
	case math.IsInf(v, 1):
		return []byte(`"Infinity"`), nil
	case math.IsInf(v, -1):
		return []byte(`"-Infinity"`), nil
	}
	return json.Marshal(float64(n))
}

// Failure is a reason for which trials failed.
type Failure struct {
	Reason string `json:"reason"`
	Trials int    `json:"trials" doc:"Number of trials"`
	Trial  int    `json:"trial" doc:"First trial"`
	Job    string `json:"job,omitempty" doc:"Job of the trial"`
}

// failuresOf groups failed trials by their reason.
func failuresOf(trials []Shown, most int) []Failure {
	var all []Failure
	for _, t := range trials {
		if t.State != trial.Failed || t.Reason == "" {
			continue
		}
		if i := slices.IndexFunc(all, func(f Failure) bool { return f.Reason == t.Reason }); i >= 0 {
			all[i].Trials++
			continue
		}
		all = append(all, Failure{Reason: t.Reason, Trials: 1, Trial: t.Number, Job: t.Job})
	}
	slices.SortStableFunc(all, func(a, b Failure) int { return b.Trials - a.Trials })
	return all[:min(len(all), most)]
}

// ListedSweep is a sweep in a list.
type ListedSweep struct {
	Sweep
	Trials int64 `json:"trials" doc:"Number of trials in all states"`
}

// Summary is how far a sweep is.
type Summary struct {
	Sweep
	Counts map[trial.State]int `json:"counts" doc:"Trials by state"`
	// Failures are why trials failed, the most frequent reasons first.
	Failures []Failure `json:"failures,omitempty" doc:"The three most frequent reasons of failure among the first hundred trials"`
	Best     []Shown   `json:"best,omitempty" doc:"Best feasible complete trial; with several objectives the Pareto front"`
}
