package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// computePackages are the packages of training, compute and governance whose texts use the field's words.
var computePackages = []string{"backup", "blob", "compute", "governance", "sandbox", "scheduler", "store", "training", "worker"}

// agentText is sent by agents of earlier releases as well, so it stays.
const agentText = "what it left was not brought back"

// TestWordsOfCompute: errors, hints, log messages and descriptions of fields in these
// packages use the field's words.
func TestWordsOfCompute(t *testing.T) {
	all, texts := paraphrases(t), 0
	for _, name := range computePackages {
		err := filepath.WalkDir(filepath.Join(root, "internal", name), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() && strings.HasSuffix(d.Name(), "test") {
				if err == nil {
					err = fs.SkipDir
				}
				return err
			}
			if d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return nil
			}
			set := token.NewFileSet()
			file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				lit, ok := n.(*ast.BasicLit)
				if !ok || lit.Kind != token.STRING {
					return true
				}
				text, err := strconv.Unquote(lit.Value)
				if err != nil || len(strings.Fields(text)) < 3 || strings.Contains(text, agentText) {
					return true
				}
				texts++
				for _, f := range find(all, text) {
					t.Errorf("%s: %q; write instead: %s", set.Position(lit.Pos()), f.text, f.instead)
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if texts < 1000 {
		t.Fatalf("only %d texts were found", texts)
	}
}
