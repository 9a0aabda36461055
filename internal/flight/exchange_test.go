package flight_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	arrowflight "github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"google.golang.org/grpc/codes"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/dataset/expectation"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/flight"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
)

// fields are a command of Feast's.
type fields map[string]any

func (f fields) descriptor() *arrowflight.FlightDescriptor {
	b, _ := json.Marshal(f)
	return &arrowflight.FlightDescriptor{Type: arrowflight.DescriptorCMD, Cmd: b}
}

func pull(name string) fields {
	return fields{
		"command_id": "1", "api": "pull_all_from_table_or_query", "data_source_name": name, "join_key_columns": []string{"n"},
		"feature_name_columns": []string{"word"}, "timestamp_field": "f", "created_timestamp_column": nil, "start_date": nil, "end_date": nil,
	}
}

// exchange sends rows of one column with a command and counts those that come back.
func exchange(ctx context.Context, c arrowflight.Client, f fields, rows int) (n int64, err error) {
	stream, err := c.DoExchange(ctx)
	if err != nil {
		return 0, err
	}
	schema := arrow.NewSchema([]arrow.Field{{Name: "key", Type: arrow.BinaryTypes.String}}, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	for range rows {
		b.Field(0).(*array.StringBuilder).Append("m")
	}
	w := arrowflight.NewRecordWriter(stream, ipc.WithSchema(schema))
	w.SetFlightDescriptor(f.descriptor())
	if err := w.Write(b.NewRecordBatch()); err == nil || errors.Is(err, io.EOF) { // EOF: it was refused already
		_ = stream.CloseSend()
	}
	r, err := arrowflight.NewRecordReader(stream)
	if err != nil {
		return 0, err
	}
	defer r.Release()
	for r.Next() {
		n += r.RecordBatch().NumRows()
	}
	return n, r.Err()
}

// Exchanges pass the doors that streams of rows pass.
func TestExchange(t *testing.T) {
	w := open(t, nil)
	admin := w.admin(t)
	w.numbers(t, "d", dataset.Spec{}, 3)
	w.numbers(t, "secret", dataset.Spec{Classification: dataset.Confidential}, 3)

	listed := fields{"api": "get_table_column_names_and_types_from_data_source", "data_source_proto": `{"name": "d", "timestampField": "f"}`}
	if n, err := exchange(admin, w.client, listed, 8); err != nil || n != 3 {
		t.Fatal(n, err)
	}
	_, err := exchange(as(t, w.member(t, nyc, "looks", project.Viewer)), w.client, pull("secret"), 8)
	wantCode(t, err, codes.PermissionDenied, "FeastPermissionError")
	_, err = exchange(as(t, w.member(t, "other", "stranger", project.Admin)), w.client, pull("d"), 8)
	wantCode(t, err, codes.PermissionDenied)

	for want, f := range map[string]fields{
		"there is no command": {"api": "x"}, "not understood": {"api": "persist", "x": 1}, "no column": pull("d"), "Name the data source": pull("../d"),
		"is no time": pull("d"), "there is no dataset": pull("e"),
	} {
		switch want {
		case "no column":
			f["timestamp_field"] = `f" FROM x --`
		case "is no time":
			f["end_date"] = "1); DROP"
		}
		if _, err := exchange(admin, w.client, f, 1); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v instead of %q", err, want)
		}
	}
	wantCode(t, put(admin, w.client, fields{"api": "offline_write_batch"}, "key"), codes.Unimplemented, "Import them")
	// Rows go through the parser process.
	kept := fields{"api": "persist", "retrieve_func": "get_historical_features", "data_source_name": "kept", "feature_refs": []string{"v:f"}}
	wantCode(t, put(admin, w.client, kept, "key"), codes.Unimplemented, "no entity rows")
	wantCode(t, put(admin, w.client, kept, "key", "other", "__index_level_0__"), codes.InvalidArgument, "event_timestamp", "The columns are key, other")
	wantCode(t, put(admin, w.client, kept, "key", "key"), codes.InvalidArgument, "key")
	w.numbers(t, "mine-entities", dataset.Spec{}, 3)
	for overwrite, words := range map[bool]string{false: "dataset mine-entities exists", true: "is not of this"} {
		kept["data_source_name"], kept["allow_overwrite"] = "mine", overwrite
		wantCode(t, put(admin, w.client, kept, "key", "event_timestamp"), codes.FailedPrecondition, words)
	}
	delete(kept, "allow_overwrite")
	kept["data_source_name"] = "d"
	wantCode(t, put(admin, w.client, kept, "key"), codes.FailedPrecondition, "dataset d exists")
}

// Rows come in by DoPut and are a version of the dataset that the path names, under
// the checks of every import.
func TestPut(t *testing.T) {
	w := open(t, nil)
	admin := w.admin(t)
	for name, spec := range map[string]dataset.Spec{
		"in":     {Columns: []dataset.Column{{Name: "n", Type: "int64"}}, Expectations: []expectation.Rule{{Check: expectation.NotNull, Column: "word"}}},
		"secret": {Classification: dataset.Confidential, Columns: []dataset.Column{{Name: "n", Type: "float64"}}},
	} {
		if _, _, err := w.datasets.Definitions.Apply(w.AsAdmin(t.Context()), dataset.ApplyRequest{Project: nyc, Name: name, Spec: spec}); err != nil {
			t.Fatal(err)
		}
	}
	send := func(ctx context.Context, words []string, path ...string) (answer map[string]any, err error) {
		t.Helper()
		stream, err := w.client.DoPut(ctx)
		if err != nil {
			return nil, err
		}
		schema := arrow.NewSchema([]arrow.Field{{Name: "n", Type: arrow.PrimitiveTypes.Int64}, {Name: "word", Type: arrow.BinaryTypes.String, Nullable: true}}, nil)
		b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
		to := arrowflight.NewRecordWriter(stream, ipc.WithSchema(schema))
		to.SetFlightDescriptor(&arrowflight.FlightDescriptor{Type: arrowflight.DescriptorPATH, Path: path})
		for i, word := range words { // a batch each
			b.Field(0).(*array.Int64Builder).Append(int64(i))
			if word == "" {
				b.Field(1).AppendNull()
			} else {
				b.Field(1).(*array.StringBuilder).Append(word)
			}
			if err := to.Write(b.NewRecordBatch()); err != nil {
				break // it was refused already
			}
		}
		_ = stream.CloseSend()
		got, err := stream.Recv()
		if err != nil {
			return nil, err
		}
		if err := json.Unmarshal(got.GetAppMetadata(), &answer); err != nil {
			t.Fatal(err)
		}
		_, err = stream.Recv()
		if !errors.Is(err, io.EOF) {
			t.Errorf("after the answer: %v", err)
		}
		return answer, nil
	}
	got, err := send(admin, []string{"a", "b", "c"}, "in")
	if err != nil || got["dataset"] != "in@1" || got["rows"] != 3.0 || got["state"] != "accepted" {
		t.Fatal(got, err)
	}
	rows, _, err := w.get(admin, reads{Dataset: "in@1", Digest: got["digest"].(string)}.ticket())
	if err != nil || strings.Join(rows, " ") != "0|a 1|b 2|c" {
		t.Errorf("%v %v", rows, err)
	}
	if again, err := send(admin, []string{"a", "b", "c"}, "in"); err != nil || again["unchanged"] != true || again["dataset"] != "in@1" {
		t.Error(again, err)
	}
	if rejected, err := send(admin, []string{"a", ""}, "in"); err != nil || rejected["state"] != "rejected" || rejected["reason"] == "" {
		t.Error(rejected, err)
	}
	_, err = send(as(t, w.member(t, nyc, "looks", project.Viewer)), []string{"a"}, "in")
	wantCode(t, err, codes.PermissionDenied)
	_, err = send(as(t, w.member(t, "other", "stranger", project.Admin)), []string{"a"}, "in")
	wantCode(t, err, codes.PermissionDenied)
	_, err = send(admin, []string{"a"}, "secret")
	wantCode(t, err, codes.InvalidArgument, `column "n"`)
	_, err = send(admin, []string{"a"}, "none")
	wantCode(t, err, codes.NotFound)
	_, err = send(admin, []string{"a"}, "in", "out")
	wantCode(t, err, codes.InvalidArgument, "the path has 2 parts")
	_, err = send(admin, []string{"a"})
	wantCode(t, err, codes.InvalidArgument)
}

// put sends a row of columns of text.
func put(ctx context.Context, c arrowflight.Client, f fields, names ...string) error {
	stream, err := c.DoPut(ctx)
	if err != nil {
		return err
	}
	var columns []arrow.Field
	for _, n := range names {
		columns = append(columns, arrow.Field{Name: n, Type: arrow.BinaryTypes.String})
	}
	schema := arrow.NewSchema(columns, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	for i := range names {
		b.Field(i).(*array.StringBuilder).Append("x")
	}
	w := arrowflight.NewRecordWriter(stream, ipc.WithSchema(schema))
	w.SetFlightDescriptor(f.descriptor())
	if err := w.Write(b.NewRecordBatch()); err == nil || errors.Is(err, io.EOF) { // EOF: it was refused already
		_ = stream.CloseSend()
	}
	_, err = stream.Recv()
	return err
}

// numbered are commands that answer with many rows.
type numbered struct{ still func() error }

func (numbered) Put(context.Context, []byte, io.Reader) error { panic("a defect") }
func (numbered) Words(_ error, words string) string           { return words }

func (c numbered) Exchange(_ context.Context, _ []byte, rows io.Reader) (flight.Rows, error) {
	if _, err := io.Copy(io.Discard, rows); err != nil {
		return nil, err
	}
	b := array.NewRecordBuilder(memory.DefaultAllocator, columns)
	for i := range 60_000 {
		b.Field(0).(*array.Int64Builder).Append(int64(i))
		b.Field(1).(*array.StringBuilder).Append(wordOf(i))
		b.Field(2).AppendNull()
	}
	rec := b.NewRecordBatch()
	r, err := array.NewRecordReader(columns, []arrow.RecordBatch{rec, rec, rec})
	return numberedRows{r, c.still}, err
}

type numberedRows struct {
	array.RecordReader
	still func() error
}

func (r numberedRows) Reauthorize(context.Context) error { return r.still() }

// A right that is taken away ends an exchange, and a defect tells nothing.
func TestExchangeEndsWithTheRight(t *testing.T) {
	w := open(t, nil)
	var asked atomic.Int32
	edge := flight.New(flight.Options{
		Datasets: w.datasets.Services, Log: slog.New(slog.DiscardHandler), Config: flight.Config{Recheck: 1},
		Commands: numbered{func() error {
			if asked.Add(1) > 1 {
				return fault.New(fault.PermissionDenied, "the role was taken away")
			}
			return nil
		}},
	})
	who := w.Admin
	who.Project = nyc
	client := dial(t, listen(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		edge.ServeHTTP(rw, r.WithContext(identity.With(r.Context(), who)))
	})))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	n, err := exchange(ctx, client, fields{}, 100_000)
	if wantCode(t, err, codes.PermissionDenied, "taken away"); n != 60_000 {
		t.Errorf("%d rows", n)
	}
	err = put(ctx, client, fields{}, "key")
	if wantCode(t, err, codes.Internal); strings.Contains(err.Error(), "a defect") {
		t.Error(err)
	}
}
