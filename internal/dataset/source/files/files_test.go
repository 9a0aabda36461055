package files_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/falaj-ml/falaj/internal/dataset/source"
	"github.com/falaj-ml/falaj/internal/dataset/source/files"
	"github.com/falaj-ml/falaj/internal/dataset/source/sourcetest"
	"github.com/falaj-ml/falaj/internal/fault"
)

func write(t *testing.T, dir, name string, content []byte) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestFiles(t *testing.T) {
	sourcetest.Objects(t, func(t *testing.T) sourcetest.Bucket {
		t.Helper()
		dir := t.TempDir()
		return sourcetest.Bucket{
			Driver: files.Driver{},
			Request: func(match string, f source.Format) source.Request {
				return source.Request{
					From: source.From{Files: &source.Files{Directory: dir, Match: match, Format: f}}, Access: source.Access{Files: []string{dir}},
				}
			},
			Put: func(t *testing.T, name string, content []byte) { t.Helper(); write(t, dir, name, content) },
			Remove: func(t *testing.T, name string) {
				t.Helper()
				if err := os.Remove(filepath.Join(dir, name)); err != nil {
					t.Fatal(err)
				}
			},
		}
	})
}

func TestFilesAreRefused(t *testing.T) {
	dir, elsewhere := t.TempDir(), t.TempDir()
	write(t, elsewhere, "secret.csv", []byte("id\n1\n"))
	if err := os.Symlink(filepath.Join(elsewhere, "secret.csv"), filepath.Join(dir, "link.csv")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(elsewhere, filepath.Join(dir, "out")); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		kind   fault.Kind
		change func(r *source.Request)
	}{
		"a directory that is not allowed":    {fault.PermissionDenied, func(r *source.Request) { r.From.Files.Directory = elsewhere }},
		"a directory by a link":              {fault.PermissionDenied, func(r *source.Request) { r.From.Files.Directory = filepath.Join(dir, "out") }},
		"the parent":                         {fault.PermissionDenied, func(r *source.Request) { r.From.Files.Directory = filepath.Join(dir, "..") }},
		"one that is not there":              {fault.NotFound, func(r *source.Request) { r.From.Files.Directory = filepath.Join(dir, "nix") }},
		"one elsewhere that is not there":    {fault.PermissionDenied, func(r *source.Request) { r.From.Files.Directory = filepath.Join(elsewhere, "nix") }},
		"a relative path":                    {fault.Invalid, func(r *source.Request) { r.From.Files.Directory = "here" }},
		"no file, and a link that leads out": {fault.NotFound, func(*source.Request) {}},
	} {
		t.Run(name, func(t *testing.T) {
			r := source.Request{
				From: source.From{Files: &source.Files{Directory: dir}}, Mode: source.Full, Parser: sourcetest.Parser{}, Access: source.Access{Files: []string{dir}},
			}
			c.change(&r)
			sourcetest.Refused(t, files.Driver{}, r, c.kind)
		})
	}
}

// What is written to a file while it is read is not taken for what was listed, nor is
// a file that became something else waited for.
func TestFilesThatChangeInTheMiddle(t *testing.T) {
	const rows = 200_000 // more than the parser reads ahead
	before := []byte("id\n" + strings.Repeat("1\n", rows))
	for name, change := range map[string]func(t *testing.T, dir string){
		"rewritten": func(t *testing.T, dir string) {
			t.Helper()
			write(t, dir, "a.csv", bytes.ReplaceAll(before, []byte("1"), []byte("22")))
		},
		"appended to": func(t *testing.T, dir string) {
			t.Helper()
			write(t, dir, "a.csv", append(slices.Clone(before), "2\n"...))
		},
		"cut": func(t *testing.T, dir string) { t.Helper(); write(t, dir, "a.csv", before[:len(before)/2]) },
		"a pipe": func(t *testing.T, dir string) {
			t.Helper()
			name := filepath.Join(dir, "b.csv")
			if err := errors.Join(os.Remove(name), syscall.Mkfifo(name, 0o600)); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir, "a.csv", before)
			write(t, dir, "b.csv", []byte("id\n7\n"))
			in, err := files.Driver{}.Open(t.Context(), source.Request{
				From: source.From{Files: &source.Files{Directory: dir}}, Mode: source.Full, BatchRows: 1000, Parser: sourcetest.Parser{}, Access: source.Access{Files: []string{dir}},
			})
			if err != nil {
				t.Fatal(err)
			}
			defer in.Close()
			for n := 0; err == nil; n++ {
				if n == 1 {
					change(t, dir)
				}
				var rec arrow.RecordBatch
				if rec, _, err = in.Next(t.Context()); rec != nil {
					rec.Release()
				}
			}
			if says := err.Error(); !strings.Contains(says, "changed during the read") && !strings.Contains(says, "not a regular file") {
				t.Errorf("it ended with %v", err)
			}
		})
	}
}
