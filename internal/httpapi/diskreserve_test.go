package httpapi

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/flight"
)

// full is an edge that has no room.
func full(t *testing.T, w *world) *Server {
	t.Helper()
	return New(Options{
		Auth: w.Accounts, Authz: w.Authority, DB: w.DB, Log: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry(),
		Ready: func() error { return nil }, Console: http.NotFoundHandler(),
		CheckDiskReserve: func() error { return fault.New(fault.Exhausted, "the disk is full").WithCause(fault.ErrFull) },
	}, w.server.Domains)
}

// TestNoRoom: with a disk that is nearly full every route that grows refuses,
// whatever stands in the place of a wildcard.
func TestNoRoom(t *testing.T) {
	w := open(t)
	s := full(t, w)
	ask := func(method, path string) answered {
		t.Helper()
		r := httptest.NewRequest(method, path, strings.NewReader("{}"))
		r.Host = "127.0.0.1"
		r.Header.Set("Authorization", "Bearer "+w.Secret)
		r.Header.Set("Falaj-Project", "flights")
		got := httptest.NewRecorder()
		s.ServeHTTP(got, r)
		return answered{got.Code, got.Header(), got.Body.String()}
	}
	grown := 0
	for _, r := range s.Routes() {
		if !growsDisk(r.Method + " " + r.Path) {
			continue
		}
		grown++
		for _, word := range append([]string{"x"}, keepsNothing...) {
			path := r.Path
			for _, wildcard := range []string{"{project}", "{path...}", "{rest...}", "{name}", "{ref}", "{id}", "{model_id}", "{job}"} {
				path = strings.ReplaceAll(path, wildcard, word)
			}
			if got := ask(r.Method, path); got.status != http.StatusInsufficientStorage {
				t.Errorf("%s %s: %d %.200s", r.Method, path, got.status, got.body)
			}
		}
	}
	if grown < 50 {
		t.Errorf("only %d routes grow", grown)
	}
	if got := ask("POST", "/api/v1/projects/flights/keys/destroy"); got.status != http.StatusBadRequest {
		t.Errorf("what makes room: %d %s", got.status, got.body)
	}
}

// TestGrowthless: whoever adds a route that ends in one of the words sees it here.
func TestGrowthless(t *testing.T) {
	var got []string
	for _, r := range edge(t, Domains{}).Routes() {
		if r.Method != http.MethodGet && r.Method != http.MethodDelete && r.Method != "" && !strings.HasPrefix(r.Path, "/ajax-api/") && !growsDisk(r.Method+" "+r.Path) {
			got = append(got, r.Method+" "+r.Path)
		}
	}
	slices.Sort(got)
	want := []string{
		"POST /api/2.0/mlflow/experiments/delete",
		"POST /api/2.0/mlflow/experiments/search",
		"POST /api/2.0/mlflow/logged-models/search",
		"POST /api/2.0/mlflow/registered-models/get-latest-versions",
		"POST /api/2.0/mlflow/runs/delete",
		"POST /api/2.0/mlflow/runs/delete-tag",
		"POST /api/2.0/mlflow/runs/search",
		"POST /api/v1/audit/erase",
		"POST /api/v1/environments/prune",
		"POST /api/v1/jobs/read",
		"POST /api/v1/projects/{project}/automation",
		"POST /api/v1/projects/{project}/deployments/{name}/automation",
		"POST /api/v1/projects/{project}/deployments/{name}/rollback",
		"POST /api/v1/projects/{project}/deployments/{name}/verify",
		"POST /api/v1/projects/{project}/erasures/erase",
		"POST /api/v1/projects/{project}/erasures/search",
		"POST /api/v1/projects/{project}/feature-runs/{run}/cancel",
		"POST /api/v1/projects/{project}/features/online",
		"POST /api/v1/projects/{project}/imports/mlflow/seen",
		"POST /api/v1/projects/{project}/ingestions/{run}/cancel",
		"POST /api/v1/projects/{project}/jobs/simulate",
		"POST /api/v1/projects/{project}/jobs/{job}/cancel",
		"POST /api/v1/projects/{project}/keys/destroy",
		"POST /api/v1/projects/{project}/models/{name}/versions/{version}/verify",
		"POST /api/v1/projects/{project}/query",
		"POST /api/v1/projects/{project}/runs/prune",
		"POST /api/v1/projects/{project}/training-sets/{ref}/verify",
		"POST /api/v1/projects/{project}/workloads/{workload}/worker/beat",
		"POST /api/v1/projects/{project}/workloads/{workload}/worker/end",
		"POST /api/v1/projects/{project}/workloads/{workload}/worker/join",
		"POST /api/v1/projects/{project}/workloads/{workload}/worker/log",
		"POST /api/v1/projects/{project}/workloads/{workload}/worker/profile",
		"POST /arrow.flight.protocol.FlightService/DoExchange",
		"POST /arrow.flight.protocol.FlightService/DoGet",
		"POST /arrow.flight.protocol.FlightService/GetFlightInfo",
		"POST /arrow.flight.protocol.FlightService/GetSchema",
		"POST /arrow.flight.protocol.FlightService/ListFlights",
		"POST /endpoints/{model}/invocations",
		"POST /falaj.online.v1.Features/Read",
		"POST /get-online-features",
		"POST /grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
		"POST /grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
		"POST /iceberg/v1/namespaces/{project}/tables/{table}/metrics",
		"POST /inference.GRPCInferenceService/",
		"POST /inference.GRPCInferenceService/CudaSharedMemoryRegister",
		"POST /inference.GRPCInferenceService/CudaSharedMemoryStatus",
		"POST /inference.GRPCInferenceService/CudaSharedMemoryUnregister",
		"POST /inference.GRPCInferenceService/LogSettings",
		"POST /inference.GRPCInferenceService/ModelConfig",
		"POST /inference.GRPCInferenceService/ModelInfer",
		"POST /inference.GRPCInferenceService/ModelMetadata",
		"POST /inference.GRPCInferenceService/ModelReady",
		"POST /inference.GRPCInferenceService/ModelStatistics",
		"POST /inference.GRPCInferenceService/ModelStreamInfer",
		"POST /inference.GRPCInferenceService/RepositoryIndex",
		"POST /inference.GRPCInferenceService/RepositoryModelLoad",
		"POST /inference.GRPCInferenceService/RepositoryModelUnload",
		"POST /inference.GRPCInferenceService/ServerLive",
		"POST /inference.GRPCInferenceService/ServerMetadata",
		"POST /inference.GRPCInferenceService/ServerReady",
		"POST /inference.GRPCInferenceService/SystemSharedMemoryRegister",
		"POST /inference.GRPCInferenceService/SystemSharedMemoryStatus",
		"POST /inference.GRPCInferenceService/SystemSharedMemoryUnregister",
		"POST /inference.GRPCInferenceService/TraceSetting",
		"POST /invocations",
		"POST /optuna.StorageService/DeleteStudy", "POST /optuna.StorageService/GetAllStudies", "POST /optuna.StorageService/GetStudyDirections", "POST /optuna.StorageService/GetStudyIdFromName", "POST /optuna.StorageService/GetStudyNameFromId", "POST /optuna.StorageService/GetStudySystemAttributes", "POST /optuna.StorageService/GetStudyUserAttributes", "POST /optuna.StorageService/GetTrial", "POST /optuna.StorageService/GetTrialIdFromStudyIdTrialNumber", "POST /optuna.StorageService/GetTrials", "POST /optuna.StorageService/SetTrialStateValues",
		"POST /v1/models/{call}",
		"POST /v1/models/{model}/versions/{call}",
		"POST /v2/logging",
		"POST /v2/models/{model}/infer",
		"POST /v2/models/{model}/trace/setting",
		"POST /v2/models/{model}/versions/{version}/infer",
		"POST /v2/repository/index",
		"POST /v2/repository/models/{model}/load",
		"POST /v2/repository/models/{model}/unload",
		"POST /v2/trace/setting",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("answered on a full disk (-wanted, +are):\n%s", diff)
	}
}

// TestRoomWhileReading: a file that began with room ends when there is none.
func TestRoomWhileReading(t *testing.T) {
	asked := 0
	s := &Server{log: slog.New(slog.DiscardHandler), checkDiskReserve: func() error {
		if asked++; asked > 3 {
			return fault.New(fault.Exhausted, "the disk is full")
		}
		return nil
	}}
	for path, want := range map[string]int64{
		"/api/2.0/mlflow-artifacts/artifacts/0/r/artifacts/x": 3 * reserveEvery,
		"/api/v1/projects/flights/datasets/x/versions":        3 * reserveEvery,
		flight.Prefix + "DoPut":                               3 * reserveEvery,
		"/api/v1/apply":                                       5 * reserveEvery,
	} {
		asked = 0
		method := http.MethodPost
		if strings.Contains(path, "mlflow") {
			method = http.MethodPut
		}
		var read int64
		var err error
		handle := s.requireDiskReserve(func(_ http.ResponseWriter, r *http.Request) { read, err = io.Copy(io.Discard, r.Body) })
		handle(httptest.NewRecorder(), httptest.NewRequest(method, path, bytes.NewReader(make([]byte, 5*reserveEvery))))
		if read < want || read > want+1<<20 || fault.Is(err, fault.Exhausted) != (want < 5*reserveEvery) {
			t.Errorf("%s: %d bytes were read, then %v", path, read, err)
		}
	}
}
