package openlineage_test

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/dataset/datasetsql"
	"github.com/falaj-ml/falaj/internal/dataset/datasettest"
	"github.com/falaj-ml/falaj/internal/dataset/openlineage"
	"github.com/falaj-ml/falaj/internal/dataset/openlineage/openlineagesql"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/store/storetest"
)

const p = datasettest.Project

func TestMain(m *testing.M) { datasettest.Main(m, nil) }

type world struct {
	*datasettest.Harness
	s *openlineage.Service
}

// schema lists the migrations of the database.
var schema = []store.Migrations{datasetsql.Migrations, openlineagesql.Migrations}

func begin(t *testing.T, url string) world {
	t.Helper()
	db, err := store.Open(t.Context(), store.Config{URL: url, Migrations: schema})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	h, err := datasettest.On(db, t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return world{h, openlineage.New(openlineage.Config{DB: db, Store: openlineagesql.Store{}, Authorizer: h.Policy, Datasets: h.Services, Tables: "/srv/tables"})}
}

func onSQLite(t *testing.T) world {
	t.Helper()
	return begin(t, storetest.SQLiteURL(t, t.TempDir(), schema...))
}

// on runs a test on both databases.
func on(t *testing.T, test func(t *testing.T, w world)) { //nolint:thelper // these are the tests
	t.Run("SQLite", func(t *testing.T) { test(t, onSQLite(t)) })
	t.Run("PostgreSQL", func(t *testing.T) { test(t, begin(t, storetest.Postgres(t, schema...))) })
}

const facet = `"_producer":"https://airflow.example/1","_schemaURL":"https://airflow.example/f.json"`

func run(n int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", n) }

// event is one of a run; in and out are datasets as JSON.
func event(kind string, n int, job, at, in, out string) string {
	return fmt.Sprintf(`{"eventType":%q,"eventTime":%q,"producer":"https://airflow.example/1","schemaURL":"https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent",
		"run":{"runId":%q,"facets":{"nominalTime":{%s,"nominalStartTime":"2026-01-01T00:00:00Z","strange":[1]}}},"job":{"namespace":"airflow","name":%q},"inputs":[%s],"outputs":[%s],"later":true}`,
		kind, at, run(n), facet, job, in, out)
}

func thing(namespace, name, facets string) string {
	return fmt.Sprintf(`{"namespace":%q,"name":%q,"facets":{%s}}`, namespace, name, facets)
}

func (w world) take(t *testing.T, text string) openlineage.Taken {
	t.Helper()
	out, err := w.s.Take(datasettest.Context(t), p, []byte(text))
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return out
}

// edges are a graph's, by the names of its nodes, with the root before them.
func (w world) edges(t *testing.T, a openlineage.Ask) (string, openlineage.Graph) {
	t.Helper()
	a.Project = p
	g, err := w.s.Around(datasettest.Context(t), a)
	if err != nil {
		t.Fatal(err)
	}
	name := map[string]string{}
	for _, n := range g.Nodes {
		name[n.ID] = n.Name
	}
	var out []string
	for _, e := range g.Edges {
		out = append(out, name[e.From]+" → "+name[e.To])
	}
	slices.Sort(out)
	return name[g.Root] + ": " + strings.Join(slices.Compact(out), ", "), g
}

// What others tell is joined with Falaj's own versions, by name, by the table's name
// in the catalog and by the place of its files, and is followed both ways.
func TestForeignLineageJoins(t *testing.T) {
	on(t, func(t *testing.T, w world) { //nolint:thelper // the test itself
		weather := w.Put(t, "weather", dataset.Spec{}, "id,temp\n1,2\n")
		columns := `"columnLineage":{` + facet + `,"fields":{"temp":{"inputFields":[{"namespace":"postgres://db","name":"public.raw","field":"celsius","transformations":[{"type":"DIRECT","subtype":"TRANSFORMATION"}]}]}}}`
		raw := thing("postgres://db", "public.raw", `"schema":{`+facet+`,"fields":[{"name":"celsius","type":"float"}]}`)
		w.take(t, event("START", 1, "load", "2026-01-01T10:00:00+04:00", raw, ""))
		w.take(t, event("COMPLETE", 1, "load", "2026-01-01T10:01:00+04:00", raw, thing("falaj://nyc", "weather@1", columns)))
		links := `"symlinks":{` + facet + `,"identifiers":[{"namespace":"http://localhost:7070/iceberg/","name":"nyc.weather","type":"TABLE"}]}`
		w.take(t, event("COMPLETE", 2, "report", "2026-01-02T00:00:00Z", thing("file", "/somewhere", links), thing("s3://lake", "report", "")))
		w.take(t, event("COMPLETE", 3, "spark", "2026-01-02T00:00:00Z", thing("file", "/srv/tables/projects/nyc/datasets/weather", ""), thing("s3://lake", "spark", "")))
		w.take(t, event("COMPLETE", 4, "other", "2026-01-02T00:00:00Z", thing("falaj://sun", "weather", ""), thing("s3://lake", "other", "")))

		got, g := w.edges(t, openlineage.Ask{Ref: "weather"})
		if want := "weather@1: load → weather@1, public.raw → load, report → report, spark → spark, weather@1 → report, weather@1 → spark"; got != want {
			t.Fatalf("got  %s\nwant %s", got, want)
		}
		for _, n := range g.Nodes {
			switch n.Name {
			case "weather@1":
				if n.Digest != weather.ContentDigest || n.Foreign || len(n.Columns["temp"]) != 1 || n.Columns["temp"][0].Field != "celsius" || n.Columns["temp"][0].Kind != "DIRECT" {
					t.Errorf("%+v", n)
				}
			case "public.raw":
				if !n.Foreign || len(n.Fields) != 1 || n.Fields[0].Name != "celsius" {
					t.Errorf("%+v", n)
				}
			case "load":
				r := n.LastRun
				if r == nil || r.State != openlineage.Complete || r.Ended.Sub(r.Started) != time.Minute || !strings.Contains(string(r.Facets["nominalTime"]), `"strange":[1]`) {
					t.Errorf("%+v", n)
				}
			}
		}
		if got, _ := w.edges(t, openlineage.Ask{Ref: "weather@1", Up: true}); got != "weather@1: load → weather@1, public.raw → load" {
			t.Error(got)
		}
		if got, _ := w.edges(t, openlineage.Ask{Kind: openlineage.DatasetKind, Name: openlineage.Name{Namespace: "postgres://db", Name: "public.raw"}, Down: true, Depth: 2}); got != "public.raw: load → weather@1, public.raw → load" {
			t.Error(got)
		}
		if _, err := w.s.Around(datasettest.Context(t), openlineage.Ask{Project: p, Kind: openlineage.JobKind, Name: openlineage.Name{Namespace: "airflow", Name: "none"}}); !fault.Is(err, fault.NotFound) {
			t.Errorf("a job that nobody told of: %v", err)
		}
	})
}

// The same event again changes nothing; the events of a run add up in any order.
func TestRunsAddUp(t *testing.T) {
	on(t, func(t *testing.T, w world) { //nolint:thelper // the test itself
		in, out := thing("a", "in", ""), thing("a", "out", "")
		first := event("COMPLETE", 1, "job", "2026-01-01T00:02:00Z", in, out)
		if w.take(t, first).Unchanged || !w.take(t, first).Unchanged {
			t.Fatal("an event counts once")
		}
		before, _ := w.edges(t, openlineage.Ask{Kind: openlineage.DatasetKind, Name: openlineage.Name{Namespace: "a", Name: "in"}})
		// Late, with another input.
		w.take(t, event("START", 1, "job", "2026-01-01T00:01:00Z", thing("a", "more", ""), ""))
		after, g := w.edges(t, openlineage.Ask{Kind: openlineage.JobKind, Name: openlineage.Name{Namespace: "airflow", Name: "job"}})
		if before != "in: in → job, job → out" || after != "job: in → job, job → out, more → job" {
			t.Errorf("%s\n%s", before, after)
		}
		if r := g.Nodes[0].LastRun; r == nil || r.State != openlineage.Complete || r.Started.Minute() != 1 || r.Ended.Minute() != 2 {
			t.Errorf("%+v", r)
		}
		// Of a job the newest runs stay.
		for i := range 120 {
			w.take(t, event("COMPLETE", i+2, "job", time.Date(2026, 2, 1, 0, i, 0, 0, time.UTC).Format(time.RFC3339), in, out))
		}
		count := 0
		if err := w.DB.View(t.Context(), func(ctx context.Context, tx *store.Tx) error {
			rs, err := openlineagesql.Store{}.Runs(ctx, tx, p, openlineage.Name{Namespace: "airflow", Name: "job"}, 1000)
			count = len(rs)
			return err
		}); err != nil || count != 100 {
			t.Errorf("%d runs are kept, %v", count, err)
		}
		if err := w.DB.Update(t.Context(), string(p), func(ctx context.Context, tx *store.Tx) error { return w.s.Forget(ctx, tx, p) }); err != nil {
			t.Fatal(err)
		}
		if _, err := w.s.Around(datasettest.Context(t), openlineage.Ask{Project: p, Kind: openlineage.JobKind, Name: openlineage.Name{Namespace: "airflow", Name: "job"}}); !fault.Is(err, fault.NotFound) {
			t.Errorf("of a deleted project: %v", err)
		}
	})
}

// Who may not see a dataset of ours learns no more than its name, as of any ancestor.
func TestPermissionPerDataset(t *testing.T) {
	w := onSQLite(t)
	w.Put(t, "hidden", dataset.Spec{}, "secret\n1\n")
	w.Put(t, "shown", dataset.Spec{}, "id\n1\n")
	said := `"schema":{` + facet + `,"fields":[{"name":"secret","type":"int"}]},"columnLineage":{` + facet + `,"fields":{"secret":{"inputFields":[{"namespace":"a","name":"b","field":"c"}]}}}`
	w.take(t, event("COMPLETE", 1, "job", "2026-01-01T00:00:00Z", thing("falaj://nyc", "hidden", said), thing("falaj://nyc", "shown", "")))
	w.take(t, event("COMPLETE", 2, "before", "2026-01-01T00:00:00Z", "", thing("file", "/srv/tables/projects/nyc/datasets/hidden", said)))
	if _, g := w.edges(t, openlineage.Ask{Ref: "hidden"}); len(g.Nodes[0].Fields) != 1 || len(g.Nodes[0].Columns) != 1 {
		t.Errorf("%+v", g)
	}
	w.Policy.Deny(func(_ policy.Action, o policy.Object) bool { return strings.HasPrefix(o.Name, "hidden") })
	for want, a := range map[string]openlineage.Ask{
		"shown@1: hidden → job, job → shown@1": {Ref: "shown"},
		"before: before → hidden":              {Kind: openlineage.JobKind, Name: openlineage.Name{Namespace: "airflow", Name: "before"}},
		"hidden: ":                             {Kind: openlineage.DatasetKind, Name: openlineage.Name{Namespace: "file", Name: "/srv/tables/projects/nyc/datasets/hidden"}},
	} {
		got, g := w.edges(t, a)
		if text, _ := json.Marshal(g); got != want || strings.Contains(string(text), "secret") {
			t.Errorf("%s, want %s: %s", got, want, text)
		}
	}
	if _, err := w.s.Around(datasettest.Context(t), openlineage.Ask{Project: p, Ref: "hidden"}); !fault.Is(err, fault.PermissionDenied) {
		t.Errorf("got %v", err)
	}
	w.Policy.Deny(func(a policy.Action, _ policy.Object) bool { return a == openlineage.ActionReport })
	if _, err := w.s.Take(datasettest.Context(t), p, []byte(event("START", 2, "j", "2026-01-01T00:00:00Z", "", ""))); !fault.Is(err, fault.PermissionDenied) {
		t.Errorf("told without permission: %v", err)
	}
}

// The names that Falaj gives to views and models, and any others in its namespace, are
// those of foreign things, and break no graph that they are in.
func TestNamesThatNoDatasetHas(t *testing.T) {
	on(t, func(t *testing.T, w world) { //nolint:thelper // the test itself
		w.Put(t, "weather", dataset.Spec{}, "id\n1\n")
		link := `"symlinks":{` + facet + `,"identifiers":[{"namespace":"http://localhost/iceberg","name":"nyc.%s","type":"TABLE"}]}`
		outputs := []string{
			thing("falaj://nyc", "feature_views/weather@1", ""), thing("falaj://nyc", "models/delay@1", ""), thing("falaj://nyc", "Sales Data", ""),
			thing("s3://a", "dots", fmt.Sprintf(link, "a.b")), thing("s3://a", "zero", fmt.Sprintf(link, `\u0000x`)), thing("file", "/srv/tables/projects/nyc/datasets/A b/c", ""),
		}
		w.take(t, event("COMPLETE", 1, "job", "2026-01-01T00:00:00Z", thing("falaj://nyc", "weather", ""), strings.Join(outputs, ",")))
		// As it was kept at first.
		if err := w.DB.Update(t.Context(), string(p), func(ctx context.Context, tx *store.Tx) error {
			return openlineagesql.Store{}.PutLink(ctx, tx, openlineage.Link{
				Project: p, Job: openlineage.Name{Namespace: "airflow", Name: "job"}, Output: true, Dataset: openlineage.Name{Namespace: "falaj://nyc", Name: "feature_views/old"}, Own: "feature_views/old",
			})
		}); err != nil {
			t.Fatal(err)
		}
		got, _ := w.edges(t, openlineage.Ask{Ref: "weather"})
		if want := "weather@1: job → /srv/tables/projects/nyc/datasets/A b/c, job → Sales Data, job → dots, job → feature_views/old, job → feature_views/weather@1, job → models/delay@1, job → zero, weather@1 → job"; got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		if got, _ := w.edges(t, openlineage.Ask{Kind: openlineage.DatasetKind, Name: openlineage.Name{Namespace: "falaj://nyc", Name: "models/delay@1"}, Up: true}); got != "models/delay@1: job → models/delay@1, weather@1 → job" {
			t.Error(got)
		}
	})
}

// Names as long as they may be are kept by both databases, also such as do not compress.
func TestLongNames(t *testing.T) {
	on(t, func(t *testing.T, w world) { //nolint:thelper // the test itself
		long := func(n int) string {
			b := make([]byte, (n+1)/2)
			_, _ = rand.Read(b)
			return hex.EncodeToString(b)[:n]
		}
		for n, ok := range map[int]bool{512: true, 513: false} {
			text := strings.Replace(event("COMPLETE", n, long(n), "2026-01-01T00:00:00Z", thing(long(n), long(n), ""), thing(long(n), long(n), "")), `"airflow"`, `"`+long(n)+`"`, 1)
			if _, err := w.s.Take(datasettest.Context(t), p, []byte(text)); ok && err != nil || !ok && !fault.Is(err, fault.Invalid) {
				t.Errorf("%d bytes: %v", n, err)
			}
		}
	})
}

// columnsAsked counts what is read of columns.
type columnsAsked struct {
	openlineagesql.Store
	n int
}

func (c *columnsAsked) Columns(ctx context.Context, tx *store.Tx, l openlineage.Link) (openlineage.Columns, error) {
	c.n++
	return c.Store.Columns(ctx, tx, l)
}

// An answer is bounded, whatever was told: of many jobs that write one dataset the
// columns of one are read, and many wide datasets are named in the end.
func TestLargeGraphs(t *testing.T) {
	w := onSQLite(t)
	asked := &columnsAsked{}
	w.s = openlineage.New(openlineage.Config{DB: w.DB, Store: asked, Authorizer: w.Policy, Datasets: w.Services})
	word := func(i, n int) string { return fmt.Sprintf("%04d", i) + strings.Repeat("x", n) }
	columns := func(n int) string {
		var fields []string
		for i := range n {
			fields = append(fields, fmt.Sprintf(`%q:{"inputFields":[{"namespace":"a","name":"b","field":"c"}]}`, word(i, 2000)))
		}
		return `"columnLineage":{` + facet + `,"fields":{` + strings.Join(fields, ",") + `}}`
	}
	if left := w.take(t, event("COMPLETE", 1, "job", "2026-01-01T00:00:00Z", "", thing("a", "too wide", columns(140)))).Left; !slices.Equal(left, []string{"too wide.columnLineage"}) {
		t.Errorf("left out: %q", left)
	}
	for i := range 20 {
		w.take(t, event("COMPLETE", 10+i, word(i, 0), "2026-01-01T00:00:00Z", "", thing("a", "written", columns(10))))
	}
	asked.n = 0
	_, g := w.edges(t, openlineage.Ask{Kind: openlineage.DatasetKind, Name: openlineage.Name{Namespace: "a", Name: "written"}})
	if asked.n != 1 || len(g.Nodes) != 21 || len(g.Nodes[0].Columns) != 10 || g.More {
		t.Errorf("the columns of %d links were read, %d nodes, more: %v", asked.n, len(g.Nodes), g.More)
	}
	var fields []string
	for i := range 120 {
		fields = append(fields, fmt.Sprintf(`{"name":%q}`, word(i, 2000)))
	}
	schema := `"schema":{` + facet + `,"fields":[` + strings.Join(fields, ",") + `]}`
	for i := range 9 {
		var outputs []string
		for j := range 10 {
			outputs = append(outputs, thing("a", word(i*10+j, 0), schema))
		}
		w.take(t, event("COMPLETE", 100+i, "many", "2026-01-01T00:00:00Z", "", strings.Join(outputs, ",")))
	}
	_, g = w.edges(t, openlineage.Ask{Kind: openlineage.JobKind, Name: openlineage.Name{Namespace: "airflow", Name: "many"}})
	if text, _ := json.Marshal(g); !g.More || len(g.Nodes) != 91 || len(text) < 8<<20 || len(text) > 17<<20 {
		t.Errorf("more: %v, %d nodes in %d bytes", g.More, len(g.Nodes), len(text))
	}
}

// The links of a project are bounded; those that are there are written again.
func TestTooManyLinks(t *testing.T) {
	w := onSQLite(t)
	known := event("RUNNING", 1, "job", "2026-01-01T00:00:00Z", thing("a", "in", ""), "")
	w.take(t, known)
	if err := w.DB.Update(t.Context(), string(p), func(ctx context.Context, tx *store.Tx) error {
		_, err := tx.NewRaw(`WITH RECURSIVE n(i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < 200000)
			INSERT INTO openlineage_link SELECT ?, 'a', 'j' || i, 0, 'a', 'd', '', '', 0, '' FROM n`, string(p)).Exec(ctx)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	w.take(t, strings.Replace(known, "RUNNING", "COMPLETE", 1))
	if _, err := w.s.Take(datasettest.Context(t), p, []byte(event("COMPLETE", 2, "job", "2026-01-01T00:00:00Z", thing("a", "more", ""), ""))); !fault.Is(err, fault.Exhausted) {
		t.Errorf("one more: %v", err)
	}
}

// beside are objects of Falaj's beside two datasets: a view over one from which the
// other was joined, and a model of that.
type beside struct{ asked []string }

func (*beside) Object(_ context.Context, kind openlineage.Kind, name string) (openlineage.Object, error) {
	if kind != openlineage.ModelKind || name != "delay" {
		return openlineage.Object{}, fault.New(fault.NotFound, "there is no %s %s", kind, name)
	}
	return openlineage.Object{Kind: openlineage.ModelKind, Name: "delay@3"}, nil
}

func (b *beside) Step(_ context.Context, kind openlineage.Kind, name string, up bool) (out openlineage.Step, err error) {
	b.asked = append(b.asked, fmt.Sprintf("%s %s %v", kind, name, up))
	from := func(field, of string) []openlineage.Source {
		return []openlineage.Source{{Name: openlineage.Name{Name: of}, Field: field, Kind: "DIRECT"}}
	}
	raw, set := openlineage.Object{Kind: openlineage.DatasetKind, Name: "raw@1"}, openlineage.Object{Kind: openlineage.DatasetKind, Name: "joined@1"}
	view := openlineage.Object{Kind: openlineage.ViewKind, Name: "weather@2", Columns: openlineage.Columns{"temp": from("temp", "raw")}}
	set.Columns = openlineage.Columns{"weather__temp": from("temp", view.ID())}
	model := openlineage.Object{Kind: openlineage.ModelKind, Name: "delay@3"}
	hidden := openlineage.Object{Kind: openlineage.DatasetKind, Name: "hidden@1", Columns: openlineage.Columns{"secret": from("x", "raw")}}
	switch {
	case name == set.Name && up:
		out.Edges = [][2]openlineage.Object{{raw, view}, {view, set}}
	case name == model.Name && up:
		out.Edges, out.Follow = [][2]openlineage.Object{{set, model}, {hidden, model}}, []openlineage.Object{set, hidden}
	case name == raw.Name && !up:
		out.Edges, out.Follow = [][2]openlineage.Object{{raw, view}}, []openlineage.Object{view}
	case name == view.Name && !up:
		out.Edges, out.Follow, out.More = [][2]openlineage.Object{{view, set}}, []openlineage.Object{set}, true
	case name == set.Name:
		out.Edges, out.Follow = [][2]openlineage.Object{{set, model}}, []openlineage.Object{model}
	}
	return out, nil
}

// A walk goes over what Falaj has beside datasets, both ways; what led there is not
// followed again, and of a dataset that may not be seen there is the name.
func TestObjectsBesideDatasets(t *testing.T) {
	w := onSQLite(t)
	w.Put(t, "raw", dataset.Spec{}, "temp\n1\n")
	w.Put(t, "joined", dataset.Spec{}, "weather__temp\n1\n")
	w.Put(t, "hidden", dataset.Spec{}, "secret\n1\n")
	b := &beside{}
	w.s = openlineage.New(openlineage.Config{
		DB: w.DB, Store: openlineagesql.Store{}, Authorizer: w.Policy, Datasets: w.Services,
		Objects: func(project.Name) openlineage.Objects { return b },
	})
	w.Policy.Deny(func(_ policy.Action, o policy.Object) bool { return strings.HasPrefix(o.Name, "hidden") })
	got, g := w.edges(t, openlineage.Ask{Kind: openlineage.ModelKind, Name: openlineage.Name{Name: "delay"}, Up: true})
	if want := "delay@3: hidden@1 → delay@3, joined@1 → delay@3, raw@1 → weather@2, weather@2 → joined@1"; got != want || g.More {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if want := []string{"model delay@3 true", "dataset joined@1 true"}; !slices.Equal(b.asked, want) {
		t.Errorf("asked %q, want %q: the view was read then, and is not followed to what it reads now", b.asked, want)
	}
	for _, n := range g.Nodes {
		switch n.ID {
		case "dataset joined@1":
			if c := n.Columns["weather__temp"]; len(c) != 1 || c[0].Name.Name != "feature_view weather@2" {
				t.Errorf("%+v", n)
			}
		case "dataset hidden@1":
			if n.Columns != nil || n.Digest != "" {
				t.Errorf("%+v", n)
			}
		}
	}
	got, g = w.edges(t, openlineage.Ask{Ref: "raw"})
	if want := "raw@1: joined@1 → delay@3, raw@1 → weather@2, weather@2 → joined@1"; got != want || !g.More {
		t.Errorf("got  %s, more %v\nwant %s", got, g.More, want)
	}
	if _, err := w.s.Around(datasettest.Context(t), openlineage.Ask{Project: p, Kind: openlineage.DeploymentKind, Name: openlineage.Name{Name: "delay"}}); !fault.Is(err, fault.NotFound) {
		t.Errorf("got %v", err)
	}
}

// What is not as the specification says is refused with the name of the field.
func TestWrongEvents(t *testing.T) {
	good := event("START", 1, "job", "2026-01-01T00:00:00Z", "", "")
	if _, _, err := openlineage.Parse([]byte(good)); err != nil {
		t.Fatal(err)
	}
	for change, want := range map[[2]string]string{
		{`"2026-01-01T00:00:00Z","producer"`, `"2026-01-01","producer"`}: "eventTime",
		{`"START"`, `"BEGUN"`}:        "eventType",
		{run(1), "1"}:                 "run.runId",
		{`"name":"job"`, `"name":""`}: "job.name",
		{`"producer":"https://airflow.example/1","schemaURL"`, `"producer":"airflow","schemaURL"`}:    "producer",
		{`"schemaURL":"https://openlineage.io`, `"schema":"https://openlineage.io`}:                   "schemaURL",
		{`"inputs":[]`, `"inputs":[{"namespace":"a"}]`}:                                               "inputs[0].name",
		{`"inputs":[]`, `"inputs":[{"namespace":"a","name":"b","facets":{"x":1}}]`}:                   `the facet "x"`,
		{`"inputs":[]`, `"inputs":[{"namespace":"a","name":"b","facets":{"x":{"_producer":"u:x"}}}]`}: "x._schemaURL",
		{`"later":true}`, `"later":true} {}`}:                                                         "after its end",
		{`"later":true}`, `"later":true,"inputs":[]}`}:                                                `duplicate key "inputs"`,
		{`"name":"job"`, "\"name\":\"job\xe9\""}:                                                      "not UTF-8",
		{`"name":"job"`, `"name":"job\ud800"`}:                                                        "half a surrogate pair",
		{`"job":{"namespace":"airflow","name":"job"},`, ``}:                                           "no job and no dataset",
		{good, `[]`}: "not one OpenLineage event",
	} {
		text := strings.Replace(good, change[0], change[1], 1)
		if text == good {
			t.Fatalf("%q is not in the event", change[0])
		}
		if _, _, err := openlineage.Parse([]byte(text)); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", change[1], err)
		}
	}
	// One facet is too large and is left out; the others are kept.
	large := strings.Replace(good, `"nominalTime"`, `"plan":{`+facet+`,"text":"`+strings.Repeat("x", 70<<10)+`"},"nominalTime"`, 1)
	e, left, err := openlineage.Parse([]byte(large))
	if err != nil || len(e.Run.Facets) != 1 || len(left) != 1 || left[0] != "run.plan" {
		t.Errorf("%v %v %v", e.Run, left, err)
	}
	if _, _, err := openlineage.Parse(make([]byte, openlineage.MaxEvent+1)); !fault.Is(err, fault.TooLarge) {
		t.Errorf("got %v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(event("START", 1, "job", "2026-01-01T00:00:00Z", thing("a", "b", ""), thing("a", "c", ""))))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, _, err := openlineage.Parse(b)
		if err != nil {
			if fault.Is(err, fault.Internal) {
				t.Fatal(err)
			}
			return
		}
		again, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := openlineage.Parse(again); err != nil {
			t.Fatalf("what was taken is not taken again: %v\n%s", err, again)
		}
	})
}

// The sender says which failures pass, takes a token that changes, and follows
// nobody elsewhere.
func TestSender(t *testing.T) {
	status, got := http.StatusCreated, []string{}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /lineage", func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got = append(got, r.Header.Get("Authorization")+" "+string(b))
		if status == http.StatusFound {
			http.Redirect(w, r, "/elsewhere", status)
			return
		}
		w.WriteHeader(status)
	})
	mux.HandleFunc("/elsewhere", func(http.ResponseWriter, *http.Request) { t.Error("the redirect was followed") })
	server := httptest.NewServer(mux)
	defer server.Close()
	token := filepath.Join(t.TempDir(), "token")
	s := openlineage.NewSender(server.URL+"/lineage", token, nil)
	e, _, err := openlineage.Parse([]byte(event("START", 1, "job", "2026-01-01T00:00:00Z", "", "")))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Send(t.Context(), e); !fault.Is(err, fault.Unavailable) || len(got) != 0 {
		t.Errorf("without its token: %v", err)
	}
	for _, word := range []string{"one\n", "two"} {
		if err := errors.Join(os.WriteFile(token, []byte(word), 0o600), s.Send(t.Context(), e)); err != nil {
			t.Fatal(err)
		}
	}
	if len(got) != 2 || !strings.HasPrefix(got[0], "Bearer one {") || !strings.HasPrefix(got[1], "Bearer two {") {
		t.Errorf("%q", got)
	}
	for code, kind := range map[int]fault.Kind{400: fault.Invalid, 422: fault.Invalid, 401: fault.Unavailable, 404: fault.Unavailable, 429: fault.Unavailable, 500: fault.Unavailable, 302: fault.Unavailable} {
		status = code
		if err := s.Send(t.Context(), e); !fault.Is(err, kind) {
			t.Errorf("%d: %v", code, err)
		}
	}
	server.Close()
	if err := s.Send(t.Context(), e); !fault.Is(err, fault.Unavailable) {
		t.Errorf("nobody there: %v", err)
	}
	for text, ok := range map[string]bool{
		"": true, "https://marquez.example/api/v1/lineage": true, "http://localhost:5000/x": true, "http://127.0.0.1:5000": true, "http://[::1]:5000": true,
		"http://marquez.example": false, "ftp://x": false, "https://u:p@x": false, "https://": false, "::": false,
	} {
		if err := openlineage.CheckURL(text); (err == nil) != ok {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// A run's UUID is always the same, and a UUID.
func TestRunID(t *testing.T) {
	if a, b := openlineage.RunID("dsv_1"), openlineage.RunID("dsv_2"); a == b || a != openlineage.RunID("dsv_1") || len(a) != 36 || a[14] != '8' {
		t.Errorf("%s %s", a, b)
	}
}
