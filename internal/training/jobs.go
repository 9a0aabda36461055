package training

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/environment"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// Jobs reads jobs: it lists and describes them, says why they wait, and waits for their end.
// The API calls it, and the domains that follow the jobs they submitted.
type Jobs struct{ *core }

// One gives a job. Needs job.read. Error: fault.NotFound.
func (s *Jobs) One(ctx context.Context, p project.Name, jid JobID) (Job, error) {
	return s.one(ctx, p, jid, ActionRead)
}

// List gives a page of a project's jobs, newest first, and the filter's Before
// for the next page, empty at the end. Needs job.read.
func (s *Jobs) List(ctx context.Context, p project.Name, f Filter) (jobs []Job, next JobID, err error) {
	if err := s.allow(ctx, ActionRead, Job{Project: p}); err != nil {
		return nil, "", err
	}
	if f.Limit <= 0 {
		f.Limit = 100
	}
	limit := min(f.Limit, 1000)
	f.Limit = limit + 1
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		jobs, err = s.jobStore.Jobs(ctx, tx, p, f)
		return err
	})
	if err != nil {
		return nil, "", err
	}
	if len(jobs) > limit {
		jobs = jobs[:limit]
		next = jobs[limit-1].ID
	}
	jobs, err = s.listed(ctx, jobs)
	return jobs, next, err
}

// Find reads those jobs of a project, newest first, of which may says that they may be what is
// looked for: limit of them at most. Needs job.read.
func (s *Jobs) Find(ctx context.Context, p project.Name, before string, limit int, may func(store.Line) (bool, error)) (found store.Found[Job], err error) {
	if err := s.allow(ctx, ActionRead, Job{Project: p}); err != nil {
		return found, err
	}
	found, err = store.Find(ctx, s.cfg.DB, store.Lookup[Job]{
		Lines: func(ctx context.Context, tx *store.Tx, before string, limit int) ([]store.Line, error) {
			return s.jobStore.Lines(ctx, tx, p, JobID(before), limit)
		},
		Read: func(ctx context.Context, tx *store.Tx, ids []string) ([]Job, error) {
			return s.jobStore.JobsAt(ctx, tx, ids)
		},
		Key: func(j Job) string { return string(j.ID) },
	}, before, limit, may)
	if err != nil {
		return found, err
	}
	found.Objects, err = s.listed(ctx, found.Objects)
	return found, err
}

// listed are those of jobs that the caller may see, as the caller may see them.
func (s *Jobs) listed(ctx context.Context, jobs []Job) (_ []Job, err error) {
	for i := range jobs {
		if jobs[i], err = s.shown(ctx, jobs[i]); err != nil {
			return nil, err
		}
	}
	// Listed is what One would show.
	return slices.DeleteFunc(jobs, func(j Job) bool {
		e := s.allow(ctx, ActionRead, j)
		if e != nil && !fault.Is(e, fault.PermissionDenied) && !fault.Is(e, fault.NotFound) {
			err = e
		}
		return e != nil
	}), err
}

// Wait gives a job once it has ended, or as it is when the time is up. Needs
// job.read.
func (s *Jobs) Wait(ctx context.Context, p project.Name, jid JobID, atMost time.Duration) (Job, error) {
	timer := time.NewTimer(atMost)
	defer timer.Stop()
	for {
		changed, leave := s.watch(jid)
		defer leave() // as often as the job changes, which is not often
		j, err := s.One(ctx, p, jid)
		if err != nil || j.State.Ended() {
			return j, err
		}
		select {
		case <-changed:
		case <-timer.C:
			return j, nil
		case <-ctx.Done():
			return j, ctx.Err()
		}
	}
}

// Counts are the jobs of all projects that have not ended, and how many ended in each state
// since the server started. It asks no permission: it is for the metrics.
func (s *Jobs) Counts(ctx context.Context) (alive []Count, ended map[State]int64, err error) {
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		alive, err = s.jobStore.Counts(ctx, tx)
		return err
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	return alive, maps.Clone(s.ended), err
}

// Why says in words why a job is where it is. Needs job.read.
func (s *Jobs) Why(ctx context.Context, p project.Name, jid JobID) ([]string, error) {
	j, err := s.One(ctx, p, jid)
	if err != nil {
		return nil, err
	}
	var attempts []Attempt
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		attempts, err = s.attemptStore.Attempts(ctx, tx, jid)
		return err
	})
	if err != nil {
		return nil, err
	}
	whole, err := s.shows(ctx, j)
	if err != nil {
		return nil, err
	}
	if !whole {
		withhold(attempts)
	}
	var why []string
	why = append(why, s.cfg.Checkpoints.Notes(string(jid))...)
	switch {
	case j.State.Ended():
		why = append(why, strings.TrimSuffix(fmt.Sprintf("%s: %s", j.State, j.Reason), ": "))
		if j.Hint != "" {
			why = append(why, j.Hint)
		}
	case j.Attempt == "":
		why = append(why, s.whyNotBegun(ctx, j))
	}
	for _, a := range attempts {
		switch {
		case a.State != AttemptEnded:
			now, err := s.cfg.Compute.Why(ctx, compute.WorkloadID(a.ID))
			if err != nil {
				return nil, err
			}
			if step := s.stepOf(a.ID); step != "" && len(now) > 0 {
				now[0] += ": " + step
			}
			if whole {
				now = append(now, s.inTheWay(ctx, a)...)
			}
			why = slices.Concat(now, s.hopesOf(j.ID), why)
		case a.Reason != "" && a.Reason != j.Reason:
			why = append(why, fmt.Sprintf("attempt %d %s", a.Number, a.Reason))
		}
	}
	if len(attempts) > 0 && j.State.Ended() { // where it ran, and where it might not
		now, err := s.cfg.Compute.Why(ctx, compute.WorkloadID(attempts[len(attempts)-1].ID))
		if err == nil && len(now) > 1 {
			why = append(why, now[1:]...)
		}
	}
	return why, nil
}

// Waits says why a queued job waits, by code; nothing when it does not. It is
// possible unless no pool could ever take it as things are. Needs job.read. Error:
// fault.NotFound.
func (s *Jobs) Waits(ctx context.Context, p project.Name, jid JobID) (of []compute.Reason, possible bool, err error) {
	j, err := s.One(ctx, p, jid)
	if err != nil || j.State != Queued || j.Attempt == "" {
		return []compute.Reason{}, true, err
	}
	of, possible = s.cfg.Compute.Waits(compute.WorkloadID(j.Attempt))
	return of, possible, nil
}

// inTheWay is what the workers of an attempt say is in their way.
func (s *Jobs) inTheWay(ctx context.Context, a Attempt) []string {
	members, err := s.cfg.Compute.Members(ctx, compute.WorkloadID(a.ID))
	if err != nil {
		return nil // why it does not answer, the rest says
	}
	var words []string
	for _, m := range members {
		for _, note := range m.Notes {
			words = append(words, fmt.Sprintf("worker %d on %s: %s", m.Index, m.Node, note))
		}
	}
	return words
}

// whyNotBegun says why a queued job has no attempt yet.
func (s *Jobs) whyNotBegun(ctx context.Context, j Job) string {
	s.mu.Lock()
	trouble := s.stuck[j.ID]
	s.mu.Unlock()
	switch {
	case trouble != "":
		return "the last start failed: " + trouble + "; it is retried every second"
	case j.Spec.Environment == "":
		return "the first attempt is being created"
	}
	words := "environment " + j.Spec.Environment + " is being built"
	ctx = identity.With(ctx, identity.Loop("training")) // whoever may see the job may know why it waits
	if phase, err := s.cfg.Environments.Phase(ctx, j.Project, j.Spec.Environment); err == nil && phase != string(environment.Ready) && phase != string(environment.Failed) {
		words = "environment " + j.Spec.Environment + " is " + phase
	}
	return words
}

// Phase says in words how far a job is: the first of Why, or its state once it has
// ended. Needs job.read.
func (s *Jobs) Phase(ctx context.Context, p project.Name, jid JobID) (Job, string, error) {
	j, err := s.One(ctx, p, jid)
	if err != nil || j.State.Ended() {
		return j, string(j.State), err
	}
	why, err := s.Why(ctx, p, jid)
	if err != nil || len(why) == 0 {
		return j, string(j.State), err
	}
	return j, why[0], nil
}

// PhaseAfter returns when the phase is another than seen, when the job has ended, or
// after a time. Needs job.read.
func (s *Jobs) PhaseAfter(ctx context.Context, p project.Name, jid JobID, seen string, atMost time.Duration) (Job, string, error) {
	timer, tick := time.NewTimer(atMost), time.NewTicker(phaseEvery)
	defer timer.Stop()
	defer tick.Stop()
	for {
		changed, leave := s.watch(jid)
		j, phase, err := s.Phase(ctx, p, jid)
		if err != nil || j.State.Ended() || phase != seen {
			leave()
			return j, phase, err
		}
		select {
		case <-changed:
		case <-tick.C: // the scheduler's reasons change without an event of the job
		case <-timer.C:
			leave()
			return j, phase, nil
		case <-ctx.Done():
			leave()
			return j, phase, ctx.Err()
		}
		leave()
	}
}

// phaseEvery is how often the reasons of the scheduler are read again for a caller that waits.
const phaseEvery = 2 * time.Second

// Description is a job with its attempts and why it is where it is.
type Description struct {
	Job
	Tries    []Attempt `json:"tries"`
	Profiles []Profile `json:"profiles"` // the last ten, oldest first
	Why      []string  `json:"why"`
}

// Describe gives a job with its attempts and profiles. Needs job.read, and job.logs for the
// lines of the log.
func (s *Jobs) Describe(ctx context.Context, p project.Name, jid JobID) (Description, error) {
	j, err := s.One(ctx, p, jid)
	if err != nil {
		return Description{}, err
	}
	d := Description{Job: j}
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		if d.Tries, err = s.attemptStore.Attempts(ctx, tx, jid); err != nil {
			return err
		}
		d.Profiles, err = s.profileStore.Profiles(ctx, tx, jid, shownProfiles)
		return err
	})
	if err != nil {
		return d, err
	}
	whole, err := s.shows(ctx, j)
	if err != nil {
		return d, err
	}
	if !whole {
		withhold(d.Tries)
	}
	if err := s.withholdLines(ctx, j, d.Tries); err != nil {
		return d, err
	}
	d.Why, err = s.Why(ctx, p, jid)
	return d, err
}
