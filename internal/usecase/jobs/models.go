package jobs

import (
	"context"
	"strconv"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/registry"
	"github.com/falaj-ml/falaj/internal/tracking"
	"github.com/falaj-ml/falaj/internal/training"
)

// modelName is what a job's logged model is called, as its directory: MLflow's clients find it at
// runs:/RUN/model.
const modelName = "model"

// Models turns a job's model directory into a logged model and a
// registered version.
type Models struct {
	Tracking tracking.Services
	Registry registry.Services
}

// Save implements training.Models.
func (m Models) Save(ctx context.Context, s training.ModelSpec) (string, error) {
	loop := identity.From(ctx)
	loop.Behalf = s.By.ID
	ctx = identity.With(ctx, loop)
	run, err := m.Tracking.Runs.Run(ctx, s.Project, tracking.RunID(s.Run))
	if err != nil {
		return "", err
	}
	logged, err := m.logged(ctx, s, run)
	if err == nil && run.Stage == tracking.Active { // nobody deleted it meanwhile
		err = m.Tracking.Logging.LogOutputs(ctx, s.Project, run.ID, []tracking.ModelLink{{Model: logged.ID}})
	}
	if err != nil || s.Register == "" {
		return string(logged.ID), err
	}
	_, err = m.Registry.Models.CreateModel(ctx, s.Project, s.Register, "", nil)
	if err != nil && !fault.Is(err, fault.Conflict) {
		return "", err
	}
	// The client may have registered this attempt's model itself, or a former try did.
	made, _, err := m.Registry.Versions.SearchVersions(ctx, s.Project, registry.Search{
		Filter: registry.Named(s.Register) + " AND run_id = '" + s.Run + "'", Max: 100,
	})
	if err != nil {
		return "", err
	}
	for _, v := range made {
		if v.LoggedModel == logged.ID && v.State == registry.Ready {
			return v.Model + "@" + strconv.Itoa(v.Number), nil
		}
	}
	var parents []string
	for _, in := range s.Inputs {
		if model := in.Model(); model != "" {
			parents = append(parents, model)
		}
	}
	v, err := m.Registry.Versions.CreateVersion(ctx, s.Project, s.Register, registry.VersionSpec{
		Source: modelScheme + string(logged.ID), Run: run.ID, LoggedModel: logged.ID, Parents: parents,
	})
	return v.Model + "@" + strconv.Itoa(v.Number), err
}

func (m Models) logged(ctx context.Context, s training.ModelSpec, run tracking.Run) (tracking.LoggedModel, error) {
	made, _, err := m.Tracking.LoggedModels.SearchLoggedModels(ctx, s.Project, tracking.Search{
		Experiments: []tracking.ExperimentID{run.Experiment}, Filter: "tags.`" + attemptTag + "` = '" + string(s.Attempt) + "'", Max: 100,
	})
	if err != nil {
		return tracking.LoggedModel{}, err
	}
	var logged tracking.LoggedModel
	for _, m := range made {
		if m.Attempt == string(s.Attempt) { // anybody can set the tag, nobody the origin
			logged = m
		}
	}
	if logged.ID == "" {
		logged, err = m.Tracking.LoggedModels.CreateLoggedModel(ctx, s.Project, tracking.LoggedModelSpec{
			Experiment: run.Experiment, Name: modelName, Run: run.ID, Tags: []tracking.Pair{{Key: attemptTag, Value: string(s.Attempt)}},
		})
		if err != nil {
			return logged, err
		}
	}
	if logged.Status == tracking.ModelReady {
		return logged, nil
	}
	if err := upload(ctx, m.Tracking.Artifacts, s.Project, tracking.Place{Model: logged.ID}, s.Dir, ""); err != nil {
		return logged, err
	}
	return m.Tracking.LoggedModels.FinalizeLoggedModel(ctx, s.Project, logged.ID, tracking.ModelReady)
}
