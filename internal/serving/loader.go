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

	"golang.org/x/sync/singleflight"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
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

// failure is why a version could not be loaded.
type failure struct {
	reason string
	waits  bool // for its environment, which says nothing of the model
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

func (s *core) failure(k key, w wanting) (failure, bool) {
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

// Loader holds in memory what deployments want: it loads their versions, scales them, and
// closes them at the end. Run RunOnce and ScaleOnce in loops.
type Loader struct {
	*core
	quotas      *Quotas
	supervision *supervision

	joint singleflight.Group // for Load, by deployment
}

// RunOnce brings this process to what the database says: it loads versions that are
// missing or changed, several at once, and drops those that are gone. A model that
// cannot be loaded, or not in its time, keeps its reason and is retried later; the
// others load all the same, and previous versions keep answering.
func (s *Loader) RunOnce(ctx context.Context) error {
	var wanted []Deployment
	if err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		wanted, err = s.deploymentStore.All(ctx, tx)
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
		s.supervision.settleAside(ctx)
		s.supervision.endUnloaded(ctx, wanted)
	}
	return errors.Join(failures...)
}

// Load tries at once to load the versions of a deployment that are not in memory, as
// the loader would do later. Who asks while somebody else does hears what came of
// that. A caller who goes away ends the wait, not the load. Errors: fault.NotFound,
// fault.PermissionDenied, fault.Timeout (it goes on), and why a version does not load,
// as the deployment's state says it.
func (s *Loader) Load(ctx context.Context, project, name string) error {
	if err := s.cfg.Authz.Allow(ctx, actionApply, object(project, name)); err != nil {
		return err
	}
	d, err := s.stored(ctx, project, name)
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
func (s *Loader) Adopt(ctx context.Context, d Deployment, commit func(context.Context) error) error {
	k := key{d.Project, d.Name}
	turn, _ := s.turns.LoadOrStore(k, &sync.Mutex{})
	turn.(*sync.Mutex).Lock()
	defer turn.(*sync.Mutex).Unlock()
	have := s.table(k)
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
func (s *Loader) Refresh(ctx context.Context, project, name string) error {
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

// bring loads what a deployment wants and has not in memory, and settles when
// anything is other than it was. What failed lately, or rests, it leaves for later,
// unless the urge says otherwise. One bring of a deployment comes after the other, so
// that nothing is loaded twice.
func (s *core) bring(ctx context.Context, k key, d Deployment, u urge) error {
	turn, _ := s.turns.LoadOrStore(k, &sync.Mutex{})
	turn.(*sync.Mutex).Lock()
	defer turn.(*sync.Mutex).Unlock()
	have := s.table(k)
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

// load brings one version into memory, or keeps why not.
func (s *core) load(ctx context.Context, k key, d Deployment, w wanting, h *health) (*target, error) {
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
		s.log.InfoContext(ctx, "model loaded", slog.String("deployment", d.Name), slog.Int64("version", w.version))
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
	s.log.Log(ctx, level, "model not loaded", slog.String("deployment", d.Name), slog.Int64("version", w.version), slog.String("error", err.Error()))
	return nil, err
}

// forgetFailures drops why versions did not load that nobody wants any more, or that are
// in memory now.
func (s *core) forgetFailures(k key, t *table) {
	keep := map[attempt]bool{}
	for _, w := range t.wanted {
		keep[w.attempt(k)] = t.holding(w) == nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.failures, func(a attempt, _ failure) bool { return a.key == k && !keep[a] })
}

// Close waits until shadows have seen what was shown to them, closes all models, and
// writes down what was used of quotas. No Infer may begin after it.
func (s *Loader) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.scaler.close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.scaler.loading.Wait()
		s.shadows.all.Wait()
		s.settling.Lock()
		old := *s.tables.Swap(&map[key]*table{})
		s.settling.Unlock()
		for _, t := range old {
			leave(t.targets())
		}
		s.sessions.Wait()
	}()
	select {
	case <-done:
		return s.quotas.Record(ctx)
	case <-ctx.Done():
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), readUsage)
		defer cancel()
		return errors.Join(fault.New(fault.Timeout, "models are still running"), s.quotas.Record(last))
	}
}

// Stopping ends the cold starts, because the server stops; there are no more.
// Versions that are in memory answer until Close.
func (s *Loader) Stopping() { s.scaler.close() }

// Unloaded is a version that a deployment would answer with, and that is not in memory:
// nobody asks for it, or it could not be loaded yet.
type Unloaded struct {
	Project, Model string
	Version        int64
	// Environment is what the manifest says that it runs in, NAME or NAME@DIGEST, else
	// what it ran in when it was in memory. Empty, it runs in the one that the version was
	// made in, if it is Python; Known says that it is not.
	Environment string
	Known       bool
}

// Unloaded lists them: what they need to be loaded is still to be there then.
func (s *Loader) Unloaded() (all []Unloaded) {
	for k, t := range *s.tables.Load() {
		for _, w := range t.wanted {
			if t.holding(w) != nil || w.how.runtime.Remote.Name != "" {
				continue
			}
			d := Unloaded{Project: k.project, Model: t.deployment.Spec.Model, Version: w.version, Environment: w.how.runtime.Python.Environment}
			for _, x := range t.unloaded {
				if x.is(w) && d.Environment == "" {
					d.Environment, d.Known = x.environment, true
				}
			}
			all = append(all, d)
		}
	}
	return all
}
