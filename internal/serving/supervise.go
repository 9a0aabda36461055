package serving

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	models "github.com/falaj-ml/falaj/internal/serving/runtime"
	"github.com/falaj-ml/falaj/internal/store"
)

// A version that kills a child, the process that runs it or those started in its place,
// maxDeaths times within deathWindow and the time that three loads may take is set aside: no process of it is started again, it leaves the
// routing table, and what was tried or deployed with it is undone as far as there is
// something to go back to. Whoever deploys, tries or loads it again begins a new count.
const (
	maxDeaths   = 3
	deathWindow = 10 * time.Minute
)

// supervised names a version in a deployment.
type supervised struct {
	key
	version int64
	digest  string
}

// health is how the processes of a version did since somebody deployed it, tried it or
// had it loaded. Under supervisor.mu.
type health struct {
	deaths  []models.Death // in the window, oldest first
	total   int
	step    string // whose model's process died last; empty: the version's own
	counts  bool   // the version is deployed, so that it may be set aside
	once    bool   // no second process is started
	aside   string // why it is; empty: it is not
	told    bool   // that it is, by an event and in the audit log
	settled bool   // the deployment was brought back as far as possible
}

// supervisor counts the deaths of processes. The zero supervisor is ready.
type supervisor struct {
	mu       sync.Mutex
	all      map[supervised]*health
	settling sync.Mutex // one setting aside after the other
}

// of is the health of a version that the loader loads.
func (v *supervisor) of(of supervised) *health {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.all == nil {
		v.all = map[supervised]*health{}
	}
	h := v.all[of]
	if h == nil {
		h = &health{counts: true}
		v.all[of] = h
	}
	return h
}

// adopt makes the health of a target that was loaded that of its version, and reports
// whether the version is to be set aside already.
func (v *supervisor) adopt(of supervised, h *health) (aside bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.all == nil {
		v.all = map[supervised]*health{}
	}
	h.counts = true
	v.all[of] = h
	return h.judge()
}

// judge sets the version aside when its processes died too often. Under supervisor.mu.
func (h *health) judge() (aside bool) {
	if h.aside != "" || !h.counts {
		return h.aside != ""
	}
	for _, d := range h.deaths {
		of := h.of(d.Child)
		if len(of) < maxDeaths {
			continue
		}
		last := of[len(of)-1]
		h.deaths = of
		h.aside = fmt.Sprintf("set aside: its process crashed %d times in %s, last: %s. It is not restarted. Deploy another version, or correct the cause and apply the deployment again",
			len(of), (last.At.Sub(of[0].At) + time.Second).Truncate(time.Second), last.Reason)
		return true
	}
	return false
}

// of are the deaths of one child.
func (h *health) of(child uint64) (deaths []models.Death) {
	for _, d := range h.deaths {
		if d.Child == child {
			deaths = append(deaths, d)
		}
	}
	return deaths
}

// read is a copy of a version's health; the zero health when nothing is known.
func (v *supervisor) read(of supervised) health {
	v.mu.Lock()
	defer v.mu.Unlock()
	if h := v.all[of]; h != nil {
		c := *h
		c.deaths = slices.Clone(h.deaths)
		return c
	}
	return health{}
}

// keep forgets the versions of a deployment that are not wanted any more.
func (v *supervisor) keep(k key, wanted []wanting) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for of := range v.all {
		if of.key == k && !slices.ContainsFunc(wanted, func(w wanting) bool { return of == w.supervised(k) }) {
			delete(v.all, of)
		}
	}
}

// pending are the versions that were set aside and whose deployments were not brought
// back yet.
func (v *supervisor) pending() (all []supervised) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for of, h := range v.all {
		if h.aside != "" && !h.settled {
			all = append(all, of)
		}
	}
	return all
}

// mark keeps what was done about a version that was set aside.
func (v *supervisor) mark(of supervised, done func(*health)) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if h := v.all[of]; h != nil && h.aside != "" {
		done(h)
	}
}

func settled(h *health) { h.settled = true }

// failing reports whether a version was set aside or did not load.
func (s *Deployments) failing(k key, w wanting) bool {
	_, failed := s.failure(k, w)
	return failed || s.supervisor.read(w.supervised(k)).aside != ""
}

func (w wanting) supervised(k key) supervised { return supervised{k, w.version, w.digest} }

// supervise is what the processes of a session report their deaths to. step names the
// model of a step; empty: the version's own.
func (s *core) supervise(h *health, step string) func(models.Death) bool {
	return func(d models.Death) bool { return s.died(h, step, d) }
}

// died counts a death, and reports whether another process should be started.
func (s *core) died(h *health, step string, d models.Death) (again bool) {
	v := &s.supervisor
	v.mu.Lock()
	defer v.mu.Unlock()
	if step != "" {
		d.Reason = "spec." + step + ": " + d.Reason
	}
	window := deathWindow + maxDeaths*s.cfg.LoadTime
	h.deaths = append(drop(h.deaths, func(o models.Death) bool { return d.At.Sub(o.At) > window }), d)
	h.total++
	h.step = step
	if was := h.aside != ""; h.judge() && !was {
		s.background(s.settleAside)
	}
	return h.aside == "" && !h.once && len(h.of(d.Child)) < maxDeaths
}

// background runs beside the caller until the service stops.
func (s *core) background(f func(ctx context.Context)) {
	s.scaler.mu.Lock()
	defer s.scaler.mu.Unlock()
	if !s.scaler.closed {
		s.scaler.loading.Go(func() { f(identity.With(s.scaler.life, identity.Loop("model supervisor"))) })
	}
}

// supervision brings deployments back to what was good before, when a version was set aside
// or does not load.
type supervision struct {
	*core
	rollouts *Rollouts
	actions  *AutoActions
}

// settleAside takes the versions that were set aside out of the routing tables, and brings
// their deployments back to what was good before. What fails for reasons that may pass
// is tried again by the loader's next round.
func (s *supervision) settleAside(ctx context.Context) {
	s.supervisor.settling.Lock()
	defer s.supervisor.settling.Unlock()
	for _, of := range s.supervisor.pending() {
		s.takeOut(of)
		if s.cfg.Follows { // the deployment is another server's to change
			s.supervisor.mark(of, settled)
			continue
		}
		if err := s.bringBack(ctx, of); err != nil {
			s.log.ErrorContext(ctx, "a version was set aside, but settling its deployment failed", slog.String("deployment", of.name), slog.Int64("version", of.version), slog.String("error", err.Error()))
			continue
		}
		s.supervisor.mark(of, settled)
	}
}

// takeOut removes a version from the routing table: a canary's share is the stable
// version's then.
func (s *supervision) takeOut(of supervised) {
	s.settling.Lock()
	defer s.settling.Unlock()
	t := s.table(of.key)
	if t == nil {
		return
	}
	without, dead := *t, func(x *target) bool { return x != nil && x.model.Version == of.version && x.model.Digest == of.digest }
	for _, x := range t.targets() {
		if !dead(x) {
			continue
		}
		switch x {
		case t.stable:
			without.stable = nil
		case t.canary:
			without.canary, without.share, without.rollout = nil, 0, ""
		case t.shadow:
			without.shadow = nil
		}
		s.replace(of.key, &without)
		x.leave()
	}
}

// bringBack records that a version was set aside and undoes its role in the deployment:
// a rollout is rolled back, a shadow ended, and in place of a stable version the last one
// that still loads is deployed. Error: what may pass.
func (s *supervision) bringBack(ctx context.Context, of supervised) error {
	h := s.supervisor.read(of)
	var d Deployment
	var run Rollout
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		if d, err = s.deploymentStore.One(ctx, tx, of.project, of.name); err != nil {
			return err
		}
		run, err = s.running(ctx, tx, of.project, of.name)
		return err
	})
	if fault.Is(err, fault.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	i := slices.IndexFunc(d.wants(), func(w wanting) bool { return w.supervised(of.key) == of })
	if i < 0 {
		return nil // somebody was faster
	}
	role := d.wants()[i].role
	if !h.told {
		if err := s.tellAside(ctx, d, of, role, h); err != nil {
			return err
		}
		s.supervisor.mark(of, func(h *health) { h.told = true })
	}
	reason := clip("version "+versionText(of.version)+" was "+h.aside, maxReason)
	switch role {
	case Shadow:
		_, err = s.rollouts.Shadow(ctx, of.project, of.name, "")
		return err
	case Canary:
		if run.ID == "" || run.Candidate != of.version {
			return nil
		}
		return s.actedBack(ctx, d, h.cause(role), role, reason, func() (string, error) {
			_, err := s.rollouts.Rollback(ctx, of.project, of.name, RolloutEnd{Rollout: run.ID, Reason: reason})
			return string(run.ID), err
		})
	case Stable:
		if h.step != "" { // an earlier version has the same step
			return nil
		}
		return s.actedBack(ctx, d, h.cause(role), role, reason, func() (string, error) { return s.lastGood(ctx, d, reason) })
	}
	return nil
}

// tellAside records that a version was set aside.
func (s *supervision) tellAside(ctx context.Context, d Deployment, of supervised, role Role, h health) error {
	s.log.WarnContext(ctx, "version set aside", slog.String("deployment", of.name), slog.Int64("version", of.version), slog.String("reason", h.aside))
	return s.cfg.DB.Update(ctx, of.project, func(ctx context.Context, tx *store.Tx) error {
		if err := s.audited(ctx, tx, of.project, of.name, h.aside, map[string]any{
			"act": "set_aside", "model": d.Model, "version": of.version, "digest": of.digest, "role": role, "deaths": h.deaths,
		}); err != nil {
			return err
		}
		return event.Publish(ctx, tx, of.project, EventSetAside, SetAside{
			Deployment: d.ID, Name: d.Name, Model: d.Model, Version: of.version, Digest: of.digest, Role: role, Deaths: h.deaths,
		})
	})
}

// endUnloaded rolls back the rollouts whose version has not loaded for trialTime. What
// fails is tried again in the loader's next round.
func (s *supervision) endUnloaded(ctx context.Context, all []Deployment) {
	if s.cfg.Follows { // the deployments are another server's to change
		return
	}
	for _, d := range all {
		k := key{d.Project, d.Name}
		for _, w := range d.wants() {
			f, failed := s.failure(k, w)
			if w.role != Canary || !failed || f.waits || time.Since(f.since) < trialTime {
				continue
			}
			if err := s.endOne(ctx, d, w, f); err != nil {
				s.log.ErrorContext(ctx, "a version cannot be loaded, but ending its rollout failed", slog.String("deployment", d.Name), slog.Int64("version", w.version), slog.String("error", err.Error()))
			}
		}
	}
}

func (s *supervision) endOne(ctx context.Context, d Deployment, w wanting, f failure) error {
	var run Rollout
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		run, err = s.running(ctx, tx, d.Project, d.Name)
		return err
	})
	if err != nil || run.ID == "" || run.Candidate != w.version {
		return err
	}
	reason := clip("version "+versionText(w.version)+" could not be loaded for "+trialTime.String()+", so that the rollout could not be decided: "+f.reason, maxReason)
	return s.actedBack(ctx, d, "not loaded: "+string(run.ID), Canary, reason, func() (string, error) {
		_, err := s.rollouts.Rollback(ctx, d.Project, d.Name, RolloutEnd{Rollout: run.ID, Reason: reason})
		return string(run.ID), err
	})
}

// cause names the deaths for which a version was set aside.
func (h *health) cause(role Role) string {
	return string(role) + " set aside at " + h.deaths[len(h.deaths)-1].At.Format(time.RFC3339Nano)
}

// actedBack does an automatic rollback and records it as one, once for its cause. A
// rollout is ended even where automation is off: its version answers nothing any more.
// Error: what may pass.
func (s *supervision) actedBack(ctx context.Context, d Deployment, cause string, role Role, reason string, do func() (result string, err error)) error {
	act, _, err := s.actions.Claim(ctx, AutoAction{
		Project: d.Project, Deployment: d.Name, Kind: AutoRollback, Reason: reason, Cause: clip(cause, maxCause),
	}, nil)
	if err != nil {
		return err
	}
	if act.Outcome != AutoActionClaimed && role == Stable {
		return nil
	}
	result, err := do()
	switch {
	case passing(err) && (act.Outcome != AutoActionClaimed || time.Since(act.Made) < Patience):
		s.actions.NoteHindrance(ctx, act, err)
		return err
	case act.Outcome != AutoActionClaimed:
		return nil
	case err == nil:
		return s.actions.Conclude(ctx, act.ID, AutoActionDone, "", result)
	}
	why := reason + ": " + err.Error()
	if hint := fault.HintOf(err); hint != "" {
		why += ". " + hint
	}
	return s.actions.Conclude(ctx, act.ID, AutoActionFailed, why, "")
}

// passing reports whether an error may be gone when the same is tried again.
func passing(err error) bool {
	return slices.ContainsFunc([]fault.Kind{fault.Unavailable, fault.Timeout, fault.Exhausted, fault.Internal}, func(k fault.Kind) bool { return fault.Is(err, k) })
}

// lastGood rolls a deployment back to the newest of its earlier stable versions that
// loads; the answer is that version.
func (s *supervision) lastGood(ctx context.Context, d Deployment, reason string) (result string, err error) {
	err = fault.New(fault.Conflict, "version %d has no previous stable version", d.Version).WithHint("Deploy a version that works.")
	for _, v := range slices.Backward(d.Before) {
		if v == d.Version {
			continue
		}
		if _, err = s.rollouts.Rollback(ctx, d.Project, d.Name, RolloutEnd{To: v, Reason: reason}); err == nil {
			return versionText(v), nil
		}
		if ctx.Err() != nil {
			return "", err
		}
	}
	return "", err
}
