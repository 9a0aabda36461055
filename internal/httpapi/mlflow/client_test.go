package mlflow_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/httpapi/mlflow"
	"github.com/falaj-ml/falaj/internal/registry"
	"github.com/falaj-ml/falaj/internal/registry/registrysql"
	"github.com/falaj-ml/falaj/internal/store/storetest"
	"github.com/falaj-ml/falaj/internal/tracking"
	"github.com/falaj-ml/falaj/internal/tracking/trackingsql"
	"github.com/falaj-ml/falaj/internal/tracking/trackingtest"
)

const proj = "flights"

type world struct {
	tracking *tracking.Service
	registry *registry.Service
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
	db := storetest.SQLite(t, trackingsql.Migrations, registrysql.Migrations)
	w := &world{}
	objects, dir, sealer := trackingtest.NewArtifacts(t)
	w.objects, w.dir = objects, dir
	authz := trackingtest.Policy{
		"alice": {proj: {"*"}, "other": {"*"}},
		"vera":  {proj: {tracking.ActionRead, registry.ActionRead}},
		"mona":  {proj: {registry.ActionRead}},
	}
	w.tracking = tracking.New(tracking.Config{DB: db, Store: trackingsql.Store{}, Authz: authz, Artifacts: objects})
	w.registry = registry.New(registry.Config{
		DB: db, Store: registrysql.Store{}, Authz: authz, Runs: w.tracking, Objects: objects, Sealer: sealer,
	})
	mux := http.NewServeMux()
	mlflow.New(mlflow.Config{Tracking: w.tracking, Registry: w.registry, Authz: authz}).Register(mux)
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

// python is the interpreter with mlflow-skinny, or skips.
func python(t *testing.T) string {
	t.Helper()
	p, err := filepath.Abs("../../../.tmp/venv/mlflow/bin/python")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(p); err != nil {
		const how = "the MLflow client is not installed: make engines"
		if os.Getenv("CI") == "true" { //nolint:forbidigo // a test asks where it runs
			t.Fatal(how)
		}
		t.Skip(how)
	}
	return p
}

func TestMLflowClient(t *testing.T) {
	bin := python(t)
	w := open(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin, "testdata/client.py")
	cmd.Env = append(os.Environ(),
		"MLFLOW_TRACKING_URI="+w.url, "MLFLOW_TRACKING_TOKEN=alice", "MLFLOW_HTTP_REQUEST_MAX_RETRIES=0",
		"MLFLOW_DISABLE_TELEMETRY=true", "DO_NOT_TRACK=true", "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR=false", "HOME="+t.TempDir(), "GIT_PYTHON_REFRESH=quiet")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s\n%s", err, stdout.String(), stderr.String())
	}
	t.Log(stdout.String())
}

// TestRouteManifest holds our routes against the client's own list of methods:
// each is implemented or said to be unsupported. The list is read from the
// installed client when there is one, so a new release shows what it adds.
func TestRouteManifest(t *testing.T) {
	listed, err := os.ReadFile("testdata/routes.json")
	if err != nil {
		t.Fatal(err)
	}
	t.Run("fresh", func(t *testing.T) {
		out, err := exec.CommandContext(t.Context(), python(t), "testdata/routes.py").Output()
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(bytes.TrimSpace(out), bytes.TrimSpace(listed)) {
			t.Error("the installed client has other methods: run testdata/routes.py > testdata/routes.json and look at the difference")
		}
	})
	var rows []struct {
		RPC    string `json:"rpc"`
		Method string `json:"method"`
		Path   string `json:"path"`
		API    string `json:"api"`
	}
	if err := json.Unmarshal(listed, &rows); err != nil {
		t.Fatal(err)
	}
	if len(rows) < 180 {
		t.Fatalf("the list has %d methods", len(rows))
	}
	mux := http.NewServeMux()
	mlflow.New(mlflow.Config{}).Register(mux)
	unsupported := map[string]bool{}
	for _, r := range mlflow.Routes() {
		unsupported[r.Method+" "+r.Pattern] = r.Unsupported != ""
	}
	offered := 0
	for _, row := range rows {
		path := row.Path
		for _, wild := range []string{"{model_id}", "{tag_key}", "{request_id}", "{trace_id}", "{assessment_id}", "{assessment.trace_id}", "{workspace_name}", "{webhook_id}", "{dataset_id}", "{issue_id}", "{job_id}", "{key}", "<path:artifact_path>"} {
			path = strings.ReplaceAll(path, wild, "x")
		}
		for _, prefix := range []string{"/api/", "/ajax-api/"} {
			_, pattern := mux.Handler(httptest.NewRequest(row.Method, prefix+row.API+path, nil))
			no, known := unsupported[pattern]
			switch {
			case !known:
				t.Errorf("%s %s%s%s (%s) is neither implemented nor listed as unsupported (%q)", row.Method, prefix, row.API, row.Path, row.RPC, pattern)
			case !no:
				offered++
			}
		}
	}
	if offered < 2*60 {
		t.Errorf("only %d of %d methods are offered", offered/2, len(rows))
	}
	t.Logf("%d of %d methods are offered", offered/2, len(rows))
}
