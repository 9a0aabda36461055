package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/tink-crypto/tink-go/v2/aead"
	"github.com/tink-crypto/tink-go/v2/keyset"
	"github.com/tink-crypto/tink-go/v2/tink"

	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/monitoring"
	"github.com/falaj-ml/falaj/internal/monitoring/monitoringsql"
	"github.com/falaj-ml/falaj/internal/serving/prediction"
	"github.com/falaj-ml/falaj/internal/store"
)

// watch is the monitoring of the product on a database of its own. Records and
// baselines are in memory, so that what is measured is monitoring and neither the
// disk of the log nor a server.
type watch struct {
	*monitoring.Service
	db     *store.DB
	sealer tink.AEAD
	seen   store.Position // of the events

	mu      sync.Mutex
	replays map[string]*replay // by the name of the deployment
}

// replay is what one deployment answered, and what its model was trained on.
type replay struct {
	names    []string
	baseline [][]float64 // columns
	model    func(row []float64) float64
	records  []*prediction.Record
}

func (b *bench) watch(ctx context.Context, name string) (*watch, error) {
	db, err := store.Open(ctx, store.Config{
		URL: "sqlite://" + filepath.Join(b.Dir, name+".db"), Migrations: []store.Migrations{monitoringsql.Migrations},
	})
	if err != nil {
		return nil, err
	}
	handle, err := keyset.NewHandle(aead.AES256GCMKeyTemplate())
	if err != nil {
		return nil, err
	}
	sealer, err := aead.New(handle)
	if err != nil {
		return nil, err
	}
	w := &watch{db: db, sealer: sealer, replays: map[string]*replay{}}
	w.Service = monitoring.New(monitoring.Config{
		DB: db, Store: monitoringsql.Store{}, Authz: w, Journal: w, Sealer: w, Predictions: w, Deployments: w, Sources: w,
	})
	return w, nil
}

// found is what a monitor said of a replay.
type found struct {
	windows []monitoring.Window  // the oldest first
	events  []monitoring.Finding // of drift, in order
	took    time.Duration        // of reading and judging
}

// run lets a monitor of that manifest read a replay to its end.
func (w *watch) run(ctx context.Context, name string, r *replay, spec monitoring.Spec) (found, error) {
	w.mu.Lock()
	w.replays[name] = r
	w.mu.Unlock()
	var out found
	if _, _, err := w.Apply(ctx, project, name, spec, false); err != nil {
		return out, err
	}
	began := time.Now()
	if err := w.RunOnce(ctx); err != nil {
		return out, err
	}
	out.took = time.Since(began)
	for token := ""; ; {
		page, next, err := w.Windows(ctx, project, name, monitoring.WindowFilter{Limit: 1000}, token)
		if err != nil {
			return out, err
		}
		out.windows = append(out.windows, page...)
		if token = next; token == "" {
			break
		}
	}
	slices.Reverse(out.windows)
	for {
		page, next, err := w.db.ReadStream(ctx, "event", w.seen, 1000)
		if err != nil {
			return out, err
		}
		if len(page) == 0 {
			break
		}
		for _, e := range page {
			if e.Kind != monitoring.EventDrifted {
				continue
			}
			var f monitoring.Finding
			if err := (event.Event{Name: e.Kind, Body: e.Body}).Decode(&f); err != nil {
				return out, err
			}
			if f.Monitor == name {
				out.events = append(out.events, f)
			}
		}
		w.seen = next
	}
	w.mu.Lock()
	delete(w.replays, name)
	w.mu.Unlock()
	return out, w.Delete(ctx, project, name)
}

const project = "bench"

func (w *watch) replay(name string) (*replay, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if r, ok := w.replays[name]; ok {
		return r, nil
	}
	return nil, fault.New(fault.NotFound, "no replay %s", name)
}

// Read hands out records; a cursor's index is that of the record after it.
func (w *watch) Read(_ context.Context, _, deployment string, after prediction.Cursor, visit func(prediction.Cursor, *prediction.Record) error) error {
	r, err := w.replay(deployment)
	if err != nil {
		return err
	}
	for i := after.Index; i < len(r.records); i++ {
		if err := visit(prediction.Cursor{Segment: 1, Index: i + 1}, r.records[i]); err != nil {
			return err
		}
	}
	return nil
}

func (w *watch) Watched(_ context.Context, _, deployment string) (monitoring.Watched, error) {
	_, err := w.replay(deployment)
	return monitoring.Watched{ID: "dep_" + deployment, Model: "m", Version: 1}, err
}

func (w *watch) Training(_ context.Context, q monitoring.OriginQuery) (monitoring.Origin, error) {
	r, err := w.replay(q.Deployment)
	if err != nil {
		return monitoring.Origin{}, err
	}
	sum := sha256.Sum256([]byte(q.Deployment))
	o := monitoring.Origin{Ref: q.Deployment, Digest: hex.EncodeToString(sum[:]), Definition: "d", Declared: true, Scored: true}
	for _, name := range r.names {
		o.Inputs = append(o.Inputs, monitoring.OriginInput{Name: name, Column: name})
	}
	return o, nil
}

func (w *watch) Dataset(ctx context.Context, q monitoring.OriginQuery, _ string) (monitoring.Origin, error) {
	return w.Training(ctx, q)
}

func (w *watch) Open(_ context.Context, _, ref string, columns []string) (array.RecordReader, error) {
	r, err := w.replay(ref)
	if err != nil {
		return nil, err
	}
	place := map[string]int{}
	for i, name := range r.names {
		place[name] = i
	}
	fields := make([]arrow.Field, len(columns))
	arrays := make([]arrow.Array, len(columns))
	for i, name := range columns {
		fields[i] = arrow.Field{Name: name, Type: arrow.PrimitiveTypes.Float64, Nullable: true}
		b := array.NewFloat64Builder(memory.DefaultAllocator)
		for _, v := range r.baseline[place[name]] {
			if math.IsNaN(v) {
				b.AppendNull()
			} else {
				b.Append(v)
			}
		}
		arrays[i] = b.NewArray()
	}
	schema := arrow.NewSchema(fields, nil)
	return array.NewRecordReader(schema, []arrow.RecordBatch{array.NewRecordBatch(schema, arrays, int64(len(r.baseline[0])))})
}

func (w *watch) Scores(_ context.Context, _, deployment string, _ int64, _ monitoring.Origin, rows [][]float64) ([]float64, error) {
	r, err := w.replay(deployment)
	if err != nil {
		return nil, err
	}
	out := make([]float64, len(rows))
	for i, row := range rows {
		out[i] = r.model(row)
	}
	return out, nil
}

func (*watch) Allow(context.Context, policy.Action, policy.Object) error { return nil }

func (*watch) Record(context.Context, audit.Entry) error { return nil }

func (w *watch) AEAD(context.Context, string, string) (tink.AEAD, error) { return w.sealer, nil }

var start = time.Date(2013, 1, 7, 0, 0, 0, 0, time.UTC)

// record is a request of one row as the log has it, a second after the one before.
func record(i int, names []string, row []float64, model func([]float64) float64) *prediction.Record {
	r := &prediction.Record{
		ID: strconv.Itoa(i), Project: project, Model: "m", Version: 1, At: start.Add(time.Duration(i) * time.Second), Replay: true,
		Latency: time.Millisecond, Rows: 1, Inputs: make([]prediction.Column, len(names)), Scores: []float64{model(row)},
	}
	r.Received = r.At
	for c, name := range names {
		r.Inputs[c] = prediction.Column{Name: name, Numbers: row[c : c+1 : c+1]}
	}
	return r
}
