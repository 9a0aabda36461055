package routes

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/internal/flight"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/httpapi"
	"github.com/falaj-ml/falaj/internal/httpapi/feast"
	"github.com/falaj-ml/falaj/internal/httpapi/mlflow"
	"github.com/falaj-ml/falaj/internal/httpapi/oip"
	"github.com/falaj-ml/falaj/internal/httpapi/optuna"
	"github.com/falaj-ml/falaj/internal/httpapi/rpc"
	"github.com/falaj-ml/falaj/test/live"
)

const (
	flights = "flights"
	other   = "other"
	// hush is in every object of the project flights: no answer to an outsider
	// holds it.
	hush = "xyzzyhush"
)

const manifests = `
{api_version: falaj/v1, kind: Project, name: flights, spec: {display_name: xyzzyhush}}
---
{api_version: falaj/v1, kind: Project, name: other}
---
{api_version: falaj/v1, kind: Zone, name: DE, spec: {jurisdiction: DE, provider: none, trust: shared}}
---
{api_version: falaj/v1, kind: Pool, name: shut, spec: {closed: for good, nodes: [{name: n1, cpu: 4, memory: 8GiB}]}}
---
{api_version: falaj/v1, kind: Queue, name: lab}
---
{api_version: falaj/v1, kind: Budget, name: flights, spec: {per_month: 1000000}}
---
{api_version: falaj/v1, kind: Dataset, name: weather, project: flights, spec: {description: xyzzyhush}}
---
{api_version: falaj/v1, kind: Dataset, name: spare, project: flights}
---
{api_version: falaj/v1, kind: Dataset, name: plain, project: flights, spec: {protection: open, columns: [{name: a, type: int64}]}}
---
{api_version: falaj/v1, kind: Entity, name: origin, project: flights, spec: {description: xyzzyhush}}
---
{api_version: falaj/v1, kind: Secret, name: sesame, project: flights, spec: {description: xyzzyhush, values: {k: {value: xyzzyhush}}}}
---
{api_version: falaj/v1, kind: Source, name: well, project: flights, spec: {description: xyzzyhush, dataset: spare, secret: sesame, from: {postgres: {host: 127.0.0.1, port: 1, database: d, table: xyzzyhush}}}}
---
api_version: falaj/v1
kind: Policy
name: idle
project: flights
spec:
  description: xyzzyhush
  cedar: |
    forbid (principal, action == Action::"monitor.apply", resource) when { principal.name == "xyzzyhush" };
`

// onData is applied when there are versions.
const onData = `
api_version: falaj/v1
kind: FeatureView
name: temperature
project: flights
spec:
  description: xyzzyhush
  entities: [origin]
  source: {sql: "SELECT origin, seen, xyzzyhush FROM weather"}
  timestamp: seen
  features: [{name: xyzzyhush, type: float64}]
---
{api_version: falaj/v1, kind: FeatureService, name: service, project: flights, spec: {description: xyzzyhush, features: ["temperature:xyzzyhush"]}}
---
# Its data may be at home only, so it waits.
{api_version: falaj/v1, kind: Job, name: waiting, project: flights, spec: {command: [/bin/true, xyzzyhush], pools: [shut]}}
`

const weather = "origin,seen,xyzzyhush\nEWR,2013-01-01T00:00:00Z,1.5\nJFK,2013-01-01T01:00:00Z,2.5\n"

// caller is how somebody asks.
type caller struct{ name, authorization string }

func bearer(name, token string) caller { return caller{name, "Bearer " + token} }

var (
	nobody    = caller{name: "nobody"}
	malformed = bearer("a malformed token", "flj_svc_nonsense")
)

// world is a server with two projects and callers of all kinds.
type world struct {
	server                    *live.Server
	http                      *http.Client
	admin, neighbour, expired caller
	members                   map[project.Role]caller
	scoped                    map[policy.Action]caller // administrators, each with a token for one action
	param                     map[string]string        // path parameters by the segment before and their name
	fields                    map[string]any           // what MLflow's requests name
}

// open starts the server and makes what is in it.
func open(t *testing.T) *world {
	t.Helper()
	w := &world{
		server: live.New(t, ""), http: &http.Client{Timeout: live.Wait, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
		members: map[project.Role]caller{}, scoped: map[policy.Action]caller{},
	}
	w.server.Env = append(w.server.Env, "FALAJ_SOURCES_HOSTS=127.0.0.1")
	if err := w.server.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	c := w.server.Client(t)
	w.admin = bearer("the administrator", w.server.Token)
	_, err := c.Apply(t.Context(), "", []byte(manifests), false)
	must(t, err)
	for _, name := range []string{"weather", "spare"} {
		v, err := c.Import(t.Context(), flights, name, name+".csv", strings.NewReader(weather))
		if err != nil || v.Text("state") != "accepted" {
			t.Fatal(v, err)
		}
	}
	applied, err := c.Apply(t.Context(), "", []byte(onData), false)
	must(t, err)
	w.param = map[string]string{
		"oidc/provider": "absent", "projects/project": flights, "namespaces/project": flights, "tables/table": "plain", "views/view": "absent", "datasets/name": "weather", "datasets/ref": "weather@1", "entities/ref": "origin", "feature-views/ref": "temperature",
		"feature-services/ref": "service", "training-sets/ref": "absent@1", "environments/name": "absent", "jobs/job": applied[len(applied)-1].ID,
		"models/name": "delay", "versions/version": "1", "aliases/alias": "champion", "deployments/name": "absent", "gateways/name": "absent", "model-policies/name": "absent", "files/file": "model.onnx", "models/model": "absent", "models/call": "absent:predict", "versions/call": "1:predict", "endpoints/model": "absent", "pools/name": "shut", "zones/zone": "home", "budgets/project": "flights", "queues/name": "lab",
		"nodes/node": "absent", "checkpoints/name": "absent", "workloads/workload": "absent", "mounts/mount": "0",
		"policies/name": "idle", "secrets/name": "sesame", "erasures/id": "absent", "sources/name": "well", "accounts/ref": "service%2Fguest", "backups/name": "nightly",
		"manifests/kind": "Dataset", "/name": "weather", "monitors/name": "absent", "sweeps/name": "absent", "runs/run": "absent", "windows/window": "1-0", "webhook-secrets/name": "absent",
		"alerts/id":        "dlv_01ARZ3NDEKTSV4RRFFQ69G5FAV",
		"feature-runs/run": "fmr_01ARZ3NDEKTSV4RRFFQ69G5FAV",
		"ingestions/run":   "ing_01ARZ3NDEKTSV4RRFFQ69G5FAV",
		"requests/id":      "req_01ARZ3NDEKTSV4RRFFQ69G5FAV", // two persons have a right only where there are two
		"widenings/id":     "wid_01ARZ3NDEKTSV4RRFFQ69G5FAV", // only people decide on one, and the members here are services
	}
	for _, r := range project.Roles {
		w.members[r] = w.token(t, "a project's "+string(r), flights, string(r)+"1", r, "", nil)
	}
	for _, d := range policy.Actions() {
		w.scoped[d.Action] = w.token(t, "an administrator with a token for "+string(d.Action), flights, "boss", project.Admin, "", []string{string(d.Action)})
	}
	w.neighbour = w.token(t, "an administrator of another project", other, "neighbour", project.Admin, "", nil)
	w.tracked(t)

	// What only the test of the routes takes away.
	w.token(t, "", flights, "leaver", project.Viewer, "", nil)
	w.token(t, "", flights, "guest", project.Viewer, "", nil)
	var members struct{ Items []client.Object }
	must(t, c.Do(t.Context(), http.MethodGet, "/api/v1/projects/flights/members", nil, &members))
	var tokens struct{ Items []client.Object }
	must(t, c.Do(t.Context(), http.MethodGet, "/api/v1/tokens?project=flights&page_size=1000", nil, &tokens))
	for _, o := range tokens.Items {
		if o.Text("name") == "leaver" {
			w.param["tokens/id"] = o.Text("id")
			for _, g := range members.Items {
				if g.Text("principal") == o.Text("principal") {
					w.param["members/name"] = g.Text("name")
				}
			}
		}
	}
	if w.param["members/name"] == "" || w.param["tokens/id"] == "" {
		t.Fatal("the leaver is no member")
	}
	w.expired = w.brief(t)
	return w
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// token makes a service with a role, "" for none, and a token for it.
func (w *world) token(t *testing.T, name, in, service string, role project.Role, expires string, scopes []string) caller {
	t.Helper()
	var o client.Object
	body := map[string]any{"project": in, "name": service}
	if role != "" {
		body["role"] = role
	}
	if expires != "" {
		body["expires_in"] = expires
	}
	if scopes != nil {
		body["scopes"] = scopes
	}
	must(t, w.server.Client(t).Do(t.Context(), http.MethodPost, "/api/v1/tokens", body, &o))
	return bearer(name, o.Text("secret"))
}

// brief is a token that has expired: it was good, and its time is over.
func (w *world) brief(t *testing.T) caller {
	t.Helper()
	as := w.token(t, "an expired token", flights, "brief", project.Admin, "10s", nil)
	if got := w.send(t, http.MethodGet, "/api/v1/whoami", as, nil); got.status != "200" {
		t.Fatalf("the brief token was never good: %s", got.status)
	}
	ctx, cancel := context.WithTimeout(t.Context(), live.Wait)
	defer cancel()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for w.send(t, http.MethodGet, "/api/v1/whoami", as, nil).status != "401" {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal("a token of three seconds does not expire")
		}
	}
	return as
}

// tracked logs a run and registers a model over MLflow's API.
func (w *world) tracked(t *testing.T) {
	t.Helper()
	call := func(path string, body map[string]any) client.Object {
		t.Helper()
		b, err := json.Marshal(body)
		must(t, err)
		got := w.send(t, http.MethodPost, "/api/2.0/mlflow/"+path, w.members[project.Engineer], b)
		if got.status != "200" {
			t.Fatalf("%s: %s %s", path, got.status, got.body)
		}
		var o client.Object
		must(t, json.Unmarshal([]byte(got.body), &o))
		return o
	}
	experiment := call("experiments/create", map[string]any{"name": "flights", "tags": []any{map[string]string{"key": "k", "value": hush}}}).Text("experiment_id")
	run := call("runs/create", map[string]any{"experiment_id": experiment, "tags": []any{map[string]string{"key": "k", "value": hush}}})
	id := run.Text("run.info.run_id")
	call("runs/log-parameter", map[string]any{"run_id": id, "key": "p", "value": hush})
	place := strings.TrimPrefix(run.Text("run.info.artifact_uri"), "mlflow-artifacts:/")
	if got := w.send(t, http.MethodPut, "/api/2.0/mlflow-artifacts/artifacts/"+place+"/model/MLmodel", w.members[project.Engineer], []byte("xyzzyhush: 1\n")); got.status != "200" {
		t.Fatal(got)
	}
	call("registered-models/create", map[string]any{"name": "delay", "description": hush})
	call("model-versions/create", map[string]any{"name": "delay", "source": "runs:/" + id + "/model", "run_id": id, "description": hush})
	model := call("logged-models", map[string]any{"experiment_id": experiment, "name": "logged", "params": []any{map[string]string{"key": "k", "value": hush}}}).Text("model.info.model_id")
	w.param["logged-models/model_id"] = model
	w.param["tags/tag_key"] = "k"
	w.param["region/name"] = "r"
	w.param["artifacts/path"] = place + "/model/MLmodel"
	for _, act := range []string{"create", "complete", "abort"} {
		w.param[act+"/path"] = place + "/large"
	}
	got := w.send(t, http.MethodPost, "/api/2.0/mlflow-artifacts/mpu/create/"+place+"/large", w.members[project.Engineer], []byte(`{"path":"x.bin","num_parts":1}`))
	var upload client.Object
	must(t, json.Unmarshal([]byte(got.body), &upload))
	w.param["parts/upload"], w.param["/number"], w.param["webhooks/webhook_id"] = upload.Text("upload_id"), "1", "wh_01J9Z6AAAAAAAAAAAAAAAAAAAA"
	w.fields = map[string]any{
		"experiment_id": experiment, "experiment_ids": []string{experiment}, "run_id": id, "run_uuid": id, "run_ids": []string{id}, "name": "delay", "version": "1",
		"alias": "champion", "key": "k", "value": "1", "path": "model/MLmodel", "model_id": model, "max_results": 10,
		"experiment_name": "flights", "metric_key": "m", "timestamp": 1, "stage": "Staging", "source": "runs:/" + id + "/model", "artifact_file_path": "MLmodel",
	}
}

// without is a member whose role lacks the action.
func (w *world) without(a policy.Action) (caller, bool) {
	d, _ := policy.Lookup(a)
	for _, r := range []project.Role{project.Viewer, project.Auditor, project.Engineer, project.Deployer, project.Admin} {
		if !d.Has(r) || d.Installation {
			return w.members[r], true
		}
	}
	return caller{}, false
}

// scopedAway is an administrator whose token is for another action.
func (w *world) scopedAway(a policy.Action) caller {
	if a == "run.write" {
		return w.scoped["model.read"]
	}
	return w.scoped["run.write"]
}

// having is a caller who has the action and little else.
func (w *world) having(route httpapi.Route) caller {
	d, ok := policy.Lookup(route.Action)
	_, foreign := foreignRoutes[route.Method+" "+route.Path]
	inProject := strings.Contains(route.Path, "{project}") || foreign || strings.HasPrefix(route.Path, "/v2/") || oip.Scores(route.Path) || oip.Calls(route.Path) || flight.Ours(route.Path) || rpc.Ours(route.Path) || optuna.Ours(route.Path) || feast.Ours(route.Path) || route.Action == "lineage.report" || d.Common
	if !ok || d.Installation || !inProject {
		return w.admin
	}
	for _, r := range []project.Role{project.Viewer, project.Auditor, project.Deployer, project.Engineer, project.Admin} {
		if d.Has(r) && (!d.Data || r == project.Engineer) { // whom the data's class does not stop
			return w.members[r]
		}
	}
	return w.admin
}

var foreignRoutes = func() map[string]mlflow.Route {
	m := map[string]mlflow.Route{}
	for _, r := range mlflow.Routes() {
		if r.Action != "" {
			m[r.Method+" "+r.Pattern] = r
		}
	}
	return m
}()

// request is what a route is asked with, where an empty JSON object says nothing.
type request struct{ query, body string }

var requests = map[string]request{
	"GET /api/v1/accounts":                                            {query: "project=flights"},
	"POST /api/v1/accounts":                                           {body: `{"project":"flights","name":"blank"}`},
	"GET /api/v1/accounts/{ref}":                                      {query: "project=flights"},
	"DELETE /api/v1/accounts/{ref}":                                   {query: "project=flights"},
	"DELETE /api/v1/projects/{project}/datasets/{name}":               {query: "yes=true"}, // a view reads it
	"GET /api/v1/tokens":                                              {query: "project=flights"},
	"POST /api/v1/tokens":                                             {body: `{"project":"flights","name":"made","role":"viewer"}`},
	"GET /api/v1/audit":                                               {query: "project=flights"},
	"GET /api/v1/cost/report":                                         {query: "project=flights"},
	"GET /api/v1/cost/forecast":                                       {query: "project=flights"},
	"GET /api/v1/cost/compare":                                        {query: "project=flights&own=home&rented=shut"},
	"GET /api/v1/manifests/{kind}/{name}":                             {query: "project=flights"},
	"POST /api/v1/apply":                                              {body: `{api_version: falaj/v1, kind: Dataset, name: applied, project: flights}`},
	"POST /api/v1/lineage":                                            {body: `{"eventTime":"2026-01-01T00:00:00Z","producer":"urn:x","schemaURL":"urn:x","job":{"namespace":"a","name":"b"}}`},
	"GET /api/v1/projects/{project}/search":                           {query: "q=weather"},
	"GET /api/v1/projects/{project}/lineage":                          {query: "dataset=weather"},
	"POST /api/v1/jobs/read":                                          {body: `{api_version: falaj/v1, kind: Job, name: read, spec: {command: [/bin/true]}}`},
	"POST /api/v1/projects/{project}/datasets/{name}/versions":        {query: "filename=weather.csv", body: weather + "LGA,2013-01-01T02:00:00Z,3.5\n"},
	"POST /iceberg/v1/namespaces/{project}/tables":                    {body: `{"name":"tabled","schema":{"fields":[{"id":1,"name":"a","type":"long"}]}}`},
	"POST /iceberg/v1/namespaces/{project}/tables/{table}":            {body: `{"updates":[{"action":"set-properties","updates":{"k":"v"}}]}`},
	"POST /api/v1/projects/{project}/query":                           {body: `{"sql":"SELECT * FROM weather"}`},
	"POST /api/v1/projects/{project}/feature-views/{ref}/materialise": {body: `{"wait":"1m"}`},
	"POST /api/v1/projects/{project}/features/online":                 {body: `{"features":["temperature:xyzzyhush"],"entities":[{"origin":"EWR"}]}`},
	"POST /api/v1/projects/{project}/feature-views/{ref}/promote":     {body: `{"alias":"prod"}`},
	"POST /api/v1/projects/{project}/feature-services/{ref}/promote":  {body: `{"alias":"prod"}`},
	"POST /api/v1/projects/{project}/sources/{name}/runs":             {body: `{"anew":"perhaps"}`}, // a run would be under way when the source is deleted
	"POST /api/v1/projects/{project}/jobs":                            {body: `{"name":"another","spec":{"command":["/bin/true"],"pools":["shut"]}}`},
	"PUT /api/v1/projects/{project}/models/{name}/aliases/{alias}":    {body: `{"version":"1"}`},
	"POST /api/v1/projects/{project}/erasures/erase":                  {body: `{"entity":"origin","keys":["nowhere"],"reason":"request 1"}`},
	"POST /api/v1/projects/{project}/erasures/search":                 {body: `{"entity":"origin","keys":["nowhere"]}`},
	"POST /api/v1/projects/{project}/keys/destroy":                    {body: `{"owner":"dataset/spare","confirm":"dataset/spare"}`},
}

var parameter = regexp.MustCompile(`(?:([a-z-]+)/)?\{([a-z_]+)(\.\.\.)?\}`)

// path fills a pattern.
func (w *world) path(t *testing.T, pattern string) string {
	t.Helper()
	p := strings.TrimSuffix(pattern, "{$}")
	if p != "/" && strings.HasSuffix(p, "/") || pattern == "/" {
		p += "no-such-thing"
	}
	return parameter.ReplaceAllStringFunc(p, func(s string) string {
		m := parameter.FindStringSubmatch(s)
		v := w.param[m[1]+"/"+m[2]]
		if v == "" {
			v = "absent"
			if m[3] == "" {
				t.Errorf("%s: no value for {%s} after %s/", pattern, m[2], m[1])
			}
		}
		if m[1] == "" {
			return v
		}
		return m[1] + "/" + v
	})
}

// ask sends a route's request.
func (w *world) ask(t *testing.T, route httpapi.Route, as caller) answer {
	t.Helper()
	method := route.Method
	if method == "" {
		method = http.MethodGet
	}
	path := w.path(t, route.Path)
	var body []byte
	if method != http.MethodGet && method != http.MethodHead {
		body = []byte("{}")
	}
	if r, ok := requests[method+" "+route.Path]; ok {
		path += "?" + r.query
		if r.body != "" {
			body = []byte(r.body)
		}
	} else if _, ok := foreignRoutes[method+" "+route.Path]; ok {
		if body == nil {
			q := url.Values{}
			for k, v := range w.fields {
				if s, ok := v.(string); ok {
					q.Set(k, s)
				}
			}
			path += "?" + q.Encode()
		} else {
			body, _ = json.Marshal(w.fields)
		}
	}
	got := w.send(t, method, path, as, body)
	if strings.Contains(got.body, hush) && !slices.ContainsFunc(w.insiders(), func(c caller) bool { return c == as }) {
		t.Errorf("%s %s tells %s what is in the project: %.300s", method, route.Path, as.name, got.body)
	}
	return got
}

// insiders may see something of the project flights.
func (w *world) insiders() []caller {
	in := []caller{w.admin}
	for _, c := range w.members {
		in = append(in, c)
	}
	return in
}

type answer struct {
	status string
	header http.Header
	body   string // of a stream nothing
}

func (w *world) send(t *testing.T, method, path string, as caller, body []byte) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, w.server.URL+path, bytes.NewReader(body))
	must(t, err)
	if as.authorization != "" {
		req.Header.Set("Authorization", as.authorization)
	}
	resp, err := w.http.Do(req)
	if err != nil {
		t.Fatalf("%s %s as %s: %v", method, path, as.name, err)
	}
	defer resp.Body.Close()
	a := answer{status: strconv.Itoa(resp.StatusCode), header: resp.Header}
	if resp.Header.Get("Content-Type") != "text/event-stream" {
		b, err := io.ReadAll(io.LimitReader(resp.Body, 8<<20))
		if err != nil {
			t.Fatalf("%s %s: %v", method, path, err)
		}
		a.body = string(b)
	}
	return a
}

// effects are the acts in the project, or in no project, that were done since an
// instant, as the audit log has them.
func (w *world) effects(t *testing.T, since time.Time) []string {
	t.Helper()
	c := w.server.Client(t)
	// What the log has after this act, it has of all acts before.
	last := "mark-" + strconv.FormatInt(since.UnixNano(), 36)
	_, err := c.Apply(t.Context(), "", []byte("{api_version: falaj/v1, kind: Project, name: "+last+"}"), false)
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), live.Wait)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		var acts []string
		marked := false
		must(t, c.List(ctx, "/api/v1/audit", url.Values{"outcome": {"done"}, "since": {since.UTC().Format(time.RFC3339Nano)}, "page_size": {"1000"}}, func(o client.Object) error {
			switch in := o.Text("project"); {
			case strings.Contains(o.Text("object"), last) || in == last:
				marked = true
			case o.Text("action") == "audit.read" && strings.HasPrefix(o.Text("actor_name"), "user admin "): // this look itself
			case in == flights || in == "":
				acts = append(acts, o.Text("actor_name")+" "+o.Text("action")+" "+o.Text("object"))
			}
			return nil
		}))
		if marked {
			return acts
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal("an act is not in the audit log")
		}
	}
}
