package yamldoc

import (
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"
)

// TestHostile: texts that make parsers slow or large are refused, or read with memory that
// grows with their size alone.
func TestHostile(t *testing.T) {
	const size = 256 << 10
	repeat := func(s string) string { return strings.Repeat(s, size/len(s)) }
	texts := map[string]string{
		"lists": repeat("["), "mappings": repeat(`{"a":`), "sequences": repeat("- "), "keys": repeat("? "), "open": repeat("[#\n"),
		"items": "[" + repeat("a,") + "]", "nulls": "{" + repeat("a,") + "}", "comments": repeat("a: #c\n#d\n"), "anchors": repeat("&a"),
		"tags": repeat("!"), "quotes": repeat("'"), "lines": repeat("\n"), "colons": repeat(":"), "documents": repeat("---\n"),
		"flow comments": "[" + repeat("a, #\n") + "]",
	}
	for name, text := range texts {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			nodes, err := Documents([]byte(text))
			runtime.ReadMemStats(&after)
			if took := (after.TotalAlloc - before.TotalAlloc) / uint64(len(text)); took > 512 {
				t.Errorf("%d bytes for a byte", took)
			}
			if err == nil {
				for _, n := range nodes {
					_, _ = Value(n)
				}
			}
		})
	}
}

// TestAliases: what aliases expand to counts.
func TestAliases(t *testing.T) {
	var text strings.Builder
	text.WriteString("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n")
	for i := 1; i < 12; i++ {
		fmt.Fprintf(&text, "a%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i-1), 10), ", "))
	}
	for _, text := range []string{text.String(), "a: &a [*a]", "&a {b: *a}"} {
		nodes, err := Documents([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Value(nodes[0]); err == nil || !strings.Contains(err.Error(), "expands too far") {
			t.Errorf("%.40q: %v", text, err)
		}
	}
}

func TestErrors(t *testing.T) {
	for text, want := range map[string]string{
		"a: [":                    "line 1: ",
		"a: 1\nb: [":              "line 2: ",
		"a: 1\nb: *c\n":           "line 2: alias *c has no anchor before it",
		"a: 1\n\tb: 2":            "line 2: ",
		"a: \x00":                 "NUL byte",
		strings.Repeat("[", 1e5):  "line 1: exceeded max depth",
		"a: 1\n b: 2":             "line 2: ",
		"x: 1\ny:\n  z: 1\n w: 2": "line ",
	} {
		if _, err := Documents([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, want %s", text, err, want)
		}
	}
}

func TestValue(t *testing.T) {
	for text, want := range map[string]string{
		"a: 2020-01-01":                  "2020-01-01 as text",
		"[1, -1, 0x10, 1e3, 1.5, 1e-5]":  `[1,-1,16,1000,1.5,0.00001]`,
		"[yes, on, true, FALSE, ~, '1']": `["yes","on",true,false,null,"1"]`,
		"18446744073709551615":           "18446744073709551615",
		"[1e999]":                        "error",
		"[.nan]":                         "error",
		"<<: {a: 1}":                     `{"\u003c\u003c":{"a":1}}`,
		"|\n  a\n  b\n":                  `"a\nb\n"`,
		"\xef\xbb\xbfa: 1":               `{"a":1}`,
	} {
		if want == "2020-01-01 as text" {
			want = `{"a":"2020-01-01"}`
		}
		nodes, err := Documents([]byte(text))
		if err != nil || len(nodes) != 1 {
			t.Errorf("%q: %d documents, %v", text, len(nodes), err)
			continue
		}
		got, err := Value(nodes[0])
		b, _ := json.Marshal(got)
		if err != nil {
			b = []byte("error")
		}
		if string(b) != want {
			t.Errorf("%q is %s, want %s (%v)", text, b, want, err)
		}
	}
}

// FuzzDocuments checks that no text panics, and that every value can be marshalled.
func FuzzDocuments(f *testing.F) {
	for _, text := range []string{"a: [", "a: &a [*a]", "- 1\n---\nb: {c: d}\n", "? [a]\n: b", "a: 'x", "!!binary aGk=", "a: |\n  b\n", "%YAML 1.2\n---\na", "0777", "1e400"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		nodes, err := Documents(text)
		if err != nil {
			return
		}
		for _, n := range nodes {
			v, err := Value(n)
			if err != nil {
				continue
			}
			if _, err := json.Marshal(v); err != nil {
				t.Errorf("%v: %v", v, err)
			}
		}
	})
}
