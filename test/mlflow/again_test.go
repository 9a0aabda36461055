package mlflow

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/falaj-ml/falaj/test/live"
)

// TestImportAgain migrates in steps: imports are repeated while the source and Falaj are both in
// use, by the database and by the address. What the source changed comes, what was changed in
// Falaj stays, and what both changed is reported each time.
func TestImportAgain(t *testing.T) {
	t.Parallel()
	python := live.Installed(t, "mlflow-full")
	theirs := startMLflow(t, python)
	step := func(name, url, token string) string {
		t.Helper()
		return script(t, python, "again.py", []string{"MLFLOW_TRACKING_TOKEN=" + token}, name, url)
	}
	step("make", theirs.url, "")
	s := live.New(t, "")
	s.Up(t)
	p := s.Project(t, "nyc")
	token := tokenOf(p)
	database := []string{"import", "mlflow", filepath.Join(theirs.dir, "mlflow.db"), "--artifacts", filepath.Join(theirs.dir, "artifacts"), "-o", "json"}
	address := []string{"import", "mlflow", theirs.url, "-o", "json"}

	first := imported(t, p, database)
	if first.Runs.Created != 3 || first.Models.Created != 3 || first.Versions.Created != 4 {
		t.Fatalf("the first import: %+v", first)
	}
	all := func(r report) map[string]counts {
		return map[string]counts{"experiments": r.Experiments, "runs": r.Runs, "models": r.Models, "versions": r.Versions, "files": r.Files}
	}
	for _, args := range [][]string{address, database, address} { // the same, whichever way it is read
		for what, c := range all(imported(t, p, args)) {
			if c.Unchanged != c.all() || c.all() == 0 {
				t.Errorf("%s again, with %s: %+v", what, args[2], c)
			}
		}
	}

	step("ours", s.URL, token)
	step("change", theirs.url, "")
	conflicts := func(r report) (words []string) {
		for _, n := range r.Skipped {
			words = append(words, n.Kind+" "+n.ID+": "+n.What)
		}
		slices.Sort(words)
		return words
	}
	const both = `tag both was changed in the source, to "theirs", and in Falaj, to "ours": Falaj's value stays`
	want := []string{
		"part of experiment Wein weiß: " + both,
		"part of model_version Wein@1: " + both,
		`part of registered_model Wein: alias both was changed in the source, to "2", and in Falaj, to "3": Falaj's value stays`,
		"part of registered_model Wein: " + both,
		"part of run RUN: " + both,
	}
	told := func(what string, r report) {
		t.Helper()
		words := conflicts(r)
		for i, w := range words {
			if id, rest, ok := strings.Cut(strings.TrimPrefix(w, "part of run "), ": "); ok && strings.HasPrefix(w, "part of run ") && len(id) == 32 {
				words[i] = "part of run RUN: " + rest
			}
		}
		if diff := cmp.Diff(want, words); diff != "" {
			t.Errorf("%s: -want +got\n%s", what, diff)
		}
		gone := []string{"model_version Wein@3", "registered_model old"}
		for _, d := range r.Differences {
			gone = slices.DeleteFunc(gone, func(s string) bool {
				return s == d.Kind+" "+d.ID && strings.Contains(d.What, "was deleted in the source")
			})
		}
		if len(gone) > 0 || len(r.Differences) != 2 {
			t.Errorf("%s: differences %v", what, r.Differences)
		}
	}
	repeat := func(args ...string) report {
		t.Helper()
		return reported(t, p.Run(1, args...)) // conflicts are left out: exit status 1
	}
	dry := repeat(append(slices.Clone(address), "--dry-run")...)
	told("a dry run", dry)
	second := repeat(address...)
	told("the second import", second)
	for what, c := range all(dry) {
		if got := all(second)[what]; got != c {
			t.Errorf("of %s a dry run said %+v, and the import %+v", what, c, got)
		}
	}
	changed := counts{Updated: 1, Unchanged: 2}
	if second.Experiments != changed || second.Runs != changed || second.Models != (counts{Updated: 1, Unchanged: 1}) || second.Versions != (counts{Updated: 2, Unchanged: 1}) {
		t.Errorf("the second import: %+v", all(second))
	}
	third := repeat(database...)
	told("the third import", third)
	for what, c := range all(third) {
		if c.Unchanged != c.all() {
			t.Errorf("%s at the third import: %+v", what, c)
		}
	}

	var got, there map[string]any
	for into, raw := range map[*map[string]any]string{&got: step("see", s.URL, token), &there: step("see", theirs.url, "")} {
		if err := json.Unmarshal([]byte(raw), into); err != nil {
			t.Fatal(err)
		}
	}
	// What is other in Falaj is what was done there, and what was deleted in the source.
	set := func(object string, path []string, value any) {
		t.Helper()
		in, ok := there[object].(map[string]any)
		for _, key := range path[:len(path)-1] {
			in, ok = in[key].(map[string]any)
		}
		if !ok {
			t.Fatalf("the source has no %s %v", object, path)
		}
		in[path[len(path)-1]] = value
	}
	set("experiment Wein weiß", []string{"both"}, "ours")
	set("run", []string{"both"}, "ours")
	set("model Wein", []string{"tags", "both"}, "ours")
	set("model Wein", []string{"aliases", "both"}, 3.0)
	set("model Wein", []string{"aliases", "own"}, 3.0)
	set("version Wein@1", []string{"tags", "both"}, "ours")
	set("version Wein@2", []string{"description"}, "ours")
	there["version Wein@3"] = got["version Wein@3"]
	there["model old"] = got["model old"]
	if diff := cmp.Diff(there, got); diff != "" || got["model old"] == nil || got["version Wein@3"] == nil {
		t.Errorf("-want +got\n%s", diff)
	}
}

// reported is the report in what an import printed.
func reported(t *testing.T, out string) (r report) {
	t.Helper()
	if err := json.NewDecoder(strings.NewReader(out)).Decode(&r); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return r
}

// TestImportPart: of a part that is asked for, each version that is left out has a reason, and
// the exit status says so; what is of other experiments altogether is not looked at.
func TestImportPart(t *testing.T) {
	t.Parallel()
	python := live.Installed(t, "mlflow-full")
	theirs := startMLflow(t, python)
	script(t, python, "again.py", nil, "make", theirs.url)
	s := live.New(t, "")
	s.Up(t)
	p := s.Project(t, "nyc")
	r := reported(t, p.Run(1, "import", "mlflow", theirs.url, "--experiment", "Wein*", "-o", "json"))
	if r.Runs.Created != 2 || r.Models != (counts{Created: 1}) || r.Versions != (counts{Created: 2, Skipped: 1}) {
		t.Errorf("%+v", r)
	}
	if len(r.Skipped) != 1 || r.Skipped[0].Kind != "model_version" || r.Skipped[0].ID != "wine@3" || !strings.Contains(r.Skipped[0].What, "not in the part that was asked for") {
		t.Errorf("skipped %v", r.Skipped)
	}
	rest := imported(t, p, []string{"import", "mlflow", theirs.url, "-o", "json"})
	if rest.Versions != (counts{Created: 2, Unchanged: 2}) || rest.Models != (counts{Created: 2, Unchanged: 1}) {
		t.Errorf("the rest: %+v", rest)
	}
	// What came before is of any part.
	again := imported(t, p, []string{"import", "mlflow", theirs.url, "--experiment", "Wein*", "-o", "json"})
	if again.Versions != (counts{Unchanged: 4}) {
		t.Errorf("the part again: %+v", again)
	}
}
