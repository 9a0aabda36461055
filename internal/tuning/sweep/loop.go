package sweep

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
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
// logged before are kept anew, and those by which it reaches a rung.
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
		if err != nil { // whether it was recorded is not known
			delete(s.paid, study{w.Project, w.Study})
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil || fault.Is(err, fault.Conflict): // changed by somebody: the next round sees how
			delete(s.told, key)
		case s.told[key] != err.Error(): // once, not every second
			s.told[key] = err.Error()
			s.log.ErrorContext(ctx, "advancing a sweep failed", slog.String("project", string(w.Project)), slog.String("sweep", w.Name), slog.Any("error", err))
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
	gone := func(key study) bool {
		return !slices.ContainsFunc(all, func(w Sweep) bool { return w.Project == key.project && w.Study == key.id })
	}
	maps.DeleteFunc(s.learnt, func(key study, _ learnt) bool { return gone(key) })
	maps.DeleteFunc(s.waits, func(key study, _ string) bool { return gone(key) })
	maps.DeleteFunc(s.paid, func(key study, _ float64) bool { return gone(key) })
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
		clear(s.histories)
		clear(s.learnt)
		clear(s.paid)
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
	values  []float64
	failure string // why an ended job has no values
	heard   heard

	// What of that is to be recorded.
	reports []Point
	state   tuning.State // that the trial has then; empty while it goes on
	reason  string
	done    bool // nothing more comes of it
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
	money, of, err := s.spent(ctx, w, all)
	if err != nil {
		return err
	}

	// 2. What is to be done: decided without a transaction, because with thousands of
	// trials it takes a while, and recorded in one that finds all as it was.
	var do todo
	for range 3 { // clients of Optuna's may add trials meanwhile
		if do, err = s.next(ctx, w, all, money); err == nil && do.changes() {
			err = s.cfg.DB.Update(ctx, string(w.Project), func(ctx context.Context, tx *store.Tx) error { return s.record(ctx, tx, w, all, &do) })
		}
		if !fault.Is(err, fault.Conflict) {
			break
		}
	}
	if w.Stop == "" && slices.ContainsFunc([]fault.Kind{fault.Invalid, fault.TooLarge, fault.Unsupported}, func(k fault.Kind) bool { return fault.Is(err, k) }) {
		return s.broken(ctx, w, "it cannot continue: "+err.Error(), fault.HintOf(err)) // waiting will not mend it
	}
	if err != nil {
		return err
	}

	if _, counted := s.paid[study{w.Project, w.Study}]; counted {
		for _, n := range all {
			if n.done {
				s.paid[study{w.Project, w.Study}] += of[n.task.Job]
			}
		}
	}

	// 3. What the transaction decided. A crash amid it is made up for by the next round,
	// which finds a trial without a job, and a job that runs without need.
	var failed []error
	w.Environment = cmp.Or(do.pin, w.Environment)
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
	submit := slices.Concat(do.submit, do.begun)
	delete(s.waits, study{w.Project, w.Study})
	for _, t := range submit {
		if err := s.submit(ctx, w, t); err != nil {
			s.waits[study{w.Project, w.Study}] = fmt.Sprintf("the job of trial %d cannot be submitted now: %v", t.Number, err)
			failed = append(failed, err)
			break // the others would not fare better
		}
	}
	if len(failed) == 0 && !do.moved && len(submit) == 0 {
		s.calm[key] = rest{w.Revision, s.now()}
	}
	return errors.Join(failed...)
}

// todo is what a round does.
type todo struct {
	plan
	trials int    // that there were
	best   []int  // of them
	record bool   // there are news to record
	moved  bool   // the sweep is in another state, or for another reason, or pinned
	pin    string // the environment in which all trials run from now on
	cancel []training.JobID
	submit []Task // again
	begun  []Task // by the transaction
}

func (t todo) changes() bool { return t.record || t.moved || len(t.end)+len(t.begin) > 0 }

// next says what is to be done, and writes into the news what of them is to be recorded.
func (s *Service) next(ctx context.Context, w Sweep, all []news, money float64) (do todo, err error) {
	l := look{
		spec: w.Spec, seed: w.Spec.Search.Seed, stop: w.Stop, ends: w.Ends, forgiven: w.Forgiven, open: map[int]bool{}, fresh: map[int][]int64{}, now: s.now(),
		spent: stop.Spent{Time: w.under(s.now()), Money: money},
	}
	var h history
	var taught learnt
	read := map[study]history{}
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		if h, err = s.history(ctx, tx, w); err != nil {
			return err
		}
		read[study{w.Project, w.Study}] = h
		if w.Stop == "" {
			taught, err = s.warm(ctx, tx, w, read)
		}
		return err
	})
	if err != nil {
		return do, err
	}
	if taught.of != "" {
		s.learnt[study{w.Project, w.Study}] = taught
	}
	s.keep(read)
	l.trials, l.warm = slices.Clone(h.trials), taught.trials
	for i := range all {
		n := &all[i]
		t := &l.trials[n.task.Number]
		n.weigh(t, w.Spec.Stop)
		for _, p := range n.reports {
			l.fresh[t.Number] = append(l.fresh[t.Number], p.Step)
		}
		if do.record = do.record || len(n.reports) > 0 || n.done; !n.done {
			l.open[t.Number] = true
		}
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
	// An environment that was being built is that which the first trial gets; the others
	// wait to be told.
	if i := slices.IndexFunc(all, func(n news) bool { return n.job.EnvDigest != "" }); w.unpinned() && i >= 0 {
		do.pin = all[i].job.Pinned().Environment
	} else if w.unpinned() {
		l.spec.Parallel = 1
	}
	l.theirs, l.spent.Trials = h.theirs, len(l.trials)-len(h.theirs)
	for _, t := range l.trials {
		if t.State == trial.Failed && t.Number >= w.Forgiven && !l.theirs[t.Number] {
			l.spent.Failed++
		}
	}
	if do.plan, err = decide(l); err != nil {
		return do, err
	}
	if do.reason == "" { // the next round, which comes soon, says it
		do.reason = s.waits[study{w.Project, w.Study}]
	}
	tasks := map[int]training.JobID{}
	for _, n := range all {
		tasks[n.task.Number] = n.task.Job
	}
	for _, e := range do.end {
		do.cancel = append(do.cancel, tasks[e.number])
	}
	do.trials, do.moved = len(l.trials), do.state != w.State || do.reason != w.Reason || do.pin != ""
	if do.state != Running {
		do.best = foremost(trial.Front(l.trials, w.Spec.Problem().Directions), len(w.Spec.Objectives))
	}
	return do, nil
}

// weigh says what a look changes of a trial, which is changed so.
func (n *news) weigh(t *trial.Trial, rule stop.Rule) {
	n.reports, n.state, n.reason, n.done = nil, "", "", false
	if t.State != trial.Running { // stopped by a rule, or by a client of Optuna's
		n.done = n.missing || n.job.State.Ended()
		return
	}
	at := make(map[int64]int, len(t.Reports))
	highest := int64(math.MinInt64)
	for i, r := range t.Reports {
		at[r.Step] = i
		highest = max(highest, r.Step)
	}
	t.Reports = slices.Clone(t.Reports)
	for _, p := range n.points {
		i, ok := at[p.Step]
		switch {
		case ok && (t.Reports[i].Value == p.Value || math.IsNaN(t.Reports[i].Value) && math.IsNaN(p.Value)):
			continue
		case !ok && len(at) >= maxReports && !rule.Reaches(highest, p.Step):
			continue
		case ok:
			t.Reports[i].Value = p.Value
		default:
			at[p.Step] = len(t.Reports)
			t.Reports = append(t.Reports, trial.Report{Step: p.Step, Value: p.Value})
		}
		highest = max(highest, p.Step)
		n.reports = append(n.reports, p)
	}
	if n.missing || !n.job.State.Ended() {
		return
	}
	n.done, n.state = true, tuning.Failed
	switch {
	case n.job.State != training.Succeeded:
		n.reason = fmt.Sprintf("its job %s: %s", n.job.State, n.job.Reason)
	case n.failure != "":
		n.reason = n.failure
	default:
		n.state, t.Values = tuning.Complete, n.values
	}
	t.State = states[n.state]
}

// record writes what the jobs of a sweep have come to, and what is to be done next.
// Error: fault.Conflict where something was changed since that was decided.
func (s *Service) record(ctx context.Context, tx *store.Tx, w Sweep, all []news, do *todo) error {
	if err := s.fence(ctx, tx); err != nil {
		return err
	}
	now, err := s.cfg.Store.Sweep(ctx, tx, w.Project, w.Name)
	if err != nil {
		return err
	}
	if now.Revision != w.Revision {
		return fault.New(fault.Conflict, "sweep %s was changed by another request", w.Name)
	}
	tasks := map[int]Task{}
	for _, n := range all {
		t := n.task
		for _, p := range n.reports { // fault.Conflict where a client has ended it meanwhile
			if err := s.cfg.Studies.SetIntermediate(ctx, tx, w.Project, t.Trial, p.Step, p.Value); err != nil {
				return err
			}
		}
		if n.state != "" {
			if _, _, err := s.cfg.Studies.SetState(ctx, tx, w.Project, t.Trial, n.state, n.values, ""); err != nil {
				return fault.Wrap(err, "trial %d", t.Number)
			}
		}
		if n.done {
			t.Done, t.Reason = true, cmp.Or(t.Reason, n.reason)
			if err := s.cfg.Store.PutTask(ctx, tx, t); err != nil {
				return err
			}
		}
		tasks[t.Number] = t
	}
	for _, e := range do.end {
		t := tasks[e.number]
		t.Reason = e.reason
		if err := s.cfg.Store.PutTask(ctx, tx, t); err != nil {
			return err
		}
		if _, _, err := s.cfg.Studies.SetState(ctx, tx, w.Project, t.Trial, tuning.Pruned, nil, ""); err != nil {
			return err
		}
	}
	if len(do.begin) > 0 { // what they try is of their numbers
		n, err := s.cfg.Studies.Store.TrialCount(ctx, tx, w.Project, w.Study)
		if err != nil {
			return err
		}
		if int(n) != do.trials {
			return fault.New(fault.Conflict, "trials were added to sweep %s by another request", w.Name)
		}
	}
	do.begun = nil
	for _, params := range do.begin {
		t, err := s.begin(ctx, tx, w, params)
		if err != nil {
			return err
		}
		do.begun = append(do.begun, t)
	}
	if !do.moved {
		return nil
	}
	w.Reason, w.Environment = do.reason, cmp.Or(do.pin, w.Environment)
	if do.state != Running {
		if w, err = w.moved(do.state, s.now().UTC()); err != nil {
			return err
		}
		if err := publish(ctx, tx, w, do.best); err != nil {
			return err
		}
	}
	w.Revision++
	return s.cfg.Store.PutSweep(ctx, tx, w)
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
		n.failure = "it has no run"
		return n, err
	}
	n.heard = s.heard[t.Job]
	if n.heard.run != n.job.Run || n.heard.attempt != n.job.Attempt { // another attempt, or another process of ours
		n.heard = heard{run: n.job.Run, attempt: n.job.Attempt, at: s.now()}
	}
	if n.job.State != training.Running { // it cannot report until it runs
		n.heard.at = s.now()
	}
	stamp, err := s.cfg.Runs.Stamp(ctx, w.Project, n.job.Run, w.Spec.Watch)
	if err != nil {
		return n, err
	}
	if stamp != "" && (n.heard.stamp != stamp || n.job.State.Ended()) {
		if n.heard.values == 0 || n.job.State.Ended() { // the first time, and the last, all of it
			n.points, n.heard.values, err = s.cfg.Runs.Points(ctx, w.Project, t.Job, n.job.Run, w.Spec.Watch, maxReports)
		} else {
			n.points, n.heard.values, err = s.cfg.Runs.After(ctx, w.Project, n.job.Run, w.Spec.Watch, n.heard.values, maxReports)
		}
		if err != nil {
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
			points, _, err = s.cfg.Runs.Points(ctx, w.Project, "", job.Run, o.Metric, 1)
		}
		if err == nil && len(points) == 0 {
			points, _, err = s.cfg.Runs.Points(ctx, w.Project, job.ID, job.Run, o.Metric, math.MaxInt)
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
	name, spec := w.job(t.Number, through(w).seen(one[0]).Params)
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
	return s.broken(ctx, w, fmt.Sprintf("trial %d cannot start: %v", t.Number, err), fault.HintOf(err))
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

// spent is what the jobs of a sweep cost until now, where that is bounded, and what those
// did of which something may come yet. The others are added up once.
func (s *Service) spent(ctx context.Context, w Sweep, all []news) (sum float64, of map[training.JobID]float64, err error) {
	key := study{w.Project, w.Study}
	if w.Spec.Budget.Money == 0 {
		delete(s.paid, key)
		return 0, nil, nil
	}
	if _, counted := s.paid[key]; !counted {
		var tasks []Task
		err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
			tasks, err = s.cfg.Store.Tasks(ctx, tx, w.Project, w.Study, false)
			return err
		})
		if err != nil {
			return 0, nil, err
		}
		var done []training.JobID
		for _, t := range tasks {
			if t.Done {
				done = append(done, t.Job)
			}
		}
		cost, err := s.cfg.Costs.Spent(ctx, w.Project, done)
		if err != nil {
			return 0, nil, err
		}
		s.paid[key] = total(cost)
	}
	open := make([]training.JobID, len(all))
	for i, n := range all {
		open[i] = n.task.Job
	}
	of, err = s.cfg.Costs.Spent(ctx, w.Project, open)
	return s.paid[key] + total(of), of, err
}

func total(of map[training.JobID]float64) (sum float64) {
	for _, job := range slices.Sorted(maps.Keys(of)) { // the same sum each time
		sum += of[job]
	}
	return sum
}
