package mlflow_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/httpapi/mlflow"
	"github.com/falaj-ml/falaj/internal/monitoring/webhook"
	"github.com/falaj-ml/falaj/internal/registry"
	"github.com/falaj-ml/falaj/internal/tracking"
	"github.com/falaj-ml/falaj/internal/tracking/trackingtest"
)

func (w *world) do(t *testing.T, token, method, path, body string) (status int, answer string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, w.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func (w *world) run(t *testing.T) tracking.Run {
	t.Helper()
	r, err := w.tracking.Runs.CreateRun(identity.With(t.Context(), tokens["alice"]), proj, tracking.RunSpec{Name: "r"}, tracking.RunOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestTexts holds the messages and forms that clients and MLflow's own tests
// look for.
func TestTexts(t *testing.T) {
	w := open(t)
	run := string(w.run(t).ID)
	post, get := http.MethodPost, http.MethodGet
	tests := []struct {
		method, path, body string
		status             int
		want               string
	}{
		{post, "/runs/log-metric", `{"run_id":31,"key":"m","value":1,"timestamp":1}`, 400, `{"error_class":"INVALID_PARAMETER_VALUE","error_code":"INVALID_PARAMETER_VALUE","message":"Invalid value 31 for parameter 'run_id' supplied:  Hint: Value was of type 'int'. See the API docs for more information about request parameters.","sqlstate":"KAM00"}`},
		{post, "/runs/log-metric", `{"run_id":"` + run + `","key":"m","value":1,"timestamp":1,"step":"foo"}`, 400, `Invalid value \"foo\" for parameter 'step' supplied`},
		{post, "/runs/log-metric", `{"key":"m","value":1,"timestamp":1}`, 400, `Missing value for required parameter 'run_id'`},
		{post, "/runs/log-metric", `{"run_id":"` + run + `","key":"m","timestamp":1}`, 400, `Missing value for required parameter 'value'`},
		{post, "/runs/log-metric", `{"run_uuid":"` + run + `","key":"m","value":"NaN","timestamp":"12","step":"3"}`, 200, `{}`},
		{post, "/runs/log-metric", `{"runId":"` + run + `","key":"inf","value":"-Infinity","timestamp":1.0,"unknown":{}}`, 200, `{}`},
		{post, "/runs/log-metric", `{"runId":"` + run + `","run_id":"x","key":"inf","value":1,"timestamp":1}`, 400, `Request specifies both 'run_id' and 'runId'`},
		{post, "/runs/log-metric", `{"run_id":"` + run + `","key":"m","value":true,"timestamp":1}`, 400, `Invalid value true for parameter 'value' supplied:  Hint: Value was of type 'bool'`},
		{post, "/runs/log-metric", `{"run_id":"` + run + `","key":"m","value":1,"timestamp":1.5}`, 400, `for parameter 'timestamp' supplied`},
		{get, "/metrics/get-history?run_id=" + run + "&metric_key=m", "", 200, `{"metrics":[{"key":"m","value":"NaN","timestamp":12,"step":3}]}`},
		{get, "/runs/get?run_id=" + run, "", 200, `"value":"-Infinity"`},
		{get, "/runs/get?run_uuid=" + run, "", 200, `"lifecycle_stage":"active"`},
		{get, "/runs/get", "", 400, `Missing value for required parameter 'run_id'`},
		{get, "/runs/get?run_id=nope", "", 404, `Run with id=nope not found`},
		{get, "/experiments/get?experiment_id=999", "", 404, `"error_code":"RESOURCE_DOES_NOT_EXIST"`},
		{get, "/experiments/get?experiment_id=x", "", 400, `Invalid experiment ID 'x'. Experiment ID must be a valid integer.`},
		{post, "/experiments/create", `{"name":""}`, 400, `Missing value for required parameter 'name'`},
		{post, "/experiments/create", `{"name":"x","artifact_location":"file:///etc"}`, 400, `Leave artifact_location empty`},
		{post, "/experiments/create", `{"name":"Default"}`, 400, `"error_code":"RESOURCE_ALREADY_EXISTS"`},
		{post, "/experiments/search", `"{\"max_results\": \"5\"}"`, 200, `"experiments":[{"experiment_id":"0"`},
		{get, "/experiments/search?max_results=5&order_by=name&order_by=creation_time+DESC", "", 200, `"name":"Default"`},
		{post, "/experiments/search", `{"view_type":"ALL"}`, 200, `"Default"`},
		{post, "/experiments/search", `{"view_type":3}`, 200, `"Default"`},
		{post, "/experiments/search", `{"view_type":"NONE"}`, 400, `for parameter 'view_type' supplied`},
		{post, "/runs/search", `{"experiment_ids":["0"],"max_results":123456789}`, 400, `Invalid value 123456789 for parameter 'max_results' supplied`},
		{post, "/runs/search", `{"experiment_ids":"0"}`, 400, `Invalid value \"0\" for parameter 'experiment_ids' supplied:  Hint: Value was of type 'str'`},
		{post, "/runs/search", `{"experiment_ids":["0"],"order_by":[3]}`, 400, `for parameter 'order_by' supplied`},
		{post, "/runs/update", `{"run_id":"` + run + `","status":"DONE"}`, 400, `Invalid value \"DONE\" for parameter 'status' supplied`},
		{post, "/runs/update", `{"run_id":"` + run + `","status":3,"end_time":"77"}`, 200, `"status":"FINISHED"`},
		{post, "/runs/log-batch", `{"run_id":"` + run + `","tags":[{"value":"v"}]}`, 400, `Missing value for required parameter 'tags[0].key'`},
		{post, "/runs/log-batch", `{"run_id":"` + run + `","metrics":[{"key":"m","value":1}]}`, 400, `Missing value for required parameter 'metrics[0].timestamp'`},
		{post, "/runs/log-batch", `{"run_id":"` + run + `","params":[{"key":"` + strings.Repeat("x", 1_000_000) + `"}]}`, 400, `Batched logging API requests must be at most 1000000 bytes, got a request of size 1000`},
		{post, "/runs/log-batch", `{"run_id":"` + run + `"`, 400, `not JSON`},
		{post, "/runs/log-batch", `[1]`, 400, `not a JSON object`},
		{post, "/runs/log-model", `{"run_id":"` + run + `","model_json":"{}"}`, 400, `Model json is missing mandatory fields`},
		{post, "/runs/log-model", `{"run_id":"` + run + `","model_json":"{\"artifact_path\":\"m\",\"flavors\":{},\"utc_time_created\":\"x\",\"run_id\":\"r\"}"}`, 200, `{}`},
		{post, "/model-versions/create", `{"name":"x","source":"runs:/x/y"}`, 400, `Invalid model version source`},
		{get, "/model-versions/get?name=x&version=one", "", 400, `Parameter 'version' must be an integer, got 'one'.`},
		{get, "/registered-models/get?name=absent", "", 404, `Registered Model with name=absent not found`},
		{get, "/metrics/get-history-bulk?metric_key=m&run_id=" + run, "", 200, `"run_id":"` + run},
		{get, "/metrics/get-history-bulk-interval?metric_key=m&run_ids=" + run + "&start_step=0&end_step=9&max_results=5", "", 200, `"step":3`},
		{get, "/metrics/get-history-bulk-interval?metric_key=m&run_ids=" + run + "&start_step=9&end_step=0", "", 400, `end_step must be greater than start_step`},
		{get, "/no-such-thing", "", 404, `"error_code":"ENDPOINT_NOT_FOUND"`},
		{post, "/scorers", `{}`, 501, `"error_code":"NOT_IMPLEMENTED"`},
	}
	for _, tt := range tests {
		for _, prefix := range []string{"/api", "/ajax-api"} {
			if prefix == "/ajax-api" && (tt.method == post || strings.Contains(tt.body, "timestamp")) {
				continue // the same handlers; writing twice would say nothing new
			}
			t.Run(tt.method+" "+prefix+tt.path[:min(len(tt.path), 60)], func(t *testing.T) {
				status, answer := w.do(t, "alice", tt.method, prefix+"/2.0/mlflow"+tt.path, tt.body)
				if status != tt.status || !strings.Contains(answer, tt.want) {
					t.Errorf("%d %s\nwant %d %s", status, answer, tt.status, tt.want)
				}
			})
		}
	}
	for path, want := range map[string]string{
		"/health": "OK", "/version": mlflow.Version, "/api/3.0/mlflow/server-info": `"workspaces_enabled":false`,
	} {
		if status, answer := w.do(t, "alice", get, path, ""); status != 200 || !strings.Contains(answer, want) {
			t.Errorf("%s: %d %s", path, status, answer)
		}
	}
}

// TestPermissionFirst holds that nothing of a body is decoded for who may not
// act, on every route.
func TestPermissionFirst(t *testing.T) {
	w := open(t)
	reads := map[string]bool{string(tracking.ActionRead): true, string(registry.ActionRead): true, string(webhook.ActionRead): true}
	for _, r := range mlflow.Routes() {
		if r.Action == "" {
			continue
		}
		path := strings.NewReplacer("{path...}", "0/x", "{model_id}", "m_x", "{tag_key}", "k", "{webhook_id}", "wh_x", "{upload}", "upl_x", "{number}", "1").Replace(r.Pattern)
		status, answer := w.do(t, "nobody", r.Method, path, "canary")
		if status != 401 {
			t.Errorf("%s %s without a token: %d %s", r.Method, path, status, answer)
		}
		status, answer = w.do(t, "many", r.Method, path, "canary")
		if status != 403 || !strings.Contains(answer, "is not bound to a project") && r.Method != http.MethodHead {
			t.Errorf("%s %s with a token of no project: %d %s", r.Method, path, status, answer)
		}
		if reads[string(r.Action)] {
			continue
		}
		status, answer = w.do(t, "vera", r.Method, path, "canary that is no JSON")
		if status != 403 || !strings.Contains(answer, "PERMISSION_DENIED") || strings.Contains(answer, "canary") {
			t.Errorf("%s %s by a viewer: %d %s", r.Method, path, status, answer)
		}
	}
	run := string(w.run(t).ID)
	if status, _ := w.do(t, "other", http.MethodGet, "/api/2.0/mlflow/runs/get?run_id="+run, ""); status != 404 {
		t.Errorf("another project's run: %d", status)
	}
}

// raw sends bytes as they are, past what clients clean.
func (w *world) raw(t *testing.T, request string) string {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(w.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(line)
}

// TestPathAttacks is the attack list on paths, over the wire.
func TestPathAttacks(t *testing.T) {
	w := open(t)
	run := string(w.run(t).ID)
	base := "/api/2.0/mlflow-artifacts/artifacts/"
	own := base + "0/" + run + "/artifacts/"
	if status, answer := w.do(t, "alice", http.MethodPut, own+"secret.txt", "secret"); status != 200 {
		t.Fatal(status, answer)
	}
	before := len(trackingtest.Objects(t, w.dir, "projects"))
	for _, path := range []string{
		own + "../../../x", own + "%2e%2e/%2e%2e/x", own + "%2e%2e%2f%2e%2e%2fx", own + "%252e%252e%252fx", own + "a/../secret.txt", own + "./x", own + "a//b", own + "..%5cx",
		own + "a%5c..%5cx", own + "%2fetc/passwd", own + "C:/x", own + "c%3a/x", own + "C%3a%5cx", own + "a%00b", own + "a%0ab", own + "a%23b", own + "%2543%253a%255cx",
		base + "../../../../etc/passwd", base + "%2e%2e/etc/passwd", base + "/etc/passwd", "/api/2.0/mlflow-artifacts/../mlflow-artifacts/artifacts/x",
		"/x/../api/2.0/mlflow/runs/get", "/api/2.0/mlflow/runs/../runs/get", "/api/2.0/mlflow//runs/get", "/api/2.0/mlflow/logged-models/%2e%2e%2fx",
		base + "registry/..%2f..%2fx/1/model", base + "registry/%2e%2e/1/x",
	} {
		for _, method := range []string{"PUT", "GET", "DELETE"} {
			got := w.raw(t, fmt.Sprintf("%s %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer alice\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx", method, path))
			if got != "HTTP/1.1 400 Bad Request" {
				t.Errorf("%s %s: %s", method, path, got)
			}
		}
	}
	// Plain paths that name nothing of ours are not found, and write nothing.
	for _, path := range []string{
		base + "x", base + "0/" + run + "/model", base + "0/run_x/artifacts/a", base + "0/models/m_x/artifacts/a", base + "registry/delay/1/a",
		base + "0/run_01J9Z6AAAAAAAAAAAAAAAAAAAA/artifacts/a", base + "%30x/" + run + "/artifacts/a",
	} {
		for _, method := range []string{"PUT", "GET", "DELETE"} {
			status, answer := w.do(t, "alice", method, path, "x")
			if status != 404 && status != 400 && (status != 403 || !strings.Contains(path, "registry")) {
				t.Errorf("%s %s: %d %s", method, path, status, answer)
			}
		}
	}
	for _, query := range []string{"../x", "..%2f..", "/etc", "0/" + run + "/artifacts/../..", "0/" + run + "/artifacts/%252e%252e", "x", "file:///etc"} {
		status, answer := w.do(t, "alice", http.MethodGet, "/api/2.0/mlflow-artifacts/artifacts?path="+query, "")
		if status != 400 && status != 404 {
			t.Errorf("list %s: %d %s", query, status, answer)
		}
		for _, path := range []string{"/get-artifact?run_id=" + run + "&path=", "/api/2.0/mlflow/artifacts/list?run_id=" + run + "&path=", "/model-versions/get-artifact?name=x&version=1&path="} {
			status, answer := w.do(t, "alice", http.MethodGet, path+strings.ReplaceAll(query, "0/"+run+"/artifacts/", ""), "")
			if status == 200 && (strings.Contains(answer, `"files"`) || !strings.Contains(path, "list")) {
				t.Errorf("%s%s: %d %s", path, query, status, answer)
			}
		}
	}
	if after := len(trackingtest.Objects(t, w.dir, "projects")); after != before {
		t.Errorf("%d objects were written", after-before)
	}
}

// TestRanges: a part of an artifact is what was asked for, as from MLflow's server; several
// parts at once are answered with the whole.
func TestRanges(t *testing.T) {
	w := open(t)
	ctx := identity.With(t.Context(), tokens["alice"])
	run := string(w.run(t).ID)
	own := "/api/2.0/mlflow-artifacts/artifacts/0/" + run + "/artifacts/"
	for name, body := range map[string]string{"model/digits.txt": "0123456789", "model/empty": ""} {
		if status, answer := w.do(t, "alice", http.MethodPut, own+name, body); status != 200 {
			t.Fatal(status, answer)
		}
	}
	if _, err := w.registry.Models.CreateModel(ctx, proj, "delay", "", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := w.registry.Versions.CreateVersion(ctx, proj, "delay", registry.VersionSpec{Source: "runs:/" + run + "/model"}); err != nil {
		t.Fatal(err)
	}
	etag := ""
	for _, tt := range []struct {
		file, header, value string
		status              int
		body, part          string
	}{
		{"digits.txt", "Range", "bytes=2-4", 206, "234", "bytes 2-4/10"},
		{"digits.txt", "Range", "bytes=-3", 206, "789", "bytes 7-9/10"},
		{"digits.txt", "Range", "bytes=8-", 206, "89", "bytes 8-9/10"},
		{"digits.txt", "Range", "bytes=0-100", 206, "0123456789", "bytes 0-9/10"},
		{"digits.txt", "Range", "bytes=10-", 416, "", "bytes */10"},
		{"digits.txt", "Range", "bytes=0-1,3-4", 200, "0123456789", ""},
		{"digits.txt", "If-None-Match", "etag", 304, "", ""},
		{"digits.txt", "If-None-Match", `"other"`, 200, "0123456789", ""},
		{"empty", "Range", "bytes=0-", 200, "", ""},
	} {
		for _, path := range []string{own + "model/", "/api/2.0/mlflow-artifacts/artifacts/registry/delay/1/"} {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.url+path+tt.file, nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Authorization", "Bearer alice")
			r.Header.Set(tt.header, strings.ReplaceAll(tt.value, "etag", etag))
			resp, err := http.DefaultTransport.RoundTrip(r)
			if err != nil {
				t.Fatal(err)
			}
			b, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			if resp.StatusCode != tt.status || tt.body != string(b) && tt.part != "bytes */10" || resp.Header.Get("Content-Range") != tt.part {
				t.Errorf("%s%s with %s: %s: %d %q, of %q", path, tt.file, tt.header, tt.value, resp.StatusCode, b, resp.Header.Get("Content-Range"))
			}
			if tt.file == "digits.txt" {
				etag = resp.Header.Get("ETag")
			}
		}
	}
	// "." is the root, as clients ask for all that a run has.
	for _, path := range []string{"/api/2.0/mlflow-artifacts/artifacts?path=0/" + run + "/artifacts/.", "/api/2.0/mlflow/artifacts/list?run_id=" + run + "&path=."} {
		if status, answer := w.do(t, "alice", http.MethodGet, path, ""); status != 200 || !strings.Contains(answer, `"model"`) {
			t.Errorf("%s: %d %s", path, status, answer)
		}
	}
	// A bad path is said before that there is no data.
	if status, answer := w.do(t, "alice", http.MethodPost, "/ajax-api/2.0/mlflow/upload-artifact?run_uuid="+run+"&path=../x", ""); status != 400 || !strings.Contains(answer, "Invalid path") {
		t.Errorf("%d %s", status, answer)
	}
	if status, answer := w.do(t, "alice", http.MethodPost, "/ajax-api/2.0/mlflow/experiments/search-datasets", `{"experiment_ids":[`+strings.Repeat(`"id_1",`, 20)+`"id_1"]}`); status != 400 || !strings.Contains(answer, "cannot specify more than 20 experiment_ids. Received 21") {
		t.Errorf("%d %s", status, answer)
	}
}

// TestVersionsOfLoggedModel: a logged model lists the versions that it became, where MLflow's clients look.
func TestVersionsOfLoggedModel(t *testing.T) {
	w := open(t)
	ctx := identity.With(t.Context(), tokens["alice"])
	m, err := w.tracking.LoggedModels.CreateLoggedModel(ctx, proj, tracking.LoggedModelSpec{Name: "m"})
	if err != nil {
		t.Fatal(err)
	}
	if status, answer := w.do(t, "alice", http.MethodPut, "/api/2.0/mlflow-artifacts/artifacts/0/models/"+string(m.ID)+"/artifacts/MLmodel", "flavors: {}"); status != 200 {
		t.Fatal(status, answer)
	}
	if _, err := w.tracking.LoggedModels.FinalizeLoggedModel(ctx, proj, m.ID, tracking.ModelReady); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"delay", `نموذج "1"`} {
		if _, err := w.registry.Models.CreateModel(ctx, proj, name, "", nil); err != nil {
			t.Fatal(err)
		}
		body, err := json.Marshal(map[string]string{"name": name, "source": "models:/" + string(m.ID), "model_id": string(m.ID)})
		if err != nil {
			t.Fatal(err)
		}
		if status, answer := w.do(t, "alice", http.MethodPost, "/api/2.0/mlflow/model-versions/create", string(body)); status != 200 {
			t.Fatal(status, answer)
		}
	}
	got, err := w.tracking.LoggedModels.LoggedModel(ctx, proj, m.ID)
	if want := `[{"name": "delay", "version": 1}, {"name": "نموذج \"1\"", "version": 1}]`; err != nil || len(got.Tags) != 1 || got.Tags[0] != (tracking.Pair{Key: "mlflow.modelVersions", Value: want}) {
		t.Errorf("%v %v, want %s", got.Tags, err, want)
	}
}

func TestDownloads(t *testing.T) {
	w := open(t)
	ctx := identity.With(t.Context(), tokens["alice"])
	run := string(w.run(t).ID)
	own := "/api/2.0/mlflow-artifacts/artifacts/0/" + run + "/artifacts/"
	if status, answer := w.do(t, "alice", http.MethodPut, own+"model/page.html", "<script>"); status != 200 || answer != "" {
		t.Fatal(status, answer)
	}
	if _, err := w.registry.Models.CreateModel(ctx, proj, "delay", "", nil); err != nil {
		t.Fatal(err)
	}
	v, err := w.registry.Versions.CreateVersion(ctx, proj, "delay", registry.VersionSpec{Source: "runs:/" + run + "/model"})
	if err != nil {
		t.Fatal(err)
	}
	registered := "/api/2.0/mlflow-artifacts/artifacts/registry/delay/1/page.html"
	for _, path := range []string{own + "model/page.html", "/get-artifact?run_id=" + run + "&path=model/page.html", registered, "/model-versions/get-artifact?name=delay&version=1&path=page.html"} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer alice")
		resp, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK || string(b) != "<script>" || resp.Header.Get("Content-Type") != "application/octet-stream" ||
			!strings.HasPrefix(resp.Header.Get("Content-Disposition"), "attachment") {
			t.Errorf("%s: %d %q %v", path, resp.StatusCode, b, resp.Header)
		}
	}
	// Who may read models only gets the model's files and not the run's.
	if status, answer := w.do(t, "mona", http.MethodGet, registered, ""); status != 200 {
		t.Errorf("a model reader: %d %s", status, answer)
	}
	if status, _ := w.do(t, "mona", http.MethodGet, own+"model/page.html", ""); status != 403 {
		t.Errorf("a model reader reads a run's artifact: %d", status)
	}
	for _, method := range []string{http.MethodPut, http.MethodDelete} {
		if status, answer := w.do(t, "alice", method, registered, "x"); status != 403 || !strings.Contains(answer, "are immutable") {
			t.Errorf("%s of a version's file: %d %s", method, status, answer)
		}
	}
	// A damaged object is said to be, whether its head or its body is, and what to do; never
	// quietly. Only who has got a part of it already sees the connection end.
	objects := trackingtest.Objects(t, w.dir, string(v.ModelID))
	for _, at := range []func(size int) int{func(size int) int { return size - 1 }, func(size int) int { return size / 3 }} {
		for _, name := range objects {
			b, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			b[at(len(b))] ^= 0xff
			if err := os.WriteFile(name, b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		status, answer := w.do(t, "alice", http.MethodGet, registered, "")
		if status != http.StatusConflict || !strings.Contains(answer, "does not match its signature") || !strings.Contains(answer, "register the model again") {
			t.Errorf("a damaged file: %d %s", status, answer)
		}
	}
}

func TestHistoryIsWhole(t *testing.T) {
	w := open(t)
	ctx := identity.With(t.Context(), tokens["alice"])
	run := w.run(t)
	const n = tracking.MaxHistory + 500
	for step := 0; step < n; step += tracking.MaxBatchMetrics {
		var b tracking.Batch
		for i := step; i < min(n, step+tracking.MaxBatchMetrics); i++ {
			b.Metrics = append(b.Metrics, tracking.Metric{Key: "loss", Value: float64(i), At: tracking.Millis(i), Step: int64(i)})
		}
		if err := w.tracking.Logging.Log(ctx, proj, run.ID, b); err != nil {
			t.Fatal(err)
		}
	}
	_, answer := w.do(t, "alice", http.MethodGet, "/api/2.0/mlflow/metrics/get-history?metric_key=loss&run_id="+string(run.ID), "")
	if got := strings.Count(answer, `"key"`); got != n || !strings.HasSuffix(answer, "]}") {
		t.Errorf("%d points, want %d", got, n)
	}
	_, answer = w.do(t, "alice", http.MethodGet, "/api/2.0/mlflow/metrics/get-history-bulk-interval?metric_key=loss&max_results=10&run_ids="+string(run.ID), "")
	if got := strings.Count(answer, `"key"`); got != 10 || !strings.Contains(answer, fmt.Sprintf(`"step":%d`, n-1)) || !strings.Contains(answer, `"step":0,`) {
		t.Errorf("sampled: %s", answer)
	}
}

// TestHintIsASentence: what to do next follows what is wrong.
func TestHintIsASentence(t *testing.T) {
	t.Parallel()
	for message, want := range map[string]string{
		"it is too long":         "it is too long. Cut it.",
		"It is too long.":        "It is too long. Cut it.",
		"in which zone is that?": "in which zone is that? Cut it.",
	} {
		w := httptest.NewRecorder()
		mlflow.Refuse(w, fault.New(fault.Invalid, "%s", message).WithHint("Cut it."))
		if !strings.Contains(w.Body.String(), `"message":"`+want+`"`) {
			t.Errorf("%q becomes %s", message, w.Body)
		}
	}
}
