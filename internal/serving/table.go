package serving

import (
	"context"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/serving/batching"
	"github.com/falaj-ml/falaj/internal/serving/chain"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
)

// key names a deployment.
type key struct{ project, name string }

// table is which loaded versions answer for a deployment. It never changes: a
// request takes the newest one and stays with it. The service holds one use of
// each target of the newest table; what is in no table any more is closed when
// the last request on it has finished.
type table struct {
	deployment Deployment
	owner      uint64  // of its records
	stable     *target // nil: not in memory
	canary     *target // nil: none, or not in memory; its share is stable's then
	shadow     *target // nil: none, or not in memory
	share      uint32  // the first buckets are the canary's; 0 without one
	rollout    RolloutID
	features   *columns  // nil: requests carry the model's own inputs
	sticky     string    // request column that decides the bucket
	wanted     []wanting // every version that should be in memory
	unloaded   []*target // closed, because nobody asked; for what they said of themselves
}

// wanting is a version that a deployment should have in memory.
type wanting struct {
	id      ID // of the deployment
	role    Role
	version int64
	digest  string
	how     how
}

// how a version is loaded, by the manifest.
type how struct {
	threads  int
	runtime  RuntimeSpec
	batching batching.Options
	output   string // of the score
	index    int    // -1: the last
	replicas bool   // its session is of several processes
	pools    string // on which those beyond the first are
	steps    string // before and after the model; empty without
}

func (s Spec) how() how {
	h := how{threads: s.Threads, batching: s.Batching.options(s.Threads), index: -1, replicas: s.replicated(), pools: strings.Join(s.pools(), " ")}
	if s.Runtime != nil {
		h.runtime = *s.Runtime
	}
	if p := s.Prediction; p != nil {
		h.output = p.Output
		if p.Index != nil {
			h.index = *p.Index
		}
	}
	return h
}

// target is a loaded version. It is used by those who have entered and not left.
type target struct {
	model   Model // without its file
	how     how
	session runtime.Session // asked through queue only
	// replicas are those of the model: the session, or what the steps of session are around;
	// nil when it is not of several processes.
	replicas *replicas
	queue    *batching.Queue
	meta     runtime.Metadata
	outputs  []string       // the names of all
	chain    *chain.Session // the session, when there are steps
	score    score
	names    map[string][]string // of the columns of its inputs
	tally    *tally
	steps    []StepModel
	zone     residency.Zone // where it runs
	machine  string         // what records call the machine of this process
	since    time.Time      // it is in memory
	uses     atomic.Int64
	closed   func() // tells the service that the session is

	environment string // of a Python model
	health      *health
}

// newTarget makes a target of a session, which it owns. It tries whether the model
// may be batched. Error: fault.Unavailable when the service is closed.
func (s *Service) newTarget(ctx context.Context, project string, m Model, how how, session runtime.Session, tally *tally) (*target, error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		_ = session.Close()
		return nil, fault.New(fault.Unavailable, "the server stops")
	}
	s.sessions.Add(1)
	s.mu.Unlock()
	t := &target{model: m, how: how, session: session, meta: session.Metadata(), names: inputNames(session.Metadata()), tally: tally, since: time.Now(), closed: s.sessions.Done}
	t.outputs = namesOf(t.meta.Outputs)
	var verdict batching.Verdict
	options, cores := bounded(how.batching, session), s.coresOf(how)
	options.Project = project
	if options.MaxRows != 1 {
		ctx, cancel := context.WithTimeout(ctx, min(maxTry, s.LoadTime))
		defer cancel()
		verdict = batching.Try(ctx, cores, session, options)
	}
	t.queue = batching.New(cores, session, options, verdict, tally.ran)
	t.uses.Store(1)
	return t, nil
}

func namesOf(all []runtime.Spec) []string {
	names := make([]string, len(all))
	for i, s := range all {
		names[i] = s.Name
	}
	return names
}

// unavailable is why the version does not answer at the moment; nil when it does.
func (t *target) unavailable() error { return runtime.Unavailable(t.session) }

// maxTry bounds how long it takes to find out whether a model may be batched, which is no
// longer than it may take to load.
const maxTry = 10 * time.Second

// where adds to a record where the model runs: the machine and its zone, or the remote and
// the zone in which the operator says that it is.
func (t *target) where(detail map[string]any) map[string]any {
	detail["zone"] = t.zone
	if r := t.how.runtime.Remote.Name; r != "" {
		detail["remote"] = r
	} else {
		detail["machine"] = t.machine
	}
	return detail
}

func (t *target) is(w wanting) bool {
	return t != nil && t.model.Version == w.version && t.model.Digest == w.digest && t.how == w.how
}

// enter begins a use; false when the target is being closed.
func (t *target) enter() bool {
	for {
		n := t.uses.Load()
		if n == 0 {
			return false
		}
		if t.uses.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// leave ends a use. The last one closes the session, beside the caller.
func (t *target) leave() {
	if t != nil && t.uses.Add(-1) == 0 {
		go func() {
			_ = t.session.Close()
			t.closed()
		}()
	}
}

// targets are those in memory, each once.
func (t *table) targets() []*target {
	if t == nil {
		return nil
	}
	out := make([]*target, 0, 3)
	for _, x := range []*target{t.stable, t.canary, t.shadow} {
		if x != nil {
			out = append(out, x)
		}
	}
	return out
}

// buckets is in how many parts the requests of a deployment are divided.
const buckets = 10_000

// bucket is where a key of a deployment falls. It depends on both alone, so a
// candidate that takes the first buckets keeps all of its keys as its share
// grows, and gives back only what it must as it shrinks. FNV-1a, and a
// finaliser because its low bits alone are not even.
func bucket(deployment ID, routeKey string) uint32 {
	h := uint64(14695981039346656037)
	for _, s := range [2]string{string(deployment), routeKey} {
		for i := range len(s) {
			h = (h ^ uint64(s[i])) * 1099511628211
		}
		h *= 1099511628211 // the end of a part
	}
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return uint32((h ^ h>>33) % buckets)
}

// choose is the target for a request. random says that it was chosen by share,
// and no version was asked for. nil: none answers.
func (t *table) choose(version, routeKey string) (chosen *target, random bool) {
	if version != "" {
		for _, x := range t.targets() {
			if strconv.FormatInt(x.model.Version, 10) == version {
				return x, false
			}
		}
		return nil, false
	}
	if t.canary == nil {
		return t.stable, true
	}
	b := rand.Uint32N(buckets) //nolint:gosec // it protects nothing
	if routeKey != "" {
		b = bucket(t.deployment.ID, routeKey)
	}
	if b < t.share {
		return t.canary, true
	}
	return t.stable, true
}

// pick finds the target for a request and enters it.
func (s *Service) pick(r *Request) (*table, *target, bool, error) {
	k := key{r.Project, r.Name}
	for {
		t := (*s.tables.Load())[k]
		if t == nil {
			if !s.read.Load() {
				return nil, nil, false, starting(r.Name)
			}
			return nil, nil, false, unknown(r.Name, r.Version)
		}
		chosen, random := t.choose(r.Version, t.routeKey(r))
		if chosen == nil {
			return nil, nil, false, s.notReady(k, t, r.Version)
		}
		if chosen.enter() { // otherwise there is a newer table
			return t, chosen, random, nil
		}
	}
}

func starting(name string) error {
	return fault.New(fault.Unavailable, "model %q is not ready: the server has started and is loading its models", name).WithHint("Try again in a moment.")
}

func unknown(name, version string) error {
	what := name
	if version != "" {
		what += " version " + version
	}
	return fault.New(fault.NotFound, "unknown model: %q is not deployed in this project", what).
		WithHint("List deployments with `falaj get deployments`.")
}

// notReady says why a version does not answer.
func (s *Service) notReady(k key, t *table, version string) error {
	for _, w := range t.wanted {
		if version != "" && versionText(w.version) != version || version == "" && w.role != Stable {
			continue
		}
		if s.supervisor.read(w.supervised(k)).aside != "" {
			err := fault.New(fault.Unavailable, "model %q is not ready: version %d was set aside, because its process crashed %d times", k.name, w.version, maxDeaths).
				WithHint("The deployment's state has details, with permission to read it.")
			err.Err = errLoadFailed
			return err
		}
		f, failed := s.failure(k, w)
		if sleeps := t.deployment.Spec.scalesToZero(); sleeps && (!failed || time.Now().After(f.retry)) {
			return errScaledToZero
		}
		if failed && !f.waits { // what it was is not for everybody who may ask
			err := fault.New(fault.Unavailable, "model %q is not ready: version %d could not be loaded", k.name, w.version).
				WithHint("The deployment's state has details, with permission to read it.").WithRetry(time.Until(f.retry))
			err.Err = errLoadFailed
			return err
		}
		return starting(k.name)
	}
	return unknown(k.name, version)
}
