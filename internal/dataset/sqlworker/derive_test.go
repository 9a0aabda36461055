//go:build duckdb_arrow

package sqlworker_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/google/go-cmp/cmp"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/dataset/datasettest"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/deletion"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/id"
)

// steps begins nothing, and remembers what.
type steps struct {
	begun []dataset.Step
	fail  error
}

func (s *steps) Begin(_ context.Context, step dataset.Step) error {
	s.begun = append(s.begun, step)
	return s.fail
}

const byOrigin = `SELECT w.origin, max(f.delay) AS "worst" FROM flights f JOIN "Weather@1" w USING (origin) WHERE f.id > 0 GROUP BY 1 ORDER BY 1`

// deriving is a world with two open datasets and one that is made of them.
func deriving(t *testing.T, engine dataset.Engine) (*datasettest.Harness, *steps) {
	t.Helper()
	s := &steps{}
	h := datasettest.New(t, func(c *dataset.Config) { c.Steps = s })
	h.Put(t, "flights", dataset.Spec{Protection: dataset.Open, Residency: residency.Label{"home", "DE"}}, "id,origin,delay\n1,EWR,5\n2,JFK,7\n3,EWR,9\n")
	h.Put(t, "weather", dataset.Spec{Protection: dataset.Open, Residency: residency.Label{"home", "FR"}}, "origin,temp\nEWR,1\nJFK,2\n")
	transform := &dataset.Transform{SQL: byOrigin, Engine: engine}
	if engine == dataset.Spark {
		transform.Environment = "spark"
	}
	h.Declare(t, "worst", dataset.Spec{Transform: transform})
	return h, s
}

func derive(t *testing.T, h *datasettest.Harness) dataset.Derived {
	t.Helper()
	d, err := h.Transforms.Derive(datasettest.Context(t), project, "worst")
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func refused(t *testing.T, err error, kind fault.Kind, words ...string) {
	t.Helper()
	if !fault.Is(err, kind) {
		t.Errorf("%v (%s), want %s", err, fault.KindOf(err), kind)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error()+fault.HintOf(err), w) {
			t.Errorf("%v (%s) does not say %q", err, fault.HintOf(err), w)
		}
	}
}

func TestDerive(t *testing.T) {
	h, _ := deriving(t, "")
	v := *derive(t, h).Version
	if got, err := query(t, h, dataset.QueryRequest{SQL: "FROM worst"}); err != nil || got != "EWR 9; JFK 7" {
		t.Errorf("it has %s: %v", got, err)
	}
	if v.Residency.String() != "home" || v.Lineage.Producer.Kind != "query" || v.Lineage.Producer.Text != byOrigin || len(v.Lineage.Parents) != 2 {
		t.Errorf("%v %+v", v.Residency, v.Lineage)
	}
	from := v.Lineage.Columns["worst"]
	if len(from) == 0 || from[0].Ref != "flights@1" || from[0].Column != "delay" {
		t.Errorf("worst is made of %v", from)
	}
	if again := derive(t, h).Version; !again.Unchanged || again.Number != 1 {
		t.Errorf("the same again is %v", again.Ref())
	}

	// What Spark makes of the same step is the same version.
	begun, s := deriving(t, dataset.Spark)
	// Its turn, and whether the dataset is deleted meanwhile, are of before anything was looked at.
	var asked time.Time
	var bound string
	begun.Policy.Deny(func(a policy.Action, o policy.Object) bool {
		if asked.IsZero() {
			asked = time.Now()
		}
		if a == dataset.ActionQuery && bound == "" {
			bound = id.New("job")
		}
		return false
	})
	d := derive(t, begun)
	begun.Policy.Deny(nil)
	if got := s.begun[0]; got.Job >= bound || bound == "" || !got.Asked.Before(asked) {
		t.Errorf("job %s of %s, and its tables were bound at %s, asked about at %s", got.Job, got.Asked, bound, asked)
	}
	want := dataset.Step{
		Job: d.Job, Asked: s.begun[0].Asked, Project: project, Dataset: "worst", SQL: byOrigin, Environment: "spark",
		Tables:  map[string]dataset.Ref{"flights": {Name: "flights", Number: 1}, "weather@1": {Name: "weather", Number: 1}},
		Columns: []dataset.Column{{Name: "origin", Type: "string"}, {Name: "worst", Type: "int64"}},
	}
	if diff := cmp.Diff([]dataset.Step{want}, s.begun); d.Job == "" || d.Version != nil || diff != "" {
		t.Fatalf("%v (-want +got):\n%s", d, diff)
	}
	left := dataset.Left{
		Project: project, Dataset: "worst", Job: d.Job, Step: &dataset.Ran{SQL: byOrigin, Tables: want.Tables},
		Open: func(context.Context) (array.RecordReader, error) {
			return h.Reads.Open(datasettest.Context(t), dataset.OpenRequest{Project: project, Ref: v.Ref()})
		},
		Read: []dataset.JobInputs{{Versions: []dataset.Ref{want.Tables["flights"], want.Tables["weather@1"]}}},
	}
	kept, err := h.Transforms.Keep(datasettest.Context(t), left)
	if err != nil || !kept.Unchanged || kept.ID != v.ID {
		t.Fatalf("kept %v: %v", kept.Ref(), err)
	}
	// Where DuckDB has not run, it has the same lineage, and says which job.
	if kept, err = begun.Transforms.Keep(datasettest.Context(t), left); err != nil || kept.ContentDigest != v.ContentDigest || kept.Residency.String() != "home" {
		t.Fatalf("kept %v %v: %v", kept.Ref(), kept.Residency, err)
	}
	if diff := cmp.Diff(v.Lineage.Columns, kept.Lineage.Columns); diff != "" || kept.Lineage.Producer.ID != d.Job {
		t.Errorf("by %v (-DuckDB +Spark):\n%s", kept.Lineage.Producer, diff)
	}
	// Another job's rows say no more than whose they are.
	left.Dataset, left.Job, left.Step, left.Read[0].Versions = "left", "job_2", nil, left.Read[0].Versions[:1]
	kept, err = h.Transforms.Keep(datasettest.Context(t), left)
	if err != nil || kept.Lineage.Columns != nil || kept.Lineage.Producer.ID != "job_2" || len(kept.Lineage.Parents) != 1 {
		t.Errorf("%+v: %v", kept.Lineage, err)
	}
}

// Times that say no instant are those of the zone that is named, or refused.
func TestDeriveTimesWithoutZone(t *testing.T) {
	h, _ := deriving(t, "")
	const seen = "SELECT id, TIMESTAMP '2013-07-01 00:00:00' AS seen FROM flights WHERE id = 1"
	h.Declare(t, "worst", dataset.Spec{Transform: &dataset.Transform{SQL: seen}})
	_, err := h.Transforms.Derive(datasettest.Context(t), project, "worst")
	refused(t, err, fault.Invalid, "seen", "time_zone")
	h.Declare(t, "worst", dataset.Spec{Transform: &dataset.Transform{SQL: seen, TimeZone: "America/New_York"}})
	derive(t, h)
	if got, err := query(t, h, dataset.QueryRequest{SQL: "SELECT id, epoch(seen) FROM worst"}); err != nil || got != "1 1.3726512e+09" {
		t.Errorf("it has %s: %v", got, err)
	}
}

func TestDeriveRefused(t *testing.T) {
	for name, spec := range map[string]dataset.Transform{
		"no SQL":                   {},
		"no engine":                {SQL: "FROM a", Engine: "flink"},
		"an environment of DuckDB": {SQL: "FROM a", Environment: "spark"},
		"a table that is none":     {SQL: "FROM a", Inputs: map[string]string{"a": "a@x"}},
		"no time zone":             {SQL: "FROM a", TimeZone: "Local"},
		"a time zone of Spark":     {SQL: "FROM a", Engine: dataset.Spark, Environment: "spark", TimeZone: "America/New_York"},
	} {
		if err := (dataset.Spec{Transform: &spec}).Validate(); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "spec.transform") {
			t.Errorf("%s: %v", name, err)
		}
	}
	spark := &dataset.Transform{SQL: "FROM a", Engine: dataset.Spark}
	refused(t, dataset.Spec{Transform: spark}.Validate(), fault.Invalid, "spec.transform.environment", "PySpark", "pyspark==", "engine: duckdb")

	h, s := deriving(t, dataset.Spark)
	act := func(change func(*dataset.Transform)) error {
		t.Helper()
		tr := dataset.Transform{SQL: byOrigin, Engine: dataset.Spark, Environment: "spark"}
		change(&tr)
		h.Declare(t, "worst", dataset.Spec{Transform: &tr})
		_, err := h.Transforms.Derive(datasettest.Context(t), project, "worst")
		return err
	}
	sql := func(text string) func(*dataset.Transform) { return func(t *dataset.Transform) { t.SQL = text } }
	refused(t, act(sql("DROP TABLE flights")), fault.Invalid)
	refused(t, act(sql("FROM 'file.csv'")), fault.Invalid)
	refused(t, act(sql("SELECT nix FROM flights")), fault.Invalid, "nix", "flights@1 has")
	refused(t, act(sql("FROM nowhere")), fault.NotFound, "nowhere")
	h.Put(t, "secret", dataset.Spec{}, "id,name\n1,canary\n")
	refused(t, act(sql("FROM secret")), fault.PermissionDenied, "secret@1 is sealed", "engine: duckdb", "protection: open")
	refused(t, act(func(t *dataset.Transform) {
		t.SQL, t.Inputs = "SELECT id FROM flights", map[string]string{"flights": "secret"}
	}), fault.PermissionDenied, "secret@1 is sealed")
	h.Put(t, "medical", dataset.Spec{Classification: dataset.Confidential}, "id,name\n1,canary\n")
	if err := act(sql("FROM medical")); !fault.Is(err, fault.PermissionDenied) || strings.Contains(fault.HintOf(err), "protection: open") {
		t.Errorf("what is never open: %v (%s)", err, fault.HintOf(err))
	}
	refused(t, act(sql("SELECT TIMESTAMP '2013-01-01 00:00:00' AS seen FROM flights")), fault.Invalid, "seen", "time_zone: UTC")
	h.Policy.Deny(func(a policy.Action, o policy.Object) bool {
		return a == dataset.ActionQuery && strings.HasPrefix(o.Name, "weather")
	})
	refused(t, act(func(*dataset.Transform) {}), fault.PermissionDenied)
	h.Policy.Deny(func(a policy.Action, o policy.Object) bool { return a == dataset.ActionImport && o.Name == "worst" })
	if _, err := h.Transforms.Derive(datasettest.Context(t), project, "worst"); !fault.Is(err, fault.PermissionDenied) {
		t.Errorf("who may not write: %v", err)
	}
	if err := h.Transforms.Receives(datasettest.Context(t), project, "worst", nil); !fault.Is(err, fault.PermissionDenied) {
		t.Errorf("a job of who may not write: %v", err)
	}
	h.Policy.Deny(nil)
	if len(s.begun) > 0 {
		t.Errorf("what is refused was begun: %v", s.begun)
	}
	s.fail = errors.New("no room")
	if err := act(func(*dataset.Transform) {}); !errors.Is(err, s.fail) {
		t.Errorf("%v", err)
	}
	_, err := h.Transforms.Derive(datasettest.Context(t), project, "flights")
	refused(t, err, fault.Invalid, "spec.transform", "falaj dataset import flights")

	none := datasettest.New(t, nil)
	none.Declare(t, "worst", dataset.Spec{Transform: &dataset.Transform{SQL: "SELECT 1 AS a", Engine: dataset.Spark, Environment: "spark"}})
	_, err = none.Transforms.Derive(datasettest.Context(t), project, "worst")
	refused(t, err, fault.Unsupported, "Spark", "engine: duckdb")
}

// meanwhile does something once, when the permission to import was given.
type meanwhile struct {
	dataset.Authorizer
	do func()
}

func (m *meanwhile) Allow(ctx context.Context, a policy.Action, o policy.Object) error {
	if err := m.Authorizer.Allow(ctx, a, o); err != nil || a != dataset.ActionImport || m.do == nil {
		return err
	}
	do := m.do
	m.do = nil
	do()
	return nil
}

// A dataset that is deleted while it is derived stays deleted.
func TestDeriveOfWhatIsDeletedMeanwhile(t *testing.T) {
	var m *meanwhile
	h := datasettest.New(t, func(c *dataset.Config) {
		m = &meanwhile{Authorizer: c.Authorizer}
		c.Authorizer = m
	})
	h.Declare(t, "worst", dataset.Spec{Transform: &dataset.Transform{SQL: "SELECT 1 AS a"}})
	if v := derive(t, h).Version; !strings.HasPrefix(v.Lineage.Producer.ID, "drv_") {
		t.Errorf("it was derived by %q", v.Lineage.Producer.ID)
	}
	m.do = func() {
		if err := h.Definitions.Delete(datasettest.Context(t), project, dataset.Ref{Name: "worst"}, deletion.Request{}); err != nil {
			t.Error(err)
		}
	}
	_, err := h.Transforms.Derive(datasettest.Context(t), project, "worst")
	refused(t, err, fault.Gone, "worst was deleted")
	if _, err := h.Definitions.One(datasettest.Context(t), project, "worst"); !fault.Is(err, fault.NotFound) {
		t.Errorf("it is there again: %v", err)
	}
}

// TestTransformsAreChecked: SQL that cannot run is refused before it is kept, and where a
// table is not there yet, that is said. What is kept already is not read again.
func TestTransformsAreChecked(t *testing.T) {
	h, _ := deriving(t, dataset.DuckDB)
	ctx := datasettest.Context(t)
	for sql, want := range map[string]struct {
		refused bool
		said    string
	}{
		byOrigin: {},
		"SELECT delay FROM flights f JOIN weather w ON f.origin = w.origin": {},
		"SELEC delay FROM flights":              {true, "spec.transform.sql"},
		"SELECT dealy FROM flights":             {true, "dealy"},
		"SELECT sum(origin) FROM flights":       {true, "sum"},
		"SELECT now()::TIMESTAMP FROM flights":  {true, "have no time zone"},
		"SELECT a FROM absent":                  {false, "spec.transform.sql was not checked: "},
		"SELECT a FROM absent WHERE":            {true, "spec.transform.sql"},
		`SELECT delay FROM "flights@9"`:         {false, "spec.transform.sql was not checked: "},
		"SELECT * FROM read_csv('/etc/passwd')": {true, "read_csv"},
	} {
		unchecked, err := h.Transforms.CheckTransform(ctx, project, "worst", dataset.Spec{Transform: &dataset.Transform{SQL: sql}})
		got := unchecked
		if err != nil {
			got = err.Error()
		}
		if (err != nil) != want.refused || err != nil && !fault.Is(err, fault.Invalid) || !strings.Contains(got, want.said) || want.said == "" && got != "" {
			t.Errorf("%s: %q, %v; want %q", sql, unchecked, err, want.said)
		}
	}
	broken := &dataset.Transform{SQL: "SELECT gone FROM flights"} // a column that was there when it was declared
	h.Declare(t, "old", dataset.Spec{Transform: broken})
	if unchecked, err := h.Transforms.CheckTransform(ctx, project, "old", dataset.Spec{Transform: broken}); err != nil || unchecked != "" {
		t.Errorf("what is kept: %q, %v", unchecked, err)
	}
}
