package docs

import (
	"encoding/json"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// paraphrase is a pattern of texts that name a known concept by other words.
type paraphrase struct {
	pattern *regexp.Regexp
	instead string
}

// paraphrases reads testdata/paraphrases.txt.
func paraphrases(t *testing.T) []paraphrase {
	t.Helper()
	var all []paraphrase
	for line := range strings.Lines(read(t, filepath.Join("testdata", "paraphrases.txt"))) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		pattern, instead, ok := strings.Cut(line, " => ")
		if !ok || instead == "" {
			t.Fatalf("paraphrases.txt: %q has no \" => \" and words to use instead", line)
		}
		p, err := regexp.Compile("(?i)" + strings.ReplaceAll(pattern, " ", `(?:[ \t]+|[ \t]*\n[ \t]*)`))
		if err != nil {
			t.Fatalf("paraphrases.txt: %q: %v", pattern, err)
		}
		all = append(all, paraphrase{p, instead})
	}
	if len(all) < 50 {
		t.Fatalf("paraphrases.txt has only %d patterns", len(all))
	}
	return all
}

// finding is a paraphrase in a text, with the number of its line.
type finding struct {
	line          int
	text, instead string
}

// find returns the paraphrases in a text, which may go over line breaks.
func find(all []paraphrase, text string) []finding {
	var found []finding
	for _, p := range all {
		for _, at := range p.pattern.FindAllStringIndex(text, -1) {
			found = append(found, finding{1 + strings.Count(text[:at[0]], "\n"), strings.Join(strings.Fields(text[at[0]:at[1]]), " "), p.instead})
		}
	}
	return found
}

// quoted is code of a page: commands, outputs and messages, which have tests of their own.
var quoted = regexp.MustCompile("(?ms)^ *```.*?^ *```|`[^`]*`")

// TestWords: the texts of the reference and of the guides use the field's words. The pages cli, config and
// metrics have the texts of the program: help, configuration, descriptions of metrics and routes.
func TestWords(t *testing.T) {
	all := paraphrases(t)
	texts := map[string]string{"api/openapi.json": summaries(t, filepath.Join(root, "api/openapi.json"))}
	for _, page := range []string{"cli", "config", "metrics"} {
		path := "docs/reference/" + page + ".md"
		texts[path] = read(t, filepath.Join(root, path))
	}
	guides, err := filepath.Glob(filepath.Join(root, "docs/guides/*.md"))
	if err != nil || len(guides) < 40 {
		t.Fatalf("%d guides: %v", len(guides), err)
	}
	for _, path := range append(guides, filepath.Join(root, "README.md"), filepath.Join(root, "docs/reference/permissions.md")) {
		texts[path] = quoted.ReplaceAllStringFunc(read(t, path), func(s string) string { return strings.Repeat("\n", strings.Count(s, "\n")) })
	}
	for path, text := range texts {
		for _, f := range find(all, text) {
			t.Errorf("%s:%d: %q; write instead: %s", path, f.line, f.text, f.instead)
		}
	}
}

// summaries is an OpenAPI document with its summaries only: all other lines are empty,
// so that the numbers of lines are those of the file.
func summaries(t *testing.T, path string) string {
	t.Helper()
	const begin = `"summary": "`
	found := 0
	var b strings.Builder
	for line := range strings.Lines(read(t, path)) {
		line = strings.TrimSuffix(strings.TrimSpace(line), ",")
		if text, ok := strings.CutPrefix(line, begin); ok {
			var s string
			if err := json.Unmarshal([]byte(`"`+text), &s); err != nil {
				t.Fatalf("%s: %q: %v", path, line, err)
			}
			b.WriteString(s)
			found++
		}
		b.WriteByte('\n')
	}
	if found < 200 {
		t.Fatalf("%s has only %d summaries", path, found)
	}
	return b.String()
}

func TestParaphrases(t *testing.T) {
	all := paraphrases(t)
	for _, tt := range []struct {
		text, found string
		line        int
	}{
		{"Look at queues: quotas, shares and who waits", "Look at", 1},
		{"Show queues: quotas, shares\nand who\nwaits", "who waits", 2},
		{"Make the version that is tried the one that answers", "is tried", 1},
		{"Show the requests to another version, too; its answers go nowhere", "answers go nowhere", 1},
		{"Say what a job used, what would have done", "what would have done", 1},
		{"Turn what the server does by itself on or off", "by itself", 1},
		{"See what was used, and where the month ends", "month ends", 1},
		{"List what was told to webhooks", "was told", 1},
		{"retry.\n\nThe server\nis away", "is away", 4},
		{"Destroy a key for ever", "Destroy a key for ever", 1},
		{"window; the newest when left out", "left out", 1},
	} {
		ok := false
		for _, f := range find(all, tt.text) {
			ok = ok || f == finding{tt.line, tt.found, f.instead}
		}
		if !ok {
			t.Errorf("%q: %q is not found at line %d; found %v", tt.text, tt.found, tt.line, find(all, tt.text))
		}
	}
	for _, text := range []string{
		"Show queues: quotas, shares and pending jobs",
		"Abort the running rollout, or roll back to the previous version",
		"The account who-read reports is shown by `falaj audit who-read`",
		"read the source from the beginning with --anew",
		"The latest time at which the job fits is FITS BY",
		"How long a session lasts; what happens afterwards is in the guide",
		"See https://falaj.example for details",
		"answers the request, and returns the answer",
	} {
		if found := find(all, text); len(found) > 0 {
			t.Errorf("%q: a right sentence matches: %v", text, found)
		}
	}
}
