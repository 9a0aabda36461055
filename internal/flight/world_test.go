package flight_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	arrowflight "github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/dataset/datasetsql"
	"github.com/falaj-ml/falaj/internal/dataset/datasettest"
	"github.com/falaj-ml/falaj/internal/governance/policy/policytest"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/httpapi"
	"github.com/falaj-ml/falaj/internal/store/storetest"
)

func TestMain(m *testing.M) { datasettest.Main(m, nil) }

// patience is the longest that a test waits for something.
const patience = time.Minute

const nyc = datasettest.Project

// world is the whole edge over real governance and datasets, listening.
type world struct {
	*policytest.World
	datasets *datasettest.Harness
	addr     string
	client   arrowflight.Client
}

// open starts a world. change may alter the configuration of its datasets.
func open(tb testing.TB, change func(*dataset.Config), options ...grpc.DialOption) *world {
	tb.Helper()
	db := storetest.SQLite(tb, append(policytest.Migrations(), datasetsql.Migrations)...)
	w := &world{World: policytest.OpenOn(tb, db)}
	var err error
	w.datasets, err = datasettest.On(db, tb.TempDir(), func(c *dataset.Config) {
		c.Authorizer, c.Guard, c.Journal = w.Authority, w.Guard, w.Journal
		if change != nil {
			change(c)
		}
	})
	if err != nil {
		tb.Fatal(err)
	}
	edge := httpapi.New(httpapi.Options{
		Auth: w.Accounts, Authz: w.Authority, DB: db, Log: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry(),
		Config: httpapi.Config{WriteTime: 5 * time.Second},
		Ready:  func() error { return nil }, Console: http.NotFoundHandler(),
	}, httpapi.Domains{Projects: w.Tenancy, Accounts: w.Accounts, Zones: w.Border, Datasets: w.datasets.Services})
	w.addr = listen(tb, edge.Flight())
	w.client = dial(tb, w.addr, options...)
	w.Project(tb, nyc)
	w.Project(tb, "other")
	return w
}

// listen serves HTTP/2 without TLS.
func listen(tb testing.TB, h http.Handler) (addr string) {
	tb.Helper()
	server := httptest.NewUnstartedServer(h)
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	tb.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

func dial(tb testing.TB, addr string, options ...grpc.DialOption) arrowflight.Client {
	tb.Helper()
	c, err := arrowflight.NewClientWithMiddleware(addr, nil, nil, append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = c.Close() })
	return c
}

// as is the context of the bearer of a token, in the project of the tests.
func as(tb testing.TB, token string) context.Context {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	tb.Cleanup(cancel)
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token, "falaj-project", string(nyc))
}

func (w *world) admin(tb testing.TB) context.Context {
	tb.Helper()
	return as(tb, w.Secret)
}

// member is a token of a service of a project with a role.
func (w *world) member(tb testing.TB, in project.Name, name string, role project.Role, scopes ...string) string {
	tb.Helper()
	body, _ := json.Marshal(map[string]any{"project": in, "name": name, "role": role, "scopes": scopes})
	r := httptest.NewRequestWithContext(tb.Context(), http.MethodPost, "/api/v1/tokens", strings.NewReader(string(body)))
	r.Host = "localhost"
	r.Header.Set("Authorization", "Bearer "+w.Secret)
	got := httptest.NewRecorder()
	edge := httpapi.New(httpapi.Options{
		Auth: w.Accounts, Authz: w.Authority, DB: w.DB, Log: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry(),
		Ready: func() error { return nil }, Console: http.NotFoundHandler(),
	}, httpapi.Domains{Projects: w.Tenancy, Accounts: w.Accounts, Zones: w.Border})
	edge.ServeHTTP(got, r)
	var a struct {
		Secret string `json:"secret"`
	}
	if err := json.Unmarshal(got.Body.Bytes(), &a); err != nil || a.Secret == "" {
		tb.Fatal(got.Body, err)
	}
	return a.Secret
}

var columns = arrow.NewSchema([]arrow.Field{
	{Name: "n", Type: arrow.PrimitiveTypes.Int64},
	{Name: "word", Type: arrow.BinaryTypes.String, Nullable: true},
	{Name: "f", Type: arrow.PrimitiveTypes.Float64, Nullable: true},
}, nil)

// numbers makes a version whose first column counts from 0.
func (w *world) numbers(tb testing.TB, name string, spec dataset.Spec, batches ...int) dataset.Version {
	tb.Helper()
	ctx := w.AsAdmin(tb.Context())
	if _, _, err := w.datasets.Definitions.Apply(ctx, dataset.ApplyRequest{Project: nyc, Name: name, Spec: spec}); err != nil {
		tb.Fatal(err)
	}
	var recs []arrow.RecordBatch
	next := 0
	for _, rows := range batches {
		b := array.NewRecordBuilder(memory.DefaultAllocator, columns)
		for range rows {
			b.Field(0).(*array.Int64Builder).Append(int64(next))
			if next%5 == 0 {
				b.Field(1).AppendNull()
				b.Field(2).AppendNull()
			} else {
				b.Field(1).(*array.StringBuilder).Append(wordOf(next))
				b.Field(2).(*array.Float64Builder).Append(float64(next) / 2)
			}
			next++
		}
		recs = append(recs, b.NewRecordBatch())
	}
	rows, err := array.NewRecordReader(columns, recs)
	if err != nil {
		tb.Fatal(err)
	}
	v, err := w.datasets.Writes.Create(ctx, dataset.CreateRequest{Project: nyc, Name: name, Rows: rows})
	if err != nil {
		tb.Fatal(err)
	}
	return v
}

func wordOf(n int) string { return fmt.Sprint("word ", n) }

// reads is a command, or a ticket when it has a digest.
type reads struct {
	Dataset string   `json:"dataset"`
	Digest  string   `json:"digest,omitempty"`
	Columns []string `json:"columns,omitempty"`
	Shard   *shard   `json:"shard,omitempty"`
	Skip    int64    `json:"skip,omitempty"`
	Take    int64    `json:"take,omitempty"`
}

type shard struct {
	Index int64 `json:"index"`
	Count int64 `json:"count"`
}

func (r reads) descriptor() *arrowflight.FlightDescriptor {
	b, _ := json.Marshal(r)
	return &arrowflight.FlightDescriptor{Type: arrowflight.DescriptorCMD, Cmd: b}
}

func (r reads) ticket() *arrowflight.Ticket {
	b, _ := json.Marshal(r)
	return &arrowflight.Ticket{Ticket: b}
}

// get reads a ticket's rows as text, columns apart by '|'.
func (w *world) get(ctx context.Context, t *arrowflight.Ticket) (rows []string, schema *arrow.Schema, err error) {
	stream, err := w.client.DoGet(ctx, t)
	if err != nil {
		return nil, nil, err
	}
	r, err := arrowflight.NewRecordReader(stream)
	if err != nil {
		return nil, nil, err
	}
	defer r.Release()
	for r.Next() {
		rec := r.RecordBatch()
		for i := range int(rec.NumRows()) {
			cells := make([]string, rec.NumCols())
			for c := range cells {
				cells[c] = rec.Column(c).ValueStr(i)
			}
			rows = append(rows, strings.Join(cells, "|"))
		}
	}
	return rows, r.Schema(), r.Err()
}

// wantCode checks how a call was refused, and in which words.
func wantCode(tb testing.TB, err error, code codes.Code, words ...string) {
	tb.Helper()
	if status.Code(err) != code {
		tb.Fatalf("got %v, want %v", err, code)
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			tb.Fatalf("%q does not say %q", err, word)
		}
	}
}
