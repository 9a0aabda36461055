// Package predict has a dataset answered by a deployed model with the built binary: the
// job in its sandbox, the version that it makes, and what is refused.
package predict

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/test/live"
)

const count = 300

// rows are what the model answers, as a file and as a request.
func rows() (csv string, flat []any) {
	var b strings.Builder
	b.WriteString("flight,a,b,c,d\n")
	r := rand.New(rand.NewPCG(1, 2))
	for i := range count {
		fmt.Fprintf(&b, "UA%03d", count-i) // no order but that of the file
		for range 4 {
			x := 2*r.Float64() - 1
			flat = append(flat, x)
			fmt.Fprintf(&b, ",%v", x)
		}
		b.WriteString("\n")
	}
	return b.String(), flat
}

func number(t *testing.T, x any) float64 {
	t.Helper()
	v, err := strconv.ParseFloat(fmt.Sprint(x), 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestPredict(t *testing.T) {
	s := live.New(t, "")
	s.Up(t)
	p := s.Project(t, "scores")
	p.Apply(`{api_version: falaj/v1, kind: Dataset, name: flights, project: PROJECT, spec: {classification: confidential}}
---
{api_version: falaj/v1, kind: Dataset, name: past, project: PROJECT, spec: {entities: {customer: {customer: customer}}}}
---
{api_version: falaj/v1, kind: Entity, name: customer, project: PROJECT, spec: {}}
---
{api_version: falaj/v1, kind: Dataset, name: short, project: PROJECT}`)
	csv, flat := rows()
	p.Import("flights", csv)
	p.Import("past", "customer,late\nann,0\nbob,1\n")
	p.Import("short", "flight,a,b,c\nUA1,1,2,3\n")

	// A model that a job made of other data, and another version that is tried.
	net, err := os.ReadFile(filepath.Join(p.Bin.Root, "test/optimize/testdata/net.onnx"))
	p.Must(err)
	for _, name := range []string{"first", "second"} {
		job := p.Apply(`{api_version: falaj/v1, kind: Job, name: ` + name + `, project: PROJECT, spec: {source: "` + p.Source("net.onnx", net) + `", data: {past: past}, register: late,
  command: [/bin/sh, -c, 'mkdir $FALAJ_OUTPUT_DIR/model && cp net.onnx $FALAJ_OUTPUT_DIR/model/model.onnx']}}`)
		p.Ends(job[0].ID, "succeeded")
	}
	p.Apply(`{api_version: falaj/v1, kind: Deployment, name: late, project: PROJECT, spec: {model: late, version: "1"}}`)
	p.Run(0, "deploy", "canary", "late", "--version", "2", "--weight", "99")

	// Each row is answered by the stable version, as a request is, in the order of the rows.
	out := p.Run(0, "predict", "--deployment", "late", "--dataset", "flights@1", "--into", "scored", "--keep", "flight", "--batch-rows", "64", "--wait")
	if !strings.Contains(out, "scored@1: 300 rows of dataset flights@1, predicted by model late@1") {
		t.Error(out)
	}
	online, err := p.Infer(p.C, "late", nil, live.Tensor("x", "FP32", flat, count, 4))
	p.Must(err)
	var table struct{ Rows [][]any }
	p.Must(p.C.Do(t.Context(), http.MethodPost, p.Path("query"), map[string]any{"sql": "SELECT flight, late FROM scored", "limit": count}, &table))
	if len(table.Rows) != count || len(online.Outputs[0].Data) != count {
		t.Fatalf("%d rows, and %d answers of requests", len(table.Rows), len(online.Outputs[0].Data))
	}
	for i, row := range table.Rows {
		asked := number(t, online.Outputs[0].Data[i])
		if row[0] != fmt.Sprintf("UA%03d", count-i) || math.Abs(number(t, row[1])-asked) > 1e-6 {
			t.Fatalf("row %d: %v, and a request is answered with %v", i, row, asked)
		}
	}

	// It is as closed as the rows, and made of them, of the model and of what that was
	// trained on.
	var made client.Object
	p.Must(p.C.Do(t.Context(), http.MethodGet, p.Path("datasets/scored@1/version"), nil, &made))
	if made.Text("classification") != "confidential" {
		t.Errorf("%v", made)
	}
	graph := p.Run(0, "lineage", "scored@1", "--up")
	tree := p.Run(0, "dataset", "lineage", "scored@1")
	for _, want := range []string{"dataset flights@1", "dataset past@1", "model late@1"} {
		if !strings.Contains(graph, want) || !strings.Contains(tree, want) {
			t.Errorf("no %s in the lineage:\n%s\n%s", want, graph, tree)
		}
	}
	if strings.Contains(graph+tree, "late@2") {
		t.Errorf("what is tried answered:\n%s\n%s", graph, tree)
	}
	if out := p.Run(0, "lineage", "late@1", "--kind", "model", "--down"); !strings.Contains(out, "scored@1") {
		t.Error(out)
	}

	// Without --wait it is queued, and all columns are kept beside the answers.
	out = p.Run(0, "predict", "--deployment", "late", "--dataset", "flights", "--into", "all", "--prefix", "predicted_", "--columns", "a,b,c,d", "-o", "json")
	var job client.Object
	p.Must(client.Decode(strings.NewReader(out), &job))
	if job = p.Ends(job.Text("id"), "succeeded"); job.Text("dataset") != "all@1" {
		t.Errorf("%v", job)
	}
	p.Must(p.C.Do(t.Context(), http.MethodPost, p.Path("query"), map[string]any{"sql": `SELECT count(*) FROM "all" JOIN scored USING (flight) WHERE predicted_late = late AND a BETWEEN -1 AND 1`}, &table))
	if len(table.Rows) != 1 || number(t, table.Rows[0][0]) != count {
		t.Errorf("%v", table.Rows)
	}

	// A column that is missing is said, with what to do, and makes no version.
	out = p.Run(1, "predict", "--deployment", "late", "--dataset", "short", "--into", "none", "--wait")
	if !strings.Contains(out, "failed") || !strings.Contains(out, "in the model's order with --columns") {
		t.Error(out)
	}
	p.Run(4, "describe", "dataset", "none")

	// Nor is one made with a model that learned of a person who was erased since.
	p.Run(0, "erase", "customer", "ann", "--reason", "request 1")
	out = p.Run(4, "predict", "--deployment", "late", "--dataset", "flights", "--into", "none")
	if !strings.Contains(out, "rows can no longer be created with model late@1") || !strings.Contains(out, "Retrain the model") {
		t.Error(out)
	}
}
