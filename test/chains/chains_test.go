// Package chains does what docs/guides/serving-chains.md says, with the built binary and
// ONNX Runtime.
package chains

import (
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/test/live"
)

var rewrite = flag.Bool("rewrite", false, "write what is answered into the page")

const page = "docs/guides/serving-chains.md"

var blocks = regexp.MustCompile("(?s)```(yaml|json)\n(.*?)```")

// example is the manifest, the request and the answer of the page.
func example(t *testing.T, root string) (text, manifest, request, answer string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, page))
	if err != nil {
		t.Fatal(err)
	}
	found := blocks.FindAllStringSubmatch(string(b), -1)
	if len(found) < 3 || found[0][1] != "yaml" || found[1][1] != "json" || found[2][1] != "json" {
		t.Fatalf("%s begins with other blocks", page)
	}
	return string(b), found[0][2], found[1][2], found[2][2]
}

// answer is what is compared of a reply.
type answer struct {
	Outputs []struct {
		Name     string `json:"name"`
		Datatype string `json:"datatype"`
		Shape    []int  `json:"shape"`
		Data     []any  `json:"data"`
	} `json:"outputs"`
}

func TestGuide(t *testing.T) {
	s := live.New(t, "")
	s.Up(t)
	p := s.Project(t, "nyc")
	text, manifest, request, said := example(t, p.Bin.Root)
	standardise, err := os.ReadFile(filepath.Join("testdata", "standardise.onnx"))
	p.Must(err)
	p.Register("delay", p.Logistic(), p.Logistic())
	p.Register("standardise", standardise, standardise)
	p.Apply(manifest)

	ask := func() (got answer) {
		t.Helper()
		p.Must(p.Foreign(p.C, http.MethodPost, "/v2/models/late/infer", json.RawMessage(request), &got))
		return got
	}
	got := ask()
	if *rewrite {
		var b strings.Builder
		b.WriteString(`{"outputs": [`)
		for i, o := range got.Outputs {
			line, err := json.Marshal(o.Data)
			p.Must(err)
			fmt.Fprintf(&b, "%s\n  {\"name\": %q, \"datatype\": %q, \"shape\": [%d], \"data\": %s}", strings.Repeat(",", min(i, 1)), o.Name, o.Datatype, o.Shape[0], strings.ReplaceAll(string(line), ",", ", "))
		}
		b.WriteString("]}\n")
		p.Must(os.WriteFile(filepath.Join(p.Bin.Root, page), []byte(strings.Replace(text, said, b.String(), 1)), 0o600))
		return
	}
	var want answer
	p.Must(client.Decode(strings.NewReader(said), &want))
	if a, b := plain(t, got), plain(t, want); a != b {
		t.Errorf("answered\n%s\nthe page says\n%s", a, b)
	}

	t.Run("batched", func(t *testing.T) { // many ask, each with a row of its own
		var all sync.WaitGroup
		for i := range 24 {
			all.Go(func() {
				for range 10 {
					a, err := p.Infer(p.C, "late", nil, live.Tensor("hour", "INT64", []int{i}, 1), live.Tensor("carrier", "BYTES", []string{"UA"}, 1))
					if err != nil {
						t.Error(err)
						return
					}
					late := 1 / (1 + math.Exp(-(0.8316221833229065*(float64(i)-5)/5 + 0.7340753078460693*4 - 3.372769355773926)))
					if want := math.Max(late, 1-late); math.Abs(a.Score()-want) > 1e-5 {
						t.Errorf("hour %d: sure %v, want %v", i, a.Score(), want)
					}
				}
			})
		}
		all.Wait()
	})
	t.Run("where the time goes", func(t *testing.T) {
		if out := p.Run(0, "deploy", "status", "late"); !strings.Contains(out, "STEP") || !strings.Contains(out, "before[2]") || !strings.Contains(out, "after[0]") {
			t.Error(out)
		}
	})
	t.Run("a row that fails", func(t *testing.T) {
		if _, err := p.Try(p.C, strings.ReplaceAll(manifest, "in ['AA', 'UA']", "in ['AA', 'UA', 'ZZ']")); err != nil {
			t.Fatal(err)
		}
		err := p.Foreign(p.C, http.MethodPost, "/v2/models/late/infer", json.RawMessage(request), nil)
		if err == nil || !strings.Contains(err.Error(), "step before[0]: code of row 2 cannot be computed") || strings.Contains(err.Error(), "ZZ") {
			t.Errorf("%v", err)
		}
		p.Apply(manifest)
	})
	t.Run("in use", func(t *testing.T) {
		// The version that is a step stays; the other one goes.
		remove := func(version string) error {
			return p.Foreign(p.C, http.MethodDelete, "/api/2.0/mlflow/model-versions/delete", map[string]any{"name": "standardise", "version": version}, nil)
		}
		if err := remove("1"); err == nil || !strings.Contains(err.Error(), "deployment late") {
			t.Errorf("a step was deleted: %v", err)
		}
		p.Must(remove("2"))
	})
	t.Run("lineage", func(t *testing.T) {
		out := p.Run(0, "lineage", "late", "--kind", "deployment")
		for _, model := range []string{"delay@1", "standardise@1"} {
			if !strings.Contains(out, model) {
				t.Errorf("the lineage does not have %s:\n%s", model, out)
			}
		}
	})
	t.Run("scoring a dataset is refused", func(t *testing.T) {
		p.Apply("{api_version: falaj/v1, kind: Dataset, name: flights, project: PROJECT}")
		p.Import("flights", "hour,carrier\n6,AA\n")
		if out := p.Run(1, "predict", "--deployment", "late", "--dataset", "flights", "--into", "scores"); !strings.Contains(out, "steps before or after its model") {
			t.Error(out)
		}
	})
	t.Run("a rollout", func(t *testing.T) {
		p.Run(0, "deploy", "canary", "late", "--version", "2", "--weight", "50")
		a, err := p.Infer(p.C, "late/versions/2", nil, live.Tensor("hour", "INT64", []int{15}, 1), live.Tensor("carrier", "BYTES", []string{"UA"}, 1))
		if err != nil || a.Version != "2" || a.Outputs[0].Data[0] != "late" {
			t.Errorf("%+v %v", a, err)
		}
	})
	t.Run("after a kill", func(t *testing.T) {
		p.Must(s.Kill())
		p.Again()
		p.Loaded()
		if a, b := plain(t, ask()), plain(t, want); a != b {
			t.Errorf("answered %s, and before %s", a, b)
		}
	})
}

func plain(t *testing.T, a answer) string {
	t.Helper()
	b, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
