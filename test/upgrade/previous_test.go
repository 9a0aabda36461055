package upgrade

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/internal/store/storetest"
	"github.com/falaj-ml/falaj/test/live"
)

var from = flag.String("from", "", "upgrade from this revision; `make test-upgrade` gives the previous release")

// previous builds the binaries of -from, once.
func previous(t *testing.T, root string) live.Bin {
	t.Helper()
	git := func(args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), "git", args...)
		cmd.Dir = root
		out, err := cmd.Output()
		return strings.TrimSpace(string(out)), err
	}
	commit, err := git("rev-parse", "--verify", *from+"^{commit}")
	if err != nil {
		t.Fatalf("%s is no revision of this repository: %v", *from, err)
	}
	dir := filepath.Join(root, ".tmp", "upgrade", commit)
	bin := live.Bin{Root: root, Falaj: filepath.Join(dir, "falaj"), Worker: filepath.Join(dir, "falaj-worker")}
	if _, err := os.Stat(bin.Worker); err == nil {
		return bin
	}
	src := filepath.Join(dir, "src")
	run := func(command string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", command)
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", command, err, out)
		}
	}
	defer os.RemoveAll(src)
	run(fmt.Sprintf("rm -rf %[1]s && mkdir -p %[1]s && git archive %[2]s | tar -x -C %[1]s && cp -r internal/console/dist %[1]s/internal/console/", src, commit))
	// What falaj looks for beside itself.
	if err := os.Symlink(filepath.Join("..", "..", "..", "lib"), filepath.Join(dir, "lib")); err != nil && !os.IsExist(err) {
		t.Fatal(err)
	}
	flags := "-tags=duckdb_arrow -buildvcs=false -ldflags='-s -w'"
	run(fmt.Sprintf("cd %s && CGO_ENABLED=1 go build %s -o %s ./cmd/falaj && CGO_ENABLED=0 go build %s -o %s ./cmd/falaj-worker", src, flags, bin.Falaj, flags, bin.Worker))
	return bin
}

// filled is an object of each kind that needs nothing from outside.
const filled = `
{api_version: falaj/v1, kind: Zone, name: branch, spec: {jurisdiction: DE, provider: none, trust: owned}}
---
{api_version: falaj/v1, kind: Pool, name: spare, spec: {price_per_hour: 1.5, nodes: [{name: a, cpu: 500m, memory: 1GiB}], closed: "for good"}}
---
{api_version: falaj/v1, kind: Queue, name: batch, spec: {quota: {cpu: 500m}, weight: 2}}
---
{api_version: falaj/v1, kind: Budget, name: PROJECT, spec: {per_month: 1e3}}
---
{api_version: falaj/v1, kind: Secret, name: door, project: PROJECT, spec: {values: {user: {value: me}}}}
---
{api_version: falaj/v1, kind: Policy, name: own, project: PROJECT, spec: {cedar: "forbid (principal, action == Action::\"dataset.delete\", resource);\n"}}
---
{api_version: falaj/v1, kind: Entity, name: origin, project: PROJECT}
---
{api_version: falaj/v1, kind: Dataset, name: weather, project: PROJECT, spec: {expectations: [{column: temp, check: between, min: -60, max: 60, otherwise: quarantine}]}}
---
{api_version: falaj/v1, kind: Dataset, name: open, project: PROJECT, spec: {protection: open, columns: [{name: a, type: int64}]}}
---
{api_version: falaj/v1, kind: Environment, name: bare, project: PROJECT, spec: {}}
---
{api_version: falaj/v1, kind: ModelPolicy, name: default, project: PROJECT, spec: {content: code}}
`

const onData = `
{api_version: falaj/v1, kind: FeatureView, name: weather, project: PROJECT, spec: {source: {dataset: weather}, entities: [origin], timestamp: at, features: [{name: temp, type: float64}]}}
---
{api_version: falaj/v1, kind: FeatureService, name: weather, project: PROJECT, spec: {features: ["weather:temp"], computed: [{name: twice, type: float64, expression: temp * 2.0}]}}
---
{api_version: falaj/v1, kind: Deployment, name: delay, project: PROJECT, spec: {model: delay, version: champion, prediction: {output: probabilities, index: 1}}}
---
{api_version: falaj/v1, kind: Gateway, name: edge, project: PROJECT, spec: {deployments: [delay]}}
---
{api_version: falaj/v1, kind: Monitor, name: watch, project: PROJECT, spec: {deployment: delay, window: {every: 6h}}}
---
{api_version: falaj/v1, kind: Sweep, name: tries, project: PROJECT, spec: {job: {command: ["false"], pools: [spare]}, parameters: [{name: x, type: float, low: 0, high: 1}], objectives: [{metric: loss}], budget: {trials: 1}}}
`

// installation is one with something of everything in it.
type installation struct {
	*live.Project
	running string // the job that runs while the server is upgraded
}

func fill(t *testing.T, s *live.Server) *installation {
	t.Helper()
	s.Up(t)
	in := &installation{Project: s.Project(t, "shop")}
	in.Apply(filled)
	for _, rows := range []string{"EWR,2013-01-01T00:00:00Z,1.5\n", "EWR,2013-01-01T00:00:00Z,1.5\nJFK,2013-01-01T01:00:00Z,0.1\nLGA,2013-01-01T01:00:00Z,99\n"} {
		in.Import("weather", "origin,at,temp\n"+rows)
	}
	in.Import("open", "a\n1\n9007199254740993\n")
	in.Register("delay", in.Logistic(), in.Logistic())
	in.Apply(onData)
	in.Materialise("weather")
	in.Loaded()
	var run client.Object
	in.Must(in.Foreign(in.C, http.MethodPost, "/api/2.0/mlflow/runs/create", map[string]any{"experiment_id": "0", "run_name": "first"}, &run))
	in.Must(in.Foreign(in.C, http.MethodPost, "/api/2.0/mlflow/runs/log-batch", map[string]any{
		"run_id": run.Text("run.info.run_id"), "metrics": []any{map[string]any{"key": "loss", "value": 0.1, "timestamp": 1, "step": 1}}, "params": []any{map[string]any{"key": "lr", "value": "1e-3"}}, "tags": []any{map[string]any{"key": "a", "value": "ü"}},
	}, nil))
	in.Must(in.C.Do(t.Context(), http.MethodPost, "/api/v1/accounts", map[string]any{"project": in.Name, "name": "ci"}, nil))
	in.Apply(`{api_version: falaj/v1, kind: Grant, name: reads, project: PROJECT, spec: {principal: service/ci, role: viewer, object: dataset/weather}}`)
	for range 20 {
		_, err := in.Infer(in.C, "delay", nil, live.Tensor("X", "FP32", []float64{0.25, -1.5}, 1, 2))
		in.Must(err)
	}
	for name, script := range map[string]string{"good": "echo hello", "bad": "echo wrong >&2; exit 3"} {
		id := in.submit(name, script)
		in.Ends(id, map[string]string{"good": "succeeded", "bad": "failed"}[name])
	}
	in.running = in.submit("long", "sleep 40; echo done") // longer than the server is away
	in.Eventually("the long job does not run", func() (bool, error) {
		var job client.Object
		err := in.C.Do(t.Context(), http.MethodGet, in.Path("jobs/"+in.running), nil, &job)
		return job.Text("state") != "queued", err
	})
	return in
}

func (in *installation) submit(name, script string) (id string) {
	in.T.Helper()
	return in.Apply(fmt.Sprintf(`{api_version: falaj/v1, kind: Job, name: %s, project: PROJECT, spec: {command: [/bin/sh, -c, %q], max_attempts: 1}}`, name, script))[0].ID
}

// reads are requests that are no list or object of the API: rows, online features, MLflow.
func (in *installation) reads() map[string][3]string {
	return map[string][3]string{
		"rows":           {http.MethodPost, in.Path("query"), `{"sql": "SELECT * FROM weather ORDER BY origin"}`},
		"large integers": {http.MethodPost, in.Path("query"), `{"sql": "SELECT * FROM open ORDER BY a"}`},
		"online":         {http.MethodPost, in.Path("online-features"), `{"service": "weather", "entities": [{"origin": "EWR"}, {"origin": "JFK"}]}`},
		"runs":           {http.MethodPost, "/api/2.0/mlflow/runs/search", `{"experiment_ids": ["0"]}`},
		"models":         {http.MethodGet, "/api/2.0/mlflow/registered-models/search", ""},
		"predictions":    {http.MethodPost, "/v2/models/delay/infer", `{"id": "fixed", "inputs": [{"name": "X", "datatype": "FP32", "shape": [2, 2], "data": [0.25, -1.5, 3, 7]}]}`},
	}
}

// ask gives the status and the body of an answer.
func (in *installation) ask(method, path, body string) any {
	in.T.Helper()
	ctx, cancel := context.WithTimeout(in.T.Context(), live.Wait)
	defer cancel()
	var payload io.Reader
	if body != "" {
		payload = strings.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, in.URL+path, payload)
	in.Must(err)
	req.Header.Set("Authorization", "Bearer "+in.Token)
	req.Header.Set("Falaj-Project", in.Name)
	req.Header.Set("Content-Type", "application/json")
	answer, err := asker.Do(req)
	in.Must(err)
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	in.Must(err)
	var doc any
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	if d.Decode(&doc) != nil {
		doc = string(b)
	}
	return map[string]any{"status": answer.StatusCode, "body": doc}
}

// answers are what the API says: every GET that the description of the server has, with what
// its lists name, and reads.
func (in *installation) answers() map[string]any {
	in.T.Helper()
	out := map[string]any{}
	var api struct {
		Paths map[string]map[string]struct {
			Parameters []struct {
				Name, In string
				Required bool
			}
			Responses map[string]struct{ Content map[string]any }
		}
	}
	in.Must(in.C.Do(in.T.Context(), http.MethodGet, "/api/openapi.json", nil, &api))
	templates := slices.SortedFunc(func(yield func(string) bool) {
		for path, ops := range api.Paths {
			op, is := ops["get"]
			_, gives := op.Responses["200"].Content["application/json"]
			if is && gives && !yield(path) {
				return
			}
		}
	}, func(a, b string) int {
		return cmp.Or(strings.Count(a, "/")-strings.Count(b, "/"), strings.Compare(a, b))
	})
	for _, template := range templates {
		query := url.Values{}
		for _, p := range api.Paths[template]["get"].Parameters {
			if p.In == "query" && p.Required {
				query.Set(p.Name, map[string]string{"q": "weather", "kind": "dataset", "name": "weather"}[p.Name])
			}
		}
		paths := []string{""}
		for segment := range strings.SplitSeq(strings.TrimPrefix(template, "/"), "/") {
			if !strings.HasPrefix(segment, "{") {
				for i := range paths {
					paths[i] += "/" + segment
				}
				continue
			}
			var next []string
			for _, prefix := range paths {
				for _, name := range named(out[prefix], strings.Trim(segment, "{}")) {
					next = append(next, prefix+"/"+name)
				}
			}
			paths = next
		}
		for _, path := range paths {
			if len(query) > 0 {
				path += "?" + query.Encode()
			}
			out[path] = in.ask(http.MethodGet, path, "")
		}
	}
	return in.again(out)
}

// again asks for the same as earlier answers are of, and for reads.
func (in *installation) again(earlier map[string]any) map[string]any {
	in.T.Helper()
	out := map[string]any{}
	for path := range earlier {
		if strings.HasPrefix(path, "/") {
			out[path] = in.ask(http.MethodGet, path, "")
		}
	}
	for name, r := range in.reads() {
		out[name] = in.ask(r[0], r[1], r[2])
	}
	return out
}

// named are the names or ids of the objects of a list, whichever a parameter of a path takes.
func named(answer any, parameter string) (names []string) {
	keys := []string{"name", "id", "number", "version"}
	if slices.Contains([]string{"id", "run", "job", "window"}, parameter) {
		keys = []string{"id"}
	}
	a, _ := answer.(map[string]any)
	body, _ := a["body"].(map[string]any)
	items, _ := body["items"].([]any)
	for _, item := range items {
		o, _ := item.(map[string]any)
		for _, key := range keys {
			if v := o[key]; v != nil && fmt.Sprint(v) != "" && len(names) < 20 {
				names = append(names, strings.ReplaceAll(fmt.Sprint(v), "/", "%2F"))
				break
			}
		}
	}
	return names
}

// volatile are values that run on while an installation lives, by the path of the request and
// of the value.
var volatile = regexp.MustCompile(strings.Join([]string{
	`^/api/v1/audit`,       // it grows by what this test does
	`used_at`, `last_used`, // of tokens
	`^/api/v1/(pools|queues|scheduler|workloads|costs?|budgets|backups)`, // what runs and is used now
	`/events`, `/usage`, `/top`, `/why`, ` lag_ns$`, `/monitors.* reason$`,
	`^/api/openapi\.json`,                                                                           // texts
	`^/v2/models/.*stats`, `/deployments/[^/]+/status body (since|versions \d+ (requests|p\d+_ns))`, // since the start
}, "|"))

// same reports each value of the old answer that the new one has not. Values may be added.
func same(t *testing.T, path string, before, after any) {
	t.Helper()
	if volatile.MatchString(path) {
		return
	}
	switch b := before.(type) {
	case map[string]any:
		a, ok := after.(map[string]any)
		if !ok {
			t.Errorf("%s: %v became %v", path, before, after)
			return
		}
		for key, value := range b {
			now, there := a[key]
			if !there {
				t.Errorf("%s lost %s, which was %v", path, key, value)
				continue
			}
			same(t, path+" "+key, value, now)
		}
	case []any:
		a, ok := after.([]any)
		if !ok || len(a) < len(b) {
			t.Errorf("%s: %d values became %v", path, len(b), after)
			return
		}
		for i := range b {
			now := a[i]
			if id := idOf(b[i]); id != nil { // others may have come
				if at := slices.IndexFunc(a, func(v any) bool { return idOf(v) == id }); at >= 0 {
					now = a[at]
				}
			} else if len(a) != len(b) {
				t.Errorf("%s: %d values became %d", path, len(b), len(a))
				return
			}
			same(t, fmt.Sprintf("%s %d", path, i), b[i], now)
		}
	default:
		if before != after {
			t.Errorf("%s: %v became %v", path, before, after)
		}
	}
}

// idOf is what an object of a list is known by; nil for other values.
func idOf(v any) any {
	o, _ := v.(map[string]any)
	return o["id"]
}

// TestFromThePreviousRelease: a server of the previous release is filled, and stopped or
// killed under load; the new one has all of it, answers alike, and its schema is a new one's.
func TestFromThePreviousRelease(t *testing.T) {
	if *from == "" {
		t.Skip("make test-upgrade runs it: it builds the previous release")
	}
	now := live.Build(t)
	before := previous(t, now.Root)
	for name, c := range map[string]struct{ postgres, kill bool }{
		"SQLite, stopped":     {false, false},
		"SQLite, killed":      {false, true},
		"PostgreSQL, stopped": {true, false},
	} {
		t.Run(name, func(t *testing.T) {
			database := ""
			s := live.New(t, "")
			if c.postgres {
				database = storetest.Postgres(t)
				s.Env = append(s.Env, "FALAJ_STORE_URL="+database)
			}
			s.Bin = before
			in := fill(t, s)
			old := in.answers()
			if len(old) < 60 {
				t.Fatalf("only %d answers", len(old))
			}
			runs := in.underLoad(c.kill)
			s.Bin = now
			in.Again()
			in.Loaded()
			fresh := in.again(old)
			for path, answer := range old {
				if strings.Contains(path, in.running) || strings.Contains(path, "/jobs") && !strings.Contains(path, "/jobs/") {
					continue // the job that runs
				}
				same(t, path, answer, fresh[path])
			}
			for _, id := range runs {
				in.Must(in.Foreign(in.C, http.MethodGet, "/api/2.0/mlflow/runs/get?run_id="+id, nil, nil))
			}
			job := in.Ends(in.running, "succeeded")
			if attempts := in.Run(0, "job", "describe", in.running, "-o", "json"); strings.Count(attempts, `"attempt_`) > 1 || !strings.Contains(in.Run(0, "job", "logs", in.running), "done") {
				t.Errorf("the job that ran meanwhile: %v\n%s", job, attempts)
			}
			export := filepath.Join(t.TempDir(), "audit.jsonl")
			for _, command := range [][]string{{"audit", "export", "--installation", "-f", export}, {"audit", "verify", export}} {
				if said, code := s.Command(t.Context(), command...); code != 0 {
					t.Errorf("%v: %d %s", command, code, said)
				}
			}
			t.Logf("%d answers, %d runs under load", len(old), len(runs))
			in.Must(s.Stop())
			compareSchema(t, s, database)
		})
	}
}

// underLoad stops or kills the server while runs are made, and gives those that were
// acknowledged.
func (in *installation) underLoad(kill bool) (acknowledged []string) {
	var ended atomic.Bool
	var experiment client.Object
	in.Must(in.Foreign(in.C, http.MethodPost, "/api/2.0/mlflow/experiments/create", map[string]any{"name": "load"}, &experiment))
	done, enough := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for !ended.Load() {
			var run client.Object
			if in.Foreign(in.C, http.MethodPost, "/api/2.0/mlflow/runs/create", map[string]any{"experiment_id": experiment.Text("experiment_id")}, &run) == nil {
				if acknowledged = append(acknowledged, run.Text("run.info.run_id")); len(acknowledged) == 20 {
					close(enough)
				}
			}
		}
	}()
	<-enough
	if kill {
		in.Must(in.Kill())
	} else {
		in.Must(in.Stop())
	}
	ended.Store(true)
	<-done
	return acknowledged
}

// compareSchema compares the database that was upgraded with a new one.
func compareSchema(t *testing.T, upgraded *live.Server, database string) {
	t.Helper()
	s := live.New(t, "")
	s.Bin = upgraded.Bin
	freshURL := ""
	if database != "" {
		freshURL = storetest.Postgres(t)
		s.Env = append(s.Env, "FALAJ_STORE_URL="+freshURL)
	}
	s.Up(t)
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	got, want := schema(t, upgraded.Data, database), schema(t, s.Data, freshURL)
	for _, line := range want {
		if !slices.Contains(got, line) {
			t.Errorf("the upgraded database lacks %s", line)
		}
	}
	for _, line := range got {
		if !slices.Contains(want, line) {
			t.Errorf("a new database has no %s", line)
		}
	}
	if len(want) < 500 {
		t.Errorf("only %d columns and indexes", len(want))
	}
}

// schema lists the columns and the indexes of a database.
func schema(t *testing.T, data, database string) (lines []string) {
	t.Helper()
	driver, dsn := "sqlite3", "file:"+filepath.Join(data, "falaj.db")
	queries := []string{
		`SELECT m.name || '.' || c.name || ' ' || c.type || ' ' || c."notnull" || ' ' || coalesce(c.dflt_value, '-') || ' ' || c.pk FROM sqlite_master m, pragma_table_info(m.name) c WHERE m.type = 'table'`,
		`SELECT m.tbl_name || ' ' || l."unique" || ' ' || l.origin || ' (' || group_concat(coalesce(i.name, '(expression)'), ', ') || ')' FROM sqlite_master m, pragma_index_list(m.name) l, pragma_index_info(l.name) i WHERE m.type = 'table' GROUP BY m.name, l.name`,
	}
	if database != "" {
		driver, dsn = "pgx", database
		queries = []string{
			`SELECT table_name || '.' || column_name || ' ' || data_type || ' ' || is_nullable || ' ' || coalesce(column_default, '-') FROM information_schema.columns WHERE table_schema = current_schema()`,
			`SELECT regexp_replace(indexdef, ' ON [^ ]*\.', ' ON ') FROM pg_indexes WHERE schemaname = current_schema()`,
		}
	}
	db, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, q := range queries {
		lines = append(lines, texts(t, db, q)...)
	}
	slices.Sort(lines)
	return lines
}

// texts are the rows of a query for one text.
func texts(t *testing.T, db *sql.DB, query string) (all []string) {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), query)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			t.Fatal(err)
		}
		all = append(all, text)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}
