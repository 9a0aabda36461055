package mlflow

import (
	"net/http"
	"strings"

	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/monitoring/webhook"
	"github.com/falaj-ml/falaj/internal/registry"
	"github.com/falaj-ml/falaj/internal/tracking"
)

// Route is one route of the API.
type Route struct {
	Method  string
	Pattern string // of http.ServeMux, without the method
	// Action is asked of the token's project before anything is decoded. Empty
	// on what tells nothing of any project: an authenticated caller is enough.
	Action policy.Action
	// Unsupported says, for people, why this part of MLflow is answered 501.
	Unsupported string
	// Upload says that the body is a file of any size.
	Upload bool
	// Reads is a POST that changes nothing, KeepsNothing one that stores nothing new.
	Reads, KeepsNothing bool

	stream bool // the handler bounds the body itself
	// actionOf replaces Action where the path says what is asked for.
	actionOf func(*http.Request) policy.Action
	handle   func(*API, *call) (any, error)
}

const (
	readRun      = tracking.ActionRead
	writeRun     = tracking.ActionWrite
	readModel    = registry.ActionRead
	writeModel   = registry.ActionWrite
	promoteModel = registry.ActionPromote
	readHook     = webhook.ActionRead
	writeHook    = webhook.ActionApply
)

// api are the routes below /api/2.0 and /ajax-api/2.0.
func api() []Route {
	get, post, put, patch, del := http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete
	return []Route{
		{Method: post, Pattern: "/mlflow/experiments/create", Action: writeRun, handle: handle(serveCreateExperiment)},
		{Method: post, Pattern: "/mlflow/experiments/search", Action: readRun, Reads: true, handle: handle(serveSearchExperiments)},
		{Method: get, Pattern: "/mlflow/experiments/search", Action: readRun, handle: handle(serveSearchExperiments)},
		{Method: get, Pattern: "/mlflow/experiments/get", Action: readRun, handle: handle(serveExperiment)},
		{Method: get, Pattern: "/mlflow/experiments/get-by-name", Action: readRun, handle: handle(serveExperimentByName)},
		{Method: post, Pattern: "/mlflow/experiments/update", Action: writeRun, handle: handle(serveUpdateExperiment)},
		{Method: post, Pattern: "/mlflow/experiments/delete", Action: writeRun, KeepsNothing: true, handle: handle(serveDeleteExperiment)},
		{Method: post, Pattern: "/mlflow/experiments/restore", Action: writeRun, handle: handle(serveRestoreExperiment)},
		{Method: post, Pattern: "/mlflow/experiments/set-experiment-tag", Action: writeRun, handle: handle(serveSetExperimentTag)},
		{Method: post, Pattern: "/mlflow/experiments/delete-experiment-tag", Action: writeRun, KeepsNothing: true, handle: handle(serveDeleteExperimentTag)},
		{Method: post, Pattern: "/mlflow/experiments/search-datasets", Action: readRun, handle: handle(serveSearchDatasets)},

		{Method: post, Pattern: "/mlflow/runs/create", Action: writeRun, handle: handle(serveCreateRun)},
		{Method: post, Pattern: "/mlflow/runs/update", Action: writeRun, handle: handle(serveUpdateRun)},
		{Method: post, Pattern: "/mlflow/runs/delete", Action: writeRun, KeepsNothing: true, handle: handle(serveDeleteRun)},
		{Method: post, Pattern: "/mlflow/runs/restore", Action: writeRun, handle: handle(serveRestoreRun)},
		{Method: get, Pattern: "/mlflow/runs/get", Action: readRun, handle: handle(serveRun)},
		{Method: post, Pattern: "/mlflow/runs/search", Action: readRun, Reads: true, handle: handle(serveSearchRuns)},
		{Method: post, Pattern: "/mlflow/runs/log-metric", Action: writeRun, handle: handle(serveLogMetric)},
		{Method: post, Pattern: "/mlflow/runs/log-parameter", Action: writeRun, handle: handle(serveLogParam)},
		{Method: post, Pattern: "/mlflow/runs/set-tag", Action: writeRun, handle: handle(serveSetTag)},
		{Method: post, Pattern: "/mlflow/runs/delete-tag", Action: writeRun, KeepsNothing: true, handle: handle(serveDeleteTag)},
		{Method: post, Pattern: "/mlflow/runs/log-batch", Action: writeRun, handle: serveLogBatch},
		{Method: post, Pattern: "/mlflow/runs/log-model", Action: writeRun, handle: handle(serveLogModel)},
		{Method: post, Pattern: "/mlflow/runs/log-inputs", Action: writeRun, handle: handle(serveLogInputs)},
		{Method: post, Pattern: "/mlflow/runs/outputs", Action: writeRun, handle: handle(serveLogOutputs)},
		{Method: get, Pattern: "/mlflow/metrics/get-history", Action: readRun, handle: handle(serveHistory)},
		{Method: get, Pattern: "/mlflow/metrics/get-history-bulk", Action: readRun, handle: handle(serveHistoryBulk)},
		{Method: get, Pattern: "/mlflow/metrics/get-history-bulk-interval", Action: readRun, handle: handle(serveHistoryInterval)},

		{Method: get, Pattern: "/mlflow/artifacts/list", Action: readRun, handle: handle(serveListArtifacts)},
		{Method: post, Pattern: "/mlflow/artifacts/presigned-upload-url", Action: writeRun, handle: handle(servePresignedUpload)},
		{Method: post, Pattern: "/mlflow/artifacts/presigned-download-url", Action: readRun, handle: handle(servePresignedDownload)},
		{Method: get, Pattern: "/mlflow-artifacts/artifacts", Action: readRun, actionOf: proxyAction, handle: serveProxyList},
		{Method: get, Pattern: "/mlflow-artifacts/artifacts/{path...}", Action: readRun, actionOf: proxyAction, handle: serveProxyGet},
		{Method: put, Pattern: "/mlflow-artifacts/artifacts/{path...}", Action: writeRun, Upload: true, stream: true, handle: serveProxyPut},
		{Method: del, Pattern: "/mlflow-artifacts/artifacts/{path...}", Action: writeRun, handle: serveProxyDelete},
		{Method: post, Pattern: "/mlflow-artifacts/mpu/create/{path...}", Action: writeRun, handle: handle(serveBeginMultipart)},
		{Method: put, Pattern: "/mlflow-artifacts/mpu/parts/{upload}/{number}", Action: writeRun, Upload: true, stream: true, handle: servePutPart},
		{Method: post, Pattern: "/mlflow-artifacts/mpu/complete/{path...}", Action: writeRun, handle: handle(serveFinishMultipart)},
		{Method: post, Pattern: "/mlflow-artifacts/mpu/abort/{path...}", Action: writeRun, KeepsNothing: true, handle: handle(serveAbortMultipart)},
		{Method: get, Pattern: "/mlflow-artifacts/presigned/{path...}", Unsupported: "Multipart download is not supported for the current artifact repository"}, // the text that clients know
		{Method: post, Pattern: "/mlflow/upload-artifact", Action: writeRun, Upload: true, stream: true, handle: serveUploadArtifact},

		{Method: post, Pattern: "/mlflow/logged-models", Action: writeRun, handle: handle(serveCreateModel)},
		{Method: post, Pattern: "/mlflow/logged-models/search", Action: readRun, Reads: true, handle: handle(serveSearchModels)},
		{Method: get, Pattern: "/mlflow/logged-models/{model_id}", Action: readRun, handle: handle(serveModel)},
		{Method: patch, Pattern: "/mlflow/logged-models/{model_id}", Action: writeRun, handle: handle(serveFinalizeModel)},
		{Method: del, Pattern: "/mlflow/logged-models/{model_id}", Action: writeRun, handle: handle(serveDeleteModel)},
		{Method: patch, Pattern: "/mlflow/logged-models/{model_id}/tags", Action: writeRun, handle: handle(serveSetModelTags)},
		{Method: del, Pattern: "/mlflow/logged-models/{model_id}/tags/{tag_key}", Action: writeRun, handle: handle(serveDeleteModelTag)},
		{Method: post, Pattern: "/mlflow/logged-models/{model_id}/params", Action: writeRun, handle: handle(serveModelParams)},
		{Method: get, Pattern: "/mlflow/logged-models/{model_id}/artifacts/directories", Action: readRun, handle: handle(serveModelDirectories)},
		{Method: get, Pattern: "/mlflow/logged-models/{model_id}/artifacts/files", Action: readRun, handle: serveGetModelArtifact},

		{Method: post, Pattern: "/mlflow/registered-models/create", Action: writeModel, handle: handle(serveCreateRegistered)},
		{Method: post, Pattern: "/mlflow/registered-models/rename", Action: writeModel, handle: handle(serveRenameRegistered)},
		{Method: patch, Pattern: "/mlflow/registered-models/update", Action: writeModel, handle: handle(serveUpdateRegistered)},
		{Method: del, Pattern: "/mlflow/registered-models/delete", Action: writeModel, handle: handle(serveDeleteRegistered)},
		{Method: get, Pattern: "/mlflow/registered-models/get", Action: readModel, handle: handle(serveRegistered)},
		{Method: get, Pattern: "/mlflow/registered-models/search", Action: readModel, handle: handle(serveSearchRegistered)},
		{Method: get, Pattern: "/mlflow/registered-models/get-latest-versions", Action: readModel, handle: handle(serveLatestVersions)},
		{Method: post, Pattern: "/mlflow/registered-models/get-latest-versions", Action: readModel, Reads: true, handle: handle(serveLatestVersions)},
		{Method: post, Pattern: "/mlflow/registered-models/set-tag", Action: writeModel, handle: handle(serveSetRegisteredTag)},
		{Method: del, Pattern: "/mlflow/registered-models/delete-tag", Action: writeModel, handle: handle(serveDeleteRegisteredTag)},
		{Method: post, Pattern: "/mlflow/registered-models/alias", Action: promoteModel, handle: handle(serveSetAlias)},
		{Method: del, Pattern: "/mlflow/registered-models/alias", Action: promoteModel, handle: handle(serveDeleteAlias)},
		{Method: get, Pattern: "/mlflow/registered-models/alias", Action: readModel, handle: handle(serveByAlias)},
		{Method: post, Pattern: "/mlflow/model-versions/create", Action: writeModel, handle: handle(serveCreateVersion)},
		{Method: get, Pattern: "/mlflow/model-versions/get", Action: readModel, handle: handle(serveGetVersion)},
		{Method: patch, Pattern: "/mlflow/model-versions/update", Action: writeModel, handle: handle(serveUpdateVersion)},
		{Method: del, Pattern: "/mlflow/model-versions/delete", Action: writeModel, handle: handle(serveDeleteVersion)},
		{Method: get, Pattern: "/mlflow/model-versions/search", Action: readModel, handle: handle(serveSearchVersions)},
		{Method: post, Pattern: "/mlflow/model-versions/transition-stage", Action: promoteModel, handle: handle(serveTransition)},
		{Method: post, Pattern: "/mlflow/model-versions/set-tag", Action: writeModel, handle: handle(serveSetVersionTag)},
		{Method: del, Pattern: "/mlflow/model-versions/delete-tag", Action: writeModel, handle: handle(serveDeleteVersionTag)},
		{Method: get, Pattern: "/mlflow/model-versions/get-download-uri", Action: readModel, handle: handle(serveDownloadURI)},

		{Method: post, Pattern: "/mlflow/webhooks", Action: writeHook, handle: handle(serveCreateWebhook)},
		{Method: get, Pattern: "/mlflow/webhooks", Action: readHook, handle: handle(serveWebhooks)},
		{Method: get, Pattern: "/mlflow/webhooks/{webhook_id}", Action: readHook, handle: handle(serveWebhook)},
		{Method: patch, Pattern: "/mlflow/webhooks/{webhook_id}", Action: writeHook, handle: handle(serveUpdateWebhook)},
		{Method: del, Pattern: "/mlflow/webhooks/{webhook_id}", Action: writeHook, handle: handle(serveDeleteWebhook)},
		{Method: post, Pattern: "/mlflow/webhooks/{webhook_id}/test", Action: writeHook, handle: handle(serveTestWebhook)},
	}
}

// families are the parts of MLflow that are not offered, by the segment after
// /mlflow/.
var families = []struct{ segment, why string }{
	{"traces", "Traces of language models are not supported: send OpenTelemetry to a collector."},
	{"unified-traces", "Traces of language models are not supported."},
	{"get-online-trace-details", "Traces of language models are not supported."},
	{"get-trace-artifact", "Traces of language models are not supported."},
	{"datasets", "Evaluation datasets are not supported: use Falaj datasets."},
	{"scorers", "Scorers are not supported."},
	{"issues", "Issues are not supported."},
	{"label-schemas", "Label schemas are not supported."},
	{"review-queues", "Review queues are not supported."},
	{"gateway", "The gateway for language models is not supported."},
	{"prompt-optimization", "Prompt optimization is not supported."},
	{"workspaces", "MLflow workspaces are not supported: a token is bound to one Falaj project."},
	{"gateway-proxy", "The gateway for language models is not supported."},
	{"scorer", "Scorers are not supported."},
	{"jobs", "MLflow's jobs are not supported: use Falaj jobs."},
	{"ui-telemetry", "MLflow's web interface is not supported."},
}

// Routes is every route, as patterns of http.ServeMux.
func Routes() []Route {
	out := []Route{
		{Method: http.MethodGet, Pattern: "/health", handle: serveHealth},
		{Method: http.MethodGet, Pattern: "/version", handle: serveVersion},
		{Method: http.MethodGet, Pattern: "/api/3.0/mlflow/server-info", handle: serveInfo},
		{Method: http.MethodGet, Pattern: "/ajax-api/3.0/mlflow/server-info", handle: serveInfo},
		{Method: http.MethodGet, Pattern: "/get-artifact", Action: readRun, handle: serveGetArtifact},
		{Method: http.MethodGet, Pattern: "/model-versions/get-artifact", Action: readModel, handle: serveGetVersionArtifact},
	}
	out = append(out,
		Route{Method: http.MethodPost, Pattern: "/v1/traces", Unsupported: "Traces of language models are not supported: send OpenTelemetry to a collector."},
		Route{Method: http.MethodPost, Pattern: "/graphql", Unsupported: "MLflow's web interface and GraphQL are not supported: use the REST API."},
	)
	for _, prefix := range []string{"/api/2.0", "/ajax-api/2.0"} {
		out = append(out, Route{Method: http.MethodPost, Pattern: prefix + "/mlflow/runs/create-promptlab-run", Unsupported: "Prompts are not supported."})
	}
	for _, r := range api() {
		for _, prefix := range []string{"/api/2.0", "/ajax-api/2.0"} {
			c := r
			c.Pattern = prefix + r.Pattern
			out = append(out, c)
		}
	}
	for _, f := range families {
		for _, prefix := range []string{"/api/2.0", "/api/3.0", "/ajax-api/2.0", "/ajax-api/3.0"} {
			for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPatch, http.MethodDelete} {
				for _, rest := range []string{"", "/{rest...}"} {
					out = append(out, Route{Method: method, Pattern: prefix + "/mlflow/" + f.segment + rest, Unsupported: f.why})
				}
			}
		}
	}
	return out
}

// proxyAction is what reading below mlflow-artifacts takes: the files of model
// versions are models, all else belongs to runs.
func proxyAction(r *http.Request) policy.Action {
	p := r.PathValue("path")
	if p == "" {
		p = strings.TrimLeft(r.URL.Query().Get("path"), "/")
	}
	if strings.HasPrefix(p, "registry/") {
		return readModel
	}
	return readRun
}
