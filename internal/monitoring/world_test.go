package monitoring_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/falaj-ml/falaj/internal/blob/blobtest"
	"github.com/falaj-ml/falaj/internal/event/eventtest"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/monitoring"
	"github.com/falaj-ml/falaj/internal/monitoring/alert"
	"github.com/falaj-ml/falaj/internal/monitoring/label"
	"github.com/falaj-ml/falaj/internal/monitoring/label/labelsql"
	"github.com/falaj-ml/falaj/internal/monitoring/monitoringsql"
	"github.com/falaj-ml/falaj/internal/serving/prediction"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/store/storetest"
)

type ring struct{}

func (ring) DataKey(_ context.Context, project, owner, use string) ([]byte, error) {
	sum := sha256.Sum256([]byte(project + "|" + owner + "|" + use))
	return sum[:], nil
}

// world is what is around the service: a real database, a real prediction log,
// real labels; deployments and training data are of this test.
type world struct {
	t      *testing.T
	dir    string
	db     *store.DB
	log    *prediction.Log
	labels *label.Service
	sealer *blobtest.Sealer
	now    time.Time

	version  int64
	gone     bool
	origin   monitoring.Origin
	training arrow.RecordBatch
	failing  error // of Training
	noScores bool
	opened   int
	revision int64
	columns  []string
	classes  []string
	denied   policy.Action
	hidden   string // classification that nobody may see
	reads    []audit.Entry
	queued   []alert.Alert
}

var (
	wall  = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	begin = time.Date(2013, 6, 3, 0, 0, 0, 0, time.UTC) // a Monday
)

// schema lists the migrations of the database.
var schema = []store.Migrations{monitoringsql.Migrations, labelsql.Migrations}

func newWorld(t *testing.T) *world {
	t.Helper()
	dir := t.TempDir()
	return newWorldOn(t, dir, storetest.SQLiteURL(t, dir, schema...))
}

func newWorldOn(t *testing.T, dir, url string) *world {
	t.Helper()
	w := &world{t: t, dir: dir, sealer: blobtest.NewSealer(), now: wall, version: 1}
	db, err := store.Open(t.Context(), store.Config{
		URL: url, Migrations: schema,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	quiet := slog.New(slog.DiscardHandler)
	w.db = db
	w.log, err = prediction.Open(prediction.Config{Dir: filepath.Join(w.dir, "predictions"), Keys: ring{}, Now: w.clock, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.log.Close() })
	w.labels = label.New(label.Config{DB: db, Store: labelsql.Store{}, Authorizer: w, Sealer: w.sealer, Predictions: w.log, Deployments: w, Now: w.clock, Logger: quiet})
	w.train(4000, 1)
	return w
}

// service is a new process.
func (w *world) service(change func(c *monitoring.Config)) *monitoring.Service {
	c := monitoring.Config{
		DB: w.db, Store: monitoringsql.Store{}, Authz: w, Journal: w, Sealer: w.sealer, Predictions: w.log, Labels: w.labels,
		Deployments: w, Sources: w, Alerts: w, Now: w.clock, Batch: 500,
	}
	if change != nil {
		change(&c)
	}
	return monitoring.New(c)
}

func (*world) allocator() memory.Allocator { return memory.DefaultAllocator }

func (w *world) clock() time.Time { return w.now }

func (w *world) Allow(_ context.Context, a policy.Action, o policy.Object) error {
	if a == w.denied || o.Classification != "" && o.Classification == w.hidden {
		return fault.New(fault.PermissionDenied, "no")
	}
	return nil
}

func (w *world) Record(_ context.Context, e audit.Entry) error {
	w.reads = append(w.reads, e)
	return nil
}

func (w *world) Facts(context.Context, string, string) (label.Facts, error) {
	return label.Facts{Classification: "internal"}, nil
}

func (w *world) Watched(_ context.Context, _, deployment string) (monitoring.Watched, error) {
	if deployment != "delay" || w.gone {
		return monitoring.Watched{}, fault.New(fault.NotFound, "no deployment %q", deployment)
	}
	return monitoring.Watched{ID: "dep_1", Revision: w.revision, Model: "delay", Version: w.version, Classification: "confidential", Columns: w.columns, Classes: w.classes, Positive: max(len(w.classes)-1, 0)}, nil
}

func (w *world) Training(context.Context, monitoring.OriginQuery) (monitoring.Origin, error) {
	return w.origin, w.failing
}

func (w *world) Dataset(_ context.Context, _ monitoring.OriginQuery, ref string) (monitoring.Origin, error) {
	o := w.origin
	o.Ref = ref
	return o, w.failing
}

func (w *world) Open(_ context.Context, _, _ string, columns []string) (array.RecordReader, error) {
	w.opened++
	var fields []arrow.Field
	var arrays []arrow.Array
	for _, name := range columns {
		i := slices.IndexFunc(w.training.Schema().Fields(), func(f arrow.Field) bool { return f.Name == name })
		fields, arrays = append(fields, w.training.Schema().Field(i)), append(arrays, w.training.Column(i))
	}
	schema := arrow.NewSchema(fields, nil)
	return array.NewRecordReader(schema, []arrow.RecordBatch{array.NewRecordBatch(schema, arrays, w.training.NumRows())})
}

func (w *world) Scores(_ context.Context, _, _ string, _ int64, o monitoring.Origin, rows [][]float64) ([]float64, error) {
	if w.noScores {
		return nil, fault.New(fault.Unsupported, "no scores of %s, which may be in %v, today", o.Ref, o.Residency)
	}
	out := make([]float64, len(rows))
	for i, r := range rows {
		out[i] = score(r[0], r[2])
	}
	return out, nil
}

func (w *world) Check(t alert.Target) error { return t.Validate() }

func (w *world) Enqueue(_ context.Context, _ *store.Tx, a alert.Alert) error {
	w.queued = append(w.queued, a)
	return nil
}

// score is the model of this test.
func score(temp, wind float64) float64 { return 1 / (1 + math.Exp(-(temp-15)/8-wind/10+1)) }

// row is what a flight looks like: shift moves its temperature.
func row(r *rand.Rand, shift float64) (temp, hour, wind float64) {
	return 15 + shift + 5*r.NormFloat64(), float64(r.IntN(24)), 5 + 3*r.NormFloat64()
}

// train makes the training set.
func (w *world) train(rows int, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	schema := arrow.NewSchema([]arrow.Field{
		{Name: "weather__temp", Type: arrow.PrimitiveTypes.Float64, Nullable: true},
		{Name: "hour", Type: arrow.PrimitiveTypes.Int64, Nullable: true},
		{Name: "wind", Type: arrow.PrimitiveTypes.Float64, Nullable: true},
	}, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	for range rows {
		temp, hour, wind := row(r, 0)
		b.Field(0).(*array.Float64Builder).Append(temp)
		b.Field(1).(*array.Int64Builder).Append(int64(hour))
		b.Field(2).(*array.Float64Builder).Append(wind)
	}
	w.training = b.NewRecordBatch()
	w.origin = monitoring.Origin{
		Ref: "delays@1", Digest: fmt.Sprintf("sha256:%d-%d", rows, seed), Classification: "confidential", Declared: true, Scored: true, Definition: "d",
		Inputs: []monitoring.OriginInput{{Name: "weather:temp", Column: "weather__temp"}, {Name: "hour", Column: "hour"}, {Name: "wind", Column: "wind"}},
	}
}

var serial int

// predict logs one request of one row.
func (w *world) predict(r *rand.Rand, at time.Time, shift float64, change func(rec *prediction.Record)) string {
	w.t.Helper()
	temp, hour, wind := row(r, shift)
	serial++
	rec := &prediction.Record{
		ID: fmt.Sprintf("prd_%d", serial), Project: "nyc", Deployment: "delay", Model: "delay", Version: w.version, At: at, Received: w.now,
		Replay: true, Latency: time.Duration(1+r.IntN(9)) * time.Millisecond, Rows: 1, Scores: []float64{score(temp, wind)}, Task: prediction.Binary,
		Keys: []prediction.Column{{Name: "carrier", Texts: []string{[]string{"AA", "UA"}[r.IntN(2)]}}},
		Inputs: []prediction.Column{
			{Name: "weather:temp", Numbers: []float64{temp}}, {Name: "hour", Numbers: []float64{hour}}, {Name: "wind", Numbers: []float64{wind}},
		},
	}
	if change != nil {
		change(rec)
	}
	if err := w.log.Append(w.t.Context(), rec); err != nil {
		w.t.Fatal(err)
	}
	return rec.ID
}

// days logs n requests for each of some days; shift gives each day's.
func (w *world) days(r *rand.Rand, from time.Time, days, n int, shift func(day int) float64) {
	w.t.Helper()
	for d := range days {
		for i := range n {
			w.predict(r, from.Add(time.Duration(d)*24*time.Hour+time.Duration(i)*24*time.Hour/time.Duration(n)), shift(d), nil)
		}
	}
}

func (w *world) apply(s *monitoring.Service, spec monitoring.Spec) monitoring.Monitor {
	w.t.Helper()
	m, _, err := s.Apply(w.t.Context(), "nyc", "delay", spec, false)
	if err != nil {
		w.t.Fatal(err)
	}
	return m
}

func (w *world) run(s *monitoring.Service) {
	w.t.Helper()
	if err := s.RunOnce(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
}

// windows are all windows, the oldest first.
func (w *world) windows(s *monitoring.Service) []monitoring.Window {
	w.t.Helper()
	var all []monitoring.Window
	for token := ""; ; {
		page, next, err := s.Windows(w.t.Context(), "nyc", "delay", monitoring.WindowFilter{Limit: 7}, token)
		if err != nil {
			w.t.Fatal(err)
		}
		all = append(all, page...)
		if token = next; token == "" {
			slices.Reverse(all)
			return all
		}
	}
}

// findings are the events about a monitor, in order: "monitor.drifted 2013-06-10".
func (w *world) findings() (names []string, bodies []monitoring.Finding) {
	w.t.Helper()
	for _, e := range eventtest.All(w.t, w.db, monitoring.EventDrifted, monitoring.EventDegraded, monitoring.EventUnjudged, monitoring.EventRecovered) {
		var f monitoring.Finding
		if err := e.Decode(&f); err != nil {
			w.t.Fatal(err)
		}
		names, bodies = append(names, e.Name+" "+f.At.Format(time.DateOnly)), append(bodies, f)
	}
	return names, bodies
}

func always(shift float64) func(int) float64 { return func(int) float64 { return shift } }

func date(day int) time.Time { return begin.AddDate(0, 0, day) }

func featureOf(t *testing.T, win monitoring.Window, name string) monitoring.Feature {
	t.Helper()
	for _, f := range win.Features {
		if f.Name == name {
			return f
		}
	}
	t.Fatalf("window %s has no feature %s", win.ID, name)
	return monitoring.Feature{}
}
