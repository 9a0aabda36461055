package oip

import (
	"context"
	"net/http"
	"strconv"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/inference"
)

// counted is what a version of a deployment did.
type counted struct {
	name string
	serving.Statistics
}

// statistics are those of a deployment, of one version of it when that is named, or of
// all that the caller may read.
func (a *API) statistics(ctx context.Context, project, name, version string) ([]counted, error) {
	out := []counted{}
	one := func(name, version string) error {
		all, err := a.Serving.Statistics(ctx, project, name, version)
		for _, s := range all {
			out = append(out, counted{name, s})
		}
		return err
	}
	if name != "" {
		return out, one(name, version)
	}
	after := ""
	for range maxIndex / page {
		all, err := a.Serving.List(ctx, project, after, page)
		if err != nil {
			return nil, err
		}
		for _, d := range all {
			after = d.Name
			may, err := a.Permits(ctx, read, project, d.Name)
			if err != nil {
				return nil, err
			}
			if !may {
				continue
			}
			// What is not in memory counts nothing; what the caller may not read any more is not there.
			if err := one(d.Name, ""); err != nil && !fault.Is(err, fault.Unavailable) && !fault.Is(err, fault.NotFound) && !fault.Is(err, fault.PermissionDenied) {
				return nil, err
			}
		}
		if len(all) < page {
			break
		}
	}
	return out, nil
}

// duration is how often, and how long in all.
type duration struct {
	Count int64 `json:"count"`
	Nanos int64 `json:"ns"`
}

func durationOf(s serving.Spent) duration { return duration{s.Count, int64(s.Time)} }

// last is in milliseconds since 1970; 0: none yet.
func (c counted) last() int64 {
	if c.Last.IsZero() {
		return 0
	}
	return c.Last.UnixMilli()
}

func (a *API) stats(w http.ResponseWriter, r *http.Request) {
	type batch struct {
		Size   int64    `json:"batch_size"`
		Input  duration `json:"compute_input"`
		Infer  duration `json:"compute_infer"`
		Output duration `json:"compute_output"`
	}
	type model struct {
		Name       string              `json:"name"`
		Version    string              `json:"version"`
		Last       int64               `json:"last_inference"`
		Inferences int64               `json:"inference_count"`
		Executions int64               `json:"execution_count"`
		Inference  map[string]duration `json:"inference_stats"`
		Responses  struct{}            `json:"response_stats"`
		Batches    []batch             `json:"batch_stats"`
		Memory     []struct{}          `json:"memory_usage"`
	}
	project, err := a.enter(r, read)
	var all []counted
	if err == nil {
		all, err = a.statistics(r.Context(), project, r.PathValue("model"), r.PathValue("version"))
	}
	models := make([]model, len(all))
	for i, s := range all {
		m := model{
			Name: s.name, Version: strconv.FormatInt(s.Version, 10), Last: s.last(), Inferences: s.Inferences, Executions: s.Executions,
			Inference: map[string]duration{
				"success": durationOf(s.Success), "fail": durationOf(s.Fail), "queue": durationOf(s.Queue),
				"compute_input": durationOf(s.Input), "compute_infer": durationOf(s.Infer), "compute_output": durationOf(s.Output),
				"cache_hit": {}, "cache_miss": {},
			},
			Batches: make([]batch, len(s.Batches)), Memory: []struct{}{},
		}
		for j, b := range s.Batches {
			m.Batches[j] = batch{b.Size, durationOf(b.Input), durationOf(b.Infer), durationOf(b.Output)}
		}
		models[i] = m
	}
	a.reply(w, r, map[string]any{"model_stats": models}, err)
}

func (a *API) callStatistics(ctx context.Context, m *inference.ModelStatisticsRequest) (*inference.ModelStatisticsResponse, error) {
	all, err := a.statistics(ctx, callOf(ctx).project, m.GetName(), m.GetVersion())
	if err != nil {
		return nil, err
	}
	of := func(s serving.Spent) *inference.StatisticDuration {
		return &inference.StatisticDuration{Count: uint64(s.Count), Ns: uint64(s.Time)} //nolint:gosec // counts
	}
	out := &inference.ModelStatisticsResponse{}
	for _, s := range all {
		one := &inference.ModelStatistics{
			Name: s.name, Version: strconv.FormatInt(s.Version, 10), LastInference: uint64(s.last()), //nolint:gosec // after 1970
			InferenceCount: uint64(s.Inferences), ExecutionCount: uint64(s.Executions), //nolint:gosec // counts
			InferenceStats: &inference.InferStatistics{
				Success: of(s.Success), Fail: of(s.Fail), Queue: of(s.Queue), ComputeInput: of(s.Input), ComputeInfer: of(s.Infer), ComputeOutput: of(s.Output),
				CacheHit: &inference.StatisticDuration{}, CacheMiss: &inference.StatisticDuration{},
			},
		}
		for _, b := range s.Batches {
			one.BatchStats = append(one.BatchStats, &inference.InferBatchStatistics{BatchSize: uint64(b.Size), ComputeInput: of(b.Input), ComputeInfer: of(b.Infer), ComputeOutput: of(b.Output)}) //nolint:gosec // a count
		}
		out.ModelStats = append(out.ModelStats, one)
	}
	return out, nil
}
