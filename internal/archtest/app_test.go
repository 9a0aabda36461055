package archtest

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// maxAppLines is the size of internal/app without its tests. It may only shrink.
const maxAppLines = 3998

// TestAppOnlyWires: app opens services and assigns. What decides is in a domain, in a use case
// or in a foundation package, where a reader looks for it, and SQL is in a store.
func TestAppOnlyWires(t *testing.T) {
	files, err := filepath.Glob("../app/*.go")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	query := regexp.MustCompile(`\.(NewRaw|NewSelect|NewInsert|NewUpdate|NewDelete)\(`)
	lines := 0
	for _, f := range files {
		if strings.HasSuffix(f, "_test.go") {
			continue
		}
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		lines += bytes.Count(b, []byte("\n"))
		if found := query.Find(b); found != nil {
			t.Errorf("%s calls %s: SQL stays in a store", f, found)
		}
	}
	if lines > maxAppLines {
		t.Errorf("internal/app has %d lines, more than %d: move what decides to a domain or a use case", lines, maxAppLines)
	}
	if lines < maxAppLines-100 {
		t.Errorf("internal/app has %d lines: lower maxAppLines from %d, so that it stays so", lines, maxAppLines)
	}
}
