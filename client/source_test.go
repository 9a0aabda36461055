package client_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/client"
)

// someTime is long ago.
var someTime = time.Unix(1e9, 0)

// tree writes files, given as name and content.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		full := filepath.Join(dir, filepath.FromSlash(name))
		if err := errors.Join(os.MkdirAll(filepath.Dir(full), 0o700), os.WriteFile(full, []byte(content), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func names(packed []client.Packed) string {
	out := make([]string, len(packed))
	for i, p := range packed {
		out[i] = p.Name
	}
	return strings.Join(out, " ")
}

func TestPackLeavesOut(t *testing.T) {
	for name, c := range map[string]struct {
		ignore string
		falaj  string
		want   string
	}{
		"nothing said":   {"", "", "a.py b.log data/x.csv data/y/z.csv lib/a.py lib/data/n.py train.py"},
		"extension":      {"*.log\n*.csv", "", "a.py lib/a.py lib/data/n.py train.py"},
		"directory":      {"data/", "", "a.py b.log lib/a.py train.py"},
		"tied":           {"/data", "", "a.py b.log lib/a.py lib/data/n.py train.py"},
		"below":          {"lib/data", "", "a.py b.log data/x.csv data/y/z.csv lib/a.py train.py"},
		"any depth":      {"data/**/*.csv", "", "a.py b.log lib/a.py lib/data/n.py train.py"},
		"taken back":     {"*.csv\n!x.csv", "", "a.py b.log data/x.csv lib/a.py lib/data/n.py train.py"},
		"falaj's last":   {"*.csv", "!*.csv\n*.log", "a.py data/x.csv data/y/z.csv lib/a.py lib/data/n.py train.py"},
		"comment, class": {"# a.py\n[ab].*", "", "data/x.csv data/y/z.csv lib/data/n.py train.py"},
		"broken class":   {"[a", "", "a.py b.log data/x.csv data/y/z.csv lib/a.py lib/data/n.py train.py"},
	} {
		files := map[string]string{
			"train.py": "x", "a.py": "", "b.log": "", "data/x.csv": "", "data/y/z.csv": "", "lib/a.py": "", "lib/data/n.py": "",
			".git/config": "secret", "__pycache__/a.pyc": "", "lib/__pycache__/b.pyc": "",
		}
		if c.ignore != "" {
			files[".gitignore"] = c.ignore
		}
		if c.falaj != "" {
			files[".falajignore"] = c.falaj
		}
		packed, err := client.Pack(tree(t, files), io.Discard)
		packed = slices.DeleteFunc(packed, func(p client.Packed) bool { return strings.HasPrefix(p.Name, ".") })
		if got := names(packed); err != nil || got != c.want {
			t.Errorf("%s: %v\n%s\n%s", name, err, got, c.want)
		}
	}
}

// TestPackIsTheSame whatever the times of the files, and has what was there.
func TestPackIsTheSame(t *testing.T) {
	files := map[string]string{"train.py": "print(1)", "lib/a.py": "x"}
	var first, second bytes.Buffer
	if _, err := client.Pack(tree(t, files), &first); err != nil {
		t.Fatal(err)
	}
	dir := tree(t, files)
	if err := os.Chtimes(filepath.Join(dir, "train.py"), someTime, someTime); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Pack(dir, &second); err != nil || !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Fatalf("the same files have other bytes (%v)", err)
	}
	gz, err := gzip.NewReader(&first)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for r := tar.NewReader(gz); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		got[h.Name] = string(b)
	}
	if len(got) != 2 || got["train.py"] != "print(1)" || got["lib/a.py"] != "x" {
		t.Fatalf("%v", got)
	}
}

func TestPackRefusesLinks(t *testing.T) {
	dir := tree(t, map[string]string{"train.py": "x"})
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "passwd")); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Pack(dir, io.Discard); err == nil || !strings.Contains(err.Error(), "passwd is a link") {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, ".falajignore"), []byte("passwd\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if packed, err := client.Pack(dir, io.Discard); err != nil || names(packed) != ".falajignore train.py" {
		t.Fatal(packed, err)
	}
}
