package sweep

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/training"
	"github.com/falaj-ml/falaj/internal/tuning"
	"github.com/falaj-ml/falaj/internal/tuning/space"
	"github.com/falaj-ml/falaj/internal/tuning/stop"
	"github.com/falaj-ml/falaj/internal/tuning/trial"
)

// maxReports is how many steps are kept of a trial; of later ones only those that it has
// logged before are kept anew.
const maxReports = 10_000

// roundTime bounds what one sweep takes of a round.
const roundTime = time.Minute

// RunOnce sees to each sweep that is under way: it takes what its jobs reported and how
// they ended, stops trials, begins others, and ends the sweep. What one sweep meets does
// not keep the others waiting.
func (s *Service) RunOnce(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx = identity.With(ctx, identity.Loop("sweeps"))
	if elected, err := s.elected(ctx); err != nil || !elected {
		return err
	}
	var all []Sweep
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		all, err = s.cfg.Store.UnderWay(ctx, tx)
		return err
	})
	if err != nil {
		return err
	}
	going := map[string]bool{}
	for _, w := range all {
		key := string(w.Project) + "/" + w.Name
		going[key] = true
		if elected, err := s.elected(ctx); err != nil || !elected { // many sweeps take long
			return err
		}
		err := s.round(ctx, w)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil || fault.Is(err, fault.Conflict): // changed by somebody: the next round sees how
			delete(s.told, key)
		case s.told[key] != err.Error(): // once, not every second
			s.told[key] = err.Error()
			s.log.ErrorContext(ctx, "a sweep does not go on", slog.String("project", string(w.Project)), slog.String("sweep", w.Name), slog.Any("error", err))
		}
	}
	for key := range s.told {
		if !going[key] {
			delete(s.told, key)
		}
	}
	for key := range s.calm {
		if !going[key] {
			delete(s.calm, key)
		}
	}
	return nil
}

// leaseTime is how long others wait for a process that vanished.
const leaseTime = 30 * time.Second

// elected takes or renews the lease, and forgets what this process knows without it.
func (s *Service) elected(ctx context.Context) (bool, error) {
	if !s.cfg.DB.Shared() || s.lease != nil && s.now().Sub(s.renewed) < leaseTime/3 {
		return true, nil
	}
	var err error
	if s.lease != nil {
		if err = s.lease.Renew(ctx); err != nil {
			s.lease = nil
			return false, err
		}
	} else if s.lease, err = s.cfg.DB.Lease(ctx, "tuning.sweeps", rand.Text()[:8], leaseTime); err != nil {
		s.lease = nil
		if fault.Is(err, fault.Conflict) {
			err = nil // another process sees to them
		}
		return false, err
	} else {
		clear(s.heard)
		clear(s.calm)
	}
	s.renewed = s.now()
	return true, nil
}

// Release gives the lease back, so that another process takes over at once.
func (s *Service) Release(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	lease := s.lease
	if s.lease = nil; lease == nil {
		return nil
	}
	return lease.Release(ctx)
}

func (s *Service) fence(ctx context.Context, tx *store.Tx) error {
	if s.lease == nil {
		return nil
	}
	return s.lease.Fence(ctx, tx)
}

// news is what a job of a trial has come to.
type news struct {
	task    Task
	job     training.Job
	missing bool
	points  []Point // of the watched metric; nil where there is nothing new
	fresh   []int64 // steps among them that were not known, or otherwise
	values  []float64
	failure string // why an ended job has no values
	heard   heard
}

// calm is for how long a sweep is left alone of whose jobs there is nothing new: time and
// money may be spent meanwhile, and trials may be silent for too long.
const calm = 5 * time.Second

func (s *Service) round(ctx context.Context, w Sweep) error {
	ctx, cancel := context.WithTimeout(ctx, roundTime)
	defer cancel()
	var open []Task
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		open, err = s.cfg.Store.Tasks(ctx, tx, w.Project, w.Study, true)
		return err
	})
	if err != nil {
		return err
	}

	// 1. What the jobs have come to.
	all := make([]news, len(open))
	fresh := false
	for i, t := range open {
		if all[i], err = s.look(ctx, w, t); err != nil {
			return fault.Wrap(err, "trial %d", t.Number)
		}
		fresh = fresh || all[i].missing || all[i].points != nil || all[i].job.State.Ended()
	}
	key := string(w.Project) + "/" + w.Name
	if last := s.calm[key]; !fresh && last.revision == w.Revision && s.now().Sub(last.at) < calm {
		return nil
	}
	var money float64
	if w.Spec.Budget.Money > 0 {
		if money, err = s.spent(ctx, w); err != nil {
			return err
		}
	}

	// 2. That, and what is to be done next, in one transaction.
	var do todo
	err = s.cfg.DB.Update(ctx, string(w.Project), func(ctx context.Context, tx *store.Tx) (err error) {
		do, err = s.step(ctx, tx, w, all, money)
		return err
	})
	if w.Stop == "" && slices.ContainsFunc([]fault.Kind{fault.Invalid, fault.TooLarge, fault.Unsupported}, func(k fault.Kind) bool { return fault.Is(err, k) }) {
		return s.broken(ctx, w, "it cannot go on: "+err.Error(), fault.HintOf(err)) // waiting will not mend it
	}
	if err != nil {
		return err
	}

	// 3. What the transaction decided. A crash amid it is made up for by the next round,
	// which finds a trial without a job, and a job that runs without need.
	var failed []error
	for _, n := range all {
		if s.heard[n.task.Job] = n.heard; n.missing || n.job.State.Ended() {
			delete(s.heard, n.task.Job)
		}
	}
	for _, job := range do.cancel {
		if _, err := s.cfg.Jobs.Cancel(ctx, w.Project, job); err != nil && !fault.Is(err, fault.Conflict) && !fault.Is(err, fault.NotFound) {
			failed = append(failed, err)
		}
	}
	for _, t := range do.submit {
		if err := s.submit(ctx, w, t); err != nil {
			failed = append(failed, err)
			break // the others would not fare better
		}
	}
	if len(failed) == 0 && do.revision == w.Revision && len(do.submit) == 0 {
		s.calm[key] = rest{w.Revision, s.now()}
	}
	return errors.Join(failed...)
}

// todo is what is to be done once a transaction is kept.
type todo struct {
	cancel   []training.JobID
	submit   []Task
	revision int64 // of the sweep
}

// step records what the jobs of a sweep have come to, and what is to be done next.
func (s *Service) step(ctx context.Context, tx *store.Tx, w Sweep, all []news, money float64) (do todo, err error) {
	if err := s.fence(ctx, tx); err != nil {
		return do, err
	}
	now, err := s.cfg.Store.Sweep(ctx, tx, w.Project, w.Name)
	if err != nil {
		return do, err
	}
	if now.Revision != w.Revision {
		return do, fault.New(fault.Conflict, "sweep %s was changed meanwhile", w.Name)
	}
	l := look{
		spec: w.Spec, seed: w.Spec.Search.Seed, stop: w.Stop, ends: w.Ends, forgiven: w.Forgiven, open: map[int]bool{}, fresh: map[int][]int64{}, now: s.now(),
		spent: stop.Spent{Time: w.under(s.now()), Money: money},
	}
	tasks := map[int]Task{}
	for _, n := range all {
		if err := s.take(ctx, tx, w, &n); err != nil {
			return do, fault.Wrap(err, "trial %d", n.task.Number)
		}
		tasks[n.task.Number] = n.task
		slices.Sort(n.fresh)
		l.fresh[n.task.Number] = slices.Compact(n.fresh)
		if !n.task.Done {
			l.open[n.task.Number] = true
		}
	}
	kept, err := s.all(ctx, tx, w.Project, w.Study)
	if err != nil {
		return do, err
	}
	for _, t := range kept {
		as := seen(w, t)
		if as.State == trial.Failed && as.Number >= w.Forgiven {
			l.spent.Failed++
		}
		l.trials = append(l.trials, as)
	}
	l.spent.Trials = len(kept)
	for _, n := range all {
		t := &l.trials[n.task.Number]
		// Who waits, for the first time or again, cannot report.
		if t.Started = n.heard.at; n.job.State != training.Running {
			t.Started = time.Time{}
		}
		switch {
		case t.State != trial.Running && l.open[t.Number] && !n.missing:
			do.cancel = append(do.cancel, n.task.Job)
		case t.State == trial.Running && n.missing && w.Stop == "":
			do.submit = append(do.submit, n.task)
		}
	}
	if w.Stop == "" {
		if l.warm, _, err = s.warm(identity.With(ctx, w.By), tx, w, nil); err != nil {
			return do, err
		}
	}
	p, err := decide(l)
	if err != nil {
		return do, err
	}
	for _, e := range p.end {
		t := tasks[e.number]
		t.Reason = e.reason
		if err := s.cfg.Store.PutTask(ctx, tx, t); err != nil {
			return do, err
		}
		if _, _, err := s.cfg.Studies.SetState(ctx, tx, w.Project, t.Trial, tuning.Pruned, nil, ""); err != nil {
			return do, err
		}
		do.cancel = append(do.cancel, t.Job)
	}
	for _, params := range p.begin {
		t, err := s.begin(ctx, tx, w, params)
		if err != nil {
			return do, err
		}
		do.submit = append(do.submit, t)
	}
	if do.revision = w.Revision; p.state == w.State && p.reason == w.Reason {
		return do, nil
	}
	w.Reason = p.reason
	if p.state != Running {
		if w, err = w.moved(p.state, s.now().UTC()); err != nil {
			return do, err
		}
		var shown []Shown
		for _, t := range kept {
			shown = append(shown, show(w, t, Task{}))
		}
		if err := publish(ctx, tx, w, best(w, shown)); err != nil {
			return do, err
		}
	}
	w.Revision++
	do.revision = w.Revision
	return do, s.cfg.Store.PutSweep(ctx, tx, w)
}

// look reads what a trial's job has come to.
func (s *Service) look(ctx context.Context, w Sweep, t Task) (n news, err error) {
	n.task = t
	n.job, err = s.cfg.Jobs.One(ctx, w.Project, t.Job)
	if fault.Is(err, fault.NotFound) {
		n.missing = true
		return n, nil
	}
	if err != nil || n.job.Run == "" {
		return n, err
	}
	n.heard = s.heard[t.Job]
	if n.heard.run != n.job.Run { // another attempt, or another process of ours
		n.heard = heard{run: n.job.Run, at: s.now()}
	}
	stamp, err := s.cfg.Runs.Stamp(ctx, w.Project, n.job.Run, w.Spec.Watch)
	if err != nil {
		return n, err
	}
	if stamp != "" && n.heard.stamp != stamp {
		if n.points, err = s.cfg.Runs.Points(ctx, w.Project, t.Job, n.job.Run, w.Spec.Watch, maxReports); err != nil {
			return n, err
		}
		n.heard.stamp, n.heard.at = stamp, s.now()
	}
	if n.job.State == training.Succeeded {
		n.values, n.failure, err = s.values(ctx, w, n.job)
	}
	return n, err
}

// values are the objectives of a job, or why it has none.
func (s *Service) values(ctx context.Context, w Sweep, job training.Job) (values []float64, failure string, err error) {
	for _, o := range w.Spec.Objectives {
		// The last attempt says what the last value is, unless it had nothing left to do.
		var points []Point
		if o.Value == Last {
			points, err = s.cfg.Runs.Points(ctx, w.Project, "", job.Run, o.Metric, maxReports)
		}
		if err == nil && len(points) == 0 {
			points, err = s.cfg.Runs.Points(ctx, w.Project, job.ID, job.Run, o.Metric, maxReports)
		}
		if err != nil {
			return nil, "", err
		}
		if len(points) == 0 {
			return nil, "it logged no " + o.Metric, nil
		}
		v := points[len(points)-1].Value
		if o.Value == Best {
			for _, p := range points {
				if o.Direction.Loss(p.Value) < o.Direction.Loss(v) || math.IsNaN(v) {
					v = p.Value
				}
			}
		}
		if math.IsNaN(v) {
			return nil, fmt.Sprintf("its %s is NaN", o.Metric), nil
		}
		values = append(values, v)
	}
	return values, "", nil
}

// take records what a trial's job has come to; its task is Done when nothing more comes.
func (s *Service) take(ctx context.Context, tx *store.Tx, w Sweep, n *news) error {
	t, err := s.cfg.Studies.Store.TrialHead(ctx, tx, w.Project, n.task.Trial)
	if err != nil {
		return err
	}
	done := func(reason string) error {
		n.task.Done = true
		if n.task.Reason == "" {
			n.task.Reason = reason
		}
		return s.cfg.Store.PutTask(ctx, tx, n.task)
	}
	if t.State.Finished() { // stopped by a rule, or by a client of Optuna's
		if n.missing || n.job.State.Ended() {
			return done("")
		}
		return nil
	}
	if len(n.points) > 0 {
		had, err := s.cfg.Studies.Store.Trials(ctx, tx, w.Project, w.Study, n.task.Trial-1, nil, 1)
		if err != nil {
			return err
		}
		for _, p := range n.points {
			v, ok := had[0].Intermediate[p.Step]
			if ok && (v == p.Value || math.IsNaN(v) && math.IsNaN(p.Value)) || !ok && len(had[0].Intermediate) >= maxReports {
				continue
			}
			had[0].Intermediate[p.Step] = p.Value
			n.fresh = append(n.fresh, p.Step)
			if err := s.cfg.Studies.SetIntermediate(ctx, tx, w.Project, n.task.Trial, p.Step, p.Value); err != nil {
				return err
			}
		}
	}
	end := func(state tuning.State, values []float64, reason string) error {
		if _, _, err := s.cfg.Studies.SetState(ctx, tx, w.Project, n.task.Trial, state, values, ""); err != nil {
			return err
		}
		return done(reason)
	}
	switch {
	case n.missing || !n.job.State.Ended():
		return nil
	case n.job.State == training.Succeeded && n.failure == "":
		return end(tuning.Complete, n.values, "")
	case n.job.State == training.Succeeded:
		return end(tuning.Failed, nil, n.failure)
	}
	return end(tuning.Failed, nil, fmt.Sprintf("its job %s: %s", n.job.State, n.job.Reason))
}

// begin makes a trial and decides its job, which is submitted once that is kept.
func (s *Service) begin(ctx context.Context, tx *store.Tx, w Sweep, params space.Params) (Task, error) {
	trialID, _, err := s.cfg.Studies.CreateTrial(ctx, tx, w.Project, w.Study, nil, "")
	if err != nil {
		return Task{}, err
	}
	for _, p := range w.Spec.Parameters {
		v, ok := params[p.Name]
		if !ok {
			continue
		}
		x, err := p.Encode(v)
		if err != nil {
			return Task{}, err
		}
		d, err := p.Optuna()
		if err != nil {
			return Task{}, err
		}
		if err := s.cfg.Studies.SetParam(ctx, tx, w.Project, trialID, p.Name, tuning.Param{Value: x, Distribution: tuning.Distribution(d)}); err != nil {
			return Task{}, err
		}
	}
	head, err := s.cfg.Studies.Store.TrialHead(ctx, tx, w.Project, trialID)
	if err != nil {
		return Task{}, err
	}
	t := Task{Project: w.Project, Study: w.Study, Number: int(head.Number), Trial: trialID, Job: training.JobID(id.New("job"))}
	if err := s.cfg.Studies.SetTrialAttribute(ctx, tx, w.Project, trialID, tuning.System, "falaj:job", `"`+string(t.Job)+`"`); err != nil {
		return Task{}, err
	}
	return t, s.cfg.Store.PutTask(ctx, tx, t)
}

// submit submits the job of a trial with the rights of whoever applied the sweep, as they
// are now. What will not change by waiting ends the sweep.
func (s *Service) submit(ctx context.Context, w Sweep, t Task) error {
	var one []tuning.Trial
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		one, err = s.cfg.Studies.Store.Trials(ctx, tx, w.Project, w.Study, t.Trial-1, nil, 1)
		return err
	})
	if err != nil {
		return err
	}
	name, spec := w.job(t.Number, seen(w, one[0]).Params)
	_, err = s.cfg.Jobs.SubmitTrial(identity.With(ctx, w.By), w.Project, name, spec, t.Job)
	if err == nil || ctx.Err() != nil || slices.ContainsFunc([]fault.Kind{fault.Unavailable, fault.Timeout, fault.Exhausted, fault.Internal}, func(k fault.Kind) bool { return fault.Is(err, k) }) {
		return err
	}
	if fault.Is(err, fault.Conflict) {
		if _, found := s.cfg.Jobs.One(ctx, w.Project, t.Job); found == nil {
			return nil // submitted before
		}
	}
	err2 := s.cfg.DB.Update(ctx, string(w.Project), func(ctx context.Context, tx *store.Tx) error {
		if err := s.fence(ctx, tx); err != nil {
			return err
		}
		t.Done, t.Reason = true, err.Error()
		if err := s.cfg.Store.PutTask(ctx, tx, t); err != nil {
			return err
		}
		_, _, err := s.cfg.Studies.SetState(ctx, tx, w.Project, t.Trial, tuning.Failed, nil, "")
		return err
	})
	if err2 != nil {
		return err2
	}
	return s.broken(ctx, w, fmt.Sprintf("trial %d cannot begin: %v", t.Number, err), fault.HintOf(err))
}

// broken ends a sweep that cannot go on.
func (s *Service) broken(ctx context.Context, w Sweep, why, hint string) error {
	return s.cfg.DB.Update(ctx, string(w.Project), func(ctx context.Context, tx *store.Tx) error {
		if err := s.fence(ctx, tx); err != nil {
			return err
		}
		now, err := s.cfg.Store.Sweep(ctx, tx, w.Project, w.Name)
		if err != nil || now.Stop != "" || now.State != Running {
			return err
		}
		now.Stop, now.Ends, now.Hint = why, Failed, hint
		now.Revision++
		return s.cfg.Store.PutSweep(ctx, tx, now)
	})
}

// spent is what the jobs of a sweep cost until now.
func (s *Service) spent(ctx context.Context, w Sweep) (float64, error) {
	var tasks []Task
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		tasks, err = s.cfg.Store.Tasks(ctx, tx, w.Project, w.Study, false)
		return err
	})
	if err != nil {
		return 0, err
	}
	jobs := make([]training.JobID, len(tasks))
	for i, t := range tasks {
		jobs[i] = t.Job
	}
	return s.cfg.Costs.Spent(ctx, w.Project, jobs, w.CreatedAt)
}
