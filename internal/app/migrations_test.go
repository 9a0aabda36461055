package app

import (
	"crypto/sha256"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "add new migrations to testdata/migrations.txt")

// TestMigrationsNeverChange: what a migration did to somebody's database is done, so its
// text is what it was. -rewrite adds new ones, and changes none.
func TestMigrationsNeverChange(t *testing.T) {
	const pinned = "testdata/migrations.txt"
	b, err := os.ReadFile(pinned)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Fields(string(b))
	want := map[string]string{}
	for line := range slices.Chunk(lines, 2) {
		want[line[1]] = line[0]
	}
	found := 0
	err = filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".sql" || !strings.Contains(path, "/migrations/") {
			return err
		}
		found++
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name := filepath.ToSlash(strings.TrimPrefix(path, "../"))
		digest := fmt.Sprintf("%x", sha256.Sum256(text))
		switch was := want[name]; {
		case was == "" && *rewrite:
			want[name] = digest
		case was == "":
			t.Errorf("%s is not in %s: run go test ./internal/app -run TestMigrationsNeverChange -args -rewrite", name, pinned)
		case was != digest:
			t.Errorf("%s changed after it was used: write another migration that goes on from it", name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if found < len(want) {
		t.Errorf("%d migrations of %d are there: a database that lacks one that is gone could not be upgraded", found, len(want))
	}
	if !*rewrite {
		return
	}
	var out strings.Builder
	for _, name := range slices.Sorted(maps.Keys(want)) {
		fmt.Fprintf(&out, "%s  %s\n", want[name], name)
	}
	if err := os.WriteFile(pinned, []byte(out.String()), 0o600); err != nil {
		t.Fatal(err)
	}
}
