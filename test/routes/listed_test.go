package routes

import (
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/internal/governance/project"
)

// list is a list and how one of its objects is read.
type list struct {
	method, path string
	items, name  string // in the answer
	one          func(name string) string
}

var lists = []list{
	{"GET", "/api/v1/projects", "items", "name", func(n string) string { return "/api/v1/projects/" + n }},
	{"GET", "/api/v1/pools", "items", "name", func(n string) string { return "/api/v1/pools/" + n }},
	{"GET", "/api/v1/queues", "items", "name", func(n string) string { return "/api/v1/queues/" + n }},
	ofProject("datasets", "name", func(n string) string { return n }),
	ofProject("datasets/weather/versions", "version", func(n string) string { return "../../weather@" + n + "/lineage" }),
	ofProject("entities", "name", func(n string) string { return n }),
	ofProject("feature-views", "name", func(n string) string { return n }),
	ofProject("feature-services", "name", func(n string) string { return n }),
	ofProject("sources", "name", func(n string) string { return n }),
	ofProject("secrets", "name", func(n string) string { return n }),
	ofProject("policies", "name", func(n string) string { return n }),
	ofProject("jobs", "id", func(n string) string { return n }),
	ofProject("models", "name", func(n string) string { return n }),
	found("dataset", "datasets"), found("feature_view", "feature-views"), found("model", "models"), found("job", "jobs"), found("source", "sources"),
	{"POST", "/api/2.0/mlflow/experiments/search", "experiments", "experiment_id", func(n string) string { return "/api/2.0/mlflow/experiments/get?experiment_id=" + n }},
	{"POST", "/api/2.0/mlflow/runs/search", "runs", "info.run_id", func(n string) string { return "/api/2.0/mlflow/runs/get?run_id=" + n }},
	{"POST", "/api/2.0/mlflow/logged-models/search", "models", "info.model_id", func(n string) string { return "/api/2.0/mlflow/logged-models/" + n }},
	{"GET", "/api/2.0/mlflow/registered-models/search", "registered_models", "name", func(n string) string { return "/api/2.0/mlflow/registered-models/get?name=" + url.QueryEscape(n) }},
}

// ofProject is a list of the project flights; one is relative to it.
func ofProject(noun, name string, one func(string) string) list {
	path := "/api/v1/projects/" + flights + "/" + noun
	return list{"GET", path, "items", name, func(n string) string {
		u, _ := url.Parse(path + "/")
		return u.JoinPath(one(n)).Path
	}}
}

// found is what a search finds of a kind.
func found(kind, noun string) list {
	path := "/api/v1/projects/" + flights + "/"
	return list{"GET", path + "search?page_size=1000&q=kind:" + kind, "items", "name", func(n string) string { return path + noun + "/" + url.PathEscape(n) }}
}

// read gives the names that a caller sees in a list, or how it was refused.
func (w *world) read(t *testing.T, l list, as caller) (names []string, status string) {
	t.Helper()
	var body []byte
	if l.method == http.MethodPost {
		body, _ = json.Marshal(map[string]any{"experiment_ids": w.fields["experiment_ids"], "max_results": 100})
	}
	got := w.send(t, l.method, l.path, as, body)
	if got.status != "200" {
		return nil, got.status
	}
	var page map[string]json.RawMessage
	must(t, json.Unmarshal([]byte(got.body), &page))
	var objects []client.Object
	if raw := page[l.items]; raw != nil {
		must(t, json.Unmarshal(raw, &objects))
	}
	for _, o := range objects {
		names = append(names, o.Text(l.name))
	}
	slices.Sort(names)
	return names, got.status
}

// TestListedIsAllowed: what a caller sees in a list it can get, and what it can
// get of what there is it sees, wherever it may list at all. Who has a role on
// one object only may not list.
func TestListedIsAllowed(t *testing.T) {
	w := open(t)
	callers := []caller{w.neighbour, w.scoped["dataset.read"], w.scoped["run.read"], w.scoped["run.write"]}
	for _, c := range w.members {
		callers = append(callers, c)
	}
	// Of one dataset, and of nothing.
	_ = w.token(t, "", flights, "friend", "", "", nil)
	_, err := w.server.Client(t).Apply(t.Context(), flights, []byte("{api_version: falaj/v1, kind: Grant, name: friend, spec: {principal: service/friend, role: viewer, object: dataset/weather}}"), false)
	must(t, err)
	friend := w.token(t, "a friend of one dataset", flights, "friend", "", "", nil)
	narrow := w.token(t, "a token for one dataset", flights, "narrow", project.Admin, "", []string{"dataset.read:weather@1", "dataset.read:weather"})
	stranger := w.token(t, "a service without a role", flights, "stranger", "", "", nil)
	callers = append(callers, friend, narrow, stranger)
	// An administrator of all, in either project as MLflow's clients have it.
	inFlights := w.token(t, "an administrator of the project", flights, "boss", project.Admin, "", nil)

	seen := 0
	for _, l := range lists {
		all, status := w.read(t, l, inFlights)
		if l.path == "/api/v1/projects" {
			all, status = w.read(t, l, w.admin)
		}
		if status != "200" || len(all) == 0 {
			t.Fatalf("%s: an administrator sees %v, %s", l.path, all, status)
		}
		for _, as := range callers {
			var allowed []string
			for _, name := range all {
				got := w.send(t, http.MethodGet, l.one(name), as, nil)
				switch got.status {
				case "200":
					allowed = append(allowed, name)
				case "403", "404":
				default:
					t.Errorf("%s as %s: %s %s", l.one(name), as.name, got.status, got.body)
				}
			}
			names, status := w.read(t, l, as)
			narrowed := as == friend || as == narrow
			elsewhere := as == w.neighbour && (strings.Contains(l.path, "mlflow") || l.path == "/api/v1/projects")
			switch {
			case status == "200" && !elsewhere:
				if diff := cmp.Diff(allowed, names); diff != "" {
					t.Errorf("%s as %s (-can get, +sees):\n%s", l.path, as.name, diff)
				}
				seen += len(names)
			case status == "200": // its own project's
				for _, name := range names {
					if slices.Contains(all, name) && !slices.Contains(allowed, name) {
						t.Errorf("%s: %s sees %s and may not get it", l.path, as.name, name)
					}
				}
			case status != "403" && status != "404":
				t.Errorf("%s as %s: %s", l.path, as.name, status)
			case len(allowed) > 0 && !narrowed:
				t.Errorf("%s: %s may not list (%s) and can get %v", l.path, as.name, status, allowed)
			}
			if as == stranger && (len(allowed) > 0 && l.path != "/api/v1/pools" || len(names) > 0 && l.path != "/api/v1/pools") {
				t.Errorf("%s: one without a role gets %v and sees %v", l.path, allowed, names)
			}
			if as == friend && strings.HasSuffix(l.path, "/datasets") && !slices.Equal(allowed, []string{"weather"}) {
				t.Errorf("a friend of weather gets %v", allowed)
			}
		}
	}
	if seen < 50 {
		t.Errorf("only %d objects were seen in lists", seen)
	}
}
