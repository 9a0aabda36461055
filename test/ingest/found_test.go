package ingest

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// found reports every file that has what must be in none.
func found(t *testing.T, dir, what string) {
	t.Helper()
	if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		if bytes.Contains(b, []byte(what)) {
			t.Errorf("%s has it", path)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}
