// Package automation changes deployments without a person: it retrains after a finding, tries
// the new version as a canary, and promotes or rolls back as serving/rollout has decided. Each act
// has an event as its cause and happens once for it.
package automation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/feature/naming"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/lifecycle"
	"github.com/falaj-ml/falaj/internal/monitoring"
	"github.com/falaj-ml/falaj/internal/monitoring/label"
	"github.com/falaj-ml/falaj/internal/registry"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/rollout"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/training"
)

// reactions is everything that Falaj does to a deployment by itself, a line for
// each: on which event, what, and how long not again. The event is the cause of
// the act: an act happens once for its cause, however often the event comes. An
// automation that is off (`falaj deploy automation`) stops them all. A cool-down
// is on the clock of the records that led to the event; cool says what it holds up.
var reactions = []reaction{
	{act: serving.AutoRetrain, on: []string{monitoring.EventDrifted, monitoring.EventDegraded}, plan: (*Service).retrain}, // cool-down: the monitor's, 30 days
	{act: serving.AutoCanary, on: []string{training.JobFinished}, plan: (*Service).tryVersion, cooldown: time.Hour},
	{act: serving.AutoPromote, on: []string{label.EventConcluded}, plan: (*Service).promote, cooldown: 6 * time.Hour},
	{act: serving.AutoRollback, on: []string{label.EventConcluded}, plan: (*Service).rollBack, cooldown: 6 * time.Hour},
}

type reaction struct {
	act serving.AutoActionKind
	on  []string
	// plan says what the event asks for; nil when it asks for nothing. It changes
	// nothing: do does, and may be called again after a crash.
	plan     func(s *Service, ctx context.Context, e event.Event) (*intent, error)
	cooldown time.Duration
}

// intent is an act that is about to be claimed.
type intent struct {
	serving.AutoAction
	cooldown time.Duration // instead of the reaction's
	do       func(ctx context.Context) (reason, result string, err error)
}

// Service acts through the services of the domains. All fields are required.
type Service struct {
	DB          *store.DB // for the subscriptions
	Deployments *serving.Deployments
	Rollouts    *serving.Rollouts
	Actions     *serving.AutoActions
	Submission  *training.Submission
	Jobs        *training.Jobs
	Features    *feature.OfflineReads
	Monitoring  *monitoring.Service
	Log         *slog.Logger
}

// Subscriptions are the loops that react to events, one for each kind of act.
func (s *Service) Subscriptions() []lifecycle.Service {
	all := make([]lifecycle.Service, len(reactions))
	for i, r := range reactions {
		all[i] = event.Subscribe(s.DB, event.Config{
			Name: "reaction/" + string(r.act), Names: r.on, FromNow: true, Logger: s.Log,
			Handle: func(ctx context.Context, e event.Event) error { return s.react(ctx, r, e) },
		}).Service()
	}
	return all
}

// react claims the act, does it, and says what became of it. An act that was
// claimed and not concluded, because the process died between, is done again.
// An error brings the event again, so only what may pass is one.
func (s *Service) react(ctx context.Context, r reaction, e event.Event) error {
	ctx = identity.With(ctx, identity.Loop("reaction "+string(r.act)))
	var act serving.AutoAction
	var in *intent
	err := safely(func() (err error) {
		act, in, err = s.claim(ctx, r, e)
		return err
	})
	if err != nil && !passing(err) {
		s.Log.ErrorContext(ctx, "no reaction to an event", slog.String("act", string(r.act)), slog.String("event", e.Name),
			slog.String("position", e.Position.String()), slog.String("error", err.Error()))
		return nil
	}
	if err != nil || in == nil || act.Outcome != serving.AutoActionClaimed {
		return err
	}
	var reason, result string
	err = safely(func() (err error) {
		reason, result, err = in.do(ctx)
		return err
	})
	switch {
	case err == nil:
		return s.Actions.Conclude(ctx, act.ID, serving.AutoActionDone, reason, result)
	case errors.Is(ctx.Err(), context.Canceled): // the server stops
		return err
	case ctx.Err() == nil && passing(err) && time.Since(act.Made) < serving.Patience:
		s.Actions.NoteHindrance(ctx, act, err)
		return err
	}
	// What took all of its time would take it again, while the acts of others wait.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	s.Log.WarnContext(ctx, "automatic act failed", slog.String("act", string(act.Kind)), slog.String("deployment", act.Deployment), slog.String("error", err.Error()))
	reason = err.Error()
	if _, is := errors.AsType[defect](err); is {
		reason, _, _ = strings.Cut(reason, "\n") // the log has the stack
	}
	if hint := fault.HintOf(err); hint != "" {
		reason += ". " + hint
	}
	return s.Actions.Conclude(ctx, act.ID, serving.AutoActionFailed, reason+"; it had begun because: "+act.Why(), "")
}

// claim says what the event asks for and records that it is being done; a nil
// intent asks for nothing.
func (s *Service) claim(ctx context.Context, r reaction, e event.Event) (serving.AutoAction, *intent, error) {
	in, err := r.plan(s, ctx, e)
	if err != nil || in == nil {
		return serving.AutoAction{}, nil, err
	}
	in.Project, in.Kind, in.Cause = e.Project, r.act, e.Name+" "+e.Position.String()
	if in.cooldown == 0 {
		in.cooldown = r.cooldown
	}
	act, _, err := s.Actions.Claim(ctx, in.AutoAction, cool(r.act, in.cooldown))
	if fault.Is(err, fault.NotFound) {
		return serving.AutoAction{}, nil, nil // the deployment is gone
	}
	return act, in, err
}

// cool is what an act is kept away from. A promotion or roll-back is never held
// up itself: what is worse does not wait, and there is one for each rollout. Its
// cool-down holds up the next trial.
func cool(kind serving.AutoActionKind, own time.Duration) serving.Cooldowns {
	switch kind {
	case serving.AutoPromote, serving.AutoRollback:
		return nil
	case serving.AutoRetrain:
		return serving.Cooldowns{kind: own}
	case serving.AutoCanary:
	}
	all := serving.Cooldowns{kind: own}
	for _, r := range reactions {
		if r.act == serving.AutoPromote || r.act == serving.AutoRollback {
			all[r.act] = r.cooldown
		}
	}
	return all
}

// defect is a panic. It comes again however often it is tried.
type defect struct{ error }

// safely runs f; a panic is an error that does not pass.
func safely(f func() error) error {
	panicked := true
	err := lifecycle.Recover(func() error {
		err := f()
		panicked = false
		return err
	})
	if panicked {
		return defect{err}
	}
	return err
}

// passing reports whether an error may be gone when it is tried again: also one
// that nobody classified, such as the database's.
func passing(err error) bool {
	if _, is := errors.AsType[defect](err); is {
		return false
	}
	return slices.ContainsFunc([]fault.Kind{fault.Unavailable, fault.Timeout, fault.Exhausted, fault.Internal}, func(k fault.Kind) bool { return fault.Is(err, k) })
}

// retrain answers a finding with the training job that the monitor names, on a
// window of rows that ends where the finding's does. It acts with the rights of
// who applied the monitor, as they are now.
func (s *Service) retrain(ctx context.Context, e event.Event) (*intent, error) {
	var f monitoring.Finding
	if err := e.Decode(&f); err != nil {
		return nil, err
	}
	m, err := s.Monitoring.One(ctx, e.Project, f.Monitor)
	if fault.Is(err, fault.NotFound) || err == nil && (m.Spec.Retrain == nil || !m.Spec.Retrain.Wants(f.Kind)) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	spec := *m.Spec.Retrain
	cooldown, _ := resource.ParseDuration(spec.Cooldown) // validated
	return &intent{
		AutoAction: serving.AutoAction{Deployment: f.Deployment, At: f.At, Reason: f.Reason, Evidence: e.Body}, cooldown: cooldown,
		do: func(ctx context.Context) (string, string, error) {
			ctx = identity.With(ctx, m.By)
			p := project.Name(e.Project)
			jobs, _, err := s.Jobs.List(ctx, p, training.Filter{Name: spec.Job, Limit: 1})
			if err == nil && len(jobs) == 0 {
				err = fault.New(fault.NotFound, "no job is called %q, whose specification is to be run again", spec.Job).
					WithHint("Run it once: falaj apply -f JOB.yaml.")
			}
			if err != nil {
				return "", "", err
			}
			from, to := spec.Span(f.At)
			set, err := s.Features.MakeTrainingSet(ctx, feature.TrainingSetRequest{
				Project: p, Name: spec.TrainingSet, Timestamp: spec.Timestamp, Labels: labels(spec.Label),
				Description: fmt.Sprintf("Created by monitor %s: %s", m.Name, f.Reason),
				Spine:       feature.Source{SQL: spec.SQL(from, to)},
				Selection:   feature.Selection{Service: spec.Service, FullNames: s.fullNames(ctx, p, spec.TrainingSet)},
			})
			if fault.Is(err, fault.Timeout) || fault.Is(err, fault.Exhausted) { // it would be too much the next time, too
				err = fault.New(fault.Conflict, "%w", err).WithHint("%s", fault.HintOf(err))
			}
			if err != nil {
				return "", "", fault.Wrap(err, "make training set %s", spec.TrainingSet)
			}
			job := jobs[0].Spec
			if job.Data == nil {
				job.Data = map[string]string{}
			}
			job.Data[spec.Data] = set.Dataset
			if job.Trains == "" { // the monitor says which input has the rows that are trained on
				job.Trains = spec.Data
			}
			made, _, err := s.Submission.Apply(ctx, p, spec.Job, job)
			if err != nil {
				return "", "", fault.Wrap(err, "submit job %s", spec.Job)
			}
			return fmt.Sprintf("%s; trains on %s, %d rows from %s to %s", f.Reason, set.Dataset, set.Rows,
				from.Format(time.DateOnly), to.Format(time.DateOnly)), string(made.ID), nil
		},
	}, nil
}

func labels(name string) []string {
	if name == "" {
		return nil
	}
	return []string{name}
}

// fullNames reports whether the columns of the training set so far are named
// view__feature, as the job expects them again.
func (s *Service) fullNames(ctx context.Context, p project.Name, set string) bool {
	last, err := s.Features.TrainingSet(ctx, p, set)
	if err != nil || len(last.Views) == 0 || len(last.Views[0].Features) == 0 {
		return true
	}
	u := last.Views[0].Features[0]
	return u.Column == naming.FullColumn(last.Views[0].View+":"+u.Feature)
}

// tryVersion answers the end of a job that a finding began: the version it
// registered becomes the canary, with the rights of who applied the monitor. Who
// may not try versions cannot have one tried by a monitor either.
func (s *Service) tryVersion(ctx context.Context, e event.Event) (*intent, error) {
	var j training.Event
	if err := e.Decode(&j); err != nil {
		return nil, err
	}
	began, err := s.Actions.WithResult(ctx, e.Project, serving.AutoRetrain, string(j.Job))
	if fault.Is(err, fault.NotFound) {
		return nil, s.beginning(ctx, e.Project)
	}
	if err != nil {
		return nil, err
	}
	evidence, err := json.Marshal(map[string]any{"job": j, "act": began.ID})
	if err != nil {
		return nil, err
	}
	why := fmt.Sprintf("%s %s", j.Job, j.State)
	if j.Model != "" {
		why = fmt.Sprintf("%s registered %s", j.Job, j.Model)
	}
	at, err := s.triedAt(ctx, e.Project, began)
	if err != nil {
		return nil, err
	}
	return &intent{
		AutoAction: serving.AutoAction{Deployment: began.Deployment, At: at, Reason: why, Evidence: evidence},
		do: func(ctx context.Context) (string, string, error) {
			model, version, registered := registry.SplitRef(j.Model)
			switch {
			case j.State != training.Succeeded:
				return "", "", fault.New(fault.Conflict, "job %s %s: %s", j.Job, j.State, j.Reason).WithHint("See `falaj job logs %s`.", j.Job)
			case !registered:
				return "", "", fault.New(fault.Conflict, "job %s registered no model", j.Job).WithHint("Set register: NAME, and write model/ to its output.")
			}
			d, err := s.Deployments.One(ctx, e.Project, began.Deployment)
			if err != nil {
				return "", "", err
			}
			if d.Model != model {
				return "", "", fault.New(fault.Conflict, "job %s registered %s, but %s serves %s", j.Job, j.Model, d.Name, d.Model)
			}
			var f monitoring.Finding
			if err := json.Unmarshal(began.Evidence, &f); err != nil {
				return "", "", err
			}
			m, err := s.Monitoring.One(ctx, e.Project, f.Monitor)
			if err != nil {
				return "", "", err
			}
			ctx = identity.With(ctx, m.By)
			cause := string(began.ID)
			r, err := s.Rollouts.Start(ctx, e.Project, began.Deployment, serving.RolloutRequest{Version: version, Cause: cause})
			if fault.Is(err, fault.Conflict) { // perhaps begun before a crash
				all, lerr := s.Rollouts.List(ctx, e.Project, began.Deployment)
				if i := slices.IndexFunc(all, func(r serving.Rollout) bool { return r.Cause == cause }); lerr == nil && i >= 0 {
					r, err = all[i], nil
				}
			}
			if err != nil {
				return "", "", err
			}
			return fmt.Sprintf("%s registered %s; it serves %d %% of the requests", j.Job, j.Model, r.Weight), string(r.ID), nil
		},
	}, nil
}

// triedAt is now, on the clock of the records that led to a retraining. Its window ended
// before: a rollout that ended after the window, and hours before the job, would seem to
// have ended just now, and its cool-down would keep the new version from ever being tried.
func (s *Service) triedAt(ctx context.Context, p string, began serving.AutoAction) (time.Time, error) {
	var f monitoring.Finding
	if !json.Valid(began.Evidence) { // the act says so when it is done
		return began.At, nil
	}
	if err := json.Unmarshal(began.Evidence, &f); err != nil {
		return time.Time{}, err
	}
	m, err := s.Monitoring.One(ctx, p, f.Monitor)
	if err != nil && !fault.Is(err, fault.NotFound) {
		return time.Time{}, err
	}
	return nowOf(f, m.Status, began.At, time.Now()), nil
}

// nowOf is now, on the clock of a finding's records: the wall's of live requests, and the
// newest record's of a replay; never before the finding.
func nowOf(f monitoring.Finding, seen monitoring.Status, found, wall time.Time) time.Time {
	now := wall
	if f.Replay {
		now = found
		if seen.Replayed != nil {
			now = *seen.Replayed
		}
	}
	if now.Before(found) {
		return found
	}
	return now
}

// beginning refuses for now to say that nobody asked for a job, while a
// retraining of the project has been claimed and does not know its job yet.
func (s *Service) beginning(ctx context.Context, p string) error {
	open, err := s.Actions.Claimed(ctx)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(open, func(act serving.AutoAction) bool {
		return act.Project == p && act.Kind == serving.AutoRetrain && time.Since(act.Made) < serving.Patience
	}) {
		return fault.New(fault.Unavailable, "a retraining is starting, and the job may belong to it")
	}
	return nil
}

func (s *Service) promote(_ context.Context, e event.Event) (*intent, error) {
	return s.conclude(e, rollout.Promote, func(ctx context.Context, name string, end serving.RolloutEnd) (string, error) {
		r, err := s.Rollouts.Promote(ctx, e.Project, name, end)
		return fmt.Sprintf("version %d", r.Candidate), err
	})
}

func (s *Service) rollBack(_ context.Context, e event.Event) (*intent, error) {
	return s.conclude(e, rollout.Rollback, func(ctx context.Context, name string, end serving.RolloutEnd) (string, error) {
		end.Unless = serving.Promoted // by a person, meanwhile
		d, err := s.Rollouts.Rollback(ctx, e.Project, name, end)
		return fmt.Sprintf("version %d", d.Version), err
	})
}

// conclude ends the rollout that was decided.
func (s *Service) conclude(e event.Event, outcome rollout.Outcome, end func(context.Context, string, serving.RolloutEnd) (string, error)) (*intent, error) {
	var c label.Concluded
	if err := e.Decode(&c); err != nil || c.Outcome != outcome {
		return nil, err
	}
	return &intent{
		AutoAction: serving.AutoAction{Deployment: c.Deployment, At: c.At, Reason: c.Reason, Evidence: c.Evidence},
		do: func(ctx context.Context) (string, string, error) {
			result, err := end(ctx, c.Deployment, serving.RolloutEnd{Rollout: serving.RolloutID(c.Rollout), Reason: c.Reason, Evidence: c.Evidence})
			return c.Reason, result, err
		},
	}, nil
}
