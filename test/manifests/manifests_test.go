// Package manifests prints objects of every kind as manifests and applies them again.
package manifests

import (
	"cmp"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/test/live"
)

// made is an object of each kind, in an order in which they can be made. Names that YAML takes
// for something else, and fields with defaults, are among them.
var made = map[string]string{
	"Project":        `{api_version: falaj/v1, kind: Project, name: meadow, spec: {display_name: "3.10", residency: [home], classification: internal}}`,
	"Zone":           `{api_version: falaj/v1, kind: Zone, name: branch, spec: {jurisdiction: DE, provider: "on", trust: owned}}`,
	"Pool":           `{api_version: falaj/v1, kind: Pool, name: spare, spec: {price_per_hour: 1.5, nodes: [{name: a, cpu: 500m, memory: 1GiB}], closed: "2026"}}`,
	"Queue":          `{api_version: falaj/v1, kind: Queue, name: batch, spec: {quota: {cpu: 500m, memory: 0}, half_life: 36h, min_runtime: 90s, preempt: false, weight: 2}}`,
	"Budget":         `{api_version: falaj/v1, kind: Budget, name: PROJECT, spec: {per_month: 1e3}}`,
	"Dataset":        `{api_version: falaj/v1, kind: Dataset, name: weather, project: PROJECT, spec: {description: "a: b\nc", null_values: ["", "NA", "null"], columns: [{name: "y", type: float64}], keep: {versions: 3}, expectations: [{column: temp, check: between, min: -60, max: 6e1}]}}`,
	"Grant":          `{api_version: falaj/v1, kind: Grant, name: reads, project: PROJECT, spec: {principal: service/ci, role: viewer, object: dataset/weather}}`,
	"Secret":         `{api_version: falaj/v1, kind: Secret, name: door, project: PROJECT, spec: {description: opens it, values: {user: {value: me}, password: {value: "1e5"}}}}`,
	"Policy":         `{api_version: falaj/v1, kind: Policy, name: own, project: PROJECT, spec: {description: rule, cedar: "forbid (principal, action == Action::\"dataset.delete\", resource);\n"}}`,
	"Source":         `{api_version: falaj/v1, kind: Source, name: weather, project: PROJECT, spec: {dataset: weather, mode: full, schedule: every 15m, from: {files: {directory: "DIRECTORY"}}}}`,
	"Entity":         `{api_version: falaj/v1, kind: Entity, name: origin, project: PROJECT, spec: {tags: {"on": "1"}}}`,
	"FeatureView":    `{api_version: falaj/v1, kind: FeatureView, name: weather, project: PROJECT, spec: {source: {dataset: weather}, entities: [origin], timestamp: at, ttl: 3h, features: [{name: temp, type: float64}]}}`,
	"FeatureService": `{api_version: falaj/v1, kind: FeatureService, name: weather, project: PROJECT, spec: {features: ["weather:temp"], computed: [{name: twice, type: float64, expression: temp * 2.0}]}}`,
	"Environment":    `{api_version: falaj/v1, kind: Environment, name: bare, project: PROJECT, spec: {}}`,
	"Job":            `{api_version: falaj/v1, kind: Job, name: waits, project: PROJECT, spec: {command: [sleep, "600"], env: {WHEN: "2026-01-01", NO: "no"}, resources: {cpu: 0.5}, timeout: 1h, max_attempts: 1}}`,
	"Sweep":          `{api_version: falaj/v1, kind: Sweep, name: tries, project: PROJECT, spec: {job: {command: [sleep, "600"]}, parameters: [{name: x, type: float, low: 1e-5, high: 1, log: true}], objectives: [{metric: loss, direction: minimize}], budget: {trials: 2}}}`,
	"ModelPolicy":    `{api_version: falaj/v1, kind: ModelPolicy, name: default, project: PROJECT, spec: {description: ours, content: code}}`,
	"Deployment":     `{api_version: falaj/v1, kind: Deployment, name: delay, project: PROJECT, spec: {model: delay, version: champion, prediction: {output: probabilities, index: 1}}}`,
	"Gateway":        `{api_version: falaj/v1, kind: Gateway, name: edge, project: PROJECT, spec: {deployments: [delay]}}`,
	"Monitor":        `{api_version: falaj/v1, kind: Monitor, name: watch, project: PROJECT, spec: {deployment: delay, window: {every: 6h}}}`,
}

// order is that of the kinds where one needs another.
var order = []string{
	"Project", "Zone", "Pool", "Queue", "Budget", "Dataset", "Grant", "Secret", "Policy", "Source", "Entity", "FeatureView", "FeatureService",
	"Environment", "Job", "Sweep", "ModelPolicy", "Deployment", "Gateway", "Monitor",
}

// TestPrintedManifestsChangeNothing: of every kind that the server knows, what get prints
// is what apply takes, and is no change.
func TestPrintedManifestsChangeNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a real server")
	}
	dir := t.TempDir()
	s := live.New(t, "")
	s.Env = append(s.Env, "FALAJ_SOURCES_FILES="+dir)
	s.Up(t)
	p := s.Project(t, "pasture")
	kinds := kindsOf(t, p)
	if want := slices.Sorted(slices.Values(order)); !slices.Equal(kinds, want) {
		t.Fatalf("the server knows the kinds\n%v\nand this test\n%v", kinds, want)
	}
	p.Must(os.WriteFile(filepath.Join(dir, "weather.csv"), []byte("origin,at,temp,y\nEWR,2013-01-01T00:00:00Z,1.5,2\n"), 0o600))
	p.Must(p.C.Do(t.Context(), http.MethodPost, "/api/v1/accounts", map[string]any{"project": p.Name, "name": "ci"}, nil))
	ids := map[string]string{}
	for _, kind := range order {
		switch kind {
		case "FeatureView":
			p.Import("weather", "origin,at,temp,y\nEWR,2013-01-01T00:00:00Z,1.5,2\n")
		case "Deployment":
			p.Register("delay", p.Logistic())
		}
		a := p.Apply(strings.ReplaceAll(made[kind], "DIRECTORY", dir))
		if len(a) != 1 || a[0].Kind != kind || a[0].Result == "unchanged" {
			t.Fatalf("%s: %+v", kind, a)
		}
		if ids[kind] = a[0].Name; kind == "Job" {
			ids[kind] = a[0].ID
		}
	}
	p.Eventually("the deployment has no monitor", func() (bool, error) { // which an event makes
		var monitors struct{ Items []client.Object }
		err := p.C.Do(t.Context(), http.MethodGet, p.Path("monitors"), nil, &monitors)
		return slices.ContainsFunc(monitors.Items, func(m client.Object) bool { return m.Text("name") == "delay" }), err
	})
	ids["automatic Monitor"] = "delay"
	for about, name := range ids {
		kind := strings.TrimPrefix(about, "automatic ")
		t.Run(about, func(t *testing.T) { unchanged(t, p, kind, name) })
	}
	t.Run("all of a kind", func(t *testing.T) { unchanged(t, p, "Monitor") })
	t.Run("grants of the installation", func(t *testing.T) { unchanged(t, p, "Grant", "--installation") })
	t.Run("an account's member", func(t *testing.T) {
		text := p.Run(0, "get", "Grant", "reads", "-o", "manifest")
		if !strings.Contains(text, "principal: service/ci\n") || strings.Contains(text, "status:") {
			t.Errorf("%s", text)
		}
	})
}

// TestWhatIsNotThere: what is asked of something that does not exist is not found, lists, too;
// and a model without the alias champion has none.
func TestWhatIsNotThere(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a real server")
	}
	s := live.New(t, "")
	s.Up(t)
	p := s.Project(t, "pasture")
	var api struct {
		Paths map[string]map[string]any `json:"paths"`
	}
	p.Must(p.C.Do(t.Context(), http.MethodGet, "/api/openapi.json", nil, &api))
	param := regexp.MustCompile(`\{[a-z_]+\}`)
	asked := 0
	for path, methods := range api.Paths {
		rest, ok := strings.CutPrefix(path, "/api/v1/projects/{project}/")
		if !ok || methods["get"] == nil || !strings.Contains(rest, "{") {
			continue
		}
		asked++
		resp, err := p.C.Send(t.Context(), http.MethodGet, p.Path(param.ReplaceAllString(rest, "absent")), nil, nil)
		if err == nil {
			_ = resp.Body.Close()
			t.Errorf("%s of what is not there answers %d", path, resp.StatusCode)
		}
	}
	if asked < 40 {
		t.Errorf("only %d routes were asked", asked)
	}
	p.Must(p.Foreign(p.C, http.MethodPost, "/api/2.0/mlflow/registered-models/create", map[string]any{"name": "delay"}, nil))
	p.RegisterVersion("delay", p.Logistic())
	var model client.Object
	for _, alias := range []string{"", "champion"} {
		want := cmp.Or(alias, "newest")
		if alias != "" {
			p.Must(p.C.Do(t.Context(), http.MethodPut, p.Path("models/delay/aliases/"+alias), map[string]any{"version": "1"}, nil))
		}
		model = nil
		p.Must(p.C.Do(t.Context(), http.MethodGet, p.Path("models/delay?view=full"), nil, &model))
		if model.Text(want+".version") != "1" || (model["champion"] != nil) != (alias != "") {
			t.Errorf("with the alias %q: %v", alias, model)
		}
	}
}

// unchanged prints what get is asked for in both forms, and applies it.
func unchanged(t *testing.T, p *live.Project, get ...string) {
	t.Helper()
	for _, form := range []string{"manifest", "yaml"} {
		text := p.Run(0, append(append([]string{"get"}, get...), "-o", form)...)
		var doc map[string]any
		if err := yaml.NewDecoder(strings.NewReader(text)).Decode(&doc); err != nil || doc["kind"] != get[0] || (doc["status"] != nil) != (form == "yaml") {
			t.Fatalf("%v as %s: %v\n%s", get, form, err, text)
		}
		file := filepath.Join(t.TempDir(), "printed.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		applied, code := p.Command(t.Context(), "apply", "-f", file, "-o", "json")
		var all []client.Object
		if err := yaml.Unmarshal([]byte(applied), &all); code != 0 || err != nil || len(all) == 0 {
			t.Fatalf("%v as %s: exit code %d: %s\n%s", get, form, code, applied, text)
		}
		for _, a := range all {
			if a.Text("result") != "unchanged" {
				t.Errorf("%v as %s: %v\n%s", get, form, a, text)
			}
		}
	}
}

// kindsOf asks the server for the kinds of manifests that it knows.
func kindsOf(t *testing.T, p *live.Project) []string {
	t.Helper()
	err := p.C.Do(t.Context(), http.MethodGet, "/api/v1/manifests/-/-", nil, nil)
	refused, ok := errors.AsType[*client.Error](err)
	if !ok {
		t.Fatal(err)
	}
	list, ok := strings.CutPrefix(refused.Hint, "Kinds: ")
	if !ok {
		t.Fatal(refused.Hint)
	}
	return strings.Split(strings.TrimSuffix(list, "."), ", ")
}
