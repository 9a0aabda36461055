package live

import (
	"bytes"
	"errors"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"testing"
)

// Files are the regular files below a directory, with what is in them. A server may
// work there: one that is removed meanwhile is none of them.
func Files(tb testing.TB, dir string) iter.Seq2[string, []byte] {
	tb.Helper()
	return func(yield func(string, []byte) bool) {
		if err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			var content []byte
			if err == nil && e.Type().IsRegular() {
				content, err = os.ReadFile(path)
			}
			switch {
			case path != dir && errors.Is(err, fs.ErrNotExist):
				return nil
			case err != nil || !e.Type().IsRegular() || yield(path, content):
				return err
			}
			return fs.SkipAll
		}); err != nil {
			tb.Fatal(err)
		}
	}
}

// Search says in which files of a directory, relative to it, each needle is, in what
// they are called or in what is in them, and how many files there are.
func Search(tb testing.TB, dir string, needles map[string][]byte) (found map[string][]string, files int) {
	tb.Helper()
	found = map[string][]string{}
	for path, content := range Files(tb, dir) {
		files++
		if len(bytes.Trim(content, "\x00")) == 0 {
			continue // the reserve of disk space
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			tb.Fatal(err)
		}
		for name, b := range needles {
			if bytes.Contains(content, b) || bytes.Contains([]byte(rel), b) {
				found[name] = append(found[name], rel)
			}
		}
	}
	return found, files
}
