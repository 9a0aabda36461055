package mlflow

import (
	"strconv"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/tracking"
)

type empty struct{}

// experimentID reads an identifier; none is the default experiment.
func experimentID(s string) (tracking.ExperimentID, error) {
	if s == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0, fault.New(fault.Invalid, "Invalid experiment ID '%s'. Experiment ID must be a valid integer.", clip(s))
	}
	return tracking.ExperimentID(n), nil
}

func experimentIDs(in []string) ([]tracking.ExperimentID, error) {
	out := make([]tracking.ExperimentID, 0, len(in))
	for _, s := range in {
		id, err := experimentID(s)
		if err != nil {
			return nil, err
		}
		out = append(out, id)
	}
	return out, nil
}

type createExperiment struct {
	Name             string `json:"name" mlflow:"required"`
	ArtifactLocation string `json:"artifact_location"`
	Tags             []pair `json:"tags"`
}

func serveCreateExperiment(a *API, c *call, q *createExperiment) (any, error) {
	if strings.HasPrefix(q.ArtifactLocation, "runs:") {
		return nil, fault.New(fault.Invalid, "Artifact location cannot be a runs:/ URI. Given: '%s'", clip(q.ArtifactLocation))
	}
	if q.ArtifactLocation != "" && q.ArtifactLocation != "mlflow-artifacts:" && q.ArtifactLocation != "mlflow-artifacts:/" {
		return nil, fault.New(fault.Invalid, "Invalid value for parameter 'artifact_location': artifacts are kept, encrypted, by this server").
			WithHint("Leave artifact_location empty.")
	}
	e, err := exists(a.tracking.Experiments.CreateExperiment(c.r.Context(), c.project, q.Name, pairsIn(q.Tags)))
	return map[string]string{"experiment_id": formatExperiment(e.ID)}, err
}

type experimentQuery struct {
	ExperimentID string `json:"experiment_id" mlflow:"required"`
}

type experimentTag struct {
	ExperimentID string `json:"experiment_id" mlflow:"required"`
	Key          string `json:"key" mlflow:"required"`
	Value        string `json:"value"`
}

func serveExperiment(a *API, c *call, q *experimentQuery) (any, error) {
	id, err := experimentID(q.ExperimentID)
	if err != nil {
		return nil, err
	}
	e, err := a.tracking.Experiments.Experiment(c.r.Context(), c.project, id)
	return map[string]experiment{"experiment": experimentOut(e)}, err
}

func serveExperimentByName(a *API, c *call, q *struct {
	Name string `json:"experiment_name" mlflow:"required"`
},
) (any, error) {
	e, err := a.tracking.Experiments.ExperimentNamed(c.r.Context(), c.project, q.Name)
	return map[string]experiment{"experiment": experimentOut(e)}, err
}

func serveDeleteExperiment(a *API, c *call, q *experimentQuery) (any, error) {
	id, err := experimentID(q.ExperimentID)
	if err != nil {
		return nil, err
	}
	return empty{}, a.tracking.Experiments.DeleteExperiment(c.r.Context(), c.project, id)
}

func serveRestoreExperiment(a *API, c *call, q *experimentQuery) (any, error) {
	id, err := experimentID(q.ExperimentID)
	if err != nil {
		return nil, err
	}
	return empty{}, a.tracking.Experiments.RestoreExperiment(c.r.Context(), c.project, id)
}

func serveUpdateExperiment(a *API, c *call, q *struct {
	ExperimentID string `json:"experiment_id" mlflow:"required"`
	NewName      string `json:"new_name" mlflow:"required"`
},
) (any, error) {
	id, err := experimentID(q.ExperimentID)
	if err != nil {
		return nil, err
	}
	_, err = exists(empty{}, a.tracking.Experiments.RenameExperiment(c.r.Context(), c.project, id, q.NewName))
	return empty{}, err
}

func serveSetExperimentTag(a *API, c *call, q *experimentTag) (any, error) {
	id, err := experimentID(q.ExperimentID)
	if err != nil {
		return nil, err
	}
	return empty{}, a.tracking.Experiments.SetExperimentTag(c.r.Context(), c.project, id, tracking.Pair{Key: q.Key, Value: q.Value})
}

func serveDeleteExperimentTag(a *API, c *call, q *experimentTag) (any, error) {
	id, err := experimentID(q.ExperimentID)
	if err != nil {
		return nil, err
	}
	return empty{}, a.tracking.Experiments.DeleteExperimentTag(c.r.Context(), c.project, id, q.Key)
}

type searchExperiments struct {
	MaxResults *int64   `json:"max_results"`
	PageToken  string   `json:"page_token"`
	Filter     string   `json:"filter"`
	OrderBy    []string `json:"order_by"`
	ViewType   viewType `json:"view_type"`
}

func serveSearchExperiments(a *API, c *call, q *searchExperiments) (any, error) {
	found, next, err := a.tracking.Experiments.SearchExperiments(c.r.Context(), c.project, tracking.Search{
		View: q.ViewType.view(), Filter: q.Filter, OrderBy: q.OrderBy, Max: limit(q.MaxResults, 1000), Page: q.PageToken,
	})
	out := struct {
		Experiments   []experiment `json:"experiments,omitempty"`
		NextPageToken string       `json:"next_page_token,omitempty"`
	}{nil, next}
	for _, e := range found {
		out.Experiments = append(out.Experiments, experimentOut(e))
	}
	return out, err
}

// limit is a max_results, which services check.
func limit(n *int64, otherwise int) int {
	if n == nil {
		return otherwise
	}
	return int(min(max(*n, -1), 1<<30))
}

func serveSearchDatasets(a *API, c *call, q *struct {
	ExperimentIDs []string `json:"experiment_ids"`
},
) (any, error) {
	ids, err := experimentIDs(q.ExperimentIDs)
	if err != nil && len(q.ExperimentIDs) <= tracking.MaxDatasetExperiments {
		return nil, err
	}
	if err != nil { // too many is said before what each of them is
		ids = make([]tracking.ExperimentID, len(q.ExperimentIDs))
	}
	found, err := a.tracking.Experiments.DatasetSummaries(c.r.Context(), c.project, ids)
	type summary struct {
		ExperimentID string `json:"experiment_id"`
		Name         string `json:"name"`
		Digest       string `json:"digest"`
		Context      string `json:"context,omitempty"`
	}
	out := []summary{}
	for _, d := range found {
		out = append(out, summary{formatExperiment(d.Experiment), d.Name, d.Digest, d.Context})
	}
	return struct {
		Summaries []summary `json:"dataset_summaries,omitempty"`
	}{out}, err
}
