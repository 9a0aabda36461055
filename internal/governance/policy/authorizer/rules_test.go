package authorizer

import (
	"strings"
	"testing"

	cedarast "github.com/cedar-policy/cedar-go/x/exp/ast"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/policy"
)

// TestBuiltinsMatchTheSchema: the policies that everybody gets pass the check
// that projects' policies pass, so that none fails when it is evaluated.
func TestBuiltinsMatchTheSchema(t *testing.T) {
	s, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, d := range policy.Actions() {
		if len(s.builtin[d.Action]) == 0 {
			t.Errorf("no policy is about %s", d.Action)
		}
		for _, r := range s.builtin[d.Action] {
			seen[string(r.id)] = true
			if err := s.validator.Policy(string(r.id), (*cedarast.Policy)(r.AST())); err != nil {
				t.Errorf("policy %s: %v", r.id, err)
			}
		}
	}
	if n := strings.Count(string(builtin), "@id("); n != len(seen) {
		t.Errorf("%d policies are about some action, policies.cedar has %d", len(seen), n)
	}
}

// TestSlicesAreComplete: leaving policies out of a slice changes no decision,
// because their heads exclude the action.
func TestSlicesAreComplete(t *testing.T) {
	s, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	want := map[policy.Action]string{
		"dataset.query": "viewer engineer deployer admin system attempt bound scopes confidential restricted",
		"job.submit":    "engineer admin system bound scopes",
		"zone.read":     "viewer engineer deployer admin auditor system common bound scopes",
		"token.create":  "admin system own bound scopes",
	}
	for action, ids := range want {
		var got []string
		for _, r := range s.builtin[action] {
			got = append(got, string(r.id))
		}
		if strings.Join(got, " ") != ids {
			t.Errorf("%s is judged by %v, not %s", action, got, ids)
		}
	}
}

// TestDeepPolicies: what nests or repeats as far as the size allows is answered,
// and briefly.
func TestDeepPolicies(t *testing.T) {
	s, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	const head = `permit (principal, action == Action::"job.submit", resource) when { `
	for name, text := range map[string]string{
		"parentheses": head + strings.Repeat("(", 7000) + "true" + strings.Repeat(")", 7000) + "};",
		"nots":        head + strings.Repeat("!", 16000) + "true};",
		"ifs":         head + strings.Repeat("if true then ", 500) + "true" + strings.Repeat(" else true", 500) + "};",
		"sets":        head + strings.Repeat("[", 7000) + strings.Repeat("]", 7000) + " == 1};",
		"records":     head + strings.Repeat("{a:", 3000) + "1" + strings.Repeat("}", 3000) + ".a == 1};",
		"attributes":  head + "resource" + strings.Repeat(".a", 7000) + " == 1};",
		"wildcards":   head + `resource.name like "` + strings.Repeat("*a", 7000) + `"};`,
		"statements":  strings.Repeat(head+"true};", 50),
	} {
		if _, err := s.compile("deep", text); err != nil && (!fault.Is(err, fault.Invalid) || len(err.Error()) > 500) {
			t.Errorf("%s: %v with %d bytes", name, fault.KindOf(err), len(err.Error()))
		}
	}
}

func FuzzCompile(f *testing.F) {
	s, err := New(Config{})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(`forbid (principal, action == Action::"job.submit", resource) unless { principal.name == "night" };`)
	f.Add(`permit (principal in Role::"admin", action in [Action::"dataset.query"], resource) when { resource.residency.contains("home") };`)
	f.Add(strings.Repeat("(", 500))
	f.Add("@a(\"\\u{0}\") forbid")
	f.Fuzz(func(t *testing.T, text string) {
		sliced, err := s.compile("fuzz", text)
		switch {
		case err != nil:
			if !fault.Is(err, fault.Invalid) && !fault.Is(err, fault.TooLarge) || len(err.Error()) > 600 {
				t.Errorf("%v: %v", fault.KindOf(err), err)
			}
		case len(sliced) == 0:
			t.Error("a policy that is about nothing is accepted")
		}
		for a := range sliced {
			if d, ok := policy.Lookup(a); !ok || !d.Customisable() {
				t.Errorf("a project's policy is about %s", a)
			}
		}
	})
}
