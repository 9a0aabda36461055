// Package lineage crosses Falaj's border with lineage: the unmodified OpenLineage
// client tells Falaj of runs, and a receiver is told of Falaj's.
package lineage

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/test/live"
)

const manifests = `
{api_version: falaj/v1, kind: Dataset, name: weather, project: PROJECT, spec: {classification: internal, columns: [{name: id, type: int64}, {name: seen, type: timestamp}, {name: temp, type: float64}]}}
---
{api_version: falaj/v1, kind: Entity, name: id, project: PROJECT, spec: {type: int64}}
`

const view = `
{api_version: falaj/v1, kind: FeatureView, name: heat, project: PROJECT, spec: {source: {sql: "SELECT id, seen, temp * 1.8 + 32 AS fahrenheit FROM weather WHERE temp IS NOT NULL"}, entities: [id], timestamp: seen, features: [{name: fahrenheit, type: float64}]}}
`

const canary = "31.415926"

func python(t *testing.T, s *live.Server) string {
	t.Helper()
	path := filepath.Join(s.Bin.Root, ".tmp", "venv", "openlineage", "bin", "python")
	if _, err := os.Stat(path); err != nil {
		const how = "the OpenLineage client is not installed: make engines"
		if os.Getenv("CI") == "true" {
			t.Fatal(how)
		}
		t.Skip(how)
	}
	return path
}

func script(t *testing.T, python, name, stdin string, env ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), live.WaitProgram)
	defer cancel()
	cmd := exec.CommandContext(ctx, python, filepath.Join("testdata", name))
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdin = strings.NewReader(stdin)
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s\n%s", err, &out, &log)
	}
	return out.String()
}

// receiver is told; while it is away it answers 503.
type receiver struct {
	*httptest.Server
	mu   sync.Mutex
	away bool
	got  []string // bodies that were acknowledged
	auth []string
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		b, _ := io.ReadAll(q.Body)
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.away {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		r.got, r.auth = append(r.got, string(b)), append(r.auth, q.Header.Get("Authorization"))
		w.WriteHeader(http.StatusCreated)
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) set(away bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.away = away
}

// told lists what was told, "TYPE job: inputs → outputs", each once, in the order in
// which it came first.
func (r *receiver) told(t *testing.T) []string {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	for _, text := range r.got {
		var e struct {
			Type            string `json:"eventType"`
			Job             struct{ Name string }
			Inputs, Outputs []struct {
				Name   string
				Facets struct {
					Version struct {
						Number string `json:"datasetVersion"`
					}
				}
			}
		}
		if err := json.Unmarshal([]byte(text), &e); err != nil {
			t.Fatal(err)
		}
		words := []string{e.Type, e.Job.Name + ":"}
		for _, d := range e.Inputs {
			words = append(words, d.Name+"@"+d.Facets.Version.Number)
		}
		words = append(words, "→")
		for _, d := range e.Outputs {
			words = append(words, d.Name+"@"+d.Facets.Version.Number)
		}
		line := strings.Join(words, " ")
		if !slices.Contains(out, line) {
			out = append(out, line)
		}
	}
	return out
}

// TestOpenLineage: the unmodified client tells Falaj; Falaj tells a receiver
// everything, in order, though that was away and the server was killed, and no value
// of any row.
func TestOpenLineage(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a real server and the OpenLineage client")
	}
	r := newReceiver(t)
	s := live.New(t, "")
	py := python(t, s)
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("word\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Env = append(s.Env, "FALAJ_LINEAGE_OPENLINEAGE_URL="+r.URL+"/api/v1/lineage", "FALAJ_LINEAGE_OPENLINEAGE_TOKEN_FILE="+token)
	s.Up(t)
	p := s.Project(t, "nyc")
	p.Apply(manifests)
	p.Import("weather", "id,seen,temp\n1,2026-01-01T00:00:00Z,"+canary+"\n2,2026-01-01T00:00:00Z,\n")

	// 1. In, by the client.
	secret := func(role string) string {
		var made client.Object
		p.Must(p.C.Do(t.Context(), http.MethodPost, "/api/v1/tokens", map[string]any{"project": p.Name, "name": "ol-" + role, "role": role, "expires_in": "24h"}, &made))
		return made.Text("secret")
	}
	script(t, py, "report.py", "", "FALAJ_URL="+s.URL, "FALAJ_PROJECT="+p.Name, "FALAJ_TOKEN="+secret("engineer"), "FALAJ_VIEWER="+secret("viewer"), "FALAJ_ADMIN="+s.Token)
	said := p.Run(0, "lineage", "weather", "--columns")
	for _, want := range []string{
		"dataset weather@1", "imported from weather.csv", "job nightly.load in airflow  COMPLETE", "dataset public.raw in postgres://db:5432",
		"job nightly.check in airflow", "temp ← public.raw.celsius",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("lineage does not say %q:\n%s", want, said)
		}
	}
	if n := strings.Count(p.Run(0, "audit", "list", "--action", "lineage.report", "--outcome", "done", "-o", "json"), `"lineage.report"`); n != 6 {
		t.Errorf("%d acts are on record; 6 events of 8 were new", n)
	}

	// 2. Out, while the receiver is away and the server is killed.
	r.set(true)
	p.Apply(view)
	p.Materialise("heat")
	var made client.Object
	p.Must(p.C.Do(t.Context(), http.MethodPost, p.Path("training-sets"), map[string]any{
		"name": "train", "timestamp": "seen", "spine": "SELECT id, seen, temp > 30 AS hot FROM weather", "features": []string{"heat"},
	}, &made))
	p.Must(s.Kill())
	r.set(false)
	p.Again()
	want := []string{
		"START import/weather: →", "COMPLETE import/weather: → weather@1",
		"START materialise/heat: weather@1 →", "COMPLETE materialise/heat: weather@1 → feature_views/heat@1",
		"START training_set/train: weather@1 →", "COMPLETE training_set/train: weather@1 → train@1",
	}
	p.Eventually("the receiver is not told of everything", func() (bool, error) { return len(r.told(t)) >= len(want), nil })
	if got := r.told(t); !slices.Equal(got, want) {
		t.Errorf("told\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	r.mu.Lock()
	all := strings.Join(r.got, "\n")
	for _, a := range r.auth {
		if a != "Bearer word" {
			t.Errorf("Authorization: %q", a)
		}
	}
	r.mu.Unlock()
	if strings.Contains(all, canary) {
		t.Errorf("a value of a row was told:\n%s", all)
	}
	if out := script(t, py, "check.py", all); !strings.Contains(out, "all right") {
		t.Error(out)
	}
}

// The lineage of a version names only what that version went into: the view's online rows
// are of the newest one, the training set and its service are of the first.
func TestLineageOfOneVersion(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a real server")
	}
	s := live.New(t, "")
	s.Up(t)
	p := s.Project(t, "nyc")
	p.Apply(manifests)
	p.Import("weather", "id,seen,temp\n1,2026-01-01T00:00:00Z,20\n2,2026-01-01T00:00:00Z,\n")
	p.Apply(view)
	p.Materialise("heat")
	var made client.Object
	p.Must(p.C.Do(t.Context(), http.MethodPost, p.Path("training-sets"), map[string]any{
		"name": "train", "timestamp": "seen", "spine": "SELECT id, seen, temp > 30 AS hot FROM weather", "features": []string{"heat"},
	}, &made))
	p.Import("weather", "id,seen,temp\n1,2026-01-01T00:00:00Z,25\n2,2026-01-01T00:00:00Z,30\n")
	p.Materialise("heat")
	for _, test := range []struct {
		args      string
		has, lack []string
	}{
		{"weather@1 --down", []string{"train@1"}, []string{"weather@2"}},
		{"weather@2 --down", []string{"heat@1"}, []string{"train@1", "weather@1"}},
		{"weather@2", []string{"heat@1"}, []string{"train@1", "weather@1"}},
		{"train@1 --up", []string{"weather@1", "heat@1"}, []string{"weather@2"}},
		{"heat@1 --kind feature_view --down", []string{"train@1"}, []string{"weather@2"}},
		{"heat@1 --kind feature_view --up", []string{"weather@2"}, []string{"train@1", "weather@1"}},
	} {
		said := p.Run(0, append([]string{"lineage"}, strings.Fields(test.args)...)...)
		for _, name := range test.has {
			if !strings.Contains(said, name) {
				t.Errorf("lineage %s does not name %s:\n%s", test.args, name, said)
			}
		}
		for _, name := range test.lack {
			if strings.Contains(said, name) {
				t.Errorf("lineage %s names %s:\n%s", test.args, name, said)
			}
		}
	}
}
