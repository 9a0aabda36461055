// Package restricted derives objects from restricted rows on the real server and reads
// them through every route as every role: the rows are answered to who has a grant, and to
// nobody else. It then asks every route that changes something with the token of a job.
package restricted

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/internal/httpapi"
	"github.com/falaj-ml/falaj/test/live"
)

// mark is in the rows, and say is a command that writes it, without it in the specification.
const (
	mark = "MARK-OF-HOLDER"
	say  = "printf 'MARK-%s\\n' OF-HOLDER"
)

type world struct {
	*live.Project
	s      *live.Server
	t      *testing.T
	tokens map[string]string
	// fields are the objects by the name that a path or a query has for them.
	fields map[string]string
}

func open(t *testing.T) *world {
	t.Helper()
	s := live.New(t, "")
	s.Up(t)
	w := &world{Project: s.Project(t, "north"), s: s, t: t, tokens: map[string]string{}, fields: map[string]string{}}
	for _, role := range []string{"viewer", "auditor", "deployer", "engineer", "admin"} {
		w.tokens[role] = w.token(role, role)
	}
	w.tokens["writer"] = w.token("writer", "engineer")
	return w
}

func (w *world) token(name, role string) string {
	w.t.Helper()
	var o client.Object
	w.Must(w.s.Client(w.t).Do(w.t.Context(), http.MethodPost, "/api/v1/tokens", map[string]any{"project": "north", "name": name, "role": role}, &o))
	return o.Text("secret")
}

// send gives the status and the body; of a stream what it said within a second.
func (w *world) send(token, method, path string, body []byte) (int, string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.t.Context()), live.Wait) // also in a cleanup
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, w.s.URL+path, bytes.NewReader(body))
	w.Must(err)
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Content-Type", "application/json")
	a, err := (&http.Client{Timeout: time.Minute}).Do(r)
	w.Must(err)
	defer a.Body.Close()
	b, err := io.ReadAll(io.LimitReader(a.Body, 8<<20))
	if err != nil && ctx.Err() == nil {
		b = append(b, err.Error()...)
	}
	return a.StatusCode, string(b)
}

func (w *world) call(token, path string, body map[string]any) client.Object {
	w.t.Helper()
	b, err := json.Marshal(body)
	w.Must(err)
	status, said := w.send(token, http.MethodPost, path, b)
	if status >= 300 {
		w.t.Fatalf("%s: %d %s", path, status, said)
	}
	var o client.Object
	w.Must(json.Unmarshal([]byte(said), &o))
	return o
}

// job submits one and waits for its end.
func (w *world) job(token, name, command string, spec map[string]any) client.Object {
	w.t.Helper()
	all := map[string]any{"command": []string{"/bin/sh", "-c", command}, "resources": map[string]any{"cpu": "500m", "memory": "256MiB"}, "max_attempts": 1}
	maps.Copy(all, spec)
	j := w.call(token, w.Path("jobs"), map[string]any{"name": name, "spec": all})
	return j
}

// derived makes of restricted rows what can be made of them, as who has a grant.
func (w *world) derived() {
	w.Apply("api_version: falaj/v1\nkind: Dataset\nname: cards\nproject: north\nspec: {classification: restricted}\n---\n" +
		"api_version: falaj/v1\nkind: Grant\nname: writer-cards\nproject: north\nspec: {principal: service/writer, role: engineer, object: dataset/cards}\n")
	var rows strings.Builder
	rows.WriteString("card,holder\n")
	for i := range 50 {
		fmt.Fprintf(&rows, "%d,%s-%d\n", i, mark, i)
	}
	w.Import("cards", rows.String())
	writer := w.tokens["writer"]
	data := map[string]any{"c": "cards"}
	made := w.job(writer, "copies", "mkdir $FALAJ_OUTPUT_DIR/model; cat $FALAJ_DATA_C/* > $FALAJ_OUTPUT_DIR/rows.bin; "+say+" > $FALAJ_OUTPUT_DIR/rows.txt;"+
		"cp $FALAJ_OUTPUT_DIR/rows.txt $FALAJ_OUTPUT_DIR/model/weights.bin; "+say, map[string]any{"data": data, "register": "made"})
	ended := w.Ends(made.Text("id"), "succeeded")
	broken := w.job(writer, "breaks", say+" >&2; exit 3", map[string]any{"data": data})
	w.Ends(broken.Text("id"), "failed")
	run := ended.Text("run_id")
	const m = "/api/2.0/mlflow/"
	w.call(writer, m+"runs/log-batch", map[string]any{
		"run_id": run, "params": []any{map[string]any{"key": "p", "value": mark + "-PARAM"}}, "tags": []any{map[string]any{"key": "t", "value": mark + "-TAG"}},
		"metrics": []any{map[string]any{"key": "loss", "value": 0.123456, "timestamp": 1, "step": 1}, map[string]any{"key": mark, "value": 784199, "timestamp": 1, "step": 1}},
	})
	w.call(writer, m+"model-versions/set-tag", map[string]any{"name": "made", "version": "1", "key": "t", "value": mark + "-TAG"})
	var got client.Object
	_, said := w.send(writer, http.MethodGet, m+"runs/get?run_id="+run, nil)
	w.Must(json.Unmarshal([]byte(said), &got))
	place := strings.TrimPrefix(got.Text("run.info.artifact_uri"), "mlflow-artifacts:/")
	w.fields = map[string]string{
		"project": "north", "namespace": "north", "job": made.Text("id"), "run": run, "run_id": run, "run_uuid": run, "name": "made", "version": "1", "metric_key": mark,
		"experiment_id": got.Text("run.info.experiment_id"), "experiment_ids": got.Text("run.info.experiment_id"), "broken": broken.Text("id"), "model": "made", "ref": "cards@1", "place": place,
	}
}

var parameter = regexp.MustCompile(`(?:([a-z-]+)/)?\{([a-z_]+)(?:\.\.\.)?\}`)

// fills are the paths that a pattern stands for: one for each object that it may be about.
func (w *world) fills(pattern string) (paths []string) {
	type choice map[string]string
	for _, c := range []choice{{}, {"job": w.fields["broken"]}} {
		p := parameter.ReplaceAllStringFunc(pattern, func(s string) string {
			m := parameter.FindStringSubmatch(s)
			v := w.fields[m[2]]
			switch {
			case c[m[2]] != "":
				v = c[m[2]]
			case m[1] == "datasets":
				v = map[string]string{"name": "cards", "ref": "cards@1"}[m[2]]
			case m[1] == "artifacts" && m[2] == "path":
				v = w.fields["place"] + "/rows.txt"
			case v == "":
				v = "absent"
			}
			if m[1] == "" {
				return v
			}
			return m[1] + "/" + v
		})
		p = strings.TrimSuffix(p, "{$}")
		q := url.Values{"path": {"rows.txt"}}
		for _, k := range []string{"run_id", "run_uuid", "name", "version", "metric_key", "experiment_id"} {
			q.Set(k, w.fields[k])
		}
		if strings.HasPrefix(p, "/model-versions/") {
			q.Set("path", "weights.bin")
		}
		paths = append(paths, p+"?"+q.Encode(), p)
	}
	return paths
}

func everything() []httpapi.Route {
	return httpapi.New(httpapi.Options{
		Log: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry(),
		Ready: func() error { return nil }, Console: http.NotFoundHandler(),
	}, httpapi.Domains{}).Routes()
}

// TestRestrictedIsReadWithAGrant reads everything as everybody.
func TestRestrictedIsReadWithAGrant(t *testing.T) {
	w := open(t)
	w.derived()
	type request struct {
		method, path string
		body         []byte
	}
	var all []request
	for _, r := range everything() {
		if r.Method != http.MethodGet && r.Method != "" || strings.Contains(r.Path, "/events") || strings.Contains(r.Path, "follow") {
			continue
		}
		for _, p := range w.fills(r.Path) {
			all = append(all, request{http.MethodGet, p, nil})
		}
	}
	post := func(path string, body map[string]any) {
		b, err := json.Marshal(body)
		w.Must(err)
		all = append(all, request{http.MethodPost, path, b})
	}
	ids := []string{w.fields["experiment_id"]}
	post("/api/2.0/mlflow/runs/search", map[string]any{"experiment_ids": ids})
	post("/api/2.0/mlflow/logged-models/search", map[string]any{"experiment_ids": ids})
	post("/api/2.0/mlflow/runs/log-parameter", map[string]any{"run_id": w.fields["run"], "key": "p", "value": "other"})
	post(w.Path("query"), map[string]any{"sql": "SELECT * FROM cards"})

	own := map[string]bool{}
	for who, token := range w.tokens {
		for _, r := range all {
			status, said := w.send(token, r.method, r.path, r.body)
			if !strings.Contains(said, mark) {
				continue
			}
			if who == "writer" {
				own[strings.SplitN(r.path, "?", 2)[0]] = true
				continue
			}
			at := strings.Index(said, mark)
			t.Errorf("%s %s answers %s, who has no grant, %d with restricted values: …%.120s", r.method, r.path, who, status, said[max(0, at-60):])
		}
	}
	for _, path := range []string{
		"/get-artifact", "/api/2.0/mlflow/runs/get", "/api/2.0/mlflow/runs/search", "/model-versions/get-artifact", w.Path("models/made/versions/1/archive"),
		w.Path("jobs/" + w.fields["job"] + "/logs"), "/api/2.0/mlflow-artifacts/artifacts/" + w.fields["place"] + "/rows.txt",
	} {
		if !own[path] {
			t.Errorf("%s does not answer who has the grant with the rows", path)
		}
	}
	// What a search finds says nothing of contents, and the names and measures stay open.
	find := func(filter string) string {
		b, err := json.Marshal(map[string]any{"experiment_ids": ids, "filter": filter})
		w.Must(err)
		_, said := w.send(w.tokens["viewer"], http.MethodPost, "/api/2.0/mlflow/runs/search", b)
		return said
	}
	if strings.Contains(find("params.p LIKE 'MARK%'"), w.fields["run"]) {
		t.Error("a viewer learns by a search what a param begins with")
	}
	if said := find(""); !strings.Contains(said, w.fields["run"]) || !strings.Contains(said, "0.123") || strings.Contains(said, "0.1234") {
		t.Errorf("a viewer is not shown the run with its rounded loss: %.600s", said)
	}
	// A job is no way around it.
	b, err := json.Marshal(map[string]any{"name": "takes", "spec": map[string]any{"command": []string{"/bin/true"}, "data": map[string]any{"m": "models:/made/1"}}})
	w.Must(err)
	if status, said := w.send(w.tokens["engineer"], http.MethodPost, w.Path("jobs"), b); status != http.StatusForbidden {
		t.Errorf("a job with the model as input is answered %d %.200s to who has no grant", status, said)
	}
}

// TestAttemptChangesWhatItMade asks every route that changes something with the token of
// another job.
func TestAttemptChangesWhatItMade(t *testing.T) {
	w := open(t)
	engineer := w.tokens["engineer"]
	made := w.job(engineer, "makes", "mkdir $FALAJ_OUTPUT_DIR/model; echo 1 > $FALAJ_OUTPUT_DIR/model/a.txt", map[string]any{"register": "made", "experiment": "kept"})
	ended := w.Ends(made.Text("id"), "succeeded")
	const m = "/api/2.0/mlflow/"
	_, said := w.send(engineer, http.MethodGet, m+"experiments/get-by-name?experiment_name=kept", nil)
	var e client.Object
	w.Must(json.Unmarshal([]byte(said), &e))
	spy := func(name string, spec map[string]any) string {
		j := w.job(engineer, name, "echo TOKEN=$FALAJ_TOKEN | tr _ %; sleep 600", spec)
		found := ""
		w.Eventually("the job's token", func() (bool, error) {
			_, said := w.send(engineer, http.MethodGet, w.Path("jobs/"+j.Text("id")+"/logs"), nil)
			if _, rest, ok := strings.Cut(said, "TOKEN="); ok && strings.Contains(rest, "\n") {
				line, _, _ := strings.Cut(rest, "\n")
				found = strings.ReplaceAll(strings.TrimSpace(line), "%", "_")
			}
			return found != "", nil
		})
		t.Cleanup(func() { w.send(engineer, http.MethodPost, w.Path("jobs/"+j.Text("id")+"/cancel"), []byte("{}")) })
		return found
	}
	if status, said := w.send(spy("bound", nil), http.MethodGet, "/api/v1/whoami", nil); status != http.StatusUnauthorized {
		t.Errorf("the token of a job works outside its sandbox: %d %.200s", status, said)
	}
	token := spy("roams", map[string]any{"token": "anywhere"})
	if status, said := w.send(token, http.MethodGet, "/api/v1/whoami", nil); status != http.StatusOK {
		t.Fatalf("the token that may work anywhere: %d %.200s", status, said)
	}
	run := ended.Text("run_id")
	w.fields = map[string]string{
		"project": "north", "namespace": "north", "job": made.Text("id"), "run": run, "run_id": run, "name": "made", "version": "1", "model": "made", "ref": "made@1",
		"experiment_id": e.Text("experiment.experiment_id"), "alias": "champion",
	}
	state := func() string {
		var all []string
		for _, path := range []string{
			m + "runs/get?run_id=" + run, m + "registered-models/get?name=made", m + "model-versions/get?name=made&version=1", m + "experiments/get-by-name?experiment_name=kept",
			w.Path("jobs/" + w.fields["job"]), w.Path("models/made/versions/1/content"), w.Path("members"), w.Path("datasets"),
		} {
			status, said := w.send(engineer, http.MethodGet, path, nil)
			all = append(all, fmt.Sprint(path, " ", status, " ", said))
		}
		return strings.Join(all, "\n")
	}
	before := state()
	b, err := json.Marshal(map[string]any{
		"run_id": run, "run_uuid": run, "name": "made", "new_name": "taken", "version": "1", "experiment_id": w.fields["experiment_id"], "key": "k", "value": "v", "alias": "champion",
		"description": "taken", "stage": "Archived", "archive_existing_versions": false, "tags": []any{map[string]string{"key": "k", "value": "v"}}, "params": []any{map[string]string{"key": "k", "value": "v"}},
		"timestamp": 1, "step": 1, "status": "FAILED", "reason": "to take it away",
	})
	w.Must(err)
	asked := 0
	for _, r := range everything() {
		if r.Method == http.MethodGet || r.Method == http.MethodHead || r.Method == "" {
			continue
		}
		asked++
		w.send(token, r.Method, strings.SplitN(w.fills(r.Path)[1], "?", 2)[0], b)
	}
	if asked < 100 {
		t.Fatalf("only %d routes change something", asked)
	}
	if after := state(); after != before {
		t.Errorf("the token of a job changed what another made:\n%s\nis now\n%s", before, after)
	}
}
