package sweep

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/share"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/training"
	"github.com/falaj-ml/falaj/internal/tuning"
	"github.com/falaj-ml/falaj/internal/tuning/picture"
	"github.com/falaj-ml/falaj/internal/tuning/search"
	"github.com/falaj-ml/falaj/internal/tuning/space"
	"github.com/falaj-ml/falaj/internal/tuning/stop"
	"github.com/falaj-ml/falaj/internal/tuning/trial"
)

// EventFinished is published when a sweep is complete, stopped or failed; its body is
// Finished.
const EventFinished = "sweep.finished"

// Finished is the body of EventFinished.
type Finished struct {
	Sweep  string `json:"sweep"`
	State  State  `json:"state"`
	Reason string `json:"reason"`
	Best   []int  `json:"best,omitempty"` // trials, by number
}

// maxSweeps is how many sweeps of a project may be under way.
const maxSweeps = 100

// sweepRetry is the Retry-After of those beyond.
const sweepRetry = time.Minute

// Authorizer is asked before anything is read or changed.
type Authorizer interface {
	Allow(ctx context.Context, action policy.Action, object policy.Object) error
}

// Jobs run trials. The services of training are that together.
type Jobs interface {
	// CheckSource refuses a source archive that nobody has uploaded.
	CheckSource(ctx context.Context, p project.Name, digest string) error
	// Plan says what Submit would make, and refuses what that would but for a source archive
	// that is not uploaded.
	Plan(ctx context.Context, p project.Name, name string, spec training.Spec) (training.Job, project.Change, error)
	SubmitTrial(ctx context.Context, p project.Name, name string, spec training.Spec, job training.JobID) (training.Job, error)
	One(ctx context.Context, p project.Name, job training.JobID) (training.Job, error)
	Cancel(ctx context.Context, p project.Name, job training.JobID) (training.Job, error)
}

// Point is a value of a metric at a step.
type Point struct {
	Step  int64
	Value float64
}

// Runs tell what jobs logged.
type Runs interface {
	// Stamp changes whenever a run has logged more of a metric; empty while it has none.
	Stamp(ctx context.Context, p project.Name, run, metric string) (string, error)
	// Points are what a run logged of a metric: of each step the last value, by step, at
	// most the limit of the highest steps. With a job they are of the runs of all its
	// attempts, what a later one logged in place of what an earlier one had. n is how
	// many values the run itself has, of all steps.
	Points(ctx context.Context, p project.Name, job training.JobID, run, metric string, limit int) (points []Point, n int, err error)
	// After are those of a run alone that are not among its first n values by time, and
	// how many there are then. What was logged late with an earlier time may be left out.
	After(ctx context.Context, p project.Name, run, metric string, n, limit int) (points []Point, next int, err error)
}

// Costs tell what jobs cost.
type Costs interface {
	// Spent is what each job cost until now; one that is left out has cost nothing. What
	// a job that has ended cost does not change.
	Spent(ctx context.Context, p project.Name, jobs []training.JobID) (map[training.JobID]float64, error)
	// Free are the pools that a planned job may run in and that cost nothing.
	Free(ctx context.Context, planned training.Job) ([]string, error)
}

// Origins knows what job attempts pass on to what they write. *tracking.Origins is one.
type Origins interface {
	// Admit refuses a read that would narrow the label of what the caller makes.
	Admit(ctx context.Context, p project.Name, what string, label residency.Label, classification string) error
}

// Config is what a Service is made of.
type Config struct {
	DB         *store.DB
	Store      Store
	Studies    tuning.Studies
	Authorizer Authorizer
	Journal    audit.Journal // knows of reads of classified sweeps; nil of none
	Origins    Origins       // nil: no job reads sweeps
	Jobs       Jobs
	Runs       Runs
	Costs      Costs
	Log        *slog.Logger     // nil discards
	Now        func() time.Time // nil is time.Now
}

// Service is the only way to sweeps. Safe for concurrent use.
//
// Every method may fail with fault.PermissionDenied; those that name a sweep with
// fault.NotFound.
type Service struct {
	cfg Config
	log *slog.Logger
	now func() time.Time

	mu    sync.Mutex // of the rounds, one at a time
	heard map[training.JobID]heard
	told  map[string]string // the last error of a sweep that was logged
	calm  map[string]rest   // sweeps of which there was nothing to do

	histories map[study]history
	learnt    map[study]learnt
	waits     map[study]string  // why jobs could not be submitted last
	paid      map[study]float64 // what the jobs of trials cost of which nothing more comes

	lease   *store.Lease // of the rounds, where others share the database
	renewed time.Time
}

// rest is when there was nothing to do.
type rest struct {
	revision int64
	at       time.Time
}

// heard is what was read of a trial's job.
type heard struct {
	run, stamp string
	attempt    training.AttemptID // an attempt before it may have logged into the same run
	values     int                // of the watched metric, that were read
	at         time.Time          // when it began or reported last, as far as this process knows
}

// New makes a service. Its RunOnce is to be called again and again.
func New(cfg Config) *Service {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Service{
		cfg: cfg, log: cfg.Log, now: cfg.Now, heard: map[training.JobID]heard{}, told: map[string]string{}, calm: map[string]rest{},
		histories: map[study]history{}, learnt: map[study]learnt{}, paid: map[study]float64{}, waits: map[study]string{},
	}
}

func (s *Service) allow(ctx context.Context, action policy.Action, w Sweep) error {
	err := s.cfg.Authorizer.Allow(ctx, action, policy.Object{
		Project: string(w.Project), Kind: "sweep", Name: w.Name, Owner: w.By.ID, Classification: string(w.Classification), Residency: w.Residency,
	})
	if err != nil || w.Study == 0 || s.cfg.Origins == nil || identity.From(ctx).Kind != identity.Attempt {
		return err
	}
	return s.cfg.Origins.Admit(ctx, w.Project, "sweep "+w.Name, w.Residency, string(w.Classification))
}

// labelled is a sweep with the label of its study, which jobs that write to it narrow.
func (s *Service) labelled(ctx context.Context, tx *store.Tx, w Sweep) (Sweep, error) {
	study, err := s.cfg.Studies.Store.Study(ctx, tx, w.Project, w.Study)
	if err != nil {
		return w, err
	}
	w.Residency, w.Classification = study.Residency, cmp.Or(project.Classification(study.Classification), project.Internal)
	return w, nil
}

// sweep finds one of ours.
func (s *Service) sweep(ctx context.Context, tx *store.Tx, p project.Name, name string) (Sweep, error) {
	w, err := s.cfg.Store.Sweep(ctx, tx, p, name)
	if err != nil {
		return w, err
	}
	return s.labelled(ctx, tx, w)
}

// Apply makes a sweep, or changes its search, stop, budget or parallel; one that had
// ended goes on then. Needs sweep.apply and what Submit of its job needs. Errors besides
// those of Submit: fault.Invalid; fault.Conflict for another search under the name.
func (s *Service) Apply(ctx context.Context, p project.Name, name string, spec Spec) (Sweep, project.Change, error) {
	return s.apply(ctx, p, name, spec, false)
}

// Plan is Apply that changes nothing.
func (s *Service) Plan(ctx context.Context, p project.Name, name string, spec Spec) (Sweep, project.Change, error) {
	return s.apply(ctx, p, name, spec, true)
}

func (s *Service) apply(ctx context.Context, p project.Name, name string, spec Spec, dryRun bool) (w Sweep, change project.Change, err error) {
	if err := s.allow(ctx, ActionApply, Sweep{Project: p, Name: name}); err != nil {
		return w, "", err
	}
	if err := id.CheckName("sweep name", name); err != nil {
		return w, "", err
	}
	if len(name) > maxName {
		return w, "", fault.New(fault.Invalid, "sweep name %s has more than %d characters, the limit before the number of a job", name, maxName)
	}
	if err := spec.Validate(); err != nil {
		return w, "", err
	}
	spec = spec.complete()
	asked := Sweep{Project: p, Name: name, Spec: spec, By: author(ctx), State: Running}
	first, err := search.Suggest(spec.Problem(), spec.Search, nil, 0)
	if err != nil {
		return w, "", err
	}
	jobName, job := asked.job(0, first)
	planned, _, err := s.cfg.Jobs.Plan(ctx, p, jobName, job)
	if err != nil {
		return w, "", fault.Wrap(err, "sweep %s: its jobs", name)
	}
	if job.Source != "" && !dryRun {
		if err := s.cfg.Jobs.CheckSource(ctx, p, job.Source); err != nil {
			return w, "", fault.Wrap(err, "sweep %s: its jobs", name)
		}
	}
	pinned := planned.Pinned()
	asked.Data, asked.Environment, asked.Residency, asked.Classification = pinned.Data, pinned.Environment, planned.Residency, planned.Classification
	endless, err := s.endless(ctx, spec, planned)
	if err != nil {
		return w, "", err
	}

	do := func(ctx context.Context, tx *store.Tx) error {
		now := s.now().UTC()
		old, err := s.cfg.Store.Sweep(ctx, tx, p, name)
		if err != nil && !fault.Is(err, fault.NotFound) {
			return err
		}
		fresh := slices.DeleteFunc(slices.Clone(spec.WarmStart), func(name string) bool { return slices.Contains(old.Spec.WarmStart, name) })
		sources, warmErr := s.sources(ctx, tx, asked, fresh)
		if warmErr != nil {
			return warmErr
		}
		switch {
		case endless != nil && !same(old.Spec, spec):
			return endless
		case fault.Is(err, fault.NotFound):
			w, change = asked, project.Created
			w.CreatedAt, w.ResumedAt = now, now
			if w, err = w.inherit(sources); err != nil {
				return err
			}
			if err := s.room(ctx, tx, p); err != nil {
				return err
			}
			if dryRun {
				return nil
			}
			study := tuning.Study{Project: p, Name: name, Owner: w.By.ID, Residency: w.Residency, Classification: string(w.Classification)}
			for _, o := range spec.Objectives {
				study.Directions = append(study.Directions, tuning.Direction(o.Direction))
			}
			if w.Study, _, err = s.cfg.Studies.Create(ctx, tx, study); err != nil {
				return err
			}
			if err := s.distributions(ctx, tx, w); err != nil {
				return err
			}
		case same(old.Spec, spec):
			w, change = old, project.Unchanged
			return nil
		default:
			if err := s.allow(ctx, ActionApply, old); err != nil {
				return err
			}
			if err := old.follows(spec); err != nil {
				return err
			}
			if old.State == Running && old.Stop != "" {
				return fault.New(fault.Conflict, "sweep %s is ending: %s", name, old.Stop).WithHint("Run falaj sweep wait %s, then apply it again.", name)
			}
			w, change = old, project.Updated
			w.Spec, w.By = spec, asked.By
			if !dryRun {
				if err := s.narrow(ctx, tx, w, sources); err != nil {
					return err
				}
			}
			if w.State != Running {
				n, err := s.cfg.Studies.Store.TrialCount(ctx, tx, p, w.Study)
				if err != nil {
					return err
				}
				if w, err = w.moved(Running, now); err != nil {
					return err
				}
				w.Forgiven = int(n)
				if err := s.room(ctx, tx, p); err != nil {
					return err
				}
			}
			if dryRun {
				return nil
			}
		}
		return s.put(ctx, tx, &w, ActionApply, map[string]any{"change": change, "parallel": spec.Parallel, "budget": spec.Budget, "inputs": w.Data, "residency": w.Residency.String()})
	}
	if dryRun {
		err = s.cfg.DB.View(ctx, do)
	} else {
		err = s.cfg.DB.Update(ctx, string(p), do)
	}
	return w, change, fault.Wrap(err, "sweep %s", name)
}

// endless is the refusal of a sweep that nothing but money bounds, and whose jobs may run
// where they cost none.
func (s *Service) endless(ctx context.Context, spec Spec, planned training.Job) (refusal, err error) {
	if !spec.moneyOnly() {
		return nil, nil
	}
	free, err := s.cfg.Costs.Free(ctx, planned)
	if err != nil || len(free) == 0 {
		return nil, err
	}
	return fault.New(fault.Invalid, "the budget limits only money, and the sweep's jobs may run in pools without a price: %s", strings.Join(free, ", ")).
		WithHint("Add trials or time to budget, list only pools with a price in job.pools, or ask an administrator to set a price for these pools."), nil
}

// inherit narrows the label of a sweep to that of what it learns from.
func (w Sweep) inherit(sources []Sweep) (Sweep, error) {
	parents := []residency.Parent{{Name: "the jobs of sweep " + w.Name, Label: w.Residency}}
	classes := []project.Classification{w.Classification}
	for _, from := range sources {
		parents, classes = append(parents, residency.Parent{Name: "sweep " + from.Name, Label: from.Residency}), append(classes, from.Classification)
	}
	label, err := residency.Derive(parents...)
	w.Residency, w.Classification = label, project.Strictest(classes...)
	return w, err
}

// narrow gives a sweep's study the label of what it learns from, too.
func (s *Service) narrow(ctx context.Context, tx *store.Tx, w Sweep, sources []Sweep) error {
	w, err := s.labelled(ctx, tx, w)
	if err != nil {
		return err
	}
	was := w
	if w, err = w.inherit(sources); err != nil || w.Residency.Same(was.Residency) && w.Classification == was.Classification {
		return err
	}
	return s.cfg.Studies.Store.Relabel(ctx, tx, w.Project, w.Study, w.Residency, string(w.Classification))
}

// distributions says what the parameters of a sweep are before a client of Optuna's can
// say something else.
func (s *Service) distributions(ctx context.Context, tx *store.Tx, w Sweep) error {
	for _, p := range w.Spec.Parameters {
		d, err := p.Optuna()
		if err != nil {
			return err
		}
		if err := s.cfg.Studies.Declare(ctx, tx, w.Project, w.Study, p.Name, tuning.Distribution(d)); err != nil {
			return err
		}
	}
	return nil
}

// author is who applies a sweep, without the token.
func author(ctx context.Context) identity.Principal {
	p := identity.From(ctx)
	return identity.Principal{Kind: p.Kind, ID: p.ID, Name: p.Name, Project: p.Project, Scopes: p.Scopes}
}

// room refuses more sweeps at once than a round can see to.
func (s *Service) room(ctx context.Context, tx *store.Tx, p project.Name) error {
	all, err := s.cfg.Store.UnderWay(ctx, tx)
	if err != nil {
		return err
	}
	if n := len(slices.DeleteFunc(all, func(w Sweep) bool { return w.Project != p })); n >= maxSweeps {
		return share.Refused("sweeps", fmt.Sprintf("the project has %d active sweeps, the limit", n), "Stop a sweep, or wait until one ends.", sweepRetry)
	}
	return nil
}

// put writes a change that somebody asked for.
func (s *Service) put(ctx context.Context, tx *store.Tx, w *Sweep, action policy.Action, detail map[string]any) error {
	w.Revision++
	if err := s.cfg.Store.PutSweep(ctx, tx, *w); err != nil {
		return err
	}
	return audit.Append(ctx, tx, audit.Entry{Project: string(w.Project), Action: string(action), Object: "sweep " + w.Name, Detail: detail})
}

// Stop ends a sweep: its running trials are stopped, and no more begin. Needs
// sweep.apply. Stopping again is no change. Error: fault.Conflict when it has ended.
func (s *Service) Stop(ctx context.Context, p project.Name, name string) (w Sweep, err error) {
	err = s.change(ctx, p, name, func(ctx context.Context, tx *store.Tx, old Sweep) error {
		w = old
		switch {
		case w.State == Stopped || w.State == Running && w.Stop != "":
			return nil
		case w.State != Running:
			return fault.New(fault.Conflict, "sweep %s is already %s", name, w.State)
		}
		w.Stop, w.Ends = "stopped by "+identity.From(ctx).String(), Stopped
		return s.put(ctx, tx, &w, ActionApply, map[string]any{"change": "stopped"})
	})
	return w, err
}

// Resume goes on with a sweep that has ended, with so many trials more in its budget.
// Needs sweep.apply. Errors: fault.Conflict while it goes on, or when its budget of trials
// or time is spent all the same; fault.Invalid for a negative number, or one where trials
// are not bounded.
func (s *Service) Resume(ctx context.Context, p project.Name, name string, trials int) (w Sweep, err error) {
	err = s.change(ctx, p, name, func(ctx context.Context, tx *store.Tx, old Sweep) error {
		w = old
		switch {
		case w.State == Running:
			return fault.New(fault.Conflict, "sweep %s is still active", name)
		case trials < 0:
			return fault.New(fault.Invalid, "the number of additional trials is %d, and must be positive", trials)
		}
		if trials > 0 && w.Spec.Budget.Trials == 0 {
			return fault.New(fault.Invalid, "sweep %s has no budget of trials, so %d trials cannot be added", name, trials).WithHint("Apply it with a larger budget, or resume it without a number of trials.")
		}
		w.Spec.Budget.Trials += trials
		if err := w.Spec.Budget.Validate(); err != nil {
			return err
		}
		tasks, err := s.cfg.Store.Tasks(ctx, tx, p, w.Study, false)
		if err != nil {
			return err
		}
		if d := w.Spec.Budget.Decide(stop.Spent{Trials: len(tasks), Time: w.under(s.now())}); d.Stop {
			return fault.New(fault.Conflict, "the budget of sweep %s is spent: %s", name, d.Reason).WithHint("Give it more trials (--trials), or apply it with a larger budget.")
		}
		if err := s.room(ctx, tx, p); err != nil {
			return err
		}
		n, err := s.cfg.Studies.Store.TrialCount(ctx, tx, p, w.Study)
		if err != nil {
			return err
		}
		if w, err = w.moved(Running, s.now().UTC()); err != nil {
			return err
		}
		w.Forgiven, w.By = int(n), author(ctx)
		return s.put(ctx, tx, &w, ActionApply, map[string]any{"change": "resumed", "budget": w.Spec.Budget})
	})
	return w, err
}

// Delete removes a sweep and its study; its runs and jobs stay. Needs sweep.delete.
// Error: fault.Conflict while it goes on.
func (s *Service) Delete(ctx context.Context, p project.Name, name string) error {
	return s.cfg.DB.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
		w, err := s.find(ctx, tx, p, name)
		if err != nil {
			return err
		}
		if err := s.allow(ctx, ActionDelete, w); err != nil {
			return err
		}
		if w.State == Running {
			return fault.New(fault.Conflict, "sweep %s is still active", name).WithHint("falaj sweep stop %s", name)
		}
		return s.delete(ctx, tx, w)
	})
}

func (s *Service) delete(ctx context.Context, tx *store.Tx, w Sweep) error {
	if err := s.cfg.Store.DeleteSweep(ctx, tx, w); err != nil {
		return err
	}
	if err := s.cfg.Studies.Store.DeleteStudy(ctx, tx, w.Project, w.Study); err != nil && !fault.Is(err, fault.NotFound) {
		return err
	}
	return audit.Append(ctx, tx, audit.Entry{Project: string(w.Project), Action: string(ActionDelete), Object: "sweep " + w.Name})
}

func (s *Service) change(ctx context.Context, p project.Name, name string, do func(ctx context.Context, tx *store.Tx, w Sweep) error) error {
	return s.cfg.DB.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
		w, err := s.find(ctx, tx, p, name)
		if err != nil {
			return err
		}
		if err := s.allow(ctx, ActionApply, w); err != nil {
			return err
		}
		if w.State == Client {
			return fault.New(fault.Conflict, "%s is a study of an Optuna client, not a sweep", name).WithHint("Stop or continue it with that client.")
		}
		return do(ctx, tx, w)
	})
}

// One gives a sweep and how far it is. Needs sweep.read.
func (s *Service) One(ctx context.Context, p project.Name, name string) (out Summary, err error) {
	var open []Task
	out.Sweep, err = s.see(ctx, p, name, func(ctx context.Context, tx *store.Tx, w Sweep) error {
		n, err := s.cfg.Studies.Store.Counts(ctx, tx, p, w.Study)
		if err != nil {
			return err
		}
		out.Counts, out.Best = map[trial.State]int{}, nil
		for state, n := range n {
			if state == tuning.Waiting {
				out.Counts[Waiting] = n
			} else {
				out.Counts[states[state]] = n
			}
		}
		if out.Counts[trial.Failed] > 0 {
			trials, err := s.cfg.Studies.Store.Trials(ctx, tx, p, w.Study, 0, nil, failuresRead)
			if err != nil {
				return err
			}
			shown, err := s.shown(ctx, tx, w, trials)
			if err != nil {
				return err
			}
			out.Failures = failuresOf(shown, failuresShown)
		}
		if out.Counts[trial.Running] > 0 {
			if open, err = s.cfg.Store.Tasks(ctx, tx, p, w.Study, true); err != nil {
				return err
			}
		}
		out.Best, err = s.best(ctx, tx, w)
		return err
	})
	if err != nil {
		return out, err
	}
	for _, t := range open[:min(len(open), maxAsked)] {
		if s.queued(ctx, p, t.Job) && out.Counts[trial.Running] > 0 {
			out.Counts[trial.Running]--
			out.Counts[Queued]++
		}
	}
	if out.Counts[trial.Running] == 0 {
		delete(out.Counts, trial.Running)
	}
	return out, nil
}

// What a summary reads of trials, at most: to say why some failed, and which jobs wait.
const (
	failuresRead  = 100
	failuresShown = 3
	maxAsked      = 200
)

// queued reports whether the job of a trial waits. Who may see the trial may know.
func (s *Service) queued(ctx context.Context, p project.Name, job training.JobID) bool {
	if job == "" {
		return false
	}
	j, err := s.cfg.Jobs.One(identity.With(ctx, identity.Loop("sweeps")), p, job)
	return err == nil && j.State == training.Queued
}

// List gives a page of sweeps in the order in which they were made, after one, with the number
// of their trials; next is 0 at the end. Needs sweep.read; those that the caller may not see
// are left out.
func (s *Service) List(ctx context.Context, p project.Name, after tuning.StudyID, limit int) (found []ListedSweep, next tuning.StudyID, err error) {
	if err := s.allow(ctx, ActionRead, Sweep{Project: p}); err != nil {
		return nil, 0, err
	}
	if limit <= 0 || limit > 1000 {
		limit = 100
	}
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		studies, err := s.cfg.Studies.Store.Studies(ctx, tx, p, after, limit+1)
		if err != nil {
			return err
		}
		if len(studies) > limit {
			studies = studies[:limit]
			next = studies[limit-1].ID
		}
		for _, study := range studies {
			w, err := s.ofStudy(ctx, tx, study)
			if err != nil {
				return err
			}
			n, err := s.cfg.Studies.Store.TrialCount(ctx, tx, p, study.ID)
			if err != nil {
				return err
			}
			found = append(found, ListedSweep{w, n})
		}
		return nil
	})
	return slices.DeleteFunc(found, func(l ListedSweep) bool { return !s.sees(ctx, l.Sweep) }), next, err
}

// sees reports whether the caller may see a sweep.
func (s *Service) sees(ctx context.Context, w Sweep) bool { return s.allow(ctx, ActionRead, w) == nil }

// ofStudy is the sweep of a study, or the study as one.
func (s *Service) ofStudy(ctx context.Context, tx *store.Tx, study tuning.Study) (Sweep, error) {
	w, err := s.sweep(ctx, tx, study.Project, study.Name)
	if fault.Is(err, fault.NotFound) {
		return foreign(study, nil), nil
	}
	return w, err
}

// SearchFields are what a search finds a sweep by, besides its name and owner.
func (w Sweep) SearchFields() []store.Field {
	var out []store.Field
	for _, p := range w.Spec.Parameters {
		out = append(out, store.Field{Name: "column", Value: p.Name})
	}
	return append(out, store.FieldsOf("from", append(slices.Sorted(maps.Values(w.Spec.Job.Data)), w.Spec.WarmStart...)...)...)
}

// Find reads those sweeps and studies that the caller may see, by number after one, of which may
// says that they may be what is looked for: limit of them at most. Needs sweep.read.
func (s *Service) Find(ctx context.Context, p project.Name, after string, limit int, may func(store.Line) (bool, error)) (found store.Found[Sweep], err error) {
	if err := s.allow(ctx, ActionRead, Sweep{Project: p}); err != nil {
		return found, err
	}
	found, err = store.Find(ctx, s.cfg.DB, store.Lookup[Sweep]{
		Lines: func(ctx context.Context, tx *store.Tx, after string, limit int) ([]store.Line, error) {
			number, err := studyNumber(after)
			if err != nil {
				return nil, err
			}
			return s.cfg.Store.Lines(ctx, tx, p, number, limit)
		},
		Read: func(ctx context.Context, tx *store.Tx, numbers []string) ([]Sweep, error) {
			return store.Each(numbers, func(number string) (Sweep, error) {
				n, err := studyNumber(number)
				if err != nil {
					return Sweep{}, err
				}
				study, err := s.cfg.Studies.Store.Study(ctx, tx, p, n)
				if err != nil {
					return Sweep{}, err
				}
				return s.ofStudy(ctx, tx, study)
			})
		},
		Key: func(w Sweep) string { return strconv.FormatInt(int64(w.Study), 10) },
	}, after, limit, may)
	found.Objects = slices.DeleteFunc(found.Objects, func(w Sweep) bool { return !s.sees(ctx, w) })
	return found, err
}

// studyNumber reads the number of a study; empty is 0.
func studyNumber(text string) (tuning.StudyID, error) {
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fault.New(fault.Invalid, "invalid page token")
	}
	return tuning.StudyID(n), nil
}

// find is a sweep by its name, or a study by its name or number.
func (s *Service) find(ctx context.Context, tx *store.Tx, p project.Name, name string) (Sweep, error) {
	w, err := s.sweep(ctx, tx, p, name)
	if !fault.Is(err, fault.NotFound) {
		return w, err
	}
	study, missing := s.cfg.Studies.Store.StudyNamed(ctx, tx, p, name)
	if number, malformed := strconv.ParseInt(name, 10, 64); malformed == nil && fault.Is(missing, fault.NotFound) {
		study, missing = s.cfg.Studies.Store.Study(ctx, tx, p, tuning.StudyID(number))
	}
	switch {
	case fault.Is(missing, fault.NotFound):
		return w, err
	case missing != nil:
		return w, missing
	case study.Name != name: // by number, and perhaps a sweep
		if w, err = s.sweep(ctx, tx, p, study.Name); !fault.Is(err, fault.NotFound) {
			return w, err
		}
	}
	return foreign(study, nil), nil
}

// Trials gives the trials of a sweep from a number on, with reports also what they logged.
// Needs sweep.read.
func (s *Service) Trials(ctx context.Context, p project.Name, name string, from, limit int, reports bool) (found []Shown, next int, err error) {
	if limit <= 0 || limit > 1000 {
		limit = 100
	}
	from = max(from, 0)
	_, err = s.see(ctx, p, name, func(ctx context.Context, tx *store.Tx, w Sweep) error {
		found, next = nil, 0
		first, err := s.cfg.Studies.Store.TrialNumbered(ctx, tx, p, w.Study, int64(from))
		if fault.Is(err, fault.NotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		trials, err := s.cfg.Studies.Store.Trials(ctx, tx, p, w.Study, first-1, nil, limit+1)
		if err != nil {
			return err
		}
		if len(trials) > limit {
			trials, next = trials[:limit], from+limit
		}
		found, err = s.shown(ctx, tx, w, trials)
		return err
	})
	asked := 0
	for i := range found {
		if !reports {
			found[i].Reports = nil
		}
		if found[i].State == trial.Running && asked < maxAsked {
			if asked++; s.queued(ctx, p, training.JobID(found[i].Job)) {
				found[i].State = Queued
			}
		}
	}
	return found, next, err
}

// see reads of a sweep for whom may see it.
func (s *Service) see(ctx context.Context, p project.Name, name string, read func(ctx context.Context, tx *store.Tx, w Sweep) error) (w Sweep, err error) {
	if err := s.allow(ctx, ActionRead, Sweep{Project: p, Name: name}); err != nil {
		return w, err
	}
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		if w, err = s.find(ctx, tx, p, name); err != nil {
			return err
		}
		if err := s.allow(ctx, ActionRead, w); err != nil {
			return err
		}
		if w.State == Client {
			study, err := s.cfg.Studies.Store.Study(ctx, tx, p, w.Study)
			if err != nil {
				return err
			}
			parameters, err := s.cfg.Studies.Store.Distributions(ctx, tx, p, w.Study)
			if err != nil {
				return err
			}
			w = foreign(study, parameters)
		}
		return read(ctx, tx, w)
	})
	if err != nil {
		return w, err
	}
	if s.cfg.Journal != nil && w.Classification.Journalled() {
		err = s.cfg.Journal.Record(ctx, audit.Entry{Project: string(p), Action: string(ActionRead), Object: "sweep " + w.Name})
	}
	return w, err
}

// shown are trials, in their order, as people see them.
func (s *Service) shown(ctx context.Context, tx *store.Tx, w Sweep, trials []tuning.Trial) (shown []Shown, err error) {
	if len(trials) == 0 {
		return nil, nil
	}
	tasks, err := s.cfg.Store.TasksOf(ctx, tx, w.Project, w.Study, int(trials[0].Number), int(trials[len(trials)-1].Number))
	if err != nil {
		return nil, err
	}
	of := make(map[int]Task, len(tasks))
	for _, t := range tasks {
		of[t.Number] = t
	}
	l := through(w)
	for _, t := range trials {
		shown = append(shown, l.show(t, of[int(t.Number)]))
	}
	return shown, nil
}

// best are the best trials, without what they logged on the way.
func (s *Service) best(ctx context.Context, tx *store.Tx, w Sweep) (best []Shown, err error) {
	constraints, err := s.cfg.Studies.Store.Constrained(ctx, tx, w.Project, w.Study)
	if err != nil {
		return nil, err
	}
	var complete []trial.Trial
	ids := map[int]tuning.TrialID{}
	for after := tuning.TrialID(0); ; {
		some, err := s.cfg.Studies.Store.Heads(ctx, tx, w.Project, w.Study, tuning.Complete, after, page)
		if err != nil {
			return nil, err
		}
		for _, t := range some {
			after = t.ID
			ids[int(t.Number)] = t.ID
			complete = append(complete, trial.Trial{Number: int(t.Number), State: trial.Complete, Values: t.Values, Infeasible: !constraints[t.ID].Feasible()})
		}
		if len(some) < page {
			break
		}
	}
	var found []tuning.TrialID
	for _, n := range foremost(trial.Front(complete, w.Spec.Problem().Directions), len(w.Spec.Objectives)) {
		found = append(found, ids[n])
	}
	for part := range slices.Chunk(found, page) {
		trials, err := s.cfg.Studies.Store.Trials(ctx, tx, w.Project, w.Study, math.MaxInt64, part, page)
		if err != nil {
			return nil, err
		}
		some, err := s.shown(ctx, tx, w, trials)
		if err != nil {
			return nil, err
		}
		best = append(best, some...)
	}
	for i := range best {
		best[i].Reports = nil
	}
	return best, nil
}

// all reads the trials of a study by number.
func (s *Service) all(ctx context.Context, tx *store.Tx, p project.Name, study tuning.StudyID) (all []tuning.Trial, err error) {
	for after := tuning.TrialID(0); ; after = all[len(all)-1].ID {
		some, err := s.cfg.Studies.Store.Trials(ctx, tx, p, study, after, nil, page)
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
		if len(some) < page {
			break
		}
	}
	slices.SortFunc(all, func(a, b tuning.Trial) int { return int(a.Number - b.Number) })
	return all, nil
}

// sources are the sweeps that one learns from, with their labels. Those that are gone, or
// that whoever applied it may no longer read, teach nothing; only what is new beside an
// earlier specification has to be there. Errors: fault.NotFound; fault.PermissionDenied;
// fault.Invalid where the objectives are others.
func (s *Service) sources(ctx context.Context, tx *store.Tx, w Sweep, strict []string) (of []Sweep, err error) {
	for _, name := range w.Spec.WarmStart {
		from, err := s.sweep(ctx, tx, w.Project, name)
		if err == nil { // what is suggested tells of what it was learnt from
			err = s.allow(ctx, ActionRead, from)
		}
		directions := func(s Sweep) []trial.Direction { return s.Spec.Problem().Directions }
		if err == nil && !slices.Equal(directions(from), directions(w)) {
			err = fault.New(fault.Invalid, "the objectives of sweep %s have different directions", name)
		}
		gone := fault.Is(err, fault.NotFound) || fault.Is(err, fault.PermissionDenied) || fault.Is(err, fault.Invalid)
		if gone && !slices.Contains(strict, name) {
			continue
		}
		if err != nil {
			return nil, fault.Wrap(err, "warm_start")
		}
		of = append(of, from)
	}
	return of, nil
}

var states = map[tuning.State]trial.State{
	tuning.Waiting: trial.Running, tuning.Running: trial.Running, tuning.Complete: trial.Complete, tuning.Pruned: trial.Stopped, tuning.Failed: trial.Failed,
}

// lens reads trials as a sweep's. It remembers distributions that it has read.
type lens struct {
	Sweep
	known map[tuning.Distribution]*space.Parameter // nil cannot be read
}

func through(w Sweep) lens { return lens{w, map[tuning.Distribution]*space.Parameter{}} }

// value is what a trial has of a parameter. A client's trial may have got it of another
// range or other choices, when it was added as a whole: what the sweep's parameter cannot
// have is left out, as it would be taken for something else.
func (l lens) value(p space.Parameter, of tuning.Param) (any, bool) {
	if l.State == Client { // each range was that of then
		return p.Decode(of.Value), true
	}
	q, read := l.known[of.Distribution]
	if !read {
		if one, err := space.FromOptuna(p.Name, []byte(of.Distribution)); err == nil {
			q = &one
		}
		l.known[of.Distribution] = q
	}
	if q == nil {
		return nil, false
	}
	x, err := p.Encode(q.Decode(of.Value))
	if err != nil {
		return nil, false
	}
	return p.Decode(x), true
}

// seen is a trial as samplers and rules see it. Parameters that the sweep does not have,
// of trials that a client of Optuna's added, are left out.
func (l lens) seen(t tuning.Trial) trial.Trial {
	out := trial.Trial{Number: int(t.Number), State: states[t.State], Params: space.Params{}, Values: t.Values, Started: t.Started, Infeasible: !t.System.Feasible()}
	for _, p := range l.Spec.Parameters {
		if of, ok := t.Params[p.Name]; ok {
			if v, ok := l.value(p, of); ok {
				out.Params[p.Name] = v
			}
		}
	}
	for step, v := range t.Intermediate {
		out.Reports = append(out.Reports, trial.Report{Step: step, Value: v})
	}
	slices.SortFunc(out.Reports, func(a, b trial.Report) int { return int(min(max(a.Step-b.Step, -1), 1)) })
	return out
}

func (l lens) show(t tuning.Trial, task Task) Shown {
	as := l.seen(t)
	out := Shown{
		Number: as.Number, State: as.State, Params: as.Params, Job: string(task.Job), Reason: task.Reason,
		Started: t.Started, Ended: t.Completed, Attributes: said(t.User), Infeasible: as.Infeasible,
	}
	if t.State == tuning.Waiting {
		out.State = Waiting
	}
	for _, v := range t.Values {
		out.Values = append(out.Values, Number(v))
	}
	for _, r := range as.Reports {
		out.Reports = append(out.Reports, Report{r.Step, Number(r.Value)})
	}
	return out
}

// said is what attributes say; what is Python's JSON only, such as NaN, is text.
func said(attributes tuning.Attributes) map[string]any {
	out := make(map[string]any, len(attributes))
	for key, value := range attributes {
		if json.Valid([]byte(value)) {
			out[key] = json.RawMessage(value)
		} else {
			out[key] = value
		}
	}
	return out
}

// foremost are the numbers of a front with several objectives, of one the first.
func foremost(front []trial.Trial, objectives int) (numbers []int) {
	for _, t := range front {
		numbers = append(numbers, t.Number)
	}
	if objectives == 1 && len(numbers) > 1 {
		numbers = numbers[:1]
	}
	return numbers
}

// plain are trials as rules see them.
func plain(trials []Shown) []trial.Trial {
	out := make([]trial.Trial, len(trials))
	for i, t := range trials {
		out[i] = trial.Trial{Number: t.Number, State: t.State, Params: t.Params, Started: t.Started, Infeasible: t.Infeasible}
		for _, v := range t.Values {
			out[i].Values = append(out[i].Values, float64(v))
		}
		for _, r := range t.Reports {
			out[i].Reports = append(out[i].Reports, trial.Report{Step: r.Step, Value: float64(r.Value)})
		}
	}
	return out
}

func publish(ctx context.Context, tx *store.Tx, w Sweep, best []int) error {
	return event.Publish(ctx, tx, string(w.Project), EventFinished, Finished{Sweep: w.Name, State: w.State, Reason: w.Reason, Best: best})
}

// Report draws a sweep as a page of HTML. Needs sweep.read.
func (s *Service) Report(ctx context.Context, p project.Name, name string) ([]byte, error) {
	drawn, err := s.drawn(ctx, p, name)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = picture.Page(&b, drawn)
	return b.Bytes(), err
}

// Figures draws a sweep as pictures by themselves. Needs sweep.read.
func (s *Service) Figures(ctx context.Context, p project.Name, name string) ([]picture.Figure, error) {
	drawn, err := s.drawn(ctx, p, name)
	if err != nil {
		return nil, err
	}
	return picture.Figures(drawn)
}

func (s *Service) drawn(ctx context.Context, p project.Name, name string) (picture.Sweep, error) {
	var trials []Shown
	w, err := s.see(ctx, p, name, func(ctx context.Context, tx *store.Tx, w Sweep) error {
		all, err := s.all(ctx, tx, p, w.Study)
		if err != nil {
			return err
		}
		trials, err = s.shown(ctx, tx, w, all)
		return err
	})
	if err != nil {
		return picture.Sweep{}, err
	}
	drawn := picture.Sweep{
		Name: w.Name, State: string(w.State), Reason: w.Reason, Space: w.Spec.Problem().Space, Watched: w.Spec.Watch, Trials: plain(trials),
	}
	for _, o := range w.Spec.Objectives {
		drawn.Objectives = append(drawn.Objectives, picture.Objective{Metric: o.Metric, Direction: o.Direction})
	}
	return drawn, nil
}
