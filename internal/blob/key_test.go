package blob_test

import (
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/fault"
)

var badKeys = map[string]blob.Key{
	"empty":              "",
	"parent":             "../x",
	"parent inside":      "a/../x",
	"parent at the end":  "a/..",
	"here":               "./a",
	"here inside":        "a/./b",
	"absolute":           "/etc/passwd",
	"trailing slash":     "a/",
	"empty segment":      "a//b",
	"NUL":                "a\x00b",
	"backslash":          `a\b`,
	"backslash parent":   `..\x`,
	"drive":              "C:/x",
	"percent":            "%2e%2e%2fx",
	"double percent":     "%252e%252e%252fx",
	"newline":            "a\nb",
	"space":              "a b",
	"comma of fileblob":  ",staging/x",
	"fragment":           "a#b",
	"query":              "a?b",
	"tilde":              "~root",
	"unicode":            "änne",
	"fullwidth dots":     "．．/x",
	"overlong UTF-8":     "\xc0\xae\xc0\xae/x",
	"long segment":       blob.Key(strings.Repeat("a", 201)),
	"long key":           blob.Key(strings.Repeat("abcdefg/", 128) + "x"),
	"right-to-left mark": "a\u202eb",
}

func TestCheckKey(t *testing.T) {
	for name, k := range badKeys {
		if err := blob.CheckKey(k); !fault.Is(err, fault.Invalid) || fault.HintOf(err) == "" {
			t.Errorf("%s: %q: %v", name, k, err)
		}
	}
	good := []blob.Key{
		"a", "...", "a.b", "..a", "projects/p/runs/run_01J/model.onnx", "year=2013/month=01/part-0.parquet", "v@1+x",
		blob.Key(strings.Repeat("a", 200)), blob.Key(strings.Repeat("abcdefg/", 127) + "x"),
	}
	for _, k := range good {
		if err := blob.CheckKey(k); err != nil {
			t.Errorf("%q: %v", k, err)
		}
	}
}

func TestCheckPrefix(t *testing.T) {
	for _, p := range []blob.Key{"", "a", "a/", "a/b", "a/.", "a/..", "."} {
		if err := blob.CheckPrefix(p); err != nil {
			t.Errorf("%q: %v", p, err)
		}
	}
	for _, p := range []blob.Key{"/", "/a", "a//", "../", "a/../", "a/../b", "a b", "a\x00", blob.Key(strings.Repeat("a", 201))} {
		if err := blob.CheckPrefix(p); !fault.Is(err, fault.Invalid) {
			t.Errorf("%q: %v", p, err)
		}
	}
}

// A key stays where it is under every way of cleaning paths.
func FuzzCheckKey(f *testing.F) {
	for _, k := range badKeys {
		f.Add(string(k))
	}
	f.Add("projects/p/runs/run_01J/model.onnx")
	f.Fuzz(func(t *testing.T, s string) {
		k := blob.Key(s)
		if blob.CheckKey(k) != nil {
			return
		}
		if path.Clean(s) != s || !filepath.IsLocal(s) || strings.ContainsAny(s, "\\%\x00,:~") || len(s) > 1024 {
			t.Fatalf("accepted %q", s)
		}
		for i := range len(s) + 1 {
			if err := blob.CheckPrefix(k[:i]); err != nil {
				t.Fatalf("%q is a key, and its beginning %q is refused: %v", s, s[:i], err)
			}
		}
	})
}
