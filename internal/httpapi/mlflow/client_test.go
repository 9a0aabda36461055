package mlflow_test

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/httpapi/mlflow"
	"github.com/falaj-ml/falaj/internal/monitoring/alert"
	"github.com/falaj-ml/falaj/internal/monitoring/alert/alertsql"
	"github.com/falaj-ml/falaj/internal/monitoring/webhook"
	"github.com/falaj-ml/falaj/internal/monitoring/webhook/webhooksql"
	"github.com/falaj-ml/falaj/internal/registry"
	"github.com/falaj-ml/falaj/internal/registry/registrysql"
	"github.com/falaj-ml/falaj/internal/store/storetest"
	"github.com/falaj-ml/falaj/internal/tracking"
	"github.com/falaj-ml/falaj/internal/tracking/trackingsql"
	"github.com/falaj-ml/falaj/internal/tracking/trackingtest"
)

const proj = "flights"

type world struct {
	tracking tracking.Services
	registry registry.Services
	webhooks *webhook.Service
	alerts   *alert.Sender
	objects  *blob.Store
	dir      string
	url      string
	handler  http.Handler
}

// tokens are the principals of the tests.
var tokens = map[string]identity.Principal{
	"alice": {Kind: identity.User, ID: "alice", Project: proj},
	"vera":  {Kind: identity.User, ID: "vera", Project: proj},
	"mona":  {Kind: identity.User, ID: "mona", Project: proj},
	"many":  {Kind: identity.User, ID: "alice"},
	"other": {Kind: identity.User, ID: "alice", Project: "other"},
}

func open(t *testing.T) *world {
	t.Helper()
	return openOn(t, storetest.SQLite)
}

func openPostgreSQL(t *testing.T) *world {
	t.Helper()
	return openOn(t, storetest.PostgreSQL)
}

func openOn(t *testing.T, database storetest.Open) *world {
	t.Helper()
	db := database(t, trackingsql.Migrations, registrysql.Migrations, alertsql.Migrations, webhooksql.Migrations)
	w := &world{}
	objects, dir, sealer := trackingtest.NewArtifacts(t)
	w.objects, w.dir = objects, dir
	authz := trackingtest.Policy{
		"alice": {proj: {"*"}, "other": {"*"}},
		"vera":  {proj: {tracking.ActionRead, registry.ActionRead}},
		"mona":  {proj: {registry.ActionRead}},
	}
	w.tracking = tracking.New(tracking.Config{DB: db, Store: trackingsql.Store{}, Authz: authz, Objects: objects})
	w.alerts = alert.New(alert.Config{DB: db, Store: alertsql.Store{}, Authz: authz, Sealer: sealer, Guard: everywhere{}, Allow: []string{"127.0.0.1"}})
	w.webhooks = webhook.New(webhook.Config{DB: db, Store: webhooksql.Store{}, Authz: authz, Sealer: sealer, Alerts: w.alerts})
	w.registry = registry.New(registry.Config{
		DB: db, Store: registrysql.Store{}, Authz: authz, Runs: w.tracking.Runs, LoggedModels: w.tracking.LoggedModels, Artifacts: w.tracking.Artifacts, Origins: w.tracking.Origins, Objects: objects, Sealer: sealer, Told: w.webhooks.Told,
	})
	mux := http.NewServeMux()
	mlflow.New(mlflow.Config{Tracking: w.tracking, Registry: w.registry, Webhooks: w.webhooks, Authz: authz}).Register(mux)
	api := mlflow.Guard(mux)
	w.handler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		who, ok := tokens[strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")]
		if !ok {
			http.Error(rw, "no", http.StatusUnauthorized)
			return
		}
		api.ServeHTTP(rw, r.WithContext(identity.With(r.Context(), who)))
	})
	server := httptest.NewServer(w.handler)
	t.Cleanup(server.Close)
	w.url = server.URL
	return w
}

// everywhere lets all go.
type everywhere struct{}

func (everywhere) Pass(context.Context, residency.Transfer) error { return nil }

// python is the interpreter of an environment with a client, or skips.
func python(t *testing.T, environment string) string {
	t.Helper()
	p, err := filepath.Abs("../../../.tmp/venv/" + environment + "/bin/python")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(p); err != nil {
		how := "the environment " + environment + " of an MLflow client is not installed: make engines"
		if os.Getenv("CI") == "true" { //nolint:forbidigo // a test asks where it runs
			t.Fatal(how)
		}
		t.Skip(how)
	}
	return p
}

// TestMLflowClient runs the unmodified clients, each on both databases.
func TestMLflowClient(t *testing.T) {
	t.Parallel()
	for _, environment := range []string{"mlflow", "mlflow-full", "mlflow-2"} { // skinny and full of this release, and the last one of MLflow 2
		for database, open := range map[string]func(*testing.T) *world{"SQLite": open, "PostgreSQL": openPostgreSQL} {
			t.Run(environment+"/"+database, func(t *testing.T) {
				t.Parallel()
				t.Log(open(t).client(t, environment, "client.py"))
			})
		}
	}
}

// TestAutologging trains with the libraries that MLflow watches.
func TestAutologging(t *testing.T) {
	t.Parallel()
	for database, open := range map[string]func(*testing.T) *world{"SQLite": open, "PostgreSQL": openPostgreSQL} {
		t.Run(database, func(t *testing.T) {
			t.Parallel()
			t.Log(open(t).client(t, "mlflow-full", "autolog.py"))
		})
	}
}

// TestAutologgingTorch: MLflow 2's, since what Debian has of torch is too old for that of 3.
func TestAutologgingTorch(t *testing.T) {
	t.Parallel()
	t.Log(open(t).client(t, "mlflow-torch", "autolog_torch.py"))
}

// client runs a script of testdata against the server, and gives what it says.
func (w *world) client(t *testing.T, environment, script string) string {
	t.Helper()
	bin := python(t, environment)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin, "testdata/"+script)
	cmd.Env = append(os.Environ(),
		"MLFLOW_TRACKING_URI="+w.url, "MLFLOW_TRACKING_TOKEN=alice", "MLFLOW_HTTP_REQUEST_MAX_RETRIES=0",
		"MLFLOW_DISABLE_TELEMETRY=true", "DO_NOT_TRACK=true", "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR=false", "HOME="+t.TempDir(), "GIT_PYTHON_REFRESH=quiet")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s\n%s", err, stdout.String(), stderr.String())
	}
	return stdout.String()
}

// byHand are routes that an MLflow server has beside those of its descriptors.
var byHand = []manifestRow{
	{RPC: "health", Method: "GET", Path: "/health"},
	{RPC: "version", Method: "GET", Path: "/version"},
	{RPC: "serverInfo", Method: "GET", Path: "/mlflow/server-info", API: "3.0"},
	{RPC: "getArtifact", Method: "GET", Path: "/get-artifact"},
	{RPC: "getModelVersionArtifact", Method: "GET", Path: "/model-versions/get-artifact"},
	{RPC: "uploadArtifact", Method: "POST", Path: "/mlflow/upload-artifact", API: "2.0"},
	{RPC: "getMetricHistoryBulk", Method: "GET", Path: "/mlflow/metrics/get-history-bulk", API: "2.0"},
	{RPC: "getMetricHistoryBulkInterval", Method: "GET", Path: "/mlflow/metrics/get-history-bulk-interval", API: "2.0"},
	{RPC: "getLoggedModelArtifact", Method: "GET", Path: "/mlflow/logged-models/{model_id}/artifacts/files", API: "2.0"},
	{RPC: "getTraceArtifact", Method: "GET", Path: "/mlflow/get-trace-artifact", API: "2.0"},
	{RPC: "gatewayProxy", Method: "GET", Path: "/mlflow/gateway-proxy", API: "2.0"},
	{RPC: "createPromptlabRun", Method: "POST", Path: "/mlflow/runs/create-promptlab-run", API: "2.0"},
	{RPC: "exportTraces", Method: "POST", Path: "/v1/traces"},
	{RPC: "graphql", Method: "POST", Path: "/graphql"},
}

type manifestRow struct {
	RPC    string `json:"rpc"`
	Method string `json:"method"`
	Path   string `json:"path"`
	API    string `json:"api"` // empty: no prefix
}

// classical are the families that Falaj offers in whole, by the segment after
// /mlflow/. Of others it answers 501.
var classical = []string{"experiments", "runs", "metrics", "artifacts", "mlflow-artifacts", "logged-models", "registered-models", "model-versions", "webhooks", "server-info"}

// TestRouteManifest holds our routes against the client's own list of methods:
// each is implemented, or is said to be unsupported and answered so, under both
// prefixes. The list is read from the installed client when there is one, so a new
// release shows what it adds.
func TestRouteManifest(t *testing.T) {
	listed, err := os.ReadFile("testdata/routes.json")
	if err != nil {
		t.Fatal(err)
	}
	t.Run("fresh", func(t *testing.T) {
		out, err := exec.CommandContext(t.Context(), python(t, "mlflow"), "testdata/routes.py").Output()
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(bytes.TrimSpace(out), bytes.TrimSpace(listed)) {
			t.Error("the installed client has other methods: run testdata/routes.py > testdata/routes.json and look at the difference")
		}
	})
	var rows []manifestRow
	if err := json.Unmarshal(listed, &rows); err != nil {
		t.Fatal(err)
	}
	if len(rows) < 180 {
		t.Fatalf("the list has %d methods", len(rows))
	}
	rows = append(rows, byHand...)
	w := open(t)
	mux := http.NewServeMux()
	mlflow.New(mlflow.Config{}).Register(mux)
	unsupported := map[string]string{}
	for _, r := range mlflow.Routes() {
		unsupported[r.Method+" "+r.Pattern] = r.Unsupported
	}
	wild := regexp.MustCompile(`\{[a-z._]+\}|<path:artifact_path>`)
	type count struct{ offered, all int }
	families := map[string]*count{}
	for _, row := range rows {
		family, _, _ := strings.Cut(strings.TrimPrefix(row.Path, "/mlflow/"), "/")
		if strings.HasPrefix(row.Path, "/mlflow-artifacts/") {
			family = "mlflow-artifacts"
		} else if row.API == "" {
			family = row.Path
		}
		n := families[family]
		if n == nil {
			n = &count{}
			families[family] = n
		}
		n.all++
		prefixes := []string{"/api/" + row.API, "/ajax-api/" + row.API}
		if row.API == "" {
			prefixes = []string{""}
		}
		for i, prefix := range prefixes {
			path := prefix + wild.ReplaceAllString(row.Path, "x")
			_, pattern := mux.Handler(httptest.NewRequest(row.Method, path, nil))
			why, known := unsupported[pattern]
			switch status, answer := w.do(t, "alice", row.Method, path, ""); {
			case !known:
				t.Errorf("%s %s (%s) is neither implemented nor listed as unsupported (%q)", row.Method, path, row.RPC, pattern)
			case why != "":
				var envelope struct {
					Code    string `json:"error_code"`
					Message string `json:"message"`
				}
				if err := json.Unmarshal([]byte(answer), &envelope); err != nil || status != http.StatusNotImplemented || envelope.Code != "NOT_IMPLEMENTED" || envelope.Message != why {
					t.Errorf("%s %s, which is not offered: %d %s", row.Method, path, status, answer)
				}
				if slices.Contains(classical, family) && row.RPC != "getPresignedDownloadUrl" && row.RPC != "createPromptlabRun" {
					t.Errorf("%s %s (%s) is of classical machine learning and not offered", row.Method, path, row.RPC)
				}
			case strings.Contains(answer, "ENDPOINT_NOT_FOUND") || status == http.StatusNotImplemented:
				t.Errorf("%s %s, which is offered: %d %s", row.Method, path, status, answer)
			case i == 0:
				n.offered++
			}
		}
	}
	total := count{}
	for _, family := range slices.Sorted(maps.Keys(families)) {
		n := families[family]
		total.offered, total.all = total.offered+n.offered, total.all+n.all
		t.Logf("%-28s %3d of %3d", family, n.offered, n.all)
	}
	t.Logf("%d of %d methods are offered; the others answer 501", total.offered, total.all)
}
