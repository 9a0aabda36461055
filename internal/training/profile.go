package training

import (
	"context"
	"os"
	"time"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/training/profile"
)

// ActionProfile is asked for before a look at what a job does.
const ActionProfile policy.Action = "job.profile"

// JobProfiled is the event of a new Profile, which is its body.
const JobProfiled = "job.profiled"

// ProfileID names a profile: "prf_01J…".
type ProfileID string

// Profile is what was seen of one worker of an attempt while it ran, and how it
// spent its time: what right-sizing goes by.
type Profile struct {
	ID      ProfileID        `json:"id"`
	Job     JobID            `json:"job"`
	Project project.Name     `json:"project"`
	Attempt AttemptID        `json:"attempt"`
	Number  int              `json:"number"` // of the attempt
	Pool    compute.PoolName `json:"pool,omitempty"`
	profile.Seen
	Run string `json:"run_id"`
	// Artifacts of the run are what the tool wrote.
	Artifacts []string  `json:"artifacts"`
	By        Actor     `json:"by"`
	At        time.Time `json:"at"`
}

const (
	maxProfiles   = 100 // of an attempt, and in a list
	shownProfiles = 10  // in a description
)

// Profile looks for a while at what a worker of a running job does, without
// stopping it, and keeps what it saw: the files as artifacts of the run, the
// summary as a Profile. It returns when that is done. Needs job.profile. Errors:
// fault.NotFound; fault.Invalid; fault.Conflict when no such worker runs, or
// somebody looks already; fault.Exhausted for an attempt with many profiles;
// fault.Unsupported where the tool is missing.
func (s *Usage) Profile(ctx context.Context, p project.Name, jid JobID, l profile.Look) (Profile, error) {
	j, err := s.one(ctx, p, jid, ActionProfile)
	if err != nil {
		return Profile{}, err
	}
	l = l.WithDefaults()
	who := identity.From(ctx)
	out := Profile{ID: ProfileID(id.New("prf")), Job: jid, Project: p, By: Actor{ID: who.ID, Name: who.Name}, Artifacts: []string{}}
	if err := l.Check(string(out.ID)); err != nil {
		return Profile{}, err
	}
	a, err := s.underway(ctx, j)
	switch {
	case err != nil:
		return Profile{}, err
	case l.Worker >= max(a.Workers, 1):
		return Profile{}, fault.New(fault.Invalid, "worker %d does not exist: attempt %d has %d", l.Worker, a.Number, max(a.Workers, 1))
	}
	out.Attempt, out.Number, out.Pool, out.Run = a.ID, a.Number, a.Pool, a.Run
	var files profile.Files
	out.Seen, files, err = profile.Take(ctx, s.cfg.Compute, profile.Order{
		ID: string(out.ID), Job: string(jid), Workload: compute.WorkloadID(a.ID), Look: l,
		Whose: identity.Share(ctx, p), Several: max(a.Workers, 1)*max(j.Spec.Processes, 1) > 1,
	})
	if err != nil {
		return Profile{}, err
	}
	out.At = s.now().UTC()
	if out.Artifacts, err = s.keepProfile(ctx, j, out, files); err != nil {
		return Profile{}, fault.Wrap(err, "storing the profile")
	}
	err = s.cfg.DB.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
		if err := s.profileStore.InsertProfile(ctx, tx, out); err != nil {
			return err
		}
		err := audit.Append(ctx, tx, audit.Entry{
			Project: string(p), Action: string(ActionProfile), Object: "job " + string(jid),
			Detail: map[string]any{"profile": string(out.ID), "worker": l.Worker, "tool": string(l.Tool)},
		})
		if err != nil {
			return err
		}
		return event.Publish(ctx, tx, string(p), JobProfiled, out)
	})
	return out, fault.Wrap(err, "storing the profile")
}

// underway is the attempt of a job that runs now and may have one more profile.
func (s *Usage) underway(ctx context.Context, j Job) (a Attempt, err error) {
	if j.State != Running || j.Attempt == "" {
		return a, fault.New(fault.Conflict, "job %s is %s: only running jobs can be profiled", j.ID, j.State)
	}
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		if a, err = s.attemptStore.Attempt(ctx, tx, j.Attempt); err != nil {
			return err
		}
		n, err := s.profileStore.CountProfiles(ctx, tx, j.Attempt)
		if err == nil && n >= maxProfiles {
			return fault.New(fault.Exhausted, "attempt %d of %s already has %d profiles, the limit", a.Number, j.ID, n).
				WithHint("Read them with `falaj job describe`, or from the artifacts of its run.")
		}
		return err
	})
	return a, err
}

// keepProfile stores what the tool wrote as artifacts of the attempt's run.
func (s *Usage) keepProfile(ctx context.Context, j Job, p Profile, files profile.Files) (names []string, err error) {
	names = []string{}
	if p.Run == "" {
		return names, nil
	}
	dir, err := os.MkdirTemp(s.cfg.Dir, "profile-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	under := "profiles/" + string(p.ID)
	written, err := files.Write(dir)
	if err != nil {
		return nil, err
	}
	for _, name := range written {
		names = append(names, under+"/"+name)
	}
	return names, s.cfg.Runs.Upload(asLoop(ctx, j, p.Attempt), j.Project, p.Run, dir, under)
}

// Profiles lists what was seen of a job last, at most a hundred, oldest first.
// Needs job.read.
func (s *Usage) Profiles(ctx context.Context, p project.Name, jid JobID) (all []Profile, err error) {
	if _, err := s.one(ctx, p, jid, ActionRead); err != nil {
		return nil, err
	}
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		all, err = s.profileStore.Profiles(ctx, tx, jid, maxProfiles)
		return err
	})
	return all, err
}
