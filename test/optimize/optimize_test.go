// Package optimize has a model optimised by the built binary: the job in its sandbox,
// the version that it makes, and what is refused.
package optimize

import (
	_ "embed"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/test/live"
)

// net learned what rows says.
//
//go:embed testdata/net.onnx
var net []byte

// exported is net as PyTorch exports some: weights in a file of their own, and shapes of the
// weights from before they were transposed.
//
//go:embed testdata/export.onnx
var exported []byte

//go:embed testdata/export.onnx.data
var exportedData []byte

func rows(n int) string {
	var b strings.Builder
	b.WriteString("a,b,c,d,late\n")
	r := rand.New(rand.NewPCG(1, 2))
	for range n {
		x := [4]float64{}
		for i := range x {
			x[i] = 2*r.Float64() - 1
		}
		late := 0
		if math.Sin(3*x[0])+x[1]*x[2]-x[3] > 0 {
			late = 1
		}
		fmt.Fprintf(&b, "%v,%v,%v,%v,%d\n", x[0], x[1], x[2], x[3], late)
	}
	return b.String()
}

type report struct {
	Metric, Chosen, Reason, Of, Made, State string
	Candidates                              []struct {
		Name, Reason string
		Bytes        int64
		Value, Loss  *float64
		Measured     []struct {
			P50     float64 `json:"p50_ms"`
			Speedup float64
		}
	}
}

func TestOptimize(t *testing.T) {
	s := live.New(t, "")
	s.Up(t)
	p := s.Project(t, "opt")
	p.Apply(`{api_version: falaj/v1, kind: Dataset, name: flights, project: opt}`)
	p.Import("flights", rows(2000))
	p.Register("late", net)

	// begin submits what is asked of a model, and gives how it ended.
	begin := func(model string, body map[string]any) (job client.Object, r report) {
		t.Helper()
		body["data"], body["rounds"] = "flights", 1
		p.Must(p.C.Do(t.Context(), http.MethodPost, p.Path("models/"+model+"/versions/1/optimize"), body, &job))
		id := job.Text("id")
		p.Within(10*time.Minute, "the job does not end", func() (bool, error) {
			err := p.C.Do(t.Context(), http.MethodGet, p.Path("jobs/"+id+"?wait=20s"), nil, &job)
			return slices.Contains([]string{"succeeded", "failed", "cancelled"}, job.Text("state")), err
		})
		if err := p.C.Do(t.Context(), http.MethodGet, p.Path("jobs/"+id+"/optimization"), nil, &r); err != nil {
			t.Errorf("%v, job %v", err, job)
			t.Fatal(p.Run(0, "job", "logs", id))
		}
		return job, r
	}
	versions := func() []client.Object {
		t.Helper()
		var list struct{ Items []client.Object }
		p.Must(p.C.Do(t.Context(), http.MethodGet, p.Path("models/late/versions"), nil, &list))
		return list.Items
	}

	// Everything is tried; the one that is asked for becomes a version.
	_, r := begin("late", map[string]any{"label": "late", "max_loss": 0.2, "choose": "pruned-50"})
	if r.Metric != "auc" || r.Chosen != "pruned-50" || r.Of != "late@1" || r.Made != "late@2" || r.State != "succeeded" || len(r.Candidates) != 10 {
		t.Errorf("%+v", r)
	}
	size := map[string]int64{}
	for _, c := range r.Candidates {
		if c.Name == "int8-static-all" || c.Name == "fused" { // as the library finds something, or not
			continue
		}
		if c.Reason != "" || len(c.Measured) != 2 || c.Measured[0].P50 <= 0 || c.Value == nil || *c.Value < 0.8 || c.Loss == nil || *c.Loss > 0.2 {
			t.Errorf("%+v", c)
		}
		size[c.Name] = c.Bytes
	}
	if size["fp32"] != int64(len(net)) || size["fp16"]*10 > size["fp32"]*7 || size["int8-dynamic"]*10 > size["fp32"]*7 || size["pruned-75"]*2 > size["fp32"] {
		t.Errorf("bytes: %v", size)
	}
	made := versions()[0]
	if made.Text("version") != "2" || made.Text("signed") != "true" || fmt.Sprint(made["parents"]) != "[late@1]" || fmt.Sprint(made["datasets"]) != "[flights@1]" || made.Text("job") == "" {
		t.Errorf("%v", made)
	}
	p.Run(0, "model", "verify", "late", "2")
	for of, want := range map[string]string{"late@1": "late@2", "late@2": "late@1"} {
		if out := p.Run(0, "lineage", of, "--kind", "model"); !strings.Contains(out, want) {
			t.Errorf("lineage of %s:\n%s", of, out)
		}
	}
	p.Apply(`{api_version: falaj/v1, kind: Deployment, name: late, project: opt, spec: {model: late, version: "2"}}`)
	p.Loaded()

	// What loses more than is allowed is refused, with how much it loses, and a dry run
	// makes nothing, nor does what is not fast enough.
	job, r := begin("late", map[string]any{"label": "late", "max_loss": 0, "try": []string{"distilled"}, "choose": "distilled"})
	if job.Text("state") != "failed" || !strings.Contains(r.Reason, "is refused: it loses 0.") || r.Made != "" || r.Chosen != "" {
		t.Errorf("%v %+v", job, r)
	}
	job, r = begin("late", map[string]any{"max_loss": 1, "try": []string{"fp16"}, "min_speedup": 100, "columns": map[string][]string{"x": {"a", "b", "c", "d"}}})
	if job.Text("state") != "succeeded" || r.Metric != "r2" || r.Made != "" || !strings.Contains(r.Reason, "no candidate is 100.00 times as fast") {
		t.Errorf("%v %+v", job, r)
	}
	job, r = begin("late", map[string]any{"label": "late", "max_loss": 1, "try": []string{"fp16"}, "choose": "fp16", "dry_run": true})
	if job.Text("state") != "succeeded" || r.Made != "" || r.Chosen != "fp16" {
		t.Errorf("%v %+v", job, r)
	}
	if n := len(versions()); n != 2 {
		t.Errorf("%d versions", n)
	}

	// Quantisation takes what PyTorch exports, and what becomes a version leaves the
	// file of weights behind.
	p.Must(p.Foreign(p.C, http.MethodPost, "/api/2.0/mlflow/registered-models/create", map[string]any{"name": "exported"}, nil))
	p.RegisterFiles("exported", map[string][]byte{"model.onnx": exported, "export.onnx.data": exportedData})
	job, r = begin("exported", map[string]any{"label": "late", "max_loss": 0.2, "try": []string{"int8-dynamic", "int8-static", "fp16"}, "choose": "int8-dynamic"})
	if job.Text("state") != "succeeded" || r.Made != "exported@2" || len(r.Candidates) != 4 || r.Candidates[0].Bytes != int64(len(exported)+len(exportedData)) {
		t.Errorf("%v %+v", job, r)
	}
	for _, c := range r.Candidates {
		if c.Reason != "" || c.Value == nil || *c.Value < 0.8 || c.Loss == nil || *c.Loss > 0.2 {
			t.Errorf("%+v", c)
		}
	}
	for version, has := range map[string]bool{"1": true, "2": false} {
		err := p.Foreign(p.C, http.MethodGet, "/model-versions/get-artifact?name=exported&version="+version+"&path=export.onnx.data", nil, nil)
		if (err == nil) != has {
			t.Errorf("the weights of version %s: %v", version, err)
		}
	}
	p.Run(0, "model", "verify", "exported", "2")

	// The command says the same; the wrong column is said at once by the job.
	out := p.Run(1, "model", "optimize", "late@1", "--data", "flights", "--label", "nothing", "--try", "fp16")
	if !strings.Contains(out, "failed") {
		t.Error(out)
	}
	out = p.Run(0, "model", "optimize", "late@1", "--data", "flights", "--label", "late", "--try", "pruned", "--max-loss", "1", "--min-speedup", "100", "--rounds", "1")
	for _, want := range []string{"CANDIDATE", "pruned-75", "a fp32", "no candidate is 100.00 times"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
}
