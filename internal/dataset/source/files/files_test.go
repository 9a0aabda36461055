package files_test

import (
	"bytes"
	"compress/gzip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/falaj-ml/falaj/internal/dataset/source"
	"github.com/falaj-ml/falaj/internal/dataset/source/files"
	"github.com/falaj-ml/falaj/internal/dataset/source/sourcetest"
	"github.com/falaj-ml/falaj/internal/fault"
)

func write(t *testing.T, dir, name, content string) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	b := []byte(content)
	switch filepath.Ext(name) {
	case ".gz":
		var out bytes.Buffer
		w := gzip.NewWriter(&out)
		_, _ = w.Write(b)
		_ = w.Close()
		b = out.Bytes()
	case ".zst":
		w, err := zstd.NewWriter(nil)
		if err != nil {
			t.Fatal(err)
		}
		b = w.EncodeAll(b, nil)
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func request(dir string, mode source.Mode, change func(o *source.Files)) source.Request {
	o := &source.Files{Directory: dir}
	if change != nil {
		change(o)
	}
	return source.Request{From: source.From{Files: o}, Mode: mode, BatchRows: 2, Parser: sourcetest.Parser{}, Access: source.Access{Files: []string{dir}}, Parsing: source.Parsing{Nulls: []string{""}}}
}

func TestFilesOfAllForms(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "a.csv", "id,name\n1,x\n2,y\n")
	write(t, dir, "b.csv.gz", "id,name\n3,z\n")
	write(t, dir, "c.csv.zst", "id,name\n4,u\n5,v\n6,w\n")
	write(t, dir, "d.jsonl", "{\"id\": 7, \"name\": \"k\"}\n\n{\"id\": 8}\n")
	write(t, dir, "e.jsonl.gz", "{\"id\": 9, \"name\": \"l\"}\n")
	write(t, dir, ".hidden.csv", "id,name\n99,no\n")
	write(t, dir, "sub/f.csv", "id,name\n98,no\n")
	want := []string{"1|x", "2|y", "3|z", "4|u", "5|v", "6|w", "7|k", "8|null", "9|l"}
	r := request(dir, source.Full, nil)
	rows, _, _, _ := sourcetest.ReadAll(t, files.Driver{}, r)
	if !slices.Equal(rows, want) {
		t.Fatalf("read %v", rows)
	}
	r.BatchRows = 1
	_, until, after, _ := sourcetest.ReadAll(t, files.Driver{}, r)
	for i, at := range after {
		again := r
		again.Resume, again.Until, again.Begun = at, until, true
		if rest, _, _, _ := sourcetest.ReadAll(t, files.Driver{}, again); !slices.Equal(rest, want[i+1:]) {
			t.Errorf("after row %d: %v", i, rest)
		}
	}
	r = request(dir, source.Full, func(o *source.Files) { o.Match = "sub/*.csv" })
	if rows, _, _, _ := sourcetest.ReadAll(t, files.Driver{}, r); !slices.Equal(rows, []string{"98|no"}) {
		t.Errorf("read %v", rows)
	}
	write(t, dir, "tab/g.tsv", "id\tname\n1\ta,b\n")
	r = request(filepath.Join(dir, "tab"), source.Full, func(o *source.Files) { o.Format = "tsv" })
	if rows, _, _, _ := sourcetest.ReadAll(t, files.Driver{}, r); !slices.Equal(rows, []string{"1|a,b"}) {
		t.Errorf("read %v", rows)
	}
}

func TestNewFilesOnly(t *testing.T) {
	dir := t.TempDir()
	r := request(dir, source.Incremental, nil)
	read := func(want ...string) {
		t.Helper()
		rows, until, _, schema := sourcetest.ReadAll(t, files.Driver{}, r)
		if !slices.Equal(rows, want) && len(rows)+len(want) > 0 || (schema == nil) != (len(want) == 0) {
			t.Fatalf("read %v, want %v (%v)", rows, want, schema)
		}
		r.After = until
	}
	read()
	write(t, dir, "2.csv", "id\n2\n")
	read("2")
	read()
	write(t, dir, "1.csv", "id\n1\n")
	write(t, dir, "3.csv", "id\n3\n")
	read("1", "3")
	if err := os.Remove(filepath.Join(dir, "1.csv")); err != nil {
		t.Fatal(err)
	}
	read()
	write(t, dir, "2.csv", "id\n2\n22\n")
	if _, err := (files.Driver{}).Open(t.Context(), r); !fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "2.csv") {
		t.Fatalf("a file that was changed: %v", err)
	}
	r.Key = []string{"id"}
	read("2", "22")
}

func TestFilesAreRefused(t *testing.T) {
	dir, elsewhere := t.TempDir(), t.TempDir()
	write(t, elsewhere, "secret.csv", "id\n1\n")
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
		"a pattern that is none":             {fault.Invalid, func(r *source.Request) { r.From.Files.Match = "[" }},
		"an unknown format":                  {fault.Invalid, func(r *source.Request) { r.From.Files.Format = "xls" }},
		"a cursor":                           {fault.Invalid, func(r *source.Request) { r.Cursor = "id" }},
		"no file, and a link that leads out": {fault.NotFound, func(*source.Request) {}},
	} {
		t.Run(name, func(t *testing.T) {
			r := request(dir, source.Full, nil)
			c.change(&r)
			err := files.Driver{}.Check(r)
			if err == nil {
				var in source.Reader
				if in, err = (files.Driver{}).Open(t.Context(), r); err == nil {
					_ = in.Close()
				}
			}
			if !fault.Is(err, c.kind) {
				t.Errorf("%v (%v)", err, fault.KindOf(err))
			}
		})
	}
	write(t, dir, "1.csv", "id,name\n1,x\n")
	write(t, dir, "2.csv", "id\n1\n")
	r := request(dir, source.Full, nil)
	in, err := files.Driver{}.Open(t.Context(), r)
	for err == nil {
		rec, _, nerr := in.Next(t.Context())
		if rec != nil {
			rec.Release()
		}
		err = nerr
	}
	_ = in.Close()
	if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "2.csv") {
		t.Errorf("%v", err)
	}
}
