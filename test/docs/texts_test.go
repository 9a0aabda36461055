package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// worded are the directories whose texts TestTexts checks, with those below them.
var worded = []string{
	"internal/dataset", "internal/feature", "internal/registry", "internal/tracking", "internal/monitoring",
	"internal/drift", "internal/sketch", "internal/tuning", "internal/onnxfile", "internal/resource", "internal/filewatch",
}

// notText are literals that no person reads: SQL, scripts and lists of names.
var notText = regexp.MustCompile(`\b(SELECT|INSERT|UPDATE|DELETE|WHERE|EXCLUDED|CONFLICT|ORDER BY)\b|redis\.call|builtins\.`)

// TestTexts: errors, hints and log lines of the packages use the field's words. Tags
// of fields are in the API's schemas.
func TestTexts(t *testing.T) {
	all := paraphrases(t)
	checked := 0
	for _, dir := range worded {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && (d.Name() == "testdata" || strings.HasSuffix(d.Name(), "test")):
				return filepath.SkipDir
			case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
				return nil
			}
			files := token.NewFileSet()
			file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if f, ok := n.(*ast.Field); ok {
					f.Tag = nil
				}
				lit, ok := n.(*ast.BasicLit)
				if !ok || lit.Kind != token.STRING {
					return true
				}
				text, err := strconv.Unquote(lit.Value)
				if err != nil {
					t.Errorf("%s: %v", files.Position(lit.Pos()), err)
				}
				if len(strings.Fields(text)) < 2 || notText.MatchString(text) {
					return true
				}
				checked++
				for _, f := range find(all, text) {
					t.Errorf("%s: %q; write instead: %s", files.Position(lit.Pos()), f.text, f.instead)
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	if checked < 1000 {
		t.Errorf("only %d texts were checked", checked)
	}
}
