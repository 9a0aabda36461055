package serving

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/serving/batching"
	"github.com/falaj-ml/falaj/internal/serving/chain"
	models "github.com/falaj-ml/falaj/internal/serving/runtime"
	"github.com/falaj-ml/falaj/internal/share"
	"github.com/falaj-ml/falaj/internal/store"
)

// The actions that serving asks for.
const (
	actionRead    policy.Action = "deployment.read"
	actionApply   policy.Action = "deployment.apply"
	actionInfer   policy.Action = "deployment.infer"
	actionRollout policy.Action = "deployment.rollout"
	actionHistory policy.Action = "feature.history"
	actionPromote policy.Action = "model.promote"
)

// Config is what a Service is made of.
type Config struct {
	DB           *store.DB
	Store        Store
	Authz        Authorizer
	Models       Models
	Journal      Journal
	Guard        residency.Guard
	Runtime      models.Runtime
	Remotes      map[string]Remote
	InProcess    InProcessPolicy // models that may run in this process; empty: none
	Follows      bool            // the deployments are another server's, and are not changed here
	Environments Environments    // nil: no Python models
	Features     Features        // nil: deployments have no features
	Predictions  Predictions     // nil: answers are not remembered
	Zone         residency.Zone  // where this process answers; empty is home
	Machine      string          // what records call the machine of this process
	Timeout      time.Duration   // of one inference; 0 is 30 s
	LoadTime     time.Duration   // that reading a version may take, and loading it; 0 is runtime.DefaultTime
	Loads        int             // that the loader does at once; 0 is 4
	Capacity     Capacity        // of replicas beyond the first; nil: there is always room
	Log          *slog.Logger
}

// Service is the only way into serving. Safe for concurrent use.
type Service struct {
	Config
	since time.Time // this process began to count

	// settling lets one settle after the other, each seeing the newest row; it is
	// locked before mu and held while the row is read. Who holds it may change
	// tables.
	settling sync.Mutex
	tables   atomic.Pointer[map[key]*table] // replaced as a whole
	read     atomic.Bool                    // the deployments were read from the database once
	looked   atomic.Bool                    // every deployment of that time was loaded, or is known not to load

	mu       sync.Mutex
	failures map[attempt]failure
	tallies  map[tallied]*tally
	closed   bool // nothing is opened any more

	loads    *share.Pool    // slots of the loader
	sessions sync.WaitGroup // those that are not closed; added to under mu while not closed

	joint   singleflight.Group // for Load, by deployment
	turns   sync.Map           // key → *sync.Mutex, see bring
	shadows shadows
	lost    lost
	limits  limits
	scaler  scaler

	supervisor supervisor

	recording sync.Mutex // usage, one after the other
	forgot    time.Time  // periods that have ended, last; under recording

	cores  *batching.Cores            // of all models that run here
	places map[string]*batching.Cores // of each remote
}

// tallied names what a tally counts: a version of a deployment.
type tallied struct {
	key
	version int64
}

// maxLoadsWaiting bounds the loads of one project that wait for a slot.
const maxLoadsWaiting = 1 << 14

// New makes a service; Start its loader with RunOnce.
func New(c Config) *Service {
	if c.Zone == "" {
		c.Zone = residency.Home
	}
	if c.Timeout == 0 {
		c.Timeout = 30 * time.Second
	}
	if c.LoadTime == 0 {
		c.LoadTime = models.DefaultTime
	}
	if c.Loads == 0 {
		c.Loads = 4
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	s := &Service{
		Config: c, since: time.Now().UTC(), failures: map[attempt]failure{}, tallies: map[tallied]*tally{},
		loads: share.New(share.Limits{Name: "model_loads", What: "models being loaded", Slots: c.Loads, Queue: maxLoadsWaiting}), shadows: newShadows(runtime.GOMAXPROCS(0)), cores: batching.NewCores(runtime.GOMAXPROCS(0)),
		places: map[string]*batching.Cores{},
	}
	s.scaler.begin()
	s.tables.Store(&map[key]*table{})
	s.limits.written = s.written
	for name, r := range c.Remotes {
		s.places[name] = batching.NewCores(cmp.Or(r.Runs, defaultRuns))
	}
	return s
}

func object(project, name string) policy.Object {
	return policy.Object{Project: project, Kind: "deployment", Name: name}
}

func (s *Service) tallyOf(k key, version int64) *tally {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tallies[tallied{k, version}]
	if t == nil {
		t = &tally{}
		s.tallies[tallied{k, version}] = t
	}
	return t
}

// Apply deploys a model version under a name, or changes what the name answers
// with. The bool says whether anything changed. Another stable version ends a
// rollout that runs. Errors: fault.Invalid, fault.NotFound (no such model or
// feature service), fault.Conflict (the files do not match the signature),
// fault.PermissionDenied (also by residency).
func (s *Service) Apply(ctx context.Context, project, name string, spec Spec, dryRun bool) (Deployment, bool, error) {
	if err := s.Authz.Allow(ctx, actionApply, object(project, name)); err != nil {
		return Deployment{}, false, err
	}
	if err := errors.Join(validName(name), spec.Validate()); err != nil {
		return Deployment{}, false, err
	}
	set, err := s.describe(ctx, project, spec)
	if err != nil {
		return Deployment{}, false, fault.Wrap(err, "deploy %s", name)
	}
	version := spec.Version
	if version == "" {
		version = "champion"
	}
	if err := s.featuresCross(ctx, project, spec, actionApply, set); err != nil {
		return Deployment{}, false, fault.Wrap(err, "deploy %s", name)
	}
	t, err := s.open(ctx, Deployment{Project: project, Name: name, Spec: spec}, version, &health{})
	later := errors.Is(err, ErrNotYet) && !spec.Chained() // what is not read cannot be pinned
	if later {
		t, err = s.absent(ctx, project, spec, version)
	}
	if err != nil {
		return Deployment{}, false, fault.Wrap(err, "deploy %s", name)
	}
	var d, old Deployment
	changed := true
	record := func(ctx context.Context, tx *store.Tx) error {
		var err error
		d = Deployment{
			Project: project, Name: name, Spec: spec, Model: t.model.Name, Version: t.model.Version, Digest: t.model.Digest,
			Residency: t.model.Residency, Classification: t.model.Classification, FeatureSet: set, Steps: t.steps,
		}
		old, err = s.Store.One(ctx, tx, project, name)
		now := time.Now().UTC()
		switch {
		case fault.Is(err, fault.NotFound):
			d.ID, d.CreatedAt = ID(id.New("dep")), now
		case err != nil:
			return err
		default:
			d.ID, d.CreatedAt, d.Trials, d.Before = old.ID, old.CreatedAt, old.Trials, old.Before
		}
		d.UpdatedAt, d.Revision = now, old.Revision+1
		// With other steps what is tried has another label, too: it is not tried any more.
		another := old.Model != d.Model || old.Version != d.Version || old.Digest != d.Digest || !sameSteps(old.Steps, d.Steps)
		if changed = another || !old.Spec.same(spec) || !old.FeatureSet.same(set); !changed {
			return nil
		}
		if err := s.Models.RequireVersion(ctx, tx, project, d.Model, d.Version); err != nil {
			return err
		}
		if old.Model != d.Model || old.Version != d.Version {
			if err := s.Models.Cleared(ctx, tx, project, d.Model, d.Version, ""); err != nil {
				return err
			}
		}
		for _, step := range d.Steps {
			if err := s.Models.RequireVersion(ctx, tx, project, step.Model, step.Version); err != nil {
				return fault.Wrap(err, "spec.%s", step.Step)
			}
			if slices.ContainsFunc(old.Steps, func(o StepModel) bool { return o.Model == step.Model && o.Version == step.Version }) {
				continue
			}
			if err := s.Models.Cleared(ctx, tx, project, step.Model, step.Version, ""); err != nil {
				return fault.Wrap(err, "spec.%s", step.Step)
			}
		}
		if dryRun {
			return nil
		}
		if another && old.ID != "" {
			if err := s.succeed(ctx, tx, old, &d); err != nil {
				return err
			}
		}
		if err := s.Store.Put(ctx, tx, d); err != nil {
			return err
		}
		if err := audit.Append(ctx, tx, audit.Entry{
			Project: project, Action: "deployment.apply", Object: "deployment " + name,
			Detail: t.where(t.with(map[string]any{"model": d.Model, "version": d.Version, "digest": d.Digest})),
		}); err != nil {
			return err
		}
		return event.Publish(ctx, tx, project, EventDeployed, Changed{Deployment: d.ID, Name: name, Model: d.Model, Version: d.Version})
	}
	if dryRun {
		err = s.DB.View(ctx, record)
	} else {
		err = s.DB.Update(ctx, project, record)
	}
	if err == nil && !changed && !dryRun && !later && s.failing(key{project, name}, old.wants()[0]) {
		s.settleNow(ctx, key{project, name}, t) // it answers again
		return s.withState(old), false, nil
	}
	if err != nil || dryRun || !changed {
		t.leave()
		if err == nil && !changed {
			d = s.withState(old)
		}
		return d, changed, fault.Wrap(err, "deploy %s", name)
	}
	if later {
		s.settleNow(ctx, key{project, name})
	} else {
		s.settleNow(ctx, key{project, name}, t)
	}
	if len(d.Trials) > 0 || later { // they are loaded as the manifest says now; what fails is in the state
		u := routine
		if later {
			u = demanded // also of one that is loaded when it is asked for: it is tried when its environment is there
		}
		_ = s.bring(context.WithoutCancel(ctx), key{project, name}, d, u)
	}
	return s.withState(d), true, nil
}

// succeed makes d the deployment after old, with another stable version: what
// was tried beside the old one ends.
func (s *Service) succeed(ctx context.Context, tx *store.Tx, old Deployment, d *Deployment) error {
	run, err := s.running(ctx, tx, d.Project, d.Name)
	if err != nil {
		return err
	}
	if run.ID != "" {
		reason := "version " + versionText(d.Version) + " of " + d.Model + " was deployed"
		if err := s.end(ctx, tx, run, Cancelled, RolloutEnd{Reason: reason}); err != nil {
			return err
		}
	}
	d.Trials = nil
	if shadow, ok := old.trialOf(Shadow); ok && old.Model == d.Model && shadow.Version != d.Version && sameSteps(old.Steps, d.Steps) {
		d.Trials = []Trial{shadow}
	}
	d.Before = nil
	if old.Model == d.Model {
		d.Before = pushed(old.Before, old.Version, d.Version)
	}
	return nil
}

// pushed remembers a version that was stable, but for the one that is now.
func pushed(before []int64, was, now int64) []int64 {
	out := make([]int64, 0, len(before)+1)
	for _, v := range append(slices.Clip(before), was) {
		if v != now && (len(out) == 0 || out[len(out)-1] != v) {
			out = append(out, v)
		}
	}
	if len(out) > maxBefore {
		out = out[len(out)-maxBefore:]
	}
	return out
}

// open verifies, checks residency and loads a version, with the deployment's steps;
// the caller has its use. Deaths of its processes are counted in h.
func (s *Service) open(ctx context.Context, d Deployment, version string, h *health) (*target, error) {
	project, name, spec := d.Project, d.Name, d.Spec
	m, err := s.verified(ctx, project, spec.Model, version)
	if err != nil {
		return nil, err
	}
	session, environment, err := s.session(ctx, project, name, spec, &m, s.supervise(h, ""))
	if err != nil {
		return nil, err
	}
	several, _ := session.(*replicas)
	var steps *chain.Session
	if spec.Chained() {
		if steps, m, d.Steps, err = s.chained(ctx, d, m, session, h); err != nil {
			return nil, err
		}
		session = steps
	}
	t, err := s.newTarget(ctx, project, m, d.how(), session, s.tallyOf(key{project, name}, m.Version))
	if err != nil {
		return nil, err
	}
	t.machine = s.Machine
	t.zone, t.steps, t.replicas, t.environment, t.health = s.place(spec), d.Steps, several, environment, h
	if steps != nil {
		err = t.dress(steps, spec.Prediction)
	} else {
		t.score, err = scoreOf(spec.Prediction, t.meta)
	}
	if err == nil {
		err = spec.Features.fits(t.meta)
	}
	if err != nil {
		t.leave()
		return nil, err
	}
	return t, nil
}

// session loads a verified version, if it may be here and, when the spec names a
// remote, there; environment is that of a Python model. It takes the files out of the
// model.
func (s *Service) session(ctx context.Context, project, name string, spec Spec, m *Model, died func(models.Death) bool) (session models.Session, environment string, err error) {
	if err := s.Guard.Pass(ctx, residency.Transfer{
		Project: project, What: "model " + m.Name, Label: m.Residency, Where: "this server", Zone: s.Zone, Machine: s.Machine, Action: string(actionApply),
	}); err != nil {
		return nil, "", err
	}
	if spec.remote().Name != "" {
		if err := s.crossed(ctx, project, spec, actionApply, "model "+m.Name, m.Residency); err != nil {
			return nil, "", err
		}
	}
	python, err := s.python(ctx, project, spec, *m)
	if err != nil {
		return nil, "", err
	}
	options, err := spec.options(project, *m, s.InProcess)
	if err != nil {
		return nil, "", err
	}
	options.Python = python
	options.Time, options.Again, options.Died = s.LoadTime, s.again(project, *m), died
	session, err = s.Runtime.Load(ctx, m.File, options)
	if err == nil {
		session = s.replicate(project, name, spec, *m, options, session)
	}
	large := len(m.File) > freed
	m.File, m.Files = nil, nil
	if large {
		debug.FreeOSMemory()
	}
	if options.Python != nil {
		environment = options.Python.Environment
	}
	return session, environment, err
}

// freed is the size of a model's file from which on its memory is given back at
// once, and not when the collector comes to it.
const freed = 8 << 20

// verified reads a verified version, within the time that it may take.
func (s *Service) verified(ctx context.Context, project, model, version string) (Model, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.LoadTime, models.Late(s.LoadTime))
	defer cancel()
	m, err := s.Models.OpenVerified(ctx, project, model, version)
	if err != nil && ctx.Err() != nil {
		return m, context.Cause(ctx)
	}
	return m, err
}

// again reads the file of a version that is loaded once more. It keeps nothing of it.
func (s *Service) again(project string, m Model) func(context.Context) ([]byte, error) {
	m.File, m.Files = nil, nil
	return func(ctx context.Context) ([]byte, error) {
		now, err := s.verified(identity.With(ctx, identity.Loop("model loader")), project, m.Name, versionText(m.Version))
		if err == nil && now.Digest != m.Digest {
			err = fault.New(fault.Conflict, "version %d's digest differs from the loaded one", m.Version)
		}
		return now.File, err
	}
}

// withState adds what this process holds.
func (s *Service) withState(d Deployment) Deployment {
	k := key{d.Project, d.Name}
	t := (*s.tables.Load())[k]
	if t != nil && t.deployment.ID != d.ID {
		t = nil
	}
	d.Targets = nil
	answers := 100
	for _, w := range d.wants() {
		x := Target{Role: w.role, Version: w.version, State: Loading}
		if f, ok := s.failure(k, w); ok {
			x.State, x.Reason = Failed, f.reason
			if f.waits {
				x.State = Loading
			}
		}
		health := s.supervisor.read(w.supervised(k))
		if x.Restarts = health.total; len(health.deaths) > 0 {
			x.LastDeath = &health.deaths[len(health.deaths)-1]
		}
		loaded := t.holding(w)
		if health.aside != "" {
			x.State, x.Reason = Failed, health.aside
		} else if loaded != nil {
			x.State, x.Reason = Ready, ""
			if err := loaded.unavailable(); err != nil {
				x.State, x.Reason = Failed, err.Error()
			}
		}
		if loaded != nil {
			x.Batching, x.Unbatched = loaded.batches()
			x.Environment, x.Remote, x.Zone = loaded.environment, loaded.how.runtime.Remote.Name, loaded.zone
		}
		if w.role == Canary && loaded != nil {
			x.Weight = int(t.share * 100 / buckets)
			answers -= x.Weight
		}
		if asleep := s.scaleState(k, t, w, loaded, &x); asleep && w.role == Canary {
			trial, _ := d.trialOf(Canary)
			x.Weight = trial.Weight
			answers -= x.Weight
		}
		d.Targets = append(d.Targets, x)
	}
	d.State, d.Reason, d.Replicas = d.Targets[0].State, d.Targets[0].Reason, d.Targets[0].Replicas
	if t.holding(d.wants()[0]) != nil || d.State == Ready {
		d.Targets[0].Weight = answers
	}
	return d
}

// One is a deployment with its state in this process.
func (s *Service) One(ctx context.Context, project, name string) (d Deployment, err error) {
	if err := s.Authz.Allow(ctx, actionRead, object(project, name)); err != nil {
		return d, err
	}
	if d, err = s.Record(ctx, project, name); err != nil {
		return d, err
	}
	return s.withState(d), nil
}

// UserOf names the deployment that runs a version of a model, tries it, would roll back to it
// or has it as a step, as "deployment NAME"; empty: none. Version 0 is any. It asks no
// permission.
func (s *Service) UserOf(ctx context.Context, tx *store.Tx, project, model string, version int64) (string, error) {
	all, err := s.Store.Of(ctx, tx, project, model)
	for _, d := range all {
		if d.Asks(model, version) {
			return "deployment " + d.Name, nil
		}
	}
	return "", err
}

// RecordIn is Record, in a transaction.
func (s *Service) RecordIn(ctx context.Context, tx *store.Tx, project, name string) (Deployment, error) {
	return s.Store.One(ctx, tx, project, name)
}

// Record is a deployment as it is stored, without its state in this process. It asks no
// permission.
func (s *Service) Record(ctx context.Context, project, name string) (d Deployment, err error) {
	err = s.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		d, err = s.Store.One(ctx, tx, project, name)
		return err
	})
	return d, err
}

// List is a page of the deployments that the caller may read, by name, after a name.
func (s *Service) List(ctx context.Context, project, after string, limit int) (ds []Deployment, err error) {
	if err := s.Authz.Allow(ctx, actionRead, object(project, "")); err != nil {
		return nil, err
	}
	for len(ds) < limit {
		var next []Deployment
		if err := s.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
			next, err = s.Store.List(ctx, tx, project, after, limit)
			return err
		}); err != nil {
			return nil, err
		}
		for _, d := range next {
			after = d.Name
			// Listed is what One would show.
			err := s.Authz.Allow(ctx, actionRead, object(project, d.Name))
			if err == nil && len(ds) < limit {
				ds = append(ds, s.withState(d))
			}
			if err != nil && !fault.Is(err, fault.PermissionDenied) && !fault.Is(err, fault.NotFound) {
				return nil, err
			}
		}
		if len(next) < limit {
			break
		}
	}
	return ds, nil
}

// SearchFields are what a search finds a deployment by, besides its name.
func (d Deployment) SearchFields() []store.Field {
	out := store.FieldsOf("from", d.Model)
	if d.FeatureSet != nil {
		out = append(out, store.FieldsOf("from", d.Spec.Features.Service)...)
	}
	return out
}

// Find reads those deployments that the caller may read, by name after a name, of which may says
// that they may be what is looked for: limit of them at most.
func (s *Service) Find(ctx context.Context, project, after string, limit int, may func(store.Line) (bool, error)) (found store.Found[Deployment], err error) {
	if err := s.Authz.Allow(ctx, actionRead, object(project, "")); err != nil {
		return found, err
	}
	found, err = store.Find(ctx, s.DB, store.Lookup[Deployment]{
		Lines: func(ctx context.Context, tx *store.Tx, after string, limit int) ([]store.Line, error) {
			return s.Store.Lines(ctx, tx, project, after, limit)
		},
		Read: func(ctx context.Context, tx *store.Tx, names []string) ([]Deployment, error) {
			return store.Each(names, func(name string) (Deployment, error) { return s.Store.One(ctx, tx, project, name) })
		},
		Key: func(d Deployment) string { return d.Name },
	}, after, limit, may)
	if err != nil {
		return found, err
	}
	kept := found.Objects[:0]
	for _, d := range found.Objects {
		err := s.Authz.Allow(ctx, actionRead, object(project, d.Name))
		switch {
		case err == nil:
			kept = append(kept, s.withState(d))
		case !fault.Is(err, fault.PermissionDenied) && !fault.Is(err, fault.NotFound):
			return found, err
		}
	}
	found.Objects = kept
	return found, nil
}

// Delete ends a deployment, with what is known of its rollouts and acts; running
// requests finish.
func (s *Service) Delete(ctx context.Context, project, name string) error {
	if err := s.Authz.Allow(ctx, actionApply, object(project, name)); err != nil {
		return err
	}
	err := s.DB.Update(ctx, project, func(ctx context.Context, tx *store.Tx) error {
		d, err := s.Store.One(ctx, tx, project, name)
		if err != nil {
			return err
		}
		if err := s.Store.Delete(ctx, tx, project, name); err != nil {
			return err
		}
		if err := audit.Append(ctx, tx, audit.Entry{Project: project, Action: "deployment.apply", Object: "deployment " + name, Detail: map[string]any{"deleted": true}}); err != nil {
			return err
		}
		return event.Publish(ctx, tx, project, EventDeleted, Changed{Deployment: d.ID, Name: name, Model: d.Model, Version: d.Version})
	})
	if err != nil {
		return err
	}
	s.settleNow(ctx, key{project, name})
	return nil
}

// Metadata describes the model behind a deployment's name, and which versions
// answer.
func (s *Service) Metadata(ctx context.Context, project, name, version string) (Description, error) {
	if err := s.Authz.Allow(ctx, actionRead, object(project, name)); err != nil {
		return Description{}, err
	}
	r := &Request{Project: project, Name: name, Version: version}
	t, x, _, err := s.pick(r)
	if errors.Is(err, errScaledToZero) {
		if d, ok := s.describeUnloaded(r); ok {
			return d, nil
		}
		t, x, _, err = s.pickLoaded(ctx, r, 1, 0)
	}
	if err != nil {
		return Description{}, err
	}
	defer x.leave()
	d := Description{Metadata: x.meta, Name: name, Away: x.unavailable(), Queue: x.queue.Options()}
	d.Batched, _ = x.batches()
	if version != "" {
		d.Versions = []int64{x.model.Version}
		return d, nil
	}
	for _, x := range t.targets() {
		if x != t.shadow {
			d.Versions = append(d.Versions, x.model.Version)
		}
	}
	return d, nil
}

// Takes is what requests of a deployment may bring.
type Takes struct {
	Inputs   []models.Spec // of the model
	Optional []models.Spec // those that have a default in the model
	// Columns may come in place of the model's input that features fill: their keys, and the
	// values of the request. nil of a deployment without features.
	Columns []string
}

// takes is what requests of a version may bring.
func (t *table) takes(x *target) Takes {
	out := Takes{Inputs: x.meta.Inputs, Optional: x.meta.Optional}
	if f := t.features; f != nil {
		out.Columns = slices.Concat(f.keys, f.values)
		for _, name := range f.requests {
			if !slices.Contains(out.Columns, name) {
				out.Columns = append(out.Columns, name)
			}
		}
	}
	return out
}

// Takes is what requests of a deployment may bring, for who may ask it.
func (s *Service) Takes(ctx context.Context, project, name, version string) (Takes, error) {
	r := &Request{Project: project, Name: name, Version: version}
	t, x, _, err := s.pick(r)
	if errors.Is(err, errScaledToZero) {
		return s.takesOfUnloaded(ctx, r)
	}
	asked := object(project, name)
	if x != nil {
		defer x.leave()
		asked.Classification, asked.Residency = x.model.Classification, x.model.Residency
	}
	if err := s.Authz.Allow(ctx, actionInfer, asked); err != nil {
		return Takes{}, err
	}
	if err != nil {
		return Takes{}, err
	}
	return t.takes(x), nil
}

// Description is what a deployment's model says about itself.
type Description struct {
	models.Metadata
	Name     string
	Versions []int64 // those that answer
	Batched  bool    // requests share runs
	Queue    batching.Options
	Away     error // why it does not at the moment; nil when it does
}
