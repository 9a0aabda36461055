package ingestion_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/dataset/datasetsql"
	"github.com/falaj-ml/falaj/internal/dataset/datasettest"
	"github.com/falaj-ml/falaj/internal/dataset/expectation"
	"github.com/falaj-ml/falaj/internal/dataset/ingestion"
	"github.com/falaj-ml/falaj/internal/dataset/ingestion/ingestionsql"
	"github.com/falaj-ml/falaj/internal/dataset/source"
	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/secrets"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/store/storetest"
)

const p = datasettest.Project

// row of a table: a key, a cursor, a value, and in a table of changes what happened.
type row struct {
	id, seq int64
	value   string
	op      string
}

// memory is a table and its driver.
type memory struct {
	mu   sync.Mutex
	rows []row
	seq  int64
	// step is called before each batch; its error is the source's.
	step   func() error
	schema table.Schema
	opened int
	last   source.Request
}

var plain = table.Schema{{Name: "id", Type: table.Int64}, {Name: "seq", Type: table.Int64}, {Name: "value", Type: table.String}}

func (m *memory) Check(source.Request) error { return nil }

func (m *memory) Open(_ context.Context, r source.Request) (source.Reader, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.opened++
	m.last = r
	in := &reader{m: m, req: r, rows: slices.Clone(m.rows)}
	order := func(a, b row) int { return int(a.id - b.id) }
	if r.Mode != source.Full {
		order = func(a, b row) int {
			if a.seq != b.seq {
				return int(a.seq - b.seq)
			}
			return int(a.id - b.id)
		}
		in.until = place{}
		if len(in.rows) > 0 {
			in.until = place{Seq: slices.MaxFunc(in.rows, order).seq}
		}
		if r.Begun {
			_ = json.Unmarshal(r.Until, &in.until)
		}
	}
	slices.SortStableFunc(in.rows, order)
	var after, resume place
	_ = json.Unmarshal(r.After, &after)
	_ = json.Unmarshal(r.Resume, &resume)
	in.rows = slices.DeleteFunc(in.rows, func(x row) bool {
		if r.Mode != source.Full && (x.seq > in.until.Seq || len(r.After) > 0 && x.seq < after.Seq) {
			return true
		}
		return len(r.Resume) > 0 && order(x, row{id: resume.ID, seq: resume.Seq}) <= 0
	})
	return in, nil
}

type place struct{ Seq, ID int64 }

type reader struct {
	m     *memory
	req   source.Request
	rows  []row
	until place
}

func (r *reader) Schema() *arrow.Schema { return r.m.schema.Arrow() }
func (r *reader) Close() error          { return nil }

func (r *reader) Until() source.Position {
	if r.req.Mode == source.Full {
		return nil
	}
	b, _ := json.Marshal(r.until)
	return b
}

func (r *reader) Next(ctx context.Context) (arrow.RecordBatch, source.Position, error) {
	if r.m.step != nil {
		if err := r.m.step(); err != nil {
			return nil, nil, err
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	if len(r.rows) == 0 {
		return nil, nil, io.EOF
	}
	n := min(len(r.rows), 3)
	b := source.NewBuilder(r.m.schema)
	defer b.Release()
	for i, x := range r.rows[:n] {
		values := []any{x.id, x.seq, x.value, x.op}
		if err := b.Add(int64(i), values[:len(r.m.schema)]); err != nil {
			return nil, nil, err
		}
	}
	last := r.rows[n-1]
	r.rows = r.rows[n:]
	at, _ := json.Marshal(place{last.seq, last.id})
	return b.Take(), at, nil
}

// world is a server's part that ingests; build makes it again on what is there,
// as a start after a kill does.
type world struct {
	dir    string
	db     *store.DB
	h      *datasettest.Harness
	driver *memory
	secret fakeSecrets
	now    time.Time
	config func(*ingestion.Config)
	*ingestion.Service
}

type fakeSecrets map[string]map[string]secrets.Text

func (f fakeSecrets) Use(_ context.Context, _, name string, _ ...string) error {
	if f[name] == nil {
		return fault.New(fault.NotFound, "secret %q does not exist", name)
	}
	return nil
}

func (f fakeSecrets) Open(_ context.Context, _, name string) (map[string]secrets.Text, error) {
	return f[name], nil
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{dir: t.TempDir(), driver: &memory{schema: plain}, secret: fakeSecrets{}, now: time.Now()}
	var err error
	schema := []store.Migrations{datasetsql.Migrations, ingestionsql.Migrations}
	if w.db, err = store.Open(t.Context(), store.Config{URL: storetest.SQLiteURL(t, w.dir, schema...), Migrations: schema}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.db.Close() })
	w.build(t)
	w.h.Declare(t, "orders", dataset.Spec{})
	return w
}

func (w *world) build(t *testing.T) {
	t.Helper()
	var err error
	if w.h, err = datasettest.On(w.db, w.dir, nil); err != nil {
		t.Fatal(err)
	}
	cfg := ingestion.Config{
		DB: w.db, Store: ingestionsql.Store{}, Authorizer: w.h.Policy, Datasets: w.h.Services, Files: w.h.Files, Secrets: w.secret, Ring: datasettest.Keys{},
		Drivers: map[string]source.Driver{"postgres": w.driver, "files": w.driver}, ChunkRows: 7, Now: func() time.Time { return w.now },
	}
	if w.config != nil {
		w.config(&cfg)
	}
	w.Service = ingestion.New(cfg)
}

func (w *world) apply(t *testing.T, s ingestion.Spec) ingestion.Source {
	t.Helper()
	src, _, err := w.Apply(datasettest.Context(t), ingestion.ApplyRequest{Project: p, Name: "orders", Spec: s})
	if err != nil {
		t.Fatal(err)
	}
	return src
}

func spec(mode source.Mode) ingestion.Spec {
	s := ingestion.Spec{Dataset: "orders", From: source.From{Postgres: &source.Database{Host: "h", Database: "d", Table: "orders"}}, Mode: mode}
	if mode != source.Full {
		s.Cursor, s.Key = "seq", []string{"id"}
	}
	if mode == source.Changes {
		s.Op = "op"
	}
	return s
}

// ingest starts a run and carries it on until it has ended.
func (w *world) ingest(t *testing.T, anew bool) ingestion.Run {
	t.Helper()
	r, err := w.Start(datasettest.Context(t), p, "orders", anew)
	if err != nil {
		t.Fatal(err)
	}
	for !r.State.Ended() {
		if err := w.RunOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		if r, err = w.Run(datasettest.Context(t), p, r.ID); err != nil {
			t.Fatal(err)
		}
		w.now = w.now.Add(time.Minute) // of back-off
	}
	return r
}

// rows of the dataset's newest accepted version, sorted.
func (w *world) rows(t *testing.T) []string {
	t.Helper()
	in, err := w.h.Reads.Open(datasettest.Context(t), dataset.OpenRequest{Project: p, Ref: dataset.Ref{Name: "orders"}})
	if err != nil {
		t.Fatal(err)
	}
	defer in.Release()
	all, err := dataset.Collect(t.Context(), in, 1_000_000, 0)
	if err != nil {
		t.Fatal(err)
	}
	out := make([]string, len(all.Rows))
	for i, r := range all.Rows {
		out[i] = strings.TrimSpace(fmt.Sprintln(r...))
	}
	slices.Sort(out)
	return out
}

func texts(rows []row) []string {
	out := make([]string, len(rows))
	for i, r := range rows {
		out[i] = strings.TrimSpace(fmt.Sprintln(r.id, r.seq, r.value))
	}
	slices.Sort(out)
	return out
}

func wantRows(t *testing.T, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("the dataset has %d rows, the source %d\n%s\nwant\n%s", len(got), len(want), strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestEveryRowOnce draws histories of a table and of kills, in each mode: in the
// end the dataset has what the source has.
func TestEveryRowOnce(t *testing.T) {
	rounds := 24
	if testing.Short() {
		rounds = 6
	}
	for n := range rounds {
		mode := []source.Mode{source.Full, source.Incremental, source.Changes}[n%3]
		t.Run(fmt.Sprint(mode, n), func(t *testing.T) { everyRowOnce(t, mode, uint64(n)) })
	}
}

func everyRowOnce(t *testing.T, mode source.Mode, seed uint64) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 7))
	w := newWorld(t)
	s := spec(mode)
	s.Key = []string{"id"}
	if mode == source.Changes {
		w.driver.schema = append(slices.Clone(plain), table.Field{Name: "op", Type: table.String})
	}
	w.apply(t, s)
	live := map[int64]row{} // what the table has; in mode changes what the changes amount to
	change := func() {
		w.driver.mu.Lock()
		defer w.driver.mu.Unlock()
		for range 1 + r.IntN(20) {
			w.driver.seq += int64(r.IntN(2)) // ties
			x := row{id: int64(r.IntN(60)), seq: w.driver.seq, value: strconv.Itoa(r.IntN(1000))}
			_, was := live[x.id]
			switch {
			case mode == source.Changes:
				w.driver.seq++
				x.seq = w.driver.seq
				x.op = []string{"I", "update", "d"}[r.IntN(3)]
				w.driver.rows = append(w.driver.rows, x)
				live[x.id] = x
				if x.op == "d" {
					delete(live, x.id)
				}
				continue
			case was && mode == source.Full && r.IntN(3) == 0:
				delete(live, x.id)
			default:
				live[x.id] = x
			}
			w.driver.rows = w.driver.rows[:0]
			for _, y := range live {
				w.driver.rows = append(w.driver.rows, y)
			}
		}
	}
	for range 8 {
		change()
		// Killed at some step: of the source, of a chunk, or of the version.
		for range 1 + r.IntN(3) {
			ctx, kill := context.WithCancel(t.Context())
			fuse := 1 + r.IntN(25)
			var mu sync.Mutex
			step := func() error {
				mu.Lock()
				defer mu.Unlock()
				if fuse--; fuse == 0 {
					kill()
				}
				if fuse <= 0 {
					return context.Canceled
				}
				return nil
			}
			w.driver.step = step
			w.h.Files.Hook = func(string, string) error { return step() }
			if _, err := w.Start(datasettest.Context(t), p, "orders", false); err != nil {
				t.Fatal(err)
			}
			if err := w.RunOnce(ctx); err != nil && !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			kill()
			w.driver.step, w.h.Files.Hook = nil, nil
			w.build(t)
			if r.IntN(2) == 0 {
				change() // the source is written to meanwhile
			}
		}
		if last := w.ingest(t, false); last.State != ingestion.Succeeded {
			t.Fatalf("%+v", last)
		}
	}
	// A run that was taken up ends where it began to end: one more has the rest.
	last := w.ingest(t, false)
	if last.State != ingestion.Succeeded {
		t.Fatalf("%+v", last)
	}
	var want []row
	for _, x := range live {
		want = append(want, x)
	}
	wantRows(t, w.rows(t), texts(want))
	if again := w.ingest(t, false); !again.Unchanged || again.Version != last.Version {
		t.Errorf("nothing is new, and the run says %+v", again)
	}
	for _, key := range w.h.Files.List(t) {
		if strings.Contains(key, "chunk") || strings.Contains(key, ".tmp") {
			t.Errorf("left behind: %s", key)
		}
	}
}

func fill(w *world, n int) {
	for i := range n {
		w.driver.rows = append(w.driver.rows, row{id: int64(i), seq: int64(i), value: "v"})
	}
}

// A run that is taken up goes on from its last chunk.
func TestGoesOnFromTheLastChunk(t *testing.T) {
	w := newWorld(t)
	fill(w, 100)
	w.apply(t, spec(source.Incremental))
	ctx, kill := context.WithCancel(t.Context())
	steps := 0
	w.driver.step = func() error {
		if steps++; steps == 20 {
			kill()
		}
		return nil
	}
	run, err := w.Start(datasettest.Context(t), p, "orders", false)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.RunOnce(ctx); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	w.build(t)
	r, err := w.Run(datasettest.Context(t), p, run.ID)
	if err != nil || r.Chunks == 0 || r.State != ingestion.Reading {
		t.Fatalf("%+v, %v", r, err)
	}
	w.driver.step = nil
	before := r.Rows
	r = w.ingest(t, false)
	var at place
	_ = json.Unmarshal(w.driver.last.Resume, &at)
	if r.ID != run.ID || r.State != ingestion.Succeeded || r.Rows != 100 || at.ID != before-1 {
		t.Errorf("%+v, resumed after row %d of %d", r, at.ID, before)
	}
	wantRows(t, w.rows(t), texts(w.driver.rows))
}

func TestPassingErrorsAreTriedAgainAndOthersAreNot(t *testing.T) {
	w := newWorld(t)
	fill(w, 10)
	w.apply(t, spec(source.Full))
	failures := 3
	w.driver.step = func() error {
		if failures--; failures >= 0 {
			return fault.New(fault.Unavailable, "the network is away")
		}
		return nil
	}
	if r := w.ingest(t, false); r.State != ingestion.Succeeded || r.Attempts != 4 {
		t.Errorf("%+v", r)
	}
	w.driver.step = func() error { return fault.New(fault.Invalid, "no such table").WithHint("Make it.") }
	if r := w.ingest(t, false); r.State != ingestion.Failed || r.Error != "no such table" || r.Hint != "Make it." {
		t.Errorf("%+v", r)
	}
	w.driver.step = func() error { return fault.New(fault.Unavailable, "away for good") }
	if r := w.ingest(t, false); r.State != ingestion.Failed || r.Error != "away for good" {
		t.Errorf("%+v", r)
	}
}

// TestPositionsAreSealed: what the database keeps of where a source is has no value of a
// row, and positions from before that was so are still read.
func TestPositionsAreSealed(t *testing.T) {
	w := newWorld(t)
	w.apply(t, spec(source.Incremental))
	w.driver.rows = []row{{id: 777001, seq: 888001, value: "a"}}
	if r := w.ingest(t, false); r.State != ingestion.Succeeded {
		t.Fatal(r.Error)
	}
	docs := func() (all []string) {
		t.Helper()
		err := w.db.View(t.Context(), func(ctx context.Context, tx *store.Tx) error {
			return tx.NewRaw(`SELECT doc FROM ingestion_source UNION ALL SELECT doc FROM ingestion_run UNION ALL SELECT progress FROM ingestion_run`).Scan(ctx, &all)
		})
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	for _, doc := range docs() {
		if strings.Contains(doc, "777001") || strings.Contains(doc, "888001") {
			t.Errorf("the database has the cursor or the key: %s", doc)
		}
	}
	src, err := w.One(datasettest.Context(t), p, "orders")
	if err != nil || len(src.Position) == 0 {
		t.Fatal(src.Position, err)
	}
	old := `{"Seq":888001}`
	err = w.db.Update(t.Context(), string(p), func(ctx context.Context, tx *store.Tx) error {
		_, err := tx.NewRaw(`UPDATE ingestion_source SET doc = replace(doc, ?, ?)`, string(src.Position), old).Exec(ctx)
		return err
	})
	if err != nil || !strings.Contains(strings.Join(docs(), " "), old) {
		t.Fatal("the position was not put back", err)
	}
	w.driver.rows = append(w.driver.rows, row{id: 777002, seq: 888002, value: "b"})
	if r := w.ingest(t, false); r.State != ingestion.Succeeded || r.Rows != 2 { // the last row again, for what shares its cursor
		t.Errorf("%+v", r)
	}
	if string(w.driver.last.After) != old {
		t.Errorf("it went on behind %s", w.driver.last.After)
	}
}

// A rejected version does not move the position: what is corrected is read again.
func TestRejectedRowsAreReadAgain(t *testing.T) {
	w := newWorld(t)
	w.h.Declare(t, "orders", dataset.Spec{Expectations: []expectation.Rule{{Check: "not_null", Column: "value"}}})
	fill(w, 5)
	w.apply(t, spec(source.Incremental))
	if r := w.ingest(t, false); r.State != ingestion.Succeeded {
		t.Fatalf("%+v", r)
	}
	w.driver.rows = append(w.driver.rows, row{id: 9, seq: 9, value: "x"})
	w.h.Declare(t, "orders", dataset.Spec{Expectations: []expectation.Rule{{Check: "row_count", Max: 5.0}}})
	r := w.ingest(t, false)
	if r.State != ingestion.Failed || !strings.Contains(r.Error, "rejected") || r.Version != 2 {
		t.Fatalf("%+v", r)
	}
	wantRows(t, w.rows(t), texts(w.driver.rows[:5]))
	w.h.Declare(t, "orders", dataset.Spec{})
	if r := w.ingest(t, false); r.State != ingestion.Succeeded {
		t.Fatalf("%+v", r)
	}
	wantRows(t, w.rows(t), texts(w.driver.rows))
}

// The columns may grow; what else changes is said, and --anew reads it.
func TestColumnsThatChange(t *testing.T) {
	w := newWorld(t)
	fill(w, 5)
	w.driver.schema = plain[:2]
	w.apply(t, spec(source.Incremental))
	w.ingest(t, false)
	w.driver.schema = plain
	w.driver.rows = append(w.driver.rows, row{id: 9, seq: 9, value: "new"})
	if r := w.ingest(t, false); r.State != ingestion.Succeeded {
		t.Fatalf("%+v", r)
	}
	wantRows(t, w.rows(t), []string{"0 0 <nil>", "1 1 <nil>", "2 2 <nil>", "3 3 <nil>", "4 4 v", "9 9 new"})
	w.driver.schema = plain[:2]
	if r := w.ingest(t, false); r.State != ingestion.Failed || !strings.Contains(r.Error, `column "value" does not exist in the source, and exists in orders@2`) || !strings.Contains(r.Hint, "--anew") {
		t.Fatalf("%+v", r)
	}
	if r := w.ingest(t, true); r.State != ingestion.Succeeded {
		t.Fatalf("%+v", r)
	}
	if rows := w.rows(t); len(rows) != 6 {
		t.Errorf("%v", rows)
	}
}

func TestCancel(t *testing.T) {
	w := newWorld(t)
	fill(w, 100)
	w.apply(t, spec(source.Incremental))
	under, cancelled := make(chan struct{}), make(chan struct{})
	steps := 0
	w.driver.step = func() error {
		if steps++; steps == 10 {
			close(under)
			<-cancelled
		}
		return nil
	}
	run, err := w.Start(datasettest.Context(t), p, "orders", false)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- w.RunOnce(t.Context()) }()
	<-under
	if err := w.Delete(datasettest.Context(t), p, "orders"); !fault.Is(err, fault.Conflict) {
		t.Errorf("deleting a source with a run under way: %v", err)
	}
	if _, err := w.Cancel(datasettest.Context(t), p, run.ID); err != nil {
		t.Fatal(err)
	}
	close(cancelled)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	r, err := w.Wait(datasettest.Context(t), p, run.ID)
	if err != nil || r.State != ingestion.Cancelled {
		t.Errorf("%+v, %v", r, err)
	}
	if d, err := w.h.Definitions.One(datasettest.Context(t), p, "orders"); err != nil || d.Latest != 0 {
		t.Errorf("%+v, %v", d, err)
	}
	for _, key := range w.h.Files.List(t) {
		t.Errorf("left behind: %s", key)
	}
	if err := w.Delete(datasettest.Context(t), p, "orders"); err != nil {
		t.Error(err)
	}
}

// TestTheLastRowOfAKeyStays: files and pages may have a key twice, also when they
// are read whole.
func TestTheLastRowOfAKeyStays(t *testing.T) {
	w := newWorld(t)
	w.driver.rows = []row{{id: 1, seq: 1, value: "old"}, {id: 1, seq: 3, value: "new"}, {id: 2, seq: 2, value: "x"}}
	s := spec(source.Full)
	s.From, s.Key = source.From{Files: &source.Files{Directory: "/d"}}, []string{"id"}
	w.apply(t, s)
	if r := w.ingest(t, false); r.State != ingestion.Succeeded {
		t.Fatalf("%+v", r)
	}
	wantRows(t, w.rows(t), texts(w.driver.rows[1:]))
}

func TestScheduledRuns(t *testing.T) {
	w := newWorld(t)
	fill(w, 3)
	s := spec(source.Full)
	s.Schedule = "every 15m"
	w.apply(t, s)
	look := func(want int) {
		t.Helper()
		if err := w.RunOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		runs, _, err := w.Runs(datasettest.Context(t), p, "orders", dataset.Page{})
		if err != nil || len(runs) != want {
			t.Fatalf("%d runs, want %d: %v", len(runs), want, err)
		}
	}
	look(0)
	w.now = w.now.Add(15 * time.Minute)
	look(1)
	look(1)
	w.now = w.now.Add(24 * time.Hour) // away for a day: one run
	look(2)
	look(2)
}

func TestSourcesAreRefused(t *testing.T) {
	w := newWorld(t)
	for name, change := range map[string]func(*ingestion.Spec){
		"no dataset":        func(s *ingestion.Spec) { s.Dataset = "" },
		"an odd mode":       func(s *ingestion.Spec) { s.Mode = "sometimes" },
		"no kind":           func(s *ingestion.Spec) { s.From = source.From{} },
		"two kinds":         func(s *ingestion.Spec) { s.From.MariaDB = s.From.Postgres },
		"an odd schedule":   func(s *ingestion.Spec) { s.Schedule = "now and then" },
		"a key twice":       func(s *ingestion.Spec) { s.Key = []string{"a", "a"} },
		"a rate below zero": func(s *ingestion.Spec) { s.Rate.RowsPerSecond = -1 },
	} {
		s := spec(source.Full)
		change(&s)
		_, _, err := w.Apply(datasettest.Context(t), ingestion.ApplyRequest{Project: p, Name: "orders", Spec: s})
		if !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	s := spec(source.Full)
	s.Secret = "nix"
	if _, _, err := w.Apply(datasettest.Context(t), ingestion.ApplyRequest{Project: p, Name: "orders", Spec: s}); !fault.Is(err, fault.NotFound) {
		t.Errorf("a secret that is not there: %v", err)
	}
	w.apply(t, spec(source.Full))
	if _, _, err := w.Apply(datasettest.Context(t), ingestion.ApplyRequest{Project: p, Name: "other", Spec: spec(source.Full)}); !fault.Is(err, fault.Conflict) {
		t.Errorf("a second source of a dataset: %v", err)
	}
	for action, do := range map[policy.Action]func(context.Context) error{
		ingestion.ActionRun:    func(ctx context.Context) error { _, err := w.Start(ctx, p, "orders", false); return err },
		ingestion.ActionRead:   func(ctx context.Context) error { _, err := w.One(ctx, p, "orders"); return err },
		ingestion.ActionDelete: func(ctx context.Context) error { return w.Delete(ctx, p, "orders") },
		ingestion.ActionApply: func(ctx context.Context) error {
			_, _, err := w.Apply(ctx, ingestion.ApplyRequest{Project: p, Name: "orders", Spec: spec(source.Full)})
			return err
		},
		dataset.ActionImport: func(ctx context.Context) error {
			_, _, err := w.Apply(ctx, ingestion.ApplyRequest{Project: p, Name: "orders", Spec: spec(source.Full)})
			return err
		},
	} {
		w.h.Policy.Deny(func(a policy.Action, _ policy.Object) bool { return a == action })
		if err := do(datasettest.Context(t)); !fault.Is(err, fault.PermissionDenied) {
			t.Errorf("%s: %v", action, err)
		}
	}
	w.h.Policy.Deny(nil)
	if src, err := w.One(identity.With(t.Context(), identity.Loop("x")), p, "orders"); err != nil || src.Last != nil {
		t.Errorf("%+v, %v", src, err)
	}
}

// A run is carried by a loop, which may read everything: who declares the source or
// bids a run is asked for what the dataset's expectations read.
func TestReferencesAreAsked(t *testing.T) {
	w := newWorld(t)
	w.driver.rows = []row{{id: 1, seq: 1, value: "a"}}
	w.h.Declare(t, "customers", dataset.Spec{})
	b := source.NewBuilder(plain)
	defer b.Release()
	if err := b.Add(0, []any{int64(1), int64(1), "amal"}); err != nil {
		t.Fatal(err)
	}
	rows, err := array.NewRecordReader(plain.Arrow(), []arrow.RecordBatch{b.Take()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.h.Writes.Create(datasettest.Context(t), dataset.CreateRequest{Project: p, Name: "customers", Rows: rows, Producer: dataset.Producer{Kind: "test"}}); err != nil {
		t.Fatal(err)
	}
	w.h.Declare(t, "orders", dataset.Spec{Expectations: []expectation.Rule{{Check: expectation.Refers, Column: "id", In: &expectation.Target{Dataset: "customers", Column: "id"}}}})
	w.apply(t, spec(source.Full))
	if r := w.ingest(t, false); r.State != ingestion.Succeeded {
		t.Fatalf("%+v", r)
	}
	w.h.Policy.Deny(func(a policy.Action, o policy.Object) bool {
		return a == dataset.ActionQuery && strings.HasPrefix(o.Name, "customers")
	})
	if _, err := w.Start(datasettest.Context(t), p, "orders", false); !fault.Is(err, fault.PermissionDenied) {
		t.Errorf("a run: %v", err)
	}
	if _, _, err := w.Apply(datasettest.Context(t), ingestion.ApplyRequest{Project: p, Name: "orders", Spec: spec(source.Full)}); !fault.Is(err, fault.PermissionDenied) {
		t.Errorf("a source: %v", err)
	}
}

func TestSchedule(t *testing.T) {
	at := func(s string) time.Time {
		x, err := time.Parse("2006-01-02 15:04", s)
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	for _, c := range []struct{ schedule, after, want string }{
		{"every 15m", "2024-01-01 00:07", "2024-01-01 00:22"},
		{"*/15 * * * *", "2024-01-01 00:07", "2024-01-01 00:15"},
		{"0 3 * * *", "2024-01-01 03:00", "2024-01-02 03:00"},
		{"30 6 29 2 *", "2024-03-01 00:00", "2028-02-29 06:30"},
		{"0 0 1 * 1", "2024-01-02 00:00", "2024-01-08 00:00"}, // the first, or a Monday
		{"0 0 * * 7", "2024-01-01 00:00", "2024-01-07 00:00"},
		{"5,10-12 4-6/2 * 12 *", "2024-01-01 00:00", "2024-12-01 04:05"},
	} {
		s, err := ingestion.ParseSchedule(c.schedule)
		if err != nil {
			t.Errorf("%s: %v", c.schedule, err)
			continue
		}
		if got := s.Next(at(c.after)); !got.Equal(at(c.want)) {
			t.Errorf("%s after %s is %s, want %s", c.schedule, c.after, got, c.want)
		}
	}
	for _, bad := range []string{"every", "every 1s", "every x", "* * * *", "60 * * * *", "0 0 30 2 *", "*/0 * * * *", "5-1 * * * *", "a b c d e"} {
		if _, err := ingestion.ParseSchedule(bad); !fault.Is(err, fault.Invalid) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	for _, never := range []string{"", "none"} {
		if s, err := ingestion.ParseSchedule(never); err != nil || !s.Next(time.Now()).IsZero() {
			t.Errorf("%q: %v", never, err)
		}
	}
}

// Rows that do not say what happened to them are not taken for new ones, nor those
// without the key for any.
func TestColumnsThatAreMissing(t *testing.T) {
	for column, change := range map[string]func(*ingestion.Spec){
		"op":      func(*ingestion.Spec) {},
		"country": func(s *ingestion.Spec) { s.Key = []string{"id", "country"} },
	} {
		t.Run(column, func(t *testing.T) {
			w := newWorld(t)
			w.driver.rows = []row{{id: 1, seq: 1, value: "a", op: "I"}, {id: 1, seq: 2, value: "a", op: "D"}}
			s := spec(source.Changes)
			change(&s)
			if column != "op" {
				w.driver.schema = append(slices.Clone(plain), table.Field{Name: "op", Type: table.String})
			}
			w.apply(t, s)
			r := w.ingest(t, false)
			if r.State != ingestion.Failed || !strings.Contains(r.Error, strconv.Quote(column)) || r.Version != 0 || !strings.Contains(r.Hint, "spec.columns") {
				t.Errorf("%s: %s (%s), version %d", r.State, r.Error, r.Hint, r.Version)
			}
		})
	}
}
