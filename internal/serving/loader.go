package serving

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/serving/prediction"
	models "github.com/falaj-ml/falaj/internal/serving/runtime"
	"github.com/falaj-ml/falaj/internal/share"
	"github.com/falaj-ml/falaj/internal/store"
)

func versionText(v int64) string { return strconv.FormatInt(v, 10) }

// maxPause bounds the growing pause between tries to load a failed model.
const maxPause = 5 * time.Minute

// trialTime bounds how long a rollout waits for its version, when that does not load: it
// answers no request meanwhile, and nothing could be decided. What it is built for first,
// an environment, has a time of its own.
const trialTime = time.Hour

// failure is why a version is not in memory.
type failure struct {
	reason string
	waits  bool // for what it runs in; that says nothing of it
	tries  int
	since  time.Time // of the first try in a row that failed
	retry  time.Time
}

// attempt names what was tried to load.
type attempt struct {
	key
	id      ID
	version int64
	digest  string
	how     how
}

func (w wanting) attempt(k key) attempt { return attempt{k, w.id, w.version, w.digest, w.how} }

func (s *Service) failure(k key, w wanting) (failure, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f, ok := s.failures[w.attempt(k)]
	return f, ok
}

// wants is every version that a deployment should have in memory.
func (d Deployment) wants() []wanting {
	how := d.how()
	w := []wanting{{d.ID, Stable, d.Version, d.Digest, how}}
	for _, t := range d.Trials {
		w = append(w, wanting{d.ID, t.Role, t.Version, t.Digest, how})
	}
	return w
}

// RunOnce makes what this process holds what the database says: it loads what
// is missing or changed, several at once, and drops what is gone. A model that
// cannot be loaded, or not in its time, keeps its reason and is tried again later;
// the others load all the same, and what answered before goes on.
func (s *Service) RunOnce(ctx context.Context) error {
	var wanted []Deployment
	if err := s.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		wanted, err = s.Store.All(ctx, tx)
		return err
	}); err != nil {
		return err
	}
	s.announce(wanted)
	held := maps.Clone(*s.tables.Load())
	var bringing sync.WaitGroup
	var mu sync.Mutex
	var failures []error
	for _, d := range wanted {
		k := key{d.Project, d.Name}
		delete(held, k)
		bringing.Go(func() {
			if err := s.bring(ctx, k, d, routine); err != nil {
				mu.Lock()
				defer mu.Unlock()
				failures = append(failures, err)
			}
		})
	}
	bringing.Wait()
	for k := range held {
		if err := s.settle(ctx, k); err != nil {
			failures = append(failures, err)
		}
	}
	if ctx.Err() == nil {
		s.looked.Store(true)
		ctx := identity.With(ctx, identity.Loop("model supervisor"))
		s.settleAside(ctx)
		s.endUnloaded(ctx, wanted)
	}
	return errors.Join(failures...)
}

// Load tries at once to load the versions of a deployment that are not in memory, as
// the loader would do later. Who asks while somebody else does hears what came of
// that. A caller who goes away ends the wait, not the load. Errors: fault.NotFound,
// fault.PermissionDenied, fault.Timeout (it goes on), and why a version does not load,
// as the deployment's state says it.
func (s *Service) Load(ctx context.Context, project, name string) error {
	if err := s.Authz.Allow(ctx, actionApply, object(project, name)); err != nil {
		return err
	}
	d, err := s.Record(ctx, project, name)
	if err != nil {
		return err
	}
	k := key{project, name}
	done := s.joint.DoChan(project+"/"+name, func() (any, error) {
		return nil, s.bring(context.WithoutCancel(ctx), k, d, forced)
	})
	select {
	case got := <-done:
		return fault.Wrap(reasonOf(got.Err), "load %s", name)
	case <-ctx.Done():
		return fault.New(fault.Timeout, "load %s: it is still loading", name)
	}
}

// reasonOf is why a model did not load as callers may know it: what is wrong with the
// model in the words of who found it, and of the server no more than what it lacks. Of
// several reasons it is the first.
func reasonOf(err error) error {
	if all, several := err.(interface{ Unwrap() []error }); several { // of errors.Join itself, and not of what is in it
		err = all.Unwrap()[0]
	}
	if err == nil {
		return nil
	}
	if errors.Is(err, ErrNotYet) {
		return err
	}
	kind := fault.KindOf(err)
	switch kind { //nolint:exhaustive // the others are of the model
	case fault.Internal, fault.Unavailable:
		return fault.New(kind, "loading failed temporarily; the server's log has details")
	case fault.Exhausted:
		return fault.New(kind, "out of memory; the server's log has details")
	}
	return err
}

// Adopt makes a deployment what somebody else decided. The stable version is loaded
// first, where it is not in memory, and only then commit writes the row: an error of
// either leaves all as it was. A trial that does not load is left for later; then the
// error says so, and the rest was done. What is scaled to zero and was adopted before, as it is
// now, is known to load, and stays so.
func (s *Service) Adopt(ctx context.Context, d Deployment, commit func(context.Context) error) error {
	k := key{d.Project, d.Name}
	turn, _ := s.turns.LoadOrStore(k, &sync.Mutex{})
	turn.(*sync.Mutex).Lock()
	defer turn.(*sync.Mutex).Unlock()
	have := (*s.tables.Load())[k]
	var fresh []*target
	var failures []error
	for _, w := range d.wants() {
		if have.holding(w) != nil {
			continue
		}
		if have.scaledToZero() && d.Spec.scalesToZero() && slices.Contains(have.wanted, w) {
			if _, failed := s.failure(k, w); !failed {
				continue
			}
		}
		var t *target
		var err error
		if f, ok := s.failure(k, w); ok && time.Now().Before(f.retry) {
			err = fault.New(fault.Unavailable, "version %d: %s", w.version, f.reason)
		} else {
			t, err = s.load(ctx, k, d, w, &health{})
		}
		switch {
		case err == nil:
			fresh = append(fresh, t)
		case w.role == Stable:
			return err
		default:
			failures = append(failures, err)
		}
	}
	if err := commit(ctx); err != nil {
		leave(fresh)
		return err
	}
	return errors.Join(append(failures, s.settle(ctx, k, fresh...))...)
}

// Refresh makes the routing of a deployment what the database says now, for who has
// changed or removed it there.
func (s *Service) Refresh(ctx context.Context, project, name string) error {
	return s.settle(ctx, key{project, name})
}

// urge is why a deployment is loaded.
type urge int

// The urges.
const (
	routine  urge = iota // the loader's round: not what rests, nor what failed lately
	demanded             // a cold start needs it: not what failed lately
	forced               // somebody said so
)

// announce makes an empty table for each deployment that has none, so that who
// asks meanwhile hears that it is loading.
func (s *Service) announce(all []Deployment) {
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

// bring loads what a deployment wants and has not in memory, and settles when
// anything is other than it was. What failed lately, or rests, it leaves for later,
// unless the urge says otherwise. One bring of a deployment comes after the other, so
// that nothing is loaded twice.
func (s *Service) bring(ctx context.Context, k key, d Deployment, u urge) error {
	turn, _ := s.turns.LoadOrStore(k, &sync.Mutex{})
	turn.(*sync.Mutex).Lock()
	defer turn.(*sync.Mutex).Unlock()
	have := (*s.tables.Load())[k]
	var fresh []*target
	var failures []error
	changed := have == nil || have.deployment.ID != d.ID || have.deployment.Revision != d.Revision
	rests := u == routine && s.resting(k, have, d)
	for _, w := range d.wants() {
		if rests || have.holding(w) != nil {
			continue
		}
		h := s.supervisor.of(w.supervised(k))
		if u == forced {
			h = &health{}
		} else if s.supervisor.read(w.supervised(k)).aside != "" {
			continue
		}
		if f, ok := s.failure(k, w); ok && !f.waits && u != forced && time.Now().Before(f.retry) {
			continue
		}
		t, err := s.load(ctx, k, d, w, h)
		changed = true
		if err != nil {
			failures = append(failures, err)
			continue
		}
		fresh = append(fresh, t)
	}
	if !changed {
		return nil
	}
	return errors.Join(append(failures, s.settle(ctx, k, fresh...))...)
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

// load brings one version into memory, or keeps why not.
func (s *Service) load(ctx context.Context, k key, d Deployment, w wanting, h *health) (*target, error) {
	free, err := s.loads.Take(ctx, share.Owner{Project: d.Project})
	if err != nil {
		return nil, err
	}
	defer free()
	var t *target
	err = s.featuresCross(ctx, d.Project, d.Spec, actionApply, d.FeatureSet)
	if err == nil {
		t, err = s.open(ctx, d, versionText(w.version), h) // the alias may have moved since
	}
	if dead, ok := errors.AsType[models.DeathError](err); ok {
		s.died(h, "", dead.Death)
	}
	if err == nil && t.model.Digest != w.digest {
		t.leave()
		err = fault.New(fault.Conflict, "version %d's digest differs from the deployed one", w.version)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		delete(s.failures, w.attempt(k))
		s.Log.InfoContext(ctx, "model loaded", slog.String("deployment", d.Name), slog.Int64("version", w.version))
		return t, nil
	}
	if ctx.Err() != nil {
		return nil, err // who wanted it went away: that says nothing of the model
	}
	f := s.failures[w.attempt(k)]
	if f.tries++; f.since.IsZero() || f.waits {
		f.since = time.Now()
	}
	longest := maxPause
	if fault.Is(err, fault.Unavailable) { // it says nothing of the model
		longest = 10 * time.Second
	}
	f.waits = errors.Is(err, ErrNotYet)
	f.reason, f.retry = reasonOf(err).Error(), time.Now().Add(min(longest, time.Second<<min(f.tries, 9)))
	s.failures[w.attempt(k)] = f
	level := slog.LevelError
	if f.waits {
		level = slog.LevelInfo
	}
	s.Log.Log(ctx, level, "model not loaded", slog.String("deployment", d.Name), slog.Int64("version", w.version), slog.String("error", err.Error()))
	return nil, err
}

// settle makes the routing table of a name what the database says now, out of
// what is in memory and what was loaded just now; what it does not need of both
// is closed when nobody uses it. Whatever committed before a settle began is
// seen by it, so the last one leaves what is true. While the stable version is
// not in memory, the table of before goes on answering. settle takes over its
// caller's use of the fresh targets.
func (s *Service) settle(ctx context.Context, k key, fresh ...*target) error {
	s.settling.Lock()
	defer s.settling.Unlock()
	var row Deployment
	var runs []Rollout
	err := s.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		if row, err = s.Store.One(ctx, tx, k.project, k.name); err != nil {
			return err
		}
		runs, err = s.Store.Rollouts(ctx, tx, k.project, k.name, 1)
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

// settleNow settles what was committed, also for a caller who has gone away. When
// the database cannot be read, the loader settles later.
func (s *Service) settleNow(ctx context.Context, k key, fresh ...*target) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.Timeout)
	defer cancel()
	if err := s.settle(ctx, k, fresh...); err != nil {
		s.Log.ErrorContext(ctx, "settling a deployment failed", slog.String("deployment", k.name), slog.String("error", err.Error()))
	}
}

// forgetFailures drops why versions did not load that nobody wants any more, or that are
// in memory now.
func (s *Service) forgetFailures(k key, t *table) {
	keep := map[attempt]bool{}
	for _, w := range t.wanted {
		keep[w.attempt(k)] = t.holding(w) == nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.failures, func(a attempt, _ failure) bool { return a.key == k && !keep[a] })
}

// forget drops what is known of a deployment that is gone.
func (s *Service) forget(k key) {
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

// Ready reports whether every model that a project wants answers. Of no project,
// "", it reports whether the server is there for all: it has looked at every
// deployment once, whether or not its model could be loaded.
func (s *Service) Ready(project string) bool {
	if project == "" {
		return s.looked.Load()
	}
	for k, t := range *s.tables.Load() {
		if k.project == project && !s.answers(k, t) {
			return false
		}
	}
	return s.read.Load()
}

// answers reports whether a deployment's stable version answers, or is loaded when it
// is asked for.
func (s *Service) answers(k key, t *table) bool {
	if t.stable == nil {
		return errors.Is(s.notReady(k, t, ""), errScaledToZero)
	}
	return t.stable.unavailable() == nil
}

// replace makes a table the newest of its name. Under settling.
func (s *Service) replace(k key, t *table) {
	next := maps.Clone(*s.tables.Load())
	next[k] = t
	s.tables.Store(&next)
}
