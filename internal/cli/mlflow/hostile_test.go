package mlflow

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/internal/fault"
)

// TestEndlessPages: a server that always tells of another page is an error, and no import
// without an end.
func TestEndlessPages(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"next_page_token":"again","registered_models":[],"files":[]}`)
	}))
	defer s.Close()
	source, err := Open(t.Context(), s.URL, Access{})
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	for name, err := range map[string]error{
		"experiments": func() error { _, err := source.Experiments(t.Context()); return err }(),
		"runs":        source.Runs(t.Context(), []int64{1}, func([]Run) error { return nil }),
		"points of metric": func() error {
			_, err := source.History(t.Context(), []Run{{ID: "r", Latest: []*Series{{Key: "k"}}}})
			return err
		}(),
		"logged models":     source.Models(t.Context(), []int64{1}, func([]Model) error { return nil }),
		"registered models": source.Registered(t.Context(), func(Registered) error { return nil }),
		"versions of model": func() error { _, err := source.(*server).versions(t.Context(), "m"); return err }(),
		"artifacts":         source.List(t.Context(), Place{Run: "r"}, func(File) error { return nil }, func(string, error) {}),
	} {
		if !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "the list of "+name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	var p pages
	for n := range 4 {
		if more, err := p.next(strconv.Itoa(n), "things", 5); err != nil || !more {
			t.Fatal(n, more, err)
		}
	}
	if _, err := p.next("another", "things", 5); err == nil {
		t.Error("more pages than the most")
	}
}

// TestRedirectInClear: what was asked under TLS is not asked again in the clear, with the
// credentials, because the server says so.
func TestRedirectInClear(t *testing.T) {
	s, err := openServer("https://mlflow.example.org", Access{Token: "secret"})
	if err != nil {
		t.Fatal(err)
	}
	for to, ok := range map[string]bool{
		"https://mlflow.example.org/login": true, "http://mlflow.example.org/login": false, "https://example.org/": false, "https://mlflow.example.org:8443/": false,
	} {
		u, err := url.Parse(to)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.http.CheckRedirect(&http.Request{URL: u}, []*http.Request{{}}); (err == nil) != ok {
			t.Errorf("%s: %v", to, err)
		}
	}
}

// TestPartsFit: whatever a run has, no batch is more than the server takes.
func TestPartsFit(t *testing.T) {
	const most = 4 << 20
	points := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || len(body) > most {
			t.Errorf("a batch of %d bytes, %v", len(body), err)
		}
		if r.Method == http.MethodGet {
			_, _ = io.WriteString(w, `{"items":[]}`)
			return
		}
		if strings.HasSuffix(r.URL.Path, "/seen") {
			_, _ = io.WriteString(w, `{"runs":{}}`)
			return
		}
		var in struct {
			Experiments []json.RawMessage
			Runs        []struct {
				Part, More bool
				History    []struct{ Values []float64 }
			}
		}
		if err := json.Unmarshal(body, &in); err != nil {
			t.Error(err)
		}
		var items []string
		for range in.Experiments {
			items = append(items, `{"result":"created","experiment_id":1}`)
		}
		for _, run := range in.Runs {
			for _, h := range run.History {
				points += len(h.Values)
			}
			items = append(items, `{"result":"created"}`)
		}
		_, _ = io.WriteString(w, `{"items":[`+strings.Join(items, ",")+`]}`)
	}))
	defer s.Close()
	c, err := client.New(s.URL, "t")
	if err != nil {
		t.Fatal(err)
	}
	source := &heavy{}
	for n := range 30 {
		source.experiments = append(source.experiments, Experiment{ID: int64(n + 1), Name: strconv.Itoa(n), Tags: Pairs{{"k", strings.Repeat("x", 300_000)}}})
	}
	many, long := Run{ID: "many", Experiment: 1}, Run{ID: "long", Experiment: 1, Params: Pairs{{"p", strings.Repeat("x", maxItem-1000)}}}
	for n := range 20_000 { // each of its metrics has one point and a long name
		one := &Series{Key: fmt.Sprintf("%05d", n) + strings.Repeat("é", 120)}
		one.add(1<<62, -1<<62, -1.2345678901234567e-300)
		many.History = append(many.History, one)
	}
	all := &Series{Key: "k"}
	for range 30_000 {
		all.add(1<<62, -1<<62, -1.2345678901234567e-300)
	}
	absurd := &Series{Key: strings.Repeat("k", 5<<20)}
	absurd.add(1, 1, 1)
	long.History = []*Series{all, absurd}
	source.runs = []Run{many, long}
	report, err := Import(t.Context(), source, Target{Client: c, Project: "p"}, Options{NoArtifacts: true})
	if err != nil || report.Runs.Created != 2 || report.Experiments.Created != 30 || points != 50_000 || report.SkippedCount != 1 {
		t.Errorf("%+v, %d points, %v", report, points, err)
	}
}

// heavy is a source that has what it is given.
type heavy struct {
	experiments []Experiment
	runs        []Run
}

func (*heavy) String() string                                           { return "heavy" }
func (*heavy) Whole() bool                                              { return true }
func (*heavy) Close() error                                             { return nil }
func (h *heavy) Experiments(context.Context) ([]Experiment, error)      { return h.experiments, nil }
func (*heavy) Count(context.Context) (int64, error)                     { return 0, nil }
func (*heavy) Registered(context.Context, func(Registered) error) error { return nil }
func (*heavy) LeftOut(context.Context) (map[string]int64, error)        { return nil, nil }
func (*heavy) Models(context.Context, []int64, func([]Model) error) error {
	return nil
}

func (h *heavy) Runs(_ context.Context, _ []int64, yield func([]Run) error) error {
	return yield(h.runs)
}
func (*heavy) History(_ context.Context, runs []Run) (int, error) { return len(runs), nil }
func (*heavy) List(context.Context, Place, func(File) error, func(string, error)) error {
	return nil
}
func (*heavy) Fetch(context.Context, Place, string) (io.ReadCloser, error) { return nil, io.EOF }

// TestHostileDatabase: tables that SQLite takes and that MLflow never makes end the import
// with an error.
func TestHostileDatabase(t *testing.T) {
	const tables = `CREATE TABLE experiments (experiment_id INTEGER, name TEXT, lifecycle_stage TEXT);
		INSERT INTO experiments VALUES (1, 'e', 'active');
		CREATE TABLE runs (run_uuid TEXT, experiment_id INTEGER, status TEXT, start_time INTEGER, lifecycle_stage TEXT, artifact_uri TEXT);
		CREATE TABLE tags (run_uuid TEXT COLLATE NOCASE, key TEXT, value TEXT);
		CREATE TABLE params (run_uuid TEXT COLLATE NOCASE, key TEXT, value TEXT);
		CREATE TABLE metrics (run_uuid TEXT COLLATE NOCASE, key TEXT, value REAL, timestamp INTEGER, step INTEGER, is_nan BOOLEAN);`
	for name, c := range map[string]struct{ rows, want string }{
		"params":  {`INSERT INTO runs VALUES ('ab', 1, 'FINISHED', 1, 'active', ''); INSERT INTO params VALUES ('AB', 'k', 'v')`, "without case"},
		"tags":    {`INSERT INTO runs VALUES ('ab', 1, 'FINISHED', 1, 'active', ''); INSERT INTO tags VALUES ('AB', 'k', 'v')`, "without case"},
		"metrics": {`INSERT INTO runs VALUES ('ab', 1, 'FINISHED', 1, 'active', ''); INSERT INTO metrics VALUES ('AB', 'k', 1, 1, 1, 0)`, "without case"},
		"bytes": {`WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 600)
			INSERT INTO runs SELECT CAST(printf('%04d', i) AS BLOB), 1, 'FINISHED', 1, 'active', '' FROM n`, "no text"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "mlflow.db")
			db, err := sql.Open("sqlite3", file)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := db.ExecContext(t.Context(), tables+c.rows); err != nil {
				t.Fatal(err)
			}
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
			source, err := Open(t.Context(), file, Access{})
			if err != nil {
				t.Fatal(err)
			}
			defer source.Close()
			err = source.Runs(t.Context(), []int64{1}, func(runs []Run) error {
				_, err := source.History(t.Context(), runs)
				return err
			})
			if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v", err)
			}
		})
	}
}
