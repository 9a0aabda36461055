package tracking

import (
	"context"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/tracking/search"
)

// tagRunName is where MLflow keeps a run's name beside the name itself.
const tagRunName = "mlflow.runName"

// runGrammar is what a search of runs may ask.
var runGrammar = func() search.Grammar {
	text := search.Column{Filter: true, Sort: true}
	named := func(c search.Column, name string) search.Column { c.Name = name; return c }
	number := search.Column{Numeric: true, Filter: true, Sort: true}
	g := search.Grammar{
		Attributes: map[string]search.Column{
			"run_id": {Name: "run_id", List: true, Filter: true, Sort: true},
		},
		Entities: []search.Entity{search.Metric, search.Param, search.Tag, search.Dataset},
		Nulls:    true,
	}
	for _, name := range []string{"run_name", "status", "user_id", "artifact_uri"} {
		g.Attributes[name] = named(text, name)
	}
	for _, name := range []string{"start_time", "end_time"} {
		g.Attributes[name] = named(number, name)
	}
	for _, alias := range []string{"created", "Created"} {
		g.Attributes[alias] = named(number, "start_time")
	}
	for _, alias := range []string{"run name", "Run name", "Run Name"} {
		g.Attributes[alias] = search.Column{Name: "run_name", Filter: true}
	}
	return g
}()

// RunSpec describes a run to create.
type RunSpec struct {
	Experiment ExperimentID
	Name       string // empty: the tag mlflow.runName, or one is made up
	User       string // as the client says; may be empty
	Start      Millis // 0 is now
	Tags       []Pair
}

// RunOptions are for callers inside Falaj; the zero value is what clients get.
type RunOptions struct {
	Origin        Origin
	AttemptNumber int       // of the attempt in Origin
	Status        RunStatus // empty is RUNNING
}

// Runs creates, changes, finds and reads runs. Its callers are MLflow's protocol, the HTTP API,
// jobs and the registry.
type Runs struct{ *core }

// CreateRun starts a run. A job attempt's run inherits the origin of the run
// that training made for the attempt; origins in opts are for training itself
// and refused from an attempt.
func (s *Runs) CreateRun(ctx context.Context, p project.Name, spec RunSpec, opts RunOptions) (Run, error) {
	if err := s.allow(ctx, ActionWrite, p, "run", ""); err != nil {
		return Run{}, err
	}
	name := spec.Name
	tags := latestPairs(spec.Tags)
	for _, t := range tags {
		if t.Key != tagRunName {
			continue
		}
		if name != "" && name != t.Value {
			return Run{}, fault.New(fault.Invalid, "Both 'run_name' argument and 'mlflow.runName' tag are specified, but with different values (run_name='%s', mlflow.runName='%s').", clip(name), clip(t.Value))
		}
		name = t.Value
	}
	if name == "" {
		name = madeUpName()
	}
	if err := checkText("run_name", name, MaxRunName); err != nil {
		return Run{}, err
	}
	tags, cut := cutPairs(latestPairs(append(tags, Pair{tagRunName, name})), MaxTagValue)
	if err := checkPairs("tags", tags, MaxTagValue); err != nil {
		return Run{}, err
	}
	if err := mayTag(ctx, tags); err != nil {
		return Run{}, err
	}
	if err := checkMillis("start_time", spec.Start); err != nil {
		return Run{}, err
	}
	if err := checkText("user_id", spec.User, MaxRunName); err != nil {
		return Run{}, err
	}
	origin, err := s.origin(ctx, p, opts.Origin)
	if err != nil {
		return Run{}, err
	}
	if spec.Experiment == 0 {
		if err := s.ensureDefault(ctx, p); err != nil {
			return Run{}, err
		}
	}
	r := Run{
		Project: p, ID: RunID(id.New("run")), Experiment: spec.Experiment, Name: name, User: spec.User,
		Owner: identity.From(ctx).Owner(), Status: opts.Status, Start: spec.Start, Stage: Active, Created: s.now(),
		Origin: origin, AttemptNumber: opts.AttemptNumber, Tags: tags,
	}
	if r.Status == "" {
		r.Status = Running
	}
	if r.Start == 0 {
		r.Start = Millis(r.Created.UnixMilli())
	}
	err = s.db.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
		e, err := s.store.Experiment(ctx, tx, p, spec.Experiment)
		if err != nil {
			return err
		}
		if err := e.mustBeActive(); err != nil {
			return err
		}
		if err := s.store.PutRun(ctx, tx, r); err != nil {
			return err
		}
		if err := s.store.PutTags(ctx, tx, r, tags); err != nil {
			return err
		}
		detail := map[string]any{"act": "create", "experiment": e.Name, "residency": r.Residency.String()}
		noteCut(detail, cut)
		if err := s.audit(ctx, tx, p, "run "+string(r.ID), detail); err != nil {
			return err
		}
		return publish(ctx, tx, p, EventRunCreated, r.event())
	})
	return r, err
}

// Run gives a run with its data.
func (s *Runs) Run(ctx context.Context, p project.Name, run RunID) (Run, error) {
	r, err := s.run(ctx, p, run, ActionRead)
	if err != nil {
		return Run{}, err
	}
	rows := []Run{r}
	err = s.db.View(ctx, func(ctx context.Context, tx *store.Tx) error { return s.store.FillRuns(ctx, tx, rows) })
	if err != nil {
		return Run{}, err
	}
	whole, err := s.shows(ctx, p, "run", string(run), r.Owner, r.Origin)
	if err != nil {
		return Run{}, err
	}
	if !whole {
		rows[0].withhold()
		return rows[0], nil
	}
	return rows[0], s.noteRead(ctx, p, "run "+string(run), r.Classification)
}

// AttemptRun gives the run that training made for an attempt, without its data.
// Unlike a search by tag, nobody who may log can make it give another one.
func (s *Runs) AttemptRun(ctx context.Context, p project.Name, attempt string) (Run, error) {
	if err := s.allow(ctx, ActionRead, p, "run", ""); err != nil {
		return Run{}, err
	}
	if attempt == "" {
		return Run{}, fault.New(fault.Invalid, "an attempt is required")
	}
	var r Run
	err := s.db.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		var err error
		r, err = s.store.RunOfAttempt(ctx, tx, p, attempt)
		return err
	})
	if err != nil {
		return Run{}, err
	}
	return r, s.allowLabelled(ctx, ActionRead, p, "run", string(r.ID), r.Owner, r.Origin)
}

// Tags of a job's run, which Falaj sets. They are for people and searches: nothing is decided
// by them.
const (
	AttemptTag  = "falaj.attempt"  // the attempt that logs into it
	AttemptsTag = "falaj.attempts" // how many attempts the job has had; from the second on

	attemptTags = AttemptTag + "." // what earlier attempts logged
)

// mayTag refuses tags that an attempt would write and that Falaj sets.
func mayTag(ctx context.Context, tags []Pair) error {
	who := identity.From(ctx)
	if who.Kind != identity.Attempt {
		return nil
	}
	for _, t := range tags {
		if t.Key == AttemptTag || t.Key == AttemptsTag || strings.HasPrefix(t.Key, attemptTags) {
			return fault.New(fault.PermissionDenied, "%s may not change the tag %s, which Falaj sets", who, clip(t.Key)).WithHint("Use another tag name.")
		}
	}
	return nil
}

// Continue gives a job's run to the job's next attempt: that attempt writes into it, and the
// one before it no longer does. Error: fault.NotFound for a run that was deleted.
func (s *Runs) Continue(ctx context.Context, p project.Name, run RunID, attempt string, number int) (Run, error) {
	if who := identity.From(ctx); who.Kind == identity.Attempt {
		return Run{}, fault.New(fault.PermissionDenied, "%s may not change the owner of a run", who)
	}
	return s.changeRun(ctx, p, run, "continue", func(ctx context.Context, tx *store.Tx, r *Run) error {
		if r.Stage == Deleted {
			return fault.New(fault.NotFound, "run %s is deleted", run)
		}
		r.Attempt, r.AttemptNumber, r.Status, r.End = attempt, number, Running, 0
		return s.store.PutTags(ctx, tx, *r, []Pair{{AttemptTag, attempt}, {AttemptsTag, itoa(number)}})
	})
}

// SearchRuns gives a page of runs with their data, newest first unless ordered
// otherwise, and the token of the next page.
func (s *Runs) SearchRuns(ctx context.Context, p project.Name, in Search) ([]Run, string, error) {
	if err := s.allow(ctx, ActionRead, p, "run", ""); err != nil {
		return nil, "", err
	}
	q, err := in.query(runGrammar, MaxSearchResults)
	if err != nil {
		return nil, "", err
	}
	if len(in.Experiments) == 0 {
		return nil, "", nil
	}
	var found []Run
	next := ""
	err = s.db.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		found, err = s.store.SearchRuns(ctx, tx, p, q)
		if err != nil {
			return err
		}
		found, next = page(found, in, q)
		return s.store.FillRuns(ctx, tx, found)
	})
	if err != nil {
		return nil, "", err
	}
	origins, names := make([]Origin, len(found)), make([]string, len(found))
	for i, r := range found {
		origins[i], names[i] = r.Origin, string(r.ID)
	}
	kept, err := s.listed(ctx, ActionRead, p, "run", origins)
	if err != nil {
		return nil, "", err
	}
	whole, err := s.seen(ctx, p, "run", origins, names)
	if err != nil {
		return nil, "", err
	}
	out := found[:0]
	worst := ""
	for i, r := range found {
		if !kept[i] || !whole[i] && q.looksInto() {
			continue
		}
		if !whole[i] {
			r.withhold()
			out = append(out, r)
			continue
		}
		out = append(out, r)
		if classifications[r.Classification] > classifications[worst] {
			worst = r.Classification
		}
	}
	return out, next, s.noteRead(ctx, p, "runs in search results", worst)
}

// listed says which objects of a listing the principal may see. It asks once
// for each label among them.
func (s *core) listed(ctx context.Context, action policy.Action, p project.Name, kind string, origins []Origin) ([]bool, error) {
	kept := make([]bool, len(origins))
	asked := map[string]bool{}
	for i, o := range origins {
		label := o.Classification + "\x00" + o.Attempt + "\x00" + o.Residency.String()
		if identity.From(ctx).Kind != identity.Attempt {
			label = o.Classification + "\x00" + o.Residency.String()
		}
		allowed, ok := asked[label]
		if !ok {
			err := s.allowLabelled(ctx, action, p, kind, "", "", o)
			if err != nil && !fault.Is(err, fault.PermissionDenied) && !fault.Is(err, fault.NotFound) {
				return nil, err
			}
			allowed = err == nil
			asked[label] = allowed
		}
		kept[i] = allowed
	}
	return kept, nil
}

// RunUpdate changes a run; nil fields stay.
type RunUpdate struct {
	Status *RunStatus
	End    *Millis
	Name   *string
	// Deleted says that the run may be: for Falaj, which ends runs of jobs.
	Deleted bool
}

// UpdateRun changes an active run and gives it without its data.
func (s *Runs) UpdateRun(ctx context.Context, p project.Name, run RunID, u RunUpdate) (Run, error) {
	if u.Status != nil && !u.Status.Valid() {
		return Run{}, fault.New(fault.Invalid, "Invalid value %q for parameter 'status' supplied.", clip(string(*u.Status)))
	}
	if u.End != nil {
		if err := checkMillis("end_time", *u.End); err != nil {
			return Run{}, err
		}
	}
	if u.Name != nil {
		if err := checkText("run_name", *u.Name, MaxRunName); err != nil {
			return Run{}, err
		}
	}
	return s.changeRun(ctx, p, run, "update", func(ctx context.Context, tx *store.Tx, r *Run) error {
		if err := r.mustBeActive(); err != nil && !u.Deleted {
			return err
		}
		ended := false
		if u.Status != nil {
			ended = u.Status.Terminal() && !r.Status.Terminal()
			r.Status = *u.Status
		}
		if u.End != nil {
			r.End = *u.End
		}
		if u.Name != nil && *u.Name != "" {
			r.Name = *u.Name
			if err := s.store.PutTags(ctx, tx, *r, []Pair{{tagRunName, r.Name}}); err != nil {
				return err
			}
		}
		if ended {
			return publish(ctx, tx, p, EventRunFinished, r.event())
		}
		return nil
	})
}

// DeleteRun marks a run deleted; it can be restored.
func (s *Runs) DeleteRun(ctx context.Context, p project.Name, run RunID) error {
	_, err := s.changeRun(ctx, p, run, "delete", func(ctx context.Context, tx *store.Tx, r *Run) error {
		if r.Stage != Deleted {
			r.Stage, r.Deleted = Deleted, s.now()
		}
		return publish(ctx, tx, p, EventRunDeleted, r.event())
	})
	return err
}

// RestoreRun undoes DeleteRun.
func (s *Runs) RestoreRun(ctx context.Context, p project.Name, run RunID) error {
	_, err := s.changeRun(ctx, p, run, "restore", func(_ context.Context, _ *store.Tx, r *Run) error {
		r.Stage, r.Deleted = Active, time.Time{}
		return nil
	})
	return err
}

func (s *core) changeRun(ctx context.Context, p project.Name, run RunID, act string, change func(context.Context, *store.Tx, *Run) error) (Run, error) {
	if _, err := s.run(ctx, p, run, ActionWrite); err != nil {
		return Run{}, err
	}
	var r Run
	err := s.db.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
		var err error
		if r, err = s.store.Run(ctx, tx, p, run); err != nil {
			return err
		}
		if err := change(ctx, tx, &r); err != nil {
			return err
		}
		if err := s.store.PutRun(ctx, tx, r); err != nil {
			return err
		}
		return s.audit(ctx, tx, p, "run "+string(run), map[string]any{"act": act, "status": string(r.Status), "stage": string(r.Stage)})
	})
	return r, err
}

// run reads a run without its data after asking whether the principal may.
func (s *core) run(ctx context.Context, p project.Name, run RunID, action policy.Action) (Run, error) {
	if err := s.allow(ctx, action, p, "run", string(run)); err != nil {
		return Run{}, err
	}
	if CheckRunID(run) != nil {
		return Run{}, fault.New(fault.NotFound, "Run with id=%s not found", clip(string(run)))
	}
	var r Run
	err := s.db.Glance(ctx, func(ctx context.Context, tx *store.Tx) error {
		var err error
		r, err = s.store.Run(ctx, tx, p, run)
		return err
	})
	if err != nil {
		return Run{}, err
	}
	return r, s.allowLabelled(ctx, action, p, "run", string(run), r.Owner, r.Origin)
}

func (r *Run) mustBeActive() error {
	if r.Stage == Active {
		return nil
	}
	return fault.New(fault.Invalid, "The run %s must be in the 'active' state. Current state is %s.", r.ID, r.Stage)
}

func (r *Run) event() RunEvent {
	return RunEvent{Run: r.ID, Experiment: r.Experiment, Status: r.Status, Job: r.Job, Attempt: r.Attempt}
}

// latestPairs keeps the last value of each key, in the order of first mention.
func latestPairs(pairs []Pair) []Pair {
	at := map[string]int{}
	var out []Pair
	for _, p := range pairs {
		if i, ok := at[p.Key]; ok {
			out[i].Value = p.Value
			continue
		}
		at[p.Key] = len(out)
		out = append(out, p)
	}
	return out
}

var (
	adjectives = []string{"amber", "bold", "calm", "clear", "deep", "dry", "early", "fair", "fresh", "gentle", "high", "keen", "kind", "late", "light", "mild", "noble", "quiet", "rapid", "rare", "shady", "silver", "steady", "still", "swift", "tall", "vivid", "warm", "wide", "wise"}
	nouns      = []string{"acacia", "basin", "canal", "cistern", "date", "dune", "falcon", "falaj", "garden", "gazelle", "ghaf", "grove", "heron", "ibex", "lark", "oasis", "oryx", "palm", "pearl", "reed", "sidr", "spring", "stone", "terrace", "tunnel", "valley", "wadi", "weir", "well", "willow"}
)

// madeUpName is a name for a run that was given none: "swift-oryx-412".
func madeUpName() string {
	return adjectives[rand.IntN(len(adjectives))] + "-" + nouns[rand.IntN(len(nouns))] + "-" + itoa(100+rand.IntN(900)) //nolint:gosec // a label, not a secret
}
