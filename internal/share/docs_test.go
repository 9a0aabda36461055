package share

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestEveryLimitIsDocumented compares the names of limits in the code with the table in
// docs/reference/shared-resources.md.
func TestEveryLimitIsDocumented(t *testing.T) {
	inCode := regexp.MustCompile(`(?:Limits\{\s*Name: |Rate\{\s*Name: |Refused\(|usageOf\(|newStreams\()"([a-z_]+)"`)
	known := map[string]bool{}
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		b, err := os.ReadFile(path)
		for _, m := range inCode.FindAllSubmatch(b, -1) {
			known[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../docs/reference/shared-resources.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\|").FindAllSubmatch(page, -1) {
		documented[string(m[1])] = true
	}
	if code, docs := slices.Sorted(maps.Keys(known)), slices.Sorted(maps.Keys(documented)); !slices.Equal(code, docs) {
		t.Errorf("limits in the code: %q\nin the table:       %q", code, docs)
	}
}
