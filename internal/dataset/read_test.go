package dataset_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/blob/blobtest"
	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/dataset/datafile"
	"github.com/falaj-ml/falaj/internal/dataset/datasetsql"
	"github.com/falaj-ml/falaj/internal/dataset/datasettest"
	"github.com/falaj-ml/falaj/internal/dataset/expectation"
	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/deletion"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/store/storetest"
)

// private is a directory for one job.
func private(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "private")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

var everything = table.Schema{
	{Name: "s", Type: table.String},
	{Name: "i", Type: table.Int64},
	{Name: "f", Type: table.Float64},
	{Name: "b", Type: table.Bool},
	{Name: "t", Type: table.Timestamp},
	{Name: "d", Type: table.Date},
	{Name: "n", Type: table.Int32},
	{Name: "v", Type: table.Float32},
	{Name: "l", Type: table.ListOf(table.Float32)},
	{Name: "w", Type: table.ListOf(table.String)},
}

func empty(t *testing.T) array.RecordReader {
	t.Helper()
	r, err := array.NewRecordReader(everything.Arrow(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// drawn is some batches of every type, and their cells.
func drawn(t *rapid.T) (recs []arrow.RecordBatch, cells []string) {
	for range rapid.IntRange(0, 3).Draw(t, "batches") {
		b := array.NewRecordBuilder(memory.DefaultAllocator, everything.Arrow())
		for range rapid.IntRange(0, 8).Draw(t, "rows") {
			for i := range everything {
				if rapid.Bool().Draw(t, "null") {
					b.Field(i).AppendNull()
					continue
				}
				switch f := b.Field(i).(type) {
				case *array.StringBuilder:
					f.Append(rapid.String().Draw(t, "s"))
				case *array.Int64Builder:
					f.Append(rapid.Int64().Draw(t, "i"))
				case *array.Float64Builder:
					f.Append(rapid.OneOf(rapid.Float64(), rapid.SampledFrom([]float64{math.NaN(), math.Inf(1), math.Copysign(0, -1)})).Draw(t, "f"))
				case *array.BooleanBuilder:
					f.Append(rapid.Bool().Draw(t, "b"))
				case *array.TimestampBuilder:
					f.Append(arrow.Timestamp(rapid.Int64Range(table.MinInstant, table.MaxInstant).Draw(t, "t")))
				case *array.Date32Builder:
					f.Append(arrow.Date32(rapid.Int32Range(table.MinDay, table.MaxDay).Draw(t, "d")))
				case *array.Int32Builder:
					f.Append(rapid.Int32().Draw(t, "n"))
				case *array.Float32Builder:
					f.Append(rapid.Float32().Draw(t, "v"))
				case *array.ListBuilder:
					f.Append(true)
					n := rapid.IntRange(0, 3).Draw(t, "elements")
					for range n {
						switch e := f.ValueBuilder().(type) {
						case *array.Float32Builder:
							e.Append(rapid.Float32().Draw(t, "element"))
						case *array.StringBuilder:
							e.Append(rapid.String().Draw(t, "element"))
						}
					}
				}
			}
		}
		rec := b.NewRecordBatch()
		recs = append(recs, rec)
		cells = append(cells, cellsOf(rec)...)
	}
	return recs, cells
}

func cellsOf(rec arrow.RecordBatch) (out []string) {
	for i := range int(rec.NumRows()) {
		var row strings.Builder
		for _, c := range rec.Columns() {
			if f, ok := c.(*array.Float64); ok && f.IsValid(i) {
				fmt.Fprintf(&row, "%x|", math.Float64bits(f.Value(i)))
			} else {
				fmt.Fprintf(&row, "%q|", c.ValueStr(i))
			}
		}
		out = append(out, row.String())
	}
	return out
}

// What is kept is what is read, and the digest is that of the rows whatever
// batches they come in.
func TestKeepsValues(t *testing.T) {
	for _, protection := range []dataset.Protection{dataset.Sealed, dataset.Open} {
		h := datasettest.New(t, nil)
		h.Declare(t, "d", dataset.Spec{Protection: protection})
		h.Declare(t, "e", dataset.Spec{Protection: protection})
		ctx := datasettest.Context(t)
		rapid.Check(t, func(t *rapid.T) {
			recs, want := drawn(t)
			create := func(name string, recs []arrow.RecordBatch) dataset.Version {
				rows, err := array.NewRecordReader(everything.Arrow(), recs)
				if err != nil {
					t.Fatal(err)
				}
				v, err := h.Writes.Create(ctx, dataset.CreateRequest{Project: project, Name: name, Rows: rows})
				if err != nil {
					t.Fatal(err)
				}
				return v
			}
			v := create("d", recs)
			var single []arrow.RecordBatch
			for _, r := range recs {
				for i := range r.NumRows() {
					single = append(single, r.NewSlice(i, i+1))
				}
			}
			if w := create("e", single); w.ContentDigest != v.ContentDigest || w.Rows != v.Rows {
				t.Fatalf("other batches gave another digest")
			}
			r, err := h.Reads.Open(ctx, dataset.OpenRequest{Project: project, Ref: v.Ref()})
			if err != nil {
				t.Fatal(err)
			}
			defer r.Release()
			var got []string
			for r.Next() {
				got = append(got, cellsOf(r.RecordBatch())...)
			}
			if r.Err() != nil || !slices.Equal(got, want) {
				t.Fatalf("%v\ngot  %q\nwant %q", r.Err(), got, want)
			}
		})
	}
}

// A change of any cell, name or type changes the digest.
func TestDigestTellsContentsApart(t *testing.T) {
	h := datasettest.New(t, nil)
	h.Declare(t, "d", dataset.Spec{})
	seen := map[string]string{}
	for _, body := range []string{
		"a,b\n1,2\n", "a,b\n1,3\n", "a,b\n2,1\n", "b,a\n1,2\n", "a,c\n1,2\n", "a,b\n1,2\n1,2\n", "a,b\n", "a,b\nx,2\n", "a,b\n1.5,2\n", "a,b\n,2\n", "a,b\n1,\n",
		"a,b\nxy,z\n", "a,b\nx,yz\n", "a,b\nx,y\nz,\n", "a,b\nx,\ny,z\n", "a,b\ntrue,2\n", "a,b\n2013-01-01,2\n",
	} {
		v, err := importsChanged(t, h, "d", body)
		if err != nil {
			t.Fatal(err)
		}
		if other, ok := seen[v.ContentDigest]; ok {
			t.Errorf("%q and %q have the same digest", body, other)
		}
		seen[v.ContentDigest] = body
	}
}

func TestExport(t *testing.T) {
	h := datasettest.New(t, nil)
	h.Put(t, "weather", dataset.Spec{}, weather)
	ctx := datasettest.Context(t)
	dir := private(t)
	path, v, err := h.Reads.Export(ctx, dataset.ExportRequest{OpenRequest: dataset.OpenRequest{Project: project, Ref: ref(t, "weather"), Columns: []string{"temp", "origin"}}, Dir: dir})
	if err != nil || path != filepath.Join(dir, "data.parquet") || v.Number != 1 {
		t.Fatal(path, v, err)
	}
	info, _ := os.Stat(path)
	if info.Mode().Perm() != 0o600 {
		t.Error(info.Mode())
	}
	f, _ := os.Open(path)
	defer f.Close()
	s, _ := v.Schema.Select([]string{"temp", "origin"})
	rows, err := table.OpenFile(ctx, f, info.Size(), s, nil, table.Seal{})
	if err != nil || !rows.Next() || rows.RecordBatch().Column(1).ValueStr(2) != "LGA" {
		t.Fatal(err)
	}
	rows.Release()
	export := func(change func(*dataset.ExportRequest)) error {
		r := dataset.ExportRequest{OpenRequest: dataset.OpenRequest{Project: project, Ref: ref(t, "weather")}, Dir: dir, File: "x.parquet"}
		change(&r)
		_, _, err := h.Reads.Export(ctx, r)
		return err
	}
	if err := export(func(r *dataset.ExportRequest) { r.File = "data.parquet" }); !errors.Is(err, os.ErrExist) {
		t.Errorf("overwrites: %v", err)
	}
	for _, name := range []string{"../x.parquet", "/tmp/x.parquet", "a/../../x"} {
		if err := export(func(r *dataset.ExportRequest) { r.File = name }); err == nil {
			t.Errorf("%s was written", name)
		}
	}
	if err := os.Symlink(t.TempDir(), filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := export(func(r *dataset.ExportRequest) { r.File = "link/x" }); err == nil {
		t.Error("followed a link out of the directory")
	}
	wantFault(t, export(func(r *dataset.ExportRequest) { r.Where, r.Zone = "pool cloud", "DE" }), fault.PermissionDenied, "pool cloud is in DE")
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	wantFault(t, export(func(*dataset.ExportRequest) {}), fault.Internal, "accessible to other users")
}

// Reads of classified data are in the journal first, and do not happen when
// that fails.
func TestJournal(t *testing.T) {
	for _, class := range []dataset.Classification{dataset.Public, dataset.Internal, dataset.Confidential, dataset.Restricted} {
		h := datasettest.New(t, nil)
		ctx := datasettest.Context(t)
		h.Put(t, "d", dataset.Spec{Classification: class}, "a\n1\n")
		req := dataset.OpenRequest{Project: project, Ref: ref(t, "d"), Columns: []string{"a"}, Purpose: "looking"}
		reads := []func() error{
			func() error {
				r, err := h.Reads.Open(ctx, req)
				if err == nil {
					r.Release()
				}
				return err
			},
			func() error { _, _, err := h.Reads.Preview(ctx, req, 1); return err },
			func() error {
				_, _, err := h.Reads.Export(ctx, dataset.ExportRequest{OpenRequest: req, Dir: private(t)})
				return err
			},
		}
		for i, read := range reads {
			if err := read(); err != nil {
				t.Fatal(err)
			}
			want := 0
			if class.Journalled() {
				want = i + 1
			}
			es := h.Journal.Entries()
			if len(es) != want {
				t.Fatalf("%s: %d entries after %d reads", class, len(es), i+1)
			}
			if want > 0 {
				if e := es[i]; e.Object != "dataset d@1" || e.Action != "dataset.query" || e.Reason != "looking" || e.Project != string(project) {
					t.Errorf("%+v", e)
				}
			}
		}
		h.Journal.Fail(errors.New("no space"))
		for _, read := range reads {
			if err := read(); (err != nil) != class.Journalled() {
				t.Errorf("%s with a broken journal: %v", class, err)
			}
		}
	}
}

// Every method asks, and a refusal is the answer whether the dataset exists or
// not.
func TestPermissions(t *testing.T) {
	h := datasettest.New(t, nil)
	ctx := datasettest.Context(t)
	h.Put(t, "d", dataset.Spec{Classification: dataset.Restricted}, "a\n1\n")
	one := func(name string) map[string]func() error {
		r := dataset.Ref{Name: name, Number: 1}
		return map[string]func() error{
			"dataset.import apply": func() error {
				_, _, err := h.Definitions.Apply(ctx, dataset.ApplyRequest{Project: project, Name: name})
				return err
			},
			"dataset.import import": func() error { _, err := imports(t, h, name, "a\n1\n"); return err },
			"dataset.import create": func() error {
				_, err := h.Writes.Create(ctx, dataset.CreateRequest{Project: project, Name: name, Rows: empty(t)})
				return err
			},
			"dataset.query open": func() error { _, err := h.Reads.Open(ctx, dataset.OpenRequest{Project: project, Ref: r}); return err },
			"dataset.query latest": func() error {
				_, err := h.Reads.Open(ctx, dataset.OpenRequest{Project: project, Ref: dataset.Ref{Name: name}})
				return err
			},
			"dataset.query preview": func() error {
				_, _, err := h.Reads.Preview(ctx, dataset.OpenRequest{Project: project, Ref: r}, 1)
				return err
			},
			"dataset.query export": func() error {
				_, _, err := h.Reads.Export(ctx, dataset.ExportRequest{OpenRequest: dataset.OpenRequest{Project: project, Ref: r}, Dir: private(t)})
				return err
			},
			"dataset.query sql": func() error {
				_, err := h.Reads.Query(ctx, dataset.QueryRequest{Project: project, SQL: "SELECT 1", Inputs: map[string]dataset.Ref{"t": r}})
				return err
			},
			"dataset.query free sql": func() error {
				_, err := h.Reads.Query(ctx, dataset.QueryRequest{Project: project, SQL: "SELECT 1"})
				return err
			},
			"dataset.read one":         func() error { _, err := h.Definitions.One(ctx, project, name); return err },
			"dataset.read version":     func() error { _, err := h.Definitions.Version(ctx, project, r); return err },
			"dataset.read versions":    func() error { _, _, err := h.Definitions.Versions(ctx, project, name, dataset.Page{}); return err },
			"dataset.read list":        func() error { _, _, err := h.Definitions.List(ctx, project, dataset.Page{}); return err },
			"dataset.read graph":       func() error { _, err := h.Lineage.Graph(ctx, project, r); return err },
			"dataset.read descendants": func() error { _, err := h.Lineage.Descendants(ctx, project, r); return err },
			"dataset.delete one":       func() error { return h.Definitions.Delete(ctx, project, r, deletion.Request{}) },
			"dataset.delete all":       func() error { return h.Definitions.Delete(ctx, project, dataset.Ref{Name: name}, deletion.Request{}) },
		}
	}
	h.Policy.Deny(func(policy.Action, policy.Object) bool { return true })
	for _, name := range []string{"d", "absent"} {
		for what, call := range one(name) {
			before := len(h.Policy.Asked())
			err := call()
			if !fault.Is(err, fault.PermissionDenied) {
				t.Errorf("%s of %s: %v", what, name, err)
			}
			asked := h.Policy.Asked()[before:]
			action, _, _ := strings.Cut(what, " ")
			if len(asked) != 1 || string(asked[0].Action) != action || asked[0].Object.Project != string(project) {
				t.Errorf("%s of %s asked %v", what, name, asked)
			}
		}
	}
	h.Policy.Deny(nil)
	if _, err := h.Reads.Open(ctx, dataset.OpenRequest{Project: project, Ref: dataset.Ref{Name: "d"}}); err != nil {
		t.Fatal(err)
	}
	asked := h.Policy.Asked()
	if o := asked[len(asked)-1].Object; o.Name != "d@1" || o.Classification != "restricted" || o.Kind != "dataset" || o.Owner != "usr_1" {
		t.Errorf("%+v", o)
	}
	if len(h.Files.List(t)) == 0 {
		t.Error("a refused deletion deleted")
	}
}

// A token that names its objects lists what it names, if its principal may.
func TestListNarrowed(t *testing.T) {
	h := datasettest.New(t, nil)
	for _, n := range []string{"a", "b", "c"} {
		h.Declare(t, n, dataset.Spec{})
	}
	list := func(scopes ...string) string {
		ctx := identity.With(t.Context(), identity.Principal{Kind: identity.Attempt, ID: "att_1", Project: project, Scopes: scopes})
		ds, _, err := h.Definitions.List(ctx, project, dataset.Page{})
		if err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		for _, d := range ds {
			out.WriteString(d.Name)
		}
		return out.String()
	}
	if got := list("dataset.read:a", "dataset.read:c", "dataset.query:b"); got != "ac" {
		t.Error(got)
	}
	if got := list("dataset.query"); got != "" {
		t.Error(got)
	}
	if got := list("dataset.read"); got != "abc" {
		t.Error(got)
	}
	h.Policy.Deny(func(_ policy.Action, o policy.Object) bool { return o.Name == "c" })
	if got := list("dataset.read:a", "dataset.read:c"); got != "a" {
		t.Error(got)
	}
}

func TestPages(t *testing.T) {
	h := datasettest.New(t, nil)
	ctx := datasettest.Context(t)
	for i := range 5 {
		h.Declare(t, fmt.Sprintf("d%d", i), dataset.Spec{})
		if _, err := imports(t, h, "d0", fmt.Sprintf("a\n%d\n", i)); err != nil {
			t.Fatal(err)
		}
	}
	var names []string
	for token := ""; ; {
		ds, next, err := h.Definitions.List(ctx, project, dataset.Page{Size: 2, Token: token})
		if err != nil || len(ds) > 2 {
			t.Fatal(len(ds), err)
		}
		for _, d := range ds {
			names = append(names, d.Name)
		}
		if token = next; token == "" {
			break
		}
	}
	if !slices.Equal(names, []string{"d0", "d1", "d2", "d3", "d4"}) {
		t.Error(names)
	}
	var numbers []int64
	for token := ""; ; {
		vs, next, err := h.Definitions.Versions(ctx, project, "d0", dataset.Page{Size: 2, Token: token})
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range vs {
			numbers = append(numbers, v.Number)
		}
		if token = next; token == "" {
			break
		}
	}
	if !slices.Equal(numbers, []int64{5, 4, 3, 2, 1}) {
		t.Error(numbers)
	}
	for _, token := range []string{"!", "x", "-1", "0"} {
		_, _, err := h.Definitions.Versions(ctx, project, "d0", dataset.Page{Token: token})
		wantFault(t, err, fault.Invalid, "page token")
	}
	if _, _, err := h.Definitions.List(ctx, project, dataset.Page{Token: "%%"}); !fault.Is(err, fault.Invalid) {
		t.Error(err)
	}
}

func TestDelete(t *testing.T) {
	h := datasettest.New(t, nil)
	ctx := datasettest.Context(t)
	h.Declare(t, "d", dataset.Spec{})
	for i := range 3 {
		if _, err := imports(t, h, "d", fmt.Sprintf("a\n%d\n", i)); err != nil {
			t.Fatal(err)
		}
	}
	child, err := h.Writes.Create(ctx, dataset.CreateRequest{Project: project, Name: "e", Rows: empty(t), Parents: []dataset.Ref{ref(t, "d@3")}})
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Definitions.Delete(ctx, project, ref(t, "d@3"), deletion.Request{Yes: true}); err != nil {
		t.Fatal(err)
	}
	_, err = h.Reads.Open(ctx, dataset.OpenRequest{Project: project, Ref: ref(t, "d@3")})
	wantFault(t, err, fault.Gone, "d@3 was deleted")
	if got := rowsOf(t, h, "d"); got[0] != "1" {
		t.Error("the newest accepted version is not the one before:", got)
	}
	d, _ := h.Definitions.One(ctx, project, "d")
	if d.Latest != 3 || d.Accepted != 2 {
		t.Errorf("%+v", d)
	}
	meta, err := os.ReadFile(filepath.Join(h.Files.Dir, d.Metadata))
	if err != nil || strings.Contains(string(meta), `"snapshot-id":3`) || !strings.Contains(string(meta), `"current-snapshot-id":2`) {
		t.Errorf("%s, %v", meta, err)
	}
	v, err := h.Definitions.Version(ctx, project, ref(t, "d@3"))
	if err != nil || v.State != dataset.Deleted || v.ContentDigest == "" || v.Statistics != nil || v.Lineage.Source == nil {
		t.Errorf("%+v, %v", v, err)
	}
	g, err := h.Lineage.Graph(ctx, project, child.Ref())
	if err != nil || len(g.Parents) != 1 || g.Parents[0].State != dataset.Deleted || g.Parents[0].Source.Digest == "" {
		t.Errorf("%+v, %v", g, err)
	}
	if err := h.Definitions.Delete(ctx, project, ref(t, "d@3"), deletion.Request{Yes: true}); err != nil {
		t.Error("a second time:", err)
	}
	again, err := imports(t, h, "d", "a\n2\n")
	if err != nil || again.Number != 4 {
		t.Errorf("%v, %v: a deleted version came back", again.Ref(), err)
	}
	if err := h.Definitions.Delete(ctx, project, dataset.Ref{Name: "d"}, deletion.Request{}); err != nil {
		t.Fatal(err)
	}
	for _, k := range h.Files.List(t) {
		if strings.Contains(k, "/d/") {
			t.Error("left", k)
		}
	}
	_, err = h.Definitions.One(ctx, project, "d")
	wantFault(t, err, fault.NotFound)
	if ds, _, _ := h.Definitions.List(ctx, project, dataset.Page{}); len(ds) != 1 {
		t.Error(ds)
	}
	v = h.Put(t, "d", dataset.Spec{}, "a\n7\n")
	if v.Number != 5 {
		t.Errorf("d@%d: a number was given again", v.Number)
	}
}

// Derived data may be only where all its parents may be, and is as closed as the
// most closed of them.
func TestDerived(t *testing.T) {
	h := datasettest.New(t, nil)
	ctx := datasettest.Context(t)
	h.Put(t, "a", dataset.Spec{Residency: residency.Of("home", "AE"), Classification: dataset.Public}, "a\n1\n")
	h.Put(t, "b", dataset.Spec{Residency: residency.Of("home", "DE"), Classification: dataset.Confidential}, "a\n2\n")
	create := func(name string, parents ...string) (dataset.Version, error) {
		r := dataset.CreateRequest{Project: project, Name: name, Rows: empty(t), Producer: dataset.Producer{Kind: "job", ID: "job_1", Text: "SELECT"}}
		for _, p := range parents {
			r.Parents = append(r.Parents, ref(t, p))
		}
		return h.Writes.Create(ctx, r)
	}
	v, err := create("ab", "b", "a", "b@1")
	if err != nil {
		t.Fatal(err)
	}
	if v.Residency.String() != "home" || v.Classification != dataset.Confidential || v.Rows != 0 {
		t.Errorf("%+v", v)
	}
	if len(v.Lineage.Parents) != 2 || v.Lineage.Parents[0].Ref != "a@1" || v.Lineage.Producer.Digest == "" {
		t.Errorf("%+v", v.Lineage)
	}
	again, err := create("ab", "a", "b")
	if err != nil || again.ID != v.ID {
		t.Errorf("the same derivation made %v, %v", again.Ref(), err)
	}
	other, err := create("ab", "a")
	if err != nil || other.ID == v.ID || other.Classification != dataset.Public {
		t.Errorf("other parents made %+v, %v", other, err)
	}
	h.Declare(t, "closed", dataset.Spec{Classification: dataset.Restricted, Residency: residency.Of("home")})
	if v, err = create("closed", "a"); err != nil || v.Classification != dataset.Restricted || v.Residency.String() != "home" {
		t.Errorf("%+v, %v", v, err)
	}
	h.Declare(t, "lower", dataset.Spec{Classification: dataset.Public})
	if v, err = create("lower", "b"); err != nil || v.Classification != dataset.Confidential {
		t.Errorf("a spec opened what it was made of: %+v, %v", v, err)
	}
	h.Declare(t, "far", dataset.Spec{Residency: residency.Of("AE")})
	_, err = create("far", "b")
	wantFault(t, err, fault.PermissionDenied, "no zone may hold", "parents of far", "dataset far as declared")

	abroad := datasettest.New(t, func(c *dataset.Config) { c.Zone = "DE" })
	abroad.Put(t, "b", dataset.Spec{Residency: residency.Of("DE")}, "a\n2\n")
	if _, err := abroad.Writes.Create(ctx, dataset.CreateRequest{Project: project, Name: "x", Rows: empty(t), Parents: []dataset.Ref{{Name: "b"}}}); err != nil {
		t.Error("a derivation of German data in Germany:", err)
	}
	g, err := h.Lineage.Graph(ctx, project, ref(t, "ab@1"))
	if err != nil || len(g.Parents) != 2 || g.Parents[1].Ref != "b@1" || g.Parents[1].Source.Filename != "b.csv" {
		t.Errorf("%+v, %v", g, err)
	}
	kids, err := h.Lineage.Descendants(ctx, project, ref(t, "b"))
	if err != nil || len(kids) != 2 {
		t.Errorf("%v, %v", kids, err)
	}
}

// No zone holds what parents that share none make.
func TestNoZoneInCommon(t *testing.T) {
	guard := &anywhere{}
	h := datasettest.New(t, func(c *dataset.Config) { c.Guard = guard })
	h.Put(t, "a", dataset.Spec{Residency: residency.Of("AE")}, "a\n1\n")
	h.Put(t, "b", dataset.Spec{Residency: residency.Of("DE")}, "a\n2\n")
	_, err := h.Writes.Create(datasettest.Context(t), dataset.CreateRequest{Project: project, Name: "x", Rows: empty(t), Parents: []dataset.Ref{{Name: "a"}, {Name: "b"}}})
	wantFault(t, err, fault.PermissionDenied, "dataset a@1 (AE)", "dataset b@1 (DE)")
	if guard.last.What != "dataset b" || guard.last.Label.String() != "DE" || guard.last.Zone != "home" {
		t.Errorf("%+v", guard.last)
	}
}

// What rows also come from counts like a parent, with parents and without.
func TestLabelsBesideTheParents(t *testing.T) {
	h := datasettest.New(t, func(c *dataset.Config) { c.Guard = &anywhere{} })
	ctx := datasettest.Context(t)
	h.Put(t, "a", dataset.Spec{Residency: residency.Of("AE", "DE")}, "a\n1\n")
	model := dataset.Labelled{Name: "model delay@3", Residency: residency.Of("AE", "home"), Classification: dataset.Confidential}
	for _, parents := range [][]dataset.Ref{{{Name: "a"}}, nil} {
		v, err := h.Writes.Create(ctx, dataset.CreateRequest{Project: project, Name: "x", Rows: empty(t), Parents: parents, Beside: []dataset.Labelled{model}})
		want := "AE"
		if parents == nil {
			want = "AE, home"
		}
		if err != nil || v.Residency.String() != want || v.Classification != dataset.Confidential || len(v.Lineage.Parents) != len(parents) {
			t.Errorf("%s %s of %d parents, %v", v.Residency, v.Classification, len(parents), err)
		}
	}
	model.Residency = residency.Of("home")
	_, err := h.Writes.Create(ctx, dataset.CreateRequest{Project: project, Name: "x", Rows: empty(t), Parents: []dataset.Ref{{Name: "a"}}, Beside: []dataset.Labelled{model}})
	wantFault(t, err, fault.PermissionDenied, "dataset a@1 (AE, DE)", "model delay@3 (home)")
}

type anywhere struct{ last residency.Transfer }

func (a *anywhere) Pass(_ context.Context, p residency.Transfer) error { a.last = p; return nil }

func TestApply(t *testing.T) {
	h := datasettest.New(t, nil)
	ctx := datasettest.Context(t)
	apply := func(spec dataset.Spec, change func(*dataset.ApplyRequest)) (dataset.Dataset, string, error) {
		r := dataset.ApplyRequest{Project: project, Name: "d", Spec: spec}
		if change != nil {
			change(&r)
		}
		d, c, err := h.Definitions.Apply(ctx, r)
		return d, string(c), err
	}
	if _, c, err := apply(dataset.Spec{}, func(r *dataset.ApplyRequest) { r.DryRun = true }); c != "created" || err != nil {
		t.Fatal(c, err)
	}
	if _, err := h.Definitions.One(ctx, project, "d"); !fault.Is(err, fault.NotFound) {
		t.Fatal("a dry run made it", err)
	}
	d, c, err := apply(dataset.Spec{}, nil)
	if c != "created" || err != nil || d.Revision != 1 || d.Owner != "usr_1" {
		t.Fatal(d, c, err)
	}
	if _, c, err = apply(dataset.Spec{NullValues: []string{"", "NA"}, Protection: dataset.Sealed}, nil); c != "unchanged" || err != nil {
		t.Error("spelling out the defaults:", c, err)
	}
	if d, c, err = apply(dataset.Spec{Description: "x"}, nil); c != "updated" || err != nil || d.Revision != 2 {
		t.Error(d, c, err)
	}
	if _, _, err = apply(dataset.Spec{}, func(r *dataset.ApplyRequest) { r.IfRevision = 1 }); !fault.Is(err, fault.Conflict) {
		t.Error(err)
	}
	for _, c := range []struct {
		spec dataset.Spec
		want string
	}{
		{dataset.Spec{Format: "xlsx"}, "spec.format"},
		{dataset.Spec{Delimiter: "ab"}, "spec.delimiter"},
		{dataset.Spec{Delimiter: "\n"}, "spec.delimiter"},
		{dataset.Spec{Delimiter: "\xff"}, "spec.delimiter"},
		{dataset.Spec{Columns: []dataset.Column{{Name: "a", Type: "int"}}}, "spec.columns[0].type"},
		{dataset.Spec{Columns: []dataset.Column{{Name: "a", Type: "int64"}, {Name: "a", Type: "int64"}}}, "spec.columns"},
		{dataset.Spec{Classification: "secret"}, "spec.classification"},
		{dataset.Spec{Protection: "none"}, "spec.protection"},
		{dataset.Spec{Protection: dataset.Open, Classification: dataset.Restricted}, "would not be journaled"},
		{dataset.Spec{Residency: residency.Of("../x")}, "spec.residency"},
		{dataset.Spec{Description: strings.Repeat("x", 5000)}, "spec.description"},
		{dataset.Spec{Expectations: []expectation.Rule{{Check: "is_nice", Column: "a"}}}, "spec.expectations[0]: there is no check"},
		{dataset.Spec{Expectations: []expectation.Rule{{Check: expectation.NotNull}}}, "column is required"},
		{dataset.Spec{Expectations: []expectation.Rule{{Check: expectation.Between, Column: "a"}}}, "min or max is required"},
		{dataset.Spec{Expectations: []expectation.Rule{{Check: expectation.NotNull, Column: "a", Min: 1.0}}}, "takes no min"},
		{dataset.Spec{Expectations: []expectation.Rule{{Check: expectation.Between, Column: "a", Min: true}}}, "not a number"},
		{dataset.Spec{Expectations: []expectation.Rule{{Check: expectation.InSet, Column: "a"}}}, "in_set requires values"},
		{dataset.Spec{Expectations: []expectation.Rule{{Check: expectation.InSet, Column: "a", Values: []any{map[string]any{}}}}}, "not a string"},
		{dataset.Spec{Expectations: []expectation.Rule{{Check: expectation.NotNull, Column: "a", Mostly: 2}}}, "mostly"},
		{dataset.Spec{Expectations: []expectation.Rule{{Check: expectation.Unique}}}, "names 0 columns"},
		{dataset.Spec{Expectations: []expectation.Rule{{Check: expectation.RowCount, Min: "many"}}}, "not a number"},
	} {
		_, _, err := apply(c.spec, nil)
		wantFault(t, err, fault.Invalid, c.want)
	}
}

func TestParseRef(t *testing.T) {
	for s, want := range map[string]dataset.Ref{"weather": {Name: "weather"}, "weather@3": {Name: "weather", Number: 3}, "a-b_c@12": {Name: "a-b_c", Number: 12}} {
		if r, err := dataset.ParseRef(s); err != nil || r != want || r.String() != s {
			t.Errorf("%s: %v, %v", s, r, err)
		}
	}
	for _, s := range []string{"", "@1", "a@", "a@0", "a@-1", "a@01", "a@1@2", "a@99999999999999999999", "../a", "A", "a@1 "} {
		if r, err := dataset.ParseRef(s); !fault.Is(err, fault.Invalid) {
			t.Errorf("%q is %v, %v", s, r, err)
		}
	}
}

// Over the object store, sealed files show nothing, open ones are as other
// engines read them, and another dataset's key opens nothing.
func TestObjectStore(t *testing.T) {
	driver := &blobtest.Memory{}
	h := datasettest.New(t, func(c *dataset.Config) {
		c.Files = &datafile.Blobs{Blobs: blob.New(driver, blobtest.NewSealer()), Driver: driver, Tables: driver}
	})
	ctx := datasettest.Context(t)
	body := "name\n" + strings.Repeat("a secret word\n", 100)
	objects := func(part string) (all string, n int) {
		_ = driver.List(ctx, "", func(k blob.Key) error {
			if !strings.Contains(string(k), part) {
				return nil
			}
			n++
			o, err := driver.Open(ctx, k)
			if err != nil {
				t.Fatal(err)
			}
			b := make([]byte, o.Size())
			if _, err := o.ReadAt(b, 0); err != nil && len(b) > 0 {
				t.Log(err)
			}
			all += string(b)
			return nil
		})
		return all, n
	}
	h.Put(t, "sealed", dataset.Spec{}, body)
	all, n := objects("sealed/")
	if n != 5 || strings.Contains(all, "secret") || strings.Contains(all, `"name"`) || strings.Contains(all, "schema") {
		t.Errorf("%d sealed objects show their contents", n)
	}
	h.Put(t, "open", dataset.Spec{Protection: dataset.Open}, body)
	all, n = objects("open/")
	if n != 5 || !strings.Contains(all, "secret") || !strings.Contains(all, `"name"`) {
		t.Errorf("%d open objects", n)
	}
	for _, name := range []string{"sealed", "open"} {
		if got := rowsOf(t, h, name); len(got) != 100 || got[7] != "a secret word" {
			t.Errorf("%s: %d rows", name, len(got))
		}
		if err := h.Definitions.Delete(ctx, project, dataset.Ref{Name: name}, deletion.Request{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, n := objects(""); n != 0 {
		t.Errorf("%d objects left", n)
	}
}

// The life of a version leaves its events and audit rows, on both databases.
func TestBothDatabases(t *testing.T) {
	for name, open := range map[string]storetest.Open{"sqlite": storetest.SQLite, "postgresql": storetest.PostgreSQL} {
		t.Run(name, func(t *testing.T) {
			db := open(t, datasetsql.Migrations)
			h, err := datasettest.On(db, t.TempDir(), nil)
			if err != nil {
				t.Fatal(err)
			}
			ctx := datasettest.Context(t)
			h.Put(t, "w", dataset.Spec{Columns: []dataset.Column{{Name: "a", Type: table.Float64}}}, "a\n1\n")
			if _, err := h.Writes.Create(ctx, dataset.CreateRequest{Project: project, Name: "x", Rows: empty(t), Parents: []dataset.Ref{{Name: "w"}}}); err != nil {
				t.Fatal(err)
			}
			if got := rowsOf(t, h, "w"); !slices.Equal(got, []string{"1"}) {
				t.Error(got)
			}
			if vs, err := h.Lineage.Descendants(ctx, project, ref(t, "w")); err != nil || len(vs) != 1 {
				t.Error(vs, err)
			}
			if ds, _, err := h.Definitions.List(ctx, project, dataset.Page{}); err != nil || len(ds) != 2 || ds[0].Spec.Columns[0].Type != table.Float64 {
				t.Error(ds, err)
			}
			if err := h.Definitions.Delete(ctx, project, dataset.Ref{Name: "w"}, deletion.Request{Yes: true}); err != nil {
				t.Fatal(err)
			}
			var names []string
			records, _, err := db.ReadStream(ctx, "event", store.Position{}, 100)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range records {
				names = append(names, r.Kind)
			}
			want := []string{"dataset.applied", "dataset.version_created", "dataset.applied", "dataset.version_created", "dataset.version_deleted", "dataset.deleted"}
			if !slices.Equal(names, want) {
				t.Errorf("events %v", names)
			}
			audited, _, err := db.ReadStream(ctx, "audit", store.Position{}, 100)
			if err != nil || len(audited) != 9 { // 2 declared, 2 begun, 2 made, 1 version and 1 dataset deleted, 1 cleaned
				t.Errorf("%d audit rows, %v", len(audited), err)
			}
		})
	}
}
