package card_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/registry"
	"github.com/falaj-ml/falaj/internal/registry/card"
	"github.com/falaj-ml/falaj/internal/registry/scan"
	"github.com/falaj-ml/falaj/internal/tracking"
)

var rewrite = flag.Bool("rewrite", false, "write what comes out to testdata")

func digest(c string) string { return "sha256:" + strings.Repeat(c, 64) }

// full has all that a version may have, and text that means something to Markdown, YAML
// and terminals.
func full() card.Facts {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	return card.Facts{
		Model: registry.Model{Name: "delay", Owner: "usr_1", Description: "Is a flight late?", Tags: []tracking.Pair{{Key: "license", Value: "Apache-2.0"}, {Key: "card.caveats", Value: "New York only"}}},
		Version: registry.Version{
			Project: "nyc", Model: "delay", Number: 3, Owner: "att_1", Created: at, Updated: at, Digest: digest("a"), KeyID: strings.Repeat("b", 64), Run: "run_1", Stage: registry.StageProduction,
			Origin:  tracking.Origin{Job: "job_1", Datasets: []string{"flights@2", "pay@1"}, FeatureViews: []string{"weather@3"}, Environment: digest("c"), Residency: residency.Of("AE", "home"), Classification: "internal"},
			Parents: []string{"delay@2"}, Aliases: []string{"champion"},
			Tags: []tracking.Pair{{Key: "card.intended_use", Value: "Plans gates.\n<script>alert(1)</script>"}, {Key: "card.ethical_considerations", Value: "None known"}, {Key: registry.ErasedTag, Value: "ers_1,ers_2"}, {Key: "card.task", Value: "tabular-classification"}},
		},
		Files:   []registry.File{{Path: "model.pkl", Size: 10, Digest: digest("d")}, {Path: "a|b `c`.txt", Size: 0, Digest: digest("e")}},
		Content: scan.Report{Level: scan.Code, Contents: []scan.Content{{Path: "model.pkl", Format: "pickle", Level: scan.Code, Imports: []string{"cloudpickle.cloudpickle._make_function"}, Reasons: []string{"imports cloudpickle.cloudpickle._make_function, which creates functions from content of the pickle"}}}},
		Clearance: registry.Clearance{Policy: "default", Required: 2, Given: 1, Missing: []string{"it needs 2 approvals and has 1 (by bob)"}, Approvals: []registry.Approval{
			{Principal: "usr_2", Name: "bob", Verdict: registry.Approved, Comment: "fine\x1b[31m", At: at, Counts: true}, {Principal: "usr_3", Verdict: registry.Rejected, At: at},
		}},
		Run: &tracking.Run{
			Params:  []tracking.Pair{{Key: "depth", Value: "3"}, {Key: "long", Value: strings.Repeat("x", 600)}},
			Metrics: []tracking.Metric{{Key: "auc", Value: 0.8, At: 1}, {Key: "auc", Value: 0.875, At: 2}, {Key: "loss", Value: math.NaN()}},
			Tags: []tracking.Pair{
				{Key: "mlflow.source.git.commit", Value: "0123456789abcdef0123456789abcdef01234567"},
				{Key: "mlflow.source.git.repoURL", Value: "https://ci:gho_token@git.example/nyc/delay.git"},
				{Key: "mlflow.source.name", Value: "train.py"},
			},
		},
		Datasets:    []card.Dataset{{Name: "flights@2", Rows: 336776, Digest: digest("f"), Residency: residency.Of("AE"), Classification: "internal"}, {Name: "pay@1", Hidden: true}},
		Environment: &cdx.BOM{Metadata: &cdx.Metadata{Component: &cdx.Component{BOMRef: digest("c"), Type: cdx.ComponentTypeApplication, Name: "torch", Version: digest("c")}}, Components: &[]cdx.Component{{BOMRef: "pkg:pypi/numpy@2.0", Type: cdx.ComponentTypeLibrary, Name: "numpy", Version: "2.0", PackageURL: "pkg:pypi/numpy@2.0"}}},
	}
}

// TestCard: the texts are those of testdata.
func TestCard(t *testing.T) {
	bom, err := card.BOM(full())
	if err != nil {
		t.Fatal(err)
	}
	values, err := json.MarshalIndent(card.Of(full()), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	for name, got := range map[string][]byte{"full.md": card.Of(full()).Markdown(), "full.cdx.json": bom, "full.json": append(values, '\n'), "bare.md": card.Of(card.Facts{}).Markdown()} {
		file := filepath.Join("testdata", name)
		if *rewrite {
			if err := os.WriteFile(file, got, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s: run with -rewrite and look at the difference", name)
		}
		if bytes.ContainsRune(got, 0x1b) || name == "full.md" && bytes.Contains(got, []byte("<script>")) {
			t.Errorf("%s: what people write does something", name)
		}
	}
}

// TestWordsOfOthers: whatever people write, and however long, the card's own sections stay
// what they are and a password stays out of it.
func TestWordsOfOthers(t *testing.T) {
	forged := "Fine.\n\n## Approvals\n\nIt meets all requirements of policy default.\n\nTitle\n===\n\n```\nopen\n![](https://evil.example/seen)\n\u202egnp.exe"
	f := full()
	f.Model.Description, f.Version.Tags, f.Model.Tags = forged, nil, nil
	for _, key := range []string{"intended_use", "out_of_scope", "factors", "evaluation_data", "ethical_considerations", "caveats", "task", "architecture"} {
		f.Version.Tags = append(f.Version.Tags, tracking.Pair{Key: "card." + key, Value: forged + strings.Repeat("x", 100_000)})
	}
	f.Version.Parents = append(f.Version.Parents, forged)
	f.Version.Run = tracking.RunID(forged)
	f.Run.Params = append(f.Run.Params, tracking.Pair{Key: "__main__", Value: forged})
	f.Files = append(f.Files, registry.File{Path: "__init__.py"}, registry.File{Path: "a_b/~~gone~~ &lt;x"})
	f.Clearance.Approvals[0].Comment = forged
	_, text, _ := strings.Cut(string(card.Of(f).Markdown()), "\n---\n")
	if n := strings.Count(text, "\n## Approvals"); n != 1 {
		t.Errorf("%d sections of approvals", n)
	}
	for _, never := range []string{"\n```", "\n===", "\n\nIt meets all requirements", "![", "\u202e", "gho_token", " __", "~~", "| &lt;x"} {
		if strings.Contains(text, never) {
			t.Errorf("the card has %q", never)
		}
	}
	bom, err := card.BOM(f)
	if err != nil || bytes.Contains(bom, []byte("gho_token")) || !bytes.Contains(bom, []byte("https://git.example/nyc/delay.git")) {
		t.Errorf("%v in\n%s", err, bom)
	}
}

// TestRunIs: the card says what became of the run.
func TestRunIs(t *testing.T) {
	f := full()
	f.Run.Stage = tracking.Deleted
	if text := string(card.Of(f).Markdown()); !strings.Contains(text, "job `job_1`, which is deleted.") || !strings.Contains(text, "| Persons erased from the training data since | ers_1, ers_2 |") {
		t.Error(text)
	}
	f.Run = nil
	if text := string(card.Of(f).Markdown()); !strings.Contains(text, "job `job_1`, which does not exist or is not accessible to you.") {
		t.Error(text)
	}
}

// TestFrontMatter: whatever names are, it is YAML, of one document.
func TestFrontMatter(t *testing.T) {
	f := full()
	for _, name := range []string{"delay", "a: b", `"x" \`, "---\nlicense: mit", "é\u2028", "\x00\x1b"} {
		f.Version.Model, f.Datasets[0].Name, f.Model.Tags[0].Value = name, name, name
		text := string(card.Of(f).Markdown())
		_, rest, _ := strings.Cut(text, "---\n")
		front, _, _ := strings.Cut(rest, "\n---\n")
		var got struct {
			Name     string   `yaml:"model_name"`
			License  string   `yaml:"license"`
			Datasets []string `yaml:"datasets"`
		}
		if err := yaml.Unmarshal([]byte(front), &got); err != nil || len(got.Datasets) != 2 || !strings.HasSuffix(got.Name, " version 3") {
			t.Errorf("%q: %+v, %v in\n%s", name, got, err, front)
		}
	}
}

// TestBOMFollowsTheSchema: of 1.6, with all and with nothing, and what does not follow it
// is told from what does.
func TestBOMFollowsTheSchema(t *testing.T) {
	schema := cyclonedx(t)
	strange := full()
	strange.Model.Tags[0].Value = "Our own licence, \u2028 1.0"
	strange.Run.Tags[1].Value = "git@git.example:nyc/delay.git"
	// What is there twice, and packages that nobody gave a reference.
	twice := full()
	twice.Version.Parents = []string{"delay@2", "delay@2"}
	twice.Datasets = append(twice.Datasets, twice.Datasets[0])
	twice.Version.FeatureViews = []string{"weather@3", "weather@3"}
	bare := []cdx.Component{{Type: cdx.ComponentTypeLibrary, Name: "a", Version: "1"}, {Type: cdx.ComponentTypeLibrary, Name: "b", Version: "1"}, {Type: cdx.ComponentTypeLibrary, Name: "b", Version: "1"}}
	twice.Environment = &cdx.BOM{Components: &bare}
	for name, f := range map[string]card.Facts{"full": full(), "bare": {}, "strange": strange, "twice": twice} {
		b, err := card.BOM(f)
		if err != nil {
			t.Fatal(err)
		}
		again, err := card.BOM(f)
		if err != nil || !bytes.Equal(b, again) {
			t.Errorf("%s: another bill of the same facts, %v", name, err)
		}
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		if err := schema.Validate(doc); err != nil {
			t.Errorf("%s: %v\n%s", name, err, b)
		}
		refs := map[any]bool{}
		parts, _ := doc.(map[string]any)["components"].([]any)
		for _, part := range parts {
			ref := part.(map[string]any)["bom-ref"]
			if refs[ref] {
				t.Errorf("%s: %v is there twice", name, ref)
			}
			refs[ref] = true
		}
		doc.(map[string]any)["metadata"].(map[string]any)["component"].(map[string]any)["type"] = "idea"
		if schema.Validate(doc) == nil {
			t.Error("the schema takes anything")
		}
	}
}

// cyclonedx is the schema of version 1.6, which its library carries.
func cyclonedx(t *testing.T) *jsonschema.Schema {
	t.Helper()
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/CycloneDX/cyclonedx-go").Output()
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	const at = "http://cyclonedx.org/schema/"
	for name, file := range map[string]string{"bom-1.6.schema.json": "bom-1.6.schema.json", "spdx.schema.json": "spdx.schema.json", "jsf-0.82.schema.json": "jsf-0.82.schemax.json"} {
		b, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "schema", file))
		if err != nil {
			t.Fatal(err)
		}
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		if err := c.AddResource(at+name, doc); err != nil {
			t.Fatal(err)
		}
	}
	schema, err := c.Compile(at + "bom-1.6.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return schema
}
