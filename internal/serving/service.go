package serving

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/serving/batching"
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

// Config is what serving is made of.
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

// Services are the only ways into serving, each for its callers. All of them share one
// routing table, and all are safe for concurrent use.
type Services struct {
	Deployments *Deployments
	Inference   *Inference
	Rollouts    *Rollouts
	AutoActions *AutoActions
	Loader      *Loader
	Quotas      *Quotas
	Metrics     *Metrics
}

// core is what all services share: the configuration, the routing tables with the
// versions in memory, and what this process has counted.
type core struct {
	cfg   Config
	log   *slog.Logger
	since time.Time // this process began to count

	deploymentStore DeploymentStore
	rolloutStore    RolloutStore
	actionStore     ActionStore

	// settling lets one settle after the other, each seeing the newest row; it is
	// locked before mu and held while the row is read. Its holder may change tables.
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

	turns   sync.Map // key → *sync.Mutex, see bring
	shadows shadows
	lost    lost
	limits  limits
	scaler  scaler

	supervisor supervisor
	// settleAside settles the deployments whose versions were set aside; see supervision.
	settleAside func(ctx context.Context)

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

// New makes the services. Nothing is in memory until Loader.RunOnce.
func New(c Config) Services {
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
	s := &core{
		cfg: c, log: c.Log, since: time.Now().UTC(), failures: map[attempt]failure{}, tallies: map[tallied]*tally{},
		deploymentStore: c.Store, rolloutStore: c.Store, actionStore: c.Store,
		loads: share.New(share.Limits{Name: "model_loads", What: "models being loaded", Slots: c.Loads, Queue: maxLoadsWaiting}), shadows: newShadows(runtime.GOMAXPROCS(0)), cores: batching.NewCores(runtime.GOMAXPROCS(0)),
		places: map[string]*batching.Cores{},
	}
	s.scaler.begin()
	s.tables.Store(&map[key]*table{})
	for name, r := range c.Remotes {
		s.places[name] = batching.NewCores(cmp.Or(r.Runs, defaultRuns))
	}
	quotas := &Quotas{core: s, usageStore: c.Store}
	s.limits.written = quotas.written
	rollouts, actions := &Rollouts{core: s}, &AutoActions{core: s}
	supervision := &supervision{core: s, rollouts: rollouts, actions: actions}
	s.settleAside = supervision.settleAside
	return Services{
		Deployments: &Deployments{core: s},
		Inference:   &Inference{core: s},
		Rollouts:    rollouts,
		AutoActions: actions,
		Loader:      &Loader{core: s, quotas: quotas, supervision: supervision},
		Quotas:      quotas,
		Metrics:     &Metrics{core: s},
	}
}

// table is the newest routing table of a deployment; nil when there is none.
func (s *core) table(k key) *table { return (*s.tables.Load())[k] }

// stored is a deployment as the database has it.
func (s *core) stored(ctx context.Context, project, name string) (d Deployment, err error) {
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		d, err = s.deploymentStore.One(ctx, tx, project, name)
		return err
	})
	return d, err
}

func object(project, name string) policy.Object {
	return policy.Object{Project: project, Kind: "deployment", Name: name}
}

func (s *core) tallyOf(k key, version int64) *tally {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tallies[tallied{k, version}]
	if t == nil {
		t = &tally{}
		s.tallies[tallied{k, version}] = t
	}
	return t
}

// forget drops what is known of a deployment that is gone.
func (s *core) forget(k key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.failures, func(a attempt, _ failure) bool { return a.key == k })
	maps.DeleteFunc(s.tallies, func(t tallied, _ *tally) bool { return t.key == k })
	s.scaler.forget(k)
	s.supervisor.keep(k, nil)
	s.lost.byKey.Delete(k)
	s.shadows.dropped.Delete(k)
	s.limits.all.Delete(k)
	s.turns.Delete(k)
}
