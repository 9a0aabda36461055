//go:build duckdb_arrow

package sqlworker_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/dataset/child"
	"github.com/falaj-ml/falaj/internal/dataset/datasettest"
	"github.com/falaj-ml/falaj/internal/dataset/expectation"
	"github.com/falaj-ml/falaj/internal/dataset/sqlworker"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/membudget"
	"github.com/falaj-ml/falaj/internal/resource"
)

const project = datasettest.Project

func TestMain(m *testing.M) {
	datasettest.Main(m, map[string]datasettest.Mode{child.SQLMode: sqlworker.Main})
}

// harness has two datasets.
func harness(t *testing.T, change func(*dataset.Config)) *datasettest.Harness {
	t.Helper()
	h := datasettest.New(t, change)
	h.Put(t, "flights", dataset.Spec{}, "id,origin,delay,moment,day,late\n1,EWR,5,2013-01-01T10:00:00Z,2013-01-01,false\n2,JFK,NA,2013-01-01T11:30:00.5Z,2013-01-01,NA\n3,EWR,-2.5,2013-07-02T12:00:00Z,2013-07-02,true\n")
	h.Put(t, "weather", dataset.Spec{Classification: dataset.Confidential}, "origin,temp,secret\nEWR,1,a\nJFK,2,b\n")
	return h
}

func query(t *testing.T, h *datasettest.Harness, r dataset.QueryRequest) (string, error) {
	t.Helper()
	r.Project = project
	q, err := h.Reads.Query(datasettest.Context(t), r)
	if err != nil {
		return "", err
	}
	defer q.Release()
	table, err := dataset.Collect(t.Context(), q, 1_000_000, 0)
	var out []string
	for _, row := range table.Rows {
		cells := make([]string, len(row))
		for i, c := range row {
			cells[i] = fmt.Sprint(c)
		}
		out = append(out, strings.Join(cells, " "))
	}
	return strings.Join(out, "; "), err
}

func TestQuery(t *testing.T) {
	h := harness(t, nil)
	for _, c := range []struct{ sql, want string }{
		{"SELECT origin, count(*), sum(id), avg(delay) FROM flights GROUP BY 1 ORDER BY 1", "EWR 2 4 1.25; JFK 1 2 <nil>"},
		{"SELECT * FROM flights WHERE id = 3", "3 EWR -2.5 2013-07-02T12:00:00Z 2013-07-02 true"},
		{"SELECT count(*) FROM flights", "3"},
		{"SELECT f.id, w.temp FROM flights f JOIN weather w USING (origin) ORDER BY 1", "1 1; 2 2; 3 1"},
		{"SELECT a.id, b.id other FROM flights a JOIN flights b ON a.id < b.id ORDER BY ALL", "1 2; 1 3; 2 3"},
		{`SELECT id FROM "flights@1" ORDER BY id LIMIT 1`, "1"},
		{"SELECT max(id) FROM Flights JOIN main.FLIGHTS f USING (ID)", "3"},
		{"SELECT (moment AT TIME ZONE 'America/New_York')::VARCHAR FROM flights ORDER BY id", "2013-01-01 05:00:00; 2013-01-01 06:30:00.5; 2013-07-02 08:00:00"},
		{"SELECT 1::TINYINT a, 2::HUGEINT b, 1.5::DECIMAL(10,2) c, 'x'::ENUM('x') d, TIMESTAMP '2013-01-01' e, NULL f, 7::UBIGINT g", "1 2 1.5 x 2013-01-01T00:00:00Z <nil> 7"},
		{"SELECT [1, 2] a, [0.5]::FLOAT[1] b, ['x', ''] c, []::BIGINT[] d, NULL::FLOAT[] e", "[1 2] [0.5] [x ] [] <nil>"},
		{"SELECT list(id ORDER BY id) FROM flights", "[1 2 3]"},
		{"SELECT id FROM flights WHERE false", ""},
		{"WITH f AS (SELECT id FROM flights) SELECT sum(id) FROM f", "6"},
		{"SELECT count(*) FROM range(100000)", "100000"},
		{"SELECT 'nan'::DOUBLE a, '-inf'::DOUBLE b", "NaN -Inf"},
	} {
		got, err := query(t, h, dataset.QueryRequest{SQL: c.sql})
		if err != nil || got != c.want {
			t.Errorf("%s\n got  %q, %v\n want %q", c.sql, got, err, c.want)
		}
	}
	got, err := query(t, h, dataset.QueryRequest{SQL: "SELECT sum(id) FROM t", Inputs: map[string]dataset.Ref{"T": {Name: "flights", Number: 1}}})
	if err != nil || got != "6" {
		t.Error(got, err)
	}
}

// Times without a zone are those of the zone that is named, and said to have none.
func TestQueryTimeZone(t *testing.T) {
	h := harness(t, nil)
	const sql = "SELECT TIMESTAMP '2013-03-10 02:30:00' skipped, TIMESTAMP '2013-11-03 01:30:00' AS twice, [TIMESTAMP '2013-07-01 00:00:00'] AS list, moment, DATE '2013-07-01' AS day FROM flights WHERE id = 1"
	for _, c := range []struct {
		zone  string
		early bool
		want  string
	}{
		{"", false, "2013-03-10T02:30:00Z 2013-11-03T01:30:00Z [2013-07-01T00:00:00Z] 2013-01-01T10:00:00Z 2013-07-01"},
		{"America/New_York", false, "2013-03-10T07:30:00Z 2013-11-03T06:30:00Z [2013-07-01T04:00:00Z] 2013-01-01T10:00:00Z 2013-07-01"},
		{"America/New_York", true, "2013-03-10T07:30:00Z 2013-11-03T05:30:00Z [2013-07-01T04:00:00Z] 2013-01-01T10:00:00Z 2013-07-01"},
	} {
		got, err := query(t, h, dataset.QueryRequest{SQL: sql, TimeZone: c.zone, Early: c.early})
		if err != nil || got != c.want {
			t.Errorf("%s: %q, %v, want %q", c.zone, got, err, c.want)
		}
	}
	if _, err := query(t, h, dataset.QueryRequest{SQL: sql, TimeZone: "Mars/Olympus"}); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "Mars/Olympus") {
		t.Error(err)
	}
	r, err := h.Reads.Query(datasettest.Context(t), dataset.QueryRequest{Project: project, SQL: sql})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Release()
	if got := fmt.Sprint(r.Local()); got != "[skipped twice list]" {
		t.Errorf("columns without a zone: %s", got)
	}
}

func TestRefusals(t *testing.T) {
	h := harness(t, func(c *dataset.Config) { c.Limits.QueryInput = 4 })
	for _, c := range []struct {
		sql    string
		inputs map[string]dataset.Ref
		kind   fault.Kind
		want   string
	}{
		{"", nil, fault.Invalid, "empty"},
		{"SELEC 1", nil, fault.Invalid, "syntax error"},
		{"SELECT nope FROM flights", nil, fault.Invalid, `"nope" not found`},
		{"SELECT 1/0, id + origin FROM flights", nil, fault.Invalid, "Binder Error"},
		{"SELECT origin::INT FROM flights", nil, fault.Invalid, "EWR"},
		{"SELECT * FROM absent", nil, fault.NotFound, `"absent"`},
		{"SELECT * FROM \"flights@9\"", nil, fault.NotFound, "flights@9"},
		{"SELECT * FROM '/etc/passwd'", nil, fault.Invalid, `no table "/etc/passwd"`},
		{"SELECT * FROM '../flights'", nil, fault.Invalid, "no table"},
		{"SELECT * FROM flights", map[string]dataset.Ref{"t": {Name: "flights"}}, fault.Invalid, `no table "flights"`},
		{"SELECT [[1]]", nil, fault.Invalid, "which tables do not support"},
		{"SELECT {'a': 1}", nil, fault.Invalid, "which tables do not support"},
		{"SELECT [1, NULL]", nil, fault.Invalid, "an element of the list is null"},
		{"SELECT id, id FROM flights", nil, fault.Invalid, "both named"},
		{"SELECT 170141183460469231731687303715884105727::HUGEINT a", nil, fault.Invalid, "exceeds a signed 64-bit integer"},
		{"SELECT * FROM read_csv('/etc/passwd')", nil, fault.Invalid, "cannot be used"},
		{"SELECT f.id FROM flights f, weather w", nil, fault.TooLarge, "more than 4 rows"},
		{strings.Repeat("-", 300<<10), nil, fault.TooLarge, "the query has"},
	} {
		got, err := query(t, h, dataset.QueryRequest{SQL: c.sql, Inputs: c.inputs})
		if !fault.Is(err, c.kind) || !strings.Contains(fault.Told(err), c.want) {
			t.Errorf("%.60s: %q, %v (%v), want %v %q", c.sql, got, err, fault.KindOf(err), c.kind, c.want)
		}
	}
	_, err := query(t, h, dataset.QueryRequest{SQL: "SELECT nope FROM flights"})
	if hint := fault.HintOf(err); !strings.Contains(hint, "flights@1 has id, origin, delay") {
		t.Errorf("hint %q", hint)
	}
}

// Limits end a query with their name.
func TestLimits(t *testing.T) {
	h := harness(t, func(c *dataset.Config) {
		c.Limits.QueryRows, c.Limits.QueryMemory, c.Limits.QueryTime = 1000, 32<<20, 20*time.Second
	})
	if _, err := query(t, h, dataset.QueryRequest{SQL: "SELECT range FROM range(1001)"}); !fault.Is(err, fault.TooLarge) {
		t.Error(err)
	}
	if _, err := query(t, h, dataset.QueryRequest{SQL: "SELECT range FROM range(10)", Rows: 9}); !fault.Is(err, fault.TooLarge) {
		t.Error(err)
	}
	if _, err := query(t, h, dataset.QueryRequest{SQL: "SELECT max(x) FROM (SELECT list(range) x FROM range(100000000))"}); !fault.Is(err, fault.Exhausted) {
		t.Error(err)
	}
	slow := harness(t, func(c *dataset.Config) { c.Limits.QueryTime = 300 * time.Millisecond })
	if _, err := query(t, slow, dataset.QueryRequest{SQL: "SELECT sum(a.range * b.range % 7) FROM range(1000000) a, range(1000000) b"}); !fault.Is(err, fault.Timeout) {
		t.Error(err)
	}
	busy := harness(t, func(c *dataset.Config) { c.Limits.Queries, c.Limits.QueueTime = 1, time.Millisecond })
	q, err := busy.Reads.Query(datasettest.Context(t), dataset.QueryRequest{Project: project, SQL: "SELECT 1 a"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := query(t, busy, dataset.QueryRequest{SQL: "SELECT 1"}); !fault.Is(err, fault.Exhausted) {
		t.Error(err)
	}
	q.Release()
	if _, err := query(t, busy, dataset.QueryRequest{SQL: "SELECT 1 a"}); err != nil {
		t.Error(err)
	}
}

// What does not fit the memory goes to the scratch directory and leaves it with the
// query; of sealed tables only where the disk is known to encrypt.
func TestSpills(t *testing.T) {
	scratch := filepath.Join(t.TempDir(), "sql")
	with := func(disk resource.Bytes, encrypted bool) *datasettest.Harness {
		h := datasettest.New(t, func(c *dataset.Config) {
			c.Scratch, c.EncryptedDisk, c.Limits.QueryMemory, c.Limits.QueryDisk, c.Limits.QueryTime = scratch, encrypted, 48<<20, disk, time.Minute
		})
		h.Put(t, "plain", dataset.Spec{Protection: dataset.Open}, "a\n1\n")
		h.Put(t, "sealed", dataset.Spec{}, "a\n1\n")
		return h
	}
	// About 100 MB, to be sorted.
	sql := func(from string) string {
		return "SELECT md5(range::VARCHAR) AS h, range AS r FROM range(2000000), " + from + " ORDER BY h"
	}
	h := with(4<<30, false)
	q, err := h.Reads.Query(datasettest.Context(t), dataset.QueryRequest{Project: project, SQL: sql("plain")})
	if err != nil {
		t.Fatal(err)
	}
	rows := int64(0)
	for q.Next() {
		rows += q.RecordBatch().NumRows()
	}
	if q.Err() != nil || rows != 2_000_000 {
		t.Errorf("%d rows, %v", rows, q.Err())
	}
	q.Release()
	if _, err := query(t, h, dataset.QueryRequest{SQL: sql("plain JOIN sealed USING (a)")}); !fault.Is(err, fault.Exhausted) {
		t.Errorf("of a sealed table: %v", err)
	}
	if _, err := query(t, with(4<<30, true), dataset.QueryRequest{SQL: "SELECT count(*) FROM (" + sql("sealed") + ") WHERE r >= 0"}); err != nil {
		t.Errorf("of a sealed table on an encrypted disk: %v", err)
	}
	if _, err := query(t, with(1<<20, true), dataset.QueryRequest{SQL: sql("plain")}); !fault.Is(err, fault.Exhausted) {
		t.Errorf("on a disk of a megabyte: %v", err)
	}
	if left, err := os.ReadDir(scratch); err != nil || len(left) > 0 {
		t.Errorf("%v is left, %v", left, err)
	}
}

// The query gets the needed columns only, every classified table is in the
// journal with them, and the result inherits from all of its tables.
func TestDoors(t *testing.T) {
	h := harness(t, nil)
	ctx := datasettest.Context(t)
	q, err := h.Reads.Query(ctx, dataset.QueryRequest{Project: project, SQL: "SELECT f.id, w.temp FROM flights f JOIN weather w USING (origin)", Purpose: "a look"})
	if err != nil {
		t.Fatal(err)
	}
	if q.Classification() != dataset.Confidential || q.Residency().String() != "home" || len(q.Refs()) != 2 {
		t.Errorf("%v %v %v", q.Classification(), q.Residency(), q.Refs())
	}
	es := h.Journal.Entries()
	if len(es) != 1 || es[0].Object != "dataset weather@1" || fmt.Sprint(es[0].Detail["columns"]) != "[origin temp]" || es[0].Reason != "a look" {
		t.Errorf("%+v", es)
	}
	v, err := h.Writes.Create(ctx, dataset.CreateRequest{Project: project, Name: "joined", Rows: q, Parents: q.Refs(), Producer: q.Producer()})
	q.Release()
	if err != nil || v.Rows != 3 || v.Classification != dataset.Confidential || v.Lineage.Producer.Text == "" || len(v.Lineage.Parents) != 2 {
		t.Errorf("%+v, %v", v, err)
	}
	h.Policy.Deny(func(_ policy.Action, o policy.Object) bool { return o.Name == "weather@1" })
	if _, err := query(t, h, dataset.QueryRequest{SQL: "SELECT id FROM flights JOIN weather USING (origin)"}); !fault.Is(err, fault.PermissionDenied) {
		t.Error(err)
	}
	h.Policy.Deny(nil)
	h.Journal.Fail(fault.New(fault.Exhausted, "no space"))
	if _, err := query(t, h, dataset.QueryRequest{SQL: "SELECT temp FROM weather"}); !fault.Is(err, fault.Exhausted) {
		t.Error(err)
	}
	if _, err := query(t, h, dataset.QueryRequest{SQL: "SELECT id FROM flights", Where: "pool cloud", Zone: "DE"}); !fault.Is(err, fault.PermissionDenied) {
		t.Error(err)
	}
	abroad := datasettest.New(t, func(c *dataset.Config) { c.Guard = open{} })
	abroad.Put(t, "a", dataset.Spec{Residency: residency.Of("AE")}, "x\n1\n")
	abroad.Put(t, "d", dataset.Spec{Residency: residency.Of("DE")}, "x\n1\n")
	if _, err := query(t, abroad, dataset.QueryRequest{SQL: "SELECT a.x FROM a JOIN d USING (x)"}); !fault.Is(err, fault.PermissionDenied) || !strings.Contains(err.Error(), "no zone may hold") {
		t.Error(err)
	}
	rejected := datasettest.New(t, nil)
	rejected.Declare(t, "r", dataset.Spec{Expectations: []expectation.Rule{{Check: expectation.RowCount, Min: 5.0}}})
	if _, err := rejected.Writes.Import(ctx, dataset.ImportRequest{Project: project, Name: "r", Body: strings.NewReader("x\n1\n")}); err != nil {
		t.Fatal(err)
	}
	if _, err := query(t, rejected, dataset.QueryRequest{SQL: "SELECT * FROM r"}); !fault.Is(err, fault.Conflict) {
		t.Error(err)
	}
}

// open is a residency door that lets everything through.
type open struct{}

func (open) Pass(context.Context, residency.Transfer) error { return nil }

// TestLargeAnswer: an answer is bounded by its bytes, what is read of it at a time too, and
// both are held of the memory of the request that asked.
func TestLargeAnswer(t *testing.T) {
	h := harness(t, nil)
	collect := func(ctx context.Context, sql string, limit int) (dataset.Table, error) {
		q, err := h.Reads.Query(ctx, dataset.QueryRequest{Project: project, SQL: sql})
		if err != nil {
			return dataset.Table{}, err
		}
		defer q.Release()
		return dataset.Collect(ctx, q, limit, resource.MiB)
	}
	const wide = "SELECT repeat('a', 40000) AS a FROM range(10000)"
	ctx := datasettest.Context(t)
	if _, err := collect(ctx, wide, 10_000); !fault.Is(err, fault.TooLarge) || !strings.Contains(err.Error(), "limits.answer") {
		t.Errorf("10,000 rows of 40,000 characters: %v", err)
	}
	if table, err := collect(ctx, wide, 20); err != nil || len(table.Rows) != 20 {
		t.Errorf("20 of them: %d, %v", len(table.Rows), err)
	}
	for sql, want := range map[string]bool{"SELECT 1 FROM range(19)": false, "SELECT 1 FROM range(20)": false, "SELECT 1 FROM range(21)": true, "SELECT 1 FROM range(50000)": true} {
		if table, err := collect(ctx, sql, 20); err != nil || table.Truncated != want || len(table.Rows) > 20 {
			t.Errorf("%s: %d rows, truncated %t, %v", sql, len(table.Rows), table.Truncated, err)
		}
	}
	for sql, want := range map[string]string{
		"SELECT repeat('\x01', 200000) AS a":                        "limits.answer", // six characters of JSON for each
		"SELECT list_transform(range(100000), x -> x)":              "limits.answer",
		"SELECT repeat('a', 300000000)":                             "a cell of 300000000 bytes",
		"SELECT repeat('a', 200000000) a, repeat('b', 200000000) b": "a row has 400000016 bytes",
	} {
		if _, err := collect(ctx, sql, 1); !fault.Is(err, fault.TooLarge) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: %v, want %s", sql, err, want)
		}
	}
	budget := membudget.New(2 << 20)
	share := budget.Share("alice")
	if _, err := collect(membudget.With(ctx, share), "SELECT repeat('a', 1500000)", 1); !fault.Is(err, fault.TooLarge) || !strings.Contains(err.Error(), membudget.Setting) {
		t.Errorf("a cell of more than half of the memory for requests: %v", err)
	}
	share.Free()
	if budget.Used() != 0 {
		t.Errorf("%d bytes are still held", budget.Used())
	}
}

// TestSettingsNameNoPath: a query reads no path of the machine from what DuckDB says of itself.
func TestSettingsNameNoPath(t *testing.T) {
	scratch := t.TempDir()
	h := harness(t, func(c *dataset.Config) { c.Scratch = scratch })
	if got, err := query(t, h, dataset.QueryRequest{SQL: "SELECT current_setting('TimeZone')"}); err != nil || !strings.Contains(got, "UTC") {
		t.Errorf("%q, %v", got, err)
	}
	for _, sql := range []string{
		"SELECT current_setting('temp_directory'), current_setting('home_directory'), current_setting('extension_directory'), current_setting('secret_directory'), current_database()",
		"SELECT current_setting('allowed_directories')",
		"SELECT main.CURRENT_SETTING('Allowed_Directories')",
		"SELECT current_setting('allowed' || '_directories')",
		"SELECT current_setting(x) FROM (SELECT 'allowed_directories' AS x)",
		"SELECT current_setting('allowed_paths'), current_setting('profiling_output'), current_setting('file_search_path')",
		"SELECT current_setting('profiling_output'), current_setting('file_search_path'), current_setting('log_query_path')",
		"SELECT name, value FROM duckdb_settings() WHERE value LIKE '%/%'",
		"SELECT database_name, path FROM duckdb_databases()",
		"SELECT extension_name, install_path FROM duckdb_extensions() WHERE install_path LIKE '%/%'",
		"SELECT path FROM duckdb_temporary_files()",
		"PRAGMA database_list",
		"SELECT * FROM duckdb_secrets()",
		"FROM read_csv('/etc/passwd')",
		"FROM glob('/*')",
		"COPY (SELECT 1) TO '/tmp/x.csv'",
		"ATTACH '/tmp/x.db'",
		"LOAD httpfs",
		"EXPORT DATABASE 'x'",
	} {
		got, err := query(t, h, dataset.QueryRequest{SQL: sql})
		said := got
		if err != nil {
			said = err.Error() + fault.HintOf(err)
		}
		for _, path := range []string{scratch, os.TempDir() + "/", "/proc", "/home", "/root", ".duckdb", "/usr", "/var"} {
			if strings.Contains(said, path) && !strings.Contains(sql, path) {
				t.Errorf("%s: %s", sql, said)
			}
		}
	}
}
