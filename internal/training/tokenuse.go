package training

import (
	"context"
	"slices"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
)

// What a job's output says is of the class of what the job read. Its logs, and the
// errors that quote them, take what reading the data takes; its name, state, class of
// end, times, and why it waits are open to everybody with job.read.

// TokenUse says where the token of a job works.
type TokenUse string

// The uses. Empty is TokenInSandbox.
const (
	TokenInSandbox TokenUse = "sandbox"
	TokenAnywhere  TokenUse = "anywhere"
)

// Validate refuses a use that does not exist. Error: fault.Invalid.
func (t TokenUse) Validate() error {
	if t == "" || t == TokenInSandbox || t == TokenAnywhere {
		return nil
	}
	return fault.New(fault.Invalid, "spec.token: %.40q is invalid: set sandbox or anywhere", string(t))
}

// withheld stands for a reason that quotes what a job on classified data said.
const withheld = "withheld: the job read classified data, so its errors need permission to read that data"

// sources are the datasets, and models without any, that a job could read, those of the
// jobs from whose checkpoints it resumes included.
func (s *core) sources(ctx context.Context, j Job) ([]string, error) {
	jobs := []Job{j}
	if j.Spec.Resume != "" {
		earlier, err := s.earlier(ctx, j)
		if err != nil {
			return nil, err
		}
		jobs = append(jobs, earlier...)
	}
	var all []string
	for _, j := range jobs {
		for _, in := range append(append([]Input{}, j.Inputs...), j.Tables...) {
			switch {
			case in.Dataset() != "":
				all = append(all, "dataset/"+in.Dataset())
			case len(in.Datasets) > 0:
				all = append(all, policy.DatasetSources(in.Datasets)...)
			case in.Classification == project.Restricted:
				all = append(all, "model/"+in.Model())
			}
		}
	}
	return all, nil
}

// object is what the policy is asked about.
func (s *core) object(ctx context.Context, j Job, contents bool) (policy.Object, error) {
	o := policy.Object{
		Project: string(j.Project), Kind: "job", Name: string(j.ID), Owner: j.By.ID,
		Classification: string(j.Classification), Residency: j.Residency, Contents: contents && j.ID != "",
	}
	if !o.Contents || j.Classification != project.Restricted {
		return o, nil
	}
	var err error
	o.Sources, err = s.sources(ctx, j)
	return o, err
}

// shows reports whether the caller may read what the job's output says.
func (s *core) shows(ctx context.Context, j Job) (bool, error) {
	if !j.Classification.Journalled() {
		return true, nil
	}
	if who := identity.From(ctx); who.Kind == identity.Attempt && who.Name == string(j.ID) {
		return true, nil
	}
	o, err := s.object(ctx, j, true)
	if err != nil {
		return false, err
	}
	return policy.Permits(ctx, s.cfg.Authorizer, ActionRead, o)
}

// shown is a job as the caller may see it.
func (s *core) shown(ctx context.Context, j Job) (Job, error) {
	if j.State != Failed || j.Reason == "" && j.Hint == "" {
		return j, nil
	}
	may, err := s.shows(ctx, j)
	if err != nil || may {
		return j, err
	}
	j.Reason, j.Hint = withheld, ""
	return j, nil
}

// withhold takes out of attempts what quotes their output.
func withhold(tries []Attempt) {
	for i := range tries {
		a := &tries[i]
		if a.Reason != "" {
			a.Reason = withheld
		}
		a.Notes, a.Evidence, a.Lines, a.Hint = nil, nil, nil, ""
		members := slices.Clone(a.Members)
		for m := range members {
			members[m].Notes = nil
		}
		a.Members = members
	}
}

// withholdLines takes lines of the log out of attempts for a caller who may not read the log.
func (s *core) withholdLines(ctx context.Context, j Job, tries []Attempt) error {
	if !slices.ContainsFunc(tries, func(a Attempt) bool { return len(a.Lines) > 0 }) {
		return nil
	}
	o, err := s.object(ctx, j, true)
	if err != nil {
		return err
	}
	may, err := policy.Permits(ctx, s.cfg.Authorizer, ActionLogs, o)
	for i := range tries {
		if !may {
			tries[i].Lines = nil
		}
	}
	return err
}

// inputsPermitted refuses to begin an attempt whose job's submitter may no longer read all of
// its inputs.
func (s *Execution) inputsPermitted(ctx context.Context, j Job) error {
	for _, in := range append(append([]Input{}, j.Inputs...), j.Tables...) {
		if err := s.cfg.Data.Permitted(ctx, j.Project, j.By, in); err != nil {
			return err
		}
	}
	return nil
}
