package mlflow

import (
	"bufio"
	"cmp"
	"encoding/json"
	"io"
	"math"
	"net/http"
	"regexp"
	"slices"
	"strconv"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/tracking"
)

// maxBatchBody is MLflow's bound of a log-batch request.
const maxBatchBody = 1_000_000

type createRun struct {
	ExperimentID string `json:"experiment_id"`
	UserID       string `json:"user_id"`
	RunName      string `json:"run_name"`
	StartTime    int64  `json:"start_time"`
	Tags         []pair `json:"tags"`
}

func serveCreateRun(a *API, c *call, q *createRun) (any, error) {
	id, err := experimentID(q.ExperimentID)
	if err != nil {
		return nil, err
	}
	r, err := a.tracking.Runs.CreateRun(c.r.Context(), c.project, tracking.RunSpec{
		Experiment: id, Name: q.RunName, User: q.UserID, Start: tracking.Millis(q.StartTime), Tags: pairsIn(q.Tags),
	}, tracking.RunOptions{})
	out := runOut(r)
	out.Outputs = nil
	return map[string]run{"run": out}, err
}

type updateRun struct {
	RunID   string     `json:"run_id" mlflow:"required,alias=run_uuid"`
	Status  *runStatus `json:"status"`
	EndTime *int64     `json:"end_time"`
	RunName *string    `json:"run_name"`
}

func serveUpdateRun(a *API, c *call, q *updateRun) (any, error) {
	u := tracking.RunUpdate{Status: (*tracking.RunStatus)(q.Status), End: (*tracking.Millis)(q.EndTime), Name: q.RunName}
	r, err := a.tracking.Runs.UpdateRun(c.r.Context(), c.project, tracking.RunID(q.RunID), u)
	return map[string]runInfo{"run_info": runInfoOut(r)}, err
}

type runQuery struct {
	RunID string `json:"run_id" mlflow:"required,alias=run_uuid"`
}

func serveRun(a *API, c *call, q *runQuery) (any, error) {
	r, err := a.tracking.Runs.Run(c.r.Context(), c.project, tracking.RunID(q.RunID))
	return map[string]run{"run": runOut(r)}, err
}

func serveDeleteRun(a *API, c *call, q *runQuery) (any, error) {
	return empty{}, a.tracking.Runs.DeleteRun(c.r.Context(), c.project, tracking.RunID(q.RunID))
}

func serveRestoreRun(a *API, c *call, q *runQuery) (any, error) {
	return empty{}, a.tracking.Runs.RestoreRun(c.r.Context(), c.project, tracking.RunID(q.RunID))
}

type searchRuns struct {
	ExperimentIDs []string `json:"experiment_ids"`
	Filter        string   `json:"filter"`
	RunViewType   viewType `json:"run_view_type"`
	MaxResults    *int64   `json:"max_results"`
	OrderBy       []string `json:"order_by"`
	PageToken     string   `json:"page_token"`
}

func serveSearchRuns(a *API, c *call, q *searchRuns) (any, error) {
	ids, err := experimentIDs(q.ExperimentIDs)
	if err != nil {
		return nil, err
	}
	if q.MaxResults != nil && *q.MaxResults > tracking.MaxSearchResults {
		return nil, invalid("max_results", json.Number(strconv.FormatInt(*q.MaxResults, 10)))
	}
	found, next, err := a.tracking.Runs.SearchRuns(c.r.Context(), c.project, tracking.Search{
		Experiments: ids, View: q.RunViewType.view(), Filter: q.Filter, OrderBy: q.OrderBy, Max: limit(q.MaxResults, 1000), Page: q.PageToken,
	})
	out := struct {
		Runs          []run  `json:"runs,omitempty"`
		NextPageToken string `json:"next_page_token,omitempty"`
	}{nil, next}
	for _, r := range found {
		out.Runs = append(out.Runs, runOut(r))
	}
	return out, err
}

type metricIn struct {
	Key           string   `json:"key" mlflow:"required"`
	Value         *float64 `json:"value" mlflow:"required"`
	Timestamp     *int64   `json:"timestamp" mlflow:"required"`
	Step          int64    `json:"step"`
	ModelID       string   `json:"model_id"`
	DatasetName   string   `json:"dataset_name"`
	DatasetDigest string   `json:"dataset_digest"`
}

func (m metricIn) metric() tracking.Metric {
	return tracking.Metric{
		Key: m.Key, Value: *m.Value, At: tracking.Millis(*m.Timestamp), Step: m.Step, Model: tracking.LoggedModelID(m.ModelID),
		DatasetName: m.DatasetName, DatasetDigest: m.DatasetDigest,
	}
}

func (a *API) logBatch(c *call, runID string, b tracking.Batch) (any, error) {
	return empty{}, a.tracking.Logging.Log(c.r.Context(), c.project, tracking.RunID(runID), b)
}

type logMetric struct {
	RunID         string   `json:"run_id" mlflow:"required,alias=run_uuid"`
	Key           string   `json:"key" mlflow:"required"`
	Value         *float64 `json:"value" mlflow:"required"`
	Timestamp     *int64   `json:"timestamp" mlflow:"required"`
	Step          int64    `json:"step"`
	ModelID       string   `json:"model_id"`
	DatasetName   string   `json:"dataset_name"`
	DatasetDigest string   `json:"dataset_digest"`
}

func serveLogMetric(a *API, c *call, q *logMetric) (any, error) {
	m := metricIn{q.Key, q.Value, q.Timestamp, q.Step, q.ModelID, q.DatasetName, q.DatasetDigest}
	return a.logBatch(c, q.RunID, tracking.Batch{Metrics: []tracking.Metric{m.metric()}, One: true})
}

type logPair struct {
	RunID string `json:"run_id" mlflow:"required,alias=run_uuid"`
	Key   string `json:"key" mlflow:"required"`
	Value string `json:"value"`
}

func serveLogParam(a *API, c *call, q *logPair) (any, error) {
	return a.logBatch(c, q.RunID, tracking.Batch{Params: []tracking.Pair{{Key: q.Key, Value: q.Value}}, One: true})
}

func serveSetTag(a *API, c *call, q *logPair) (any, error) {
	return a.logBatch(c, q.RunID, tracking.Batch{Tags: []tracking.Pair{{Key: q.Key, Value: q.Value}}, One: true})
}

func serveDeleteTag(a *API, c *call, q *logPair) (any, error) {
	return empty{}, a.tracking.Logging.DeleteTag(c.r.Context(), c.project, tracking.RunID(q.RunID), q.Key)
}

type logBatch struct {
	RunID   string     `json:"run_id" mlflow:"required"`
	Metrics []metricIn `json:"metrics"`
	Params  []pair     `json:"params"`
	Tags    []pair     `json:"tags"`
}

func serveLogBatch(a *API, c *call) (any, error) {
	// Bounded by its own limit, whose text clients know.
	counted := &countingBody{ReadCloser: c.r.Body}
	c.r.Body = counted
	q := new(logBatch)
	if c.r.ContentLength > maxBatchBody {
		return nil, batchTooLarge(c.r.ContentLength)
	}
	err := decodeRequest(c.r, q)
	if counted.n > maxBatchBody {
		return nil, batchTooLarge(counted.n)
	}
	if err != nil {
		return nil, err
	}
	if err := checkRunID(q.RunID); err != nil {
		return nil, err
	}
	b := tracking.Batch{Params: pairsIn(q.Params), Tags: pairsIn(q.Tags), Metrics: make([]tracking.Metric, len(q.Metrics))}
	for i, m := range q.Metrics {
		b.Metrics[i] = m.metric()
	}
	return a.logBatch(c, q.RunID, b)
}

func batchTooLarge(n int64) error {
	return fault.New(fault.Invalid, "Batched logging API requests must be at most %d bytes, got a request of size %d.", maxBatchBody, n)
}

type countingBody struct {
	io.ReadCloser
	n int64
}

func (b *countingBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.n += int64(n)
	return n, err
}

func serveLogModel(a *API, c *call, q *struct {
	RunID     string `json:"run_id" mlflow:"required,alias=run_uuid"`
	ModelJSON string `json:"model_json" mlflow:"required"`
},
) (any, error) {
	return empty{}, a.tracking.Logging.RecordModel(c.r.Context(), c.project, tracking.RunID(q.RunID), q.ModelJSON)
}

type logInputs struct {
	RunID    string         `json:"run_id" mlflow:"required"`
	Datasets []datasetInput `json:"datasets"`
	Models   []modelInput   `json:"models"`
}

func serveLogInputs(a *API, c *call, q *logInputs) (any, error) {
	if err := checkRunID(q.RunID); err != nil {
		return nil, err
	}
	datasets := make([]tracking.DatasetInput, len(q.Datasets))
	for i, d := range q.Datasets {
		datasets[i] = tracking.DatasetInput{
			Name: d.Dataset.Name, Digest: d.Dataset.Digest, SourceType: d.Dataset.SourceType, Source: d.Dataset.Source,
			Schema: d.Dataset.Schema, Profile: d.Dataset.Profile, Tags: pairsIn(d.Tags),
		}
	}
	models := make([]tracking.LoggedModelID, len(q.Models))
	for i, m := range q.Models {
		models[i] = tracking.LoggedModelID(m.ModelID)
	}
	return empty{}, a.tracking.Logging.LogInputs(c.r.Context(), c.project, tracking.RunID(q.RunID), datasets, models)
}

func serveLogOutputs(a *API, c *call, q *struct {
	RunID  string         `json:"run_id" mlflow:"required"`
	Models *[]modelOutput `json:"models" mlflow:"required"`
},
) (any, error) {
	links := make([]tracking.ModelLink, len(*q.Models))
	for i, m := range *q.Models {
		links[i] = tracking.ModelLink{Model: tracking.LoggedModelID(m.ModelID), Step: m.Step}
	}
	return empty{}, a.tracking.Logging.LogOutputs(c.r.Context(), c.project, tracking.RunID(q.RunID), links)
}

type historyQuery struct {
	RunID      string `json:"run_id" mlflow:"required,alias=run_uuid"`
	MetricKey  string `json:"metric_key" mlflow:"required"`
	MaxResults *int64 `json:"max_results"`
	PageToken  string `json:"page_token"`
}

// serveHistory answers a page where one is asked for, else all points, which it
// writes page by page.
func serveHistory(a *API, c *call, q *historyQuery) (any, error) {
	if q.MaxResults != nil && *q.MaxResults <= 0 {
		return nil, fault.New(fault.Invalid, "Invalid value %d for parameter 'max_results' supplied. It must be a positive integer.", *q.MaxResults)
	}
	points, next, err := a.tracking.Runs.History(c.r.Context(), c.project, tracking.RunID(q.RunID), q.MetricKey, limit(q.MaxResults, 0), q.PageToken)
	if err != nil {
		return nil, err
	}
	if q.MaxResults != nil || next == "" {
		return struct {
			Metrics       []metric `json:"metrics,omitempty"`
			NextPageToken string   `json:"next_page_token,omitempty"`
		}{pointsOut(points), next}, nil
	}
	c.w.Header().Set("Content-Type", "application/json")
	w := bufio.NewWriterSize(c.w, 64<<10)
	_, _ = w.WriteString(`{"metrics":[`)
	for first := true; ; first = false {
		for i, p := range points {
			if !first || i > 0 {
				_ = w.WriteByte(',')
			}
			p.Run = ""
			b, err := json.Marshal(metricOut(p))
			if err != nil {
				return nil, err
			}
			if _, err := w.Write(b); err != nil {
				panic(http.ErrAbortHandler)
			}
		}
		if next == "" {
			break
		}
		points, next, err = a.tracking.Runs.History(c.r.Context(), c.project, tracking.RunID(q.RunID), q.MetricKey, 0, next)
		if err != nil {
			panic(http.ErrAbortHandler) // half an answer was sent: break it off
		}
	}
	_, _ = w.WriteString("]}")
	_ = w.Flush()
	return done{}, nil
}

// pointsOut are points of a run that the request names.
func pointsOut(in []tracking.Metric) []metric {
	out := metricsOut(in)
	for i := range out {
		out[i].RunID = ""
	}
	return out
}

// runIDRE is what MLflow takes for an identifier of a run, where it looks.
var runIDRE = regexp.MustCompile(`^[a-zA-Z0-9][\w-]{0,255}$`)

func checkRunID(id string) error {
	if runIDRE.MatchString(id) {
		return nil
	}
	return fault.New(fault.Invalid, "Invalid value %s for parameter 'run_id' supplied.", strconv.QuoteToASCII(clip(id)))
}

// Bounds of the chart requests of MLflow's user interface.
const (
	maxBulkRuns     = 100
	maxBulkPoints   = 25_000
	maxIntervalRun  = 2_500
	maxIntervalRead = 100_000 // points of one run that are read to choose from
)

type bulkQuery struct {
	RunIDs     []string `json:"run_ids"`
	RunID      []string `json:"run_id"`
	MetricKey  string   `json:"metric_key"`
	StartStep  *int64   `json:"start_step"`
	EndStep    *int64   `json:"end_step"`
	MaxResults *int64   `json:"max_results"`
}

func (q *bulkQuery) runs() ([]tracking.RunID, error) {
	all := slices.Concat(q.RunIDs, q.RunID)
	if len(all) == 0 {
		return nil, fault.New(fault.Invalid, "GetMetricHistoryBulk request must specify at least one run_id.")
	}
	if len(all) > maxBulkRuns {
		return nil, fault.New(fault.Invalid, "GetMetricHistoryBulk request cannot specify more than %d run_ids. Received %d run_ids.", maxBulkRuns, len(all))
	}
	out := make([]tracking.RunID, len(all))
	for i, r := range all {
		out[i] = tracking.RunID(r)
	}
	return out, nil
}

func serveHistoryBulk(a *API, c *call, q *bulkQuery) (any, error) {
	runs, err := q.runs()
	if err != nil {
		return nil, err
	}
	if q.MetricKey == "" {
		return nil, fault.New(fault.Invalid, "GetMetricHistoryBulk request must specify a metric_key.")
	}
	most := min(limit(q.MaxResults, maxBulkPoints), maxBulkPoints)
	out := []metric{}
	for _, r := range runs {
		if len(out) >= most {
			break
		}
		points, _, err := a.tracking.Runs.History(c.r.Context(), c.project, r, q.MetricKey, most-len(out), "")
		if err != nil {
			return nil, err
		}
		out = append(out, metricsOut(points)...)
	}
	return map[string]any{"metrics": out}, nil
}

func serveHistoryInterval(a *API, c *call, q *bulkQuery) (any, error) {
	if len(q.RunIDs) == 0 {
		return nil, missing("run_ids")
	}
	if q.MetricKey == "" {
		return nil, missing("metric_key")
	}
	if len(q.RunIDs) > maxBulkRuns {
		return nil, fault.New(fault.Invalid, "GetMetricHistoryBulkInterval request must specify at most %d run_ids. Received %d run_ids."+seeDocs, maxBulkRuns, len(q.RunIDs))
	}
	runs, err := q.runs()
	if err != nil {
		return nil, err
	}
	most := limit(q.MaxResults, maxIntervalRun)
	if most < 1 || most > maxIntervalRun {
		return nil, fault.New(fault.Invalid, "max_results must be between 1 and %d."+seeDocs, maxIntervalRun)
	}
	if (q.StartStep == nil) != (q.EndStep == nil) {
		return nil, fault.New(fault.Invalid, "If either start step or end step are specified, both must be specified.")
	}
	if q.StartStep != nil && *q.StartStep > *q.EndStep {
		return nil, fault.New(fault.Invalid, "end_step must be greater than start_step. Found start_step=%d and end_step=%d.", *q.StartStep, *q.EndStep)
	}
	out := []metric{}
	for _, r := range runs {
		var points []tracking.Metric
		for next := ""; ; {
			var found []tracking.Metric
			found, next, err = a.tracking.Runs.History(c.r.Context(), c.project, r, q.MetricKey, 0, next)
			if err != nil {
				return nil, err
			}
			for _, p := range found {
				if q.StartStep == nil || p.Step >= *q.StartStep && p.Step <= *q.EndStep {
					points = append(points, p)
				}
			}
			if next == "" || len(points) >= maxIntervalRead {
				break
			}
		}
		out = append(out, metricsOut(sample(points, most))...)
	}
	return struct {
		Metrics []metric `json:"metrics,omitempty"`
	}{out}, nil
}

// sample sorts points by step and keeps at most n: the first of each of n equal
// parts, and the last of all.
func sample(points []tracking.Metric, n int) []tracking.Metric {
	slices.SortStableFunc(points, func(a, b tracking.Metric) int {
		return cmp.Or(cmp.Compare(a.Step, b.Step), cmp.Compare(a.At, b.At), cmp.Compare(number(a.Value), number(b.Value)))
	})
	if len(points) <= n {
		return points
	}
	size, larger := len(points)/n, len(points)%n
	out := make([]tracking.Metric, n)
	for i := range out {
		out[i] = points[i*size+min(i, larger)]
	}
	out[n-1] = points[len(points)-1]
	return out
}

// number is a value as MLflow sorts it: NaN is 0.
func number(x float64) float64 {
	if math.IsNaN(x) {
		return 0
	}
	return x
}
