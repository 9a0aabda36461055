package jobs

import (
	"cmp"
	"context"
	"strings"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/training"
)

// inputsOf are what a job could read, and the jobs from whose checkpoints it goes on.
func inputsOf(j training.Job, earlier []training.Job) ([]dataset.JobInputs, error) {
	var rs []dataset.JobInputs
	for _, of := range append([]training.Job{j}, earlier...) {
		r := dataset.JobInputs{Zones: residency.Of(of.Residency.Zones()...), Since: cmp.Or(of.StartedAt, of.SubmittedAt)}
		for _, in := range of.Inputs {
			if in.Model() != "" { // what is made with it is made of what it was trained on, too
				r.Beside = append(r.Beside, dataset.Labelled{Name: in.Ref, Residency: in.Residency, Classification: in.Classification})
				r.Versions = append(r.Versions, learned(in)...)
				continue
			}
			ref, err := dataset.ParseRef(in.Dataset())
			if err != nil {
				return nil, err
			}
			r.Versions = append(r.Versions, ref)
		}
		for _, name := range of.Spec.Tables {
			table := dataset.Ref{Name: name}
			for _, in := range of.Tables {
				if in.Name != name {
					continue
				}
				var err error
				if table, err = dataset.ParseRef(in.Dataset()); err != nil {
					return nil, err
				}
			}
			r.Tables = append(r.Tables, table)
		}
		rs = append(rs, r)
	}
	return rs, nil
}

// learned are the versions of datasets that a model was trained on.
func learned(in training.Input) (refs []dataset.Ref) {
	for _, text := range in.Datasets {
		if ref, err := dataset.ParseRef(text); err == nil && ref.Number > 0 { // else it is no version of a dataset
			refs = append(refs, ref)
		}
	}
	return refs
}

// withModels names the models that a job had: they are no parents of a version of a dataset.
func withModels(j training.Job) string {
	var models []string
	for _, in := range j.Inputs {
		if m := in.Model(); m != "" {
			models = append(models, "model "+m)
		}
	}
	if len(models) == 0 {
		return ""
	}
	return "with " + strings.Join(models, ", ")
}

// Attempts says what attempts of jobs could read, and in which zones what they make may be
// stored.
type Attempts struct{ Training *training.Records }

// Residency is the residency label of what an attempt makes.
func (a Attempts) Residency(ctx context.Context, attempt string) (residency.Label, error) {
	j, err := a.Training.JobOf(ctx, training.AttemptID(attempt))
	return j.Residency, err
}

// Inputs is what an attempt's job could read, and the jobs that it resumes from.
func (a Attempts) Inputs(ctx context.Context, attempt string) ([]dataset.JobInputs, error) {
	j, err := a.Training.JobOf(ctx, training.AttemptID(attempt))
	if err != nil {
		return nil, err
	}
	earlier, err := a.Training.Earlier(ctx, j)
	if err != nil {
		return nil, err
	}
	return inputsOf(j, earlier)
}
