package dataset_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/blob/blobtest"
	"github.com/falaj-ml/falaj/internal/blob/fileblob"
	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/dataset/datafile"
	"github.com/falaj-ml/falaj/internal/dataset/datasettest"
	"github.com/falaj-ml/falaj/internal/dataset/expectation"
	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/deletion"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/residency"
)

// engine is another engine that writes the table "t" of one column, badly if a
// test wants that.
type engine struct {
	t   *testing.T
	h   *datasettest.Harness
	dir string // of the files
	uri string // of the table
	n   int64
}

func newEngine(t *testing.T, h *datasettest.Harness, dir string, spec dataset.Spec) *engine {
	t.Helper()
	spec.Protection = dataset.Open
	h.Put(t, "t", spec, "a\n1\n2\n")
	return &engine{t: t, h: h, dir: dir, uri: "file://" + dir + "/projects/nyc/datasets/t", n: 1000}
}

func (e *engine) path(uri string) string { return strings.TrimPrefix(uri, "file://") }

func (e *engine) put(uri string, b []byte) string {
	e.t.Helper()
	name := e.path(uri)
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		e.t.Fatal(err)
	}
	if err := os.WriteFile(name, b, 0o600); err != nil {
		e.t.Fatal(err)
	}
	return uri
}

var oneColumn = table.Schema{{ID: 1, Name: "a", Type: table.Int64}}

// rows writes a data file.
func (e *engine) rows(uri string, values ...int64) string {
	e.t.Helper()
	b := array.NewRecordBuilder(memory.DefaultAllocator, oneColumn.Arrow())
	b.Field(0).(*array.Int64Builder).AppendValues(values, nil)
	var file bytes.Buffer
	w, err := table.NewFileWriter(&file, oneColumn, table.Seal{})
	if err != nil {
		e.t.Fatal(err)
	}
	if err := w.Write(b.NewRecordBatch()); err != nil {
		e.t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		e.t.Fatal(err)
	}
	return e.put(uri, file.Bytes())
}

// current is the table's snapshot and its data files.
func (e *engine) current() (id int64, files []string) {
	e.t.Helper()
	got, err := e.h.Tables.Table(datasettest.Context(e.t), project, "t")
	if err != nil {
		e.t.Fatal(err)
	}
	var m struct {
		Current int64 `json:"current-snapshot-id"`
	}
	if err := json.Unmarshal(got.Metadata, &m); err != nil {
		e.t.Fatal(err)
	}
	v, err := e.h.Definitions.Version(datasettest.Context(e.t), project, dataset.Ref{Name: "t"})
	if err != nil {
		e.t.Fatal(err)
	}
	for _, f := range v.Files {
		files = append(files, "file://"+e.dir+"/"+f.Key)
	}
	return m.Current, files
}

// commit writes manifests that cite files and is the commit of them onto parent.
func (e *engine) commit(parent int64, files ...string) dataset.TableCommit {
	e.t.Helper()
	e.n++
	meta := fmt.Sprintf("%s/metadata/m%d.avro", e.uri, e.n)
	return e.cite(parent, fmt.Sprintf("%s/metadata/snap-%d.avro", e.uri, e.n), meta, files...)
}

func (e *engine) cite(parent int64, list, manifest string, files ...string) dataset.TableCommit {
	e.t.Helper()
	snap := table.Snapshot{ID: e.n, Version: 2, Parent: parent, Schema: oneColumn}
	var data []table.DataFile
	for _, f := range files {
		data = append(data, table.DataFile{URI: f, Rows: 1, Bytes: 1})
	}
	var m, l bytes.Buffer
	written, err := table.WriteManifest(&m, manifest, snap, data)
	if err != nil {
		e.t.Fatal(err)
	}
	if err := table.WriteManifestList(&l, snap, written); err != nil {
		e.t.Fatal(err)
	}
	if strings.HasPrefix(manifest, e.uri+"/metadata/") && !strings.Contains(manifest, "..") {
		e.put(manifest, m.Bytes())
	}
	if strings.HasPrefix(list, e.uri+"/metadata/") {
		e.put(list, l.Bytes())
	}
	return dataset.TableCommit{
		Requirements: []table.Requirement{{Type: "assert-ref-snapshot-id", Ref: "main", Snapshot: &parent}},
		Updates: []table.Update{
			{Action: "add-snapshot", Snapshot: &table.Written{ID: e.n, Parent: parent, List: list}},
			{Action: "set-snapshot-ref", Ref: "main", Type: "branch", SnapshotID: e.n},
		},
	}
}

func (e *engine) send(c dataset.TableCommit) error {
	_, err := e.h.Tables.CommitTable(datasettest.Context(e.t), project, "t", c)
	return err
}

// onFiles is a harness over a real directory of tables.
func onFiles(t *testing.T) (*datasettest.Harness, string) {
	t.Helper()
	dir := t.TempDir()
	tables, err := fileblob.OpenNamed(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tables.Close() })
	objects := &blobtest.Memory{}
	return datasettest.New(t, func(c *dataset.Config) {
		c.Files = &datafile.Blobs{
			Blobs: blob.New(objects, blobtest.NewSealer()), Driver: objects, Tables: tables,
			Locate: func(k blob.Key) string { return "file://" + filepath.Join(dir, string(k)) },
		}
	}), dir
}

// left lists the files of the table that are of no version.
func (e *engine) left() (names []string) {
	e.t.Helper()
	err := filepath.WalkDir(e.path(e.uri), func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() && !strings.Contains(path, "/dsv_") {
			names = append(names, path)
		}
		return err
	})
	if err != nil {
		e.t.Fatal(err)
	}
	return names
}

// A commit becomes a version of copied rows, whose files are the only ones left;
// what a client then does to its own files changes nothing.
func TestCommitIsCopied(t *testing.T) {
	h, dir := onFiles(t)
	e := newEngine(t, h, dir, dataset.Spec{})
	id, files := e.current()
	mine := e.rows(e.uri+"/data/mine.parquet", 3)
	// As Hadoop writes addresses.
	c := e.commit(id, append(files, strings.Replace(mine, "file:///", "file:/", 1))...)
	if err := e.send(c); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(rowsOf(t, h, "t"), " "); got != "1 2 3" {
		t.Errorf("rows %s", got)
	}
	if left := e.left(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	v, err := h.Definitions.Version(datasettest.Context(t), project, ref(t, "t@2"))
	if err != nil || len(v.Lineage.Parents) != 1 || v.Lineage.Parents[0].Ref != "t@1" {
		t.Errorf("lineage %+v, %v", v.Lineage, err)
	}
	if now, _ := e.current(); now != e.n {
		t.Errorf("the snapshot is %d, and the client called it %d", now, e.n)
	}
	// The answer was lost, and the client sends it again.
	if err := e.send(c); err != nil {
		t.Errorf("the same commit again: %v", err)
	}
	if now, err := h.Definitions.One(datasettest.Context(t), project, "t"); err != nil || now.Latest != 2 {
		t.Errorf("version %d, %v", now.Latest, err)
	}
	// Another one that does not follow.
	wantFault(t, e.send(e.commit(id, e.rows(e.uri+"/data/late.parquet", 4))), fault.Conflict, "snapshot")
	// The dataset goes with what clients wrote.
	if len(e.left()) == 0 {
		t.Fatal("the refused client's files are gone already")
	}
	if err := h.Definitions.Delete(datasettest.Context(t), project, dataset.Ref{Name: "t"}, deletion.Request{}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(e.path(e.uri)); !os.IsNotExist(err) {
		t.Errorf("files of the deleted table are left: %v", err)
	}
}

// Of commits onto the same snapshot exactly one is taken, and its rows are those
// that are read.
func TestCommitsAtOnce(t *testing.T) {
	h, dir := onFiles(t)
	e := newEngine(t, h, dir, dataset.Spec{})
	id, files := e.current()
	const n = 4
	commits := make([]dataset.TableCommit, n)
	for i := range commits {
		commits[i] = e.commit(id, append(files, e.rows(fmt.Sprintf("%s/data/%d.parquet", e.uri, i), int64(10+i)))...)
	}
	errs := make([]error, n)
	var group sync.WaitGroup
	for i, c := range commits {
		group.Go(func() { errs[i] = e.send(c) })
	}
	group.Wait()
	var won []string
	for i, err := range errs {
		if err == nil {
			won = append(won, strconv.Itoa(10+i))
		} else if !fault.Is(err, fault.Conflict) {
			t.Error(err)
		}
	}
	if got := strings.Join(rowsOf(t, h, "t"), " "); len(won) != 1 || got != "1 2 "+won[0] {
		t.Errorf("commits %q were taken, rows %s", won, got)
	}
}

// A snapshot leads nowhere but below its own table, and what is not as it says
// makes no version.
func TestHostileCommits(t *testing.T) {
	h, dir := onFiles(t)
	e := newEngine(t, h, dir, dataset.Spec{Expectations: []expectation.Rule{{Check: expectation.Between, Column: "a", Max: 100}}})
	h.Put(t, "other", dataset.Spec{Protection: dataset.Open}, "a\n7\n")
	theirs, err := h.Definitions.Version(datasettest.Context(t), project, dataset.Ref{Name: "other"})
	if err != nil {
		t.Fatal(err)
	}
	id, files := e.current()
	fine := e.rows(e.uri+"/data/fine.parquet", 3)
	outside := filepath.Join(t.TempDir(), "secret.parquet")
	e.rows("file://"+outside, 9)
	link := e.uri + "/data/link.parquet"
	if err := os.Symlink(outside, e.path(link)); err != nil {
		t.Fatal(err)
	}
	// A rejected version is in no table, nor are its rows.
	if err := e.send(e.commit(id, e.rows(e.uri+"/data/many.parquet", 1000))); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "t@2 is rejected") {
		t.Fatal(err)
	}
	bad, err := h.Definitions.Version(datasettest.Context(t), project, ref(t, "t@2"))
	if err != nil || bad.State != dataset.Rejected {
		t.Fatal(bad.State, err)
	}
	text := []byte("not what it should be")
	tests := []struct {
		name string
		c    dataset.TableCommit
		kind fault.Kind
		says string
	}{
		{"another dataset's file", e.commit(id, "file://"+dir+"/"+theirs.Files[0].Key), fault.Invalid, "not a file of this table"},
		{"out by dots", e.commit(id, e.uri+"/data/../../other/x.parquet"), fault.Invalid, "not a file of this table"},
		{"a file of the machine", e.commit(id, "file:///etc/passwd"), fault.Invalid, "not a file of this table"},
		{"another scheme", e.commit(id, "http://127.0.0.1/x.parquet"), fault.Invalid, "not a file of this table"},
		{"a neighbour with the same beginning", e.commit(id, e.uri+"2/data/x.parquet"), fault.Invalid, "not a file of this table"},
		{"a link out", e.commit(id, link), fault.Internal, "not a regular file"},
		{"a rejected version's file", e.commit(id, "file://"+dir+"/"+bad.Files[0].Key), fault.Invalid, "belongs to no version of the table"},
		{"a file twice", e.commit(id, fine, fine), fault.Invalid, "duplicate file"},
		{"a file that is not there", e.commit(id, e.uri+"/data/absent.parquet"), fault.Invalid, "does not exist"},
		{"a list elsewhere", e.cite(id, "file:///etc/passwd", e.uri+"/metadata/x.avro", fine), fault.Invalid, "not a file of this table"},
		{"a manifest elsewhere", e.cite(id, e.uri+"/metadata/l.avro", "file:///etc/passwd", fine), fault.Invalid, "not a file of this table"},
		{"no Parquet", e.commit(id, e.put(e.uri+"/data/text.parquet", text)), fault.Invalid, "a data file cannot be read"},
		{"half a Parquet", e.commit(id, e.put(e.uri+"/data/half.parquet", []byte("PAR1\x00\x00PAR1"))), fault.Invalid, "cannot be read"},
		{"no snapshot", dataset.TableCommit{Updates: []table.Update{{Action: "set-snapshot-ref", Ref: "main", Type: "branch", SnapshotID: 77}}}, fault.Unsupported, "older snapshot"},
	}
	broken := e.commit(id, fine)
	e.put(broken.Updates[0].Snapshot.List, text)
	tests = append(tests, struct {
		name string
		c    dataset.TableCommit
		kind fault.Kind
		says string
	}{"no list", broken, fault.Invalid, "the list of manifests cannot be read"})
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { wantFault(t, e.send(tt.c), tt.kind, tt.says) })
	}
	d, err := h.Definitions.One(datasettest.Context(t), project, "t")
	if err != nil || d.Latest != 2 || d.Accepted != 1 {
		t.Errorf("versions %d and %d, %v", d.Latest, d.Accepted, err)
	}
	if err := e.send(e.commit(id, append(files, fine)...)); err != nil {
		t.Errorf("and then a good one: %v", err)
	}
	if _, err := os.Stat(outside); err != nil {
		t.Error(err)
	}
}

// What a job writes is as confined as all that it could read.
func TestCommitOfAnAttempt(t *testing.T) {
	h, dir := onFiles(t)
	e := newEngine(t, h, dir, dataset.Spec{Residency: residency.Of("home", "AE")})
	h.Put(t, "staff", dataset.Spec{Residency: residency.Of("home")}, "a\n7\n")
	h.Put(t, "pay", dataset.Spec{Classification: dataset.Confidential}, "a\n7\n")
	as := func(input string) context.Context {
		h.Inputs = []dataset.JobInputs{{Versions: []dataset.Ref{ref(t, input)}, Tables: []dataset.Ref{ref(t, "t@1")}}}
		return identity.With(t.Context(), identity.Principal{Kind: identity.Attempt, ID: "att_1", Project: project, Scopes: []string{"dataset.query:" + input, "dataset.import:t", "dataset.query:t"}})
	}
	id, _ := e.current()
	if _, err := h.Tables.CommitTable(as("staff@1"), project, "t", e.commit(id, e.rows(e.uri+"/data/a.parquet", 5))); err != nil {
		t.Fatal(err)
	}
	v, err := h.Definitions.Version(datasettest.Context(t), project, ref(t, "t@2"))
	if err != nil || v.Residency.String() != "home" || len(v.Lineage.Parents) != 2 || v.Lineage.Parents[0].Ref != "staff@1" || v.Lineage.Parents[1].Ref != "t@1" || v.Lineage.Producer.ID != "att_1" {
		t.Errorf("residency %s, lineage %+v, %v", v.Residency, v.Lineage, err)
	}
	id, _ = e.current()
	_, err = h.Tables.CommitTable(as("pay@1"), project, "t", e.commit(id, e.rows(e.uri+"/data/b.parquet", 5)))
	wantFault(t, err, fault.Invalid, "confidential data cannot be open")
}

// However a job sends what it makes of its data, it is as confined as that, and no
// job changes what is declared of a table.
func TestAnAttemptLaundersNothing(t *testing.T) {
	h := datasettest.New(t, nil)
	open := dataset.Spec{Protection: dataset.Open, Residency: residency.Of("home", "AE")}
	h.Put(t, "t", open, "a\n1\n")
	h.Put(t, "staff", dataset.Spec{Residency: residency.Of("home")}, "a\n7\n")
	h.Put(t, "pay", dataset.Spec{Classification: dataset.Confidential}, "a\n70\n") // the same content would keep its class
	as := func(input string) context.Context {
		h.Inputs = []dataset.JobInputs{{Versions: []dataset.Ref{ref(t, input)}, Tables: []dataset.Ref{ref(t, "t@1")}}}
		return identity.With(t.Context(), identity.Principal{Kind: identity.Attempt, ID: "att_1", Project: project, Scopes: []string{
			"dataset.query:" + input, "dataset.read:" + input, "dataset.import:t", "dataset.query:t", "dataset.read:t",
		}})
	}
	send := func(ctx context.Context) (dataset.Version, error) {
		return h.Writes.Import(ctx, dataset.ImportRequest{Project: project, Name: "t", Filename: "t.csv", Body: strings.NewReader("a\n7\n")})
	}
	create := func(ctx context.Context) (dataset.Version, error) {
		return h.Writes.Create(ctx, dataset.CreateRequest{Project: project, Name: "t", Rows: someRows(t, 7, 8)})
	}
	for name, send := range map[string]func(context.Context) (dataset.Version, error){"import": send, "create": create} {
		v, err := send(as("staff@1"))
		if err != nil || v.Residency.String() != "home" || len(v.Lineage.Parents) != 2 || v.Lineage.Parents[0].Ref != "staff@1" {
			t.Errorf("%s: residency %s, lineage %+v, %v", name, v.Residency, v.Lineage, err)
		}
		_, err = send(as("pay@1"))
		wantFault(t, err, fault.Invalid, "confidential data cannot be open")
	}
	_, err := h.Writes.Ingest(as("pay@1"), dataset.IngestRequest{Project: project, Name: "t", Rows: someRows(t, 7)})
	wantFault(t, err, fault.PermissionDenied, "rows of a source")
	// The answers of a model are as confined as the model.
	model := func(class dataset.Classification) context.Context {
		ctx := as("t@1")
		h.Inputs[0].Beside = []dataset.Labelled{{Name: "model m@1", Residency: residency.Of("home"), Classification: class}}
		return ctx
	}
	for name, send := range map[string]func(context.Context) (dataset.Version, error){"import": send, "create": create} {
		v, err := send(model(dataset.Internal))
		if err != nil || v.Residency.String() != "home" || v.Classification != dataset.Internal {
			t.Errorf("%s of a model: %s, %s, %v", name, v.Residency, v.Classification, err)
		}
		_, err = send(model(dataset.Confidential))
		wantFault(t, err, fault.Invalid, "confidential data cannot be open")
	}
	untold := datasettest.New(t, func(c *dataset.Config) { c.JobInputs = nil })
	untold.Put(t, "t", open, "a\n1\n")
	_, err = untold.Writes.Import(as("t@1"), dataset.ImportRequest{Project: project, Name: "t", Filename: "t.csv", Body: strings.NewReader("a\n7\n")})
	wantFault(t, err, fault.Internal, "no lineage")
	loose := open
	loose.Classification = dataset.Public
	_, _, err = h.Definitions.Apply(as("pay@1"), dataset.ApplyRequest{Project: project, Name: "t", Spec: loose})
	wantFault(t, err, fault.PermissionDenied, "not change its specification")
	if _, change, err := h.Definitions.Apply(as("pay@1"), dataset.ApplyRequest{Project: project, Name: "t", Spec: open}); err != nil || change != "unchanged" {
		t.Errorf("what is declared already: %s, %v", change, err)
	}
}

// someRows are rows of one column.
func someRows(t *testing.T, values ...int64) array.RecordReader {
	t.Helper()
	b := array.NewRecordBuilder(memory.DefaultAllocator, oneColumn.Arrow())
	b.Field(0).(*array.Int64Builder).AppendValues(values, nil)
	rows, err := array.NewRecordReader(oneColumn.Arrow(), []arrow.RecordBatch{b.NewRecordBatch()})
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

// An attempt reads no version that may be in fewer zones than what it makes, but
// its own, which come from what it could read.
func TestAnAttemptIsConfined(t *testing.T) {
	h := datasettest.New(t, func(c *dataset.Config) {
		c.Confined = func(context.Context, string) (residency.Label, error) { return residency.Of("home", "AE"), nil }
	})
	wide, narrow := dataset.Spec{Protection: dataset.Open, Residency: residency.Of("home", "AE")}, dataset.Spec{Protection: dataset.Open, Residency: residency.Of("home")}
	h.Put(t, "t", wide, "a\n1\n")
	ctx := identity.With(t.Context(), identity.Principal{Kind: identity.Attempt, ID: "att_1", Project: project, Scopes: []string{"dataset.query:t", "dataset.import:t"}})
	if _, err := h.Tables.Table(ctx, project, "t"); err != nil {
		t.Fatal(err)
	}
	h.Put(t, "t", narrow, "a\n2\n")
	_, err := h.Tables.Table(ctx, project, "t")
	wantFault(t, err, fault.PermissionDenied, "t@2 has the residency home")
	rows, err := h.Reads.Open(ctx, dataset.OpenRequest{Project: project, Ref: ref(t, "t@1")})
	if err != nil {
		t.Fatal(err)
	}
	rows.Release()
	if _, err := h.Writes.Import(ctx, dataset.ImportRequest{Project: project, Name: "t", Filename: "t.csv", Body: strings.NewReader("a\n3\n")}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Tables.Table(ctx, project, "t"); err != nil {
		t.Errorf("its own version: %v", err)
	}
}
