// Package ingest kills the server (SIGKILL) in the middle of ingestions from
// several kinds of sources that are written to meanwhile, starts it again, and
// compares in the end what the datasets have with what the sources have. The seed
// is printed; the flags are
//
//	go test ./test/ingest -args -kills=100 -seed=7
//
// The seed fixes the writes and the moments that are asked for, not how the
// machine interleaves them.
package ingest

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/internal/dataset/source/sourcetest"
	"github.com/falaj-ml/falaj/internal/store/storetest"
	"github.com/falaj-ml/falaj/test/live"
)

var (
	kills = flag.Int("kills", 5, "how often the server is killed")
	seed  = flag.Uint64("seed", 0, "seed of the writes; 0 takes one from the clock")
)

const (
	project = "shop"
	base    = "/api/v1/projects/" + project
	canary  = "canary-7d1e90b2c4"
)

// origin is a place that rows come from, with the sources that read it.
type origin interface {
	// manifests declare datasets and sources.
	manifests() string
	sources() []string
	// write changes what is there at random, in one transaction.
	write(ctx context.Context, r *rand.Rand) error
	// rows is what the dataset of a source must have, columns apart by '|', sorted.
	rows(t *testing.T, source string) []string
	// query reads the same of the dataset.
	query(source string) string
}

func TestNothingIsLostAndNothingTwice(t *testing.T) {
	if testing.Short() {
		t.Skip("kills a real server many times")
	}
	if *seed == 0 {
		*seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d, %d kills", *seed, *kills)
	origins := []origin{newTables(t)}
	files := t.TempDir()
	origins = append(origins, more(t, files)...)
	for i, o := range origins { // a source without a row, ever, fails its run
		if err := o.write(t.Context(), rand.New(rand.NewPCG(*seed, uint64(2000+i)))); err != nil {
			t.Fatal(err)
		}
	}
	s := live.New(t, "")
	s.Env = append(s.Env, "FALAJ_SOURCES_HOSTS=127.0.0.1", "FALAJ_SOURCES_CHUNK_ROWS=150", "FALAJ_SOURCES_FILES="+files, "FALAJ_LOG_LEVEL=debug")
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	c := s.Client(t)
	var manifests strings.Builder
	manifests.WriteString("{api_version: falaj/v1, kind: Project, name: " + project + "}\n---\n" +
		"{api_version: falaj/v1, kind: Secret, name: db, project: shop, spec: {values: {username: {value: postgres}, password: {value: " + canary + "}}}}\n")
	var sources []string
	for _, o := range origins {
		manifests.WriteString(o.manifests())
		sources = append(sources, o.sources()...)
	}
	if _, err := c.Apply(t.Context(), "", []byte(manifests.String()), false); err != nil {
		t.Fatal(err)
	}

	// Somebody writes to every source until the last kill.
	writing, stop := context.WithCancel(t.Context())
	defer stop()
	var writers sync.WaitGroup
	for i, o := range slices.Repeat(origins, 2) { // two at a time: transactions that end late
		r := rand.New(rand.NewPCG(*seed, uint64(1000+i)))
		writers.Go(func() {
			pause := time.NewTicker(15 * time.Millisecond)
			defer pause.Stop()
			for writing.Err() == nil {
				err := o.write(writing, r)
				if err != nil && writing.Err() == nil && !strings.Contains(strings.ToLower(err.Error()), "deadlock") {
					t.Errorf("writing to the source: %v", err)
					return
				}
				<-pause.C
			}
		})
	}
	r := rand.New(rand.NewPCG(*seed, 1))
	taken := map[string]int{}                                                // runs by how often they were taken up
	for n := 0; n < *kills || n < 4**kills && !takenUp(t, c, sources); n++ { // on a busy machine runs begin late
		for _, name := range sources {
			var run client.Object
			if err := c.Do(t.Context(), http.MethodPost, base+"/sources/"+name+"/runs", map[string]any{"anew": r.IntN(20) == 0}, &run); err != nil {
				var refused *client.Error
				if errors.As(err, &refused) && refused.Status == http.StatusConflict {
					continue // anew, and one is under way
				}
				t.Fatal(err)
			}
		}
		moment := time.NewTimer(time.Duration(50+r.IntN(1500)) * time.Millisecond)
		<-moment.C
		if err := s.Kill(); err != nil {
			t.Fatal(err)
		}
		for r.IntN(5) == 0 { // and while it starts
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(50+r.IntN(600))*time.Millisecond)
			if err := s.Start(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(err)
			}
			cancel()
			if err := s.Kill(); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Start(t.Context()); err != nil {
			t.Fatalf("after kill %d: %v", n+1, err)
		}
		c = s.Client(t)
	}
	stop()
	writers.Wait()
	for i := range 2 { // what was under way ends where it began to end; the next has the rest
		for _, name := range sources {
			ingest(t, c, name, i == 1, taken)
		}
	}
	most := 0
	for _, n := range taken {
		most = max(most, n)
	}
	if most < 2 {
		t.Error("no run was taken up after a kill: the test tests nothing")
	}
	for _, o := range origins {
		for _, name := range o.sources() {
			want, got := o.rows(t, name), dataset(t, c, o.query(name))
			t.Logf("%s: %d rows", name, len(want))
			if !slices.Equal(want, got) {
				t.Errorf("%s: the source has %d rows, the dataset %d%s", name, len(want), len(got), difference(want, got))
			}
		}
	}
	clean(t, s)
}

// takenUp says whether a run was taken up after a kill.
func takenUp(t *testing.T, c *client.Client, sources []string) (some bool) {
	t.Helper()
	for _, name := range sources {
		if err := c.List(t.Context(), base+"/sources/"+name+"/runs", nil, func(o client.Object) error {
			some = some || o.Text("attempts") != "0" && o.Text("attempts") != "1"
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	return some
}

// ingest runs a source and waits; every run of it, also those before, ended well.
func ingest(t *testing.T, c *client.Client, name string, all bool, taken map[string]int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*live.Wait)
	defer cancel()
	var run client.Object
	if err := c.Do(ctx, http.MethodPost, base+"/sources/"+name+"/runs", map[string]any{}, &run); err != nil {
		t.Fatal(err)
	}
	for run.Text("ended_at") == "" {
		id := run.Text("id")
		run = client.Object{}
		if err := c.Do(ctx, http.MethodGet, base+"/ingestions/"+id+"?wait=30s", nil, &run); err != nil {
			t.Fatal(err)
		}
	}
	if !all {
		return
	}
	if err := c.List(ctx, base+"/sources/"+name+"/runs", nil, func(o client.Object) error {
		if o.Text("state") != "succeeded" {
			t.Errorf("run %s of %s: %s %s", o.Text("id"), name, o.Text("state"), o.Text("error"))
		}
		var n int
		_, _ = fmt.Sscan(o.Text("attempts"), &n)
		taken[o.Text("id")] = n
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// dataset reads a dataset a page at a time, as text, sorted.
func dataset(t *testing.T, c *client.Client, query string) (rows []string) {
	t.Helper()
	const page = 10_000
	for at := 0; ; at += page {
		var out struct{ Rows [][]any }
		sql := fmt.Sprintf("SELECT line FROM (%s) ORDER BY line LIMIT %d OFFSET %d", query, page, at)
		if err := c.Do(t.Context(), http.MethodPost, base+"/query", map[string]any{"sql": sql, "limit": page}, &out); err != nil {
			t.Fatal(err)
		}
		for _, r := range out.Rows {
			rows = append(rows, fmt.Sprint(r[0]))
		}
		if len(out.Rows) < page {
			slices.Sort(rows)
			return rows
		}
	}
}

func difference(want, got []string) string {
	var b strings.Builder
	show := func(what string, a, in []string) {
		n := 0
		for i, x := range a {
			_, found := slices.BinarySearch(in, x)
			twice := i > 0 && a[i-1] == x
			if found && !twice {
				continue
			}
			if n++; n <= 5 {
				fmt.Fprintf(&b, "\n%s: %s", what, x)
			}
		}
	}
	show("lost", want, got)
	show("too much", got, want)
	return b.String()
}

// clean asks that nothing of runs that ended is left, and that no file and no
// line of the log has the password.
func clean(t *testing.T, s *live.Server) {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(s.Data, "objects", "projects", project, "datasets", "*", "ing_*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range left {
		files, _ := filepath.Glob(filepath.Join(dir, "*", "*"))
		if len(files) > 0 {
			t.Errorf("left behind: %v", files)
		}
	}
	if strings.Contains(s.LogTail(1<<30), canary) {
		t.Error("the log has the password")
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	found(t, s.Data, canary)
}

// tables are four tables of PostgreSQL, one for each way to read them.
type tables struct {
	db       *sql.DB
	port     int
	database string
}

func newTables(t *testing.T) *tables {
	t.Helper()
	at := storetest.Postgres(t)
	u, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	p := &tables{port: sourcetest.Bridge(t, filepath.Join(u.Query().Get("host"), ".s.PGSQL.5432")), database: u.Path[1:]}
	if p.db, err = sql.Open("pgx", at); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.db.Close() })
	for _, stmt := range []string{
		"CREATE SEQUENCE seq",
		"CREATE TABLE whole (id bigint PRIMARY KEY, seq bigint NOT NULL, name text)",
		"CREATE TABLE keyed (id bigint PRIMARY KEY, seq bigint NOT NULL, name text)",
		"CREATE TABLE growing (id bigint PRIMARY KEY, seq bigint NOT NULL, name text)",
		"CREATE INDEX ON growing (seq)",
		"CREATE TABLE logged (id bigint PRIMARY KEY, seq bigint NOT NULL, name text)",
		"CREATE TABLE changes (id bigint, seq bigint NOT NULL, name text, op text)",
		"CREATE INDEX ON changes (seq)",
		`CREATE FUNCTION note() RETURNS trigger AS $$ BEGIN
			IF TG_OP = 'DELETE' THEN INSERT INTO changes VALUES (OLD.id, nextval('seq'), NULL, 'D'); RETURN OLD; END IF;
			INSERT INTO changes VALUES (NEW.id, NEW.seq, NEW.name, left(TG_OP, 1)); RETURN NEW; END $$ LANGUAGE plpgsql`,
		"CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON logged FOR EACH ROW EXECUTE FUNCTION note()",
	} {
		if _, err := p.db.ExecContext(t.Context(), stmt); err != nil {
			t.Fatalf("%s: %v", stmt, err)
		}
	}
	for _, table := range p.sources() {
		if _, err := p.db.ExecContext(t.Context(), "INSERT INTO "+table+" SELECT i, nextval('seq'), 'row ' || i FROM generate_series(1, 1500) AS i"); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

func (p *tables) sources() []string { return []string{"whole", "keyed", "growing", "logged"} }

func (p *tables) manifests() string {
	var b strings.Builder
	for _, s := range []struct{ name, table, more string }{
		{"whole", "whole", "mode: full"},
		{"keyed", "keyed", "mode: full, key: [id]"},
		{"growing", "growing", "mode: incremental, cursor: seq, key: [id]"},
		{"logged", "changes", "mode: changes, cursor: seq, key: [id], op: op"},
	} {
		fmt.Fprintf(&b, `---
{api_version: falaj/v1, kind: Dataset, name: %[1]s, project: shop, spec: {expectations: [{check: unique, columns: [id]}]}}
---
{api_version: falaj/v1, kind: Source, name: %[1]s, project: shop, spec: {dataset: %[1]s, secret: db, %[2]s, rate: {rows_per_second: 2000},
  from: {postgres: {host: 127.0.0.1, port: %[3]d, database: %[4]s, table: %[5]s, tls: "off"}}}}
`, s.name, s.more, p.port, p.database, s.table)
	}
	return b.String()
}

// write changes a few rows of each table in one transaction, which may end late.
func (p *tables) write(ctx context.Context, r *rand.Rand) error {
	tx, err := p.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	for range 1 + r.IntN(4) {
		table := p.sources()[r.IntN(4)]
		id, name := 1+r.IntN(3000), fmt.Sprintf("name %d", r.IntN(1_000_000))
		stmt, args := "INSERT INTO "+table+" VALUES ($1, nextval('seq'), $2) ON CONFLICT (id) DO UPDATE SET seq = nextval('seq'), name = $2", []any{id, name}
		if table != "growing" && r.IntN(4) == 0 { // its deletes would not be seen
			stmt, args = "DELETE FROM "+table+" WHERE id = $1", []any{id}
		}
		if _, err := tx.ExecContext(ctx, stmt, args...); err != nil {
			return err
		}
	}
	if r.IntN(8) == 0 {
		return nil // rolled back: numbers are missing
	}
	return tx.Commit()
}

func (p *tables) rows(t *testing.T, source string) []string {
	t.Helper()
	in, err := p.db.QueryContext(t.Context(), "SELECT id || '|' || seq || '|' || coalesce(name, '') FROM "+source)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	return scan(t, in)
}

func scan(t *testing.T, in *sql.Rows) (rows []string) {
	t.Helper()
	for in.Next() {
		var row string
		if err := in.Scan(&row); err != nil {
			t.Fatal(err)
		}
		rows = append(rows, row)
	}
	if err := in.Err(); err != nil {
		t.Fatal(err)
	}
	slices.Sort(rows)
	return rows
}

func (p *tables) query(source string) string {
	return "SELECT id || '|' || seq || '|' || coalesce(name, '') AS line FROM " + source
}
