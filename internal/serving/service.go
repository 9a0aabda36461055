package serving

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
	"github.com/falaj-ml/falaj/internal/store"
)

// Config is what a Service is made of.
type Config struct {
	DB      *store.DB
	Store   Store
	Authz   Authorizer
	Models  Models
	Journal Journal
	Guard   residency.Guard
	Runtime runtime.Runtime
	Zone    residency.Zone // where this process answers; empty is home
	Timeout time.Duration  // of one inference; 0 is 30 s
	Log     *slog.Logger
}

// Service is the only way into serving. Safe for concurrent use.
type Service struct {
	Config

	// settling lets one settle after the other, each seeing the newest row; it is
	// locked before mu and held while the row is read.
	settling sync.Mutex

	mu     sync.RWMutex
	loaded map[key]*loaded
	read   bool // the deployments were read from the database once
	looked bool // every deployment of that time was loaded, or is known not to load
}

type key struct{ project, name string }

// loaded is what this process holds of a deployment. session is nil unless
// ready; tries is 0 before the first.
type loaded struct {
	deployment Deployment
	session    runtime.Session
	reason     string
	tries      int
	retry      time.Time
	calls      sync.WaitGroup // running Infer calls; Close waits for them
}

// New makes a service; Start its loader with RunOnce.
func New(c Config) *Service {
	if c.Zone == "" {
		c.Zone = residency.Home
	}
	if c.Timeout == 0 {
		c.Timeout = 30 * time.Second
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return &Service{Config: c, loaded: map[key]*loaded{}}
}

func object(project, name string) policy.Object {
	return policy.Object{Project: project, Kind: "deployment", Name: name}
}

// Apply deploys a model version under a name, or changes what the name answers
// with. The bool says whether anything changed. Errors: fault.Invalid,
// fault.NotFound (no such model), fault.Conflict (the files do not match the
// signature), fault.PermissionDenied (also by residency).
func (s *Service) Apply(ctx context.Context, project, name string, spec Spec, dryRun bool) (Deployment, bool, error) {
	if err := s.Authz.Allow(ctx, "deployment.apply", object(project, name)); err != nil {
		return Deployment{}, false, err
	}
	if err := errors.Join(validName(name), spec.Validate()); err != nil {
		return Deployment{}, false, err
	}
	session, d, err := s.open(ctx, project, name, spec)
	if err != nil {
		return Deployment{}, false, fault.Wrap(err, "deploy %s", name)
	}
	var old Deployment
	changed := true
	record := func(ctx context.Context, tx *store.Tx) error {
		var err error
		old, err = s.Store.One(ctx, tx, project, name)
		now := time.Now().UTC()
		switch {
		case fault.Is(err, fault.NotFound):
			d.ID, d.CreatedAt = ID(id.New("dep")), now
		case err != nil:
			return err
		default:
			d.ID, d.CreatedAt = old.ID, old.CreatedAt
		}
		d.UpdatedAt, d.Revision = now, old.Revision+1
		if changed = old.Spec != spec || old.Version != d.Version || old.Digest != d.Digest; !changed || dryRun {
			return nil
		}
		if err := s.Models.Still(ctx, tx, project, d.Model, d.Version); err != nil {
			return err
		}
		if err := s.Store.Put(ctx, tx, d); err != nil {
			return err
		}
		if err := audit.Append(ctx, tx, audit.Entry{
			Project: project, Action: "deployment.apply", Object: "deployment " + name,
			Detail: map[string]any{"model": d.Model, "version": d.Version, "digest": d.Digest},
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
	if err != nil || dryRun || !changed {
		_ = session.Close()
		if err == nil && !changed {
			d = s.withState(old)
		}
		return d, changed, fault.Wrap(err, "deploy %s", name)
	}
	s.settleNow(ctx, key{project, name}, &loaded{deployment: d, session: session})
	return s.withState(d), true, nil
}

// open verifies, checks residency and loads; the session is not yet used.
func (s *Service) open(ctx context.Context, project, name string, spec Spec) (runtime.Session, Deployment, error) {
	version := spec.Version
	if version == "" {
		version = "champion"
	}
	m, err := s.Models.OpenVerified(ctx, project, spec.Model, version)
	if err != nil {
		return nil, Deployment{}, err
	}
	if err := s.Guard.Pass(ctx, residency.Passage{
		Project: project, What: "model " + spec.Model, Label: m.Residency, Where: "this server", Zone: s.Zone, Action: "deployment.apply",
	}); err != nil {
		return nil, Deployment{}, err
	}
	session, err := s.Runtime.Load(ctx, m.File, runtime.Options{Threads: spec.Threads})
	if err != nil {
		return nil, Deployment{}, err
	}
	return session, Deployment{
		Project: project, Name: name, Spec: spec, Model: m.Name, Version: m.Version, Digest: m.Digest,
		Residency: m.Residency, Classification: m.Classification,
	}, nil
}

// settle makes what this process holds under a name what the database says now:
// nothing when the deployment is gone, else l if that is the deployment as it
// is. An l of another revision, loaded while somebody changed the deployment, is
// closed; who changed it settles, too, or the loader does. Whatever committed
// before a settle began is seen by it, so the last one leaves what is true. Calls
// that run on the old session finish before it is closed. l may be nil.
func (s *Service) settle(ctx context.Context, k key, l *loaded) error {
	s.settling.Lock()
	defer s.settling.Unlock()
	var row Deployment
	err := s.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		row, err = s.Store.One(ctx, tx, k.project, k.name)
		return err
	})
	gone := fault.Is(err, fault.NotFound)
	if err != nil && !gone {
		l.close()
		return fault.Wrap(err, "look at deployment %s again", k.name)
	}
	s.mu.Lock()
	old := s.loaded[k]
	switch {
	case gone:
		delete(s.loaded, k)
		l.close()
	case !l.of(row), old.of(row) && old.session != nil:
		old = l
	default:
		s.loaded[k] = l
	}
	s.mu.Unlock()
	old.close()
	return nil
}

// settleNow settles what was committed, also for a caller who has gone away. When
// the database cannot be read, the loader settles later.
func (s *Service) settleNow(ctx context.Context, k key, l *loaded) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.Timeout)
	defer cancel()
	if err := s.settle(ctx, k, l); err != nil {
		s.Log.ErrorContext(ctx, "deployment not settled", slog.String("deployment", k.name), slog.String("error", err.Error()))
	}
}

// of reports whether l is the deployment as the row says it is; a name that was
// deployed anew has another ID.
func (l *loaded) of(row Deployment) bool {
	return l != nil && l.deployment.ID == row.ID && l.deployment.Revision == row.Revision
}

func (l *loaded) close() {
	if l == nil || l.session == nil {
		return
	}
	go func() {
		l.calls.Wait()
		_ = l.session.Close()
	}()
}

func (s *Service) withState(d Deployment) Deployment {
	s.mu.RLock()
	defer s.mu.RUnlock()
	l := s.loaded[key{d.Project, d.Name}]
	switch {
	case l == nil, l.session == nil && l.tries == 0:
		d.State = Loading
	case l.session != nil:
		d.State = Ready
	default:
		d.State, d.Reason = Failed, l.reason
	}
	return d
}

// One is a deployment with its state in this process.
func (s *Service) One(ctx context.Context, project, name string) (d Deployment, err error) {
	if err := s.Authz.Allow(ctx, "deployment.read", object(project, name)); err != nil {
		return d, err
	}
	err = s.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		d, err = s.Store.One(ctx, tx, project, name)
		return err
	})
	return s.withState(d), err
}

// List is a page of deployments by name, after a name.
func (s *Service) List(ctx context.Context, project, after string, limit int) (ds []Deployment, err error) {
	if err := s.Authz.Allow(ctx, "deployment.read", object(project, "")); err != nil {
		return nil, err
	}
	err = s.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		ds, err = s.Store.List(ctx, tx, project, after, limit)
		return err
	})
	for i := range ds {
		ds[i] = s.withState(ds[i])
	}
	return ds, err
}

// Delete ends a deployment; running requests finish.
func (s *Service) Delete(ctx context.Context, project, name string) error {
	if err := s.Authz.Allow(ctx, "deployment.apply", object(project, name)); err != nil {
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
	s.settleNow(ctx, key{project, name}, nil)
	return nil
}

// acquire finds what answers under a name and keeps it open until release.
func (s *Service) acquire(project, name, version string) (*loaded, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	l := s.loaded[key{project, name}]
	if (l == nil && !s.read) || (l != nil && l.session == nil && l.tries == 0) {
		return nil, fault.New(fault.Unavailable, "model %q is not ready: the server has started and is loading its models", name).WithHint("Try again in a moment.")
	}
	if l == nil || (version != "" && version != versionText(l.deployment.Version)) {
		what := name
		if version != "" {
			what += " version " + version
		}
		return nil, fault.New(fault.NotFound, "unknown model: %q is not deployed in this project", what).
			WithHint("`falaj get deployments` lists what is.")
	}
	if l.session == nil {
		return nil, fault.New(fault.Unavailable, "model %q is not ready: %s", name, l.reason)
	}
	l.calls.Add(1)
	return l, nil
}

// Metadata describes the model behind a deployment's name.
func (s *Service) Metadata(ctx context.Context, project, name, version string) (runtime.Metadata, Deployment, error) {
	if err := s.Authz.Allow(ctx, "deployment.read", object(project, name)); err != nil {
		return runtime.Metadata{}, Deployment{}, err
	}
	l, err := s.acquire(project, name, version)
	if err != nil {
		return runtime.Metadata{}, Deployment{}, err
	}
	defer l.calls.Done()
	return l.session.Metadata(), l.deployment, nil
}

// Infer answers with the deployment's model. outputs names those wanted, none
// means all. Errors: fault.Invalid (wrong shape, datatype, name), fault.NotFound,
// fault.Unavailable, fault.Timeout.
func (s *Service) Infer(ctx context.Context, project, name, version string, inputs []runtime.Tensor, outputs []string) ([]runtime.Tensor, Deployment, error) {
	l, missing := s.acquire(project, name, version)
	asked := object(project, name)
	if l != nil {
		defer l.calls.Done()
		asked.Classification, asked.Residency = l.deployment.Classification, l.deployment.Residency
	}
	if err := s.Authz.Allow(ctx, "deployment.infer", asked); err != nil {
		return nil, Deployment{}, err
	}
	if missing != nil {
		return nil, Deployment{}, missing
	}
	meta := l.session.Metadata()
	if err := meta.Check(inputs); err != nil {
		return nil, l.deployment, err
	}
	if len(outputs) == 0 {
		for _, o := range meta.Outputs {
			outputs = append(outputs, o.Name)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	answer, err := l.session.Infer(ctx, inputs, outputs)
	if err != nil {
		return nil, l.deployment, err
	}
	if c := l.deployment.Classification; c == "confidential" || c == "restricted" {
		if err := s.Journal.Record(ctx, audit.Entry{
			Project: project, Action: "deployment.infer", Object: "deployment " + name,
			Detail: map[string]any{"version": l.deployment.Version, "classification": c},
		}); err != nil {
			return nil, l.deployment, fault.Wrap(err, "the answer could not be journaled")
		}
	}
	return answer, l.deployment, nil
}
