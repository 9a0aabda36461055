package iceberg_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/dataset/datasettest"
)

// Unmodified pyiceberg and Polars read what is open.
func TestPyicebergAndPolarsRead(t *testing.T) {
	w := open(t)
	w.weather(t)
	t.Log(w.python(t, "tables", "read.py"))
}

// A directory of tables that is elsewhere now, as after a restore, is read there; nothing
// leads to where it was.
func TestPyicebergReadsWhatWasMoved(t *testing.T) {
	w := open(t)
	w.weather(t)
	w.moves(t)
	t.Log(w.python(t, "tables", "read.py"))
}

// moves takes the files to another directory and tells the service.
func (w *world) moves(t *testing.T) {
	t.Helper()
	was, now := w.Files.Dir, filepath.Join(t.TempDir(), "elsewhere")
	if err := os.Rename(was, now); err != nil {
		t.Fatal(err)
	}
	w.Files.Dir = now
	for range 2 { // as after a crash
		if err := w.Maintenance.Relocate(datasettest.Context(t), datasettest.Project); err != nil {
			t.Fatal(err)
		}
	}
	d, err := w.Definitions.One(datasettest.Context(t), datasettest.Project, "weather")
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range w.Files.List(t) {
		manifest := strings.Contains(key, "/manifest-") || strings.Contains(key, "/snapshot-") || key == d.Metadata
		if !manifest || !strings.Contains(key, "/weather/") {
			continue
		}
		b, err := os.ReadFile(filepath.Join(now, key))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(b), was) || !strings.Contains(string(b), now) && !strings.HasSuffix(key, ".avro") {
			t.Errorf("%s says that the table is in %s", key, was)
		}
	}
}

// Without a client: what is written where it was moved to names no other place, and
// another commit goes on there.
func TestMovedTablesSayWhereTheyAre(t *testing.T) {
	w := open(t)
	w.weather(t)
	before, err := w.Definitions.One(datasettest.Context(t), datasettest.Project, "weather")
	if err != nil {
		t.Fatal(err)
	}
	w.moves(t)
	after, err := w.Definitions.One(datasettest.Context(t), datasettest.Project, "weather")
	if err != nil || after.Metadata == before.Metadata || after.Accepted != before.Accepted || after.Latest != before.Latest {
		t.Errorf("%+v, before %+v, error %v", after, before, err)
	}
	w.versions(t, "weather", "accepted 1", "rejected 1", "accepted 3")
}

// Unmodified pyiceberg writes: each commit that is accepted is a version.
func TestPyicebergWrites(t *testing.T) {
	w := open(t)
	w.weather(t)
	t.Log(w.python(t, "tables", "write.py"))
	w.versions(t, "people", "accepted 2", "accepted 3", "accepted 4", "accepted 3", "accepted 2", "accepted 3")
	w.versions(t, "weather", "accepted 1", "rejected 1", "accepted 3", "rejected 4", "accepted 4")
	w.versions(t, "made", "accepted 1")
	ctx := datasettest.Context(t)
	made, err := w.Definitions.One(ctx, datasettest.Project, "made")
	if err != nil || len(made.Spec.Expectations) != 1 || made.Spec.Expectations[0].String() != "not_null(id)" {
		t.Errorf("%+v %v", made.Spec, err)
	}
	v, err := w.Definitions.Version(ctx, datasettest.Project, dataset.Ref{Name: "people", Number: 2})
	if err != nil || len(v.Lineage.Parents) != 1 || v.Lineage.Parents[0].Ref != "people@1" || v.Lineage.Producer.Kind != "commit" || v.Lineage.Producer.ID != "alice" {
		t.Errorf("the lineage of an appended version: %+v %v", v.Lineage, err)
	}
	w.nothingLeft(t)
}

// versions holds the states and rows of a dataset's versions, oldest first.
func (w *world) versions(t *testing.T, name string, want ...string) {
	t.Helper()
	vs, _, err := w.Definitions.Versions(datasettest.Context(t), datasettest.Project, name, dataset.Page{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, v := range slices.Backward(vs) {
		got = append(got, fmt.Sprintf("%s %d", v.State, v.Rows))
	}
	if !slices.Equal(got, want) {
		t.Errorf("versions of %s: %q, want %q", name, got, want)
	}
}

// nothingLeft holds that what clients wrote is gone once it is swept, and that
// every version can still be read.
func (w *world) nothingLeft(t *testing.T) {
	t.Helper()
	ctx := datasettest.Context(t)
	w.Config.Now = func() time.Time { return time.Now().Add(100 * time.Hour) }
	if _, err := dataset.New(w.Config).Tables.Sweep(ctx, datasettest.Project); err != nil {
		t.Fatal(err)
	}
	for _, key := range w.Files.List(t) {
		if !strings.Contains(key, "/dsv_") {
			t.Errorf("%s is left", key)
		}
	}
	names, _, err := w.Tables.ListTables(ctx, datasettest.Project, dataset.Page{})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		vs, _, err := w.Definitions.Versions(ctx, datasettest.Project, name, dataset.Page{})
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range vs {
			if v.State != dataset.Accepted {
				continue
			}
			rows, err := w.Reads.Open(ctx, dataset.OpenRequest{Project: datasettest.Project, Ref: v.Ref()})
			if err != nil {
				t.Fatalf("%s: %v", v.Ref(), err)
			}
			n := int64(0)
			for rows.Next() {
				n += rows.RecordBatch().NumRows()
			}
			if rows.Err() != nil || n != v.Rows {
				t.Errorf("%s has %d rows, not %d: %v", v.Ref(), n, v.Rows, rows.Err())
			}
			rows.Release()
		}
	}
}
