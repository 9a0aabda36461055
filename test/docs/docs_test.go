// Package docs holds the documentation against the product: the configuration's
// page is what the binary says, every link leads somewhere, and each command
// that a page shows exists, with its flags.
package docs

import (
	"debug/buildinfo"
	"flag"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/mod/modfile"

	"github.com/falaj-ml/falaj/test/live"
)

var rewrite = flag.Bool("rewrite", false, "write the tables of docs/reference that the binary knows")

const root = "../.."

// pages are all Markdown files that readers open first or from there.
func pages(t *testing.T) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(root, "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"docs", "sdk", "internal", "bench"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			if err == nil && strings.HasSuffix(path, ".md") {
				found = append(found, path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(found) < 20 {
		t.Fatalf("only %d pages were found", len(found))
	}
	return found
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

var links = regexp.MustCompile(`\]\(([^)\s]+)\)`)

// TestLinks: what a page links to in this repository is there.
func TestLinks(t *testing.T) {
	for _, page := range pages(t) {
		for _, m := range links.FindAllStringSubmatch(read(t, page), -1) {
			target, _, _ := strings.Cut(m[1], "#")
			if target == "" || strings.Contains(target, "://") {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(page), target)); err != nil {
				t.Errorf("%s links to %s, which is not there", page, m[1])
			}
		}
	}
}

// TestConfigReference: the tables of docs/reference that the binary knows are the binary's.
func TestConfigReference(t *testing.T) {
	const marker = "<!-- Below: make generate -->\n\n"
	for _, page := range []string{"config", "metrics"} {
		path := filepath.Join(root, "docs/reference", page+".md")
		out, err := exec.CommandContext(t.Context(), live.Build(t).Falaj, "child", page+"-reference").Output()
		if err != nil {
			t.Fatal(err)
		}
		head, old, ok := strings.Cut(read(t, path), marker)
		if !ok {
			t.Fatalf("%s has no line %q", path, marker)
		}
		if *rewrite {
			if err := os.WriteFile(path, []byte(head+marker+string(out)), 0o600); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if diff := cmp.Diff(old, string(out)); diff != "" {
			t.Errorf("%s is stale; run make generate\n%s", path, diff)
		}
	}
}

// shown is a command line in a block of shell commands.
var (
	blocks  = regexp.MustCompile("(?ms)^```sh\n(.*?)^```")
	shown   = regexp.MustCompile(`(?m)(?:^|[|(;&] *)(?:bin/)?falaj((?: [a-z][a-z-]*)+)([^|\n)]*)`)
	flagged = regexp.MustCompile(`(?:^|\s)(--[a-z-]+)`)
)

// TestCommands: each command of a page exists and has the flags that it shows.
func TestCommands(t *testing.T) {
	falaj := live.Build(t).Falaj
	help := map[string]string{}
	known := func(command string) string {
		text, ok := help[command]
		if !ok {
			b, err := exec.CommandContext(t.Context(), falaj, append(strings.Fields(command), "--help")...).CombinedOutput()
			if err != nil {
				t.Fatalf("falaj %s --help: %v\n%s", command, err, b)
			}
			text = string(b)
			help[command] = text
		}
		return text
	}
	seen := 0
	for _, page := range pages(t) {
		for _, block := range blocks.FindAllStringSubmatch(strings.ReplaceAll(read(t, page), "\\\n", " "), -1) {
			for _, m := range shown.FindAllStringSubmatch(block[1], -1) {
				words := strings.Fields(m[1])
				command := words[0]
				text := known(command)
				if len(words) > 1 && strings.Contains(text, "Available Commands:") {
					command += " " + words[1]
					text = known(command)
				}
				if !strings.Contains(text, "falaj "+command) {
					t.Errorf("%s shows falaj %s, which does not exist", page, command)
					continue
				}
				seen++
				for _, f := range flagged.FindAllStringSubmatch(m[2], -1) {
					if !strings.Contains(text, f[1]+" ") && !strings.Contains(text, f[1]+"\n") {
						t.Errorf("%s shows falaj %s %s; the command has no such flag", page, command, f[1])
					}
				}
			}
		}
	}
	if seen < 50 {
		t.Errorf("only %d commands were seen", seen)
	}
}

// TestDependencies: docs/reference/dependencies.md has each module that go.mod names
// itself, and says which of them are in no program.
func TestDependencies(t *testing.T) {
	file, err := modfile.Parse("go.mod", []byte(read(t, filepath.Join(root, "go.mod"))), nil)
	if err != nil {
		t.Fatal(err)
	}
	shipped := map[string]bool{}
	for _, program := range []string{"bin/falaj", "bin/falaj-worker"} {
		info, err := buildinfo.ReadFile(filepath.Join(root, program))
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range info.Deps {
			shipped[d.Path] = true
		}
	}
	rows := map[string][]string{}
	for line := range strings.Lines(read(t, filepath.Join(root, "docs/reference/dependencies.md"))) {
		if cells := strings.Split(line, "|"); len(cells) == 6 && strings.Contains(cells[1], "/") {
			rows[strings.TrimSpace(cells[1])] = cells[2:5]
		}
	}
	for _, r := range file.Require {
		if r.Indirect {
			continue
		}
		cells, ok := rows[r.Mod.Path]
		delete(rows, r.Mod.Path)
		if !ok {
			t.Errorf("%s has no row: what for, licence, what would replace it", r.Mod.Path)
			continue
		}
		for _, c := range cells {
			if strings.TrimSpace(c) == "" {
				t.Errorf("%s has an empty cell", r.Mod.Path)
			}
		}
		if !strings.HasSuffix(strings.TrimSpace(cells[0]), "in tests") && !shipped[r.Mod.Path] {
			t.Errorf("%s is in no program, and the page does not say that it is for tests", r.Mod.Path)
		}
	}
	for path := range rows {
		t.Errorf("%s has a row and is not in go.mod's direct list", path)
	}
}
