package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
)

func TestVisible(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":                        "",
		"plain\ttext\n":           "plain\ttext\n",
		"مرحبا · naïve · 模型 · 🛰":  "مرحبا · naïve · 模型 · 🛰",
		"\x1b[31mred\x1b[0m":      `\x1b[31mred\x1b[0m`,
		"\x1b]0;title\x07":        `\x1b]0;title\x07`,
		"a\x00b\x08c":             `a\x00b\x08c`,
		"del\x7f":                 `del\u007f`,
		"c1 \u009b31m \u0085":     `c1 \u009b31m \u0085`,
		"c1 as a byte \x9b31m":    `c1 as a byte \x9b31m`,
		"not UTF-8 \xff\xfe":      `not UTF-8 \xff\xfe`,
		"cut \xe2\x82":            `cut \xe2\x82`,
		"too long \xc0\x80":       `too long \xc0\x80`,
		"surrogate \xed\xa0\x80":  `surrogate \xed\xa0\x80`,
		"bidi \u202eevil\u202c":   `bidi \u202eevil\u202c`,
		"isolate \u2066x\u2069":   `isolate \u2066x\u2069`,
		"marks \u200f stay":       "marks \u200f stay", // Arabic and Hebrew texts have them
		"dos\r\nlines\r\n":        "dos\nlines\n",
		"10%\r20%\r":              "10%\\x0d\n20%\\x0d\n",
		"the replacement \ufffd.": "the replacement \ufffd.",
	} {
		for _, piece := range []int{1, 2, 3, 5, len(in) + 1} {
			var out bytes.Buffer
			v := &visible{w: &out}
			for rest := in; rest != ""; {
				n := min(piece, len(rest))
				if m, err := io.WriteString(v, rest[:n]); m != n || err != nil {
					t.Fatal(m, err)
				}
				rest = rest[n:]
			}
			v.end()
			if out.String() != want {
				t.Errorf("%q in pieces of %d: %q, want %q", in, piece, &out, want)
			}
		}
	}
}

func FuzzVisible(f *testing.F) {
	f.Add([]byte("\x1b[2J\u202e\r\n"), 3)
	f.Fuzz(func(t *testing.T, in []byte, cut int) {
		var out bytes.Buffer
		v := &visible{w: &out}
		cut = min(max(cut, 0), len(in))
		_, _ = v.Write(in[:cut])
		_, _ = v.Write(in[cut:])
		v.end()
		if !harmless(out.Bytes()) {
			t.Errorf("%q", &out)
		}
		if harmless(in) && !bytes.Equal(in, out.Bytes()) {
			t.Errorf("%q became %q", in, &out)
		}
		if strings.ContainsAny(plain(string(in)), "\n\t") || !harmless([]byte(plain(string(in)))) {
			t.Errorf("%q in a cell", plain(string(in)))
		}
	})
}

// hostile is text of somebody who means harm.
const hostile = "x\x1b[2J\x1b]0;y\x07\x7f\u009b1m\u202ez\u2066\rw\x00"

// TestFormats: what JSON and YAML say is what was meant, and no terminal obeys it.
func TestFormats(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"json", "yaml"} {
		var out bytes.Buffer
		v := &visible{w: &out}
		a := &app{output: format}
		a.Stdout = v
		if err := a.printOne(map[string]any{"name": hostile, hostile: []any{"a" + hostile}}); err != nil {
			t.Fatal(err)
		}
		v.end()
		if !harmless(out.Bytes()) {
			t.Errorf("%s: %q", format, &out)
		}
		var got map[string]any
		read := json.Unmarshal
		if format == "yaml" {
			read = yaml.Unmarshal
		}
		if err := read(out.Bytes(), &got); err != nil || got["name"] != hostile || got[hostile].([]any)[0] != "a"+hostile {
			t.Errorf("%s: %q: %v", format, &out, err)
		}
	}
}

// TestCopiesAreWhole: what goes to a pipe or a file is what the server sent.
func TestCopiesAreWhole(t *testing.T) {
	t.Parallel()
	const log = hostile + "\xff\r\n"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, log) }))
	defer server.Close()
	for _, line := range []string{"job logs job_1 -p nyc", "env logs e -p nyc", "model card m 1 -p nyc", "sweep plot s --html - -p nyc", "audit export"} {
		var out, said bytes.Buffer
		code := Run(t.Context(), World{Args: append(strings.Fields(line), "--server", server.URL), Env: []string{"FALAJ_TOKEN=x"}, Stdout: &out, Stderr: &said})
		if code != 0 || out.String() != log {
			t.Errorf("%s: exit code %d: %q, %q", line, code, &out, &said)
		}
	}
}

// TestNoCommandDrivesTheTerminal runs every command against a server whose every answer is
// hostile, in every format, and looks at each byte that people would see.
func TestNoCommandDrivesTheTerminal(t *testing.T) {
	var asked atomic.Int64
	var enough context.CancelFunc
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := asked.Add(1)
		if n > 20 {
			enough() // it waits for something that never comes
		}
		o := map[string]any{}
		for _, name := range []string{
			"name", "id", "kind", "state", "reason", "error", "hint", "description", "message", "text", "why", "result", "version", "path", "user", "project", "job", "pool", "node",
			"source", "target", "type", "action", "object", "outcome", "key", "value", "digest", "stage", "dataset", "view", "rows", "until", "detail", "title", "log", "summary", "source_name",
		} {
			o[name] = name + hostile
		}
		for _, name := range []string{"warnings", "reasons", "aliases", "lines", "roles", "columns", "names"} {
			o[name] = []string{hostile}
		}
		for _, name := range []string{"spec", "status", "metadata", "tags", "params", "failure"} {
			o[name] = map[string]any{"name": hostile, "error": hostile, hostile: hostile}
		}
		one := map[string]any{}
		maps.Copy(one, o)
		o["items"], o["next_page_token"] = []any{one, one}, ""
		if n%3 == 0 { // and it refuses
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(http.StatusConflict)
			o = map[string]any{"status": 409, "kind": "conflict", "title": hostile, "detail": "no " + hostile, "hint": "do " + hostile}
		}
		_ = json.NewEncoder(w).Encode(o)
	}))
	defer server.Close()
	t.Chdir(t.TempDir())
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, []byte("kind: Queue\nname: x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	printed, commands := 0, 0
	var walk func(c *cobra.Command, path []string)
	walk = func(c *cobra.Command, path []string) {
		for _, sub := range c.Commands() {
			walk(sub, append(slices.Clip(path), sub.Name()))
		}
		if c.RunE == nil || c.HasSubCommands() || c.GroupID == "system" || c.Hidden || len(path) > 0 && (path[0] == "config" || path[0] == "completion" || path[0] == "simulate") || c.Name() == "storage" {
			return // of this machine, not of a server
		}
		commands++
		for _, format := range formats {
			for _, args := range [][]string{nil, {"x"}, {"x", "1"}, {"x", "1", "2"}, {"x" + hostile}, {file}} {
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				enough = cancel
				asked.Store(0)
				var out, said bytes.Buffer
				line := slices.Concat(path, args)
				Run(ctx, World{
					Args: append(slices.Clip(line), "-o", format, "--server", server.URL), Env: []string{"FALAJ_TOKEN=x", "FALAJ_PROJECT=nyc", "HOME=" + t.TempDir()},
					Stdin: strings.NewReader("kind: Queue\nname: x\n"), Stdout: &out, Stderr: &said,
					VerifyAudit: func(io.Reader, string, io.Reader) (string, error) { return hostile, nil },
				})
				cancel()
				whole := strings.HasSuffix(strings.Join(path, " "), "logs") || copies[strings.Join(path, " ")]
				if !harmless(out.Bytes()) && !whole || !harmless(said.Bytes()) {
					t.Errorf("falaj %q prints %q and %q", line, &out, &said)
				}
				if bytes.Contains(out.Bytes(), []byte(`[2J`)) {
					printed++
				}
				if !utf8.Valid(said.Bytes()) {
					t.Errorf("falaj %q says %q", line, &said)
				}
			}
		}
	}
	walk((&app{}).root(), nil)
	if commands < 60 || printed < 60 {
		t.Errorf("%d commands ran, and %d times they printed what the server said: this test does not see enough", commands, printed)
	}
}

// copies are the commands that copy what the server sends, see raw.
var copies = map[string]bool{"env sbom": true, "model card": true, "model bom": true, "audit export": true}

// TestStreamsAreWrapped: commands write to a.Stdout and a.Stderr, which Run has wrapped. The
// streams themselves are used in a few places, which pass texts of others through plain.
func TestStreamsAreWrapped(t *testing.T) {
	t.Parallel()
	may := map[string]map[string]bool{
		"out":    {"cli.go": true, "visible.go": true, "system.go": true},
		"screen": {"cli.go": true, "output.go": true, "import.go": true, "optimize.go": true, "simulate.go": true, "sweep.go": true, "data.go": true, "source.go": true},
	}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			s, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			of, _ := s.X.(*ast.Ident)
			switch {
			case of == nil:
			case of.Name == "a" && may[s.Sel.Name] != nil && !may[s.Sel.Name][name]:
				t.Errorf("%s uses a.%s: write to a.Stdout or a.Stderr, or copy by a.raw()", name, s.Sel.Name)
			case of.Name == "os" && (s.Sel.Name == "Stdout" || s.Sel.Name == "Stderr"):
				t.Errorf("%s uses os.%s: write to a.Stdout or a.Stderr", name, s.Sel.Name)
			}
			return true
		})
	}
}
