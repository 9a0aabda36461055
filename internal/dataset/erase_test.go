package dataset_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/array"
	gocmp "github.com/google/go-cmp/cmp"

	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/blob/blobtest"
	"github.com/falaj-ml/falaj/internal/blob/quota"
	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/dataset/datafile"
	"github.com/falaj-ml/falaj/internal/dataset/datasettest"
	"github.com/falaj-ml/falaj/internal/dataset/expectation"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/deletion"
)

// bought are orders of customers, one in three of them carla's.
func bought(from, rows int) string {
	var b strings.Builder
	b.WriteString("buyer,n\n")
	for i := from; i < from+rows; i++ {
		fmt.Fprintf(&b, "%s,%d\n", []string{"amal", "carla", "badr"}[i%3], i)
	}
	return b.String()
}

func carla(reads ...string) dataset.Person {
	p := dataset.Person{
		Project: project, Entity: "customer", Keys: []string{"buyer"}, Read: map[string]bool{}, Purpose: "erasure ers_1",
		Is: func(values []string) bool { return slices.Equal(values, []string{"carla"}) },
	}
	for _, name := range reads {
		p.Read[name] = true
	}
	return p
}

// later is the person in another erasure.
func later(p dataset.Person) dataset.Person {
	p.Purpose = "erasure ers_2"
	return p
}

// rowTexts is a version's rows as text.
func rowTexts(t *testing.T, h *datasettest.Harness, ref string) []string {
	t.Helper()
	r, err := dataset.ParseRef(ref)
	if err != nil {
		t.Fatal(err)
	}
	table, _, err := h.Reads.Preview(datasettest.Context(t), dataset.OpenRequest{Project: project, Ref: r}, 1000)
	if err != nil {
		t.Fatalf("%s: %v", ref, err)
	}
	out := []string{}
	for _, row := range table.Rows {
		out = append(out, fmt.Sprint(row...))
	}
	return out
}

func others(rows []string) []string {
	return slices.DeleteFunc(slices.Clone(rows), func(r string) bool { return strings.Contains(r, "carla") })
}

func redact(t *testing.T, h *datasettest.Harness, p dataset.Person) (done []string) {
	t.Helper()
	if err := h.Erasure.Redact(datasettest.Context(t), p, func(held dataset.Held) error {
		done = append(done, fmt.Sprintf("%s %d %s", held.Version.Ref(), held.Rows, held.Redacted))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return done
}

// in lists the files in which a text is.
func in(t *testing.T, dir, text string) (found []string) {
	t.Helper()
	if err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		if strings.Contains(string(b), text) {
			found = append(found, path)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return found
}

// A person's rows go from every version, and only theirs; each version is followed
// by one that stands for it, and the dataset's name goes on to mean the same one.
func TestRedaction(t *testing.T) {
	for _, protection := range []dataset.Protection{dataset.Sealed, dataset.Open} {
		t.Run(string(protection), func(t *testing.T) {
			dir := t.TempDir()
			h := datasettest.At(t, dir, nil)
			spec := dataset.Spec{Protection: protection}
			was := map[string][]string{}
			for i := range 3 {
				v := h.Put(t, "orders", spec, bought(100*i, 30))
				was[v.Ref().String()] = rowTexts(t, h, v.Ref().String())
			}
			h.Put(t, "orders", spec, "buyer,n\namal,1\n") // orders@4, which has none of carla's
			h.Put(t, "people", spec, bought(0, 6))        // nobody says that these are customers
			if protection == dataset.Open && len(in(t, dir, "carla")) == 0 {
				t.Fatal("the search finds nothing where there is something")
			}

			found, err := h.Erasure.Persons(datasettest.Context(t), carla("orders"))
			if err != nil || len(found.Held) != 3 || len(found.Blind) != 0 || !slices.Equal(found.Undeclared, []string{"people"}) {
				t.Fatalf("%+v, error %v", found, err)
			}
			want := []string{"orders@1 10 orders@5", "orders@2 10 orders@6", "orders@3 10 orders@7"}
			if got := redact(t, h, carla("orders")); !slices.Equal(got, want) {
				t.Fatalf("redacted %v, want %v", got, want)
			}
			for i := int64(1); i <= 3; i++ {
				old, stands := fmt.Sprintf("orders@%d", i), fmt.Sprintf("orders@%d", i+4)
				if diff := gocmp.Diff(others(was[old]), rowTexts(t, h, stands)); diff != "" {
					t.Errorf("%s (- expected + found):\n%s", stands, diff)
				}
				r, _ := dataset.ParseRef(old)
				_, err := h.Reads.Open(datasettest.Context(t), dataset.OpenRequest{Project: project, Ref: r})
				if !fault.Is(err, fault.Gone) || !strings.Contains(fault.HintOf(err), stands) {
					t.Errorf("%s: %v (%s)", old, err, fault.HintOf(err))
				}
				v, err := h.Definitions.Version(datasettest.Context(t), project, r)
				if err != nil || v.State != dataset.Deleted || v.ContentDigest == "" || v.RedactedBy != i+4 || v.Statistics != nil {
					t.Errorf("%s is %+v, error %v", old, v, err)
				}
				ref, err := h.Lineage.Standing(datasettest.Context(t), project, r)
				if err != nil || ref.String() != stands {
					t.Errorf("%s stands for %s, error %v", ref, old, err)
				}
				g, err := h.Lineage.Graph(datasettest.Context(t), project, ref)
				if err != nil || len(g.Parents) != 1 || g.Parents[0].Ref != old || g.Parents[0].Digest != v.ContentDigest {
					t.Errorf("the lineage of %s is %+v, error %v", ref, g, err)
				}
			}
			if got := rowTexts(t, h, "orders"); !slices.Equal(got, []string{"amal1"}) {
				t.Errorf("orders means %v, not version 4", got)
			}
			if got := rowTexts(t, h, "people"); len(got) != 6 {
				t.Errorf("people has %d rows left of 6", len(got))
			}
			if got := redact(t, h, carla("orders")); !slices.Equal(got, want) { // a crash may have come before it was told
				t.Errorf("once more: %v", got)
			}
			if got := redact(t, h, later(carla("orders"))); len(got) != 0 {
				t.Errorf("another erasure: %v", got)
			}

			// The newest one goes: what stands for the one before it takes its place, not
			// what has the highest number.
			if err := h.Definitions.Delete(datasettest.Context(t), project, dataset.Ref{Name: "orders", Number: 4}, deletion.Request{}); err != nil {
				t.Fatal(err)
			}
			if got := rowTexts(t, h, "orders"); !slices.Equal(got, others(was["orders@3"])) {
				t.Errorf("orders means %v", got)
			}
			v := h.Put(t, "orders", spec, bought(1000, 3))
			if got := redact(t, h, later(carla("orders", "people"))); !slices.Equal(got, []string{"orders@8 1 orders@9", "people@1 2 people@2"}) {
				t.Errorf("after %s: %v", v.Ref(), got)
			}
			if got := rowTexts(t, h, "orders"); len(got) != 2 {
				t.Errorf("orders means %v", got)
			}
			if found := in(t, dir, "carla"); len(found) > 0 {
				t.Errorf("the person is in %v", found)
			}
		})
	}
}

// Rows are found by what the dataset declares, and in what was made of such rows.
func TestWhoseRowsTheseAre(t *testing.T) {
	h := datasettest.New(t, nil)
	declared := dataset.Spec{Entities: map[string]map[string]string{"customer": {"buyer": "who"}}}
	h.Put(t, "visits", declared, "who,n\ncarla,1\namal,2\n")
	h.Put(t, "names", dataset.Spec{Entities: map[string]map[string]string{"customer": {}}}, "buyer,n\ncarla,1\n")
	orders := h.Put(t, "orders", dataset.Spec{}, bought(0, 3))
	h.Put(t, "orders", dataset.Spec{Expectations: []expectation.Rule{{Check: "not_null", Column: "buyer"}}}, bought(3, 3))
	if v, err := h.Writes.Import(datasettest.Context(t), dataset.ImportRequest{Project: project, Name: "orders", Filename: "x.csv", Body: strings.NewReader("buyer,n\ncarla,1\n,2\n")}); err != nil || v.State != dataset.Rejected {
		t.Fatalf("%+v, %v", v, err)
	}
	derive := func(name, column string) {
		t.Helper()
		rows, err := h.Reads.Open(datasettest.Context(t), dataset.OpenRequest{Project: project, Ref: orders.Ref(), Columns: []string{column}})
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Release()
		if _, err := h.Writes.Create(datasettest.Context(t), dataset.CreateRequest{Project: project, Name: name, Rows: rows, Parents: []dataset.Ref{orders.Ref()}}); err != nil {
			t.Fatal(err)
		}
	}
	derive("learn", "buyer")
	derive("numbers", "n")

	found, err := h.Erasure.Persons(datasettest.Context(t), carla("orders"))
	if err != nil || !slices.Equal(found.Blind, []string{"numbers@1"}) || len(found.Undeclared) != 0 {
		t.Errorf("%+v, error %v", found, err)
	}
	want := []string{"learn@1 1 learn@2", "orders@1 1 orders@4", "orders@2 1 orders@5", "orders@3 1 ", "visits@1 1 visits@2"}
	if got := redact(t, h, carla("orders")); !slices.Equal(got, want) {
		t.Errorf("redacted %v, want %v", got, want)
	}
	if got := rowTexts(t, h, "names"); len(got) != 1 {
		t.Errorf("names, of which no row is a customer's, has %d rows of 1", len(got))
	}
	// What is declared says whose rows these are, and not what a version is.
	if v, err := h.Writes.Import(datasettest.Context(t), dataset.ImportRequest{Project: project, Name: "visits", Filename: "visits.csv", Body: strings.NewReader("who,n\namal,2\n")}); err != nil || v.Number != 3 {
		t.Errorf("%v, %v", v.Ref(), err)
	}
	for _, bad := range []map[string]map[string]string{{"customer": {"": "who"}}, {"customer": {"buyer": ""}}} {
		if err := (dataset.Spec{Entities: bad}).Validate(); !fault.Is(err, fault.Invalid) {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

// Wherever a redaction breaks off, every version is there as it was or as it shall
// be, and doing it again does what is left.
func TestRedactionBreaksOff(t *testing.T) {
	for stop := range 30 {
		dir := t.TempDir()
		h := datasettest.At(t, dir, nil)
		for i := range 2 {
			h.Put(t, "orders", dataset.Spec{}, bought(100*i, 6))
		}
		want := map[string][]string{"orders@1": others(rowTexts(t, h, "orders@1")), "orders@2": others(rowTexts(t, h, "orders@2"))}
		steps, broken := 0, errors.New("broken off")
		h.Files.Hook = func(string, string) error {
			if steps++; steps > stop {
				return broken
			}
			return nil
		}
		ended := h.Erasure.Redact(context.WithoutCancel(datasettest.Context(t)), carla("orders"), func(dataset.Held) error { return nil })
		h.Files.Hook = nil
		if err := h.DB.Close(); err != nil {
			t.Fatal(err)
		}
		h = datasettest.At(t, dir, nil) // as after a crash
		redact(t, h, carla("orders"))
		for old, rows := range want {
			r, _ := dataset.ParseRef(old)
			ref, err := h.Lineage.Standing(datasettest.Context(t), project, r)
			if err != nil || ref == r {
				t.Fatalf("stopped after %d: %s stands for %s, error %v", stop, ref, old, err)
			}
			if got := rowTexts(t, h, ref.String()); !slices.Equal(got, rows) {
				t.Errorf("stopped after %d: %s has %v, want %v", stop, ref, got, rows)
			}
		}
		if ended == nil {
			if stop < 5 {
				t.Fatalf("it took only %d steps", stop)
			}
			return
		}
	}
	t.Error("it takes more than 30 steps")
}

// during is rows that are read while something happens.
type during struct {
	array.RecordReader
	do func()
}

func (d *during) Next() bool {
	if do := d.do; do != nil {
		d.do = nil
		do()
	}
	return d.RecordReader.Next()
}

// Who has a version open while a person is erased from it reads the person's rows to
// the end, and cannot keep them.
func TestARedactedVersionIsBeingRead(t *testing.T) {
	h := datasettest.New(t, nil)
	ctx := datasettest.Context(t)
	for i, write := range []func(rows array.RecordReader, ref dataset.Ref) error{
		func(rows array.RecordReader, ref dataset.Ref) error {
			_, err := h.Writes.Create(ctx, dataset.CreateRequest{Project: project, Name: "learn", Rows: rows, Parents: []dataset.Ref{ref}})
			return err
		},
		func(rows array.RecordReader, ref dataset.Ref) error {
			_, err := h.Writes.Ingest(ctx, dataset.IngestRequest{Project: project, Name: "orders", Rows: rows, Base: ref.Number})
			return err
		},
	} {
		v := h.Put(t, "orders", dataset.Spec{}, bought(100*i, 30))
		rows, err := h.Reads.Open(ctx, dataset.OpenRequest{Project: project, Ref: v.Ref()})
		if err != nil {
			t.Fatal(err)
		}
		err = write(&during{rows, func() { redact(t, h, carla("orders")) }}, v.Ref())
		rows.Release()
		if !fault.Is(err, fault.Unavailable) || !strings.Contains(fault.HintOf(err), "orders@") {
			t.Errorf("write %d: %v (%s)", i, err, fault.HintOf(err))
		}
		found, err := h.Erasure.Persons(ctx, carla("orders"))
		if err != nil || len(found.Held)+len(found.Blind) > 0 {
			t.Errorf("write %d: %+v, error %v", i, found, err)
		}
	}
}

// A version that stands for another one, for several persons, is known to stand for
// all of them.
func TestStoodFor(t *testing.T) {
	h := datasettest.New(t, nil)
	h.Put(t, "orders", dataset.Spec{}, bought(0, 30))
	redact(t, h, carla("orders"))
	amal := later(carla("orders"))
	amal.Is = func(values []string) bool { return slices.Equal(values, []string{"amal"}) }
	redact(t, h, amal)
	was, err := h.Lineage.StoodFor(datasettest.Context(t), project, dataset.Ref{Name: "orders", Number: 3})
	if err != nil || fmt.Sprint(was) != "[orders@2 orders@1]" {
		t.Errorf("orders@3 stood for %v, error %v", was, err)
	}
}

// Which columns tell: what a dataset says of itself, what views read, and what told
// when the person was erased before a restore.
func TestTelling(t *testing.T) {
	h := datasettest.New(t, nil)
	for name, entities := range map[string]map[string]map[string]string{
		"orders": nil, "notes": nil, "older": nil, "visits": {"customer": {"buyer": "visitor"}}, "sums": {"customer": {}},
	} {
		h.Declare(t, name, dataset.Spec{Entities: entities})
	}
	p := carla("orders", "sums")
	p.Columns = map[string][]string{"older": {"who"}, "visits": {"who"}}
	got, err := h.Erasure.Telling(datasettest.Context(t), p)
	want := map[string][]string{"orders": {"buyer"}, "visits": {"visitor"}, "older": {"who"}}
	if diff := gocmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (- expected + found):\n%s", err, diff)
	}
	h.Put(t, "older", dataset.Spec{}, "who,n\ncarla,1\namal,2\n")
	if got := redact(t, h, p); !slices.Equal(got, []string{"older@1 1 older@2"}) {
		t.Errorf("redacted %v", got)
	}
}

// However many old versions were redacted, the table goes on to say what the dataset's
// name means.
func TestManyRedactions(t *testing.T) {
	h := datasettest.New(t, func(c *dataset.Config) { c.Limits.MetadataDepth = 3 })
	for i := range 6 {
		h.Put(t, "orders", dataset.Spec{}, bought(100*i, 30))
	}
	h.Put(t, "orders", dataset.Spec{}, "buyer,n\namal,7\n") // orders@7
	h.Put(t, "orders", dataset.Spec{}, "buyer,n\namal,8\n") // orders@8
	redact(t, h, carla("orders"))                           // orders@9 … orders@14
	if got := rowTexts(t, h, "orders"); !slices.Equal(got, []string{"amal8"}) {
		t.Errorf("orders means %v", got)
	}
	if err := h.Definitions.Delete(datasettest.Context(t), project, dataset.Ref{Name: "orders", Number: 8}, deletion.Request{}); err != nil {
		t.Fatal(err)
	}
	if got := rowTexts(t, h, "orders"); !slices.Equal(got, []string{"amal7"}) {
		t.Errorf("without orders@8 it means %v", got)
	}
}

// TestErasureAtTheQuota: a project that may store nothing more is redacted, and its tables
// say where they are, all the same.
func TestErasureAtTheQuota(t *testing.T) {
	for _, protection := range []dataset.Protection{dataset.Sealed, dataset.Open} {
		t.Run(string(protection), func(t *testing.T) {
			var limit quota.Limit
			accounts := quota.New(func(context.Context, string) (quota.Limit, error) { return limit, nil })
			objects, at := accounts.Over(&blobtest.Memory{}), "here"
			files := &datafile.Blobs{
				Blobs: blob.New(objects, blobtest.NewSealer()), Driver: objects, Tables: accounts.Over(&blobtest.Memory{}),
				Locate: func(k blob.Key) string { return "file:///" + at + "/" + string(k) },
			}
			h := datasettest.New(t, func(c *dataset.Config) { c.Files = files })
			spec := dataset.Spec{Protection: protection}
			v := h.Put(t, "orders", spec, bought(0, 30))
			want := others(rowTexts(t, h, v.Ref().String()))
			limit = quota.Limit{Bytes: 1, Objects: 1}
			if _, err := h.Writes.Create(datasettest.Context(t), dataset.CreateRequest{Project: project, Name: "more", Rows: someRows(t, 1)}); !fault.Full(err) {
				t.Errorf("a version of rows: %v", err)
			}
			if got := redact(t, h, carla("orders")); !slices.Equal(got, []string{"orders@1 10 orders@2"}) {
				t.Errorf("redacted %v", got)
			}
			if diff := gocmp.Diff(want, rowTexts(t, h, "orders@2")); diff != "" {
				t.Errorf("- expected + found:\n%s", diff)
			}
			at = "elsewhere"
			if err := h.Maintenance.Relocate(t.Context(), project); err != nil {
				t.Errorf("relocated: %v", err)
			}
		})
	}
}
