package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// absent are the entries of README.md's column "not yet supported". If one is supported,
// files match the glob and, where there is a pattern, one of them has a match: the
// directories are those that the design reserves, and the reference pages are generated
// from the binary. An entry without a glob names tests that were not run.
var absent = map[string]struct{ glob, pattern string }{
	"tests on a real HDFS cluster and on several Spark nodes": {},
	"scheduled materialisation":                               {"internal/feature/*.go", `json:"schedule`},
	"tests with nodes rented from a real cloud":               {"internal/compute/provisioner/*", `/(aws|azure|gcp)$`},
	"MPI across nodes":                                        {"internal/worker/launch/*.go", `plm_rsh|--hostfile`},
	"fractions of accelerators other than by MPS":             {"internal/compute/engine/local/sharing.go", `(?i)time.?slic`},
	"tests on real GPUs":                                      {},
	"MLflow's web interface and traces":                       {"api/openapi.json", `"/(ajax-)?api/[23]\.0/mlflow/traces`},
	"inference on GPUs":                                       {"internal/serving/runtime/onnx/*.go", `AppendExecutionProvider`},
	"drift of text and images":                                {"internal/drift/*.go", `(?i)func \w*embedding`},
	"OpenTelemetry":                                           {"docs/reference/config.md", `(?i)otlp|opentelemetry`},
	"schedules":                                               {"docs/reference/permissions.md", "`schedule\\."},
	"shadows evaluated by labels":                             {"internal/serving/rollout/*.go", `(?i)func \w*shadow`},
	"LDAP, SCIM, second factors":                              {"internal/governance/identity/*", `/(ldap|scim|webauthn)$`},
	"privacy budgets":                                         {"internal/governance/privacy/*.go", `(?i)epsilon`},
	"administration in the web console":                       {"console/src/pages/*", `/(Accounts|Members|Secrets|Tokens|Zones)\w*\.tsx$`},
	"gRPC other than for online features and inference":       {"api/falaj/*", `/(datasets|jobs|models|audit)$`},
	"all": {"internal/pipeline", ""},
}

// supports returns a file that a probe finds: its name matches, or for files its text.
func supports(t *testing.T, glob, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(root, glob))
	if err != nil {
		t.Fatal(err)
	}
	if len(found) == 0 && pattern != "" {
		t.Fatalf("no file matches %s", glob)
	}
	p := regexp.MustCompile(pattern)
	for _, path := range found {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if pattern == "" || p.MatchString(filepath.ToSlash(path)) || !info.IsDir() && p.MatchString(read(t, path)) {
			return path
		}
	}
	return ""
}

// TestStatus: each row of README.md's status table names tests that exist, and what it
// lists as not yet supported is absent from the product.
func TestStatus(t *testing.T) {
	_, table, ok := strings.Cut(read(t, filepath.Join(root, "README.md")), "\n## Status\n")
	if !ok {
		t.Fatal("README.md has no section Status")
	}
	rows, seen := 0, map[string]bool{}
	for line := range strings.Lines(table) {
		if strings.HasPrefix(line, "## ") {
			break
		}
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) != 6 || strings.HasPrefix(cells[1], "---") || strings.TrimSpace(cells[1]) == "part" {
			continue
		}
		rows++
		part, supported, tests := strings.TrimSpace(cells[1]), strings.TrimSpace(cells[2]), strings.TrimSpace(cells[4])
		if (supported == "") != (tests == "") {
			t.Errorf("%s: what is supported needs tests, and tests need something that is supported", part)
		}
		for _, dir := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(tests, -1) {
			if !hasTests(t, filepath.Join(root, dir[1])) {
				t.Errorf("%s: %s has no tests", part, dir[1])
			}
		}
		for entry := range strings.SplitSeq(cells[3], ";") {
			entry = strings.TrimSpace(entry)
			if entry == "" {
				continue
			}
			probe, ok := absent[entry]
			if !ok {
				t.Errorf("%s: add a pattern for %q, which is not yet supported", part, entry)
				continue
			}
			seen[entry] = true
			if probe.glob == "" {
				continue
			}
			if found := supports(t, probe.glob, probe.pattern); found != "" {
				t.Errorf("%s: %q is listed as not yet supported, but see %s", part, entry, found)
			}
		}
	}
	if rows < 10 {
		t.Errorf("the status table has only %d rows", rows)
	}
	for entry := range absent {
		if !seen[entry] {
			t.Errorf("%q is not in the status table any more; remove its pattern", entry)
		}
	}
}

// hasTests reports whether a directory or one below it has a test file.
func hasTests(t *testing.T, dir string) bool {
	t.Helper()
	if _, err := os.Stat(dir); err != nil {
		return false
	}
	for _, pattern := range []string{"*_test.go", "*/*_test.go", "*/*/*_test.go"} {
		if found, err := filepath.Glob(filepath.Join(dir, pattern)); err != nil || len(found) > 0 {
			return err == nil
		}
	}
	return false
}
