package label

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"log/slog"
	"time"

	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/serving/prediction"
	"github.com/falaj-ml/falaj/internal/serving/rollout"
	"github.com/falaj-ml/falaj/internal/store"
)

// Rollouts says which trials run, of all projects.
type Rollouts interface {
	Running(ctx context.Context) ([]Rollout, error)
	// Began notes the time of a rollout's first record. Only the first call for a
	// rollout changes anything.
	Began(ctx context.Context, project, rollout string, at time.Time) error
}

// Bounds of the judge.
const (
	leaseTime = 15 * time.Second
	maxStep   = 20_000      // records, and pairs, between two writes
	keepEvery = time.Minute // at least, while nothing but the reason's words changes
)

// Judge follows every running rollout. RunOnce is its loop's; two judges on one
// database do not disturb each other: one holds the lease, which fences its
// writes, and each write replaces exactly the one that it continues.
type Judge struct {
	s        *Service
	rollouts Rollouts
}

// NewJudge makes a judge over the labels of a service.
func NewJudge(s *Service, r Rollouts) *Judge { return &Judge{s: s, rollouts: r} }

// RunOnce brings the judgement of each running rollout up to what is known now.
// While another process does it, nothing happens.
func (j *Judge) RunOnce(ctx context.Context) error {
	running, err := j.rollouts.Running(ctx)
	if err != nil || len(running) == 0 {
		return err
	}
	if !j.s.cfg.DB.Shared() {
		return j.judgeAll(ctx, running, nil)
	}
	lease, err := j.s.cfg.DB.Lease(ctx, "label.judge", rand.Text()[:8], leaseTime)
	if fault.Is(err, fault.Conflict) {
		return nil
	}
	if err != nil {
		return err
	}
	return lease.Keep(ctx, func(ctx context.Context) error { return j.judgeAll(ctx, running, lease) })
}

func (j *Judge) judgeAll(ctx context.Context, running []Rollout, lease *store.Lease) error {
	var errs []error
	for _, r := range running {
		err := j.judge(ctx, r, lease)
		if err != nil && ctx.Err() == nil {
			j.trouble(ctx, r, lease, err)
		}
		if fault.Is(err, fault.Gone) { // its records cannot be read by anybody any more
			j.s.cfg.Logger.WarnContext(ctx, "evaluating a rollout failed", slog.String("rollout", r.ID), slog.Any("error", err))
			continue
		}
		if err != nil {
			errs = append(errs, fault.Wrap(err, "evaluating rollout %s", r.ID))
		}
	}
	return errors.Join(errs...)
}

// work is a judgement in memory.
type work struct {
	r     Rollout
	kept  Judgement
	tally *tally
	log   prediction.Cursor
	// troubled says that the judgement, as it is kept, tells of a problem that is gone.
	troubled bool
}

// judge continues one judgement, in steps that commit.
func (j *Judge) judge(ctx context.Context, r Rollout, lease *store.Lease) error {
	w, err := j.load(ctx, r)
	if err != nil || w.kept.Final {
		return err
	}
	for {
		more, err := j.step(ctx, w, lease)
		if err != nil {
			return err
		}
		if first := w.tally.First; !first.IsZero() && w.r.StartedAt.IsZero() {
			if err := j.rollouts.Began(ctx, r.Project, r.ID, first); err != nil {
				return err
			}
			w.r.StartedAt = first
		}
		if !more || w.kept.Final {
			return nil
		}
	}
}

// load reads what was judged before, or begins where the rollout did.
func (j *Judge) load(ctx context.Context, r Rollout) (*work, error) {
	w := &work{r: r}
	p := Place{Project: r.Project, Deployment: r.Deployment}
	before := int64(0)
	err := j.s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		if w.kept, err = j.s.cfg.Store.Judgement(ctx, tx, r.ID); err != nil || w.kept.Revision > 0 {
			return err
		}
		before, err = j.s.cfg.Store.Before(ctx, tx, p, r.Started)
		return err
	})
	if err != nil || w.kept.Final {
		return w, err
	}
	if w.kept.Revision == 0 {
		w.kept = Judgement{Rollout: r.ID, Place: p, Labels: before, Made: j.s.cfg.Now()}
		w.tally = newTally()
		w.log, err = j.s.cfg.Predictions.Since(ctx, r.Project, r.Deployment, r.Started)
		return w, err
	}
	if w.log, err = prediction.ParseCursor(w.kept.Log); err != nil {
		return w, err
	}
	if w.tally, err = decodeTally(w.kept.Tally); err != nil {
		return w, err
	}
	w.troubled, w.tally.Problem = w.tally.Problem != "", ""
	return w, nil
}

// trouble keeps why a rollout could not be judged, for its status. A judgement that
// another process has continued meanwhile is left as it is.
func (j *Judge) trouble(ctx context.Context, r Rollout, lease *store.Lease, cause error) {
	if fault.Is(cause, fault.Conflict) {
		return
	}
	p := Place{Project: r.Project, Deployment: r.Deployment}
	err := j.s.cfg.DB.Update(ctx, r.Project, func(ctx context.Context, tx *store.Tx) error {
		if lease != nil {
			if err := lease.Fence(ctx, tx); err != nil {
				return err
			}
		}
		kept, err := j.s.cfg.Store.Judgement(ctx, tx, r.ID)
		if err != nil || kept.Final {
			return err
		}
		t := newTally()
		if kept.Revision > 0 {
			if t, err = decodeTally(kept.Tally); err != nil {
				return err
			}
		} else { // it begins before the rollout's first record, wherever that is
			kept = Judgement{Rollout: r.ID, Place: p, Made: j.s.cfg.Now()}
			if kept.Labels, err = j.s.cfg.Store.Before(ctx, tx, p, r.Started); err != nil {
				return err
			}
		}
		if t.Problem == cause.Error() {
			return nil
		}
		t.Problem = cause.Error()
		if kept.Tally, err = t.encode(); err != nil {
			return err
		}
		kept.Revision, kept.Updated = kept.Revision+1, j.s.cfg.Now()
		return j.s.cfg.Store.PutJudgement(ctx, tx, kept)
	})
	if err != nil && !fault.Is(err, fault.Conflict) {
		j.s.cfg.Logger.ErrorContext(ctx, "the reason why a rollout is not evaluated was not stored", slog.String("rollout", r.ID), slog.Any("error", err))
	}
}

var errEnough = errors.New("enough for now")

// step takes in more records and labels, looks, and commits. more says that
// there may be more to take in.
func (j *Judge) step(ctx context.Context, w *work, lease *store.Lease) (more bool, err error) {
	t, r := w.tally, w.r
	before, outcome, reason := w.log, t.Decision.Outcome, t.Decision.Reason

	// 1. What was asked and answered.
	n := 0
	err = j.s.cfg.Predictions.Read(ctx, r.Project, r.Deployment, w.log, func(c prediction.Cursor, rec *prediction.Record) error {
		if n == maxStep {
			return errEnough
		}
		n++
		t.record(r, rec)
		w.log = c
		return nil
	})
	if errors.Is(err, errEnough) {
		more, err = true, nil
	}
	if err != nil {
		return false, err
	}

	// 2. What turned out to be true, with a look after every few labels.
	now := j.s.cfg.Now()
	pairs, decided := 0, false
	labels := w.kept.Labels
	if !more { // labels are of records that were seen
		labels, err = j.s.Pairs(ctx, r.Project, r.Deployment, labels, func(p Pair) error {
			if pairs == maxStep || decided {
				return errEnough
			}
			pairs++
			t.pair(r, p)
			if t.labels()/lookEvery > t.Looked/lookEvery {
				t.look(r, now, true)
				decided = t.Decision.Final()
			}
			return nil
		})
		if errors.Is(err, errEnough) {
			more, err = !decided, nil
		}
		if err != nil {
			return false, err
		}
	}

	// 3. Look, and keep.
	o := t.look(r, now, more)
	same := t.Decision.Outcome == outcome && (t.Decision.Reason == reason || now.Sub(w.kept.Updated) < keepEvery)
	if w.kept.Revision > 0 && w.log == before && labels == w.kept.Labels && same && !w.troubled {
		return more, nil // nothing is new
	}
	w.kept.Labels, w.kept.Log = labels, w.log.String()
	return more, j.keep(ctx, w, o, lease)
}

// keep commits a judgement, and its conclusion if it is one.
func (j *Judge) keep(ctx context.Context, w *work, o rollout.Observations, lease *store.Lease) error {
	b, err := w.tally.encode()
	if err != nil {
		return err
	}
	next := w.kept
	next.Tally, next.Revision, next.Updated = b, w.kept.Revision+1, j.s.cfg.Now()
	d := w.tally.Decision
	next.Final = d.Final()
	evidence, err := json.Marshal(Evidence{Observations: o, Decision: d, Labels: w.tally.labels()})
	if err != nil {
		return err
	}
	err = j.s.cfg.DB.Update(ctx, w.r.Project, func(ctx context.Context, tx *store.Tx) error {
		if lease != nil {
			if err := lease.Fence(ctx, tx); err != nil {
				return err
			}
		}
		if err := j.s.cfg.Store.PutJudgement(ctx, tx, next); err != nil {
			return err
		}
		if !next.Final {
			return nil
		}
		c := Concluded{
			Deployment: w.r.Deployment, Rollout: w.r.ID, Outcome: d.Outcome, Reason: d.Reason, Evidence: evidence,
			At: w.tally.at(next.Updated).UTC(),
		}
		if err := audit.Append(ctx, tx, audit.Entry{
			Project: w.r.Project, Action: EventConcluded, Object: "deployment " + w.r.Deployment,
			Detail: map[string]any{"rollout": w.r.ID, "outcome": d.Outcome, "reason": d.Reason, "evidence": json.RawMessage(evidence), "at": c.At},
		}); err != nil {
			return err
		}
		return event.Publish(ctx, tx, w.r.Project, EventConcluded, c)
	})
	if err == nil {
		w.kept, w.troubled = next, false
	}
	return err
}

// Progress is how a rollout goes.
type Progress struct {
	Rollout   string           `json:"rollout"`
	Stable    rollout.Arm      `json:"stable"`
	Candidate rollout.Arm      `json:"candidate"`
	Decision  rollout.Decision `json:"decision"`
	Concluded bool             `json:"concluded"`
	// Trajectory has the interval as labels came, at most 500 points.
	Trajectory []Point `json:"trajectory"`
	Labels     int64   `json:"labels"`
	// Waiting counts labels of requests that are younger than the spec's label_delay.
	Waiting int64 `json:"waiting,omitempty"`
	// Unjudged counts labels that the metric has no loss for.
	Unjudged  int64         `json:"unjudged,omitempty"`
	StartedAt time.Time     `json:"started_at,omitzero"` // of the first record, on the clock of the records
	Newest    time.Time     `json:"newest,omitzero"`     // of its newest record of a replay
	Elapsed   time.Duration `json:"elapsed"`
	UpdatedAt time.Time     `json:"updated_at"`
	// Problem is why the rollout cannot be judged at the moment.
	Problem string `json:"problem,omitempty"`
}

// Progress is how the newest rollout of a deployment goes, or went. Needs
// deployment.read. Error: fault.NotFound when none was judged.
func (s *Service) Progress(ctx context.Context, project, deployment string) (Progress, error) {
	p := Place{Project: project, Deployment: deployment}
	if err := s.cfg.Authorizer.Allow(ctx, actionRead, object(p, Facts{})); err != nil {
		return Progress{}, err
	}
	var kept Judgement
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		kept, err = s.cfg.Store.Newest(ctx, tx, p)
		return err
	})
	if err != nil {
		return Progress{}, err
	}
	if kept.Revision == 0 {
		return Progress{}, fault.New(fault.NotFound, "no rollout of deployment %q was evaluated", deployment).
			WithHint("Start a rollout with `falaj deploy canary %s`.", deployment)
	}
	t, err := decodeTally(kept.Tally)
	if err != nil {
		return Progress{}, err
	}
	if t.Trajectory == nil {
		t.Trajectory = []Point{}
	}
	return Progress{
		Rollout: kept.Rollout, Stable: t.Observed.Stable, Candidate: t.Observed.Candidate, Elapsed: t.Observed.Elapsed,
		Decision: t.Decision, Concluded: kept.Final, Trajectory: t.Trajectory, Labels: t.labels(), Waiting: t.waits(), Unjudged: t.Unjudged,
		StartedAt: t.First, Newest: t.Newest, UpdatedAt: kept.Updated, Problem: t.Problem,
	}, nil
}
