package policy_test

import (
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/policy"
)

var rewrite = flag.Bool("rewrite", false, "write the generated documentation")

func TestPermissionsDocument(t *testing.T) {
	const path = "../../../docs/reference/permissions.md"
	if *rewrite {
		if err := os.WriteFile(path, []byte(policy.Table()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	committed, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(committed), policy.Table()); diff != "" {
		t.Errorf("docs/reference/permissions.md is stale; run go test ./internal/governance/policy -rewrite\n%s", diff)
	}
}

func TestActionsAreWellFormed(t *testing.T) {
	seen := map[policy.Action]bool{}
	for _, d := range policy.Actions() {
		noun, verb, ok := strings.Cut(string(d.Action), ".")
		if !ok || noun == "" || verb == "" || d.Doc == "" || len(d.Roles) == 0 {
			t.Errorf("%q is not noun.verb with a text and a role", d.Action)
		}
		if seen[d.Action] {
			t.Errorf("%s stands twice", d.Action)
		}
		seen[d.Action] = true
		if d.Installation && (d.Own || d.Attempt || d.Common) {
			t.Errorf("%s is of the installation and cannot be owned, shared or scoped to an attempt", d.Action)
		}
	}
}

func TestCheckScope(t *testing.T) {
	for _, tt := range []struct {
		scope   string
		attempt bool
		want    string // in the message or the hint; empty means good
	}{
		{"run.write", true, ""},
		{"dataset.query:weather@1", true, ""},
		{"job.submit", false, ""},
		{"job.submit", true, "an attempt cannot have"},
		{"token.create", true, "an attempt cannot have"},
		{"dataset.qeury", false, "dataset.query"},
		{"dataset.query:", false, "not an action"},
		{"dataset.query:a b", false, "not an action"},
		{"dataset.query:a:b", false, "not an action"},
		{"*", false, "names no action"},
		{"", false, "names no action"},
		{"dataset.*", false, "names no action"},
		{strings.Repeat("x", 10_000), false, "not an action"},
	} {
		err := policy.CheckScope(tt.scope, tt.attempt)
		if tt.want == "" {
			if err != nil {
				t.Errorf("%q: %v", tt.scope, err)
			}
			continue
		}
		if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error()+fault.HintOf(err), tt.want) {
			t.Errorf("CheckScope(%.40q) = %v (%s), want one that says %q", tt.scope, err, fault.HintOf(err), tt.want)
		}
	}
}
