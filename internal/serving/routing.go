package serving

import (
	"context"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving/batching"
	"github.com/falaj-ml/falaj/internal/serving/prediction"
	"github.com/falaj-ml/falaj/internal/store"
)

// key names a deployment.
type key struct{ project, name string }

// table is the routing table of a deployment: its versions in memory, and their shares.
// It never changes: a request takes the newest table and stays with it. Each target of
// the newest table has one use of its own; a target in no table is closed when its last
// request has finished.
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
	unloaded   []*target // scaled to zero and closed; kept for their metadata
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

// choose is the target for a request; nil when it is not in memory. random says that it
// was chosen by share, because the request names no version.
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

// pick finds the target for a request and enters it. Of a version that is not in memory it
// gives the routing table, with the error.
func (s *core) pick(r *Request) (*table, *target, bool, error) {
	k := key{r.Project, r.Name}
	for {
		t := s.table(k)
		if t == nil {
			if !s.read.Load() {
				return nil, nil, false, starting(r.Name)
			}
			return nil, nil, false, unknown(r.Name, r.Version)
		}
		chosen, random := t.choose(r.Version, t.routeKey(r))
		if chosen == nil {
			return t, nil, false, s.notReady(k, t, r.Version)
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

// notReady is the error of a request for a version that is not in memory:
// errScaledToZero, or why it does not answer.
func (s *core) notReady(k key, t *table, version string) error {
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

// announce makes an empty table for each deployment that has none, so that requests
// hear that it is loading.
func (s *Loader) announce(all []Deployment) {
	s.settling.Lock()
	defer s.settling.Unlock()
	next := maps.Clone(*s.tables.Load())
	for _, d := range all {
		if k := (key{d.Project, d.Name}); next[k] == nil {
			next[k] = &table{deployment: d, wanted: d.wants()}
		}
	}
	s.tables.Store(&next)
	s.read.Store(true)
}

// holding is a version in memory; nil when it is not.
func (t *table) holding(w wanting) *target {
	for _, x := range t.targets() {
		if t.deployment.ID == w.id && x.is(w) {
			return x
		}
	}
	return nil
}

// settle makes the routing table of a name what the database says now, out of the
// targets in memory and the fresh ones; those of both that it does not need are closed
// after their last use. It sees all that was committed before it began, so the last
// settle leaves the truth. While the stable version is not in memory, the previous
// table keeps answering. settle takes over its caller's use of the fresh targets.
func (s *core) settle(ctx context.Context, k key, fresh ...*target) error {
	s.settling.Lock()
	defer s.settling.Unlock()
	var row Deployment
	var runs []Rollout
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		if row, err = s.deploymentStore.One(ctx, tx, k.project, k.name); err != nil {
			return err
		}
		runs, err = s.rolloutStore.Rollouts(ctx, tx, k.project, k.name, 1)
		return err
	})
	gone := fault.Is(err, fault.NotFound)
	if err != nil && !gone {
		leave(fresh)
		return fault.Wrap(err, "checking deployment %s again", k.name)
	}
	all := *s.tables.Load()
	old := all[k]
	next := maps.Clone(all)
	if gone {
		delete(next, k)
		s.tables.Store(&next)
		s.forget(k)
		leave(fresh)
		leave(old.targets())
		return nil
	}
	var held []*target
	if old != nil && old.deployment.ID == row.ID {
		held = old.targets()
	}
	now := tableOf(row, runs, append(held, fresh...))
	s.forgetFailures(k, now)
	for _, t := range fresh {
		if slices.Contains(now.targets(), t) {
			if s.supervisor.adopt(supervised{k, t.model.Version, t.model.Digest}, t.health) {
				s.background(s.settleAside)
			}
		}
	}
	s.supervisor.keep(k, now.wanted)
	if now.stable == nil && len(held) > 0 && old.stable != nil {
		leave(fresh)
		return nil
	}
	if len(now.targets()) == 0 && old != nil && old.deployment.ID == row.ID {
		now.unloaded = old.unloaded
	}
	next[k] = now
	s.tables.Store(&next)
	if now.stable != nil {
		s.scaler.endColdStart(k, nil, nil)
	}
	used := map[*target]bool{}
	for _, t := range now.targets() {
		used[t] = true
	}
	for _, t := range append(fresh, old.targets()...) {
		if !used[t] {
			t.leave()
		}
	}
	return nil
}

func leave(all []*target) {
	for _, t := range all {
		t.leave()
	}
}

// tableOf arranges what is in memory as the deployment says.
func tableOf(d Deployment, runs []Rollout, memory []*target) *table {
	t := &table{deployment: d, owner: prediction.OwnerOf(string(d.ID)), wanted: d.wants(), features: columnsOf(d)}
	for _, w := range t.wanted {
		for _, x := range memory {
			if !x.is(w) {
				continue
			}
			switch w.role {
			case Stable:
				t.stable = x
			case Canary:
				t.canary = x
			case Shadow:
				t.shadow = x
			}
			break
		}
	}
	if len(runs) > 0 && runs[0].State == Running {
		t.sticky = runs[0].Spec.Sticky
		if t.canary != nil {
			t.rollout, t.share = runs[0].ID, uint32(runs[0].Weight)*buckets/100 //nolint:gosec // 1 to 99
		}
	}
	return t
}

// settleNow settles what was committed, even when ctx is cancelled. When the database
// cannot be read, the loader settles later.
func (s *core) settleNow(ctx context.Context, k key, fresh ...*target) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.Timeout)
	defer cancel()
	if err := s.settle(ctx, k, fresh...); err != nil {
		s.log.ErrorContext(ctx, "settling a deployment failed", slog.String("deployment", k.name), slog.String("error", err.Error()))
	}
}

// replace makes a table the newest of its name. Under settling.
func (s *core) replace(k key, t *table) {
	next := maps.Clone(*s.tables.Load())
	next[k] = t
	s.tables.Store(&next)
}

// routeKey is what decides the version: the column that the rollout names, in
// the first row, else the request's own key.
func (t *table) routeKey(r *Request) string {
	if t.sticky == "" || t.canary == nil {
		return r.RouteKey
	}
	for i := range r.Inputs {
		if r.Inputs[i].Name == t.sticky {
			if text := firstText(r.Inputs[i].Data); text != "" {
				return text
			}
		}
	}
	return r.RouteKey
}

// firstText is the first element as text; empty when there is none.
func firstText(data any) string {
	switch d := data.(type) {
	case []string:
		if len(d) > 0 {
			return d[0]
		}
	case []int64:
		if len(d) > 0 {
			return strconv.FormatInt(d[0], 10)
		}
	default:
		if n := numbers(data); len(n) > 0 {
			return strconv.FormatFloat(n[0], 'g', -1, 64)
		}
	}
	return ""
}
