package feature

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/offline"
	"github.com/falaj-ml/falaj/internal/feature/online"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/store"
)

// The actions that features ask for.
const (
	ActionRead        policy.Action = "feature.read"        // see definitions, runs, lineage
	ActionApply       policy.Action = "feature.apply"       // apply and promote definitions
	ActionMaterialise policy.Action = "feature.materialise" // fill and clear the online store
	ActionPush        policy.Action = "feature.push"        // write rows to the online store
	ActionOnline      policy.Action = "feature.online"      // read features as of now
	ActionHistory     policy.Action = "feature.history"     // read them as of a past time: training sets, as_of, verify
)

// Authorizer answers whether the context's principal may act.
type Authorizer interface {
	Allow(ctx context.Context, action policy.Action, object policy.Object) error
}

// Guard is the residency door.
type Guard interface {
	Pass(ctx context.Context, p residency.Transfer) error
}

// Config is what the services need.
type Config struct {
	DB         *store.DB
	Store      Store
	Data       Data
	Online     *online.Store
	Keys       online.Keys // of the logs of events
	Sources    Sources     // of messages; nil: there are none
	Authorizer Authorizer
	Permits    Permitter // who sees protected features in clear: nobody when nil
	Guard      Guard
	Journal    audit.Journal
	Zone       residency.Zone // where the online store is; home when empty
	Join       offline.Options
	// ChunkRows is how many rows a materialisation writes at a time: 5,000 when 0.
	ChunkRows int
	// StreamBytes is how many bytes of events a log may be ahead of the online store
	// and the dataset: 256 MiB when 0.
	StreamBytes int64
	// SnapshotInterval is how long events wait until they are in a version of their dataset,
	// unless somebody asks before: an hour when 0.
	SnapshotInterval time.Duration
	// AttemptTime is the limit of one attempt at a materialisation, after which it
	// goes on in another one: 6 hours when 0.
	AttemptTime time.Duration
	Watch       Watch
	Compaction  Compaction
	Log         *slog.Logger     // slog.Default() when nil
	Now         func() time.Time // time.Now when nil
}

// Services are the ways to features, by what their callers do. Safe for concurrent use.
//
// Every method may fail with fault.PermissionDenied, and with fault.NotFound for
// what it names.
type Services struct {
	Definitions     *Definitions
	OnlineRows      *OnlineRows
	Streams         *Streams
	Materialisation *Materialisation
	OnlineReads     *OnlineReads
	OfflineReads    *OfflineReads
	Verification    *Verification
	Erasure         *Erasure
}

// core is what all services share: configuration, clock, permission checks, stored
// definitions, plans of reads, and the reservations of online rows.
type core struct {
	cfg   Config
	log   *slog.Logger
	now   func() time.Time
	plans *planCache
	// compiled are the expressions of feature services.
	compiled compiledCache

	definitionStore  DefinitionStore
	runStore         RunStore
	onlineStore      OnlineRecordStore
	trainingSetStore TrainingSetStore

	mu   sync.Mutex
	busy map[string]bool // view versions whose online rows are being changed
}

// New makes the services. Their loops have to be started for materialisations to run,
// streams to be applied, and online rows to be checked and compacted.
func New(cfg Config) Services {
	if cfg.Zone == "" {
		cfg.Zone = residency.Home
	}
	if cfg.ChunkRows <= 0 {
		cfg.ChunkRows = 5000
	}
	if cfg.StreamBytes <= 0 {
		cfg.StreamBytes = defaultLog
	}
	if cfg.SnapshotInterval <= 0 {
		cfg.SnapshotInterval = defaultSnapshotInterval
	}
	if cfg.AttemptTime <= 0 {
		cfg.AttemptTime = 6 * time.Hour
	}
	cfg.Watch, cfg.Compaction = cfg.Watch.withDefaults(), cfg.Compaction.withDefaults()
	c := &core{
		cfg: cfg, log: cfg.Log, now: cfg.Now, busy: map[string]bool{},
		definitionStore: cfg.Store, runStore: cfg.Store, onlineStore: cfg.Store, trainingSetStore: cfg.Store,
	}
	if c.log == nil {
		c.log = slog.Default()
	}
	if c.now == nil {
		c.now = time.Now
	}
	c.plans = newPlanCache(c.now, c.cfg.DB.Bridges)
	a := &access{core: c}
	checks := &lastChecks{all: map[string]Check{}}
	rows := newOnlineRows(c)
	streams := newStreams(a, rows)
	materialisation := newMaterialisation(c, rows, streams, checks)
	reads := &OnlineReads{access: a}
	return Services{
		Definitions:     &Definitions{core: c, rows: rows},
		OnlineRows:      rows,
		Streams:         streams,
		Materialisation: materialisation,
		OnlineReads:     reads,
		OfflineReads:    &OfflineReads{access: a, streams: streams},
		Verification:    newVerification(a, reads, streams, checks),
		Erasure:         &Erasure{core: c, rows: rows, streams: streams, materialisation: materialisation},
	}
}

func (s *core) allow(ctx context.Context, action policy.Action, p project.Name, name string) error {
	return s.cfg.Authorizer.Allow(ctx, action, policy.Object{Project: string(p), Kind: objectKind, Name: name})
}

// pass is the residency door of the online store.
func (s *core) pass(ctx context.Context, action policy.Action, p project.Name, view string, label residency.Label) error {
	return s.cfg.Guard.Pass(ctx, residency.Transfer{
		Project: string(p), What: "feature view " + view, Label: label,
		Where: "the online store", Zone: s.cfg.Zone, Action: string(action),
	})
}

// origin is what a derivation inherits from its sources.
func origin(inputs []Input) (residency.Label, project.Classification, error) {
	parents := make([]residency.Parent, len(inputs))
	class := project.Public
	for i, in := range inputs {
		parents[i] = residency.Parent{Name: "dataset " + in.Ref, Label: in.Residency}
		class = project.Strictest(class, in.Classification)
	}
	if len(inputs) == 0 { // SQL over no table
		class = project.Internal
	}
	label, err := residency.Derive(parents...)
	return label, class, err
}

// noEmptyProject refuses an empty project, which is the installation.
func noEmptyProject(p project.Name) error {
	if p == "" {
		return fault.New(fault.Invalid, "a project is required for features")
	}
	return nil
}
