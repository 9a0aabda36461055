package mlflow

import (
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/tracking"
)

type modelAnswer struct {
	Model loggedModel `json:"model"`
}

type createModel struct {
	ExperimentID string `json:"experiment_id" mlflow:"required"`
	Name         string `json:"name"`
	ModelType    string `json:"model_type"`
	SourceRunID  string `json:"source_run_id"`
	Params       []pair `json:"params"`
	Tags         []pair `json:"tags"`
}

func serveCreateModel(a *API, c *call, q *createModel) (any, error) {
	id, err := experimentID(q.ExperimentID)
	if err != nil {
		return nil, err
	}
	m, err := a.tracking.LoggedModels.CreateLoggedModel(c.r.Context(), c.project, tracking.LoggedModelSpec{
		Experiment: id, Name: q.Name, Type: q.ModelType, Run: tracking.RunID(q.SourceRunID), Params: pairsIn(q.Params), Tags: pairsIn(q.Tags),
	})
	return modelAnswer{loggedModelOut(m)}, err
}

type modelQuery struct {
	ModelID string `json:"model_id" mlflow:"path"`
}

func serveModel(a *API, c *call, q *modelQuery) (any, error) {
	m, err := a.tracking.LoggedModels.LoggedModel(c.r.Context(), c.project, tracking.LoggedModelID(q.ModelID))
	return modelAnswer{loggedModelOut(m)}, err
}

func serveDeleteModel(a *API, c *call, q *modelQuery) (any, error) {
	return empty{}, a.tracking.LoggedModels.DeleteLoggedModel(c.r.Context(), c.project, tracking.LoggedModelID(q.ModelID))
}

func serveFinalizeModel(a *API, c *call, q *struct {
	ModelID string      `json:"model_id" mlflow:"path"`
	Status  modelStatus `json:"status" mlflow:"required"`
},
) (any, error) {
	m, err := a.tracking.LoggedModels.FinalizeLoggedModel(c.r.Context(), c.project, tracking.LoggedModelID(q.ModelID), tracking.ModelStatus(q.Status))
	return modelAnswer{loggedModelOut(m)}, err
}

func serveSetModelTags(a *API, c *call, q *struct {
	ModelID string `json:"model_id" mlflow:"path"`
	Tags    []pair `json:"tags"`
},
) (any, error) {
	_, err := a.tracking.LoggedModels.SetLoggedModelTags(c.r.Context(), c.project, tracking.LoggedModelID(q.ModelID), pairsIn(q.Tags))
	return empty{}, err
}

func serveDeleteModelTag(a *API, c *call, q *struct {
	ModelID string `json:"model_id" mlflow:"path"`
	TagKey  string `json:"tag_key" mlflow:"path"`
},
) (any, error) {
	return empty{}, a.tracking.LoggedModels.DeleteLoggedModelTag(c.r.Context(), c.project, tracking.LoggedModelID(q.ModelID), q.TagKey)
}

func serveModelParams(a *API, c *call, q *struct {
	ModelID string `json:"model_id" mlflow:"path"`
	Params  []pair `json:"params"`
},
) (any, error) {
	return empty{}, a.tracking.LoggedModels.LogLoggedModelParams(c.r.Context(), c.project, tracking.LoggedModelID(q.ModelID), pairsIn(q.Params))
}

type searchModels struct {
	ExperimentIDs *[]string `json:"experiment_ids" mlflow:"required"`
	Filter        string    `json:"filter"`
	Datasets      []struct {
		DatasetName   string `json:"dataset_name"`
		DatasetDigest string `json:"dataset_digest"`
	} `json:"datasets"`
	MaxResults *int64 `json:"max_results"`
	OrderBy    []struct {
		FieldName     string `json:"field_name" mlflow:"required"`
		Ascending     *bool  `json:"ascending"`
		DatasetName   string `json:"dataset_name"`
		DatasetDigest string `json:"dataset_digest"`
	} `json:"order_by"`
	PageToken string `json:"page_token"`
}

func serveSearchModels(a *API, c *call, q *searchModels) (any, error) {
	ids, err := experimentIDs(*q.ExperimentIDs)
	if err != nil {
		return nil, err
	}
	in := tracking.Search{Experiments: ids, Filter: q.Filter, Max: limit(q.MaxResults, 50), Page: q.PageToken}
	for _, d := range q.Datasets {
		if d.DatasetName == "" {
			return nil, fault.New(fault.Invalid, "`dataset_name` in the `datasets` clause must be specified.")
		}
		in.Datasets = append(in.Datasets, tracking.DatasetInput{Name: d.DatasetName, Digest: d.DatasetDigest})
	}
	for _, o := range q.OrderBy {
		clause := o.FieldName
		if o.Ascending != nil && !*o.Ascending {
			clause += " DESC"
		}
		in.OrderBy = append(in.OrderBy, clause)
		in.OrderOn = append(in.OrderOn, tracking.DatasetInput{Name: o.DatasetName, Digest: o.DatasetDigest})
	}
	if len(ids) == 0 {
		return empty{}, nil
	}
	found, next, err := a.tracking.LoggedModels.SearchLoggedModels(c.r.Context(), c.project, in)
	out := struct {
		Models        []loggedModel `json:"models,omitempty"`
		NextPageToken string        `json:"next_page_token,omitempty"`
	}{nil, next}
	for _, m := range found {
		out.Models = append(out.Models, loggedModelOut(m))
	}
	return out, err
}
