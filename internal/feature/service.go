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
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/lifecycle"
	"github.com/falaj-ml/falaj/internal/share"
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

// Config is what a Service needs.
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

// Service is the only way to features. Safe for concurrent use.
//
// Every method may fail with fault.PermissionDenied, and with fault.NotFound for
// what it names.
type Service struct {
	cfg   Config
	log   *slog.Logger
	now   func() time.Time
	plans *planCache
	// compiled are the expressions of feature services.
	compiled compiledCache
	loop     *lifecycle.Loop // runs materialisations
	// streamProcessor applies events to online rows, and snapshots them as dataset versions.
	streamProcessor *lifecycle.Loop
	copying         *lifecycle.Loop // removes copies that may not be there
	feeder          *lifecycle.Loop // brings messages of sources into the logs
	snapshotting    *share.Pool     // one version is made at a time
	watcher         *lifecycle.Loop
	compactor       *lifecycle.Loop
	compacted       compactionCounters

	mu      sync.Mutex
	ended   chan struct{}                // closed and replaced when a run ends
	busy    map[string]bool              // view versions whose online rows are being changed
	cancels map[RunID]context.CancelFunc // of attempts under way
	streams map[streamName]*streamProgress
	applied chan struct{}                 // closed and replaced when events were applied
	checks  map[string]Check              // the last of each view version; see Online.watch
	orphans map[online.TableKey]time.Time // tables that no record names, since when
}

// New makes a service. Its Background has to be started for materialisations to
// run.
func New(cfg Config) *Service {
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
	s := &Service{
		cfg: cfg, log: cfg.Log, now: cfg.Now, ended: make(chan struct{}), busy: map[string]bool{}, cancels: map[RunID]context.CancelFunc{},
		streams: map[streamName]*streamProgress{}, applied: make(chan struct{}), snapshotting: share.New(share.Limits{Name: "event_versions", What: "snapshots of streams", Slots: 1, Queue: 1 << 14}),
		checks: map[string]Check{},
	}
	if s.log == nil {
		s.log = slog.Default()
	}
	if s.now == nil {
		s.now = time.Now
	}
	s.plans = newPlanCache(s.now, s.cfg.DB.Bridges)
	s.loop = &lifecycle.Loop{
		Name: "feature materialisation", Every: retryPause, Logger: s.log,
		Timeout: openRuns * cfg.AttemptTime, // each attempt has its own limit
		Run:     func(ctx context.Context) error { return s.RunOnce(identity.With(ctx, identity.Loop("feature"))) },
	}
	s.streamProcessor = &lifecycle.Loop{
		Name: "feature streams", Every: streamInterval, Logger: s.log, Timeout: streamTimeout,
		Run: s.logOnChange(s.ProcessStreamsOnce),
	}
	s.watcher = &lifecycle.Loop{
		Name: "feature verification", Every: min(cfg.Watch.Every, time.Minute), Logger: s.log, Timeout: 24 * time.Hour, // each check has its own limit
		Run: func(ctx context.Context) error { return s.WatchOnce(identity.With(ctx, identity.Loop("feature"))) },
	}
	s.compactor = &lifecycle.Loop{
		Name: "feature compaction", Every: compactionInterval, Logger: s.log, Timeout: 7 * 24 * time.Hour, // steps are small, and begin again
		Run: func(ctx context.Context) error { return s.CompactOnce(identity.With(ctx, identity.Loop("feature"))) },
	}
	s.copying = &lifecycle.Loop{
		Name: "feature copies", Every: copiesPause, Logger: s.log, Timeout: time.Hour, // what was removed stays so
		Run: func(ctx context.Context) error {
			return s.RemoveStaleCopies(identity.With(ctx, identity.Loop("feature")))
		},
	}
	s.feeder = &lifecycle.Loop{
		Name: "feature sources", Every: feedPause, Logger: s.log, Timeout: feedTime,
		Run: s.logOnChange(s.FeedOnce),
	}
	return s
}

// Watching compares what is online with what it was made from, as Config.Watch
// says; it is for Every above zero.
func (s *Service) Watching() lifecycle.Service { return s.watcher.Service() }

// Compacting moves online rows to new subkeys and removes those that answer nobody, as
// Config.Compaction says.
func (s *Service) Compacting() lifecycle.Service { return s.compactor.Service() }

// Copying removes copies that may not be there any more; it is for an online store that
// may have some, whether it is configured to make them or not.
func (s *Service) Copying() lifecycle.Service { return s.copying.Service() }

// Background runs materialisations, also those that an earlier process left
// unfinished.
func (s *Service) Background() lifecycle.Service { return s.loop.Service() }

// Streams applies what the logs of events hold to online rows, and makes dataset versions of it.
func (s *Service) Streams() lifecycle.Service { return s.streamProcessor.Service() }

// Feeds copies the messages of sources into the logs.
func (s *Service) Feeds() lifecycle.Service { return s.feeder.Service() }

func (s *Service) allow(ctx context.Context, action policy.Action, p project.Name, name string) error {
	return s.cfg.Authorizer.Allow(ctx, action, policy.Object{Project: string(p), Kind: objectKind, Name: name})
}

// pass is the residency door of the online store.
func (s *Service) pass(ctx context.Context, action policy.Action, p project.Name, view string, label residency.Label) error {
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
