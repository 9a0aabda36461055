package httpapi

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/feature/featuresql"
	"github.com/falaj-ml/falaj/internal/feature/offline"
	"github.com/falaj-ml/falaj/internal/feature/online"
	"github.com/falaj-ml/falaj/internal/feature/online/pebble"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/keys"
	"github.com/falaj-ml/falaj/internal/governance/keys/keyssql"
	"github.com/falaj-ml/falaj/internal/governance/policy/policytest"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/store"
)

// onlineEntities are in the online store of the benchmark.
const onlineEntities = 10_000

// wide is a dataset of entities and features that are numbers of three digits, and all
// datasets at once: "wide50" has 50 features.
type wide struct{ feature.Data }

func (wide) version(ref string) (feature.DatasetVersion, int, error) {
	var features int
	if _, err := fmt.Sscanf(ref, "wide%d", &features); err != nil {
		return feature.DatasetVersion{}, 0, err
	}
	fields := []arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int64}, {Name: "at", Type: arrow.FixedWidthTypes.Timestamp_us}}
	for i := range features {
		fields = append(fields, arrow.Field{Name: fmt.Sprintf("f%03d", i), Type: arrow.PrimitiveTypes.Float64})
	}
	ref, _, _ = strings.Cut(ref, "@")
	return feature.DatasetVersion{
		Ref: ref + "@1", Digest: "sha256:" + ref, Residency: residency.Label{residency.Home}, Classification: project.Internal,
		Schema: arrow.NewSchema(fields, nil), Rows: onlineEntities,
	}, features, nil
}

func (w wide) Resolve(_ context.Context, _ project.Name, ref string) (feature.DatasetVersion, error) {
	v, _, err := w.version(ref)
	return v, err
}

func (w wide) Standing(_ context.Context, _ project.Name, ref string) (string, error) {
	return ref, nil
}

func (w wide) Reauthorize(context.Context, project.Name, string) error { return nil }

func (w wide) Open(_ context.Context, _ project.Name, ref string, columns []string) (array.RecordReader, error) {
	v, _, err := w.version(ref)
	if err != nil {
		return nil, err
	}
	if len(columns) == 0 {
		for _, f := range v.Schema.Fields() {
			columns = append(columns, f.Name)
		}
	}
	var fields []arrow.Field
	for _, name := range columns {
		f, _ := v.Schema.FieldsByName(name)
		fields = append(fields, f...)
	}
	schema := arrow.NewSchema(fields, nil)
	var batches []arrow.RecordBatch
	for from := 0; from < onlineEntities; from += 1000 {
		b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
		for i := from; i < from+1000; i++ {
			for c, name := range columns {
				switch to := b.Field(c).(type) {
				case *array.Int64Builder:
					to.Append(int64(i))
				case *array.TimestampBuilder:
					to.Append(arrow.Timestamp(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()))
				case *array.Float64Builder:
					to.Append(float64((i*31+len(name)*c*7)%1000) / 1000)
				}
			}
		}
		batches = append(batches, b.NewRecordBatch())
		b.Release()
	}
	defer func() {
		for _, b := range batches {
			b.Release()
		}
	}()
	return array.NewRecordReader(schema, batches)
}

// onlineWorld is the edge over governance, keys and features as the server has them, on
// disk, with views wideN of N features and services of one view and of five, both of 50
// features.
type onlineWorld struct {
	*policytest.World
	server *Server
}

func newOnlineWorld(b *testing.B) *onlineWorld {
	b.Helper()
	db, err := store.Open(b.Context(), store.Config{
		URL: "sqlite://" + filepath.Join(b.TempDir(), "falaj.db"), Migrations: append(policytest.Migrations(), featuresql.Migrations, keyssql.Migrations),
	})
	must(b, err)
	b.Cleanup(func() { _ = db.Close() })
	w := &onlineWorld{World: policytest.OpenOn(b, db)}
	ring, err := keys.Open(b.Context(), keys.Config{DB: db, Store: keyssql.Store{}, Authorizer: w.Authority, MasterFile: b.TempDir() + "/master.key"})
	must(b, err)
	driver, err := pebble.Open(pebble.Config{Dir: filepath.Join(b.TempDir(), "online"), Logger: slog.New(slog.DiscardHandler)})
	must(b, err)
	b.Cleanup(func() { _ = driver.Close() })
	features := feature.New(feature.Config{
		DB: db, Store: featuresql.Store{}, Data: wide{}, Online: online.New(driver, ring, online.Options{}), Keys: ring,
		Authorizer: w.Authority, Permits: w.Authority, Guard: w.Guard, Journal: w.Journal, Join: offline.Options{Dir: b.TempDir()}, Log: slog.New(slog.DiscardHandler),
	})
	w.server = New(Options{
		Auth: w.Accounts, Authz: w.Authority, DB: db, Log: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry(),
		Ready: func() error { return nil }, Console: http.NotFoundHandler(),
	}, Domains{Projects: w.Tenancy, Accounts: w.Accounts, Zones: w.Border, Keys: ring, Features: features})
	w.Project(b, "bench")

	ctx := w.AsAdmin(b.Context())
	apply := func(name string) feature.ApplyRequest { return feature.ApplyRequest{Project: "bench", Name: name} }
	_, _, err = features.Definitions.ApplyEntity(ctx, apply("id"), feature.EntitySpec{Type: "int64"})
	must(b, err)
	view := func(name string, n int) {
		spec := feature.ViewSpec{Source: feature.Source{Dataset: fmt.Sprintf("wide%d", n)}, Entities: []string{"id"}, Timestamp: "at"}
		for i := range n {
			spec.Features = append(spec.Features, feature.FieldSpec{Name: fmt.Sprintf("f%03d", i), Type: "float64"})
		}
		_, _, err := features.Definitions.ApplyView(ctx, apply(name), spec)
		must(b, err)
		run, err := features.Materialisation.Materialise(ctx, feature.MaterialiseRequest{Project: "bench", View: name})
		must(b, err)
		must(b, features.Materialisation.RunOnce(identity.With(b.Context(), identity.Loop("feature"))))
		if run, err = features.Materialisation.Run(ctx, "bench", run.ID); err != nil || run.State != feature.Succeeded {
			b.Fatal(run.State, run.Error, err)
		}
	}
	view("wide50", 50)
	view("wide250", 250)
	five := feature.ServiceSpec{}
	for i := range 5 {
		name := fmt.Sprintf("part%d", i)
		view(name, 10)
		five.Features = append(five.Features, name)
	}
	for name, spec := range map[string]feature.ServiceSpec{"five": five, "one": {Features: []string{"wide50"}}} {
		_, _, err := features.Definitions.ApplyServiceDefinition(ctx, apply(name), spec)
		must(b, err)
	}
	return w
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// asked are requests for random entities, as bench/features asks them.
func asked(of string, entities int) []string {
	body := map[string]any{"feature_service": of, "full_feature_names": true}
	var features int
	if _, err := fmt.Sscanf(of, "wide%d", &features); err == nil {
		names := make([]string, features)
		for i := range names {
			names[i] = fmt.Sprintf("%s:f%03d", of, i)
		}
		body = map[string]any{"features": names}
	}
	bodies := make([]string, 64)
	for i := range bodies {
		ids := make([]int, entities)
		for k := range ids {
			ids[k] = (i*7919 + k*104_729) % onlineEntities
		}
		body["entities"] = map[string]any{"id": ids}
		text, _ := json.Marshal(body)
		bodies[i] = string(text)
	}
	return bodies
}

// cpu is what the process has used.
func cpu(tb testing.TB) time.Duration {
	tb.Helper()
	var u syscall.Rusage
	must(tb, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkOnline reads features as an administrator does by Feast's protocol, with all
// that stands before: "handler" without a network, "loopback" over a connection that
// is kept open, the client's part included. Its CPU is that of the process.
func BenchmarkOnline(b *testing.B) {
	w := newOnlineWorld(b)
	for _, of := range []struct {
		entities int
		of       string
	}{{1, "wide50"}, {10, "wide50"}, {100, "wide50"}, {1, "wide250"}, {1, "one"}, {1, "five"}, {100, "one"}, {100, "five"}} {
		bodies := asked(of.of, of.entities)
		measured := func(name string, ask func(b *testing.B, body string)) {
			b.Run(fmt.Sprintf("%s/%d of %s", name, of.entities, of.of), func(b *testing.B) {
				ask(b, bodies[0])
				b.ReportAllocs()
				n, before := 0, cpu(b)
				for b.Loop() {
					ask(b, bodies[n%len(bodies)])
					n++
				}
				b.ReportMetric(float64((cpu(b)-before).Microseconds())/float64(n), "cpu-µs/op")
			})
		}
		measured("handler", func(b *testing.B, body string) {
			b.Helper()
			r := httptest.NewRequestWithContext(b.Context(), http.MethodPost, "/get-online-features", strings.NewReader(body))
			r.Host = "127.0.0.1"
			r.Header.Set("Authorization", "Bearer "+w.Secret)
			r.Header.Set("Falaj-Project", "bench")
			r.Header.Set("Content-Type", "application/json")
			a := &unread{header: http.Header{}}
			w.server.ServeHTTP(a, r)
			if a.status > http.StatusOK || a.bytes < 1000 {
				b.Fatal(a.status, a.bytes)
			}
		})
		server := httptest.NewServer(w.server)
		conn, err := new(net.Dialer).DialContext(b.Context(), "tcp", server.Listener.Addr().String())
		must(b, err)
		in := bufio.NewReaderSize(conn, 1<<20)
		measured("loopback", func(b *testing.B, body string) {
			b.Helper()
			_, err := fmt.Fprintf(conn, "POST /get-online-features HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %s\r\nFalaj-Project: bench\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", w.Secret, len(body), body)
			must(b, err)
			resp, err := http.ReadResponse(in, nil)
			must(b, err)
			n, err := io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
			if err != nil || resp.StatusCode != http.StatusOK || n < 1000 {
				b.Fatal(resp.Status, n, err)
			}
		})
		_ = conn.Close()
		server.Close()
	}
}

// unread is an answer that nobody reads.
type unread struct {
	header        http.Header
	status, bytes int
}

func (a *unread) Header() http.Header              { return a.header }
func (a *unread) WriteHeader(status int)           { a.status = status }
func (a *unread) SetReadDeadline(time.Time) error  { return nil }
func (a *unread) SetWriteDeadline(time.Time) error { return nil }
func (a *unread) Write(b []byte) (int, error)      { a.bytes += len(b); return len(b), nil }
