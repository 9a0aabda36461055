package serving

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/falaj-ml/falaj/internal/serving/chain"
	"github.com/falaj-ml/falaj/internal/store"
)

// Status is what a deployment does, and what was done to it.
type Status struct {
	Deployment Deployment   `json:"deployment"`
	Versions   []Counted    `json:"versions"` // those in use, and those that answered since the server started
	Since      time.Time    `json:"since"`    // from when on requests are counted
	Rollout    *Rollout     `json:"rollout,omitempty"`
	History    []Rollout    `json:"history"` // newest first, the one that runs among them
	Acts       []AutoAction `json:"acts"`    // newest first
	Automation Automation   `json:"automation"`
	// Waiting says what is waited for before the rollout that runs, or an automatic act,
	// can end, each with what ends the wait; empty when nothing but requests and labels.
	Waiting []string `json:"waiting"`
	// Lost answers were given and could not be remembered; Unshadowed requests
	// found the shadow busy.
	Lost       int64 `json:"lost"`
	Unshadowed int64 `json:"unshadowed"`
}

// Counted is what a version answered since the server started. The latencies are
// at most an eighth too high.
type Counted struct {
	Target
	Requests int64         `json:"requests"`
	Failures int64         `json:"failures"`
	P50      time.Duration `json:"p50_ns"`
	P99      time.Duration `json:"p99_ns"`

	Steps []chain.Count `json:"steps,omitempty"` // since they were loaded, the model itself among them
}

// Status tells how a deployment is.
func (s *Deployments) Status(ctx context.Context, project, name string) (Status, error) {
	if err := s.cfg.Authz.Allow(ctx, actionRead, object(project, name)); err != nil {
		return Status{}, err
	}
	out := Status{Since: s.since}
	var claimed []AutoAction
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		if out.Deployment, err = s.deploymentStore.One(ctx, tx, project, name); err != nil {
			return err
		}
		if out.History, err = s.rolloutStore.Rollouts(ctx, tx, project, name, maxShown); err != nil {
			return err
		}
		if out.Acts, err = s.actionStore.Actions(ctx, tx, project, name, maxShown); err != nil {
			return err
		}
		if out.Automation, err = s.automation(ctx, tx, out.Deployment); err != nil {
			return err
		}
		claimed, err = s.actionStore.ClaimedActions(ctx, tx)
		return err
	})
	if err != nil {
		return Status{}, err
	}
	out.Deployment = s.withState(out.Deployment)
	if len(out.History) > 0 && out.History[0].State == Running {
		out.Rollout = &out.History[0]
	}
	k := key{project, name}
	out.Waiting = append(s.waiting(k, out), behind(k, claimed)...)
	out.Lost, out.Unshadowed = s.lost.count(k), s.shadows.count(k)
	out.Versions = s.counted(k, out.Deployment.Targets)
	return out, nil
}

// waiting is what a deployment waits for, beside requests and labels, in words.
func (s *Deployments) waiting(k key, st Status) []string {
	out := []string{}
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	for _, a := range st.Acts {
		if a.Outcome == AutoActionClaimed {
			say("the automatic %s of %s is in progress since %s, and fails when it cannot be completed within %s: %s",
				a.Kind, k.name, a.Made.UTC().Format(time.RFC3339), Patience, a.Reason)
		}
	}
	run := st.Rollout
	if run == nil {
		return out
	}
	for _, w := range st.Deployment.wants() {
		if w.role != Canary || s.table(k).holding(w) != nil {
			continue
		}
		f, failed := s.failure(k, w)
		switch {
		case failed && f.waits:
			say("version %d is unavailable: it waits for its environment: %s", w.version, f.reason)
		case failed:
			say("version %d is unavailable, because loading fails: %s; it is retried at %s, and rolled back when it has not loaded by %s",
				w.version, f.reason, f.retry.UTC().Format(time.RFC3339), f.since.Add(trialTime).UTC().Format(time.RFC3339))
		case st.Deployment.Spec.scalesToZero():
			say("version %d is scaled to zero; the next request loads it", w.version)
		default:
			say("version %d is unavailable: it is loading", w.version)
		}
	}
	for _, a := range st.Acts { // newest first
		if a.Kind != AutoPromote && a.Kind != AutoRollback || a.Made.Before(run.Started) {
			continue
		}
		if a.Outcome == AutoActionFailed || a.Outcome == AutoActionSkipped {
			say("the automatic %s was %s, and is not retried; end the rollout with `falaj deploy promote %s` or `falaj deploy rollback %s`: %s",
				a.Kind, a.Outcome, k.name, k.name, a.Reason)
		}
		break
	}
	return out
}

// behind says which automatic acts of a deployment would wait at the moment for that of
// another one: those of a kind are done one after the other. What the other is, and why
// it is not done, is for who may read it.
func behind(k key, claimed []AutoAction) (out []string) {
	for _, kind := range autoActionKinds {
		i := slices.IndexFunc(claimed, func(a AutoAction) bool {
			return a.Kind == kind && (key{a.Project, a.Deployment}) != k && a.Reason != a.Why()
		})
		if i >= 0 {
			out = append(out, fmt.Sprintf("an automatic %s would wait for that of another deployment, which is retried until %s at the latest",
				kind, claimed[i].Made.Add(Patience).UTC().Format(time.RFC3339)))
		}
	}
	return out
}

// counted adds the counters to the targets, and the versions that answer no more.
func (s *Deployments) counted(k key, targets []Target) []Counted {
	s.mu.Lock()
	tallies := map[int64]*tally{}
	for t, n := range s.tallies {
		if t.key == k && n.requests.Load() > 0 {
			tallies[t.version] = n
		}
	}
	s.mu.Unlock()
	steps := map[int64][]chain.Count{}
	for _, x := range s.table(k).targets() {
		if x.chain != nil {
			steps[x.model.Version] = x.chain.Counts()
		}
	}
	out := make([]Counted, 0, len(targets))
	for _, t := range targets {
		c := Counted{Target: t}
		c.count(tallies[t.Version])
		c.Steps = steps[t.Version]
		delete(tallies, t.Version)
		out = append(out, c)
	}
	rest := make([]int64, 0, len(tallies))
	for v := range tallies {
		rest = append(rest, v)
	}
	slices.Sort(rest)
	for _, v := range rest {
		c := Counted{Target: Target{Version: v}}
		c.count(tallies[v])
		out = append(out, c)
	}
	return out
}

func (c *Counted) count(t *tally) {
	if t == nil {
		return
	}
	c.Requests, c.Failures, c.P50, c.P99 = t.requests.Load(), t.failures.Load(), t.quantile(0.5), t.quantile(0.99)
}

// withState adds what this process holds.
func (s *core) withState(d Deployment) Deployment {
	k := key{d.Project, d.Name}
	t := s.table(k)
	if t != nil && t.deployment.ID != d.ID {
		t = nil
	}
	d.Targets = nil
	answers := 100
	for _, w := range d.wants() {
		x := Target{Role: w.role, Version: w.version, State: Loading}
		if f, ok := s.failure(k, w); ok {
			x.State, x.Reason = Failed, f.reason
			if f.waits {
				x.State = Loading
			}
		}
		health := s.supervisor.read(w.supervised(k))
		if x.Restarts = health.total; len(health.deaths) > 0 {
			x.LastDeath = &health.deaths[len(health.deaths)-1]
		}
		loaded := t.holding(w)
		if health.aside != "" {
			x.State, x.Reason = Failed, health.aside
		} else if loaded != nil {
			x.State, x.Reason = Ready, ""
			if err := loaded.unavailable(); err != nil {
				x.State, x.Reason = Failed, err.Error()
			}
		}
		if loaded != nil {
			x.Batching, x.Unbatched = loaded.batches()
			x.Environment, x.Remote, x.Zone = loaded.environment, loaded.how.runtime.Remote.Name, loaded.zone
		}
		if w.role == Canary && loaded != nil {
			x.Weight = int(t.share * 100 / buckets)
			answers -= x.Weight
		}
		if asleep := s.scaleState(k, t, w, loaded, &x); asleep && w.role == Canary {
			trial, _ := d.trialOf(Canary)
			x.Weight = trial.Weight
			answers -= x.Weight
		}
		d.Targets = append(d.Targets, x)
	}
	d.State, d.Reason, d.Replicas = d.Targets[0].State, d.Targets[0].Reason, d.Targets[0].Replicas
	if t.holding(d.wants()[0]) != nil || d.State == Ready {
		d.Targets[0].Weight = answers
	}
	return d
}
