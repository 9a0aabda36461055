package tracking

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// The actions that tracking asks for.
const (
	ActionRead  policy.Action = "run.read"
	ActionWrite policy.Action = "run.write"
	ActionLogs  policy.Action = "job.logs" // of a job's log among the files of its run
)

// Authorizer answers whether the context's principal may act.
type Authorizer interface {
	Allow(ctx context.Context, action policy.Action, object policy.Object) error
}

// Config is what the services need.
type Config struct {
	DB      *store.DB
	Store   Store
	Authz   Authorizer
	Journal audit.Journal // reads of classified runs
	Objects Objects

	// Cited reports whether something needs the record of a run, so that it is not
	// pruned; nil knows of nothing.
	Cited func(ctx context.Context, tx *store.Tx, p project.Name, run string) (bool, error)

	MaxFile  int64            // bytes of one artifact; 0 is 64 GiB
	MaxFiles int              // artifacts of one run or logged model; 0 is 20,000
	Now      func() time.Time // nil is time.Now
}

// Services are the ways to experiments, runs, logged models and artifacts, by what their callers
// do. Safe for concurrent use.
//
// Every method may fail with fault.PermissionDenied; those that name an object
// with fault.NotFound; those that take data with fault.Invalid.
type Services struct {
	Experiments  *Experiments
	Runs         *Runs
	Logging      *Logging
	LoggedModels *LoggedModels
	Artifacts    *Artifacts
	Uploads      *Uploads
	Imports      *Imports
	Origins      *Origins
	Maintenance  *Maintenance
	Retention    *Retention
	Erasure      *Erasure
}

// core is what all services share: configuration, permission checks, and how a run and a logged
// model are found and changed.
type core struct {
	db       *store.DB
	store    Store
	authz    Authorizer
	journal  audit.Journal
	objects  Objects
	maxFile  int64
	maxFiles int
	now      func() time.Time

	defaults sync.Map // project.Name whose default experiment is known to exist
}

// New makes the services.
func New(cfg Config) Services {
	s := &core{
		db: cfg.DB, store: cfg.Store, authz: cfg.Authz, journal: cfg.Journal, objects: cfg.Objects,
		maxFile: cfg.MaxFile, maxFiles: cfg.MaxFiles, now: cfg.Now,
	}
	if s.maxFile == 0 {
		s.maxFile = 64 << 30
	}
	if s.maxFiles == 0 {
		s.maxFiles = 20_000
	}
	if s.now == nil {
		s.now = time.Now
	}
	logging, models, artifacts := &Logging{core: s}, &LoggedModels{core: s}, &Artifacts{core: s}
	uploads := &Uploads{core: s, artifacts: artifacts}
	return Services{
		Experiments:  &Experiments{core: s},
		Runs:         &Runs{core: s},
		Logging:      logging,
		LoggedModels: models,
		Artifacts:    artifacts,
		Uploads:      uploads,
		Imports:      &Imports{core: s, logging: logging, models: models, artifacts: artifacts},
		Origins:      &Origins{core: s},
		Maintenance:  &Maintenance{core: s, uploads: uploads, cited: cfg.Cited},
		Retention:    &Retention{core: s},
		Erasure:      &Erasure{core: s},
	}
}

// ensureDefault makes experiment 0, which MLflow clients take for granted.
func (s *core) ensureDefault(ctx context.Context, p project.Name) error {
	if _, ok := s.defaults.Load(p); ok {
		return nil
	}
	exists := false
	err := s.db.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		_, err := s.store.Experiment(ctx, tx, p, 0)
		exists = err == nil
		if fault.Is(err, fault.NotFound) {
			return nil
		}
		return err
	})
	if err != nil {
		return err
	}
	if !exists {
		ctx := identity.With(ctx, identity.Loop("tracking"))
		err = s.db.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
			if _, err := s.store.Experiment(ctx, tx, p, 0); !fault.Is(err, fault.NotFound) {
				return err
			}
			e := Experiment{Project: p, Name: "Default", Stage: Active, Created: s.now()}
			e.Updated = e.Created
			if err := s.store.PutExperiment(ctx, tx, e); err != nil {
				return err
			}
			return s.audit(ctx, tx, p, "experiment Default", map[string]any{"act": "create"})
		})
		if err != nil {
			return fault.Wrap(err, "making the default experiment")
		}
	}
	s.defaults.Store(p, true)
	return nil
}

// allow asks for a collection or an object whose label is not known yet.
func (s *core) allow(ctx context.Context, action policy.Action, p project.Name, kind, name string) error {
	if p == "" {
		return fault.New(fault.PermissionDenied, "a project is required").
			WithHint("Use a token that is bound to one project.")
	}
	return s.authz.Allow(ctx, action, policy.Object{Project: string(p), Kind: kind, Name: clip(name)})
}

// allowLabelled asks for an object with a label, and holds a job attempt to
// what leaves its own label as it is.
func (s *core) allowLabelled(ctx context.Context, action policy.Action, p project.Name, kind, name, owner string, o Origin) error {
	if err := s.authz.Allow(ctx, action, o.object(p, kind, name, owner)); err != nil {
		return err
	}
	who := identity.From(ctx)
	if who.Kind != identity.Attempt || who.ID == o.Attempt {
		return nil
	}
	if action == ActionWrite {
		return fault.New(fault.PermissionDenied, "%s may not write %s %s, which another producer made", who, kind, name).
			WithHint("Log into the run of MLFLOW_RUN_ID, or into runs created by this attempt.")
	}
	return s.admit(ctx, p, kind+" "+name, o.Residency, o.Classification)
}

// noteRead puts a read of something classified into the journal before the
// answer leaves.
func (s *core) noteRead(ctx context.Context, p project.Name, object, classification string) error {
	if !classified(classification) || s.journal == nil {
		return nil
	}
	return s.journal.Record(ctx, audit.Entry{Project: string(p), Action: string(ActionRead), Object: object})
}

func (s *core) audit(ctx context.Context, tx *store.Tx, p project.Name, object string, detail map[string]any) error {
	return audit.Append(ctx, tx, audit.Entry{Project: string(p), Action: string(ActionWrite), Object: object, Detail: detail})
}

func publish(ctx context.Context, tx *store.Tx, p project.Name, name string, body any) error {
	return event.Publish(ctx, tx, string(p), name, body)
}

func itoa(n int) string { return strconv.Itoa(n) }
