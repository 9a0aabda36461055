package archtest

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// parserLibraries are packages whose importers parse what others wrote, or may.
var parserLibraries = []string{
	"go.yaml.in/yaml/v3", "cel.dev/cel-go/cel", "github.com/cedar-policy/cedar-go", "github.com/twmb/avro", "archive/tar", "archive/zip",
	"encoding/xml", "encoding/gob", "google.golang.org/protobuf/proto", "google.golang.org/protobuf/encoding/protowire",
	"github.com/apache/arrow-go/v18/arrow/ipc", "github.com/apache/arrow-go/v18/parquet/file", "github.com/go-json-experiment/json/jsontext",
}

// notParsers import one of them and parse nothing that a caller of the server wrote.
var notParsers = map[string]string{
	"internal/cli":                           "writes YAML; reads through internal/yamldoc",
	"internal/oci/ocitest":                   "for tests",
	"internal/dataset/source/sourcetest":     "for tests",
	"internal/serving/inference":             "messages, generated",
	"internal/app":                           "wiring",
	"internal/compute/engine":                "packs",
	"internal/compute/engine/kube":           "the administrator's cluster",
	"internal/compute/engine/ray":            "packs",
	"internal/training/checkpoint":           "packs",
	"internal/environment/python":            "writes",
	"internal/worker/agent":                  "packs, and unpacks by internal/worker/archive",
	"internal/monitoring/alert":              "writes",
	"internal/feature":                       "writes",
	"internal/feature/offline":               "writes",
	"internal/monitoring":                    "writes",
	"internal/dataset":                       "writes",
	"internal/dataset/source":                "writes",
	"internal/serving/runtime/onnx/onnxtest": "for tests",
}

// TestParsers: the page of parsers names only fuzz tests that exist, and every package that
// uses a parser.
func TestParsers(t *testing.T) {
	const root = "../../"
	page, err := os.ReadFile(root + "docs/reference/parsers.md")
	if err != nil {
		t.Fatal(err)
	}
	place, target := regexp.MustCompile("`(internal/[a-z0-9/]+)`"), regexp.MustCompile("`(Fuzz[A-Za-z0-9]+)`")
	named := map[string]bool{}
	rows := 0
	for line := range strings.Lines(string(page)) {
		places, targets := place.FindAllStringSubmatch(line, -1), target.FindAllStringSubmatch(line, -1)
		if len(places) == 0 {
			continue
		}
		rows++
		if len(targets) == 0 {
			t.Errorf("no fuzz test in %q: write one", line)
		}
		named[places[0][1]] = true
		dir := places[len(places)-1][1] // another package's, when one is named behind it
		tests, err := filepath.Glob(root + dir + "/*_test.go")
		if err != nil || len(tests) == 0 {
			t.Errorf("%s has no tests", dir)
			continue
		}
		var text strings.Builder
		for _, file := range tests {
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			text.Write(b)
		}
		for _, f := range targets {
			if !strings.Contains(text.String(), "func "+f[1]+"(") {
				t.Errorf("%s has no %s, which the page of parsers names", dir, f[1])
			}
		}
	}
	if rows < 40 {
		t.Errorf("the page has only %d parsers", rows)
	}
	for _, p := range load(t) {
		if named[p.Path] || notParsers[p.Path] != "" || !strings.HasPrefix(p.Path, "internal/") || strings.HasSuffix(p.Path, "test") {
			continue
		}
		for _, i := range p.Imports {
			if slices.Contains(parserLibraries, i) {
				t.Errorf("%s imports %s: add its row to docs/reference/parsers.md, with limits and a fuzz test", p.Path, i)
			}
		}
	}
}

// ownJSON are the files at the edges that may decode by encoding/json, and why.
var ownJSON = map[string]string{
	"internal/httpapi/idempotency.go":       "an answer that we kept",
	"internal/httpapi/feast/wire.go":        "values that jsondoc has checked",
	"internal/httpapi/manifest/manifest.go": "what yamldoc has read",
}

// TestJSONDoors: encoding/json changes text that is not UTF-8, takes the last of two names and
// matches names without regard to case, so the edges read what others wrote by jsondoc.
func TestJSONDoors(t *testing.T) {
	const root = "../../"
	decodes := regexp.MustCompile(`\bjson\.(NewDecoder|Unmarshal)\(`)
	for _, edge := range []string{"internal/httpapi", "internal/flight"} {
		err := filepath.WalkDir(root+edge, func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			if name := strings.TrimPrefix(filepath.ToSlash(path), root); decodes.Match(text) && ownJSON[name] == "" {
				t.Errorf("%s decodes by encoding/json: use jsondoc.Decode, or say here why that is no door", name)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
