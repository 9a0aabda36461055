package mlflow

import (
	"math"
	"slices"
	"strconv"

	"github.com/falaj-ml/falaj/internal/registry"
	"github.com/falaj-ml/falaj/internal/tracking"
)

// Names of proto enumerations, by number.
type (
	viewType    string
	runStatus   string
	modelStatus string
)

func (viewType) names() []string { return []string{"", "ACTIVE_ONLY", "DELETED_ONLY", "ALL"} }

func (v viewType) view() tracking.View {
	switch v {
	case "DELETED_ONLY":
		return tracking.ViewDeleted
	case "ALL":
		return tracking.ViewAll
	}
	return tracking.ViewActive
}

func (runStatus) names() []string {
	return []string{"", "RUNNING", "SCHEDULED", "FINISHED", "FAILED", "KILLED"}
}

func (modelStatus) names() []string {
	return []string{"", "LOGGED_MODEL_PENDING", "LOGGED_MODEL_READY", "LOGGED_MODEL_UPLOAD_FAILED"}
}

// double is a float64 as proto JSON writes it: NaN and the infinities as text.
func double(x float64) any {
	switch {
	case math.IsNaN(x):
		return "NaN"
	case math.IsInf(x, 1):
		return "Infinity"
	case math.IsInf(x, -1):
		return "-Infinity"
	}
	return x
}

type pair struct {
	Key   string `json:"key" mlflow:"required"`
	Value string `json:"value"`
}

func pairsIn(in []pair) []tracking.Pair {
	out := make([]tracking.Pair, len(in))
	for i, p := range in {
		out[i] = tracking.Pair(p)
	}
	return out
}

func pairsOut(in []tracking.Pair) []pair {
	out := make([]pair, len(in))
	for i, p := range in {
		out[i] = pair(p)
	}
	return out
}

type experiment struct {
	ExperimentID     string `json:"experiment_id"`
	Name             string `json:"name"`
	ArtifactLocation string `json:"artifact_location"`
	LifecycleStage   string `json:"lifecycle_stage"`
	LastUpdateTime   int64  `json:"last_update_time"`
	CreationTime     int64  `json:"creation_time"`
	Workspace        string `json:"workspace"`
	Tags             []pair `json:"tags,omitempty"`
}

// workspace is the only one, as of servers that have none.
const workspace = "default"

func formatExperiment(id tracking.ExperimentID) string { return strconv.FormatInt(int64(id), 10) }

func experimentOut(e tracking.Experiment) experiment {
	return experiment{
		ExperimentID: formatExperiment(e.ID), Name: e.Name, ArtifactLocation: "mlflow-artifacts:/" + formatExperiment(e.ID),
		LifecycleStage: string(e.Stage), LastUpdateTime: e.Updated.UnixMilli(), CreationTime: e.Created.UnixMilli(), Workspace: workspace, Tags: pairsOut(e.Tags),
	}
}

type metric struct {
	Key           string `json:"key"`
	Value         any    `json:"value"` // a double
	Timestamp     int64  `json:"timestamp"`
	Step          int64  `json:"step"`
	DatasetName   string `json:"dataset_name,omitempty"`
	DatasetDigest string `json:"dataset_digest,omitempty"`
	ModelID       string `json:"model_id,omitempty"`
	RunID         string `json:"run_id,omitempty"`
}

func metricOut(m tracking.Metric) metric {
	return metric{
		Key: m.Key, Value: double(m.Value), Timestamp: int64(m.At), Step: m.Step, DatasetName: m.DatasetName,
		DatasetDigest: m.DatasetDigest, ModelID: string(m.Model), RunID: string(m.Run),
	}
}

// latestOut are the latest metrics of a run, of which MLflow tells the value and
// when it was.
func latestOut(in []tracking.Metric) []metric {
	out := make([]metric, len(in))
	for i, m := range in {
		out[i] = metric{Key: m.Key, Value: double(m.Value), Timestamp: int64(m.At), Step: m.Step}
	}
	return out
}

func metricsOut(in []tracking.Metric) []metric {
	out := make([]metric, len(in))
	for i, m := range in {
		out[i] = metricOut(m)
	}
	return out
}

type runInfo struct {
	RunID          string `json:"run_id"`
	RunUUID        string `json:"run_uuid"`
	RunName        string `json:"run_name"`
	ExperimentID   string `json:"experiment_id"`
	UserID         string `json:"user_id"`
	Status         string `json:"status"`
	StartTime      int64  `json:"start_time"`
	EndTime        int64  `json:"end_time,omitempty"`
	ArtifactURI    string `json:"artifact_uri"`
	LifecycleStage string `json:"lifecycle_stage"`
}

type runData struct {
	Metrics []metric `json:"metrics,omitempty"`
	Params  []pair   `json:"params,omitempty"`
	Tags    []pair   `json:"tags,omitempty"`
}

type datasetBody struct {
	Name       string `json:"name"`
	Digest     string `json:"digest"`
	SourceType string `json:"source_type"`
	Source     string `json:"source"`
	Schema     string `json:"schema,omitempty"`
	Profile    string `json:"profile,omitempty"`
}

type datasetInput struct {
	Tags    []pair      `json:"tags,omitempty"`
	Dataset datasetBody `json:"dataset"`
}

type modelInput struct {
	ModelID string `json:"model_id" mlflow:"required"`
}

type modelOutput struct {
	ModelID string `json:"model_id" mlflow:"required"`
	Step    int64  `json:"step"`
}

type runInputs struct {
	DatasetInputs []datasetInput `json:"dataset_inputs,omitempty"`
	ModelInputs   []modelInput   `json:"model_inputs,omitempty"`
}

type runOutputs struct {
	ModelOutputs []modelOutput `json:"model_outputs,omitempty"`
}

type run struct {
	Info    runInfo     `json:"info"`
	Data    runData     `json:"data"`
	Inputs  runInputs   `json:"inputs"`
	Outputs *runOutputs `json:"outputs,omitempty"` // nil in the answer to a create
}

func artifactURI(r tracking.Run) string {
	return "mlflow-artifacts:/" + formatExperiment(r.Experiment) + "/" + string(r.ID) + "/artifacts"
}

func modelURI(m tracking.LoggedModel) string {
	return "mlflow-artifacts:/" + formatExperiment(m.Experiment) + "/models/" + string(m.ID) + "/artifacts"
}

func runInfoOut(r tracking.Run) runInfo {
	return runInfo{
		RunID: string(r.ID), RunUUID: string(r.ID), RunName: r.Name, ExperimentID: formatExperiment(r.Experiment),
		UserID: r.User, Status: string(r.Status), StartTime: int64(r.Start), EndTime: int64(r.End),
		ArtifactURI: artifactURI(r), LifecycleStage: string(r.Stage),
	}
}

func runOut(r tracking.Run) run {
	out := run{Info: runInfoOut(r), Data: runData{Metrics: latestOut(r.Metrics), Params: pairsOut(r.Params), Tags: pairsOut(r.Tags)}, Outputs: &runOutputs{}}
	for _, in := range r.Inputs {
		out.Inputs.DatasetInputs = append(out.Inputs.DatasetInputs, datasetInput{
			Tags: pairsOut(in.Tags),
			Dataset: datasetBody{
				Name: in.Name, Digest: in.Digest, SourceType: in.SourceType, Source: in.Source, Schema: in.Schema, Profile: in.Profile,
			},
		})
	}
	for _, l := range r.Models {
		if l.Output {
			out.Outputs.ModelOutputs = append(out.Outputs.ModelOutputs, modelOutput{ModelID: string(l.Model), Step: l.Step})
			continue
		}
		out.Inputs.ModelInputs = append(out.Inputs.ModelInputs, modelInput{ModelID: string(l.Model)})
	}
	return out
}

type loggedModelInfo struct {
	ModelID                string `json:"model_id"`
	ExperimentID           string `json:"experiment_id"`
	Name                   string `json:"name"`
	CreationTimestampMS    int64  `json:"creation_timestamp_ms"`
	LastUpdatedTimestampMS int64  `json:"last_updated_timestamp_ms"`
	ArtifactURI            string `json:"artifact_uri"`
	Status                 string `json:"status"`
	ModelType              string `json:"model_type"`
	SourceRunID            string `json:"source_run_id"`
	Tags                   []pair `json:"tags,omitempty"`
}

type loggedModel struct {
	Info loggedModelInfo `json:"info"`
	Data struct {
		Params  []pair   `json:"params,omitempty"`
		Metrics []metric `json:"metrics,omitempty"`
	} `json:"data"`
}

func loggedModelOut(m tracking.LoggedModel) loggedModel {
	out := loggedModel{Info: loggedModelInfo{
		ModelID: string(m.ID), ExperimentID: formatExperiment(m.Experiment), Name: m.Name,
		CreationTimestampMS: m.Created.UnixMilli(), LastUpdatedTimestampMS: m.Updated.UnixMilli(), ArtifactURI: modelURI(m),
		Status: string(m.Status), ModelType: m.Type, SourceRunID: string(m.Run), Tags: pairsOut(m.Tags),
	}}
	out.Data.Params, out.Data.Metrics = pairsOut(m.Params), metricsOut(m.Metrics)
	return out
}

type aliasBody struct {
	Alias   string `json:"alias"`
	Version string `json:"version"`
}

type registeredModel struct {
	Name                 string         `json:"name"`
	CreationTimestamp    int64          `json:"creation_timestamp"`
	LastUpdatedTimestamp int64          `json:"last_updated_timestamp"`
	Description          string         `json:"description,omitempty"`
	LatestVersions       []modelVersion `json:"latest_versions,omitempty"`
	Tags                 []pair         `json:"tags,omitempty"`
	Aliases              []aliasBody    `json:"aliases,omitempty"`
}

type modelVersion struct {
	Name                 string   `json:"name"`
	Version              string   `json:"version"`
	CreationTimestamp    int64    `json:"creation_timestamp"`
	LastUpdatedTimestamp int64    `json:"last_updated_timestamp"`
	UserID               string   `json:"user_id,omitempty"`
	CurrentStage         string   `json:"current_stage"`
	Description          string   `json:"description"`
	Source               string   `json:"source"`
	RunID                string   `json:"run_id,omitempty"`
	Status               string   `json:"status"`
	StatusMessage        string   `json:"status_message,omitempty"`
	Tags                 []pair   `json:"tags,omitempty"`
	RunLink              string   `json:"run_link"`
	Aliases              []string `json:"aliases,omitempty"`
	ModelID              string   `json:"model_id,omitempty"`
}

var versionStatus = map[registry.State]string{
	registry.Pending: "PENDING_REGISTRATION", registry.Ready: "READY", registry.Failed: "FAILED_REGISTRATION", registry.Deleted: "FAILED_REGISTRATION",
}

func versionOut(v registry.Version) modelVersion {
	return modelVersion{
		Name: v.Model, Version: strconv.Itoa(v.Number), CreationTimestamp: v.Created.UnixMilli(), LastUpdatedTimestamp: v.Updated.UnixMilli(),
		UserID: v.Owner, CurrentStage: string(v.Stage), Description: v.Description, Source: v.Source, RunID: string(v.Run),
		Status: versionStatus[v.State], StatusMessage: v.Message, Tags: pairsOut(v.Tags), RunLink: v.RunLink,
		Aliases: slices.Clone(v.Aliases), ModelID: string(v.LoggedModel),
	}
}

func versionsOut(in []registry.Version) []modelVersion {
	out := make([]modelVersion, len(in))
	for i, v := range in {
		out[i] = versionOut(v)
	}
	return out
}

func registeredOut(m registry.Model) registeredModel {
	out := registeredModel{
		Name: m.Name, CreationTimestamp: m.Created.UnixMilli(), LastUpdatedTimestamp: m.Updated.UnixMilli(),
		Description: m.Description, LatestVersions: versionsOut(m.Latest), Tags: pairsOut(m.Tags),
	}
	for _, a := range m.Aliases {
		out.Aliases = append(out.Aliases, aliasBody{a.Name, strconv.Itoa(a.Version)})
	}
	return out
}

type fileInfo struct {
	Path     string `json:"path"`
	IsDir    bool   `json:"is_dir"`
	FileSize *int64 `json:"file_size,omitempty"`
}

func fileOut(e tracking.Entry) fileInfo {
	if e.Dir {
		return fileInfo{Path: e.Path, IsDir: true}
	}
	return fileInfo{Path: e.Path, FileSize: &e.Size}
}
