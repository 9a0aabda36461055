package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/google/go-cmp/cmp"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/dataset/child"
	"github.com/falaj-ml/falaj/internal/dataset/datasettest"
	"github.com/falaj-ml/falaj/internal/dataset/source/files"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/store/storetest"
	"github.com/falaj-ml/falaj/internal/training"
	"github.com/falaj-ml/falaj/internal/training/trainingsql"
)

// A job ran the step that was recorded of it, over the versions that it was handed.
func TestRanBy(t *testing.T) {
	j := training.Job{Inputs: []training.Input{{Name: "t1", Ref: "dataset a@2"}}}
	if ran, err := ranBy(j); ran != nil || err != nil {
		t.Errorf("another job ran %v: %v", ran, err)
	}
	j.Step = &training.Step{SQL: "FROM a", Tables: map[string]string{"a@2": "t1"}}
	ran, err := ranBy(j)
	if diff := cmp.Diff(&dataset.Ran{SQL: "FROM a", Tables: map[string]dataset.Ref{"a@2": {Name: "a", Number: 2}}}, ran); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	j.Step.Tables["b"] = "t2"
	if _, err := ranBy(j); !fault.Is(err, fault.Internal) {
		t.Errorf("of what it was not handed: %v", err)
	}
}

// A job could read its data, its tables, what its models were trained on, and what the jobs
// before it could.
func TestReadings(t *testing.T) {
	at := time.Date(2013, 1, 1, 0, 0, 0, 0, time.UTC)
	got, err := inputsOf(training.Job{
		Inputs: []training.Input{{Name: "a", Ref: "dataset weather@3"}, {Name: "m", Ref: "model delay@1", Datasets: []string{"flights@4", "a file"}}}, Tables: []training.Input{{Name: "late", Ref: "dataset late@2"}},
		Spec: training.Spec{Tables: []string{"late", "fresh"}}, SubmittedAt: at, StartedAt: at.Add(time.Hour),
	}, []training.Job{{Inputs: []training.Input{{Ref: "dataset staff@1"}}, SubmittedAt: at, Residency: residency.Of("AE", "home")}})
	want := []dataset.JobInputs{
		{Versions: []dataset.Ref{{Name: "weather", Number: 3}, {Name: "flights", Number: 4}}, Beside: []dataset.Labelled{{Name: "model delay@1"}}, Tables: []dataset.Ref{{Name: "late", Number: 2}, {Name: "fresh"}}, Zones: residency.Of("home"), Since: at.Add(time.Hour)},
		{Versions: []dataset.Ref{{Name: "staff", Number: 1}}, Zones: residency.Of("AE", "home"), Since: at},
	}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	// What is made with a model is as confined as it, and made of what it was trained on.
	got, err = inputsOf(training.Job{Inputs: []training.Input{{
		Ref: "model m@1", Residency: residency.Of("home"), Classification: project.Confidential, Datasets: []string{"learn@3", "file:///else"},
	}}, SubmittedAt: at}, nil)
	want = []dataset.JobInputs{{
		Versions: []dataset.Ref{{Name: "learn", Number: 3}}, Zones: residency.Of("home"), Since: at,
		Beside: []dataset.Labelled{{Name: "model m@1", Residency: residency.Of("home"), Classification: project.Confidential}},
	}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("of a model: %v (-want +got):\n%s", err, diff)
	}
}

// An attempt could read what its job could, whether that goes on from a checkpoint or not.
func TestJobInputs(t *testing.T) {
	at := time.Date(2013, 1, 1, 0, 0, 0, 0, time.UTC)
	db := storetest.SQLite(t, trainingsql.Migrations)
	a := Attempts{Training: training.New(training.Config{DB: db, Store: trainingsql.Store{}}).Records}
	if err := db.Update(t.Context(), "", func(ctx context.Context, tx *store.Tx) error {
		for i, j := range []training.Job{
			{ID: "job_1", Inputs: []training.Input{{Ref: "dataset staff@1"}}},
			{ID: "job_2", Spec: training.Spec{Tables: []string{"orders"}}, Tables: []training.Input{{Name: "orders", Ref: "dataset orders@1"}}},
			{ID: "job_3", Spec: training.Spec{Resume: "job_1/last"}},
		} {
			j.Project, j.SubmittedAt, j.State, j.Residency = datasettest.Project, at, training.Queued, residency.Of("home")
			if err := (trainingsql.Store{}).InsertJob(ctx, tx, j); err != nil {
				return err
			}
			if err := (trainingsql.Store{}).InsertAttempt(ctx, tx, training.Attempt{ID: training.AttemptID(fmt.Sprint("att_", i+1)), Job: j.ID, Made: at}); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	home := residency.Of("home")
	staff := dataset.JobInputs{Versions: []dataset.Ref{{Name: "staff", Number: 1}}, Zones: home, Since: at}
	for attempt, want := range map[string][]dataset.JobInputs{
		"att_1": {staff},
		"att_2": {{Tables: []dataset.Ref{{Name: "orders", Number: 1}}, Zones: home, Since: at}},
		"att_3": {{Zones: home, Since: at}, staff},
	} {
		got, err := a.Inputs(t.Context(), attempt)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", attempt, err, diff)
		}
	}
}

// The program has what it is told in it, however much that is, and whatever it says.
func TestSparkScript(t *testing.T) {
	told := sparkStep{SQL: "SELECT 'it''s \\\" \n \u2028 🛩' AS \"a\tb\"", Tables: map[string]string{"weather@1": "t1"}, Memory: 512, Cores: 1}
	for i := range 10_000 {
		told.Columns = append(told.Columns, dataset.Column{Name: fmt.Sprintf("column_%d_of_many", i), Type: "float64"})
	}
	script, err := told.script()
	if err != nil {
		t.Fatal(err)
	}
	if spec := (training.Spec{Script: script, Environment: "spark"}); spec.Validate() != nil {
		t.Errorf("of %d bytes: %v", len(script), spec.Validate())
	}
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Fatal(err) // Falaj needs it, too
	}
	line, _, _ := strings.Cut(script, "\n")
	cmd := exec.CommandContext(t.Context(), python, "-")
	cmd.Stdin = strings.NewReader(line + "\nimport sys\nsys.stdout.buffer.write(STEP.encode())\n")
	out, err := cmd.Output()
	var got sparkStep
	if err := errors.Join(err, json.Unmarshal(out, &got)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(told, got); diff != "" {
		t.Errorf("Python reads (-told +read):\n%s", diff)
	}
}

// fatal are parsers that every file brings down.
type fatal struct{ launched *int }

func (f fatal) Launch(ctx context.Context, _ string, _ child.LaunchOptions) (child.Process, error) {
	*f.launched++
	return child.Plain{Cmd: exec.CommandContext(ctx, "/bin/false")}, nil
}

// Files that bring the parser down are read some times, and then refused.
func TestRowsThatBringTheParserDown(t *testing.T) {
	launched := 0
	h := datasettest.New(t, func(c *dataset.Config) { c.Launcher = fatal{&launched} })
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a.parquet"), []byte("PAR1"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := training.RowsSpec{Job: training.Job{ID: "job_1", Project: datasettest.Project, Spec: training.Spec{Into: "made"}, SubmittedAt: time.Now()}, Dir: dir}
	_, err := Rows{h.Services, files.Driver{}}.Save(datasettest.Context(t), s)
	if !fault.Is(err, fault.Invalid) || launched != readTries || !strings.Contains(err.Error(), "cannot be read") || !strings.Contains(err.Error(), "3 times") {
		t.Errorf("after %d times: %v", launched, err)
	}
	// What is not the files' doing is tried for as long as it takes.
	full := errors.New("disk full")
	working := datasettest.New(t, nil)
	working.Files.Hook = func(string, string) error { return full }
	if err := errors.Join(os.Remove(filepath.Join(dir, "a.parquet")), writeParquet(filepath.Join(dir, "a.parquet"))); err != nil {
		t.Fatal(err)
	}
	if _, err := (Rows{working.Services, files.Driver{}}).Save(datasettest.Context(t), s); !errors.Is(err, full) || fault.Is(err, fault.Invalid) {
		t.Errorf("of a full disk: %v", err)
	}
	working.Files.Hook = nil
	s.Made = func(_ context.Context, _ *store.Tx, ref string) error {
		if ref != "made@1" {
			t.Errorf("made %s", ref)
		}
		return nil
	}
	if ref, err := (Rows{working.Services, files.Driver{}}).Save(datasettest.Context(t), s); err != nil || ref != "made@1" {
		t.Errorf("%s, %v", ref, err)
	}
}

// writeParquet writes a file of one row.
func writeParquet(path string) error {
	schema := arrow.NewSchema([]arrow.Field{{Name: "a", Type: arrow.PrimitiveTypes.Int64}}, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	b.Field(0).(*array.Int64Builder).Append(7)
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	w, err := pqarrow.NewFileWriter(schema, f, nil, pqarrow.DefaultWriterProps())
	if err != nil {
		return err
	}
	return errors.Join(w.Write(b.NewRecordBatch()), w.Close())
}

// What a job leaves in rows/ is taken whole, or refused.
func TestPartsOnly(t *testing.T) {
	for name, c := range map[string]struct {
		files []string
		says  string
	}{
		"Spark's":            {[]string{"part-0.parquet", ".part-0.parquet.crc", "_SUCCESS", "_metadata", "_common_metadata"}, ""},
		"partitions":         {[]string{"part-0.parquet", "day=1/part-0.parquet"}, "rows/day=1"},
		"another file":       {[]string{"part-0.parquet", "more.csv"}, "rows/more.csv"},
		"nothing":            {[]string{"_SUCCESS"}, "no *.parquet"},
		"a hidden part":      {[]string{"part-0.parquet", ".part-1.parquet"}, "rows/.part-1.parquet"},
		"what Spark hides":   {[]string{"part-0.parquet", "_x.parquet"}, "rows/_x.parquet"},
		"what is unfinished": {[]string{"part-0.parquet", "_temporary/0/part-1.parquet"}, "rows/_temporary"},
		"a hidden directory": {[]string{"part-0.parquet", ".x/part-1.parquet"}, "rows/.x"},
		"called like a part": {[]string{"part-0.parquet", "x.parquet/part-1.parquet"}, "rows/x.parquet"},
		"upper case":         {[]string{"part-0.parquet", "b.PARQUET"}, "rows/b.PARQUET"},
	} {
		dir := t.TempDir()
		for _, f := range c.files {
			path := filepath.Join(dir, f)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		size, err := partsOnly(dir)
		if c.says == "" && size != 1 {
			t.Errorf("%s: %d bytes", name, size)
		}
		if c.says == "" && err != nil || c.says != "" && (!fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
