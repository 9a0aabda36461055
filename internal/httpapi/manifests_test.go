package httpapi

import (
	"encoding"
	"encoding/json"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/dataset/ingestion"
	"github.com/falaj-ml/falaj/internal/environment"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/governance/policy/authorizer"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/governance/secrets"
	"github.com/falaj-ml/falaj/internal/httpapi/manifest"
	"github.com/falaj-ml/falaj/internal/monitoring"
	"github.com/falaj-ml/falaj/internal/registry"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/gateway"
	"github.com/falaj-ml/falaj/internal/training"
	"github.com/falaj-ml/falaj/internal/tuning/sweep"
)

// specs are what the kinds of manifests are decoded into.
var specs = map[string]reflect.Type{
	"Project": reflect.TypeFor[project.Spec](), "Grant": reflect.TypeFor[project.GrantSpec](), "Policy": reflect.TypeFor[authorizer.Spec](),
	"Source": reflect.TypeFor[ingestion.Spec](),
	"Secret": reflect.TypeFor[secrets.Spec](),
	"Zone":   reflect.TypeFor[residency.ZoneSpec](), "Pool": reflect.TypeFor[compute.PoolSpec](), "Queue": reflect.TypeFor[compute.QueueSpec](),
	"Budget":  reflect.TypeFor[compute.BudgetSpec](),
	"Dataset": reflect.TypeFor[dataset.Spec](), "Entity": reflect.TypeFor[feature.EntitySpec](),
	"FeatureView": reflect.TypeFor[feature.ViewSpec](), "FeatureService": reflect.TypeFor[feature.ServiceSpec](),
	"Environment": reflect.TypeFor[environment.Spec](), "Job": reflect.TypeFor[training.Spec](), "Deployment": reflect.TypeFor[serving.Spec](),
	"ModelPolicy": reflect.TypeFor[registry.PolicySpec](), "Sweep": reflect.TypeFor[sweep.Spec](),
	"Gateway": reflect.TypeFor[gateway.Spec](), "Monitor": reflect.TypeFor[monitoring.Spec](),
}

// TestManifestsDocument: docs/reference/manifests.md has every kind and every
// field, no others, and its examples are what the server takes.
func TestManifestsDocument(t *testing.T) {
	page, err := os.ReadFile("../../docs/reference/manifests.md")
	if err != nil {
		t.Fatal(err)
	}
	kinds := (&Server{}).appliers()
	if got, want := slices.Sorted(maps.Keys(specs)), slices.Sorted(maps.Keys(kinds)); !slices.Equal(got, want) {
		t.Fatalf("the kinds are %v, this test knows %v", want, got)
	}
	row := regexp.MustCompile("(?m)^\\| `([^`]+)` \\|.*\\|$")
	example := regexp.MustCompile("(?ms)^```yaml\n(.*?)^```")
	seen := map[string]bool{}
	for section := range strings.SplitSeq(string(page), "\n## ") {
		kind, text, _ := strings.Cut(section, "\n")
		spec, known := specs[kind]
		if !known {
			continue
		}
		seen[kind] = true
		var told []string
		for _, m := range row.FindAllStringSubmatch(text, -1) {
			told = append(told, m[1])
		}
		want := fieldPaths(spec, "")
		slices.Sort(told)
		slices.Sort(want)
		if !slices.Equal(told, want) {
			t.Errorf("%s: the page has the fields\n%v\nthe code has\n%v", kind, told, want)
		}
		examples := example.FindAllStringSubmatch(text, -1)
		if len(examples) == 0 {
			t.Errorf("%s has no example", kind)
		}
		for _, m := range examples {
			docs, err := manifest.Parse([]byte(m[1]), slices.Sorted(maps.Keys(kinds)))
			if err != nil {
				t.Errorf("%s: %v", kind, err)
			}
			for _, d := range docs {
				if _, err := kinds[d.Kind].apply(d); err != nil {
					t.Errorf("%s: %v", kind, err)
				}
			}
		}
	}
	for kind := range specs {
		if !seen[kind] {
			t.Errorf("the page has no section %s", kind)
		}
	}
}

// fieldPaths are the fields of a specification as people write them: "a", "b.c",
// "list[].d".
func fieldPaths(spec reflect.Type, prefix string) []string {
	var out []string
	for f := range spec.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous && name == "" {
			out = append(out, fieldPaths(f.Type, prefix)...)
			continue
		}
		if name == "-" || !f.IsExported() {
			continue
		}
		out = append(out, prefix+name)
		of, lists := f.Type, 0
		for of.Kind() == reflect.Slice || of.Kind() == reflect.Pointer {
			if of.Kind() == reflect.Slice {
				lists++
			}
			of = of.Elem()
		}
		if of.Kind() == reflect.Struct && !writtenAsOne(of) && of != specs["Job"] { // a job in another kind is as kind Job has it
			out = append(out, fieldPaths(of, prefix+name+strings.Repeat("[]", lists)+".")...)
		}
	}
	return out
}

// writtenAsOne reports a struct that is one value of text.
func writtenAsOne(of reflect.Type) bool {
	p := reflect.PointerTo(of)
	return p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) || p.Implements(reflect.TypeFor[json.Unmarshaler]())
}
