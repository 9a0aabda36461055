package flight_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	arrowflight "github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/dataset/datafile"
	"github.com/falaj-ml/falaj/internal/dataset/datasetsql"
	"github.com/falaj-ml/falaj/internal/dataset/expectation"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/flight"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/identity/account"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/store"
)

// A stream that stops after any number of rows goes on with exactly the rest, of
// any shard, of sealed and of open versions.
func TestResume(t *testing.T) {
	w := open(t, func(c *dataset.Config) { c.Limits.DataFile = 1 }) // a file for each batch
	ctx := w.admin(t)
	w.numbers(t, "sealed", dataset.Spec{}, 40, 1, 30)
	w.numbers(t, "open", dataset.Spec{Protection: dataset.Open}, 64)
	w.numbers(t, "empty", dataset.Spec{})
	whole := map[string][]string{}
	for _, name := range []string{"sealed", "open", "empty"} {
		info, err := w.client.GetFlightInfo(ctx, reads{Dataset: name}.descriptor())
		if err != nil {
			t.Fatal(err)
		}
		rows, schema, err := w.get(ctx, info.Endpoint[0].Ticket)
		if err != nil || int64(len(rows)) != info.TotalRecords || !info.Ordered || len(info.Endpoint) != 1 {
			t.Fatalf("%s: %d rows, %v of %v", name, len(rows), err, info)
		}
		described, err := arrowflight.DeserializeSchema(info.Schema, memory.DefaultAllocator)
		if err != nil || !described.Equal(schema) {
			t.Errorf("%s: described as %v, %v, is %v", name, described, err, schema)
		}
		whole[name] = rows
		var about flight.About
		if err := json.Unmarshal(info.AppMetadata, &about); err != nil {
			t.Fatal(err)
		}
		if want := map[string][]int64{"sealed": {0, 40, 41}, "open": {0}}[name]; !slices.Equal(about.RowGroups, want) {
			t.Errorf("%s: row groups begin at %v, want %v", name, about.RowGroups, want)
		}
	}
	if got := whole["sealed"]; len(got) != 71 || got[0] != "0|(null)|(null)" || got[70] != "70|(null)|(null)" || got[69] != "69|word 69|34.5" {
		t.Fatal(got)
	}
	rapid.Check(t, func(rt *rapid.T) {
		ctx := w.admin(t) // with time of its own
		name := rapid.SampledFrom([]string{"sealed", "open", "empty"}).Draw(rt, "dataset")
		count := rapid.Int64Range(1, 5).Draw(rt, "count")
		var got []string
		for i := range count {
			r := reads{Dataset: name, Shard: &shard{i, count}}
			info, err := w.client.GetFlightInfo(ctx, r.descriptor())
			if err != nil {
				rt.Fatal(err)
			}
			var again reads
			if err := json.Unmarshal(info.Endpoint[0].Ticket.Ticket, &again); err != nil {
				rt.Fatal(err)
			}
			again.Take = rapid.Int64Range(1, 40).Draw(rt, "take")
			for again.Skip < info.TotalRecords {
				rows, _, err := w.get(ctx, again.ticket())
				if err != nil || len(rows) == 0 {
					rt.Fatalf("%+v: %d rows, %v", again, len(rows), err)
				}
				got = append(got, rows...)
				again.Skip += int64(len(rows))
			}
		}
		if !slices.Equal(got, whole[name]) {
			rt.Fatalf("%d shards of %s are %v", count, name, got)
		}
	})
}

// Columns come in the order asked for, also as the schema.
func TestColumns(t *testing.T) {
	w := open(t, nil)
	ctx := w.admin(t)
	v := w.numbers(t, "d", dataset.Spec{}, 3)
	r := reads{Dataset: "d", Columns: []string{"f", "n"}}
	got, err := w.client.GetSchema(ctx, r.descriptor())
	if err != nil {
		t.Fatal(err)
	}
	schema, err := arrowflight.DeserializeSchema(got.Schema, memory.DefaultAllocator)
	if err != nil || schema.Field(0).Name != "f" || schema.NumFields() != 2 {
		t.Fatal(schema, err)
	}
	r.Dataset, r.Digest = "d@1", v.ContentDigest
	rows, have, err := w.get(ctx, r.ticket())
	if err != nil || !have.Equal(schema) || !slices.Equal(rows, []string{"(null)|0", "0.5|1", "1|2"}) {
		t.Error(rows, have, err)
	}
}

// Messages stay small, whatever a row group is: clients refuse those over 4 MiB.
func TestMessages(t *testing.T) {
	w := open(t, nil)
	ctx := w.admin(t)
	v := w.numbers(t, "d", dataset.Spec{}, 60_000)
	stream, err := w.client.DoGet(ctx, reads{Dataset: "d@1", Digest: v.ContentDigest}.ticket())
	if err != nil {
		t.Fatal(err)
	}
	for total := 0; ; {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			if total < 1<<20 {
				t.Errorf("%d bytes", total)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		total += len(m.DataBody)
		if len(m.DataBody) > 5<<18 {
			t.Errorf("a message of %d bytes", len(m.DataBody))
		}
	}
}

// Every door is passed on every call: a ticket is none.
func TestDoors(t *testing.T) {
	w := open(t, nil)
	admin := w.admin(t)
	v := w.numbers(t, "d", dataset.Spec{}, 3)
	secret := w.numbers(t, "secret", dataset.Spec{Classification: dataset.Confidential}, 3)
	good := reads{Dataset: "d@1", Digest: v.ContentDigest}
	if rows, _, err := w.get(admin, good.ticket()); err != nil || len(rows) != 3 {
		t.Fatal(rows, err)
	}
	viewer := as(t, w.member(t, nyc, "viewer", project.Viewer))
	stranger := w.member(t, "other", "stranger", project.Admin)
	narrow := as(t, w.member(t, nyc, "narrow", project.Engineer, "dataset.query:secret", "dataset.read"))

	for name, c := range map[string]struct {
		ctx  context.Context //nolint:containedctx // of one row of the table
		code codes.Code
		want string
	}{
		"no token":    {t.Context(), codes.Unauthenticated, ""},
		"a bad token": {as(t, "flj_svc_nonsense"), codes.Unauthenticated, ""},
		"no project":  {metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+w.Secret), codes.PermissionDenied, "not bound to a project"},
		"another project": {
			as(t, stranger), codes.PermissionDenied, "",
		},
		"another project's token": {
			metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+stranger), codes.NotFound, "",
		},
		"another dataset's scope": {narrow, codes.PermissionDenied, ""},
	} {
		if _, _, err := w.get(c.ctx, good.ticket()); err == nil {
			t.Errorf("%s: rows", name)
		} else {
			wantCode(t, err, c.code, c.want)
		}
	}
	if rows, _, err := w.get(viewer, good.ticket()); err != nil || len(rows) != 3 {
		t.Error(rows, err)
	}
	sealed := reads{Dataset: "secret@1", Digest: secret.ContentDigest}
	_, _, err := w.get(viewer, sealed.ticket())
	wantCode(t, err, codes.PermissionDenied)
	if _, err = w.client.GetFlightInfo(viewer, sealed.descriptor()); err != nil {
		t.Error("a viewer sees the schema:", err)
	}

	// Reads of classified data are on record, or do not happen.
	w.Journal.Take()
	if rows, _, err := w.get(narrow, sealed.ticket()); err != nil || len(rows) != 3 {
		t.Fatal(rows, err)
	}
	var seen bool
	for _, e := range w.Journal.Take() {
		seen = seen || e.Action == "dataset.query" && e.Object == "dataset secret@1" && e.Reason == "flight"
	}
	if !seen {
		t.Error("the read was not journaled")
	}
	w.Journal.Fail(errors.New("disk full"))
	rows, _, err := w.get(admin, sealed.ticket())
	wantCode(t, err, codes.Internal)
	if len(rows) > 0 || strings.Contains(err.Error(), "disk full") {
		t.Error(rows, err)
	}
	w.Journal.Fail(nil)
}

// What is asked wrongly is refused in words; trailers have kind and hint.
func TestRefusals(t *testing.T) {
	w := open(t, nil)
	ctx := w.admin(t)
	v := w.numbers(t, "d", dataset.Spec{}, 3)
	bad := w.numbers(t, "bad", dataset.Spec{Expectations: []expectation.Rule{{Check: expectation.NotNull, Column: "word"}}}, 3)
	far := w.numbers(t, "far", dataset.Spec{}, 3)
	if err := w.DB.Update(t.Context(), string(nyc), func(ctx context.Context, tx *store.Tx) error {
		return dataset.Labels{Store: datasetsql.Store{}}.Relabel(ctx, tx, nyc, "far@1", residency.Of("DE"))
	}); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		ticket string
		code   codes.Code
		want   string
	}{
		"no JSON":          {`weather`, codes.InvalidArgument, "not understood"},
		"an unknown field": {`{"dataset": "d@1", "digest": "x", "where": "n > 1"}`, codes.InvalidArgument, "where"},
		"two":              {`{"dataset": "d@1"}{}`, codes.InvalidArgument, "after its end"},
		"no version":       {`{"dataset": "d", "digest": "` + v.ContentDigest + `"}`, codes.InvalidArgument, "GetFlightInfo"},
		"no digest":        {`{"dataset": "d@1"}`, codes.InvalidArgument, "GetFlightInfo"},
		"another digest":   {`{"dataset": "d@1", "digest": "sha256:1"}`, codes.FailedPrecondition, "Request it again"},
		"no such version":  {`{"dataset": "d@7", "digest": "x"}`, codes.NotFound, "newest version is 1"},
		"no such dataset":  {`{"dataset": "e@1", "digest": "x"}`, codes.NotFound, "e"},
		"a wrong name":     {`{"dataset": "../d@1", "digest": "x"}`, codes.InvalidArgument, ""},
		"no such column":   {`{"dataset": "d@1", "digest": "` + v.ContentDigest + `", "columns": ["nn"]}`, codes.InvalidArgument, "nn"},
		"no such shard":    {`{"dataset": "d@1", "digest": "` + v.ContentDigest + `", "shard": {"index": 2, "count": 2}}`, codes.InvalidArgument, "no shard 2 of 2"},
		"a shard of none":  {`{"dataset": "d@1", "digest": "` + v.ContentDigest + `", "shard": {}}`, codes.InvalidArgument, "shard of 0"},
		"before the first": {`{"dataset": "d@1", "digest": "` + v.ContentDigest + `", "skip": -1}`, codes.InvalidArgument, "negative"},
		"rejected":         {`{"dataset": "bad@1", "digest": "` + bad.ContentDigest + `"}`, codes.FailedPrecondition, "is rejected"},
		"elsewhere":        {`{"dataset": "far@1", "digest": "` + far.ContentDigest + `"}`, codes.PermissionDenied, "DE"},
		"too long":         {strings.Repeat(" ", 1<<20), codes.ResourceExhausted, ""},
	} {
		t.Run(name, func(t *testing.T) {
			rows, _, err := w.get(ctx, &arrowflight.Ticket{Ticket: []byte(c.ticket)})
			if len(rows) > 0 {
				t.Error(rows)
			}
			wantCode(t, err, c.code, c.want)
		})
	}
	_, err := w.client.GetFlightInfo(ctx, reads{Dataset: "bad"}.descriptor())
	wantCode(t, err, codes.FailedPrecondition, "is rejected", "Correct the data")
	_, err = w.client.GetFlightInfo(ctx, &arrowflight.FlightDescriptor{Type: arrowflight.DescriptorPATH, Path: []string{"nyc", "d"}})
	wantCode(t, err, codes.InvalidArgument, "2 parts")

	var trailer metadata.MD
	_, err = w.client.GetSchema(ctx, reads{Dataset: "e@1"}.descriptor(), grpc.Trailer(&trailer))
	wantCode(t, err, codes.NotFound)
	var problem struct{ Kind, Detail, Hint string }
	if p := trailer.Get("falaj-problem-bin"); len(p) != 1 || json.Unmarshal([]byte(p[0]), &problem) != nil || problem.Kind != "not_found" || problem.Detail == "" {
		t.Error(trailer)
	}
	acted, err := w.client.DoAction(ctx, &arrowflight.Action{Type: "x"})
	if err == nil {
		_, err = acted.Recv()
	}
	wantCode(t, err, codes.Unimplemented)
}

// What the chain before every handler refuses is readable by clients of gRPC and
// of HTTP alike.
func TestRefusedBeforeTheHandler(t *testing.T) {
	w := open(t, nil)
	for path, want := range map[string]int{flight.Prefix + "DoGet": http.StatusUnauthorized, "/healthz": http.StatusNotImplemented, "/api/v1/whoami": http.StatusUnauthorized} {
		method := http.MethodGet
		if flight.Ours(path) {
			method = http.MethodPost
		}
		r, _ := http.NewRequestWithContext(t.Context(), method, "http://"+w.addr+path, nil)
		got, err := (&http.Client{Timeout: patience}).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = got.Body.Close()
		if got.StatusCode != want {
			t.Errorf("%s: %d", path, got.StatusCode)
		}
		if !flight.Ours(path) {
			continue
		}
		b, err := base64.RawStdEncoding.DecodeString(got.Header.Get("falaj-problem-bin"))
		if got.Header.Get("Grpc-Status") != "16" || err != nil || !strings.Contains(string(b), `"kind":"unauthenticated"`) {
			t.Errorf("%v, %v", got.Header, err)
		}
	}
}

// ListFlights shows what the token may see: the newest accepted version of each.
func TestList(t *testing.T) {
	w := open(t, nil)
	w.numbers(t, "a", dataset.Spec{}, 1)
	w.numbers(t, "a", dataset.Spec{}, 2)
	w.numbers(t, "b", dataset.Spec{}, 3)
	w.numbers(t, "bad", dataset.Spec{Expectations: []expectation.Rule{{Check: expectation.NotNull, Column: "word"}}}, 3)
	listed := func(ctx context.Context) (names []string, err error) {
		stream, err := w.client.ListFlights(ctx, &arrowflight.Criteria{})
		if err != nil {
			return nil, err
		}
		for {
			info, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				return names, nil
			}
			if err != nil {
				return nil, err
			}
			var about flight.About
			if err := json.Unmarshal(info.AppMetadata, &about); err != nil || about.Rows != info.TotalRecords {
				t.Errorf("%s, %v", info.AppMetadata, err)
			}
			names = append(names, about.Dataset)
		}
	}
	if got, err := listed(w.admin(t)); err != nil || !slices.Equal(got, []string{"a@2", "b@1"}) {
		t.Error(got, err)
	}
	if got, err := listed(as(t, w.member(t, nyc, "b-alone", project.Engineer, "dataset.read:b"))); err != nil || !slices.Equal(got, []string{"b@1"}) {
		t.Error(got, err)
	}
	_, err := listed(as(t, w.member(t, "other", "stranger", project.Admin)))
	wantCode(t, err, codes.PermissionDenied)
}

// An attempt reads its inputs and nothing else.
func TestAttempt(t *testing.T) {
	w := open(t, nil)
	v, other := w.numbers(t, "d", dataset.Spec{Classification: dataset.Confidential}, 3), w.numbers(t, "e", dataset.Spec{}, 3)
	loop := identity.With(t.Context(), identity.Loop("training"))
	_, token, err := w.IssueAttempt(loop, account.AttemptSpec{
		Attempt: "att_1", Name: "job_1", Project: nyc, Scopes: []string{"dataset.read:d@1", "dataset.query:d@1"}, TTL: time.Hour,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+token)
	if rows, _, err := w.get(ctx, reads{Dataset: "d@1", Digest: v.ContentDigest}.ticket()); err != nil || len(rows) != 3 {
		t.Error(rows, err)
	}
	_, _, err = w.get(ctx, reads{Dataset: "e@1", Digest: other.ContentDigest}.ticket())
	wantCode(t, err, codes.PermissionDenied)
	if err := w.RevokeAttempt(loop, "att_1"); err != nil {
		t.Fatal(err)
	}
	_, _, err = w.get(ctx, reads{Dataset: "d@1", Digest: v.ContentDigest}.ticket())
	wantCode(t, err, codes.Unauthenticated)
}

// slow makes a client take no more than it asked for.
func slow() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithInitialWindowSize(64 << 10), grpc.WithInitialConnWindowSize(64 << 10)}
}

// A token or a role that is taken away ends streams that go on.
func TestStreamEndsWithTheRight(t *testing.T) {
	w := open(t, nil)
	v := w.numbers(t, "d", dataset.Spec{}, 60_000)
	var revoked atomic.Bool
	edge := flight.New(flight.Options{
		Datasets: w.datasets.Services, Log: slog.New(slog.DiscardHandler), Config: flight.Config{Recheck: 1, Message: 64 << 10},
	})
	who := w.Admin
	who.Project = nyc
	addr := listen(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		ctx := flight.WithAgain(identity.With(r.Context(), who), func() (identity.Principal, error) {
			if revoked.Load() {
				return identity.Principal{}, fault.New(fault.Unauthenticated, "the token was revoked")
			}
			return who, nil
		})
		edge.ServeHTTP(rw, r.WithContext(ctx))
	}))
	client := dial(t, addr, slow()...)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	stream, err := client.DoGet(ctx, reads{Dataset: "d@1", Digest: v.ContentDigest}.ticket())
	if err != nil {
		t.Fatal(err)
	}
	r, err := arrowflight.NewRecordReader(stream)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Release()
	rows := int64(0)
	for r.Next() {
		rows += r.RecordBatch().NumRows()
		revoked.Store(true)
	}
	if wantCode(t, r.Err(), codes.Unauthenticated, "revoked"); rows == 0 || rows == v.Rows {
		t.Errorf("%d rows", rows)
	}
}

// A reader that takes nothing is cut off, and holds no file.
func TestSlowReader(t *testing.T) {
	files := &held{closed: make(chan struct{})}
	w := open(t, func(c *dataset.Config) {
		files.Store = c.Files
		c.Files = files
	}, slow()...)
	v := w.numbers(t, "d", dataset.Spec{}, 60_000)
	stream, err := w.client.DoGet(w.admin(t), reads{Dataset: "d@1", Digest: v.ContentDigest}.ticket())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-files.closed:
	case <-time.After(patience):
		t.Fatal("the stream holds its file for ever")
	}
}

// held says when a file that was opened is closed.
type held struct {
	datafile.Store
	once   sync.Once
	closed chan struct{}
}

func (h *held) Open(ctx context.Context, f datafile.File) (datafile.Reader, error) {
	r, err := h.Store.Open(ctx, f)
	return heldFile{r, h}, err
}

type heldFile struct {
	datafile.Reader
	files *held
}

func (f heldFile) Close() error {
	f.files.once.Do(func() { close(f.files.closed) })
	return f.Reader.Close()
}

// The unmodified Arrow Flight client of Python reads it.
func TestPyarrow(t *testing.T) {
	python, err := filepath.Abs("../../.tmp/venv/sdk/bin/python")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(python); err != nil {
		const how = "pyarrow is not installed: make engines"
		if os.Getenv("CI") == "true" { //nolint:forbidigo // a test asks where it runs
			t.Fatal(how)
		}
		t.Skip(how)
	}
	w := open(t, nil)
	w.numbers(t, "d", dataset.Spec{}, 50_000)
	w.numbers(t, "bad", dataset.Spec{Expectations: []expectation.Rule{{Check: expectation.NotNull, Column: "word"}}}, 3)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, python, "testdata/client.py", w.addr, w.Secret, string(nyc)).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// BenchmarkDoGet streams a sealed version of a million rows to a client in the
// same process.
func BenchmarkDoGet(b *testing.B) {
	w := open(b, nil, grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	v := w.numbers(b, "d", dataset.Spec{}, slices.Repeat([]int{50_000}, 20)...)
	token := w.admin(b)
	var size int64
	for b.Loop() {
		stream, err := w.client.DoGet(token, reads{Dataset: "d@1", Digest: v.ContentDigest}.ticket())
		if err != nil {
			b.Fatal(err)
		}
		size = 0
		for {
			m, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				b.Fatal(err)
			}
			size += int64(len(m.DataBody))
		}
	}
	b.SetBytes(size)
	b.ReportMetric(float64(v.Rows)*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
}
